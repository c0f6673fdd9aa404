#include "weft/launch/run/run_directory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/temp_dir.h"

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

TEST(RunDirectory, DirectoryThatIsNotThereIsNoError) {
  EXPECT_THAT(SweepRunDirectory("/no/such/directory"), IsEmpty());
  EXPECT_THAT(SweepRunDirectory(""), IsEmpty());
}

}  // namespace
}  // namespace weft::launch
