// Streams that their callers write, and streams of both ways.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/base/parker.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/rpc/testing/stream_test_functions.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Field;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

// Reads two, then no more; waits until the test releases it.
struct Gate {
  Parker began;
  Parker go_on;
};
absl::StatusOr<int64_t> ReadTwo(CallContext& context, Reader<std::string> in) {
  auto* gate = context.Local<Gate>();
  gate->began.Unpark();
  EXPECT_TRUE(IsWoken(gate->go_on));
  int64_t bytes = 0;
  for (int i = 0; i < 2; ++i) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> x, in.Next());
    if (!x.has_value()) return absl::OutOfRangeError("no more");
    bytes += x->size();
  }
  return bytes;
}
WEFT_RPC_STREAM(ReadTwo);

// How many values there were, read once the test lets it.
absl::StatusOr<int64_t> CountAll(CallContext& context, Reader<std::string> in) {
  auto* gate = context.Local<Gate>();
  gate->began.Unpark();
  EXPECT_TRUE(IsWoken(gate->go_on));
  int64_t count = 0;
  for (;; ++count) {
    WEFT_ASSIGN_OR_RETURN(const auto value, in.Next());
    if (!value.has_value()) return count;
  }
}
WEFT_RPC_STREAM(CountAll);

// Reads one and lets the reader go; its result comes when the test has it.
struct Owed {
  Parker began;
  Promise<int64_t> result;
};
Future<int64_t> ReadOne(CallContext& context, Reader<int64_t> in) {
  auto* owed = context.Local<Owed>();
  (void)in.Next();
  owed->began.Unpark();
  return owed->result.future();
}
WEFT_RPC_STREAM(ReadOne);

// Ends without a look at what it is sent.
void Deaf(Reader<int64_t>, Writer<int64_t>) {}
WEFT_RPC_STREAM(Deaf);

Tensor SumRows(Reader<Tensor> in) {
  Tensor sum = Tensor::Zeros({1000});
  for (auto row = in.Next(); row.ok() && row->has_value(); row = in.Next()) {
    for (int64_t i = 0; i < 1000; ++i) {
      sum.span<float>()[i] += (**row).span<float>()[i];
    }
  }
  return sum;
}
WEFT_RPC_STREAM(SumRows);

Future<int64_t> SumLater(Reader<int64_t> in) {
  int64_t sum = 0;
  for (auto x = in.Next(); x.ok() && x->has_value(); x = in.Next()) sum += **x;
  return MakeReady<int64_t>(sum);
}
WEFT_RPC_STREAM(SumLater);

absl::Status TakePicky(Reader<Picky> in) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<Picky> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
  }
}
WEFT_RPC_STREAM(TakePicky);

absl::StatusOr<Picky> MakePicky(Reader<int64_t> in) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
  if (!x.has_value()) return absl::OutOfRangeError("no more");
  return Picky{*x};
}
WEFT_RPC_STREAM(MakePicky);

// ------------------------------------------------- written by their callers

// Writes 0 and waits until the function has read it.
void WriteFirst(Ranks& ranks, const Progress& progress,
                Upload<std::string, int64_t>& upload) {
  const int64_t before = progress.written;
  ASSERT_THAT(upload.Write("0"), IsOk());
  EXPECT_TRUE(Becomes([&] {
    EXPECT_THAT(Call(ranks[0].To("w1"), Ping), IsOk());
    return progress.written != before;
  }));
}

TEST(Upload, TheFunctionReadsInOrderAndItsResultComesBack) {
  Progress progress;
  Ranks ranks(2);
  for (int i = 0; i < 2; ++i) ranks[i].SetLocal(&progress);
  for (const char* callee : {"w1", "w0"}) {
    auto upload = OpenStream(ranks[0].To(callee), SumOf, -1);
    for (int64_t i = 0; i < 5000; ++i) {
      ASSERT_THAT(upload.Write(absl::StrCat(i)), IsOk());
      if (callee[1] == '1' && i % 1000 == 500) ranks.network().Break("w1");
    }
    const auto sum = upload.Finish();
    ASSERT_THAT(sum, IsOk());
    EXPECT_EQ(*sum, 5000 * 4999 / 2);
    EXPECT_THAT(upload.Write("late"), StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());
}

TEST(Upload, AnEmptyOneEnds) {
  Ranks ranks(2);
  auto upload = OpenStream(ranks[0].To("w1"), SumRows);
  const auto sum = upload.Finish();
  ASSERT_THAT(sum, IsOk());
  EXPECT_EQ(sum->numel(), 1000);
}

TEST(Upload, TensorsTravelAndFuturesAreWaitedFor) {
  Ranks ranks(2);
  auto rows = OpenStream(ranks[0].To("w1"), SumRows);
  for (int64_t i = 0; i < 600; ++i) ASSERT_THAT(rows.Write(Row(i)), IsOk());
  const auto sum = rows.Finish();
  ASSERT_THAT(sum, IsOk());
  EXPECT_EQ(sum->span<float>()[999], 600 * 599 / 2);
  auto later = OpenStream(ranks[0].To("w1"), SumLater);
  for (int64_t i = 0; i < 10; ++i) ASSERT_THAT(later.Write(i), IsOk());
  EXPECT_THAT(later.FinishAsync().Wait(absl::Seconds(30)), IsOkAndHolds(45));
}

TEST(Upload, IsFinishedOnce) {
  Ranks ranks(2);
  auto upload = OpenStream(ranks[0].To("w1"), SumLater);
  ASSERT_THAT(upload.Write(4), IsOk());
  const Future<int64_t> first = upload.FinishAsync();
  for (const auto& again :
       {upload.FinishAsync().Wait(absl::Seconds(30)), upload.Finish()}) {
    EXPECT_THAT(again, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "the stream to w1 was finished already"));
  }
  EXPECT_THAT(first.Wait(absl::Seconds(30)), IsOkAndHolds(4));
}

TEST(Upload, ASlowFunctionStopsTheWriter) {
  Gate gate;
  Ranks ranks(2);
  ranks[1].SetLocal(&gate);
  constexpr size_t kBytes = 100000;
  auto upload = OpenStream(ranks[0].To("w1"), ReadTwo);
  EXPECT_TRUE(IsWoken(gate.began));
  const int64_t window = StreamBuffer::kWindowBytes / kBytes + 1;
  int64_t written = 0;
  for (; written < 1000; ++written) {
    const Future<void> room = upload.WriteAsync(std::string(kBytes, 'x'));
    if (written < window) {
      ASSERT_THAT(room.Wait(kPatience), IsOk()) << written;
      continue;
    }
    // What is under way arrives in the time of some calls.
    for (int i = 0; i < 20 && !room.IsReady(); ++i) {
      ASSERT_THAT(Call(ranks[0].To("w1"), Ping), IsOk());
    }
    if (!room.IsReady()) break;
  }
  EXPECT_LE(written, 3 * window);
  gate.go_on.Unpark();
  // It reads two and returns; then nobody reads.
  absl::Status status;
  while (status.ok()) status = upload.Write("x");
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kCancelled, "nobody reads any more"));
  const auto result = upload.Finish();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(*result, 2 * kBytes);
}

TEST(Upload, AFunctionThatReadsNoMoreSaysSoBeforeItEnds) {
  Owed owed;
  Ranks ranks(2);
  ranks[1].SetLocal(&owed);
  auto upload = OpenStream(ranks[0].To("w1", absl::Seconds(20)), ReadOne);
  absl::Status status;
  for (int64_t i = 0; status.ok(); ++i) status = upload.Write(i);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kCancelled, "nobody reads any more"));
  EXPECT_TRUE(IsWoken(owed.began));
  owed.result.Set(7);
  const auto result = upload.Finish();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(*result, 7);
}

TEST(Upload, AValueThatMayNotBeSentEndsIt) {
  RanksOptions options;
  options.limits.bytes = 10000;
  Progress progress;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&progress);
  ASSERT_THAT(Call(ranks[0].To("w1"), Ping), IsOk());  // so it knows them
  auto upload = OpenStream(ranks[0].To("w1", absl::Seconds(20)), SumOf, -1);
  (void)upload.Write(std::string(50000, 'x'));
  EXPECT_THAT(upload.Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, "admits 10000"));
  EXPECT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());  // told, too
}

TEST(Upload, ErrorOfTheFunctionReachesTheWriter) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  auto upload = OpenStream(ranks[0].To("w1"), SumOf, 3);
  absl::Status status;
  for (int64_t i = 0; status.ok(); ++i) status = upload.Write(absl::StrCat(i));
  // Its last words, or that it reads no more, whichever comes first.
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsCancelled(status)) << status;
  EXPECT_THAT(upload.Finish(),
              StatusIs(absl::StatusCode::kDataLoss, "SumOf: enough"));
}

TEST(Upload, AValueThatCannotBeReadEndsIt) {
  Ranks ranks(2);
  for (const char* worker : {"w1", "w0"}) {
    for (const int64_t bad : {13, 23}) {
      auto picky = OpenStream(ranks[0].To(worker), TakePicky);
      (void)picky.Write(Picky{0});
      (void)picky.Write(Picky{bad});
      const absl::Status end = picky.Finish();
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kInvalidArgument,
                                absl::StrCat("a ", bad)));
      EXPECT_EQ(PhaseOf(end), Phase::kDecode);
    }
  }
}

TEST(Upload, AValueThatCannotBeWrittenIsLeftOut) {
  Ranks ranks(2);
  auto picky = OpenStream(ranks[0].To("w1"), TakePicky);
  EXPECT_THAT(picky.Write(Picky{1}), IsOk());
  EXPECT_THAT(picky.Write(Picky{33}),
              StatusIs(absl::StatusCode::kInternal, "threw at a 33"));
  EXPECT_THAT(picky.Write(Picky{2}), IsOk());
  EXPECT_THAT(picky.Finish(), IsOk());
}

TEST(Upload, AResultThatCannotBeReadIsOfDecode) {
  Ranks ranks(2);
  for (const int64_t bad : {13, 23}) {
    auto upload = OpenStream(ranks[0].To("w1"), MakePicky);
    EXPECT_THAT(upload.Write(bad), IsOk());
    const absl::Status end = upload.Finish().status();
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kInternal,
                              "MakePicky: its result cannot be read: "));
    EXPECT_EQ(PhaseOf(end), Phase::kDecode);
  }
  auto upload = OpenStream(ranks[0].To("w1"), MakePicky);
  EXPECT_THAT(upload.Write(1), IsOk());
  EXPECT_THAT(upload.Finish(), IsOkAndHolds(Field(&Picky::value, 1)));
}

TEST(Upload, DestroyedOrCancelledUploadNotifiesTheFunction) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  for (const bool cancels : {false, true}) {
    {
      auto upload = OpenStream(ranks[0].To("w1"), SumOf, -1);
      WriteFirst(ranks, progress, upload);
      if (cancels) {
        upload.Cancel();
        EXPECT_THAT(upload.Finish(), StatusIs(absl::StatusCode::kCancelled));
        EXPECT_THAT(upload.Write("1"), StatusIs(absl::StatusCode::kCancelled));
      }
    }
    EXPECT_TRUE(IsWoken(progress.end));
    MutexLock lock(progress.mu);
    EXPECT_THAT(progress.why, StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());
}

TEST(Upload, TheDeadlineEndsBothSides) {  // as of Stream
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  auto upload =
      OpenStream(ranks[0].To("w1", absl::Milliseconds(500)), SumOf, -1);
  absl::Status status;
  for (int64_t i = 0; status.ok(); ++i) status = upload.Write(absl::StrCat(i));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(upload.FinishAsync().Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  // After it w1 has received the stream and its end.
  EXPECT_THAT(Call(ranks[0].To("w1"), Ping), IsOk());
  EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
  EXPECT_TRUE(progress.written == 0 || progress.ended == 1);
}

TEST(Upload, ALostPeerEndsIt) {
  Progress progress;
  Ranks ranks(2);
  ranks[1].SetLocal(&progress);
  auto upload = OpenStream(ranks[0].To("w1"), SumOf, -1);
  WriteFirst(ranks, progress, upload);
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  absl::Status status;  // another thread may be about to tell
  for (int64_t i = 1; status.ok(); ++i) status = upload.Write(absl::StrCat(i));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "its process has ended"));
  EXPECT_THAT(upload.Finish(), StatusIs(absl::StatusCode::kUnavailable));
  ranks[1].PeerGone(WorkerKey{0, 1}, "likewise");
  EXPECT_TRUE(IsWoken(progress.end));
}

TEST(Upload, OpenFailureHasAReason) {
  Ranks ranks(2);
  auto nobody = OpenStream(ranks[0].To("w9"), SumRows);
  EXPECT_THAT(nobody.Write(Row(1)),
              StatusIs(absl::StatusCode::kNotFound, "w9"));
  EXPECT_THAT(nobody.Finish(), StatusIs(absl::StatusCode::kNotFound, "w9"));
  EXPECT_THAT(OpenStream(ranks[0].To("w9"), Deaf).Next(),
              StatusIs(absl::StatusCode::kNotFound, "w9"));
  Registry empty;
  RanksOptions options;
  options.registries = {nullptr, &empty};
  Ranks other(2, options);
  auto unknown = OpenStream(other[0].To("w1"), SumRows);
  EXPECT_THAT(unknown.Finish(),
              StatusIs(absl::StatusCode::kUnimplemented, "SumRows"));
}

// A write that must not wait loses no value: F26.
TEST(Upload, WhereItMustNotWaitItSaysSoAndGoesOn) {
  Gate gate;
  Ranks ranks(2);
  ranks[1].SetLocal(&gate);
  auto upload = OpenStream(ranks[0].To("w1"), CountAll);
  EXPECT_TRUE(IsWoken(gate.began));
  int64_t taken = 0;
  {
    const InlineScope scope;
    absl::Status written;
    for (; written.ok(); ++taken) {
      written = upload.Write(std::string(64 << 10, 'x'));
    }
    EXPECT_THAT(written, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  "must not block"));
    EXPECT_THAT(upload.Finish(),
                StatusIs(absl::StatusCode::kFailedPrecondition, "FinishAsync"));
  }
  gate.go_on.Unpark();
  EXPECT_THAT(upload.Finish(), IsOkAndHolds(taken));
}

TEST(Duplex, WhereItMustNotWaitItSaysSoAndGoesOn) {  // F26
  Ranks ranks(2);
  auto duplex = OpenStream(ranks[0].To("w1"), Twice, 2);
  {
    const InlineScope scope;
    EXPECT_THAT(duplex.Next(),
                StatusIs(absl::StatusCode::kFailedPrecondition, "inline"));
  }
  ASSERT_THAT(duplex.Write(4), IsOk());
  EXPECT_THAT(duplex.Next(), IsOkAndHolds(8));
}

TEST(Upload, ManyLeaveNothingBehind) {
  RanksOptions options;
  options.limits.objects = 4;  // streams at a time
  options.limits.calls = 4;
  Progress progress;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&progress);
  for (int round = 0; round < 50; ++round) {
    auto good = OpenStream(ranks[0].To("w1"), SumOf, -1);
    auto failing = OpenStream(ranks[0].To("w1"), SumOf, 1);
    auto left = OpenStream(ranks[0].To("w1"), SumLater);
    (void)left.WriteAsync(1);
    for (int64_t i = 0; i < 3; ++i) {
      ASSERT_THAT(good.Write(absl::StrCat(i)), IsOk());
      (void)failing.WriteAsync(absl::StrCat(i));
    }
    EXPECT_THAT(good.Finish(), IsOkAndHolds(3));
    EXPECT_THAT(failing.Finish(), StatusIs(absl::StatusCode::kDataLoss));
    left.Cancel();
    ASSERT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());
  }
}

TEST(Duplex, BothWaysAtOnce) {
  Ranks ranks(2);
  for (const char* callee : {"w1", "w0"}) {
    auto stream = OpenStream(ranks[0].To(callee), Twice, 2);
    for (int64_t i = 0; i < 500; ++i) {
      ASSERT_THAT(stream.Write(i), IsOk());
      if (i % 2 == 0) continue;
      for (int64_t j = i - 1; j <= i; ++j) {
        ASSERT_THAT(stream.Next(), IsOkAndHolds(2 * j));
      }
    }
    stream.EndWriting();
    EXPECT_FALSE(stream.Write(1).ok());
    EXPECT_THAT(stream.Next(), IsOkAndHolds(std::nullopt));
  }
}

TEST(Duplex, AnErrorComesAfterTheValuesBeforeIt) {
  Ranks ranks(2);
  auto stream = OpenStream(ranks[0].To("w1"), Twice, 2);
  for (const int64_t i : {1, -1}) ASSERT_THAT(stream.Write(i), IsOk());
  EXPECT_THAT(stream.Next(), IsOkAndHolds(2));
  EXPECT_THAT(stream.Next(),
              StatusIs(absl::StatusCode::kOutOfRange, "Twice: below 0"));
}

TEST(Duplex, AFunctionThatDoesNotReadEndsWell) {
  Ranks ranks(2);
  auto stream = OpenStream(ranks[0].To("w1"), Deaf);
  absl::Status status;
  for (int64_t i = 0; status.ok(); ++i) status = stream.Write(i);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(stream.Next(), IsOkAndHolds(std::nullopt));
}

TEST(Duplex, ManyAtOnceNeedNoCreditForTheirParts) {
  RanksOptions options;
  options.limits.calls = 8;
  Ranks ranks(2, options);
  std::vector<Duplex<int64_t, int64_t>> streams;
  const int64_t most = options.limits.most_streams();
  for (int64_t i = 0; i < most; ++i) {  // all the credit there is for them
    streams.push_back(OpenStream(ranks[0].To("w1"), Twice, 3));
  }
  for (auto& stream : streams) ASSERT_THAT(stream.Write(1), IsOk());
  for (auto& stream : streams) EXPECT_THAT(stream.Next(), IsOkAndHolds(3));
}

TEST(Streams, AreDistinguishedBySignature) {
  EXPECT_EQ(internal::DescribeStream<&SumOf>().signature,
            "i64(stream<string>, i64)");
  EXPECT_EQ(internal::DescribeStream<&Twice>().signature,
            "stream<i64> void(stream<i64>, i64)");
  EXPECT_EQ(internal::DescribeStream<&ThreeThenFail>().signature,
            "stream<i64> void()");
  EXPECT_EQ(internal::DescribeStream<&SumRows>().signature,
            "tensor(stream<tensor>)");
}

}  // namespace
}  // namespace weft::rpc
