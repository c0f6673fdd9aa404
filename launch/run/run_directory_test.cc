#include "weft/launch/run/run_directory.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/shm/memory_budget.h"

namespace weft::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RunDirectory, DirectoryWithoutRecordingsIsRemoved) {
  testing::TempDir directory;
  const std::string run = directory.path() + "/run";
  fs::create_directories(run + "/sockets");
  std::ofstream(run + "/coordinator.sock") << "";
  std::ofstream(run + "/sockets/ps0.mem") << "";
  EXPECT_THAT(SweepRunDirectory(run), IsEmpty());
  EXPECT_FALSE(fs::exists(run));
}

TEST(RunDirectory, RecordingsStayAndAreNamedInOrder) {
  testing::TempDir directory;
  const std::string run = directory.path() + "/run";
  fs::create_directories(run);
  for (const char* name : {"/b.flight", "/a.flight", "/ps0.sock"}) {
    std::ofstream(run + name) << "x";
  }
  EXPECT_THAT(SweepRunDirectory(run),
              ElementsAre(run + "/a.flight", run + "/b.flight"));
  EXPECT_FALSE(fs::exists(run + "/ps0.sock"));
}

TEST(RunDirectory, RecordingsOfEndedRunsGoAfterADay) {
  testing::TempDir base;
  const auto make = [&](const std::string& path) {
    fs::create_directories(fs::path(base.Path(path)).parent_path());
    std::ofstream(base.Path(path)) << "x";
  };
  make("run-1/a.flight");
  make("run-2/a.flight");
  make("run-2/coordinator.sock");  // it may run
  make("job/a.flight");            // of a named job
  make("run-own/a.flight");
  RemoveOldRecordings(base.Path("run-own"), absl::Now() + absl::Hours(23));
  EXPECT_TRUE(fs::exists(base.Path("run-1/a.flight")));
  RemoveOldRecordings(base.Path("run-own"), absl::Now() + absl::Hours(25));
  EXPECT_FALSE(fs::exists(base.Path("run-1")));
  EXPECT_TRUE(fs::exists(base.Path("run-2/a.flight")));
  EXPECT_TRUE(fs::exists(base.Path("job/a.flight")));
  EXPECT_TRUE(fs::exists(base.Path("run-own/a.flight")));
}

TEST(RunDirectory, DirectoryThatIsNotThereIsNoError) {
  EXPECT_THAT(SweepRunDirectory("/no/such/directory"), IsEmpty());
  EXPECT_THAT(SweepRunDirectory(""), IsEmpty());
}

// Bound to `path`; its process ends when the descriptor is closed.
int BindSocket(const std::string& path, int type) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(listen(fd, 1), 0);
  return fd;
}

TEST(RunDirectory, OfAJobLosesWhatNoProcessUses) {
  testing::TempDir directory;
  const std::string job = directory.path() + "/job";
  fs::create_directories(job);
  fs::permissions(job, fs::perms::owner_all);
  const int used_stream = BindSocket(job + "/used.sock", SOCK_STREAM);
  const int used_memory = BindSocket(job + "/used.mem", SOCK_SEQPACKET);
  close(BindSocket(job + "/dead.sock", SOCK_STREAM));
  close(BindSocket(job + "/dead.mem", SOCK_SEQPACKET));
  std::ofstream(job + "/trainer0.flight") << "x";
  auto budget =
      transport::MemoryBudget::Open(job, transport::MemoryBudget::kUnitBytes);
  ASSERT_TRUE(budget.ok());

  SweepJobDirectory(job);
  EXPECT_FALSE(fs::exists(job + "/dead.sock"));
  EXPECT_FALSE(fs::exists(job + "/dead.mem"));
  for (const char* used :
       {"/used.sock", "/used.mem", "/memory.budget", "/trainer0.flight"}) {
    EXPECT_TRUE(fs::exists(job + used)) << used;
  }

  close(used_stream);
  close(used_memory);
  budget->reset();
  fs::remove(job + "/trainer0.flight");
  SweepJobDirectory(job);
  EXPECT_FALSE(fs::exists(job));
  SweepJobDirectory(job);
}

}  // namespace
}  // namespace weft::launch
