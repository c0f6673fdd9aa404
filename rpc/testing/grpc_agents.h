// Agents over gRPC, and what they can do.

#ifndef WEFT_RPC_TESTING_GRPC_AGENTS_H_
#define WEFT_RPC_TESTING_GRPC_AGENTS_H_

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/executor.h"
#include "weft/net/endpoint.h"
#include "weft/net/tls/credentials.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/stream.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/grpc_transport.h"

namespace weft::rpc {

// One process's part: a loop, an endpoint at a socket, a transport.
class Node {
 public:
  Node(const ::weft::testing::TempDir& directory, const std::string& name,
       int memories = 64)
      : Node(absl::StrCat("unix:", directory.path(), "/", name), name,
             memories) {}
  // By TCP, as who the certificate says.
  explicit Node(net::Credentials credentials)
      : Node("127.0.0.1:0", credentials.identity()->Name(), 0,
             net::LoopOptions{credentials}) {}
  Node(const std::string& listen, const std::string& name, int memories,
       net::LoopOptions loop_options = {})
      : name_(name) {
    auto loop = net::Loop::Create(std::move(loop_options));
    WEFT_CHECK(loop.ok()) << loop.status().ToString();
    loop_ = *std::move(loop);
    net::EndpointOptions options;
    options.name = name;
    options.listen = listen;
    // A probe's connection would count among what calls leave.
    options.probe_every = absl::ZeroDuration();
    auto endpoint = net::Endpoint::Open(*loop_, options);
    WEFT_CHECK(endpoint.ok()) << endpoint.status().ToString();
    endpoint_ = *std::move(endpoint);
    transport::GrpcTransportOptions transport_options;
    transport_options.max_shared_memories = memories;
    transport_ =
        transport::MakeGrpcTransport(*loop_, *endpoint_, transport_options);
    transport_->Register(ConnectionPurpose());
    RegisterOther();
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  transport::Transport& transport() { return *transport_; }
  net::Loop& loop() { return *loop_; }
  const std::string& address() const { return endpoint_->address(); }
  Worker worker(uint32_t id) const {
    return {name_, {id, 1}, endpoint_->address()};
  }
  transport::Destination destination() const {
    return {name_, endpoint_->address()};
  }
  void Drop() { endpoint_.reset(); }

 private:
  // A service on the same port that is independent of calls.
  void RegisterOther() {
    endpoint_->RegisterUnary("/test.Other/Echo", [](net::IncomingCall call) {
      call.Reply(call.TakeRequest());
    });
    endpoint_->RegisterUnary("/test.Other/Never", [this](net::IncomingCall c) {
      unanswered_.push_back(std::move(c));
    });
  }

  const std::string name_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<transport::Transport> transport_;
  std::vector<net::IncomingCall> unanswered_;
};

inline int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

inline std::vector<float> Echo(std::vector<float> x) { return x; }
WEFT_RPC_INLINE(Echo);

inline absl::StatusOr<int64_t> PingPong(CallContext& context, std::string other,
                                        int64_t depth) {
  if (depth == 0) return 0;
  WEFT_ASSIGN_OR_RETURN(
      const int64_t below,
      Call(context.To(other), PingPong, context.agent().name(), depth - 1));
  return below + 1;
}
WEFT_RPC(PingPong);

class Total {
 public:
  explicit Total(int64_t start) : sum_(start) {}
  int64_t Add(int64_t x) { return sum_ += x; }

 private:
  std::atomic<int64_t> sum_;
};
WEFT_RPC_CLASS(Total, int64_t);
WEFT_RPC_METHOD(Total, Add);

inline absl::Status Rows(Writer<Tensor> out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    WEFT_RETURN_IF_ERROR(
        out.Write(Tensor::Full({4096}, static_cast<double>(i))));
  }
  return absl::OkStatus();
}
WEFT_RPC_STREAM(Rows);

class GrpcAgents : public ::testing::Test {
 protected:
  explicit GrpcAgents(int max_threads = 256) : max_threads_(max_threads) {
    directory_.Put(a_.worker(0));
    directory_.Put(b_.worker(1));
    agent_a_ = MakeAgent(a_, "a", 0);
    agent_b_ = MakeAgent(b_, "b", 1);
  }

  std::unique_ptr<Agent> MakeAgent(Node& node, const std::string& name,
                                   uint32_t id, uint64_t epoch = 1,
                                   Executor* executor = nullptr) {
    AgentOptions options;
    options.job = "job";
    options.name = name;
    options.key = WorkerKey{id, epoch};
    options.transport = &node.transport();
    options.directory = &directory_;
    options.executor = executor;
    options.threads = 4;
    options.max_threads = max_threads_;
    options.give_up_after = give_up_after_;
    auto agent = Agent::Create(options);
    WEFT_CHECK(agent.ok()) << agent.status().ToString();
    return *std::move(agent);
  }

  // For tests that wait for it. They connect under it first.
  void GiveUpSoon() {
    give_up_after_ = absl::Seconds(4);
    agent_a_ = MakeAgent(a_, "a", 0, 2);
  }

  // From a and b in turn, through ten nested calls.
  std::vector<Future<int64_t>> StartTwelveChains(absl::Duration timeout) {
    std::vector<Future<int64_t>> chains;
    for (int i = 0; i < 12; ++i) {
      chains.push_back(
          i % 2 == 0
              ? CallAsync(agent_a_->To("b", timeout), PingPong, "a", 10)
              : CallAsync(agent_b_->To("a", timeout), PingPong, "b", 10));
    }
    return chains;
  }

  const int max_threads_;
  absl::Duration give_up_after_ = absl::Seconds(30);
  ::weft::testing::TempDir temp_;
  FixedDirectory directory_;
  Node a_{temp_, "a"};
  Node b_{temp_, "b"};
  std::unique_ptr<Agent> agent_a_;
  std::unique_ptr<Agent> agent_b_;
};

inline int CountDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_GRPC_AGENTS_H_
