// scale_bench and scale_sim with numbers that they cannot take, and with few.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::Process;
using ::weft::testing::RunfilePath;

constexpr absl::Duration kLong = absl::Seconds(100);

using Words = std::vector<std::string>;

std::unique_ptr<Process> Start(Words argv) {
  auto process = Process::Start({std::move(argv), {}});
  EXPECT_THAT(process.status(), IsOk());
  return *std::move(process);
}

TEST(ScalePrograms, NumbersThatCannotBeAreRefusedWithoutAProcess) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"bench/scale_bench", "--workers=0"}, "--workers"},
      {{"bench/scale_bench", "--workers=-1"}, "--workers"},
      {{"bench/scale_bench", "--workers=2,1000000000"}, "--workers"},
      {{"bench/scale_bench", "--workers=99999999999999999999"}, "--workers"},
      {{"bench/scale_bench", "--workers=two"}, "--workers"},
      {{"bench/scale_bench", "--workers="}, "--workers"},
      {{"bench/scale_bench", "--workers=65536"}, "MiB of memory"},
      {{"bench/scale_bench", "--idle=-1"}, "--idle"},
      {{"bench/scale_bench", "--idle=nan"}, "--idle"},
      {{"bench/scale_bench", "--idle=inf"}, "--idle"},
      {{"bench/scale_bench", "--timeout=0"}, "--timeout"},
      {{"bench/scale_bench", "--timeout=nan"}, "--timeout"},
      {{"bench/scale_bench", "--arena-mib=-1"}, "--arena-mib"},
      {{"bench/scale_bench", "--arena-mib=100000000"}, "--arena-mib"},
      {{"bench/scale_sim", "--workers=0"}, "0 workers"},
      {{"bench/scale_sim", "--workers=-1"}, "-1 workers"},
      {{"bench/scale_sim", "--workers=64"}, "64 workers"},
      {{"bench/scale_sim", "--workers=16385"}, "16384"},
      {{"bench/scale_sim", "--workers=1000000000"}, "16384"},
      {{"bench/scale_sim", "--workers=two"}, "--workers"},
      {{"bench/scale_sim", "--workers=100", "--rack=0"}, "racks of 0"},
      {{"bench/scale_sim", "--workers=100", "--rack=-1"}, "racks of -1"},
      {{"bench/scale_sim", "--workers=100", "--rack=2147483647"}, "racks of"}};
  for (auto [argv, said] : cases) {
    SCOPED_TRACE(absl::StrCat(argv[0], " ", argv[1]));
    argv[0] = RunfilePath(argv[0]);
    const auto program = Start(argv);
    const auto code = program->Wait(kLong);
    ASSERT_THAT(code.status(), IsOk());
    EXPECT_TRUE(*code != 0 && *code < 128) << *code;
    EXPECT_THAT(program->output(), HasSubstr(said));
    EXPECT_THAT(program->output(), Not(HasSubstr("check failed")));
  }
}

// No figure is lost, whatever is not measured.
TEST(ScalePrograms, FewWorkersAndNoIdlePhaseHaveAllOtherFigures) {
  const auto program =
      Start({RunfilePath("bench/scale_bench"), "--workers=1,2,2", "--idle=0"});
  ASSERT_THAT(program->Wait(kLong), IsOkAndHolds(0)) << program->output();
  const std::vector<std::string> lines =
      absl::StrSplit(program->output(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4u) << program->output();
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> figures =
        absl::StrSplit(lines[i], ' ', absl::SkipEmpty());
    // The idle phase alone has none.
    EXPECT_EQ(std::count(figures.begin(), figures.end(), "-"), 1) << lines[i];
  }
}

}  // namespace
}  // namespace weft::bench
