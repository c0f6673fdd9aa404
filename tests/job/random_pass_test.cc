// Random programs with distributed backward passes over processes of their own.

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::weft::testing::IsOkAndHolds;

TEST(RandomPassProcesses, GradientsEqualThoseOfOneProcess) {
  testing::Command command;
  command.argv = {
      testing::RunfilePath("launch/weft"), "run", "--no-prefix",
      absl::StrCat("--role=trainer=4:",
                   testing::RunfilePath("tests/job/random_pass_worker"))};
  auto process = testing::Process::Start(std::move(command));
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_THAT((*process)->Wait(absl::Minutes(4)), IsOkAndHolds(0))
      << (*process)->output();
  const std::string output = (*process)->output();
  int programs = 0, processes = 0, unused = 0, nested = 0;
  const size_t at = output.find(" programs over ");
  ASSERT_NE(at, output.npos) << output;
  ASSERT_EQ(std::sscanf(output.c_str() + output.rfind('\n', at) + 1,
                        "%d programs over %d processes: %d unused, %d nested",
                        &programs, &processes, &unused, &nested),
            4)
      << output;
  EXPECT_GE(programs, 36);
  EXPECT_EQ(processes, 4);
  EXPECT_GE(unused * 100, 30 * programs);
  EXPECT_GE(nested * 100, 30 * programs);
}

}  // namespace
}  // namespace weft
