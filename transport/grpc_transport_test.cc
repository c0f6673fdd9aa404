// gRPC transports conform: with rings at both ends, at one and at none, and
// over TCP.

#include "weft/transport/grpc_transport.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/testing/transport_conformance.h"

namespace weft::transport {
namespace {

using ::weft::testing::TempDir;

// One process's part: a loop, an endpoint at a socket, a transport.
class Node {
 public:
  Node(const TempDir& directory, const std::string& name, int memories)
      : name_(name), loop_(*net::Loop::Create(net::LoopOptions())) {
    net::EndpointOptions options;
    options.name = name;
    options.listen = absl::StrCat("unix:", directory.path(), "/", name);
    options.probe_every = absl::ZeroDuration();
    endpoint_ = *net::Endpoint::Open(*loop_, options);
    GrpcTransportOptions transport;
    transport.max_shared_memories = memories;
    transport_ = MakeGrpcTransport(*loop_, *endpoint_, transport);
    RegisterTestPurposes(*transport_);
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  Transport& transport() { return *transport_; }
  Destination destination() const {
    return {name_, endpoint_->address(), transport_->memory_socket()};
  }

 private:
  const std::string name_;
  const std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<Transport> transport_;
};

class GrpcPair final : public TransportPair {
 public:
  GrpcPair(int memories_a, int memories_b)
      : a_(directory_, "a", memories_a), b_(directory_, "b", memories_b) {}
  Transport& a() override { return a_.transport(); }
  Transport& b() override { return b_.transport(); }
  Destination b_destination() const override { return b_.destination(); }

 private:
  TempDir directory_;
  Node a_;
  Node b_;
};

MakeTransportPair Pair(int memories_a, int memories_b) {
  return [=] { return std::make_unique<GrpcPair>(memories_a, memories_b); };
}

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformance,
                         ::testing::Values(Pair(64, 64)));
INSTANTIATE_TEST_SUITE_P(GrpcWithoutSharedMemory, TransportConformance,
                         ::testing::Values(Pair(0, 0), Pair(64, 0),
                                           Pair(0, 64)));

}  // namespace
}  // namespace weft::transport
