#include "weft/launch/run/exit_reporter.h"

#include <signal.h>
#include <unistd.h>

#include <memory>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/view.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using testing::IsOk;
using testing::StatusIs;

class ExitReporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker::TestWorkers::Options options;
    options.servers = 1;
    options.trainers = 2;
    // Only a report says that a trainer has ended.
    options.configure = [](worker::Options& own) {
      own.limits.suspect_after = absl::Minutes(1);
      own.limits.dead_after = absl::Minutes(2);
    };
    auto started = worker::TestWorkers::Start(options);
    ASSERT_THAT(started, IsOk());
    workers_ = *std::move(started);
    const worker::Options& own = workers_->Get("ps0").options();
    options_.job = own.job;
    options_.coordinator = own.coordinator;
    options_.host = "ps0";
  }
  // The workers are threads of this process, and so of its group.
  static pid_t GroupOfTheWorkers() { return getpgrp(); }

  absl::Status AwaitGone(const char* name, absl::Duration timeout) {
    return workers_->Get("ps0")
        .membership()
        .WaitFor(
            [&](const rendezvous::View& view) {
              return view.Find(name) == nullptr;
            },
            timeout)
        .status();
  }

  std::unique_ptr<worker::TestWorkers> workers_;
  CoordinatorChannelOptions options_;
};

TEST_F(ExitReporterTest, ReportedWorkerIsGoneAtOnceWithTheReason) {
  CoordinatorChannel channel(options_);
  ExitReporter reporter(channel);
  Exit killed;
  killed.signal = SIGKILL;
  ASSERT_THAT(reporter.Report("trainer1", GroupOfTheWorkers(), killed), IsOk());
  ASSERT_THAT(AwaitGone("trainer1", absl::Seconds(30)), IsOk());
  const auto view = workers_->Get("ps0").membership().view();
  ASSERT_EQ(view->departed().size(), 1u);
  EXPECT_EQ(view->departed()[0].reason,
            "its process has ended: killed by SIGKILL");
  EXPECT_FALSE(view->departed()[0].left);
  EXPECT_NE(view->Find("trainer0"), nullptr);
}

TEST_F(ExitReporterTest, ReportOfAnotherGroupOfProcessesChangesNothing) {
  {
    CoordinatorChannel channel(options_);
    ExitReporter reporter(channel);
    ASSERT_THAT(reporter.Report("trainer1", GroupOfTheWorkers() + 1, Exit()),
                IsOk());
  }  // waits for the answer
  EXPECT_NE(workers_->Get("ps0").membership().view()->Find("trainer1"),
            nullptr);
}

TEST_F(ExitReporterTest, CertificatesWithoutAdminAreRefused) {
  options_.coordinator = "127.0.0.1:1";
  options_.certs = "/nowhere";
  CoordinatorChannel channel(options_);
  ExitReporter reporter(channel);
  EXPECT_THAT(reporter.Report("trainer1", GroupOfTheWorkers(), Exit()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace weft::launch
