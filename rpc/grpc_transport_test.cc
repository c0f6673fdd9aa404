#include "weft/rpc/grpc_transport.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/transport_conformance.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// One process's part: a loop, an endpoint at a socket, a transport.
class Node {
 public:
  Node(const TempDir& directory, const std::string& name) : name_(name) {
    auto loop = net::Loop::Create();
    WEFT_CHECK(loop.ok()) << loop.status().ToString();
    loop_ = *std::move(loop);
    net::EndpointOptions options;
    options.name = name;
    options.listen = absl::StrCat("unix:", directory.path(), "/", name);
    auto endpoint = net::Endpoint::Open(*loop_, options);
    WEFT_CHECK(endpoint.ok()) << endpoint.status().ToString();
    endpoint_ = *std::move(endpoint);
    transport_ = MakeGrpcTransport(*loop_, *endpoint_);
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  Transport& transport() { return *transport_; }
  Worker worker(uint32_t id) const {
    return {name_, {id, 1}, endpoint_->address()};
  }
  void Drop() { endpoint_.reset(); }

 private:
  const std::string name_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<Transport> transport_;
};

class GrpcPair final : public TransportPair {
 public:
  Transport& a() override { return a_.transport(); }
  Transport& b() override { return b_.transport(); }
  Worker worker_b() const override { return b_.worker(1); }

 private:
  TempDir directory_;
  Node a_{directory_, "a"};
  Node b_{directory_, "b"};
};

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformance, ::testing::Values([] {
                           return std::make_unique<GrpcPair>();
                         }));

// ------------------------------------------------------- agents over gRPC

int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

std::vector<float> Echo(std::vector<float> x) { return x; }
WEFT_RPC_INLINE(Echo);

absl::Status Stay(CallContext& context) {
  Promise<void> stopped;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status& why) { stopped.Set(why); });
  return stopped.future().Wait(absl::Seconds(60));
}
WEFT_RPC(Stay);

class GrpcAgents : public ::testing::Test {
 protected:
  GrpcAgents() {
    directory_.Put(a_.worker(0));
    directory_.Put(b_.worker(1));
    agent_a_ = Make(a_, "a", 0);
    agent_b_ = Make(b_, "b", 1);
  }

  std::unique_ptr<Agent> Make(Node& node, const std::string& name,
                              uint32_t id) {
    AgentOptions options;
    options.job = "job";
    options.name = name;
    options.key = WorkerKey{id, 1};
    options.transport = &node.transport();
    options.directory = &directory_;
    options.give_up_after = absl::Milliseconds(500);
    auto agent = Agent::Create(options);
    WEFT_CHECK(agent.ok()) << agent.status().ToString();
    return *std::move(agent);
  }

  TempDir temp_;
  FixedDirectory directory_;
  Node a_{temp_, "a"};
  Node b_{temp_, "b"};
  std::unique_ptr<Agent> agent_a_;
  std::unique_ptr<Agent> agent_b_;
};

TEST_F(GrpcAgents, CallBothWays) {
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(*Call(agent_b_->To("a"), Twice, 5), 10);
}

TEST_F(GrpcAgents, GatherManyCallsAndPieceLargeOnes) {
  const Target b = agent_a_->To("b");
  const std::vector<float> large(1 << 20, 1.5f);
  Future<std::vector<float>> echoed = CallAsync(b, Echo, large);
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 1000; ++i) calls.push_back(CallAsync(b, Twice, i));
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(*calls[i].Wait(absl::Seconds(30)), 2 * i);
  }
  EXPECT_EQ(*echoed.Wait(absl::Seconds(30)), large);
}

TEST_F(GrpcAgents, ALostPeerEndsItsCallsInTime) {
  Future<void> call = CallAsync(agent_a_->To("b"), Stay);
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 1), 2);
  agent_b_.reset();
  b_.Drop();
  const absl::Status status = call.Wait(absl::Seconds(30));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "b"));
  EXPECT_TRUE(OutcomeUnknown(status));
  EXPECT_THAT(Call(agent_a_->To("b"), Twice, 1),
              StatusIs(absl::StatusCode::kUnavailable, "could not be reached"));
}

}  // namespace
}  // namespace weft::rpc
