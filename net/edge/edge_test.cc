// Test of which peers may connect, and of their limits: the matrices of
// docs/security.md, with peers that speak bytes.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/admission.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/open_streams.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/tls/openssl.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

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
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

RawPeer::Hello HelloOf(const Credentials& credentials) {
  RawPeer::Hello hello;
  hello.certificate = credentials.certificate();
  hello.key = credentials.key();
  return hello;
}

int64_t ResidentBytes() {
  int64_t size = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// A server over TLS, ps0, whose log is kept.
class Edge : public ::testing::Test {
 protected:
  Edge() {
    telemetry::Telemetry::Options options;
    options.log_output = &log_;
    telemetry_ = std::make_unique<telemetry::Telemetry>(options);
  }

  void Serve(LoopOptions options, AdmissionLimits limits = {}) {
    options.telemetry = telemetry_.get();
    server_ = Node::Make("ps0", "127.0.0.1:0", std::move(options), limits);
  }
  void Serve() { Serve(With(job_.For("ps", 0))); }

  // Its HTTP/2 begins: from here on each refusal sends the peer a reason.
  bool IsLetIn(RawPeer& peer, const RawPeer::Hello& hello) {
    peer.ShakeHands(hello);
    peer.Write(Preface());
    return peer.AwaitFrame(kSettingsFrame);
  }
  std::unique_ptr<RawPeer> LetIn(const std::string& role = "trainer",
                                 int rank = 9) {
    auto peer = std::make_unique<RawPeer>(server_->address());
    EXPECT_TRUE(IsLetIn(*peer, HelloOf(job_.For(role, rank))));
    return peer;
  }
  // The result of a member's call meanwhile.
  absl::Status Call(const std::string& role = "trainer",
                    const std::string& method = kEcho) {
    auto loop = *Loop::Create(With(job_.For(role, 0)));
    auto channel = Connect(*loop, server_->address());
    return channel->UnaryCall(method, Text("x"), kSoon).Wait(kSoon).status();
  }
  double Count(const std::string& name, const std::string& kind = "") {
    telemetry::Metrics::Labels labels;
    if (!kind.empty()) labels["kind"] = kind;
    return telemetry_->metrics().CounterFor(name, labels).Value();
  }
  // Counts those who flooded it, for whichever of two reasons was seen first.
  double CountCutOff() {
    return Count("weft_net_refused_total", "max_calls_per_connection") +
           Count("weft_net_refused_total", "max_wasted_calls_per_peer");
  }
  // The whole log, once nobody writes it any more.
  std::string Log() {
    server_ = nullptr;
    return log_.str();
  }

  std::ostringstream log_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  Job job_;
  testing::TempDir dir_;
  std::unique_ptr<Node> server_;
};

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

// --------------------------------------------------------------------- limits

// Limits that are small, and ways to exceed them.
class Limits : public Edge {
 protected:
  void ServeWith(const std::function<void(LoopOptions&)>& lower) {
    LoopOptions options = With(job_.For("ps", 0));
    lower(options);
    Serve(std::move(options));
  }
  void ServeWith(AdmissionLimits limits) {
    Serve(With(job_.For("ps", 0)), limits);
  }
  // A call by trainer `rank` that stays open, if it is let in.
  Future<Slices> Hold(int rank, int64_t bytes) {
    loops_.push_back(*Loop::Create(With(job_.For("trainer", rank))));
    channels_.push_back(Connect(*loops_.back(), server_->address()));
    return channels_.back()->UnaryCall(kHold, Text(std::string(bytes, 'x')),
                                       kSoon);
  }
  // While a call of trainer 9 with `held` bytes is open, one of trainer `rank`
  // with `bytes` is refused in these words, of this kind.
  void ExpectNoRoom(int64_t held, int rank, int64_t bytes,
                    const std::string& kind, const std::string& words) {
    const Future<Slices> first = Hold(9, held);
    const std::vector<IncomingCall> open = server_->AwaitHeld(1);
    EXPECT_THAT(Hold(rank, bytes).Wait(kSoon),
                StatusIs(absl::StatusCode::kResourceExhausted, words));
    ExpectRefused(kind, words);
  }
  // One refusal, in these words, of this kind.
  void ExpectRefused(const std::string& kind, const std::string& words) {
    channels_.clear();
    EXPECT_EQ(Count("weft_net_refused_total", kind), 1) << kind;
    EXPECT_THAT(Log(), HasSubstr(absl::StrCat("refused kind=", kind)));
    EXPECT_THAT(log_.str(), HasSubstr(words));
  }
  void TearDown() override {
    channels_.clear();
    loops_.clear();
  }

  std::vector<std::unique_ptr<Loop>> loops_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

TEST_F(Limits, CallsOfOnePeer) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 1;
  ServeWith(limits);
  ExpectNoRoom(0, 9, 0, "max_calls_per_peer",
               "peer weft://job/trainer/9: 1 calls are open, and "
               "max_calls_per_peer is 1; try again later, or raise it by "
               "--limits=max_calls_per_peer=VALUE");
}

TEST_F(Limits, CallsOfAll) {
  AdmissionLimits limits;
  limits.max_calls = 1;
  ServeWith(limits);
  ExpectNoRoom(0, 8, 0, "max_calls",
               "endpoint: 1 calls are open, and max_calls is 1");
}

TEST_F(Limits, BytesOfOnePeer) {
  AdmissionLimits limits;
  limits.max_bytes_per_peer = 100;
  ServeWith(limits);
  ExpectNoRoom(60, 9, 50, "max_bytes_per_peer",
               "requests hold 60 bytes, this one has 50, and "
               "max_bytes_per_peer is 100");
}

TEST_F(Limits, BytesOfAll) {
  AdmissionLimits limits;
  limits.max_bytes = 100;
  ServeWith(limits);
  ExpectNoRoom(60, 8, 50, "max_bytes",
               "endpoint: requests hold 60 bytes, this one has 50, and "
               "max_bytes is 100");
}

TEST(Admission, EndedCallsFreeTheirQuota) {
  AdmissionLimits limits;
  limits.max_calls = 3;
  limits.max_calls_per_peer = 2;
  limits.max_bytes = 150;
  limits.max_bytes_per_peer = 100;
  const auto admission = std::make_shared<Admission>(limits);
  const auto small = *admission->Enter("a");  // stays
  ASSERT_THAT(small->AddBytes(10), IsOk());
  for (int i = 0; i < 5; ++i) {
    const auto large = admission->Enter("a");
    ASSERT_THAT(large, IsOk());
    ASSERT_THAT((*large)->AddBytes(90), IsOk());
    EXPECT_EQ(LimitOf(admission->Enter("a").status()), "max_calls_per_peer");
    EXPECT_EQ(LimitOf(small->AddBytes(1)), "max_bytes_per_peer");
    const auto other = admission->Enter("b");  // has room of its own
    ASSERT_THAT(other, IsOk());
    ASSERT_THAT((*other)->AddBytes(50), IsOk());
    EXPECT_EQ(LimitOf(admission->Enter("c").status()), "max_calls");
    EXPECT_EQ(LimitOf((*other)->AddBytes(1)), "max_bytes");
  }
}

TEST_F(Limits, Connections) {
  ServeWith([](LoopOptions& options) {
    options.max_connections = 1;
    options.max_connections_per_address = 9;
    options.handshake_timeout = kSoon * 2;  // nobody is cut
  });
  const auto first = LetIn();
  EXPECT_TRUE(RawPeer(server_->address()).AwaitEnd());
  ExpectRefused("max_connections",
                "1 connections are open, and max_connections is 1; raise it "
                "by --limits=max_connections=VALUE");
}

TEST_F(Limits, ConnectionsOfOneAddress) {
  ServeWith([](LoopOptions& options) {
    options.max_connections = 9;
    options.max_connections_per_address = 1;
    options.handshake_timeout = kSoon * 2;  // nobody is cut
  });
  const auto first = LetIn();
  EXPECT_TRUE(RawPeer(server_->address()).AwaitEnd());
  ExpectRefused("max_connections_per_address",
                "1 connections of its address are open, and "
                "max_connections_per_address is 1; raise it by "
                "--limits=max_connections_per_address=VALUE");
}

TEST_F(Limits, SilenceOfAConnection) {
  ServeWith([](LoopOptions& options) {
    options.handshake_timeout = absl::Milliseconds(200);
  });
  EXPECT_TRUE(RawPeer(server_->address()).AwaitEnd());
  ExpectRefused("handshake_timeout",
                "said too little for 200ms, which is handshake_timeout");
}

// These two gRPC keeps by itself: it says so to the caller, and counts nothing.
TEST_F(Limits, BytesOfAMessageAndOfItsHeaders) {
  ServeWith([](LoopOptions& options) {
    options.max_message_bytes = 1000;
    options.max_metadata_bytes = 2000;
  });
  EXPECT_THAT(Hold(9, 1001).Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "Received message larger than max (1001 vs. 1000)"));
  const Metadata large = {{"x", std::string(3000, 'x')}};
  EXPECT_THAT(
      channels_.back()->UnaryCall(kEcho, Text("x"), kSoon, large).Wait(kSoon),
      StatusIs(absl::StatusCode::kResourceExhausted, "exceeds limit"));
  WEFT_EXPECT_OK(Call());
}

// -------------------------------------------------------------------- attacks

constexpr int64_t kMiB = 1 << 20;

// AddressSanitizer keeps freed memory for a while.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kFreedYetHeld = 16 * kMiB;
#else
constexpr int64_t kFreedYetHeld = 0;
#endif

// A request of kHold.
std::string HoldRequest(uint32_t stream) {
  return Frame(kHeadersFrame, kEndHeaders, stream, HeaderBlock(kHold)) +
         Frame(kDataFrame, 1, stream, std::string(5, '\0'));
}

// ATT-M1: what is only declared takes no memory.
TEST_F(Edge, ADeclaredLengthTakesNoMemory) {
  Serve();
  auto peer = LetIn();
  WEFT_ASSERT_OK(Call());
  const int64_t before = ResidentBytes();
  uint32_t stream = 1;
  for (const uint32_t declared :
       {uint32_t{4 * kMiB + 1}, uint32_t{1} << 31, uint32_t{0xffffffff}}) {
    const std::string length = {
        0, static_cast<char>(declared >> 24), static_cast<char>(declared >> 16),
        static_cast<char>(declared >> 8), static_cast<char>(declared)};
    for (int i = 0; i < 10; ++i, stream += 2) {
      peer->Write(
          Frame(kHeadersFrame, kEndHeaders, stream, HeaderBlock(kEcho)));
      peer->Write(Frame(kDataFrame, 0, stream, length + std::string(100, 'x')));
    }
  }
  peer->Write(Frame(kPingFrame, 0, 0, "01234567"));
  EXPECT_TRUE(peer->AwaitFrame(kPingFrame));  // all of it was read
  EXPECT_LT(ResidentBytes() - before, 8 * kMiB);
  WEFT_EXPECT_OK(Call());
}

// ATT-M1, sent in earnest. gRPC looks at a length when the message is whole, so
// that what bounds it is max_buffered_bytes. The sender's buffers count, too: 6
// to 13 MiB were seen where that is 4, and 16 to 35 where it is 16.
class EdgeWithRoomFor : public Edge,
                        public ::testing::WithParamInterface<int64_t> {};

INSTANTIATE_TEST_SUITE_P(Edge, EdgeWithRoomFor,
                         ::testing::Values(4 * kMiB, 16 * kMiB));

TEST_P(EdgeWithRoomFor, AnOversizeMessageIsCutOffBeforeItIsWhole) {
  constexpr int64_t kSent = 160 * kMiB;
  LoopOptions options = With(job_.For("ps", 0));
  options.max_message_bytes = 4 * kMiB;
  options.max_buffered_bytes = GetParam();
  Serve(std::move(options));
  LoopOptions hostile = With(job_.For("trainer", 9));
  hostile.max_message_bytes = 2 * kSent;
  auto loop = *Loop::Create(std::move(hostile));
  auto channel = Connect(*loop, server_->address());
  WEFT_ASSERT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  Slices large = Text(std::string(kSent, 'x'));
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here
  const int64_t before = PeakBytes();
  EXPECT_THAT(channel->UnaryCall(kEcho, std::move(large), kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_LT(PeakBytes() - before, 2 * GetParam() + 16 * kMiB + kFreedYetHeld);
  WEFT_EXPECT_OK(Call());
}

// ATT-M2: one peer's calls are capped, and no others.
TEST_F(Edge, OnePeersManyCallsAreCappedAndOthersAreServed) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  LoopOptions options = With(job_.For("ps", 0));
  options.max_wasted_calls_per_peer = 10'000;
  Serve(std::move(options), limits);
  auto greedy_loop = *Loop::Create(With(job_.For("trainer", 9)));
  auto greedy = Connect(*greedy_loop, server_->address());
  std::vector<Future<Slices>> calls;
  for (int i = 0; i < 2000; ++i)
    calls.push_back(greedy->UnaryCall(kHold, {}, kSoon));
  for (int i = 0; i < 50; ++i) WEFT_ASSERT_OK(Call());
  server_->AwaitHeld(8);  // dropped, which answers them
  int refused = 0;
  for (const auto& call : calls)
    refused += absl::IsResourceExhausted(call.Wait(kSoon).status());
  EXPECT_GE(refused, 1000);
  EXPECT_LE(server_->most_held(), 8);
}

// The part of its pace that `channel` keeps between `begin` and `end`, in
// percent: the third best of eleven pairs of rounds, as other load spoils some.
int KeptPercent(Channel& channel, const std::function<void()>& begin,
                const std::function<void()>& end) {
  const auto round = [&] {
    const Instant start = SteadyClock().Now();
    for (int i = 0; i < 100; ++i) {
      WEFT_EXPECT_OK(channel.UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
    }
    return SteadyClock().Now() - start;
  };
  round();  // warms up
  std::vector<double> kept;
  for (int i = 0; i < 11; ++i) {
    const absl::Duration alone = round();
    begin();
    kept.push_back(absl::FDivDuration(alone, round()));
    end();
  }
  std::nth_element(kept.begin(), kept.begin() + 8, kept.end());
  return static_cast<int>(100 * kept[8]);
}

// ATT-M2: what one peer holds, as much as it may, costs others little. A third
// of their pace is far below what is seen (docs/security.md).
TEST_F(Edge, OthersKeepTheirPaceWhileOnePeerHoldsAllItMay) {
  Serve();
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  std::unique_ptr<RawPeer> greedy;
  std::vector<IncomingCall> held;
  const int kept = KeptPercent(
      *channel,
      [&] {
        greedy = LetIn();
        for (uint32_t i = 0; i < 256; ++i)
          greedy->Write(HoldRequest(2 * i + 1));
        held = server_->AwaitHeld(256);
        EXPECT_EQ(held.size(), 256u);
      },
      [&] {
        held.clear();
        greedy = nullptr;
      });
  RecordProperty("pace_kept_percent", kept);
  EXPECT_GT(kept, 33);
}

// Begins calls that are refused, and comes again when it is cut off; on a
// thread of its own.
class FloodOfCalls {
 public:
  // `by_the_book`: it acknowledges the server's settings, keeps to them and
  // waits for answers; else it writes without an end and reads nothing.
  FloodOfCalls(const std::string& address, RawPeer::Hello hello,
               bool by_the_book)
      : address_(address),
        hello_(std::move(hello)),
        by_the_book_(by_the_book),
        thread_([this] { Run(); }) {}
  ~FloodOfCalls() {
    done_.store(true);
    thread_.join();
  }

  int64_t asked() const { return asked_.load(); }
  bool AwaitCutOff() const {
    const Instant deadline = SteadyClock().Now() + kSoon;
    while (cut_off_.load() == 0 && SteadyClock().Now() < deadline)
      std::this_thread::yield();
    return cut_off_.load() > 0;
  }

 private:
  void Run() {
    while (!done_.load()) {
      RawPeer peer(address_);
      if (!peer.ShakeHands(hello_) || !peer.Write(Preface())) continue;
      if (!(by_the_book_ ? AskByTheBook(peer) : Ask(peer))) ++cut_off_;
    }
  }
  std::string Requests(int count) {
    std::string requests;
    for (int i = 0; i < count; ++i, stream_ += 2)
      requests += HoldRequest(stream_);
    asked_ += count;
    return requests;
  }
  // False once the other end has gone.
  bool Ask(RawPeer& peer) {
    for (stream_ = 1; !done_.load();) {
      if (!peer.Write(Requests(100))) return false;
    }
    return true;
  }
  bool AskByTheBook(RawPeer& peer) {
    constexpr uint8_t kAck = 1;
    constexpr int kOpen = 256;
    if (!peer.AwaitFrame(kSettingsFrame) ||
        !peer.Write(Frame(kSettingsFrame, kAck, 0, ""))) {
      return false;
    }
    stream_ = 1;
    if (!peer.Write(Requests(kOpen))) return false;
    while (!done_.load()) {
      // The HEADERS frame is that of a refusal, which ends its call.
      if (!peer.AwaitFrame(kHeadersFrame) || !peer.Write(Requests(1)))
        return false;
    }
    return true;
  }

  const std::string address_;
  const RawPeer::Hello hello_;
  const bool by_the_book_;
  uint32_t stream_ = 1;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> asked_{0};
  std::atomic<int> cut_off_{0};
  std::thread thread_;
};

// Calls that are answered in `time`.
int CallsIn(Channel& channel, absl::Duration time) {
  const Instant end = SteadyClock().Now() + time;
  int calls = 0;
  for (; SteadyClock().Now() < end; ++calls) {
    WEFT_EXPECT_OK(channel.UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  }
  return calls;
}

// ATT-M2, by a member whose calls are refused as fast as it asks for them.
TEST_F(Edge, PeerOfRefusedCallsIsDisconnectedAndOthersKeepTheirPace) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  constexpr absl::Duration kRound = absl::Seconds(1);
  CallsIn(*channel, kRound / 2);  // warms up
  int alone = 0;
  int beside = 0;
  for (int round = 0; round < 3; ++round) {
    alone += CallsIn(*channel, kRound);
    std::vector<std::unique_ptr<FloodOfCalls>> floods;
    for (int i = 0; i < 4; ++i) {
      floods.push_back(std::make_unique<FloodOfCalls>(
          server_->address(), HelloOf(job_.For("trainer", 9)), true));
    }
    beside += CallsIn(*channel, kRound);
    for (const auto& flood : floods) EXPECT_TRUE(flood->AwaitCutOff());
  }
  RecordProperty("pace_kept_percent", 100 * beside / alone);
  EXPECT_GE(Count("weft_net_refused_total", "max_wasted_calls_per_peer"), 4);
  EXPECT_LE(server_->most_held(), 8);
}

// ATT-M5, of streams as of calls: what is taken back counts.
TEST_F(Edge, PeerThatResetsStreamsWithoutEndIsDisconnected) {
  LoopOptions options = With(job_.For("ps", 0));
  options.max_wasted_calls_per_peer = 50;
  Serve(std::move(options));
  auto peer = LetIn();
  const std::string cancel("\0\0\0\x08", 4);
  const std::string message(5, '\0');
  bool open = true;
  uint32_t next = 1;
  for (int batch = 0; open && batch < 100; ++batch) {
    std::string requests;
    std::string resets;
    for (int i = 0; i < 100; ++i, next += 2) {
      requests += Frame(kHeadersFrame, kEndHeaders, next, HeaderBlock(kPump)) +
                  Frame(kDataFrame, 0, next, message);
      resets += Frame(kResetFrame, 0, next, cancel);
    }
    open = peer->Write(requests);
    for (int i = 0; open && i < 100; ++i) open = peer->AwaitFrame(kDataFrame);
    open = open && peer->Write(resets);
  }
  EXPECT_FALSE(open && !peer->AwaitEnd());
  EXPECT_GE(CountCutOff(), 1);
  WEFT_EXPECT_OK(Call());
}

// ATT-M5: HTTP/2 does not bound the calls of who never acknowledges settings.
// What it began until it is noticed must be handled before others are again.
TEST_F(Edge, PeerThatBeginsCallsWithoutEndIsDisconnected) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  WEFT_ASSERT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  FloodOfCalls flood(server_->address(), HelloOf(job_.For("trainer", 9)),
                     false);
  while (flood.asked() < 1000) std::this_thread::yield();
  WEFT_EXPECT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  EXPECT_TRUE(flood.AwaitCutOff());
  RecordProperty("asked", static_cast<int>(flood.asked()));
  // It is kept away, so that others have the time.
  const Instant start = SteadyClock().Now();
  for (int i = 0; i < 100; ++i) {
    WEFT_EXPECT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  }
  EXPECT_LT(SteadyClock().Now() - start, kSoon);
  EXPECT_GE(CountCutOff(), 1);
  EXPECT_LE(server_->most_held(), 8);
  EXPECT_GE(telemetry_->metrics()
                .CounterFor("weft_net_floods_total",
                            {{"peer", "trainer9 at 127.0.0.1"}})
                .Value(),
            1);
  EXPECT_THAT(Log(), HasSubstr("who=\"trainer9 (127.0.0.1:"));
}

// As the accept loop sees them: also of IPv6, whose names gRPC escapes.
TEST_F(Edge, StreamsThatAreOpenAreCountedByPeer) {
  for (const char* listen : {"127.0.0.1:0", "[::1]:0"}) {
    const auto server = Node::Make("ps0", listen, With(job_.For("ps", 0)));
    auto loop = *Loop::Create(With(job_.For("trainer", 9)));
    auto channel = Connect(*loop, server->address());
    WEFT_ASSERT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
    std::vector<Future<Slices>> calls;
    for (int i = 0; i < 3; ++i)
      calls.push_back(channel->UnaryCall(kHold, Text("x"), kSoon));
    const std::vector<IncomingCall> held = server->AwaitHeld(3);
    const std::string peer = server->peer().address;
    const std::map<std::string, int64_t> wanted = {{peer, 3}};
    EXPECT_EQ(OpenStreams({peer, "10.0.0.1:1"}), wanted);
  }
}

// HTTP/2 tells a good client how many calls it may have open; the others wait
// there, and none is refused.
TEST_F(Edge, CallsOfAGoodClientWaitForTheirTurn) {
  Serve();
  auto loop = *Loop::Create(With(job_.For("trainer", 9)));
  auto channel = Connect(*loop, server_->address());
  std::vector<Future<Slices>> calls;
  for (int i = 0; i < 5000; ++i)
    calls.push_back(channel->UnaryCall(kEcho, Text("x"), kSoon));
  for (const auto& call : calls) WEFT_EXPECT_OK(call.Wait(kSoon).status());
}

// HTTP/2 requires it after acknowledged settings: gRPC ends the connection.
TEST_F(Edge, BreakingAnAcknowledgedLimitEndsTheConnection) {
  LoopOptions options = With(job_.For("ps", 0));
  options.max_calls_per_connection = 64;
  Serve(std::move(options));
  auto peer = LetIn();
  constexpr uint8_t kAck = 1;
  std::string requests = Frame(kSettingsFrame, kAck, 0, "");
  for (uint32_t i = 0; i < 300; ++i) requests += HoldRequest(2 * i + 1);
  peer->Write(requests);
  EXPECT_TRUE(peer->AwaitEnd());
  EXPECT_LE(server_->most_held(), 64);
  WEFT_EXPECT_OK(Call());
}

// A listener on all addresses sees IPv4 peers by names that gRPC does not use.
TEST_F(Edge, APeerOfAllAddressesIsCutOffByItsNameToo) {
  LoopOptions options = With(job_.For("ps", 0));
  options.max_wasted_calls_per_peer = 5;
  options.telemetry = telemetry_.get();
  server_ = Node::Make("ps0", "[::]:0", std::move(options));
  const std::string& listening = server_->address();
  RawPeer peer("127.0.0.1" + listening.substr(listening.rfind(':')));
  ASSERT_TRUE(IsLetIn(peer, HelloOf(job_.For("trainer", 9))));
  std::string requests;
  for (uint32_t i = 0; i < 20; ++i) {
    requests += Frame(kHeadersFrame, kEndHeaders, 2 * i + 1,
                      HeaderBlock("/test.Service/None"));
  }
  peer.Write(requests);
  EXPECT_TRUE(peer.AwaitEnd());
  EXPECT_GE(CountCutOff(), 1);
}

TEST_F(Edge, ACallWithoutARequestIsRefusedAndWrittenDown) {
  Serve();
  auto peer = LetIn();
  constexpr uint8_t kEndStream = 1;
  peer->Write(
      Frame(kHeadersFrame, kEndHeaders | kEndStream, 1, HeaderBlock(kEcho)));
  EXPECT_TRUE(peer->AwaitFrame(kHeadersFrame));  // its status
  peer = nullptr;
  EXPECT_EQ(Count("weft_net_refused_total", "request"), 1);
  EXPECT_THAT(Log(), HasSubstr("a unary call without a request"));
}

// Its connection is lost in the middle of a call: the handler learns it.
TEST_F(Edge, AVanishedPeersCallIsCancelled) {
  Serve();
  auto peer = LetIn();
  peer->Write(HoldRequest(1));
  std::vector<IncomingCall> held = server_->AwaitHeld(1);
  ASSERT_EQ(held.size(), 1u);
  EXPECT_FALSE(held[0].is_cancelled());
  auto [promise, cancelled] = MakePromise<void>();
  held[0].OnCancel([promise = std::move(promise)]() mutable {
    promise.Set(absl::OkStatus());
  });
  peer = nullptr;
  WEFT_EXPECT_OK(cancelled.Wait(kSoon));
  EXPECT_TRUE(held[0].is_cancelled());
}

// Connections of an outsider that shake no hands, each with one of `says`.
// Those that are ended come again, if `tireless`, on a thread.
class Flood {
 public:
  struct Options {
    std::string from;
    std::vector<std::string> says;
    int connections = 1000;
    bool tireless = false;
  };

  Flood(const std::string& address, Options options)
      : address_(address), options_(std::move(options)) {
    for (int i = 0; i < options_.connections; ++i) Begin();
    if (options_.tireless) thread_ = std::thread([this] { Run(); });
  }
  ~Flood() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }

  int begun() const { return begun_.load(); }

 private:
  // In a hundredth of a second, so that the attacker leaves the machine some.
  static constexpr int kAtOnce = 20;

  void Begin() {
    auto peer = std::make_unique<RawPeer>(address_, options_.from);
    EXPECT_TRUE(peer->connected());
    const int turn = begun_.fetch_add(1);
    peer->Write(options_.says[turn % options_.says.size()]);
    peers_.push_back(std::move(peer));
  }
  void Run() {
    while (!stop_.load()) {
      std::vector<pollfd> ends;
      for (const auto& peer : peers_) ends.push_back({peer->fd(), POLLIN, 0});
      poll(ends.data(), ends.size(), 10);
      int ended = 0;
      for (size_t i = ends.size(); i-- > 0 && ended < kAtOnce;) {
        if (ends[i].revents == 0) continue;
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
        ++ended;
      }
      for (; ended > 0; --ended) Begin();
    }
  }

  const std::string address_;
  const Options options_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  std::atomic<int> begun_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// ATT-M4: who says nothing, or too little, or no more than a hello, keeps
// nobody out, of another address or of its own. None of them expires before a
// call would: whoever is let in got a place beside them.
class FloodOfHandshakes : public Edge {
 protected:
  void Serve(absl::Duration handshake_timeout) {
    LoopOptions options = With(job_.For("ps", 0));
    options.handshake_timeout = handshake_timeout;
    Edge::Serve(std::move(options));
  }
  // A member joins anew, so many times; for each it tries until it is let in.
  void ExpectLetIn(int times, const char* when) {
    const Instant start = SteadyClock().Now();
    for (int i = 0; i < times; ++i) {
      auto loop = *Loop::Create(With(job_.For("trainer", 0)));
      ChannelOptions options;
      options.name = "ps0";
      options.wait_for_ready = true;
      auto channel = *Channel::Create(*loop, server_->address(), options);
      WEFT_EXPECT_OK(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon)) << when;
    }
    RecordProperty(absl::StrReplaceAll(when, {{" ", "_"}}),
                   absl::FormatDuration(SteadyClock().Now() - start));
  }
  void SetUp() override {
    rlimit limit;  // often 1024, and the flood is of this process
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  // A handshake has a fifth of this before it makes room.
  static constexpr absl::Duration kTime = absl::Seconds(40);
  static_assert(kTime > kSoon);
  const std::string hello_ = ClientHello();
  const std::string half_ = hello_.substr(0, 11);
};

TEST_F(FloodOfHandshakes, LetsMembersIn) {
  Serve(absl::Hours(1));  // there are places that an address leaves to others
  {
    Flood flood(server_->address(), {"127.0.0.2", {half_, hello_, ""}});
    ExpectLetIn(5, "beside those that wait");
  }
  {
    Flood flood(server_->address(),
                {"127.0.0.2", {half_, hello_, ""}, 1000, /*tireless=*/true});
    ExpectLetIn(5, "beside those that come again");
    EXPECT_TRUE(Becomes([&] { return flood.begun() > 1000; }));
  }
  ExpectLetIn(5, "afterwards");
}

TEST_F(FloodOfHandshakes, FromManyAddressesLetsMembersIn) {
  Serve(kTime);
  std::vector<std::unique_ptr<Flood>> floods;
  for (int i = 2; i < 12; ++i) {
    floods.push_back(std::make_unique<Flood>(
        server_->address(), Flood::Options{absl::StrCat("127.0.0.", i),
                                           {half_, hello_, ""},
                                           100,
                                           /*tireless=*/i % 2 == 0}));
  }
  ExpectLetIn(5, "beside them");
}

// Members share an address with the flood, as behind a NAT. Of connections that
// come again and again, only half hellos are recognised.
TEST_F(FloodOfHandshakes, FromTheMembersAddressLetsMembersIn) {
  Serve(kTime);
  auto member = LetIn();
  member->Write(HoldRequest(1));
  const std::vector<IncomingCall> held = server_->AwaitHeld(1);
  {
    Flood flood(server_->address(), {"127.0.0.1", {half_, hello_, ""}});
    ExpectLetIn(1, "beside those that wait");
  }
  {
    Flood flood(server_->address(),
                {"127.0.0.1", {half_}, 1000, /*tireless=*/true});
    ExpectLetIn(5, "beside those that come again");
  }
  ASSERT_EQ(held.size(), 1u);
  EXPECT_FALSE(held[0].is_cancelled());  // who was there stays
}

// ATT-M4: a body that comes by single bytes is waited for, at nobody's cost.
TEST_F(Edge, BodySentByteByByteDelaysNoOtherPeer) {
  Serve();
  auto peer = LetIn();
  peer->Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kEcho)));
  for (const char byte :
       Frame(kDataFrame, 1, 1, absl::string_view("\0\0\0\0\4body", 9))) {
    WEFT_EXPECT_OK(Call());
    ASSERT_TRUE(peer->Write(std::string(1, byte)));
  }
  EXPECT_TRUE(peer->AwaitFrame(kDataFrame)) << "it was served in the end";
}

// ATT-M4, CVE-2023-4785: descriptors run out, and connections are refused; once
// some are free, it serves again.
TEST_F(Edge, ServesAgainOnceDescriptorsAreFree) {
  Serve();
  WEFT_ASSERT_OK(Call());
  const size_t colon = server_->address().rfind(':');
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(
      static_cast<uint16_t>(std::stoi(server_->address().substr(colon + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<Descriptor> idle;
  for (int i = 0; i < 120; ++i)
    idle.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit tight = {static_cast<rlim_t>(dup(idle[0].get())),
                        limit.rlim_max};
  Descriptor next(static_cast<int>(tight.rlim_cur));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (const Descriptor& one : idle) {
    EXPECT_EQ(
        connect(one.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  int refused = 0;
  for (const Descriptor& one : idle) {
    pollfd end = {one.get(), POLLIN, 0};
    refused +=
        poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kSoon))) == 1;
  }
  EXPECT_EQ(refused, 120);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  WEFT_EXPECT_OK(Call());
  EXPECT_GT(Count("weft_net_refused_total", "descriptors"), 0);
}

// A header of `size` bytes, in as many frames as it takes. False if the
// connection was cut meanwhile.
bool WriteHeaderBomb(RawPeer& peer, size_t size) {
  constexpr size_t kFrame = 16384;
  const std::string block = HeaderBlock(kEcho, {{"x", std::string(size, 'x')}});
  bool open = true;
  for (size_t at = 0; open && at < block.size(); at += kFrame) {
    const bool last = at + kFrame >= block.size();
    open =
        peer.Write(Frame(at == 0 ? kHeadersFrame : kContinuationFrame,
                         last ? kEndHeaders : 0, 1, block.substr(at, kFrame)));
  }
  return open;
}

// ATT-M5, without a certificate: nothing reaches HTTP/2. See also EdgeRefuses.
TEST_F(Edge, AHeaderBombWithoutACertificateMeetsTheHandshake) {
  constexpr int64_t kBomb = 4 * kMiB;
  Serve();
  int64_t before = 0;
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 6; ++i) {
    if (i == 1) before = ResidentBytes();  // with what this test takes itself
    peers.push_back(std::make_unique<RawPeer>(server_->address()));
    RawPeer& peer = *peers.back();
    peer.ShakeHands(RawPeer::Hello());
    if (peer.Write(Preface())) WriteHeaderBomb(peer, kBomb);  // until cut off
    EXPECT_FALSE(peer.AwaitFrame(kSettingsFrame));
  }
  EXPECT_LT(ResidentBytes() - before, 8 * kMiB);
  WEFT_EXPECT_OK(Call());
}

// ATT-M5, with one: gRPC would keep a header until it is whole, however large.
TEST_F(Edge, AMembersHeaderBombIsCutOff) {
  Serve();
  WEFT_ASSERT_OK(Call());
  const int64_t before = ResidentBytes();
  auto peer = LetIn();
  // The server's settings are never acknowledged.
  WriteHeaderBomb(*peer, 2 * kMiB);
  EXPECT_TRUE(peer->AwaitEnd());
  peer = nullptr;
  EXPECT_LT(ResidentBytes() - before, 64 * kMiB);
  WEFT_EXPECT_OK(Call());
  EXPECT_TRUE(Becomes(
      [&] { return Count("weft_net_refused_total", "http2_frames") == 1; }));
}

TEST_F(Edge, RapidResetsStartNoMoreHandlersThanAdmitted) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  auto peer = LetIn();
  const std::string cancel("\0\0\0\x08", 4);
  bool open = true;
  for (uint32_t batch = 0; open && batch < 100; ++batch) {
    std::string requests;
    std::string resets;
    for (uint32_t i = 0; i < 100; ++i) {
      const uint32_t stream = 2 * (100 * batch + i) + 1;
      requests += HoldRequest(stream);
      resets += Frame(kResetFrame, 0, stream, cancel);
    }
    // Some are reset before their handlers start, and some after.
    open =
        peer->Write(requests) &&
        (batch % 2 == 1 || (peer->Write(Frame(kPingFrame, 0, 0, "01234567")) &&
                            peer->AwaitFrame(kPingFrame))) &&
        peer->Write(resets);
  }
  EXPECT_TRUE(!open || peer->AwaitEnd());
  EXPECT_GE(CountCutOff(), 1);
  WEFT_EXPECT_OK(Call());
  EXPECT_GE(server_->most_held(), 1);
  EXPECT_LE(server_->most_held(), 8);
}

TEST_F(Edge, APingFloodIsCutOff) {
  Serve();
  auto peer = LetIn();
  bool open = true;
  for (int i = 0; open && i < 10'000; ++i)
    open = peer->Write(Frame(kPingFrame, 0, 0, "01234567"));
  EXPECT_TRUE(peer->AwaitEnd());
  WEFT_EXPECT_OK(Call());
}

// ATT-M6: what it does not read waits in its own window, and delays no other.
TEST_F(Edge, PeerThatNeverReadsDelaysNoOtherPeer) {
  Serve();
  WEFT_ASSERT_OK(Call());
  const int64_t before = ResidentBytes();
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  std::vector<std::unique_ptr<RawPeer>> deaf;
  const int kept = KeptPercent(
      *channel,
      [&] {
        // Their windows of 64 KiB are full, and they give no more.
        for (int i = 0; i < 10; ++i) {
          deaf.push_back(LetIn());
          deaf.back()->Write(
              Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kFlood)));
          EXPECT_TRUE(deaf.back()->AwaitFrame(kDataFrame));
        }
      },
      [&] {
        EXPECT_LT(ResidentBytes() - before, 32 * kMiB);
        deaf.clear();
      });
  RecordProperty("pace_kept_percent", kept);
  EXPECT_GT(kept, 30);
}

TEST_F(Edge, APeerThatNeverReadsDoesNotKeepAnEndpointFromEnding) {
  Serve();
  auto peer = LetIn();
  peer->Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kFlood)));
  EXPECT_TRUE(peer->AwaitFrame(kDataFrame));
  EXPECT_THAT(server_->endpoint().Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(Edge, APeerThatLetsNoReplyOutDoesNotKeepAnEndpointFromEnding) {
  LoopOptions options = With(job_.For("ps", 0));
  options.keepalive_timeout = absl::Minutes(5);  // as if it answered pings
  Serve(std::move(options));
  auto peer = LetIn();
  // Its streams begin with a window of 0: the body of the reply must wait.
  peer->Write(
      Frame(kSettingsFrame, 0, 0, absl::string_view("\0\4\0\0\0\0", 6)) +
      Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kEcho)) +
      Frame(kDataFrame, 1, 1, absl::string_view("\0\0\0\0\4body", 9)));
  EXPECT_TRUE(peer->AwaitFrame(kHeadersFrame));  // those of the reply
  EXPECT_THAT(server_->endpoint().Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// ATT-M3, in small: all of it at once, again and again.
TEST_F(Edge, MemoryIsBoundedUnderMixedHostility) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  const auto misbehave = [&](int round) {
    RawPeer peer(server_->address());
    switch (round % 4) {
      case 0:
        peer.Write(std::string(1000, static_cast<char>(round)));
        break;
      case 1:
        peer.ShakeHands(RawPeer::Hello());
        break;
      case 2:
        IsLetIn(peer, HelloOf(job_.For("trainer", 9)));
        peer.Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kHold)));
        peer.Write(std::string(10'000, '\xff'));
        break;
      default:
        IsLetIn(peer, HelloOf(job_.For("trainer", 9)));
        peer.Write(Frame(kHeadersFrame, 0, 1, HeaderBlock(kEcho)));
        break;
    }
  };
  for (int i = 0; i < 40; ++i) misbehave(i);  // what it takes once
  const int64_t before = ResidentBytes();
  for (int i = 0; i < 200; ++i) {
    misbehave(i);
    if (i % 10 == 0) {
      WEFT_EXPECT_OK(Call());
    }
  }
  EXPECT_LT(ResidentBytes() - before, 64 * kMiB);
}

}  // namespace
}  // namespace weft::net
