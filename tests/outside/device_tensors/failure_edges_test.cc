// Training on devices that are lost, or whose memory is short, in the middle of
// it: the error says why, and a new device goes on.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/check.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/clip.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/device_tensors/net.h"
#include "weft/tests/outside/device_tensors/throws.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using ::weft::device::testing::SimulatedDevices;
using ::weft::optimizer::Finite;
using ::weft::optimizer::Optimizer;
using ::weft::testing::BytesOf;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;

// --- Failures in the middle. -------------------------------------------------

TEST(Failures, ADeviceLostInTheMiddleOfABackwardPassAndThenANewOne) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Net net;
    const nn::StateDict kept = [&] {
      nn::StateDict copy;
      for (const auto& [name, x] : net.model.StateDict())
        copy[name] = x.Clone();
      return copy;
    }();
    auto devices = std::make_unique<SimulatedDevices>(seed);
    const Device device(devices->context(), 0);
    net.model.To(device);
    auto optimizer = net.MakeOptimizer();
    net.model.Parameters()[2].AddHook([&](Gradient g) {
      devices->runtime().LoseDevice(device.id());
      return g;
    });
    EXPECT_THAT(TrainStep(net, *optimizer, device),
                StatusIs(kUnavailable, "simulated:0"));
    EXPECT_THAT(TrainStep(net, *optimizer, device), StatusIs(kUnavailable));
    optimizer.reset();
    devices.reset();
    // A new model on a new device goes on from what was kept.
    SimulatedDevices others(seed);
    Net next;
    next.model.To(Device(others.context(), 0));
    WEFT_ASSERT_OK(next.model.LoadStateDict(kept));
    const auto again = next.MakeOptimizer();
    WEFT_EXPECT_OK(TrainStep(next, *again, Device(others.context(), 0)));
  }
}

TEST(Failures, AModelOfALostDeviceCannotComeBackAndSaysWhy) {
  SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  Net net;
  net.model.To(device);
  devices.runtime().LoseDevice(device.id());
  EXPECT_THAT(StatusOf([&] { net.model.To(Device::Cpu()); }),
              StatusIs(kUnavailable, "simulated:0"));
  absl::Status loaded;
  Net good;
  EXPECT_THAT(StatusOf([&] {
                loaded = net.model.LoadStateDict(good.model.StateDict());
              }),
              IsOk())
      << "LoadStateDict returns a Status and should not throw";
  EXPECT_FALSE(loaded.ok());
  net.model.ClearGradients();
}

TEST(Failures, AnOptimizerOfALostDeviceReturnsAStatus) {
  SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  Net net;
  net.model.To(device);
  const auto optimizer = net.MakeOptimizer();
  net.Loss(device).Backward();
  devices.runtime().LoseDevice(device.id());
  absl::Status stepped, checked, loaded, clipped;
  EXPECT_THAT(StatusOf([&] { stepped = optimizer->Step(); }), IsOk());
  EXPECT_THAT(stepped, StatusIs(kUnavailable));
  EXPECT_THAT(
      StatusOf([&] {
        checked = optimizer->Check(
            [](const optimizer::Parameter& p) { return p.variable.gradient(); },
            Finite::kRequired);
      }),
      IsOk());
  EXPECT_THAT(checked, StatusIs(kUnavailable));
  Net other;
  const auto from = other.MakeOptimizer();
  EXPECT_THAT(
      StatusOf([&] { loaded = optimizer->LoadStateDict(from->StateDict()); }),
      IsOk());
  EXPECT_THAT(loaded, StatusIs(kUnavailable));
  EXPECT_THAT(StatusOf([&] {
                clipped =
                    optimizer::ClipGradNorm(net.model.Parameters(), 1).status();
              }),
              IsOk());
  EXPECT_THAT(clipped, StatusIs(kUnavailable));
  absl::Status made;
  EXPECT_THAT(StatusOf([&] {
                made = Optimizer::Create({{optimizer::AdamWOptions{0.01},
                                           net.model.NamedParameters()}})
                           .status();
              }),
              IsOk());
  EXPECT_THAT(made, StatusIs(kUnavailable));
}

// Takes all memory that is cached for small blocks, in blocks of 512 bytes, and
// lets the device give no more.
std::vector<Tensor> TakeAll(SimulatedDevices& devices, Device device) {
  devices.runtime().FailAllocations(device.id(), 1 << 30);
  std::vector<Tensor> taken;
  const absl::Status status = StatusOf([&] {
    while (true) taken.push_back(Tensor::Empty({128}, DType::kF32, device));
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  return taken;
}

// With room for ever more blocks a step ends well, or with kResourceExhausted,
// and then one on a fresh model is as if nothing had been.
TEST(Failures, MemoryThatIsShortAnywhereInAStep) {
  Net reference;
  const auto cpu_optimizer = reference.MakeOptimizer();
  WEFT_ASSERT_OK(TrainStep(reference, *cpu_optimizer, Device::Cpu()));
  int failed = 0, went_well = 0;
  for (size_t room = 0; room < 200 && went_well < 3; room += 1 + room / 8) {
    SCOPED_TRACE(room);
    SimulatedDevices devices(room);
    const Device device(devices.context(), 0);
    Net net;
    net.model.To(device);
    const auto optimizer = net.MakeOptimizer();
    std::vector<Tensor> taken = TakeAll(devices, device);
    taken.resize(taken.size() - std::min(room, taken.size()));
    const absl::Status status = TrainStep(net, *optimizer, device);
    if (status.ok()) {
      ++went_well;
      EXPECT_TRUE(net.Bits() == reference.Bits());
      continue;
    }
    ++failed;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    taken.clear();
    devices.runtime().FailAllocations(device.id(), 0);
    Net fresh;
    WEFT_ASSERT_OK(net.model.LoadStateDict(fresh.model.StateDict()));
    net.noise.Seek(0);
    WEFT_ASSERT_OK(TrainStep(net, *net.MakeOptimizer(), device));
    EXPECT_TRUE(net.Bits() == reference.Bits());
  }
  EXPECT_GT(failed, 3);
  EXPECT_EQ(went_well, 3);
}

// The weights and what an optimizer keeps for them.
std::string AllBits(const Net& net, const Optimizer& optimizer) {
  std::string bits = net.Bits();
  for (const auto& [name, tensor] : optimizer.StateDict()) {
    bits += name + BytesOf(tensor);
  }
  return bits;
}

// An update that lacks memory leaves weights and state all old or all new.
TEST(Failures, MemoryThatIsShortInAnUpdateChangesAllOrNothing) {
  int failed = 0, thrown = 0;
  for (size_t room = 0; room < 24; ++room) {
    SCOPED_TRACE(room);
    SimulatedDevices devices(room);
    const Device device(devices.context(), 0);
    Net net;
    net.model.To(device);
    const auto optimizer = net.MakeOptimizer();
    WEFT_ASSERT_OK(TrainStep(net, *optimizer, device));
    // A graph that holds the weights, so that the update must copy them.
    const Variable held = net.Loss(device);
    const std::string before = AllBits(net, *optimizer);
    std::vector<Tensor> taken = TakeAll(devices, device);
    taken.resize(taken.size() - std::min(room, taken.size()));
    absl::Status status;
    const absl::Status raised = StatusOf([&] { status = optimizer->Step(); });
    if (!raised.ok()) {
      ++thrown;
      status = raised;
    }
    taken.clear();
    devices.runtime().FailAllocations(device.id(), 0);
    if (status.ok()) {
      EXPECT_FALSE(AllBits(net, *optimizer) == before);
      continue;
    }
    ++failed;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_TRUE(AllBits(net, *optimizer) == before)
        << "a part of the weights or of the state has changed";
    WEFT_EXPECT_OK(optimizer->Step());
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(thrown, 0) << "Step returns a Status and should not throw";
}

TEST(Failures, AKernelThatFailsInABackwardPassIsTheReasonFromThenOn) {
  SimulatedDevices devices(3, 2);
  const Device device(devices.context(), 0);
  Net net;
  net.model.To(device);
  const Variable loss = net.Loss(device);
  loss.value().item<float>();
  devices.runtime().FailKernel(device.id(), "CrossEntropyBackward");
  absl::Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) {
    status = StatusOf([&] {
      if (i == 0) loss.Backward();
      net.model.Parameters()[0].grad().To(Device::Cpu());
    });
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, "simulated:0"));
  EXPECT_THAT(StatusOf([&] { net.Loss(device); }),
              StatusIs(absl::StatusCode::kInternal, "CrossEntropyBackward"));
  EXPECT_THAT(StatusOf([&] {
                Net next;
                const Device other(devices.context(), 1);
                next.model.To(other);
                next.Loss(other).Backward();
              }),
              IsOk());
}

TEST(Failures, AMoveThatEndsHalfwayCanBeRepeated) {
  for (size_t room = 0; room < 12; ++room) {
    SCOPED_TRACE(room);
    SimulatedDevices devices(room);
    const Device device(devices.context(), 0);
    Net net;
    net.Loss(Device::Cpu()).Backward();
    net.noise.Seek(0);
    const std::string before = net.Bits();
    // So that there is a segment to take all of.
    const Tensor first = Tensor::Zeros({1}, DType::kF32, device);
    std::vector<Tensor> taken = TakeAll(devices, device);
    taken.resize(taken.size() - std::min(room, taken.size()));
    EXPECT_THAT(StatusOf([&] { net.model.To(device); }),
                StatusIs(absl::StatusCode::kResourceExhausted));
    for (const Variable& p : net.model.Parameters()) {
      EXPECT_EQ(p.value().device(), p.gradient().device());
    }
    taken.clear();
    devices.runtime().FailAllocations(device.id(), 0);
    EXPECT_TRUE(net.Bits() == before);
    EXPECT_THAT(StatusOf([&] { net.model.To(device); }), IsOk());
    EXPECT_TRUE(net.Bits() == before);
    EXPECT_THAT(StatusOf([&] { net.Loss(device).Backward(); }), IsOk());
  }
}

TEST(Threads, EachTrainsAModelOfItsOwnOnOneDevice) {
  Net reference;
  const auto cpu_optimizer = reference.MakeOptimizer();
  for (int i = 0; i < 4; ++i) {
    WEFT_ASSERT_OK(TrainStep(reference, *cpu_optimizer, Device::Cpu()));
  }
  SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  std::vector<std::string> bits(5);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < bits.size(); ++t) {
    threads.emplace_back([&, t] {
      const device::Stream stream =
          *devices.runtime().CreateStream(device.id());
      const device::StreamScope scope(stream);
      Net net;
      net.model.To(device);
      const auto optimizer = net.MakeOptimizer();
      for (int i = 0; i < 4; ++i) {
        WEFT_EXPECT_OK(TrainStep(net, *optimizer, device));
      }
      bits[t] = net.Bits();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : bits) {
    EXPECT_TRUE(each == reference.Bits());
  }
}

}  // namespace
}  // namespace weft::outside
