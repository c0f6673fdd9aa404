// Tests of Worker: whole ranks, which meet, call each other and end.

#include "weft/worker/worker.h"

#include <sys/stat.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() { chmod(dir_.path().c_str(), 0700); }

  Options OptionsOf(const std::string& role, int rank) {
    Options options;
    options.job = "job";
    options.role = role;
    options.rank = rank;
    options.servers = 1;
    options.trainers = 2;
    options.coordinator = absl::StrCat("unix:", dir_.Path("c.sock"));
    options.join_timeout = kLong;
    options.log_level = telemetry::Level::kWarning;
    return options;
  }

  testing::TempDir dir_;
};

TEST_F(WorkerTest, RanksMeetInAnyOrderCallEachOtherAndEndInPeace) {
  const std::vector<Options> ranks = {
      OptionsOf("trainer", 0), OptionsOf("trainer", 1), OptionsOf("ps", 0)};
  std::vector<std::thread> threads;
  for (const Options& options : ranks) {
    threads.emplace_back([options] {
      auto worker = Worker::Start(options);
      ASSERT_THAT(worker, IsOk());
      EXPECT_EQ((*worker)->self().name, options.name());
      for (const char* peer : {"ps0", "trainer0", "trainer1"}) {
        EXPECT_THAT(
            rpc::Call((*worker)->agent().To(peer, kLong), Twice, int64_t{21}),
            IsOkAndHolds(42))
            << options.name() << " to " << peer;
      }
      EXPECT_THAT((*worker)->AwaitAll("called", kLong), IsOk());
      const ShutdownReport report = (*worker)->Shutdown(kLong);
      EXPECT_THAT(report.status(), IsOk()) << report.ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(WorkerTest, AServerThatIsNotThereIsNamedWithTheDeadline) {
  Options options = OptionsOf("trainer", 0);
  options.join_timeout = absl::Milliseconds(500);
  const auto worker = Worker::Start(options);
  EXPECT_THAT(worker, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               "is server 0 running"));
  EXPECT_EQ(ExitCodeFor(worker.status()), ExitCode::kTimeout);
}

TEST_F(WorkerTest, TcpWithoutCertificatesNamesTheCommandThatMakesThem) {
  Options options = OptionsOf("ps", 0);
  options.coordinator = "127.0.0.1:0";
  const auto worker = Worker::Start(options);
  EXPECT_THAT(worker, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "weft certs init"));
  EXPECT_EQ(ExitCodeFor(worker.status()), ExitCode::kAuth);
}

}  // namespace
}  // namespace weft::worker
