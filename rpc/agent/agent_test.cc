#include "weft/rpc/agent.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/base/thread_pool.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/detail.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/agent_test_functions.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

// ---------------------------------------------------- what the ranks can do

Tensor Scale(const Tensor& x, double k) {
  Tensor y = x.Clone();
  for (float& v : y.span<float>()) v *= static_cast<float>(k);
  return y;
}
WEFT_RPC(Scale);

Tensor Overwrite(Tensor x) {
  x.Fill(0);
  return x;
}
WEFT_RPC(Overwrite);

absl::Status Refuse(const std::string& why) {
  return absl::OutOfRangeError(why);
}
WEFT_RPC(Refuse);

void Throw(int64_t) { ThrowInvalidArgument("shapes do not match"); }
WEFT_RPC(Throw);

void ThrowDetailed(int64_t detail) {
  absl::Status status = absl::OutOfRangeError("beyond the end");
  status.SetPayload("test/payload", absl::Cord("kept"));
  throw Error(WithDetail(status, detail));
}
WEFT_RPC(ThrowDetailed);

absl::StatusOr<std::string> Join(const std::vector<std::string>& words,
                                 std::map<std::string, int64_t> numbers) {
  std::string text;
  for (const std::string& word : words) absl::StrAppend(&text, word, " ");
  for (const auto& [key, n] : numbers) absl::StrAppend(&text, key, "=", n, " ");
  return text;
}
WEFT_RPC(Join);

// What a function gives away without losing it.
struct Shelf {
  Tensor tensor;
};
Tensor TakeFromShelf(CallContext& context) {
  return context.Local<Shelf>()->tensor;
}
WEFT_RPC(TakeFromShelf);

absl::StatusOr<Worker> NextIncarnation(Worker worker) {
  if (!worker.role.empty()) return absl::InternalError("a role has travelled");
  ++worker.key.epoch;
  return worker;
}
WEFT_RPC(NextIncarnation);

// As Later, with a tensor.
Future<int64_t> LaterWith(CallContext& context, const Tensor&) {
  return Later(context);
}
WEFT_RPC(LaterWith);

// How many items each batch had. Batches run side by side.
struct BatchSizes {
  Mutex mu;
  std::vector<int64_t> sizes ABSL_GUARDED_BY(mu);
};
BatchSizes& Batches() {
  static auto* const batches = new BatchSizes();
  return *batches;
}
absl::StatusOr<std::vector<int64_t>> SquareAll(std::vector<int64_t> items) {
  {
    MutexLock lock(Batches().mu);
    Batches().sizes.push_back(static_cast<int64_t>(items.size()));
  }
  for (int64_t& item : items) {
    if (item < 0) return absl::OutOfRangeError("below 0");
    if (item == 99) return std::vector<int64_t>();
    item *= item;
  }
  return items;
}
// The delay is longer than any test: what fills no batch is seen to wait.
WEFT_RPC_BATCHED(SquareAll, 4, absl::Minutes(10));

absl::StatusOr<double> RemainingOfAll(CallContext& context,
                                      const std::string& selector) {
  double least = 1e9;
  WEFT_ASSIGN_OR_RETURN(const std::vector<Target> targets,
                        context.agent().ToAll(selector, absl::Hours(1)));
  for (const Target& target : targets) {
    WEFT_ASSIGN_OR_RETURN(const double seconds,
                          Call(target.Within(context), RemainingSeconds));
    least = std::min(least, seconds);
  }
  return least;
}
WEFT_RPC(RemainingOfAll);

int64_t NotRegistered(int64_t x) { return x; }

// ------------------------------------------------------------------- calls

TEST(Agent, CallsAFunctionOnAnotherWorker) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  EXPECT_EQ(*Call(b, Add, 2, 3), 5);
  const Tensor x = Tensor::FromVector<float>({1, 2, 3});
  const absl::StatusOr<Tensor> y = Call(b, Scale, x, 2);
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(y->ToVector<float>(), ElementsAre(2, 4, 6));
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3));
  EXPECT_EQ(*Call(b, Join, std::vector<std::string>{"a", "b"},
                  std::map<std::string, int64_t>{{"n", 7}}),
            "a b n=7 ");
  EXPECT_EQ(*Call(b, CallerName), "w0");
}

TEST(Agent, ALargeTensorTravelsInChunksBothWays) {
  Ranks ranks(2);
  const Tensor x = Tensor::Full({1 << 20}, 3);  // 4 MiB
  const absl::StatusOr<Tensor> y = Call(ranks[0].To("w1"), Scale, x, 2);
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->shape(), x.shape());
  EXPECT_EQ(y->span<float>()[0], 6);
  EXPECT_EQ(y->span<float>()[(1 << 20) - 1], 6);
}

TEST(Agent, AMovedTensorIsNotSeenToChange) {
  Counters counters;
  Ranks ranks(2, OneThread());
  ranks[1].SetLocal(&counters);
  Future<void> holding = CallAsync(ranks[0].To("w1"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  Tensor x = Tensor::Full({1 << 16}, 1);
  const Tensor alias = x;
  // Not the only handle: copied, so the write below is not sent.
  Future<Tensor> y = CallAsync(ranks[0].To("w1"), Scale, std::move(x), 1);
  alias.Fill(5);
  holding.Cancel();
  EXPECT_EQ(y.Wait(absl::Seconds(10))->span<float>()[0], 1);
}

// One size travels in the message, the other by reference.
TEST(Agent, CallsItselfWithCopies) {  // PROBE-P16
  Ranks ranks(1);
  const Target self = ranks[0].To("w0");
  for (const int64_t n : {2, 1 << 16}) {
    Tensor x = Tensor::Full({n}, 1);
    EXPECT_EQ(Call(self, Scale, x, 3)->span<float>()[n - 1], 3);
    EXPECT_EQ(Call(self, Overwrite, x)->span<float>()[n - 1], 0);
    EXPECT_EQ(x.span<float>()[n - 1], 1);
    // Moved, but seen by another handle; and lent.
    const Tensor alias = x;
    EXPECT_THAT(Call(self, Overwrite, std::move(x)), IsOk());
    EXPECT_THAT(Call(self, Overwrite, Borrow(alias)), IsOk());
    EXPECT_EQ(alias.span<float>()[n - 1], 1);
    // The result is a copy too.
    Shelf shelf{Tensor::Full({n}, 7)};
    ranks[0].SetLocal(&shelf);
    Call(self, TakeFromShelf)->Fill(0);
    EXPECT_EQ(shelf.tensor.span<float>()[n - 1], 7);
    Call(self.AllowingAlias(), TakeFromShelf)->Fill(0);
    EXPECT_EQ(shelf.tensor.span<float>()[n - 1], 0);
  }
  EXPECT_THAT(Call(self, Refuse, "no"),
              StatusIs(absl::StatusCode::kOutOfRange, "Refuse: no"));
}

TEST(Agent, AWorkerIsAValueOfACall) {  // F8
  Ranks ranks(2);
  Worker told = *ranks.directory().Find("w1");
  told.role = "admin";
  const auto next = Call(ranks[0].To("w1"), NextIncarnation, told);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(next->key, (WorkerKey{1, 2}));
  EXPECT_EQ(next->address, "w1");
  EXPECT_EQ(next->role, "");  // which nobody proved
  EXPECT_NE(*next, told);
  Worker same{"w1", WorkerKey{1, 1}, "elsewhere"};
  EXPECT_EQ(same, told);
  EXPECT_EQ(absl::HashOf(same), absl::HashOf(told));
  EXPECT_NE((Worker{"w2", WorkerKey{1, 1}, ""}), told);
  // A Worker value that was received can be called.
  EXPECT_EQ(*Call(ranks[0].To(same), Add, 2, 3), 5);
  EXPECT_EQ(*Call(ranks[0].To(same.key), Add, 2, 3), 5);
}

TEST(Agent, SharesWithItselfWhereThatIsAllowed) {
  Ranks ranks(2);
  Tensor x = Tensor::FromVector<float>({1, 2});
  const Target self = ranks[0].To("w0");
  ASSERT_THAT(Call(self, Overwrite, x), IsOk());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2));
  ASSERT_THAT(Call(ranks[0].To("w1").AllowingAlias(), Overwrite, x), IsOk());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2));
  const absl::StatusOr<Tensor> y = Call(self.AllowingAlias(), Overwrite, x);
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(0, 0));
  EXPECT_EQ(y->raw(), x.raw());
  EXPECT_THAT(Call(self.AllowingAlias(), Refuse, "no"),
              StatusIs(absl::StatusCode::kOutOfRange, "Refuse: no"));
  EXPECT_EQ(*Call(self.AllowingAlias(), Add, 2, 3), 5);  // inline
}

TEST(Agent, ABorrowedTensorIsReadWhereItLies) {
  Ranks ranks(2);
  const Tensor x = Tensor::Full({1 << 18}, 3);
  for (const char* name : {"w0", "w1"}) {
    const auto y = Call(ranks[0].To(name), Scale, Borrow(x), 2);
    ASSERT_THAT(y, IsOk());
    EXPECT_EQ(y->span<float>()[(1 << 18) - 1], 6);
  }
}

TEST(Agent, SelfCallCopiesBorrowedTensors) {
  RanksOptions options;
  options.threads = options.max_threads = 1;
  Counters counters;
  Ranks ranks(1, options);
  ranks[0].SetLocal(&counters);
  const Target self = ranks[0].To("w0");
  Future<void> busy = CallAsync(self, Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  const Tensor x = Tensor::Full({1 << 16}, 3);
  const Future<Tensor> late = CallAsync(self, Scale, Borrow(x), 2);
  x.Fill(4);  // as who gives it up may do before the function reads it
  busy.Cancel();
  const auto y = late.Wait(absl::Seconds(30));
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->span<float>()[0], 6);
}

TEST(Agent, ABorrowedTensorThatWasWrittenToIsNotSentAgain) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  const Tensor x = Tensor::Full({1 << 16}, 3);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), LaterWith, Borrow(x));
  EXPECT_TRUE(IsWoken(counters.began));
  x.Fill(4);
  ranks.network().Break("w1");
  const absl::Status status = call.Wait(absl::Seconds(30)).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, "w1: Payload: borrowed"));
  EXPECT_TRUE(OutcomeUnknown(status));
}

TEST(Agent, CallWithoutCreditWaitsOrFailsByOption) {
  RanksOptions options;
  options.limits.calls = 1;
  Counters counters;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&counters);
  const Target b = ranks[0].To("w1");
  Future<int64_t> out = CallAsync(b, Later);
  EXPECT_TRUE(IsWoken(counters.began));
  const absl::Status refused =
      Call(b.FailingWithoutCredit(), Add, 1, 2).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                "Add: no credit is left: 1 calls of 1"));
  EXPECT_FALSE(OutcomeUnknown(refused));
  Future<int64_t> waits = CallAsync(b, Add, 1, 2);
  EXPECT_FALSE(waits.IsReady());
  {
    MutexLock lock(counters.mu);
    counters.parked[0].Set(9);
  }
  EXPECT_EQ(*waits.Wait(absl::Seconds(10)), 3);
}

TEST(Agent, ABatchedFunctionServesSeveralCallsAtOnce) {
  Ranks ranks(3);
  {
    MutexLock lock(Batches().mu);
    Batches().sizes.clear();
  }
  const Target targets[] = {ranks[0].To("w2"), ranks[1].To("w2")};
  std::vector<Future<int64_t>> squares;
  for (int64_t i = 0; i < 8; ++i) {
    squares.push_back(CallOneAsync(targets[i % 2], SquareAll, i));
  }
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(*squares[i].Wait(absl::Seconds(30)), i * i);
  }
  MutexLock lock(Batches().mu);
  EXPECT_THAT(Batches().sizes, ElementsAre(4, 4));
}

TEST(Agent, ABatchThatDoesNotFillIsServedAfterItsDelay) {
  Ranks ranks(2);
  EXPECT_EQ(*CallOne(ranks[0].To("w1"), GreetAll, "you"), "hello you");
  EXPECT_EQ(*CallOne(ranks[0].To("w0"), GreetAll, "me"), "hello me");
}

TEST(Agent, AnErrorOfABatchIsThatOfEachCallInIt) {
  Ranks ranks(2);
  const auto all = [&](int64_t last) {
    std::vector<Future<int64_t>> squares;
    for (const int64_t i : {int64_t{1}, int64_t{2}, int64_t{3}, last}) {
      squares.push_back(CallOneAsync(ranks[0].To("w1"), SquareAll, i));
    }
    std::vector<absl::StatusCode> codes;
    for (const auto& square : squares) {
      codes.push_back(square.Wait(absl::Seconds(30)).status().code());
    }
    return codes;
  };
  EXPECT_THAT(all(-1), ::testing::Each(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(all(99), ::testing::Each(absl::StatusCode::kInternal));
}

TEST(Agent, CallThatWaitsForABatchEndsAtItsDeadlineAndWithTheAgent) {
  Ranks ranks(2);
  // A time-out of Wait alone has no such word in its message.
  EXPECT_THAT(
      CallOneAsync(ranks[0].To("w1", absl::Milliseconds(100)), SquareAll, 2)
          .Wait(kPatience),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  (void)CallOneAsync(ranks[0].To("w1"), SquareAll, 2);
  (void)CallOneAsync(ranks[0].To("w0"), SquareAll, 2);
}

// ------------------------------------------------------------------ errors

TEST(Agent, ErrorsNameTheWorkerAndKeepTheCode) {
  Ranks ranks(2);
  EXPECT_THAT(
      Call(ranks[0].To("w1"), Refuse, "beyond the end"),
      StatusIs(absl::StatusCode::kOutOfRange, "Refuse: beyond the end"));
}

TEST(Agent, ExceptionOfAFunctionIsTheCallersStatus) {
  Ranks ranks(2);
  const absl::Status status = Call(ranks[0].To("w1"), Throw, 1);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               "Throw: shapes do not match"));
  EXPECT_FALSE(OutcomeUnknown(status));
  EXPECT_EQ(*Call(ranks[0].To("w1"), Add, 1, 1), 2);  // the server lives on
}

TEST(Agent, ExceptionOfAFunctionKeepsItsPayloads) {  // F59
  Ranks ranks(2);
  for (const char* worker : {"w1", "w0"}) {
    const absl::Status status = Call(ranks[0].To(worker), ThrowDetailed, 12);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange,
                                 "ThrowDetailed: beyond the end"));
    EXPECT_EQ(DetailOf<int64_t>(status), 12);
    EXPECT_EQ(status.GetPayload("test/payload"), "kept");
  }
}

TEST(Agent, AnUnknownWorkerIsNotFoundAndTheKnownAreNamed) {
  Ranks ranks(2);
  EXPECT_THAT(Call(ranks[0].To("w7"), Add, 1, 2),
              StatusIs(absl::StatusCode::kNotFound, "w7"));
  EXPECT_THAT(Call(ranks[0].To(WorkerKey{7, 1}), Add, 1, 2),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Call(ranks[0].To(WorkerKey{1, 9}), Add, 1, 2),
              StatusIs(absl::StatusCode::kNotFound, "known are w0, w1"));
}

// A directory that learns of workers late, unless it is refreshed.
class LateDirectory final : public Directory {
 public:
  absl::StatusOr<Worker> Find(absl::string_view name) const override {
    return seen_.Find(name);
  }
  absl::StatusOr<Worker> Find(WorkerKey key) const override {
    return seen_.Find(key);
  }
  uint64_t version() const override { return seen_.version(); }
  bool Refresh(absl::Duration timeout) const override {
    ++refreshes;
    longest = std::max(longest, timeout);
    for (const Worker& worker : late) seen_.Put(worker);
    return is_up;
  }

  std::vector<Worker> late;  // known to others already
  bool is_up = true;
  mutable int refreshes = 0;
  mutable absl::Duration longest;

 private:
  mutable FixedDirectory seen_;
};

// x, whose directory is late, beside the ranks w0 to w3.
class LateDirectoryTest : public ::testing::Test {
 protected:
  LateDirectoryTest()
      : transport_(ranks_.network().MakeTransport("x").value()) {
    for (int i = 1; i < 4; ++i) {
      directory_.late.push_back(
          ranks_.directory().Find(absl::StrCat("w", i)).value());
    }
    AgentOptions options;
    options.job = "job";
    options.name = "x";
    options.key = {9, 1};
    options.transport = transport_.get();
    options.directory = &directory_;
    ranks_.directory().Put(Worker{"x", options.key, "x"});
    agent_ = Agent::Create(std::move(options)).value();
  }

  Ranks ranks_{4};
  LateDirectory directory_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(LateDirectoryTest, CallByNameOfAWorkerNotYetHeardOfReachesIt) {
  EXPECT_THAT(Call(agent_->To("w1"), Add, 2, 3), IsOkAndHolds(5));
  EXPECT_EQ(directory_.refreshes, 1);
  EXPECT_THAT(Call(agent_->To("w2"), Add, 2, 3), IsOkAndHolds(5));
  EXPECT_EQ(directory_.refreshes, 1);  // it is known now
}

TEST_F(LateDirectoryTest, CallByKeyOfAWorkerNotYetHeardOfReachesIt) {
  EXPECT_THAT(Call(agent_->To(WorkerKey{2, 1}), Add, 2, 3), IsOkAndHolds(5));
  EXPECT_EQ(directory_.refreshes, 1);
}

TEST_F(LateDirectoryTest, UnknownWorkerIsNotFoundAfterOneQuestion) {
  EXPECT_THAT(Call(agent_->To("w7"), Add, 2, 3),
              StatusIs(absl::StatusCode::kNotFound, "w7"));
  EXPECT_EQ(directory_.refreshes, 1);
  EXPECT_LE(directory_.longest, absl::Seconds(1));
  EXPECT_THAT(agent_->To("w7", absl::Milliseconds(20)).status(),
              StatusIs(absl::StatusCode::kNotFound, "w7"));
  EXPECT_EQ(directory_.refreshes, 2);
}

TEST_F(LateDirectoryTest, LookupWithoutAnAnswerIsNotFound) {
  directory_.is_up = false;
  directory_.late.clear();
  EXPECT_THAT(Call(agent_->To("w1"), Add, 2, 3),
              StatusIs(absl::StatusCode::kNotFound, "w1"));
}

TEST_F(LateDirectoryTest, LookupInAnInlineFunctionDoesNotWait) {
  const InlineScope scope;
  EXPECT_THAT(agent_->To("w1").status(),
              StatusIs(absl::StatusCode::kNotFound, "w1"));
  EXPECT_EQ(directory_.refreshes, 0);
}

TEST_F(LateDirectoryTest, LookupAfterShutdownDoesNotWait) {
  EXPECT_THAT(agent_->Shutdown(kPatience), IsOk());
  EXPECT_THAT(agent_->To("w1").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "shutting down"));
  EXPECT_EQ(directory_.refreshes, 0);
}

TEST(Agent, MalformedNameIsInvalidArgument) {
  Ranks ranks(1);
  for (const char* name : {"", "a b", "w0/x"}) {
    EXPECT_THAT(Call(ranks[0].To(name), Add, 1, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << name;
  }
}

TEST(Agent, CallsByNameByKeyAndByLabel) {
  Ranks ranks(3);
  for (const uint32_t i : {1, 2}) {
    const std::string name = absl::StrCat("w", i);
    ranks.directory().Put(Worker{name, WorkerKey{i, 1}, name},
                          {{"role", "ps"}, {"zone", i == 1 ? "a" : "b"}});
  }
  EXPECT_EQ(*Call(ranks[0].To("w1"), Add, 2, 3), 5);
  EXPECT_EQ(*Call(ranks[0].To(WorkerKey{1, 1}), Add, 2, 3), 5);
  const auto servers = ranks[0].ToAll("role=ps");
  ASSERT_THAT(servers, IsOk());
  ASSERT_EQ(servers->size(), 2u);
  for (const Target& server : *servers) EXPECT_EQ(*Call(server, Add, 2, 3), 5);
  EXPECT_EQ(ranks[0].ToAll("role=ps,zone=b")->at(0).name(), "w2");
  EXPECT_THAT(ranks[0].ToAll("role=chief"),
              StatusIs(absl::StatusCode::kNotFound, "role=chief"));
  for (const char* wrong : {"ps", "role==ps", "role=", "=ps", "role=ps=1"}) {
    EXPECT_THAT(ranks[0].ToAll(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, "name=value"));
  }
}

TEST(Agent, ATargetWithinACallInheritsItsDeadline) {
  Ranks ranks(3);
  const absl::StatusOr<double> seconds =
      Call(ranks[0].To("w1", absl::Seconds(30)), RemainingOfAll, "name=w2");
  ASSERT_THAT(seconds, IsOk());
  EXPECT_LE(*seconds, 30);
}

TEST(RegistryDeathTest, AFunctionIsIdempotentOrIsNot) {
  Registry registry;
  registry.Add(internal::Describe<&Add>(RunsOn::kExecutor));
  registry.Add(internal::Describe<&Add>(RunsOn::kExecutor));
  EXPECT_DEATH(registry.Add(internal::Idempotent(
                   internal::Describe<&Add>(RunsOn::kExecutor))),
               "use one of WEFT_RPC and WEFT_RPC_IDEMPOTENT");
}

TEST(Agent, AnUnregisteredFunctionIsRefusedHere) {
  Ranks ranks(2);
  EXPECT_THAT(Call(ranks[0].To("w1"), NotRegistered, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, "WEFT_RPC"));
}

TEST(Agent, AnUnknownFunctionNamesItTheWorkerAndItsBuild) {
  Registry empty;
  RanksOptions options;
  options.registries = {nullptr, &empty};
  Ranks ranks(2, options);
  const absl::Status status = Call(ranks[0].To("w1"), Add, 1, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, "Add"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("w1 (build b1)"));
}

TEST(Agent, SourcesOfOtherVersionsAreDetectedBySignature) {
  Registry other;
  Function add = internal::Describe<&Add>(RunsOn::kExecutor);
  add.signature = "i64(i64, f64)";
  add.digest = internal::DigestOf(add.signature);
  other.Add(add);
  RanksOptions options;
  options.registries = {nullptr, &other};
  Ranks ranks(2, options);
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "signature differs: caller says i64(i64, i64), callee "
                       "has i64(i64, f64)"));
}

TEST(Agent, TwoJobsAtOneAddressAreDistinguished) {
  RanksOptions options;
  options.jobs = {"red", "blue"};
  Ranks ranks(2, options);
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "w1 belongs to the job 'blue', w0 to 'red'"));
}

TEST(Agent, AReplacedWorkerIsNotCalledInPlaceOfTheOld) {
  Ranks ranks(2);
  ranks.directory().Put(Worker{"w1", WorkerKey{1, 99}, "w1"});
  const absl::Status status = Call(ranks[0].To("w1"), Add, 1, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "this is the incarnation 1@0.1 of w1"));
  EXPECT_EQ(ReasonOf(status), Reason::kPeerGone);
  EXPECT_FALSE(OutcomeUnknown(status));
}

TEST(Agent, MissingPeerIsUnavailableAndTheCallHasNotRun) {
  RanksOptions options;
  options.give_up_after = absl::Milliseconds(100);
  Ranks ranks(1, options);
  ranks.directory().Put(Worker{"w9", WorkerKey{9, 1}, "nowhere"});
  const absl::Status status = Call(ranks[0].To("w9"), Add, 1, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "w9 could not be reached at nowhere"));
  EXPECT_FALSE(OutcomeUnknown(status));
}

// ------------------------------------------------------------------- names

TEST(Agent, OptionsThatLackSomethingAreRefused) {
  transport::LocalNetwork network;
  FixedDirectory directory;
  const auto transport = network.MakeTransport("here").value();
  AgentOptions whole;
  whole.job = "job";
  whole.name = "n";
  whole.key = WorkerKey{0, 1};
  whole.directory = &directory;
  whole.transport = transport.get();
  const auto pool = *ThreadPool::Create({});
  const std::pair<std::function<void(AgentOptions&)>, const char*> cases[] = {
      {[](auto& o) { o.job = ""; }, "job: wanted its name, found none"},
      {[](auto& o) { o.key.epoch = 0; }, "key: wanted an epoch from 1 on"},
      {[](auto& o) { o.transport = nullptr; }, "transport: wanted one"},
      {[](auto& o) { o.directory = nullptr; }, "directory: wanted one"},
      {[&](auto& o) { o.pool = pool.get(); },
       "pool: wanted the one that executor"},
      {[](auto& o) { o.threads = 0; }, "threads: wanted 1 or more, found 0"},
      {[](auto& o) { o.max_threads = 3; },
       "max_threads: wanted no fewer than threads, 16, found 3"},
      {[](auto& o) { o.default_timeout = -absl::Seconds(1); },
       "default_timeout: wanted none below zero, found -1s"},
      {[](auto& o) { o.limits.calls = 0; }, "limits.calls: wanted 1 or more"},
      {[](auto& o) { o.limits.bytes = -1; }, "limits.bytes: wanted 1 or more"},
      {[](auto& o) { o.limits.nested_calls = 0; }, "limits.nested_calls: want"},
      {[](auto& o) { o.limits.objects = 0; }, "limits.objects: wanted 1 or"},
      {[](auto& o) { o.limits.sessions = 0; }, "limits.sessions: wanted 1 or"},
      {[](auto& o) { o.limits.timeout = absl::ZeroDuration(); },
       "limits.timeout: wanted more than 0, found 0"},
      {[](auto& o) { o.result_bytes = 0; }, "result_bytes: wanted 1 or more"},
      {[](auto& o) { o.give_up_after = absl::ZeroDuration(); },
       "give_up_after: wanted more than 0, found 0"}};
  for (const auto& [spoil, said] : cases) {
    AgentOptions options = whole;
    spoil(options);
    EXPECT_THAT(Agent::Create(options),
                StatusIs(absl::StatusCode::kInvalidArgument, said));
  }
  EXPECT_THAT(Agent::Create(whole), IsOk());
}

TEST(Agent, ANameHas1To127CharactersAndIsLookedAtFirst) {
  transport::LocalNetwork network;
  FixedDirectory directory;
  const auto transport = network.MakeTransport("here").value();
  AgentOptions options;
  options.job = "job";
  options.key = WorkerKey{0, 1};
  options.directory = &directory;
  for (const std::string& name :
       {std::string(), std::string(128, 'n'), std::string("a b"),
        std::string("a/b"), std::string("a.b"), std::string("a\n"),
        std::string("\0", 1), std::string("\xc3\xa9")}) {
    options.name = name;  // without a transport nothing could begin
    EXPECT_THAT(Agent::Create(options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted 1 to 127 letters, digits, '-', '_' or ':'"));
  }
  options.transport = transport.get();
  for (const std::string& name :
       {std::string(127, 'n'), std::string("A-b_c:0"), std::string("n")}) {
    options.name = name;
    directory.Put(Worker{name, options.key, "here"});
    const auto agent = Agent::Create(options);
    ASSERT_THAT(agent, IsOk());
    EXPECT_THAT(Call((*agent)->To(name), CallerName), IsOkAndHolds(name));
    for (const std::string& other : {std::string(128, 'n'), std::string()}) {
      EXPECT_THAT(Call((*agent)->To(other), CallerName),
                  StatusIs(absl::StatusCode::kInvalidArgument, "1 to 127"));
    }
  }
}

}  // namespace
}  // namespace weft::rpc
