// Workers that come back, come late, and go, while others call them.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"
#include "weft/worker/worker_fixture.h"

namespace weft::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

TEST_F(WorkerTest, RestartedWorkerAnswersTheFirstCall) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  Traffic traffic(*workers[2], "ps0");
  const rendezvous::WorkerKey old_key = workers[1]->self().key;
  EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  ShutdownOptions alone;
  alone.together = "name=trainer0";
  EXPECT_THAT(workers[1]->Shutdown(alone).status(), IsOk());
  workers[1].reset();
  ASSERT_THAT(
      workers[2]->membership().WaitFor(
          [&](const auto& view) { return view.IsGone(old_key); }, kLong),
      IsOk());
  const absl::Status meanwhile = CallTwice(*workers[2], "trainer0").status();
  EXPECT_THAT(meanwhile,
              StatusIs(absl::StatusCode::kUnavailable, "trainer0: the incarn"));
  EXPECT_EQ(rpc::ReasonOf(meanwhile), rpc::Reason::kPeerGone);
  EXPECT_FALSE(rpc::OutcomeUnknown(meanwhile));
  auto again = Worker::Start(OptionsOf("trainer", 0));
  ASSERT_THAT(again, IsOk());
  workers[1] = *std::move(again);
  EXPECT_GT(workers[1]->self().key.epoch, old_key.epoch);
  ASSERT_THAT(workers[2]->membership().WaitFor(
                  [](const auto& view) { return view.IsComplete(); }, kLong),
              IsOk());
  EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  EXPECT_THAT(CallTwice(*workers[1], "trainer1"), IsOkAndHolds(42));
  EXPECT_TRUE(traffic.GoesOn());
  EXPECT_THAT(traffic.End(), IsEmpty());  // and nobody else noticed
  EndAll(std::move(workers));
}

// PROBE-P17: what it made in one life is no burden of the next.
TEST_F(WorkerTest, EndedIncarnationsLeaveNoObjectsAtTheOwner) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  for (int life = 0; life < 3; ++life) {
    const rpc::Target to = workers[1]->agent().To("ps0", kLong);
    const auto counter = rpc::Make<Counter>(to, life);
    ASSERT_THAT(counter, IsOk());
    EXPECT_EQ(Counter::living, 1);
    EXPECT_THAT(rpc::Call(*counter, &Counter::Value), IsOkAndHolds(life));
    const bool releases = life != 1;
    if (releases) {
      EXPECT_THAT(rpc::Release(*counter), IsOk());
    }
    ShutdownOptions alone;
    alone.together = "name=trainer0";
    alone.strict_leaks = releases;
    const rendezvous::WorkerKey key = workers[1]->self().key;
    EXPECT_THAT(workers[1]->Shutdown(alone).status(), IsOk());
    workers[1].reset();
    EXPECT_TRUE(Becomes([] { return Counter::living == 0; }));
    ASSERT_THAT(workers[0]->membership().WaitFor(
                    [&](const auto& view) { return view.IsGone(key); }, kLong),
                IsOk());
    auto again = Worker::Start(OptionsOf("trainer", 0));
    ASSERT_THAT(again, IsOk());
    workers[1] = *std::move(again);
  }
  // The one of the second life, which it left and nobody else.
  const auto left = workers[0]->agent().Leaks();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_THAT(left[0].ToString(), HasSubstr("1 "));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, AnElasticJobGrowsAndShrinksWhileCallsFlow) {
  const auto start = [&](int rank, const std::string& zone) {
    Options options = ElasticOf(rank, 1, 3);
    options.labels = {{"zone", zone}};
    return StartAll({options});
  };
  Workers workers = start(0, "a");
  std::optional<Traffic> traffic;  // while a third comes and goes
  for (const char* zone : {"a", "b"}) {
    Workers next = start(static_cast<int>(workers.size()), zone);
    ASSERT_EQ(next.size(), 1u);
    workers.push_back(std::move(next[0]));
    if (workers.size() == 2) traffic.emplace(*workers[0], "trainer1");
  }
  Options fourth = ElasticOf(3, 1, 3);
  fourth.join_timeout = absl::Seconds(3);  // somebody might leave
  const absl::Status full = Worker::Start(fourth).status();
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             "the job is full, it has 3 of at most 3"));
  EXPECT_THAT(full.message(), ::testing::HasSubstr("has not let it in"));
  EXPECT_THAT(full.message(), Not(::testing::HasSubstr("running")));
  EXPECT_THAT(Worker::Start(ElasticOf(3, 1, 4)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "\"elastic 1 to 4\", the job has \"elastic 1 to 3\": "
                       "start all workers with the same --workers"));
  EXPECT_THAT(Worker::Start(OptionsOf("trainer", 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "the job has \"elastic 1 to 3\""));
  const auto view = workers[0]->membership().WaitFor(
      [](const auto& v) { return v.members().size() == 3; }, kLong);
  ASSERT_THAT(view, IsOk());
  const auto near = (*view)->Select("role=trainer,zone=a");
  ASSERT_THAT(near, IsOk());
  std::vector<std::string> names;
  for (const rendezvous::Member* member : *near) names.push_back(member->name);
  EXPECT_THAT(names, ElementsAre("trainer0", "trainer1"));
  std::thread other([&] {
    EXPECT_THAT(workers[1]->membership().Barrier("near", names, kLong), IsOk());
  });
  EXPECT_THAT(workers[0]->membership().Barrier("near", names, kLong), IsOk());
  other.join();
  for (int rank : {2, 1}) {  // each when it likes
    EXPECT_THAT(CallTwice(*workers[0], absl::StrCat("trainer", rank)),
                IsOkAndHolds(42));
    if (rank == 1) {
      EXPECT_TRUE(traffic->GoesOn());
      EXPECT_THAT(traffic->End(), IsEmpty());
    }
    EXPECT_THAT(workers[rank]->Shutdown(kLong).status(), IsOk());
    workers.pop_back();
  }
  EndAll(std::move(workers));
}

// The first learns of each join from the worker that joined, perhaps before its
// own view has it.
TEST_F(WorkerTest, CallToAWorkerThatHasJustJoinedReachesIt) {
  constexpr int kJoins = 12;
  Workers workers = StartAll({ElasticOf(0, 1, 1 + kJoins)});
  ASSERT_EQ(workers.size(), 1u);
  for (int rank = 1; rank <= kJoins; ++rank) {
    auto joined = Worker::Start(ElasticOf(rank, 1, 1 + kJoins));
    ASSERT_THAT(joined, IsOk());
    const std::string name = (*joined)->self().name;
    EXPECT_THAT(workers[0]->agent().To((*joined)->self().key).status(), IsOk());
    EXPECT_THAT(CallTwice(*workers[0], name), IsOkAndHolds(42));
    workers.push_back(*std::move(joined));
  }
  for (; workers.size() > 1; workers.pop_back()) {
    EXPECT_THAT(workers.back()->Shutdown(kLong).status(), IsOk());
  }
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, ElasticWorkerEndsWithoutCuttingItsCalls) {
  Gate gates[2];  // F10; handlers at it end with their workers
  Workers workers = StartAll({ElasticOf(0, 2, 2), ElasticOf(1, 2, 2)});
  ASSERT_EQ(workers.size(), 2u);
  std::vector<Future<int64_t>> held;  // of trainer0, and of trainer1
  for (const int caller : {0, 1}) {
    const int callee = 1 - caller;
    workers[callee]->agent().SetLocal(&gates[callee]);
    held.push_back(rpc::CallAsync(
        workers[caller]->agent().To(absl::StrCat("trainer", callee), kLong),
        PassGate));
    EXPECT_TRUE(IsWoken(gates[callee].entered));
  }
  std::atomic<bool> is_over{false};
  ShutdownReport report;
  std::thread ending([&] {
    report = workers[1]->Shutdown(kLong);
    is_over = true;
  });
  ASSERT_THAT(workers[0]->membership().WaitFor(
                  [](const rendezvous::View& view) {
                    return view.Find("trainer1")->phase !=
                           rendezvous::Phase::kActive;
                  },
                  kLong),
              IsOk());
  for (const int callee : {1, 0}) {
    EXPECT_FALSE(is_over);
    gates[callee].may_leave.Unpark();
    EXPECT_THAT(held[1 - callee].Wait(kLong), IsOkAndHolds(1));
  }
  ending.join();
  EXPECT_THAT(report.status(), IsOk());
  EXPECT_THAT(report.pending_calls, IsEmpty());
  workers.pop_back();
  EndAll(std::move(workers));
}

double Mean(const Tensor& x) {
  const auto elements = x.span<float>();
  double sum = 0;
  for (const float element : elements) sum += element;
  return sum / static_cast<double>(elements.size());
}
WEFT_RPC(Mean);

// Heartbeats have a connection of their own, so what they share with tensors is
// the machine. No answer is timed but by the bound of suspicion.
TEST_F(WorkerTest, HeartbeatsPassWhileLargeTensorsFlow) {
  std::vector<Options> ranks = {OptionsOf("ps", 0), OptionsOf("trainer", 0),
                                OptionsOf("trainer", 1)};
  // Longer than a busy machine leaves a worker without time.
  for (Options& rank : ranks) rank.limits.suspect_after = absl::Seconds(6);
  Workers workers = StartAll(ranks);
  ASSERT_EQ(workers.size(), 3u);
  rendezvous::Membership& membership = workers[1]->membership();
  std::atomic<int> suspects{0};
  const auto follow = workers[2]->membership().OnChange(
      [&](const std::shared_ptr<const rendezvous::View>& view) {
        for (const rendezvous::Member& member : view->members()) {
          if (member.suspect) ++suspects;
        }
      });
  // The calls are made on a thread of their own: a caller writes as much of a
  // call as there is room for.
  std::atomic<bool> done{false};
  std::atomic<int> passed{0};
  std::thread beats([&] {
    while (!done.load()) {
      ASSERT_THAT(membership.store().Add("beats", 1, kLong), IsOk());
      ++passed;
    }
  });
  const Tensor large = Tensor::Ones({16 << 20});  // 64 MiB
  for (int round = 0; round < 10 || (passed < 20 && !HasFailure()); ++round) {
    std::vector<Future<double>> calls;
    for (const int callee : {0, 2}) {  // to the coordinator's host, too
      calls.push_back(rpc::CallAsync(
          workers[1]->agent().To(workers[callee]->self().name, kLong), Mean,
          large));
    }
    for (const auto& call : calls)
      EXPECT_THAT(call.Wait(kLong), IsOkAndHolds(1));
  }
  done = true;
  beats.join();
  EXPECT_EQ(suspects, 0);
  EndAll(std::move(workers));
}

}  // namespace
}  // namespace weft::worker
