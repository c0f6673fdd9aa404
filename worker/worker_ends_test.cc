// How workers end, and what they report of it.

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rpc/stream.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"
#include "weft/worker/worker_fixture.h"

namespace weft::worker {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

// Writes until nobody reads.
void Ticks(rpc::Writer<int64_t> out) {
  while (out.Write(1).ok()) {
  }
}
WEFT_RPC_STREAM(Ticks);

TEST_F(WorkerTest, EndingWorkerServesUntilTheOthersEndToo) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  std::thread early(
      [&] { EXPECT_THAT(workers[1]->Shutdown(kLong).status(), IsOk()); });
  ASSERT_THAT(workers[2]->membership().WaitFor(
                  [](const rendezvous::View& view) {
                    return view.Find("trainer0")->phase ==
                           rendezvous::Phase::kQuiescing;
                  },
                  kLong),
              IsOk());
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  }
  EXPECT_THAT(workers[2]->Shutdown(kLong).status(), IsOk());
  early.join();
  EXPECT_THAT(CallTwice(*workers[1], "ps0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "shutting down"));
  EXPECT_THAT(workers[0]->Shutdown(kLong).status(), IsOk());
}

TEST_F(WorkerTest, ShutdownDeadlineNamesLateWorkersAndCutCalls) {
  Gate gate;  // handlers at it end with their workers
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[2]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(workers[1]->agent().To("trainer1", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  const ShutdownReport report = workers[1]->Shutdown(absl::Milliseconds(300));
  EXPECT_THAT(report.status(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                        "trainer1 did not begin to end"));
  EXPECT_THAT(report.pending_calls, ElementsAre("1 calls to trainer1"));
  EXPECT_THAT(report.ToString(), HasSubstr("cut: 1 calls to trainer1"));
  EXPECT_THAT(held.Wait(kLong), StatusIs(absl::StatusCode::kCancelled, ""));
  EXPECT_THAT(workers[1]->Shutdown().phases, IsEmpty());  // once is enough
  gate.may_leave.Unpark();
  // The others saw it leave all the same.
  const auto view = workers[0]->membership().WaitFor(
      [](const auto& v) { return v.Find("trainer0") == nullptr; }, kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_TRUE((*view)->departed().front().left);
  workers.erase(workers.begin() + 1);
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, CallsServedAtALateReleaseAreReportedAsCut) {
  Gate ours;  // handlers at them end with their workers
  Gate others;
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[0]->agent().SetLocal(&others);
  workers[1]->agent().SetLocal(&ours);
  const Future<int64_t> slow =
      rpc::CallAsync(workers[2]->agent().To("ps0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(others.entered));
  ShutdownReport report;
  std::thread first([&] { report = workers[1]->Shutdown(absl::Seconds(8)); });
  std::thread second(
      [&] { EXPECT_THAT(workers[2]->Shutdown(kLong).status(), IsOk()); });
  // Its own calls have ended, and it serves until those of trainer1 have.
  EXPECT_THAT(workers[0]->membership().WaitFor(
                  [](const rendezvous::View& view) {
                    const auto* trainer = view.Find("trainer0");
                    return trainer == nullptr ||
                           trainer->phase == rendezvous::Phase::kDrained;
                  },
                  kLong),
              IsOk());
  const Future<int64_t> held =
      rpc::CallAsync(workers[0]->agent().To("trainer0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(ours.entered));
  others.may_leave.Unpark();
  first.join();
  EXPECT_THAT(report.pending_calls, ElementsAre("1 calls of ps0"));
  EXPECT_THAT(report.status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "1 calls of ps0"));
  ours.may_leave.Unpark();
  second.join();
  workers.erase(workers.begin() + 1, workers.end());
  EndAll(std::move(workers));
}

std::vector<std::string> NamesOf(const ShutdownReport& report) {
  std::vector<std::string> names;
  for (const ShutdownReport::Phase& phase : report.phases) {
    names.push_back(phase.name);
    EXPECT_GE(phase.took, absl::ZeroDuration()) << phase.name;
    EXPECT_LT(phase.took, kLong) << phase.name;
  }
  return names;
}

// ps0, trainer0 and trainer1 end; what each said.
std::vector<ShutdownReport> Reports(Workers workers,
                                    const ShutdownOptions& options) {
  std::vector<ShutdownReport> reports(workers.size());
  testing::RunRanks(workers.size(), [&](int i) {
    reports[i] = workers[i]->Shutdown(options);
    workers[i].reset();
    return absl::OkStatus();
  });
  for (const ShutdownReport& report : reports) {
    EXPECT_THAT(NamesOf(report),
                ElementsAre("quiesce", "drain", "release", "leave"));
  }
  return reports;
}

TEST_F(WorkerTest, ReportHasNoLeaksWhenAllWasReleased) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  const rpc::Target to = workers[1]->agent().To("trainer1", kLong);
  const auto counter = rpc::Make<Counter>(to, 3);
  ASSERT_THAT(counter, IsOk());
  EXPECT_THAT(rpc::Call(*counter, &Counter::Value), IsOkAndHolds(3));
  EXPECT_THAT(rpc::Release(*counter), IsOk());
  {
    auto ticks = rpc::OpenStream(to, Ticks);
    EXPECT_THAT(ticks.Next(), IsOk());
  }
  ShutdownOptions strict;
  strict.strict_leaks = true;
  ::testing::internal::CaptureStderr();
  const auto reports = Reports(std::move(workers), strict);
  // A worker that had to wait for seconds may say so.
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::Not(HasSubstr("left open")));
  for (const ShutdownReport& report : reports) {
    EXPECT_THAT(report.status(), IsOk());
    EXPECT_THAT(report.leaked_objects, IsEmpty());
    EXPECT_THAT(report.leaked_streams, IsEmpty());
  }
}

TEST_F(WorkerTest, HandlesThatWereNotReleasedAreNamedAtBothWorkers) {
  for (const bool is_strict : {false, true}) {
    Workers workers = StartThree();
    ASSERT_EQ(workers.size(), 3u);
    const rpc::Target to = workers[1]->agent().To("trainer1", kLong);
    ASSERT_THAT(rpc::Make<Counter>(to, 3), IsOk());
    ASSERT_THAT(rpc::Remote(to, Twice, 2), IsOk());
    ShutdownOptions options;
    options.strict_leaks = is_strict;
    ::testing::internal::CaptureStderr();
    const auto reports = Reports(std::move(workers), options);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(reports[0].leaked_objects, IsEmpty());
    EXPECT_THAT(
        reports[1].leaked_objects,
        UnorderedElementsAre(HasSubstr("Counter::new at trainer1 (call 1)"),
                             HasSubstr("Twice at trainer1 (call 2)")));
    // Also where trainer0 had left before trainer1 looked.
    EXPECT_THAT(
        reports[2].leaked_objects,
        UnorderedElementsAre(HasSubstr("Counter::new of trainer0 (call 1)"),
                             HasSubstr("Twice of trainer0 (call 2)")));
    EXPECT_THAT(log, HasSubstr("left open: wanted no object"));
    EXPECT_THAT(log, HasSubstr("Counter::new at trainer1"));
    EXPECT_THAT(log, HasSubstr("Counter::new of trainer0"));
    if (is_strict) {
      EXPECT_THAT(reports[1].status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "Counter::new at trainer1 (call 1)"));
      EXPECT_THAT(reports[2].status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "Counter::new of trainer0 (call 1)"));
    } else {
      EXPECT_THAT(reports[1].status(), IsOk());
      EXPECT_THAT(reports[2].status(), IsOk());
    }
    EXPECT_THAT(reports[0].status(), IsOk());
  }
}

TEST_F(WorkerTest, AStreamThatIsOpenAtTheEndIsCutAndNamed) {
  for (const int who : {1, 2}) {  // its reader, and its writer
    Workers workers = StartThree();
    ASSERT_EQ(workers.size(), 3u);
    const rpc::Target to = workers[1]->agent().To("trainer1", kLong);
    ASSERT_THAT(rpc::Make<Counter>(to, 3), IsOk());
    auto ticks = rpc::OpenStream(to, Ticks);
    EXPECT_THAT(ticks.Next(), IsOk());
    ShutdownOptions options;
    options.graceful = false;
    options.strict_leaks = true;
    const ShutdownReport report = workers[who]->Shutdown(options);
    const std::string where = who == 1 ? " at trainer1" : " of trainer0";
    EXPECT_THAT(NamesOf(report), ElementsAre("release", "leave"));
    EXPECT_THAT(report.leaked_objects,
                ElementsAre(HasSubstr("Counter::new" + where + " (call 1)")));
    EXPECT_THAT(report.leaked_streams,
                ElementsAre(HasSubstr("Ticks" + where + " (call 2)")));
    EXPECT_THAT(report.status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, "Ticks"));
    // Its function was notified, and Shutdown did not wait for it.
    EXPECT_TRUE(
        Becomes([&] { return workers[who]->agent().OpenCalls().empty(); }));
  }
}

TEST_F(WorkerTest, GracelessShutdownDoesNotWaitAndNotifiesTheOthers) {
  Gate gate;  // handlers at it end with their workers
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[1]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(workers[2]->agent().To("trainer0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  ShutdownOptions at_once;
  at_once.graceful = false;
  EXPECT_THAT(workers[1]->Shutdown(at_once).status(), IsOk());
  // An agent that nobody tells gives a silent peer up after 10 s.
  const absl::Status cut = held.Wait(kLong).status();
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kUnavailable, "trainer0"));
  // From the coordinator or from the peer itself, whichever comes first.
  EXPECT_THAT(rpc::ReasonOf(cut),
              AnyOf(rpc::Reason::kPeerGone, rpc::Reason::kShuttingDown));
  EXPECT_TRUE(rpc::OutcomeUnknown(cut));
  const auto view = workers[2]->membership().WaitFor(
      [](const auto& v) { return v.Find("trainer0") == nullptr; }, kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_TRUE((*view)->departed().front().left);
  const absl::Status late = CallTwice(*workers[2], "trainer0").status();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kUnavailable, "is gone: left"));
  EXPECT_EQ(rpc::ReasonOf(late), rpc::Reason::kPeerGone);
  EXPECT_FALSE(rpc::OutcomeUnknown(late));
  gate.may_leave.Unpark();
  workers.erase(workers.begin() + 1);
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, AWorkerThatIsJustDroppedEndsWithinSeconds) {
  Gate gate;  // handlers at it end with their workers
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[2]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(workers[1]->agent().To("trainer1", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  workers[0].reset();  // the coordinator cannot be notified any more
  const Instant start = SteadyClock().Now();
  workers[1].reset();
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(20));
  EXPECT_THAT(held.Wait(kLong), StatusIs(absl::StatusCode::kCancelled, ""));
  gate.may_leave.Unpark();
}

}  // namespace
}  // namespace weft::worker
