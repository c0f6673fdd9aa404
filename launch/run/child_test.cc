#include "weft/launch/run/child.h"

#include <poll.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::unique_ptr<Child> Shell(const std::string& script,
                             const std::string& log_file = "") {
  ChildSpec spec;
  spec.name = "ps0";
  spec.argv = {"sh", "-c", script};
  spec.environment = {{"GIVEN", "yes"}};
  spec.log_file = log_file;
  return Child::Start(std::move(spec)).value();
}

// All lines of a stream until its end.
std::vector<std::string> AllLines(Child& child, int stream) {
  std::vector<std::string> all;
  while (child.output_fd(stream) >= 0) {
    pollfd readable = {child.output_fd(stream), POLLIN, 0};
    if (poll(&readable, 1, 60000) <= 0) break;
    for (std::string& line : child.ReadLines(stream)) {
      all.push_back(std::move(line));
    }
  }
  return all;
}

Exit Ended(Child& child) {
  pollfd ended = {child.exit_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 60000), 1);
  return child.Reap();
}

TEST(Child, LinesOfBothStreamsAndTheExitCodeAreRead) {
  const auto child =
      Shell("echo $GIVEN; echo out; printf piece; echo err >&2; exit 7");
  EXPECT_THAT(AllLines(*child, 0), ElementsAre("yes", "out", "piece"));
  EXPECT_THAT(AllLines(*child, 1), ElementsAre("err"));
  const Exit exit = Ended(*child);
  EXPECT_EQ(exit.code, 7);
  EXPECT_EQ(exit.shell_code(), 7);
  EXPECT_TRUE(exit.is_failure());
  EXPECT_TRUE(child->has_ended());
  EXPECT_THAT(child->tail(), ElementsAre("yes", "out", "piece", "err"));
}

TEST(Child, SignalEndsTheWholeGroupAndIsNamed) {
  const auto child = Shell("sleep 600 & echo $!; wait");
  pollfd readable = {child->output_fd(0), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 60000), 1);
  ASSERT_EQ(child->ReadLines(0).size(), 1u);
  child->Signal(SIGTERM);
  const Exit exit = Ended(*child);
  EXPECT_EQ(exit.signal, SIGTERM);
  EXPECT_EQ(exit.shell_code(), 128 + SIGTERM);
  EXPECT_EQ(exit.ToString(), "killed by SIGTERM");
  // The end of the output shows that nobody of the group has it open.
  EXPECT_TRUE(AllLines(*child, 0).empty());
}

TEST(Child, LogFileGetsAllOutputAtItsEnd) {
  testing::TempDir directory;
  const std::string path = absl::StrCat(directory.path(), "/ps0.log");
  std::ofstream(path) << "before\n";
  const auto child = Shell("echo out", path);
  AllLines(*child, 0);
  AllLines(*child, 1);
  Ended(*child);
  EXPECT_THAT(child->TakeLogError(), IsOk());
  std::ifstream log(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(log), {}),
            "before\nout\n");
}

TEST(Child, ProgramThatIsNotThereIsNotFound) {
  ChildSpec spec;
  spec.name = "ps0";
  spec.argv = {"/no/such/program"};
  EXPECT_THAT(Child::Start(std::move(spec)).status(),
              StatusIs(absl::StatusCode::kNotFound, "/no/such/program"));
}

TEST(Child, LogFileThatCannotBeOpenedIsNamed) {
  ChildSpec spec;
  spec.name = "ps0";
  spec.argv = {"true"};
  spec.log_file = "/no/such/directory/ps0.log";
  const absl::Status status = Child::Start(std::move(spec)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("/no/such/directory/ps0.log"));
}

}  // namespace
}  // namespace weft::launch
