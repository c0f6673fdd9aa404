#include "weft/rpc/stream.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/base/parker.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rpc/testing/simulated_ranks.h"
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

// What the functions share with a test. As all that they use, before the ranks:
// the last of them may run after the test's last line.
struct Progress {
  std::atomic<int64_t> written{0};
  std::atomic<int> ended{0};
  Parker end;
  Mutex mu;
  absl::Status why ABSL_GUARDED_BY(mu);

  absl::Status End(absl::Status status) {
    {
      MutexLock lock(mu);
      why = status;
    }
    ++ended;
    end.Unpark();
    return status;
  }
};

// 0, 1, ..., n - 1, of `bytes` each.
absl::Status Count(CallContext& context, Writer<std::string> out, int64_t n,
                   int64_t bytes) {
  auto* progress = context.Local<Progress>();
  for (int64_t i = 0; i < n; ++i) {
    std::string value = absl::StrCat(i);
    value.resize(std::max<size_t>(value.size(), bytes), '.');
    const absl::Status written = out.Write(std::move(value));
    if (!written.ok()) return progress->End(written);
    ++progress->written;
  }
  return progress->End(absl::OkStatus());
}
WEFT_RPC_STREAM(Count);

absl::Status ThreeThenFail(Writer<int64_t> out) {
  for (const int64_t i : {1, 2, 3}) WEFT_RETURN_IF_ERROR(out.Write(i));
  return absl::DataLossError("the rest is missing");
}
WEFT_RPC_STREAM(ThreeThenFail);

void Nothing(Writer<Tensor>) {}
WEFT_RPC_STREAM(Nothing);

Tensor Row(int64_t i) { return Tensor::Full({1000}, static_cast<double>(i)); }

absl::Status Rows(Writer<Tensor> out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) WEFT_RETURN_IF_ERROR(out.Write(Row(i)));
  return absl::OkStatus();
}
WEFT_RPC_STREAM(Rows);

// Holds no thread: writes on when there is room.
struct Counting {
  Writer<int64_t> out;
  int64_t n;
  int64_t next = 0;
  Promise<void> done;

  static void Run(const std::shared_ptr<Counting>& self) {
    while (self->next < self->n) {
      const Future<void> room = self->out.WriteAsync(self->next++);
      if (room.IsReady()) continue;  // also once nobody reads any more
      return room.OnReady([self](const absl::Status& status) {
        if (status.ok()) return Run(self);
        self->done.Set(status);
      });
    }
    self->done.Set(absl::OkStatus());
  }
};
Future<void> CountAsync(Writer<int64_t> out, int64_t n) {
  auto counting = std::make_shared<Counting>(
      Counting{std::move(out), n, 0, Promise<void>()});
  Future<void> done = counting->done.future();
  Counting::Run(counting);
  return done;
}
WEFT_RPC_STREAM(CountAsync);

// The sum, or the error `fail` after so many values.
absl::StatusOr<int64_t> SumOf(CallContext& context, Reader<std::string> in,
                              int64_t fail_after) {
  auto* progress = context.Local<Progress>();
  int64_t sum = 0;
  int64_t read = 0;
  for (;;) {
    if (read == fail_after) return absl::DataLossError("enough");
    absl::StatusOr<std::optional<std::string>> next = in.Next();
    if (!next.ok()) return progress->End(next.status());
    if (!next->has_value()) break;
    if (std::stoll(**next) != read) return absl::InternalError("out of order");
    sum += read++;
    ++progress->written;
  }
  (void)progress->End(absl::OkStatus());
  return sum;
}
WEFT_RPC_STREAM(SumOf);

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

// Each value twice; -1 is refused, after what came before it.
absl::Status Twice(CallContext& context, Reader<int64_t> in,
                   Writer<int64_t> out, int64_t times) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
    if (*x < 0) return absl::OutOfRangeError("below 0");
    WEFT_RETURN_IF_ERROR(out.Write(*x * times));
    if (context.cancel().IsCancelled()) return context.cancel().status();
  }
}
WEFT_RPC_STREAM(Twice);

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

// What a reader refuses, throws at, or a writer throws at: 13, 23, 33.
struct Picky {
  int64_t value = 0;
};

int64_t Ping() { return 1; }
WEFT_RPC(Ping);

}  // namespace

template <>
struct Codec<Picky> {
  static std::string TypeName() { return "test.Picky"; }
  static void Encode(const Picky& x, Encoder& e) {
    if (x.value == 33) throw std::runtime_error("threw at a 33");
    e.Write(x.value);
  }
  static absl::Status Decode(Decoder& d, Picky& x) {
    WEFT_RETURN_IF_ERROR(d.Read(x.value));
    if (x.value == 23) throw std::runtime_error("threw at a 23");
    return x.value == 13 ? Decoder::Malformed("a 13") : absl::OkStatus();
  }
};

namespace {

absl::Status TakePicky(Reader<Picky> in) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<Picky> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
  }
}
WEFT_RPC_STREAM(TakePicky);

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

absl::StatusOr<Picky> MakePicky(Reader<int64_t> in) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
  if (!x.has_value()) return absl::OutOfRangeError("no more");
  return Picky{*x};
}
WEFT_RPC_STREAM(MakePicky);

template <typename T>
absl::StatusOr<std::vector<T>> ReadAll(Reader<T> reader) {
  std::vector<T> all;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(std::optional<T> value, reader.Next());
    if (!value.has_value()) return all;
    all.push_back(*std::move(value));
  }
}

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

// Of what must not wait, nothing is lost: F26.
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

// ------------------------------------------------------ over a bad network

// Reads a stream over connections that break; the values, and how many broke.
std::pair<std::vector<int64_t>, int64_t> ReadOverABadNetwork(uint64_t seed) {
  SimulatedRanks::Options options;
  options.seed = seed;
  options.network.breaks = 0.1;
  SimulatedRanks ranks(2, options);
  auto values = ReadAll(OpenStream(ranks[0].To("w1"), CountAsync, 5000));
  EXPECT_THAT(values, IsOk()) << "seed " << seed;
  return {values.ok() ? *std::move(values) : std::vector<int64_t>(),
          ranks.network().broken()};
}

TEST(SimulatedStream, EachValueIsReadOnceAndInOrderUnderAnyFaults) {
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < 5000; ++i) wanted.push_back(i);
  int64_t broken = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const auto [values, breaks] = ReadOverABadNetwork(seed);
    ASSERT_EQ(values, wanted) << "seed " << seed;
    broken += breaks;
  }
  EXPECT_GT(broken, 50);
}

// What a function has read of each upload, and its outcome.
struct Received64 {
  std::map<int64_t, std::vector<int64_t>> values;
};
int64_t Collect(CallContext& context, Reader<int64_t> in, int64_t which) {
  auto& values = context.Local<Received64>()->values[which];
  for (auto x = in.Next(); x.ok() && x->has_value(); x = in.Next()) {
    values.push_back(**x);
  }
  return static_cast<int64_t>(values.size());
}
WEFT_RPC_STREAM(Collect);

absl::Status Mirror(CallContext& context, Reader<int64_t> in,
                    Writer<int64_t> out, int64_t which) {
  auto& values = context.Local<Received64>()->values[which];
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
    values.push_back(*x);
    WEFT_RETURN_IF_ERROR(out.Write(*x));
  }
}
WEFT_RPC_STREAM(Mirror);

absl::Status WriteLate(CallContext& context, Writer<int64_t> out) {
  WEFT_RETURN_IF_ERROR(out.Write(6));
  context.Local<SimulatedAgents>()->Sleep(absl::Seconds(20));
  return out.Write(7);
}
WEFT_RPC_STREAM(WriteLate);

absl::StatusOr<int64_t> EndLate(CallContext& context, Reader<int64_t> in) {
  context.Local<SimulatedAgents>()->Sleep(absl::Seconds(40));
  WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
  return x.value_or(-1);
}
WEFT_RPC_STREAM(EndLate);

TEST(SimulatedStream, AShorterDefaultIsNotThatOfTheOpenOnes) {  // F47
  SimulatedAgents agents(1, SimulatedAgents::Options());
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&agents); });
  agents.Run(1, [&](int) -> absl::Status {
    const Target w1 = agents[0].To("w1");
    auto reader = OpenStream(w1, WriteLate);
    auto upload = OpenStream(w1, EndLate);
    EXPECT_THAT(agents[0].SetDefaultTimeout(absl::Seconds(1)), IsOk());
    EXPECT_THAT(reader.Next(), IsOkAndHolds(6));
    EXPECT_THAT(reader.Next(), IsOkAndHolds(7));
    EXPECT_THAT(reader.Next(), IsOkAndHolds(std::nullopt));
    EXPECT_THAT(upload.Write(8), IsOk());
    EXPECT_THAT(upload.Finish(), IsOkAndHolds(8));
    Reader<int64_t> later = OpenStream(w1, WriteLate);
    EXPECT_THAT(later.Next(), IsOkAndHolds(6));
    EXPECT_THAT(later.Next(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
    return absl::OkStatus();
  });
}

TEST(SimulatedStream, TheDeadlineEndsBothSides) {
  Progress progress;
  SimulatedAgents agents(1, SimulatedAgents::Options());
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&progress); });
  const auto is_late =
      StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline");
  agents.Run(1, [&](int) -> absl::Status {
    const Target brief = agents[0].To("w1", absl::Seconds(1));
    auto reader = OpenStream(brief, Count, int64_t{1} << 40, 1000);
    EXPECT_THAT(reader.Next(), IsOk());
    agents.Sleep(absl::Seconds(2));
    absl::Status end;
    while (end.ok()) end = reader.Next().status();
    EXPECT_THAT(end, is_late);
    EXPECT_EQ(progress.ended, 1);
    auto upload = OpenStream(brief, SumOf, -1);
    EXPECT_THAT(upload.Write("0"), IsOk());
    agents.Sleep(absl::Seconds(2));
    EXPECT_THAT(upload.Write("1"), is_late);
    EXPECT_THAT(upload.Finish(), is_late);
    EXPECT_EQ(progress.ended, 2);
    EXPECT_THAT(agents[1].AwaitIdle(absl::Seconds(1)), IsOk());
    return absl::OkStatus();
  });
}

struct StreamEnds {
  int64_t ok = 0;
  int64_t failed = 0;
};

// 0, 1, 2, ...: none twice, none left out.
bool CountsUp(const std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Uploads to workers that crash, and streams both ways. Returns what is wrong.
std::string RunStreams(uint64_t seed, StreamEnds* ends) {
  constexpr int64_t kValues = 40;
  SimulatedAgents::Options options;
  options.workers = 4;
  options.faults = SimulatedAgents::AllFaults(0.02);
  SimulatedAgents agents(seed, options);
  Received64 received;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&received); });
  std::string wrong;
  agents.Run(2, [&](int worker) -> absl::Status {
    for (int64_t n = 0; n < 2; ++n) {
      const int64_t which = 10 * worker + n;
      const Target to = agents[worker].To(absl::StrCat("w", 2 + n));
      auto upload = OpenStream(to, Collect, which);
      for (int64_t i = 0; i < kValues; ++i) {
        if (!upload.Write(i).ok()) break;
        if (i % 8 == 7) agents.Sleep(absl::Milliseconds(3));
      }
      const auto count = upload.Finish();
      count.ok() ? ++ends->ok : ++ends->failed;
      if (count.ok() && *count != kValues) {
        absl::StrAppend(&wrong, "upload ", which, ": ", *count, " values\n");
      }
      auto duplex = OpenStream(to, Mirror, which + 100);
      std::vector<int64_t> back;
      absl::StatusOr<std::optional<int64_t>> next = std::nullopt;
      for (int64_t i = 0; i <= kValues; ++i) {
        if (i == kValues) {
          duplex.EndWriting();
        } else if (!duplex.Write(i).ok()) {
          break;
        }
        if (i % 4 == 3) {
          next = duplex.Next();
          if (!next.ok() || !next->has_value()) break;
          back.push_back(**next);
        }
      }
      while (next.ok()) {
        next = duplex.Next();
        if (next.ok() && !next->has_value()) break;
        if (next.ok()) back.push_back(**next);
      }
      next.ok() ? ++ends->ok : ++ends->failed;
      if (!CountsUp(back) || (next.ok() && back.size() != kValues)) {
        absl::StrAppend(&wrong, "duplex ", which, ": ", back.size(),
                        " values, ", next.status().ToString(), "\n");
      }
    }
    return absl::OkStatus();
  });
  for (const auto& [which, values] : received.values) {
    if (!CountsUp(values)) absl::StrAppend(&wrong, which, " out of order\n");
  }
  return wrong;
}

TEST(SimulatedStream, WritesAreReadOnceInOrderUnderFaults) {
  StreamEnds ends;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(RunStreams(seed, &ends), "") << "seed " << seed;
  }
  EXPECT_GT(ends.ok, 300);
  EXPECT_GT(ends.failed, 30);
}

}  // namespace
}  // namespace weft::rpc
