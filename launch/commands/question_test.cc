#include "weft/launch/commands/question.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

TEST(CredentialsOf, CertificatesAndInsecureContradictEachOther) {
  Question question;
  question.certs = "certs";
  question.insecure = true;
  EXPECT_THAT(CredentialsOf(question).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "certs"));
}

TEST(CredentialsOf, FolderWithoutCertificatesIsNamed) {
  Question question;
  question.certs = "/nowhere/certs";
  EXPECT_FALSE(CredentialsOf(question).ok());
}

TEST(Ask, AddressWithoutAListenerIsUnavailable) {
  const testing::TempDir directory;
  Question question;
  question.address = "unix:" + directory.Path("nobody.sock");
  question.timeout = absl::Seconds(60);
  EXPECT_THAT(Ask(question, "/grpc.health.v1.Health/Check", "").status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

// The program listens at a unix socket; it takes no connection, or closes each.
TEST(Ask, ProgramThatSpeaksNoGrpcIsSaidToBeOne) {
  const testing::TempDir directory;
  for (const bool closes : {false, true}) {
    const std::string path = directory.Path(closes ? "closes" : "silent");
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof name.sun_path);
    path.copy(name.sun_path, path.size());
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(listener, 0);
    ASSERT_EQ(
        bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name),
        0);
    ASSERT_EQ(listen(listener, 8), 0);
    std::thread closer([listener, closes] {
      if (!closes) return;
      for (;;) {
        const int taken = accept(listener, nullptr, nullptr);
        if (taken < 0) return;
        close(taken);
      }
    });
    Question question;
    question.address = "unix:" + path;
    question.timeout = absl::Seconds(60);
    EXPECT_THAT(Ask(question, "/grpc.health.v1.Health/Check", "").status(),
                StatusIs(absl::StatusCode::kUnavailable,
                         "another program has this address"));
    if (!closes) {
      question.timeout = absl::Seconds(1);
      EXPECT_THAT(Ask(question, "/grpc.health.v1.Health/Check", "").status(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           "is it a worker that listens there"));
    }
    shutdown(listener, SHUT_RDWR);
    closer.join();
    close(listener);
  }
}

TEST(Ask, ServerThatIsNoWeftIsNamedWithWhatItLacks) {
  worker::TestWorkers::Options options;
  options.trainers = 1;
  const auto workers = worker::TestWorkers::Start(options);
  ASSERT_THAT(workers, IsOk());
  Question question;
  question.address = (*workers)->Get("trainer0").endpoint().address();
  const absl::Status status =
      Ask(question, "/another.Service/Get", "").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                               "serves gRPC, but not /another.Service/Get"));
  EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kConfig);
}

TEST(AskForMembers, MembersOfTheJobAreListed) {
  worker::TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 2;
  const auto workers = worker::TestWorkers::Start(options);
  ASSERT_THAT(workers, IsOk());
  Meeting meeting;
  meeting.coordinator = (*workers)->Get("ps0").options().coordinator;
  meeting.job = (*workers)->Get("ps0").options().job;
  const auto view = AskForMembers(Question(), meeting);
  ASSERT_THAT(view, IsOk());
  EXPECT_THAT(view->members(), SizeIs(3));
  EXPECT_NE(view->Find("trainer1"), nullptr);
  meeting.job = "another";
  EXPECT_THAT(AskForMembers(Question(), meeting).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "another"));
}

TEST(AskForMembers, JobThatDoesNotRunLeavesNoDirectory) {
  const testing::TempDir dir;
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", dir.path().c_str(), 1), 0);
  Question question;
  Meeting meeting;
  meeting.job = "nosuchjob";
  const auto members = AskForMembers(question, meeting);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_THAT(members,
              StatusIs(absl::StatusCode::kUnavailable, "--job=nosuchjob"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ParseMembers, BytesThatAreNoViewNameTheCoordinator) {
  EXPECT_THAT(ParseMembers("node1:7000", "\xff\xff").status(),
              StatusIs(absl::StatusCode::kInternal, "node1:7000"));
}

}  // namespace
}  // namespace weft::launch
