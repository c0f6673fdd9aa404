// The weft program as a process: how it finds a command, and its exit codes
// (docs/cli.md).

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/version.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kUsage = 2;

// Runs `weft` with these arguments.
std::unique_ptr<testing::Process> Weft(std::vector<std::string> arguments) {
  testing::Command command;
  command.argv = {testing::RunfilePath("launch/weft")};
  for (std::string& a : arguments) command.argv.push_back(std::move(a));
  auto process = testing::Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return process.ok() ? *std::move(process) : nullptr;
}

TEST(Weft, HelpNamesEachCommandAndEndsWithZero) {
  for (const char* word : {"--help", "-h", "help"}) {
    const auto weft = Weft({word});
    EXPECT_THAT(weft->Wait(kLong), IsOkAndHolds(0)) << word;
    for (const char* command : {"run", "certs", "call", "ckpt", "dump",
                                "health", "status", "version"}) {
      EXPECT_THAT(weft->output(),
                  HasSubstr(absl::StrCat("\n  ", command, " ")));
    }
  }
}

TEST(Weft, EachCommandHasHelp) {
  for (const char* command :
       {"run", "certs", "call", "ckpt", "dump", "health", "status"}) {
    const auto weft = Weft({command, "--help"});
    EXPECT_THAT(weft->Wait(kLong), IsOkAndHolds(0)) << command;
    EXPECT_THAT(weft->output(), HasSubstr(absl::StrCat("weft ", command)));
  }
}

TEST(Weft, VersionIsThatOfTheLibrary) {
  for (const char* word : {"version", "--version"}) {
    const auto weft = Weft({word});
    EXPECT_THAT(weft->Wait(kLong), IsOkAndHolds(0));
    EXPECT_EQ(weft->output(), absl::StrCat("weft ", kVersion, "\n"));
  }
}

TEST(Weft, WrongCommandLinesAreUsageErrorsWithAHint) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{}, "Usage: weft"},
      {{""}, "Usage: weft"},
      {{"rum"}, "there is no command \"rum\"; did you mean run?"},
      {{"stauts"}, "did you mean status?"},
      {{"zzz"}, "there is no command \"zzz\"; see weft --help"},
      {{"version", "2"}, "weft version takes no arguments, found \"2\""},
      {{"certs"}, "weft certs init"},
      {{"ckpt"}, "wanted list, verify, diff, merge, export or serve"},
      {{"ckpt", "lst"}, "did you mean list?"},
      {{"certs", "init", "--servers=-1"}, "--servers: wanted 0 to 65536"},
      {{"certs", "init", "--servers=1000000"}, "--servers: wanted 0 to 65536"},
      {{"certs", "init", "--days=3000000"}, "--days: wanted 1 to 36500"},
  };
  for (const auto& [arguments, hint] : cases) {
    const auto weft = Weft(arguments);
    EXPECT_THAT(weft->Wait(kLong), IsOkAndHolds(kUsage)) << hint;
    EXPECT_THAT(weft->output(), HasSubstr(hint));
  }
}

TEST(Weft, HelpOnCertsMakesNoCertificates) {
  const auto weft = Weft({"certs", "--help"});
  EXPECT_THAT(weft->Wait(kLong), IsOkAndHolds(0));
  EXPECT_THAT(weft->output(), HasSubstr("weft certs init"));
  EXPECT_THAT(weft->output(), Not(HasSubstr("good for")));
}

TEST(Weft, CertsInitMakesADirectoryForEachMember) {
  testing::TempDir dir;
  const auto weft = Weft({"certs", "init", "--dir", dir.Path("c"), "--job=j",
                          "--servers=1", "--trainers=2"});
  EXPECT_THAT(weft->Wait(kLong), IsOkAndHolds(0)) << weft->output();
  for (const char* name : {"ps0", "trainer1", "admin0"}) {
    const std::string key = dir.Path(absl::StrCat("c/", name, "/key.pem"));
    EXPECT_EQ(access(key.c_str(), R_OK), 0) << key;
  }
}

TEST(Weft, JobThatIsNotThereEndsWithPeerLostOrTimeout) {
  testing::TempDir dir;
  for (const char* command : {"health", "status"}) {
    const auto weft =
        Weft({command,
              absl::StrCat(std::string(command) == "health" ? "--addr="
                                                            : "--coordinator=",
                           "unix:", dir.Path("none.sock")),
              "--timeout=2s"});
    const auto code = weft->Wait(kLong);
    ASSERT_THAT(code, IsOk());
    EXPECT_TRUE(*code == 10 || *code == 11) << weft->output();
    EXPECT_THAT(weft->output(), HasSubstr("none.sock"));
  }
}

}  // namespace
}  // namespace weft::launch
