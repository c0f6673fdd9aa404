// Which functions the roles of certificates may call.

#include <atomic>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/grpc_agents.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/grpc_transport.h"

namespace weft::rpc {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// ------------------------------------------------------- agents over gRPC

int64_t ForClients(int64_t x) { return x; }
WEFT_RPC(ForClients);
WEFT_RPC_ROLES(ForClients, "client", "trainer");

int64_t ForAdmin(int64_t x) { return x; }
WEFT_RPC_INLINE(ForAdmin);
WEFT_RPC_ROLES(ForAdmin, "admin");

std::string RoleOfPeer(CallContext& context) { return context.peer().role; }
WEFT_RPC(RoleOfPeer);

class Diary {
 public:
  int64_t Read() const { return pages_; }
  void Burn() { pages_ = 0; }

 private:
  std::atomic<int64_t> pages_{7};
};
WEFT_RPC_CLASS(Diary);
WEFT_RPC_CLASS_ROLES(Diary, "client", "admin");
WEFT_RPC_METHOD(Diary, Read);
WEFT_RPC_METHOD(Diary, Burn);
WEFT_RPC_METHOD_ROLES(Diary, Burn, "admin");

absl::Status PagesForClients(Writer<int64_t> out) { return out.Write(1); }
WEFT_RPC_STREAM(PagesForClients);
WEFT_RPC_ROLES(PagesForClients, "client");

// ----------------------------------------------------- functions and roles

// A server, ps0, and one caller of each role, with certificates.
class SecureAgents : public ::testing::Test {
 protected:
  SecureAgents() {
    authority_ = *net::MakeAuthority("job", Now());
    telemetry::Telemetry::Options log;
    log.log_output = &log_;
    telemetry_ = std::make_unique<telemetry::Telemetry>(log);
  }

  static net::Validity Now() {
    return {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)};
  }
  Node& Add(const std::string& role, int rank = 0) {
    const net::MemberCertificate made = *net::MakeMemberCertificate(
        authority_, {"job", role, rank}, {"127.0.0.1"}, Now());
    nodes_.push_back(std::make_unique<Node>(*net::Credentials::FromPem(
        authority_.certificate, made.certificate, made.key)));
    return *nodes_.back();
  }
  std::unique_ptr<Agent> MakeAgent(Node& node, const Worker& self,
                                   std::vector<AccessRule> access = {},
                                   const Registry* registry = nullptr) {
    AgentOptions options;
    options.registry = registry;
    options.job = "job";
    options.name = self.name;
    options.key = self.key;
    options.transport = &node.transport();
    options.directory = &directory_;
    options.telemetry = telemetry_.get();
    options.access = std::move(access);
    auto agent = Agent::Create(options);
    WEFT_CHECK(agent.ok()) << agent.status().ToString();
    return *std::move(agent);
  }

  std::ostringstream log_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  net::Authority authority_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(SecureAgents, AFunctionKnowsTheRoleOfItsCaller) {  // F44
  Node& server = Add("ps");
  const Worker ps0 = server.worker(0);
  directory_.Put(ps0);
  const auto ps = MakeAgent(server, ps0);
  Node& node = Add("trainer", 7);
  Worker self = node.worker(1);
  self.role = "admin";  // its certificate decides
  const auto trainer = MakeAgent(node, self);
  EXPECT_EQ(*Call(trainer->To("ps0"), RoleOfPeer), "trainer");
}

TEST_F(SecureAgents, EachRoleMayCallItsFunctions) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto ps =
      MakeAgent(server, server.worker(0),
                {{internal::NameOf<&Echo>(), net::Roles::Only({"visitor"})}});
  struct Row {
    std::string role;
    bool twice, for_clients, for_admin, echo;
  };
  // Twice is as registered, without a word on roles; Echo as the options say.
  const std::vector<Row> table = {
      {"ps", true, false, false, false},
      {"trainer", true, true, false, false},
      {"admin", true, false, true, false},
      {"client", false, true, false, false},
      {"visitor", false, false, false, true},
  };
  uint32_t id = 1;
  int refused = 0;
  for (const Row& row : table) {
    Node& node = Add(row.role, 7);
    const Worker self = node.worker(id++);
    const auto caller = MakeAgent(node, self);
    const auto expect = [&](const absl::Status& got, bool allowed,
                            const std::string& function) {
      if (allowed) {
        EXPECT_THAT(got, IsOk());
        return;
      }
      ++refused;
      EXPECT_THAT(got, StatusIs(absl::StatusCode::kPermissionDenied,
                                absl::StrCat("ps0: ", row.role, "7 has role ",
                                             row.role)));
      EXPECT_THAT(got, StatusIs(absl::StatusCode::kPermissionDenied, function));
    };
    const Target to = caller->To("ps0", absl::Seconds(30));
    expect(Call(to, Twice, 1).status(), row.twice, "Twice is for role ps");
    expect(Call(to, ForClients, 1).status(), row.for_clients,
           "ForClients is for role client, trainer");
    expect(Call(to, ForAdmin, 1).status(), row.for_admin,
           "ForAdmin is for role admin");
    expect(Call(to, Echo, std::vector<float>{1}).status(), row.echo,
           "Echo is for role visitor");
  }
  EXPECT_EQ(telemetry_->metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "function"}})
                .Value(),
            refused);
  EXPECT_THAT(log_.str(), ::testing::HasSubstr("kind=function who=client7"));
}

TEST_F(SecureAgents, MakerOfAnObjectOrStreamMayUseAndEndIt) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto visitors = net::Roles::Only({"visitor"});
  const std::string total = absl::StrCat(internal::NameOfType<Total>(), "::*");
  const auto ps = MakeAgent(server, server.worker(0),
                            {{total, visitors},
                             {internal::NameOf<&Rows>(), visitors},
                             {"*", net::Roles::Only({"admin"})}});
  Node& node = Add("visitor", 7);
  const auto caller = MakeAgent(node, node.worker(1));
  const Target to = caller->To("ps0", absl::Seconds(30));
  EXPECT_THAT(Call(to, Twice, 1).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, "role admin"));
  const auto made = Make<Total>(to, 5);
  ASSERT_THAT(made.status(), IsOk());
  EXPECT_EQ(*Call(*made, &Total::Add, 3), 8);
  EXPECT_THAT(Release(*made), IsOk());
  Reader<Tensor> reader = OpenStream(to, Rows, 3);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(reader.Next().status(), IsOk());
  EXPECT_FALSE(reader.Next()->has_value());
  // A call of another of the same id reaches no object of the visitor.
  Node& other = Add("admin", 8);
  const auto admin = MakeAgent(other, other.worker(2));
  const auto theirs = Make<Total>(to, 5);
  ASSERT_THAT(theirs.status(), IsOk());
  EXPECT_THAT(
      Release(Handle<Total>(admin->To("ps0", absl::Seconds(30)), theirs->id())),
      StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(*Call(*theirs, &Total::Add, 3), 8);
}

TEST_F(SecureAgents, ClassesMethodsAndStreamsHaveRolesToo) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto ps = MakeAgent(server, server.worker(0));
  struct Row {
    std::string role;
    bool make, burn, pages;
  };
  const std::vector<Row> table = {{"trainer", false, false, false},
                                  {"client", true, false, true},
                                  {"admin", true, true, false}};
  const auto status = [](bool allowed) {
    return allowed ? absl::StatusCode::kOk
                   : absl::StatusCode::kPermissionDenied;
  };
  uint32_t id = 1;
  for (const Row& row : table) {
    Node& node = Add(row.role, 7);
    const auto caller = MakeAgent(node, node.worker(id++));
    const Target to = caller->To("ps0", absl::Seconds(30));
    const auto diary = Make<Diary>(to);
    EXPECT_EQ(diary.status().code(), status(row.make)) << row.role;
    if (diary.ok()) {
      EXPECT_EQ(*Call(*diary, &Diary::Read), 7);  // as the class is
      EXPECT_EQ(Call(*diary, &Diary::Burn).code(), status(row.burn))
          << row.role;
      EXPECT_EQ(*Call(*diary, &Diary::Read), row.burn ? 0 : 7);
    }
    EXPECT_EQ(OpenStream(to, PagesForClients).Next().status().code(),
              status(row.pages))
        << row.role;
  }
}

TEST_F(SecureAgents, WelcomeListsOnlyTheFunctionsOfTheRole) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto ps = MakeAgent(server, server.worker(0));
  Registry few;  // differs, so the other's functions are sent
  few.Add(internal::Describe<&Twice>(RunsOn::kExecutor));
  few.Add(internal::Describe<&ForClients>(RunsOn::kExecutor));
  Node& node = Add("client", 7);
  const auto client = MakeAgent(node, node.worker(1), {}, &few);
  const Target to = client->To("ps0", absl::Seconds(30));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*Call(to, ForClients, 4), 4);
    EXPECT_THAT(Call(to, Twice, 1).status(),
                StatusIs(absl::StatusCode::kUnimplemented, "for this caller"));
  }
}

TEST_F(SecureAgents, KeyMustBelongToTheNameInTheDirectory) {
  Node& server = Add("ps");
  Node& owner = Add("trainer", 1);
  Node& thief = Add("trainer", 2);
  directory_.Put(server.worker(0));
  auto ps = MakeAgent(server, server.worker(0));
  // It comes first, with a key that is not its own.
  Worker stolen = thief.worker(1);
  auto early = MakeAgent(thief, stolen);
  EXPECT_THAT(Call(early->To("ps0"), Twice, 1), IsOk());
  // Once the directory knows whose it is, the owner takes it.
  directory_.Put(owner.worker(1));
  const auto agent = MakeAgent(owner, owner.worker(1));
  EXPECT_THAT(Call(agent->To("ps0"), Twice, 1), IsOk());
  early.reset();
  const auto late = MakeAgent(thief, stolen);
  EXPECT_THAT(Call(late->To("ps0"), Twice, 1),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "is of trainer1, not of trainer2"));
  // And nobody is served under a name that is not in his certificate.
  Worker other = thief.worker(3);
  other.name = "trainer1";
  const auto liar = MakeAgent(thief, other);
  EXPECT_THAT(Call(liar->To("ps0"), Twice, 1),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "the certificate is of trainer2"));
  EXPECT_EQ(telemetry_->metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "name"}})
                .Value(),
            2);
  ps.reset();  // nobody writes to the log any more
  EXPECT_THAT(
      log_.str(),
      HasSubstr("refused kind=name who=trainer1 what=\"to call\" why="));
}

}  // namespace
}  // namespace weft::rpc
