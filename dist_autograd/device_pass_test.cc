// Passes and references across devices, under 20 orders of what is not ordered:
// two workers with two simulated devices each.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/rpc/class.h"
#include "weft/rref/rref.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft::dist_autograd {
namespace {

using ::testing::Each;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Some weights at a worker, where it got them.
class Weights {
 public:
  explicit Weights(const Tensor& w) : w_(w, /*requires_grad=*/true) {}
  Variable Scale(const Variable& x) { return Mul(x, w_); }
  Tensor Value() { return w_.value(); }
  std::string Device() { return Name(w_.value().device()); }
  Tensor Gradient(rpc::CallContext& call, const ContextId& id) {
    return GradientOf(call, id, w_).value().dense();
  }

 private:
  Variable w_;
};
WEFT_RPC_CLASS(Weights, Tensor);
WEFT_RPC_METHOD(Weights, Scale);
WEFT_RPC_METHOD(Weights, Value);
WEFT_RPC_METHOD(Weights, Device);
WEFT_RPC_METHOD(Weights, Gradient);

Variable Cube(const Variable& x) { return Mul(Mul(x, x), x); }
WEFT_RPC(Cube);

// Adds two values that it got in one message.
Variable SumOfBoth(const Variable& x, const Variable& y) { return Add(x, y); }
WEFT_RPC(SumOfBoth);

class DevicePass : public PassFixture,
                   public ::testing::WithParamInterface<int> {
 protected:
  DevicePass() : PassFixture(2) {
    rpc::DeviceOptions options;
    options.devices = {on(0), on(1)};
    options.device_maps["w1"] = {{on(0), device::Device::Simulated(1)},
                                 {on(1), device::Device::Simulated(0)}};
    EXPECT_THAT(ranks_[0].SetDevices(options), IsOk());
    options = {};
    options.devices = {Device(theirs_.context(), 0),
                       Device(theirs_.context(), 1)};
    EXPECT_THAT(ranks_[1].SetDevices(options), IsOk());
  }

  Device on(int index) { return Device(own_.context(), index); }
  Variable Leaf(double value, int index) {
    return Variable(Tensor::Full({500}, value, DType::kF32, on(index)),
                    /*requires_grad=*/true);
  }

  SimulatedDevices own_{static_cast<uint64_t>(GetParam()) * 2, 2};
  SimulatedDevices theirs_{static_cast<uint64_t>(GetParam()) * 2 + 1, 2};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DevicePass, ::testing::Range(0, 20));

// d/dx of sum((x^3 + y) * y * w): on each device that of its value.
TEST_P(DevicePass, GradientsArriveOnTheDeviceOfTheForwardTensor) {
  const Variable x = Leaf(2, 0);
  const Variable y = Leaf(3, 1);
  const auto weights =
      rref::Make<Weights>(To(1), Tensor::Full({500}, 5, DType::kF32, on(1)));
  ASSERT_THAT(weights, IsOk());
  EXPECT_EQ(rref::Call(*weights, &Weights::Device).value(), "simulated:0");
  const Scope scope(*contexts_[0]);
  const auto cube = scope.Call(To(1), Cube, x);
  ASSERT_THAT(cube, IsOk());
  EXPECT_EQ(cube->value().device(), on(0));
  const auto scaled = scope.Call(*weights, &Weights::Scale, y);
  ASSERT_THAT(scaled, IsOk());
  EXPECT_EQ(scaled->value().device(), on(1));
  const Variable loss_0 = Sum(*cube);
  const Variable loss_1 = Sum(*scaled);
  ASSERT_THAT(scope.Backward({loss_0, loss_1}), IsOk());
  const Gradient of_x = scope.GradientOf(x);
  const Gradient of_y = scope.GradientOf(y);
  ASSERT_TRUE(of_x.defined() && of_y.defined());
  EXPECT_EQ(of_x.device(), on(0));
  EXPECT_EQ(of_y.device(), on(1));
  EXPECT_THAT(of_x.dense().ToVector<float>(), Each(12));
  EXPECT_THAT(of_y.dense().ToVector<float>(), Each(5));
  const auto of_w = rref::Call(*weights, &Weights::Gradient, scope.id());
  ASSERT_THAT(of_w, IsOk());
  EXPECT_EQ(of_w->device(), on(1));
  EXPECT_THAT(of_w->ToVector<float>(), Each(3));
}

// Two messages of one value: their gradients meet on its device.
TEST_P(DevicePass, GradientsOfTwoCallsAddUpThere) {
  const Variable x = Leaf(2, 0);
  const Scope scope(*contexts_[0]);
  const Variable a = scope.Call(To(1), Cube, x).value();
  const Variable b = scope.Call(To(1), SumOfBoth, x, a).value();
  ASSERT_THAT(scope.Backward(Sum(b)), IsOk());
  EXPECT_EQ(scope.GradientOf(x).device(), on(0));
  EXPECT_THAT(scope.GradientOf(x).dense().ToVector<float>(), Each(13));
}

TEST_P(DevicePass, FetchedValuesLandWhereTheMapSays) {
  const auto weights =
      rref::Make<Weights>(To(1), Tensor::Full({500}, 5, DType::kF32, on(0)));
  ASSERT_THAT(weights, IsOk());
  const auto value = rref::Call(*weights, &Weights::Value);
  ASSERT_THAT(value, IsOk());
  EXPECT_EQ(value->device(), on(0));
  const auto kept = rref::Remote(To(1), Cube, Variable(*value));
  ASSERT_THAT(kept, IsOk());
  const auto cube = rref::Fetch(*kept);
  ASSERT_THAT(cube, IsOk());
  EXPECT_EQ(cube->value().device(), on(0));
  EXPECT_THAT(cube->value().ToVector<float>(), Each(125));
}

// At the worker to which a gradient goes: the pass ends everywhere, by its
// name.
TEST_P(DevicePass, DeviceThatFailsInABackwardEndsThePass) {
  const Variable x = Leaf(2, 0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Cube, x).value();
  const Variable loss = Sum(y);
  ASSERT_THAT(theirs_.runtime().Synchronize(device::Device::Simulated(1),
                                            testing::kPatience),
              IsOk());
  theirs_.runtime().LoseDevice(device::Device::Simulated(1));
  EXPECT_THAT(scope.Backward(loss),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:1"));
  EXPECT_FALSE(scope.GradientOf(x).defined());
}

}  // namespace
}  // namespace weft::dist_autograd
