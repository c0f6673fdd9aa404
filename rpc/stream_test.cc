#include "weft/rpc/stream.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/rpc/testing/stream_test_functions.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Field;
using ::testing::Optional;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

void Nothing(Writer<Tensor>) {}
WEFT_RPC_STREAM(Nothing);

absl::Status Rows(Writer<Tensor> out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) WEFT_RETURN_IF_ERROR(out.Write(Row(i)));
  return absl::OkStatus();
}
WEFT_RPC_STREAM(Rows);

// `first` to `last`, without those that cannot be written.
absl::Status GivePicky(CallContext& context, Writer<Picky> out, int64_t first,
                       int64_t last) {
  for (int64_t i = first; i <= last; ++i) {
    const absl::Status written = out.Write(Picky{i});
    if (i == 33) {
      EXPECT_THAT(written,
                  StatusIs(absl::StatusCode::kInternal, "threw at a 33"));
    } else if (!written.ok()) {
      return context.Local<Progress>()->End(written);
    }
  }
  return context.Local<Progress>()->End(absl::OkStatus());
}
WEFT_RPC_STREAM(GivePicky);

TEST(Stream, ValuesComeInOrderAndThenTheEnd) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  const auto all = ReadAll(OpenStream(ranks[0].To("w1"), Count, 5000, 3));
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), 5000u);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(std::stoi((*all)[i]), i);
  }
}

TEST(Stream, AnEmptyOneEnds) {
  Ranks ranks(2);
  Reader<Tensor> reader = OpenStream(ranks[0].To("w1"), Nothing);
  for (int i = 0; i < 2; ++i) {  // and stays so
    EXPECT_THAT(reader.Next(), IsOkAndHolds(Eq(std::nullopt)));
  }
}

TEST(Stream, TensorsTravel) {
  Ranks ranks(2);
  const auto rows = ReadAll(OpenStream(ranks[0].To("w1"), Rows, 600));
  ASSERT_THAT(rows, IsOk());
  ASSERT_EQ(rows->size(), 600u);  // more than two windows
  EXPECT_EQ((*rows)[599].span<float>()[999], 599);
}

TEST(Stream, WorksWithinOneWorker) {
  Ranks ranks(1);
  const auto rows = ReadAll(OpenStream(ranks[0].To("w0"), Rows, 3));
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->size(), 3u);
}

TEST(Stream, AnErrorComesAfterTheValuesBeforeIt) {
  Ranks ranks(2);
  Reader<int64_t> reader = OpenStream(ranks[0].To("w1"), ThreeThenFail);
  for (const int64_t i : {1, 2, 3}) EXPECT_THAT(reader.Next(), IsOkAndHolds(i));
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss,
                                      "ThreeThenFail: the rest is missing"));
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss, ""));
}

TEST(Stream, AValueThatCannotBeReadEndsIt) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  for (const int64_t bad : {13, 23}) {
    Reader<Picky> reader =
        OpenStream(ranks[0].To("w1"), GivePicky, bad - 1, int64_t{1} << 40);
    EXPECT_THAT(reader.Next(),
                IsOkAndHolds(Optional(Field(&Picky::value, bad - 1))));
    for (int i = 0; i < 2; ++i) {  // and stays so
      const absl::Status end = reader.Next().status();
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kInternal,
                                "GivePicky: its result cannot be read: "));
      EXPECT_THAT(
          end, StatusIs(absl::StatusCode::kInternal, absl::StrCat("a ", bad)));
      EXPECT_EQ(PhaseOf(end), Phase::kDecode);
    }
    EXPECT_TRUE(IsWoken(progress.end));  // the function is notified
  }
}

TEST(Stream, AValueThatCannotBeWrittenIsLeftOut) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  const auto all =
      ReadAll(OpenStream(ranks[0].To("w1"), GivePicky, int64_t{33}, 35));
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].value, 34);
}

TEST(Stream, ASlowReaderStopsTheWriter) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  constexpr int64_t kBytes = 100000;
  Reader<std::string> reader =
      OpenStream(ranks[0].To("w1"), Count, 1000, kBytes);
  ASSERT_THAT(reader.Next(), IsOk());
  // As many calls as it likes go by; the writer is three windows ahead.
  for (int i = 0; i < 200; ++i)
    ASSERT_THAT(Call(ranks[0].To("w1"), Ping), IsOk());
  const int64_t window = StreamBuffer::kWindowBytes / kBytes + 1;
  EXPECT_LE(progress.written, 3 * window);
  reader.Cancel();
  EXPECT_TRUE(IsWoken(progress.end));
}

TEST(Stream, DestroyedReaderCancelsTheFunction) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  {
    Reader<std::string> reader =
        OpenStream(ranks[0].To("w1"), Count, int64_t{1} << 40, 1000);
    ASSERT_THAT(reader.Next(), IsOk());
  }
  EXPECT_TRUE(IsWoken(progress.end));
  MutexLock lock(progress.mu);
  EXPECT_THAT(progress.why, StatusIs(absl::StatusCode::kCancelled, ""));
}

// The function only if it has begun by then; SimulatedStream has it for sure.
TEST(Stream, TheDeadlineEndsBothSides) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  Reader<std::string> reader = OpenStream(
      ranks[0].To("w1", absl::Milliseconds(500)), Count, int64_t{1} << 40, 9);
  int64_t read = 0;
  absl::Status status = reader.Next().status();
  for (; status.ok(); ++read) status = reader.Next().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
  EXPECT_TRUE(read == 0 || progress.ended == 1) << read;
}

TEST(Stream, CountsAsOneOpenCallWithNestedCalls) {
  Ranks ranks(2);
  auto chat = OpenStream(ranks[0].To("w1"), Twice, 2);
  EXPECT_THAT(chat.Write(21), IsOk());
  EXPECT_THAT(chat.Next(), IsOkAndHolds(std::optional<int64_t>(42)));
  // A part of the stream counts until its worker is done with it, which may be
  // after its value was read here.
  const auto is_one = [&ranks](int rank, const std::string& call) {
    return Becomes([&ranks, rank, call] {
      return ranks[rank].OpenCalls() == std::vector<std::string>{call};
    });
  };
  EXPECT_TRUE(is_one(0, "1 calls to w1"));
  EXPECT_TRUE(is_one(1, "1 calls of w0"));
  EXPECT_FALSE(ranks[0].Shutdown(absl::ZeroDuration()).ok());
  EXPECT_THAT(ranks[0].CutCalls(), ElementsAre("1 calls to w1"));
}

TEST(Stream, OpenFailureHasAReason) {
  Ranks ranks(2);
  EXPECT_THAT(OpenStream(ranks[0].To("w9"), Nothing).Next(),
              StatusIs(absl::StatusCode::kNotFound, "w9"));
  EXPECT_THAT(OpenStream(ranks[0].To("w1").Serialized(), Nothing).Next(),
              StatusIs(absl::StatusCode::kInvalidArgument, "Serialized"));
  const Target any = ranks[0].To("w1").WithRetry(RetryPolicy());
  EXPECT_THAT(OpenStream(any, Nothing).Next(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "streams need a target without it"));
  Registry empty;
  RanksOptions options;
  options.registries = {nullptr, &empty};
  Ranks other(2, options);
  EXPECT_THAT(OpenStream(other[0].To("w1"), Nothing).Next(),
              StatusIs(absl::StatusCode::kUnimplemented, "Nothing"));
}

TEST(Stream, ALostPeerEndsIt) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  Reader<std::string> reader =
      OpenStream(ranks[0].To("w1"), Count, int64_t{1} << 40, 1000);
  ASSERT_THAT(reader.Next(), IsOk());
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  absl::Status status;
  while (status.ok()) status = reader.Next().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "its process has ended"));
  ranks[1].PeerGone(WorkerKey{0, 1}, "likewise");
  EXPECT_TRUE(IsWoken(progress.end));
}

TEST(Stream, ManyAtOnceNeedNoCreditForTheirPulls) {
  RanksOptions options;
  options.limits.calls = 8;
  Ranks ranks(2, options);
  std::vector<Reader<Tensor>> readers;
  for (int i = 0; i < 8; ++i) {  // all the credit there is
    readers.push_back(OpenStream(ranks[0].To("w1"), Rows, 600));
  }
  for (Reader<Tensor>& reader : readers) {
    const auto rows = ReadAll(std::move(reader));
    ASSERT_THAT(rows, IsOk());
    EXPECT_EQ(rows->size(), 600u);
  }
}

// Has written nothing, and its own reply comes later than its end.
class EndedSource final : public internal::StreamSource {
 public:
  explicit EndedSource(Future<void> reply) : reply_(std::move(reply)) {
    Prefetch();
  }
  absl::Status Unreadable(const absl::Status& why) const override {
    return why;
  }

 private:
  Future<StreamBuffer::Batch> Pull() override {
    return MakeReady<StreamBuffer::Batch>(StreamBuffer::Batch(true, {}));
  }
  bool PullsAhead() const override { return true; }
  absl::Status AwaitEnd(const absl::Status&) override {
    return reply_.Wait(testing::kPatience);
  }
  bool KnowsEnd() const override { return reply_.IsReady(); }
  void GiveUp(const absl::Status&) override {}
  absl::Duration Patience() const override { return testing::kPatience; }
  std::string Other() const override { return "ps0"; }

  const Future<void> reply_;
};

TEST(Stream, AReaderThatMustNotWaitForTheLastReplyReadsOnLater) {
  auto [reply, end] = MakePromise<void>();
  Reader<int64_t> reader(std::make_unique<EndedSource>(end));
  {
    const InlineScope within_a_callback;
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(reader.Next(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, "ps0"));
    }
  }
  reply.Set(absl::OkStatus());
  const auto next = reader.Next();
  ASSERT_THAT(next, IsOk());
  EXPECT_FALSE(next->has_value());
}

TEST(Stream, AnAgentThatEndsWaitsForItsFunctions) {
  Progress progress;
  {
    Ranks ranks(2);
    ranks[1].SetLocal(&progress);
    Reader<std::string> reader =
        OpenStream(ranks[0].To("w1"), Count, int64_t{1} << 40, 1000);
    ASSERT_THAT(reader.Next(), IsOk());
  }
  EXPECT_EQ(progress.ended, 1);
}

}  // namespace
}  // namespace weft::rpc
