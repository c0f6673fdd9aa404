// Tensors of devices in calls over gRPC, within a host's shared memory and
// without.

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/rpc/testing/grpc_agents.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Each;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;

Tensor Tripled(const Tensor& x) { return Mul(x, 3.0); }
WEFT_RPC(Tripled);
std::string WhereOf(const Tensor& x) { return Name(x.device()); }
WEFT_RPC(WhereOf);

TEST_F(GrpcAgents, TensorsOfDevicesComeAndGo) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedDevices from(2 * seed), to(2 * seed + 1);
    const Device device(from.context(), 0);
    // Another incarnation of each, for other devices; one agent at a time
    // accepts the connections of a transport.
    agent_a_.reset();
    agent_b_.reset();
    agent_a_ = MakeAgent(a_, "a", 0, seed + 2);
    agent_b_ = MakeAgent(b_, "b", 1, seed + 2);
    directory_.Put({"a", {0, seed + 2}, a_.address()});
    directory_.Put({"b", {1, seed + 2}, b_.address()});
    DeviceOptions options;
    options.devices = {device};
    options.device_maps["b"] = {{device, device::Device::Simulated(0)}};
    ASSERT_THAT(agent_a_->SetDevices(options), IsOk());
    options = {};
    options.devices = {Device(to.context(), 0)};
    ASSERT_THAT(agent_b_->SetDevices(options), IsOk());
    EXPECT_THAT(Call(agent_a_->To("b"), WhereOf,
                     Tensor::Ones({3}, DType::kF32, device)),
                testing::IsOkAndHolds("simulated:0"));
    std::vector<Future<Tensor>> results;
    // From what is copied into a message to what passes in pieces.
    const std::vector<int64_t> counts = {1, 1000, 100'000, 1'000'000};
    for (const int64_t count : counts) {
      const Tensor x = Tensor::Full({count}, 2, DType::kF32, device);
      results.push_back(CallAsync(agent_a_->To("b"), Tripled, x));
      x.Fill(-1);
    }
    for (auto& result : results) {
      const auto y = result.Wait(testing::kPatience);
      ASSERT_THAT(y, IsOk()) << "seed " << seed;
      EXPECT_EQ(y->device(), device);
      EXPECT_THAT(Sum(*y).item<float>() / y->numel(), 6) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace weft::rpc
