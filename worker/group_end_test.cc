// Tests of the end of a group: workers that end together, over and over.

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/failure.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int kWorkers = 4;
// A round takes some 100 ms; one that hangs ends here.
constexpr absl::Duration kDeadline = absl::Seconds(15);

int Rounds() {
  int rounds = 20;
  const char* const wanted = std::getenv("WEFT_GROUP_END_ROUNDS");
  if (wanted != nullptr) (void)absl::SimpleAtoi(wanted, &rounds);
  return rounds;
}

Options OptionsOf(int rank, const std::string& socket) {
  Options options;
  options.job = "job";
  options.role = "trainer";
  options.rank = rank;
  options.trainers = kWorkers;
  options.coordinator = absl::StrCat("unix:", socket);
  options.join_timeout = absl::Seconds(60);
  options.log_level = telemetry::Level::kError;
  return options;
}

// Each calls all others, and ends at once.
absl::Status RunWorker(const Options& options) {
  auto worker = Worker::Start(options);
  if (!worker.ok()) return worker.status();
  for (int peer = 0; peer < kWorkers; ++peer) {
    const auto reply =
        rpc::Call((*worker)->agent().To(absl::StrCat("trainer", peer)), Twice,
                  int64_t{21});
    if (!reply.ok()) return reply.status();
  }
  const ShutdownReport report = (*worker)->Shutdown(kDeadline);
  return report.status();
}

Options AloneAt(const std::string& socket) {
  Options options = OptionsOf(0, socket);
  options.trainers = 1;
  return options;
}

TEST(GroupEnd, AWorkerDoesNotWaitForAClientThatStaysConnected) {
  const testing::TempDir dir;
  chmod(dir.path().c_str(), 0700);
  const std::string socket = dir.Path("c.sock");
  auto worker = Worker::Start(AloneAt(socket));
  ASSERT_THAT(worker, IsOk());
  const auto client = rpc::Client::Connect(absl::StrCat("unix:", socket));
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT(rpc::Call((*client)->To(), Twice, int64_t{21}), IsOk());
  const ShutdownReport report = (*worker)->Shutdown(absl::Seconds(60));
  EXPECT_THAT(report.status(), IsOk()) << report.ToString();
}

TEST(GroupEnd, CallsAfterShutdownSayThatThisWorkerHasShutDown) {
  const testing::TempDir dir;
  chmod(dir.path().c_str(), 0700);
  auto worker = Worker::Start(AloneAt(dir.Path("c.sock")));
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Shutdown(absl::Seconds(60)).status(), IsOk());
  // It has heard that it left itself, and nothing of the other.
  for (const char* name : {"trainer0", "trainer1"}) {
    const absl::Status refused =
        rpc::Call((*worker)->agent().To(name), Twice, int64_t{21}).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  "is shutting down"));
    EXPECT_EQ(rpc::ReasonOf(refused), rpc::Reason::kShuttingDown) << refused;
  }
}

TEST(GroupEnd, AShutdownAfterTheCoordinatorDiedEndsWhenTheWorkerIsOutOfTheJob) {
  const testing::TempDir dir;
  chmod(dir.path().c_str(), 0700);
  setenv("XDG_RUNTIME_DIR", dir.path().c_str(), 1);
  std::unique_ptr<Worker> workers[2];
  const auto started = testing::RunRanks(2, [&](int rank) {
    Options options = OptionsOf(rank, dir.Path("c.sock"));
    options.trainers = 2;
    options.log_level = telemetry::Level::kOff;
    auto worker = Worker::Start(options);
    if (worker.ok()) workers[rank] = *std::move(worker);
    return worker.status();
  });
  for (const absl::Status& status : started) ASSERT_THAT(status, IsOk());
  workers[0].reset();  // which hosts the coordinator, and tells nobody
  const absl::Duration deadline = absl::Minutes(2);
  const ShutdownReport report = workers[1]->Shutdown(deadline);
  EXPECT_THAT(report.status(), StatusIs(absl::StatusCode::kUnavailable,
                                        "the coordinator has been silent"));
  absl::Duration took;
  for (const auto& phase : report.phases) took += phase.took;
  EXPECT_LT(took, deadline / 2) << report.ToString();
}

TEST(GroupEnd, FourWorkersThatEndTogetherAfterTinyCallsNeverWaitForEachOther) {
  const testing::TempDir dir;
  chmod(dir.path().c_str(), 0700);
  setenv("XDG_RUNTIME_DIR", dir.path().c_str(), 1);
  const int rounds = Rounds();
  int failed = 0;
  absl::Duration longest;
  for (int round = 0; round < rounds; ++round) {
    const absl::Time began = absl::Now();
    const auto statuses = testing::RunRanks(kWorkers, [&](int rank) {
      return RunWorker(
          OptionsOf(rank, dir.Path(absl::StrCat("c", round, ".sock"))));
    });
    longest = std::max(longest, absl::Now() - began);
    bool is_ok = true;
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(status, IsOk()) << "round " << round;
      is_ok = is_ok && status.ok();
    }
    failed += !is_ok;
  }
  RecordProperty("failed_rounds", failed);
  RecordProperty("longest_ms", absl::ToInt64Milliseconds(longest));
  std::printf("%d of %d rounds failed; the longest took %s\n", failed, rounds,
              absl::FormatDuration(longest).c_str());
}

}  // namespace
}  // namespace weft::worker
