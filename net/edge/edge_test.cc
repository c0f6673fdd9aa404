// Test of which peers may connect, and of their limits: the matrices of
// docs/security.md, with peers that speak bytes.

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/edge_fixture.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/tls/openssl.h"
#include "weft/tests/support/status_matchers.h"

// Under asan: what is freed stays resident in its quarantine, which would hide
// what these tests measure.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=1";
}

namespace weft::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// ------------------------------------------------------------ who may connect

struct Stranger {
  std::string name;
  std::string reason;  // in the log of the server
  std::function<RawPeer::Hello(const Job&)> hello;
  bool plain = false;
};

RawPeer::Hello Between(const Job& job, absl::Duration from,
                       absl::Duration until) {
  const MemberCertificate made =
      *MakeMemberCertificate(job.authority, {job.name, "trainer", 9}, {},
                             {absl::Now() + from, absl::Now() + until});
  return {made.certificate, made.key, TLS1_3_VERSION, ""};
}

RawPeer::Hello OfVersion(const Job& job, int version) {
  RawPeer::Hello hello = HelloOf(job.For("trainer", 9));
  hello.version = version;
  return hello;
}

std::vector<Stranger> Strangers() {
  const absl::Duration hour = absl::Hours(1);
  return {
      {"NoCertificate", "no certificate",
       [](const Job&) { return RawPeer::Hello(); }},
      {"NoCertificateInTls12", "no certificate",
       [](const Job&) {
         RawPeer::Hello hello;
         hello.version = TLS1_2_VERSION;
         return hello;
       }},
      {"SelfSigned", "self-signed certificate",
       [=](const Job&) {
         const Authority self =
             *MakeAuthority("job", {absl::Now() - hour, absl::Now() + hour});
         return RawPeer::Hello{self.certificate, self.key, TLS1_3_VERSION, ""};
       }},
      {"OtherAuthority", "certificate verify failed",
       [](const Job&) { return HelloOf(Job().For("trainer", 9)); }},
      {"Expired", "certificate has expired",
       [=](const Job& job) { return Between(job, -2 * hour, -hour); }},
      {"NotYetValid", "certificate is not yet valid",
       [=](const Job& job) { return Between(job, hour, 2 * hour); }},
      {"Tls10", "TLS 1.1 or older",
       [](const Job& job) { return OfVersion(job, TLS1_VERSION); }},
      {"Tls11", "TLS 1.1 or older",
       [](const Job& job) { return OfVersion(job, TLS1_1_VERSION); }},
      {"PlainText", "plain text", [](const Job&) { return RawPeer::Hello(); },
       /*plain=*/true},
  };
}

class EdgeRefuses : public Edge,
                    public ::testing::WithParamInterface<Stranger> {};

INSTANTIATE_TEST_SUITE_P(Edge, EdgeRefuses, ::testing::ValuesIn(Strangers()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EdgeRefuses, TheStrangerAndNotesWhy) {
  Serve();
  RawPeer peer(server_->address());
  ASSERT_TRUE(peer.connected());
  if (GetParam().plain) {
    peer.Write(Preface());
    EXPECT_FALSE(peer.AwaitFrame(kSettingsFrame));
  } else {
    EXPECT_FALSE(IsLetIn(peer, GetParam().hello(job_)));
  }
  EXPECT_EQ(peer.received(), "");  // the reason is not for the peer
  WEFT_EXPECT_OK(Call());
  EXPECT_EQ(Count("weft_net_refused_total", "certificate") +
                Count("weft_net_refused_total", "connection"),
            1);
  EXPECT_THAT(Log(), HasSubstr(GetParam().reason));
}

// The certificate of trainer9, signed by the job's authority for `names`, as
// OpenSSL reads them, in place of its own.
RawPeer::Hello Named(const Job& job, const std::string& names) {
  RawPeer::Hello hello = HelloOf(job.For("trainer", 9));
  const auto read = [](const std::string& pem) {
    return openssl::Bio(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  };
  const openssl::Certificate certificate(PEM_read_bio_X509(
      read(hello.certificate).get(), nullptr, nullptr, nullptr));
  X509* const made = certificate.get();
  X509_EXTENSION_free(X509_delete_ext(
      made, X509_get_ext_by_NID(made, NID_subject_alt_name, -1)));
  X509_EXTENSION* const san = X509V3_EXT_conf_nid(
      nullptr, nullptr, NID_subject_alt_name, names.c_str());
  X509_add_ext(made, san, -1);
  X509_EXTENSION_free(san);
  const openssl::Key key(PEM_read_bio_PrivateKey(read(job.authority.key).get(),
                                                 nullptr, nullptr, nullptr));
  EXPECT_GT(X509_sign(made, key.get(), EVP_sha256()), 0);
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), made);
  const char* text = nullptr;
  const auto size = BIO_get_mem_data(bio.get(), &text);
  hello.certificate.assign(text, static_cast<size_t>(size));
  return hello;
}

struct Misnamed {
  std::string name;
  std::string names;   // in the certificate
  std::string status;  // of gRPC
  std::string reason;
};

std::vector<Misnamed> AllMisnamed() {
  const std::string unauthenticated = "16";
  const std::string none =
      "its certificate names no weft://<job>/<role>/<rank>";
  return {
      {"NoUri", "DNS:trainer9.job.weft", unauthenticated, none},
      {"MalformedUri", "URI:weft://job/trainer/09", unauthenticated, none},
      {"NoRank", "URI:weft://job/trainer", unauthenticated, none},
      {"OtherScheme", "URI:spiffe://job/trainer/9", unauthenticated, none},
      {"OtherJob", "URI:weft://other/trainer/9", "7",
       "is of job other, this is job job"},
  };
}

class EdgeTells : public Edge,
                  public ::testing::WithParamInterface<Misnamed> {};

INSTANTIATE_TEST_SUITE_P(Edge, EdgeTells, ::testing::ValuesIn(AllMisnamed()),
                         [](const auto& info) { return info.param.name; });

// They are no strangers: the job's own authority signed them.
TEST_P(EdgeTells, PeerOfItsAuthorityWhyItIsRefused) {
  Serve();
  RawPeer peer(server_->address());
  ASSERT_TRUE(IsLetIn(peer, Named(job_, GetParam().names)));
  peer.Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kEcho)) +
             Frame(kDataFrame, 1, 1, std::string(5, '\0')));
  EXPECT_TRUE(peer.AwaitFrame(kHeadersFrame));
  const std::string& status = GetParam().status;
  EXPECT_THAT(
      peer.received(),
      AllOf(HasSubstr(GetParam().reason),
            HasSubstr(absl::StrCat("grpc-status", std::string(1, status.size()),
                                   status))));
  WEFT_EXPECT_OK(Call());
  EXPECT_EQ(Count("weft_net_refused_total", "certificate"), 1);
  EXPECT_THAT(Log(), AllOf(HasSubstr("kind=certificate"),
                           HasSubstr(absl::StrCat("what=", kEcho)),
                           HasSubstr(GetParam().reason)));
}

TEST_F(Edge, LetsAMemberIn) {
  Serve();
  LetIn();
  RawPeer older(server_->address());
  EXPECT_TRUE(IsLetIn(older, OfVersion(job_, TLS1_2_VERSION)));
}

TEST_F(Edge, TakesNoSuiteWithoutAuthenticatedEncryption) {
  Serve();
  for (const char* suite :
       {"ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA384", "AES128-SHA",
        "ECDHE-ECDSA-NULL-SHA", "AECDH-AES128-SHA"}) {
    RawPeer peer(server_->address());
    RawPeer::Hello hello = OfVersion(job_, TLS1_2_VERSION);
    hello.ciphers = suite;
    EXPECT_FALSE(IsLetIn(peer, hello)) << suite;
  }
  RawPeer peer(server_->address());
  RawPeer::Hello hello = OfVersion(job_, TLS1_2_VERSION);
  hello.ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256";
  EXPECT_TRUE(IsLetIn(peer, hello));
}

// gRPC has a line of its own for each; it is to be one of few.
TEST_F(Edge, FailedHandshakesDoNotFloodTheLog) {
  Serve();
  RawPeer::Hello hello = OfVersion(job_, TLS1_2_VERSION);
  hello.ciphers = "AES128-SHA";
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) {
    RawPeer peer(server_->address());
    EXPECT_FALSE(peer.ShakeHands(hello));
  }
  server_ = nullptr;
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(written.begin(), written.end(), '\n'), 60) << written;
}

TEST_F(Edge, RefusesRevokedCertificates) {
  const Credentials lost = job_.For("trainer", 9);
  const Credentials ours = job_.For("ps", 0);
  Serve(With(ours));
  RawPeer early(server_->address());
  ASSERT_TRUE(IsLetIn(early, HelloOf(lost)));
  const std::string list = *MakeRevocationList(
      job_.authority, {lost.certificate()},
      {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)});
  WEFT_ASSERT_OK(server_->loop().RenewCredentials(
      *Credentials::FromPem(ours.ca(), ours.certificate(), ours.key(), list)));
  RawPeer peer(server_->address());
  EXPECT_FALSE(IsLetIn(peer, HelloOf(lost)));
  WEFT_EXPECT_OK(Call());
  EXPECT_THAT(Log(), HasSubstr("certificate revoked"));
}

TEST_F(Edge, RefusesCertificatesOfAFormerAuthority) {
  Serve();
  const Credentials former = job_.For("trainer", 9);
  Job renewed;  // the same job, with a new authority
  WEFT_ASSERT_OK(server_->loop().RenewCredentials(renewed.For("ps", 0)));
  RawPeer peer(server_->address());
  EXPECT_FALSE(IsLetIn(peer, HelloOf(former)));
  RawPeer member(server_->address());
  EXPECT_TRUE(IsLetIn(member, HelloOf(renewed.For("trainer", 9))));
  EXPECT_THAT(Log(), HasSubstr("certificate verify failed"));
}

TEST_F(Edge, KeepsItsCertificateWhenARenewedOneCannotBeUsed) {
  Serve();
  EXPECT_THAT(server_->loop().RenewCredentials(job_.For("ps", 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "they are for weft://job/ps/1, wanted weft://job/ps/0"));
  const Credentials ours = job_.For("ps", 0);
  EXPECT_THAT(server_->loop().RenewCredentials(*Credentials::FromPem(
                  Job().authority.certificate, ours.certificate(), ours.key())),
              StatusIs(absl::StatusCode::kUnauthenticated, "verify failed"));
  EXPECT_THAT(server_->loop().RenewCredentials(*Credentials::FromPem(
                  ours.ca(), ours.certificate(), ours.key(), "not a list")),
              StatusIs(absl::StatusCode::kInvalidArgument, "revocation list"));
  WEFT_EXPECT_OK(Call());
}

// ----------------------------------------------------------- renewal by files

class Renewal : public Edge {
 protected:
  void SetUp() override {
    certificates_.directory = dir_.Path("certs");
    certificates_.job = "job";
    certificates_.members = {{"", "ps", 0}, {"", "trainer", 0}};
    certificates_.extra_hosts = {"127.0.0.1"};
    WEFT_ASSERT_OK(MakeCertificates(certificates_));
    certificates_.renew = true;
    Serve(Watched("ps0"));
    client_ = *Loop::Create(Watched("trainer0"));
  }
  void TearDown() override { client_ = nullptr; }

  LoopOptions Watched(const std::string& name) {
    LoopOptions options = With(
        *Credentials::FromDirectory(absl::StrCat(dir_.Path("certs/"), name)));
    options.certificate_check = absl::Milliseconds(20);
    return options;
  }
  // By a connection of its own.
  absl::Status CallAnew() {
    auto channel = Connect(*client_, server_->address());
    return channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon).status();
  }
  // Calls until `count` has risen; false if one failed or it never did.
  bool CallUntil(const std::string& count, double wanted) {
    const Instant deadline = SteadyClock().Now() + kSoon;
    while (Count(count) < wanted) {
      const absl::Status called = CallAnew();
      EXPECT_EQ(called, absl::OkStatus());
      if (!called.ok() || SteadyClock().Now() > deadline) return false;
    }
    return true;
  }

  CertificatesOptions certificates_;
  std::unique_ptr<Loop> client_;
};

constexpr char kRenewals[] = "weft_net_certificate_renewals_total";
constexpr char kRefusals[] = "weft_net_certificate_refusals_total";

TEST_F(Renewal, FailsNoCallAndCutsNoStream) {
  constexpr int kRotations = 20;
  auto first = Connect(*client_, server_->address());
  auto recorder = std::make_shared<Recorder>();
  auto stream = first->OpenStream(kPump, recorder);
  ASSERT_TRUE(stream->Write(Text("before")));
  RawPeer before(server_->address());
  before.ShakeHands(RawPeer::Hello());
  for (int i = 1; i <= kRotations; ++i) {
    const double before_it = Count(kRenewals);
    WEFT_ASSERT_OK(MakeCertificates(certificates_));
    ASSERT_TRUE(CallUntil(kRenewals, before_it + 1)) << i;
  }
  // gRPC takes the new pair up within a second.
  const Instant deadline = SteadyClock().Now() + kSoon;
  std::string serial = before.ServerSerial();
  while (serial == before.ServerSerial() && SteadyClock().Now() < deadline) {
    WEFT_ASSERT_OK(CallAnew());
    RawPeer now(server_->address());
    if (now.ShakeHands(RawPeer::Hello())) serial = now.ServerSerial();
  }
  EXPECT_NE(serial, before.ServerSerial());
  EXPECT_EQ(recorder->AwaitMessages(1).size(), 1u);
  ASSERT_TRUE(recorder->AwaitWritten(1));
  ASSERT_TRUE(stream->Write(Text("after")));
  EXPECT_EQ(recorder->AwaitMessages(2),
            (std::vector<std::string>{"before", "after"}));
}

TEST_F(Renewal, NoKeyIsWrittenToTheLog) {
  // A key in the wrong place is read as a certificate, and complained of.
  std::ifstream key(dir_.Path("certs/ps0/key.pem"));
  std::stringstream text;
  text << key.rdbuf();
  {
    std::ofstream file(dir_.Path("certs/ps0/cert.pem"));
    file << text.str();
  }
  EXPECT_TRUE(CallUntil(kRefusals, 1));
  std::istringstream lines(text.str());
  const std::string log = Log();
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(log.find(line), std::string::npos) << line;
}

TEST_F(Renewal, ABrokenFileKeepsTheFormerAndSaysSo) {
  const std::string path = dir_.Path("certs/ps0/cert.pem");
  {
    std::ofstream file(path);
    file << "not a certificate";
  }
  EXPECT_TRUE(CallUntil(kRefusals, 1));
  WEFT_EXPECT_OK(CallAnew());
  WEFT_ASSERT_OK(MakeCertificates(certificates_));
  EXPECT_TRUE(CallUntil(kRenewals, 1));
  EXPECT_THAT(Log(), HasSubstr("renewed certificates cannot be used, the "
                               "former ones stay"));
}

TEST_F(Renewal, ARevokedMemberIsNotLetInAnyMore) {
  const Credentials trainer =
      *Credentials::FromDirectory(dir_.Path("certs/trainer0"));
  WEFT_ASSERT_OK(CallAnew());
  EXPECT_THAT(RevokeCertificates(certificates_.directory, {"trainer7"}),
              StatusIs(absl::StatusCode::kNotFound));
  WEFT_ASSERT_OK(RevokeCertificates(certificates_.directory, {"trainer0"}));
  // Twice: what was taken back before stays taken back.
  WEFT_ASSERT_OK(RevokeCertificates(certificates_.directory, {"ps0"}));
  const Instant deadline = SteadyClock().Now() + kSoon;
  bool is_let_in = true;
  while (is_let_in && SteadyClock().Now() < deadline) {
    RawPeer peer(server_->address());
    is_let_in = IsLetIn(peer, HelloOf(trainer));
  }
  EXPECT_FALSE(is_let_in);
  EXPECT_THAT(Log(), HasSubstr("certificate revoked"));
}

TEST_F(Renewal, RevokedWorkerLogsIt) {
  WEFT_ASSERT_OK(RevokeCertificates(certificates_.directory, {"ps0"}));
  const Instant deadline = SteadyClock().Now() + kSoon;
  while (Count(kRenewals) < 1 && SteadyClock().Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_THAT(Log(), HasSubstr("the others refuse this worker's own "
                               "certificate on new connections"));
}

// ---------------------------------------------------------- methods and roles

TEST_F(Edge, EachMethodIsForItsRoles) {
  Serve();
  const std::string reflection =
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::vector<std::string> roles = {"ps", "trainer", "admin", "client",
                                          "visitor"};
  const std::map<std::string, std::vector<std::string>> table = {
      {kEcho, {"ps", "trainer", "admin"}},
      {kHold, {"ps", "trainer", "admin"}},
      {kPump, {"ps", "trainer", "admin"}},
      {kFlood, {"ps", "trainer", "admin"}},
      {kForClients, {"client"}},
      {"/grpc.health.v1.Health/Check", roles},
      {"/grpc.health.v1.Health/Watch", roles},
      {reflection, {"admin"}},
  };
  int refused = 0;
  for (const auto& [method, access] : server_->endpoint().Access()) {
    const auto row = table.find(method);
    ASSERT_NE(row, table.end()) << method << " has no entry in the table";
    for (const std::string& role : roles) {
      const bool allowed = std::find(row->second.begin(), row->second.end(),
                                     role) != row->second.end();
      EXPECT_EQ(access.Allow(role), allowed) << method << " " << role;
      if (allowed) continue;
      ++refused;
      EXPECT_THAT(Call(role, method),
                  StatusIs(absl::StatusCode::kPermissionDenied,
                           absl::StrCat(role, "0 (127.0.0.1")))
          << method << " " << role;
    }
  }
  EXPECT_EQ(Count("weft_net_refused_total", "method"), refused);
  WEFT_EXPECT_OK(Call("client", kForClients));
  EXPECT_THAT(Log(), HasSubstr("kind=method who=\"visitor0 (127.0.0.1"));
}

}  // namespace
}  // namespace weft::net
