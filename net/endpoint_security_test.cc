// Whom an endpoint with certificates serves.

#include <sys/un.h>

#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/health.h"
#include "weft/net/loop/loop.h"
#include "weft/net/on_unix.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::weft::testing::StatusIs;

TEST(Security, TcpWithoutCertificatesNamesTheCommand) {
  auto loop = *Loop::Create();
  EXPECT_THAT(Endpoint::Open(*loop, {"ps0", "127.0.0.1:0", "", {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "weft certs init --dir="));
  EXPECT_THAT(Channel::Create(*loop, "127.0.0.1:1", {"ps0"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "weft certs init --dir="));
}

class Mtls : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = Node::Make("ps0", "127.0.0.1:0", With(job_.For("ps", 0)));
  }

  // The result of a call with `credentials`.
  absl::Status Call(Credentials credentials, const std::string& name = "ps0") {
    auto loop = *Loop::Create(With(std::move(credentials)));
    auto channel = Connect(*loop, server_->address(), name);
    return channel->UnaryCall(kEcho, {}, absl::Seconds(10))
        .Wait(kSoon)
        .status();
  }

  Job job_;
  std::unique_ptr<Node> server_;
};

TEST_F(Mtls, AMemberIsServed) { WEFT_EXPECT_OK(Call(job_.For("trainer", 3))); }

TEST_F(Mtls, AnotherAuthorityIsRefused) {
  EXPECT_THAT(Call(Job().For("trainer", 0)),
              StatusIs(absl::StatusCode::kUnauthenticated, server_->address()));
}

TEST_F(Mtls, AnExpiredCertificateIsRefused) {
  EXPECT_THAT(Call(job_.For("trainer", 0, -absl::Hours(1))),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(Mtls, AServerWithAnotherNameIsRefused) {
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(Call(job_.For("trainer", 0), "ps1"),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       "hostname mismatch; another than ps1 answers there"));
  // gRPC's own line of it would say no more.
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::AllOf(
          ::testing::Not(
              ::testing::HasSubstr("No match found for server name")),
          ::testing::Not(::testing::HasSubstr("certificate verify failed"))));
}

TEST_F(Mtls, PlainTextIsRefused) {
  EXPECT_THAT(Call(Credentials::Insecure()),
              StatusIs(absl::StatusCode::kUnavailable));
  WEFT_EXPECT_OK(Call(job_.For("trainer", 0)));
}

TEST_F(Mtls, ServerOutsideTheJobIsNamed) {
  const auto plain =
      Node::Make("ps0", "127.0.0.1:0", With(Credentials::Insecure()));
  const auto call = [&](const std::string& address) {
    auto loop = *Loop::Create(With(job_.For("trainer", 0)));
    return Connect(*loop, address)
        ->UnaryCall(kEcho, {}, absl::Seconds(10))
        .Wait(kSoon)
        .status();
  };
  EXPECT_THAT(call(plain->address()),
              StatusIs(absl::StatusCode::kUnavailable, "it speaks no TLS"));
  const std::string gone = plain->address();
  plain->Drop();
  EXPECT_THAT(call(gone), StatusIs(absl::StatusCode::kUnavailable,
                                   absl::StrCat("ps0 at ", gone, ": Failed")));
  EXPECT_THAT(call(gone), StatusIs(absl::StatusCode::kUnavailable,
                                   "nobody listens there: is it running"));
}

TEST_F(Mtls, AMemberOfAnotherJobIsRefused) {
  Job other("other");
  other.authority = job_.authority;  // even if signed by the same authority
  auto loop = *Loop::Create(With(other.For("trainer", 0)));
  // Without a name it asks for the number, which the server's certificate has.
  auto channel = *Channel::Create(*loop, server_->address(), {});
  EXPECT_THAT(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "is of job other, this is job job"));
}

TEST_F(Mtls, ReflectionIsForAdmin) {
  for (const std::string role : {"trainer", "admin"}) {
    auto loop = *Loop::Create(With(job_.For(role, 0)));
    auto channel = Connect(*loop, server_->address());
    auto recorder = std::make_shared<Recorder>();
    auto stream = channel->OpenStream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        recorder);
    stream->Close(absl::OkStatus());
    const absl::Status status = recorder->closed().Wait(kSoon);
    EXPECT_EQ(status.code(), role == "admin"
                                 ? absl::StatusCode::kOk
                                 : absl::StatusCode::kPermissionDenied)
        << status;
  }
}

}  // namespace
}  // namespace weft::net
