// Test of access to a running worker, and of secrets in its outputs.

#include <google/protobuf/descriptor.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/channel.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/worker.h"

namespace weft::worker {

void ForMembers() {}
WEFT_RPC(ForMembers);

void ForAdmins() {}
WEFT_RPC(ForAdmins);

void ForClientsToo() {}
WEFT_RPC(ForClientsToo);
WEFT_RPC_ROLES(ForClientsToo, "client", "trainer");

namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(30);

// The first thing that a call is answered with.
class FirstAnswer final : public net::StreamObserver {
 public:
  void OnMessage(Slices) override { answer.Set(absl::OkStatus()); }
  void OnClosed(absl::Status status) override { answer.Set(std::move(status)); }
  Promise<void> answer;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// ps0, alone in its job, over TLS. What it writes to standard error is kept.
class SecuredWorker : public ::testing::Test {
 protected:
  SecuredWorker() {
    chmod(dir_.path().c_str(), 0700);
    MakeJob("certs");
    Options options;
    options.job = "job";
    options.role = "ps";
    options.servers = 1;
    options.coordinator = "127.0.0.1:0";
    options.certs = dir_.Path("certs");
    options.dump_dir = dir_.path();
    options.log_level = telemetry::Level::kDebug;
    options.access = {{"weft::worker::ForAdm*", net::Roles::Only({"admin"})}};
    options.join_timeout = kLong;
    ::testing::internal::CaptureStderr();
    auto worker = Worker::Start(options);
    EXPECT_THAT(worker, IsOk());
    if (worker.ok()) worker_ = *std::move(worker);
  }
  ~SecuredWorker() override { (void)Log(); }

  void SetUp() override { ASSERT_NE(worker_, nullptr); }

  // An authority of its own, and a member of each role.
  void MakeJob(const std::string& name) {
    net::CertificatesOptions options;
    options.directory = dir_.Path(name);
    options.job = "job";
    for (const std::string& role : kRoles)
      options.members.push_back({"", role, 0});
    options.extra_hosts = {"127.0.0.1"};
    EXPECT_THAT(net::MakeCertificates(options), IsOk());
  }

  net::Credentials As(const std::string& role,
                      const std::string& certs = "certs") const {
    return *net::Credentials::FromDirectory(
        dir_.Path(absl::StrCat(certs, "/", role, "0")));
  }

  // How the worker answers a call with `request`, or with what no protobuf
  // begins with.
  absl::Status Call(net::Credentials caller, const std::string& method,
                    const std::string& request = "\xff") {
    net::LoopOptions options;
    options.credentials = std::move(caller);
    auto loop = net::Loop::Create(std::move(options));
    EXPECT_THAT(loop, IsOk());
    auto channel = net::Channel::Create(**loop, address(), {"ps0"});
    EXPECT_THAT(channel, IsOk());
    auto first = std::make_shared<FirstAnswer>();
    const auto stream = (*channel)->OpenStream(method, first);
    stream->Write({Bytes::Own(std::string(request))});
    return first->answer.future().Wait(kLong);
  }

  const std::string& address() const { return worker_->endpoint().address(); }
  double Refused(const std::string& kind) {
    return worker_->telemetry()
        .metrics()
        .CounterFor("weft_net_refused_total", {{"kind", kind}})
        .Value();
  }

  // All of it; ends the worker.
  const std::string& Log() {
    if (!is_over_) {
      worker_ = nullptr;
      log_ = ::testing::internal::GetCapturedStderr();
      is_over_ = true;
    }
    return log_;
  }

  const std::vector<std::string> kRoles = {"ps", "trainer", "admin", "client",
                                           "visitor"};
  testing::TempDir dir_;
  std::unique_ptr<Worker> worker_;
  bool is_over_ = false;
  std::string log_;
};

// ------------------------------------------------------- methods and roles
// (S8)

// The methods of all services in proto/*.proto: "/weft.rpc.v1.Worker/Call".
std::vector<std::string> MethodsOfAllProtos() {
  std::vector<std::string> methods;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::RunfilePath("proto"))) {
    if (entry.path().extension() != ".proto") continue;
    const std::string name =
        absl::StrCat("weft/proto/", entry.path().filename().string());
    const auto* file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
            name);
    if (file == nullptr) {
      // Linked into no worker: it has messages for something else.
      EXPECT_THAT(ReadFile(entry.path().string()), Not(HasSubstr("\nservice ")))
          << name << " has a service, and is not linked into this test";
      continue;
    }
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(absl::StrCat("/", file->service(s)->full_name(), "/",
                                       file->service(s)->method(m)->name()));
      }
    }
  }
  return methods;
}

// The roles whose certificates may call each method. None: Weft calls it and
// does not serve it.
const std::map<std::string, std::vector<std::string>>& AccessTable() {
  static const std::vector<std::string> members = {"ps", "trainer", "admin"};
  static const std::vector<std::string> all = {"ps", "trainer", "admin",
                                               "client", "visitor"};
  static const auto& table =
      *new std::map<std::string, std::vector<std::string>>{
          {"/etcdserverpb.KV/Range", {}},
          {"/etcdserverpb.KV/Txn", {}},
          {"/etcdserverpb.Lease/LeaseGrant", {}},
          {"/etcdserverpb.Lease/LeaseKeepAlive", {}},
          {"/etcdserverpb.Lease/LeaseRevoke", {}},
          {"/grpc.health.v1.Health/Check", all},
          {"/grpc.health.v1.Health/Watch", all},
          {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
           {"admin"}},
          // No proto has it: its messages are those of
          // collectives/core/frame.h.
          {"/weft.collectives.v1.Group/Connect", members},
          {"/weft.rendezvous.v1.Coordinator/Announce", members},
          {"/weft.rendezvous.v1.Coordinator/Barrier", members},
          {"/weft.rendezvous.v1.Coordinator/Heartbeat", members},
          {"/weft.rendezvous.v1.Coordinator/Join", members},
          {"/weft.rendezvous.v1.Coordinator/Leave", members},
          {"/weft.rendezvous.v1.Coordinator/ReportExit", members},
          {"/weft.rendezvous.v1.Coordinator/Store", members},
          {"/weft.rendezvous.v1.Coordinator/Watch", members},
          {"/weft.rpc.v1.Worker/Call", all},
          {"/weft.rpc.v1.Worker/Connect", all},
          {"/weft.rpc.v1.Worker/Describe", all},
      };
  return table;
}

TEST_F(SecuredWorker, WorkerWithoutACertificateFailsToJoinAtOnce) {
  Options options;
  options.job = "job";
  options.role = "trainer";
  options.servers = options.trainers = 1;
  options.coordinator = worker_->endpoint().address();
  options.insecure = true;
  options.dump_dir = dir_.path();
  options.join_timeout = absl::Minutes(5);
  const absl::Status status = Worker::Start(options).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "it wants a certificate of its job"));
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kAuth);
}

TEST_F(SecuredWorker, EachMethodOfTheProtosIsForItsRoles) {
  double refused = 0;
  std::vector<std::string> lines;
  for (const std::string& method : MethodsOfAllProtos()) {
    const auto row = AccessTable().find(method);
    ASSERT_NE(row, AccessTable().end()) << method << ": add it to AccessTable";
    for (const std::string& role : kRoles) {
      const std::vector<std::string>& allowed = row->second;
      const absl::Status answer = Call(As(role), method);
      if (allowed.empty()) {
        EXPECT_THAT(answer, StatusIs(absl::StatusCode::kUnimplemented)) << role;
      } else if (std::count(allowed.begin(), allowed.end(), role) > 0) {
        // Its handler has seen that the request is none, or needs none.
        EXPECT_THAT(answer,
                    AnyOf(IsOk(), StatusIs(absl::StatusCode::kInvalidArgument)))
            << method << " " << role;
      } else {
        EXPECT_THAT(answer,
                    StatusIs(absl::StatusCode::kPermissionDenied,
                             absl::StrCat(" has role ", role, "; ", method)));
        EXPECT_EQ(Refused("method"), ++refused) << method << " " << role;
        lines.push_back(absl::StrCat(" what=", method, " why=\"", role, "0 ("));
      }
    }
  }
  for (const std::string& role : kRoles) {
    const std::string method = "/weft.collectives.v1.Group/Connect";
    const auto& members = AccessTable().at(method);
    if (std::count(members.begin(), members.end(), role) > 0) continue;
    EXPECT_THAT(Call(As(role), method),
                StatusIs(absl::StatusCode::kPermissionDenied, method));
    EXPECT_EQ(Refused("method"), ++refused) << role;
  }
  // Each service that a worker has had something to refuse.
  EXPECT_GE(refused, 16);
  // Nothing else is served.
  for (const auto& [method, access] : worker_->endpoint().Access())
    EXPECT_EQ(AccessTable().count(method), 1u) << method;
  for (const std::string& line : lines) EXPECT_THAT(Log(), HasSubstr(line));
}

// Without a certificate of this authority nobody reaches a method.
TEST_F(SecuredWorker, NoMethodIsForAStranger) {
  MakeJob("other");
  const net::Credentials other = As("trainer", "other");
  const std::vector<std::string> methods = MethodsOfAllProtos();
  for (const std::string& method : methods) {
    net::RawPeer nobody(address());
    nobody.ShakeHands(net::RawPeer::Hello());
    nobody.Write(absl::StrCat(
        net::Preface(), net::Frame(net::kHeadersFrame, net::kEndHeaders, 1,
                                   net::HeaderBlock(method))));
    EXPECT_FALSE(nobody.AwaitFrame(net::kSettingsFrame)) << method;
    EXPECT_EQ(nobody.received(), "") << method;
  }
  EXPECT_EQ(Refused("certificate"), methods.size());
  for (const std::string& method : methods) {
    net::RawPeer stranger(address());
    net::RawPeer::Hello hello;
    hello.certificate = other.certificate();
    hello.key = other.key();
    stranger.ShakeHands(hello);
    stranger.Write(net::Preface());
    EXPECT_FALSE(stranger.AwaitFrame(net::kSettingsFrame)) << method;
  }
  EXPECT_EQ(Refused("certificate"), 2 * methods.size());
  EXPECT_THAT(Call(As("trainer"), "/grpc.health.v1.Health/Check", ""), IsOk());
  // Named by its address; what its certificate says is not taken for true.
  const std::string log = Log();
  EXPECT_THAT(log, HasSubstr("127.0.0.1, with a certificate without a name"));
  EXPECT_THAT(log, HasSubstr("127.0.0.1, with a certificate that claims to be "
                             "of weft://job/trainer/0"));
  EXPECT_EQ(log.find("who=weft://"), log.npos);
}

// The table of functions refuses calls that Worker/Call admits.
TEST_F(SecuredWorker, EachFunctionIsForItsRolesInPlainCallsToo) {
  const std::map<std::string, std::vector<std::string>> table = {
      {"weft::worker::ForMembers", {"ps", "trainer", "admin"}},
      {"weft::worker::ForAdmins", {"admin"}},  // by Options::access
      {"weft::worker::ForClientsToo", {"client", "trainer"}},
      {"weft::worker::ReadStatusPage", {"ps", "trainer", "admin"}},
      {"weft::worker::ReadFlightRecording", {"ps", "trainer", "admin"}},
  };
  double refused = 0;
  for (const auto& [function, roles] : table) {
    for (const std::string& role : kRoles) {
      rpc::v1::CallRequest request;
      request.set_function(function);
      if (absl::EndsWith(function, "ReadStatusPage")) {
        request.add_arguments()->set_boolean(true);
      }
      const absl::Status answer = Call(As(role), "/weft.rpc.v1.Worker/Call",
                                       request.SerializeAsString());
      if (std::count(roles.begin(), roles.end(), role) > 0) {
        EXPECT_THAT(answer, IsOk()) << function << " " << role;
      } else {
        EXPECT_THAT(answer, StatusIs(absl::StatusCode::kPermissionDenied,
                                     absl::StrCat("role ", role)));
        EXPECT_EQ(Refused("function"), ++refused);
      }
    }
  }
  EXPECT_EQ(refused, 13);
  EXPECT_THAT(Log(), HasSubstr("kind=function who=visitor0 "
                               "what=weft::worker::ForMembers"));
}

// ------------------------------------------------------------------ secrets
// (S4)

// Every line between the BEGIN and the END of the PEM files below `directory`,
// and the same bytes in hexadecimal.
std::vector<std::string> LinesOfKeysAndCertificates(
    const std::string& directory) {
  std::vector<std::string> lines;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() != ".pem") continue;
    for (absl::string_view line :
         absl::StrSplit(ReadFile(entry.path().string()), '\n')) {
      std::string bytes;
      if (line.size() < 16 || !absl::Base64Unescape(line, &bytes)) continue;
      lines.emplace_back(line);
      lines.push_back(absl::BytesToHexString(bytes));
    }
  }
  return lines;
}

TEST_F(SecuredWorker, NoOutputHasAKeyOrACertificate) {
  MakeJob("other");
  std::string outputs;
  const auto add = [&](absl::string_view text) {
    absl::StrAppend(&outputs, text, "\n");
  };
  // Refused calls, by handshake, role, function and form.
  add(Call(As("visitor"), "/weft.rendezvous.v1.Coordinator/Join").ToString());
  add(Call(As("trainer", "other"), "/grpc.health.v1.Health/Check").ToString());
  add(Call(As("trainer"), "/weft.rpc.v1.Worker/Call").ToString());
  add(Call(As("trainer"), "/weft.rpc.v1.Worker/Connect").ToString());
  {
    net::RawPeer nobody(address());
    nobody.ShakeHands(net::RawPeer::Hello());
    nobody.AwaitEnd();
  }
  // Files that are not what they should be: the key as the certificate, another
  // member's, one that others may read.
  const std::string broken = dir_.Path("other/ps0/");
  const std::string key = ReadFile(broken + "key.pem");
  const auto read = [&] {
    return net::Credentials::FromDirectory(broken).status().ToString();
  };
  std::ofstream(broken + "cert.pem") << key;
  add(read());
  std::ofstream(broken + "cert.pem")
      << ReadFile(dir_.Path("certs/ps0/"
                            "cert.pem"));
  add(read());
  chmod((broken + "key.pem").c_str(), 0644);
  add(read());
  Options wrong = worker_->options();
  wrong.certs = dir_.Path("other");
  add(Worker::Start(wrong).status().ToString());
  // The worker's own metrics.
  add(worker_->telemetry().metrics().Text());
  add(worker_->telemetry().status().RenderJson());
  add(worker_->telemetry().status().RenderText());
  worker_->DumpFlightRecorder();
  int dumps = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".flight") continue;
    add(ReadFile(entry.path().string()));
    ++dumps;
  }
  add(Log());
  EXPECT_GE(dumps, 1);
  EXPECT_THAT(outputs, HasSubstr("refused kind=certificate"));
  EXPECT_THAT(outputs, HasSubstr("weft_net_refused_total"));
  const std::vector<std::string> secrets =
      LinesOfKeysAndCertificates(dir_.path());
  EXPECT_GE(secrets.size(), 2u * 2 * 5 * 3);
  for (const std::string& secret : secrets)
    EXPECT_EQ(outputs.find(secret), outputs.npos) << secret;
  EXPECT_EQ(outputs.find("PRIVATE KEY"), outputs.npos);
}

}  // namespace
}  // namespace weft::worker
