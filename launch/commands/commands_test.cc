// Command lines that the subcommands of `weft` refuse, and those that need no
// job.

#include "weft/launch/commands/commands.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/commands/question.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using Command = absl::StatusOr<int> (*)(int, char**);

absl::StatusOr<int> RunCommandLine(Command command,
                                   std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  ::testing::internal::CaptureStdout();
  auto code = command(static_cast<int>(argv.size()), argv.data());
  ::testing::internal::GetCapturedStdout();
  return code;
}

// Its words, if it ends the program with the code for a wrong command line.
std::string UsageError(Command command, std::vector<std::string> arguments) {
  const absl::Status status =
      RunCommandLine(command, std::move(arguments)).status();
  EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kUsage) << status;
  return std::string(status.message());
}

TEST(Commands, CommandLinesThatMakeNoSenseAreRefusedAsUsage) {
  EXPECT_THAT(UsageError(HealthCommand, {"health"}), HasSubstr("ADDRESS"));
  EXPECT_THAT(UsageError(HealthCommand, {"health", "a:1", "b:2"}),
              HasSubstr("wanted one ADDRESS"));
  EXPECT_THAT(UsageError(DumpCommand, {"dump"}), HasSubstr("*.flight"));
  EXPECT_THAT(UsageError(DumpCommand, {"dump", "x.flight", "--job=x"}),
              HasSubstr("wanted one of them"));
  EXPECT_THAT(UsageError(DumpCommand, {"dump", "x.flight", "--out=x"}),
              HasSubstr("--out is for what a running job"));
  EXPECT_THAT(UsageError(DumpCommand, {"dump", "--job=x", "--events=-1"}),
              HasSubstr("--events"));
  EXPECT_THAT(UsageError(CertsCommand, {"certs"}), HasSubstr("certs init"));
  EXPECT_THAT(UsageError(CertsCommand, {"certs", "revoke"}),
              HasSubstr("--name=NAME"));
  EXPECT_THAT(UsageError(CertsCommand, {"certs", "init", "--days=0"}),
              HasSubstr("--days: wanted 1 to 36500, found 0"));
  EXPECT_THAT(UsageError(StatusCommand, {"status", "--no-such-flag"}),
              HasSubstr("no-such-flag"));
  for (const char* flag : {"--rank=1", "--role=ps", "--workers=1:2"}) {
    EXPECT_THAT(
        UsageError(CoordinatorCommand, {"coordinator", "--job=x", flag}),
        HasSubstr("is of a worker"));
  }
}

TEST(Commands, CoordinatorStandsByWhereItsRecordsAreInEtcdAlone) {
  EXPECT_THAT(
      UsageError(CoordinatorCommand, {"coordinator", "--job=x", "--standby"}),
      HasSubstr("wanted --init=etcd://HOST:PORT, found no --init"));
  EXPECT_THAT(UsageError(CoordinatorCommand, {"coordinator", "--job=x",
                                              "--standby", "--init=file:///x"}),
              HasSubstr("found --init=file:///x"));
}

TEST(Commands, CertsInitMakesTheMembersAndLeavesThoseThatAreThere) {
  testing::TempDir directory;
  const std::string certs = directory.path() + "/certs";
  const std::vector<std::string> init = {"certs",          "init",
                                         "--dir=" + certs, "--job=demo",
                                         "--servers=1",    "--trainers=2"};
  EXPECT_THAT(RunCommandLine(CertsCommand, init), IsOkAndHolds(0));
  for (const char* member : {"ps0", "trainer0", "trainer1", "admin0"}) {
    EXPECT_TRUE(std::filesystem::is_directory(certs + "/" + member)) << member;
  }
  const auto made = [&] {
    std::ifstream file(certs + "/ps0/cert.pem");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string before = made();
  EXPECT_THAT(before, HasSubstr("BEGIN CERTIFICATE"));
  EXPECT_THAT(RunCommandLine(CertsCommand, init), IsOkAndHolds(0));
  EXPECT_EQ(made(), before);
  EXPECT_THAT(RunCommandLine(CertsCommand, {"certs", "revoke", "--dir=" + certs,
                                            "--name=trainer1"}),
              IsOkAndHolds(0));
  EXPECT_TRUE(std::filesystem::exists(certs + "/crl.pem"));
}

TEST(Commands, CertsInitMakesRolesOfOnesOwn) {
  testing::TempDir directory;
  const std::string certs = directory.Path("certs");
  const auto init = [&](std::vector<std::string> roles) {
    roles.insert(roles.begin(), {"certs", "init", "--dir=" + certs});
    return roles;
  };
  EXPECT_THAT(RunCommandLine(CertsCommand,
                             init({"--role=reader", "--role=batch-writer=2"})),
              IsOkAndHolds(0));
  for (const char* member : {"reader0", "batch-writer0", "batch-writer1"}) {
    EXPECT_TRUE(std::filesystem::exists(certs + "/" + member + "/cert.pem"))
        << member;
  }
  // More of them later.
  EXPECT_THAT(RunCommandLine(CertsCommand, init({"--role=reader=2"})),
              IsOkAndHolds(0));
  EXPECT_TRUE(std::filesystem::exists(certs + "/reader1/cert.pem"));
  const auto error = [&](std::vector<std::string> roles) {
    return UsageError(CertsCommand, init(std::move(roles)));
  };
  EXPECT_THAT(error({"--role=trainer"}),
              HasSubstr("role trainer has a flag of its own: --trainers"));
  EXPECT_THAT(error({"--role=a=0"}), HasSubstr("of a role, found 0"));
  EXPECT_THAT(error({"--role=a=x"}), HasSubstr("found the count 'x'"));
  EXPECT_THAT(error({"--role=a", "--role=a=2"}), HasSubstr("role a twice"));
  for (const char* name : {"--role==2", "--role=Reader", "--role=reader2",
                           "--role=a/b", "--role=-a"}) {
    EXPECT_THAT(error({name}), HasSubstr("wanted 1 to 56 of [a-z0-9-]"))
        << name;
  }
}

TEST(Commands, CertsInitOntoAFileSaysThatItIsOne) {
  testing::TempDir directory;
  const auto refused = [&](const std::string& dir) {
    return RunCommandLine(CertsCommand, {"certs", "init", "--dir=" + dir})
        .status();
  };
  std::ofstream(directory.Path("certs")) << "a file";
  EXPECT_THAT(refused(directory.Path("certs")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       directory.Path("certs") + ": it is a file; move"));
  std::filesystem::create_directory(directory.Path("more"));
  std::ofstream(directory.Path("more/ps0")) << "a file";
  EXPECT_THAT(refused(directory.Path("more")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       directory.Path("more/ps0") + ": it is a file; move"));
}

TEST(Commands, DumpOfAFileThatIsNotThereNamesIt) {
  EXPECT_THAT(RunCommandLine(DumpCommand, {"dump", "/no/such.flight"}),
              StatusIs(absl::StatusCode::kNotFound, "/no/such.flight"));
}

TEST(Commands, DumpOfADirectoryReadsItsRecordingsOrSaysWhatItWanted) {
  testing::TempDir directory;
  const absl::Status none =
      RunCommandLine(DumpCommand, {"dump", directory.path()}).status();
  EXPECT_THAT(none, StatusIs(absl::StatusCode::kNotFound,
                             "no file *.flight is in " + directory.path()));
  EXPECT_EQ(worker::ExitCodeFor(none), worker::ExitCode::kConfig);
  std::ofstream(directory.Path("demo-trainer0-1-0.flight")) << "x";
  const absl::Status broken =
      RunCommandLine(DumpCommand, {"dump", directory.path()}).status();
  EXPECT_THAT(broken, StatusIs(absl::StatusCode::kNotFound,
                               "no file there is a recording"));
  // One that is none does not hide the others, unless it was named.
  std::ofstream(directory.Path("demo-trainer1-1-0.flight"))
      << "flight recorder: 0 events\n";
  EXPECT_THAT(RunCommandLine(DumpCommand, {"dump", directory.path()}), IsOk());
  EXPECT_THAT(
      RunCommandLine(DumpCommand,
                     {"dump", directory.Path("demo-trainer0-1-0.flight")}),
      StatusIs(absl::StatusCode::kInvalidArgument, "is no flight recorder's"));
}

TEST(Question, CertificatesAndInsecureExcludeEachOther) {
  Question question;
  EXPECT_THAT(CredentialsOf(question).status(), IsOk());
  question.insecure = true;
  EXPECT_THAT(CredentialsOf(question).status(), IsOk());
  question.certs = "/certs";
  EXPECT_THAT(CredentialsOf(question).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Question, AddressWithoutAListenerIsUnavailable) {
  testing::TempDir directory;
  Question question;
  question.address = "unix:" + directory.path() + "/nobody.sock";
  question.timeout = absl::Seconds(60);
  EXPECT_THAT(Ask(question, "/grpc.health.v1.Health/Check", "").status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(Question, AnswerThatIsNoViewIsInternal) {
  EXPECT_THAT(ParseMembers("unix:/x", "\xff\xff\xff").status(),
              StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace weft::launch
