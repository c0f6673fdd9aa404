// Models on devices as a user who guesses would train them: moved twice, late,
// frozen, tied; gradients, seeds and hooks of another device; recomputation,
// dropout, sparse gradients, updates.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
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

// --- Module::To. -------------------------------------------------------------

TEST(ModuleTo, ThereTwiceAndBackTrainsAsOnTheCpu) {
  Net on_cpu;
  const auto cpu_optimizer = on_cpu.MakeOptimizer();
  for (int i = 0; i < 3; ++i) {
    WEFT_ASSERT_OK(TrainStep(on_cpu, *cpu_optimizer, Device::Cpu()));
  }
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SimulatedDevices devices(seed, 2);
    const Device device(devices.context(), 1);
    Net net;
    net.model.To(Device(devices.context(), 0));
    net.model.To(Device(devices.context(), 0));
    net.model.To(Device::Cpu());
    net.model.To(device);
    for (const auto& [name, tensor] : net.model.StateDict()) {
      EXPECT_EQ(tensor.device(), device) << name;
    }
    for (const nn::NamedBuffer& buffer : net.model.NamedBuffers()) {
      EXPECT_EQ(buffer.tensor.device(), device) << buffer.name;
    }
    const auto optimizer = net.MakeOptimizer();
    for (int i = 0; i < 3; ++i) {
      WEFT_ASSERT_OK(TrainStep(net, *optimizer, device));
    }
    EXPECT_TRUE(net.Bits() == on_cpu.Bits()) << seed;
    net.model.To(Device::Cpu());
    EXPECT_TRUE(net.Bits() == on_cpu.Bits()) << seed;
    net.model.Eval();
    on_cpu.model.Eval();
    EXPECT_EQ(net.Loss(Device::Cpu()).value().item<float>(),
              on_cpu.Loss(Device::Cpu()).value().item<float>());
    on_cpu.model.Train();
  }
}

TEST(ModuleTo, MovesGradientsThatExist) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Net net, other;
  net.Loss(Device::Cpu()).Backward();
  other.Loss(Device::Cpu()).Backward();
  net.model.To(device);
  for (size_t i = 0; i < net.model.Parameters().size(); ++i) {
    const Variable parameter = net.model.Parameters()[i];
    ASSERT_TRUE(parameter.has_grad());
    EXPECT_EQ(parameter.gradient().device(), device);
    EXPECT_EQ(BytesOf(parameter.grad()),
              BytesOf(other.model.Parameters()[i].grad()));
  }
  // The next pass adds to them there.
  net.Loss(device).Backward();
  other.Loss(Device::Cpu()).Backward();
  EXPECT_EQ(BytesOf(net.model.Parameters()[0].grad()),
            BytesOf(other.model.Parameters()[0].grad()));
}

TEST(ModuleTo, AfterAnOptimizerIsNamedByCheckAndStepAndChangesNothing) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Net net;
  const auto optimizer = net.MakeOptimizer();
  WEFT_ASSERT_OK(TrainStep(net, *optimizer, Device::Cpu()));
  net.model.To(device);
  net.model.ClearGradients();
  net.Loss(device).Backward();
  const std::string after_pass = net.Bits();  // the running statistics moved
  const absl::Status status = optimizer->Step();
  EXPECT_THAT(status, StatusIs(kInvalid, "simulated:0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("weight"));
  EXPECT_TRUE(net.Bits() == after_pass);
  // Moved back, it goes on.
  net.model.To(Device::Cpu());
  WEFT_EXPECT_OK(optimizer->Step());
}

TEST(ModuleTo, MovesFrozenParametersAndKeepsThemFrozen) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Net net;
  net.model.Parameters()[0].SetRequiresGrad(false);
  net.model.To(device);
  EXPECT_FALSE(net.model.Parameters()[0].requires_grad());
  EXPECT_EQ(net.model.Parameters()[0].value().device(), device);
  net.Loss(device).Backward();
  EXPECT_FALSE(net.model.Parameters()[0].has_grad());
  EXPECT_TRUE(net.model.Parameters()[1].has_grad());
  net.model.Unfreeze();
  net.Loss(device).Backward();
  EXPECT_EQ(net.model.Parameters()[0].gradient().device(), device);
}

class Tied : public nn::Module {
 public:
  explicit Tied(Generator& random)
      : table_(10, 4, random,
               {TableGradient::kDense, DType::kF32, std::nullopt}),
        output_(table_.weight(), random) {
    AddModule("table", table_);
    AddModule("output", output_);
    scale_ = AddBuffer("scale", Tensor::Full({1}, 2), /*is_saved=*/false);
  }
  Variable Forward(const Tensor& words) {
    return Mul(output_.Forward(table_.Forward(words)),
               Variable(scale_.tensor()));
  }
  const Variable& table() const { return table_.weight(); }
  const Variable& output() const { return output_.weight(); }

 private:
  nn::Embedding table_;
  nn::Linear output_;
  nn::Buffer scale_;
};

TEST(ModuleTo, KeepsTiedParametersTied) {
  Generator random(5), same(5);
  Tied tied(random), on_cpu(same);
  const Tensor words = Tensor::FromVector<int64_t>({1, 9, 1});
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  tied.To(device);
  EXPECT_EQ(tied.table().leaf(), tied.output().leaf());
  EXPECT_TRUE(tied.table().value().IsSameAs(tied.output().value()));
  CrossEntropy(tied.Forward(words.To(device)), words.To(device)).Backward();
  CrossEntropy(on_cpu.Forward(words), words).Backward();
  EXPECT_EQ(BytesOf(tied.table().grad()), BytesOf(on_cpu.table().grad()));
  const nn::StateDict state = tied.StateDict();
  WEFT_EXPECT_OK(on_cpu.LoadStateDict(state));
  WEFT_EXPECT_OK(tied.LoadStateDict(on_cpu.StateDict()));
  EXPECT_EQ(tied.table().value().device(), device);
  EXPECT_EQ(on_cpu.table().value().device(), Device::Cpu());
}

class Constant : public nn::Module {
 public:
  explicit Constant(const Variable& shared) : linear_(2, 2, random_) {
    AddModule("linear", linear_);
    AddParameter("constant", shared);
  }
  const Variable& weight() const { return linear_.weight(); }

 private:
  Generator random_{1};
  nn::Linear linear_;
};

TEST(ModuleTo, OfAVariableMadeWithoutAGradientNamesItAndMovesNothing) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Constant constant{Variable(Tensor::Arange(3))};
  EXPECT_THAT(StatusOf([&] { constant.To(device); }),
              StatusIs(kPrecondition, "constant"));
  EXPECT_EQ(constant.weight().value().device(), Device::Cpu());
  Constant made_there{Variable(Tensor::Arange(3).To(device))};
  EXPECT_THAT(StatusOf([&] { made_there.To(device); }), IsOk());
  EXPECT_EQ(made_there.weight().value().device(), device);
}

TEST(ModuleTo, ALostDeviceOrOneWithoutMemoryIsAnError) {
  SimulatedDevices devices(1, 2);
  const Device device(devices.context(), 0);
  Net net;
  const std::string before = net.Bits();
  devices.runtime().FailAllocations(device.id(), 1000);
  EXPECT_THAT(StatusOf([&] { net.model.To(device); }),
              StatusIs(absl::StatusCode::kResourceExhausted));
  net.model.To(Device::Cpu());
  EXPECT_TRUE(net.Bits() == before);
  devices.runtime().FailAllocations(device.id(), 0);
  devices.runtime().LoseDevice(device.id());
  EXPECT_THAT(StatusOf([&] { net.model.To(device); }),
              StatusIs(kUnavailable, "simulated:0"));
  net.model.To(Device::Cpu());
  net.model.To(Device(devices.context(), 1));
  EXPECT_TRUE(net.Bits() == before);
}

TEST(Graphs, RecordedBeforeAMoveGiveATypedErrorOrTheGradient) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Net net;
  const Variable loss = net.Loss(Device::Cpu());
  net.model.To(device);
  const absl::Status status = StatusOf([&] { loss.Backward(); });
  EXPECT_FALSE(status.ok()) << "the leaf is elsewhere than its gradient";
  EXPECT_TRUE(status.code() == kInvalid || status.code() == kPrecondition)
      << status;
  // The model is usable after that.
  net.model.ClearGradients();
  EXPECT_THAT(StatusOf([&] { net.Loss(device).Backward(); }), IsOk());
}

// --- Gradients of another device. --------------------------------------------

TEST(Gradients, OfAnotherDeviceAreRefused) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Variable w(F32({2, 3}).To(device), true);
  EXPECT_THAT(StatusOf([&] {
                w.SetGradient(F32({2, 3}));
              }),
              StatusIs(kInvalid, "simulated:0"));
  EXPECT_FALSE(w.has_grad());
  SparseRows rows;
  rows.indices = Tensor::FromVector<int64_t>({1});
  rows.values = F32({1, 3});
  rows.rows = 2;
  EXPECT_THAT(StatusOf([&] { w.SetGradient(rows); }), StatusIs(kInvalid));
  rows.indices = rows.indices.To(device);
  EXPECT_THAT(StatusOf([&] { Gradient mixed(rows); }), StatusIs(kInvalid));
  rows.values = rows.values.To(device);
  EXPECT_THAT(StatusOf([&] { w.SetGradient(rows); }), IsOk());
  EXPECT_EQ(w.grad().device(), device);
  Gradient sum = F32({2, 3});
  EXPECT_THAT(StatusOf([&] {
                sum.Add(F32({2, 3}).To(device));
              }),
              StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { sum.Add(rows); }), StatusIs(kInvalid));
  EXPECT_EQ(Gradient().To(device).defined(), false);
  EXPECT_EQ(Gradient(rows).To(Device::Cpu()).device(), Device::Cpu());
}

TEST(Gradients, ASeedOfAnotherDeviceIsRefused) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Variable w(F32({2, 3}).To(device), true);
  const Variable y = Exp(w);
  EXPECT_THAT(StatusOf([&] { y.Backward(F32({2, 3})); }), StatusIs(kInvalid));
  EXPECT_FALSE(w.has_grad());
  EXPECT_THAT(devices.runtime().Health(device.id()), IsOk());
  const Variable z = Exp(w);
  EXPECT_THAT(StatusOf([&] { z.Backward(F32({2, 3}).To(device)); }), IsOk());
  // A root that is itself the leaf.
  EXPECT_THAT(StatusOf([&] { w.Backward(F32({2, 3})); }), StatusIs(kInvalid));
}

TEST(Gradients, OfAnotherDeviceFromAHookAreRefused) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  for (const bool at_leaf : {true, false}) {
    const Variable w(F32({2, 3}).To(device), true);
    const Variable y = Exp(w);
    (at_leaf ? w : y).AddHook([](Gradient g) { return g.To(Device::Cpu()); });
    const Variable loss = Sum(Mul(y, y));
    const absl::Status status = StatusOf([&] { loss.Backward(); });
    EXPECT_THAT(status, StatusIs(kInvalid)) << at_leaf;
    EXPECT_FALSE(w.has_grad() && w.gradient().device() != device);
  }
}

TEST(Gradients, OfLeavesOfTwoDevicesInOneGraphAreRefusedBeforeItIsMade) {
  SimulatedDevices devices(1, 2);
  const Variable a(F32({2}).To(Device(devices.context(), 0)), true);
  const Variable b(F32({2}).To(Device(devices.context(), 1)), true);
  const Variable c(F32({2}), true);
  EXPECT_THAT(StatusOf([&] { Mul(a, b); }), StatusIs(kInvalid, "simulated:1"));
  EXPECT_THAT(StatusOf([&] { Mul(a, c); }), StatusIs(kInvalid, "cpu"));
  EXPECT_THAT(StatusOf([&] { a.SetValue(F32({2})); }), StatusIs(kInvalid));
  // One pass over two graphs of two devices is fine.
  const Variable roots[] = {Sum(a), Sum(b), Sum(c)};
  const Gradient seeds[] = {Tensor::Ones({}).To(a.value().device()),
                            Tensor::Ones({}).To(b.value().device()),
                            Tensor::Ones({})};
  WEFT_EXPECT_OK(Backward(roots, seeds));
  EXPECT_EQ(BytesOf(a.grad()), BytesOf(c.grad()));
  EXPECT_EQ(BytesOf(b.grad()), BytesOf(c.grad()));
}

// --- Recomputation, dropout, sparse gradients, updates. ----------------------

TEST(Checkpointing, OnADeviceHasTheBitsOfTheCpu) {
  const auto run = [](Device device) {
    Net net;
    net.model.To(device);
    const Variable x(F32({4, 6}, 9).To(device), true);
    const Variable y = Checkpoint(
        [&](absl::Span<const Variable> in) { return net.model.Forward(in[0]); },
        {x});
    Sum(Square(y)).Backward();
    std::string bits = BytesOf(x.grad()) + net.Bits();
    for (const Variable& p : net.model.Parameters()) bits += BytesOf(p.grad());
    return bits;
  };
  const std::string wanted = run(Device::Cpu());
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    EXPECT_TRUE(run(Device(devices.context(), 0)) == wanted) << seed;
  }
}

TEST(Checkpointing, AfterTheLeafWasMovedIsRefused) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Generator random(1);
  nn::Linear linear(3, 3, random);
  const Variable x(F32({2, 3}), true);
  const Variable y = Checkpoint(
      [&](absl::Span<const Variable> in) {
        return Tanh(linear.Forward(in[0]));
      },
      {x});
  linear.To(device);
  const absl::Status status = StatusOf([&] { Sum(y).Backward(); });
  EXPECT_TRUE(status.code() == kInvalid || status.code() == kPrecondition)
      << status;
  EXPECT_FALSE(linear.weight().has_grad());
}

TEST(Dropout, DrawsTheSameNumbersOnADevice) {
  Generator one(4), two(4);
  nn::Dropout on_cpu(0.3, one), there(0.3, two);
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  for (const Shape& shape : {Shape{5, 7}, Shape{0, 3}, Shape{}, Shape{33}}) {
    const Tensor x = F32(shape);
    EXPECT_EQ(BytesOf(there.Forward(Variable(x.To(device))).value()),
              BytesOf(on_cpu.Forward(Variable(x)).value()));
    EXPECT_EQ(one.position(), two.position());
  }
}

// What a step over `rows` rows gives, or how it fails.
using Graph = std::function<Variable(const Variable& x, Device device)>;
std::string StepOver(const Graph& graph, const Shape& shape, Device device) {
  const Variable x(F32(shape).To(device), true);
  std::string bits;
  const absl::Status status = StatusOf([&] {
    const Variable y = graph(x, device);
    bits = BytesOf(y.value());
    Sum(y).Backward();
    bits += x.has_grad() ? BytesOf(x.grad()) : "none";
  });
  return status.ok() ? bits : absl::StatusCodeToString(status.code());
}

TEST(EmptyBatches, AreTrainedOnADeviceAsOnTheCpu) {
  struct Case {
    std::string name;
    Shape shape;
    Graph graph;
  };
  const auto ones = [](const Shape& shape, Device device) {
    return Variable(Tensor::Ones(shape, DType::kF32, device), true);
  };
  const std::vector<Case> cases = {
      {"linear",
       {0, 3},
       [&](const Variable& x, Device d) {
         return Linear(x, ones({2, 3}, d), ones({2}, d));
       }},
      {"matmul of nothing",
       {2, 0},
       [&](const Variable& x, Device d) {
         return MatMul(x, ones({0, 3}, d));
       }},
      {"layer norm",
       {0, 3},
       [&](const Variable& x, Device d) {
         return LayerNorm(x, {3}, ones({3}, d), ones({3}, d));
       }},
      {"batch norm",
       {0, 3},
       [&](const Variable& x, Device d) {
         return BatchNorm(x, ones({3}, d), ones({3}, d), Tensor(), Tensor());
       }},
      {"convolution",
       {0, 2, 5, 5},
       [&](const Variable& x, Device d) {
         return Conv2d(x, ones({3, 2, 3, 3}, d), ones({3}, d));
       }},
      {"pool",
       {0, 2, 4, 4},
       [&](const Variable& x, Device) { return MaxPool2d(x); }},
      {"attention",
       {0, 4, 6},
       [&](const Variable& x, Device) { return SelfAttention(x, 1); }},
      {"attention over nothing",
       {2, 0, 6},
       [&](const Variable& x, Device) { return SelfAttention(x, 1); }},
      {"cross entropy",
       {0, 3},
       [&](const Variable& x, Device d) {
         return CrossEntropy(x, Tensor::Empty({0}, DType::kI64, d),
                             Reduction::kSum);
       }},
      {"softmax",
       {3, 0},
       [&](const Variable& x, Device) { return Softmax(x, 1); }},
      {"mean", {0, 3}, [&](const Variable& x, Device) { return Mean(x, {0}); }},
      {"max", {0, 3}, [&](const Variable& x, Device) { return Max(x, {1}); }},
      {"shapes",
       {0, 4},
       [&](const Variable& x, Device) {
         return Concat({Transpose(x, 0, 1), Reshape(x, {4, 0})}, 1);
       }},
      {"scan", {0, 4}, [&](const Variable& x, Device) { return Cumsum(x, 1); }},
  };
  for (const Case& each : cases) {
    const std::string wanted = StepOver(each.graph, each.shape, Device::Cpu());
    for (uint64_t seed = 0; seed < 3; ++seed) {
      SimulatedDevices devices(seed);
      const Device device(devices.context(), 0);
      EXPECT_EQ(StepOver(each.graph, each.shape, device), wanted)
          << each.name << ", seed " << seed;
      EXPECT_THAT(devices.runtime().Health(device.id()), IsOk()) << each.name;
    }
  }
}

TEST(Sparse, GradientsTrainOnADeviceAsOnTheCpu) {
  const auto run = [](Device device) {
    Generator random(1);
    nn::EmbeddingOptions options;
    options.gradient = TableGradient::kSparse;
    nn::Embedding table(10, 4, random, options);
    table.To(device);
    optimizer::ParameterGroup group{optimizer::AdamWOptions{0.01},
                                    table.NamedParameters()};
    group.lazy = true;
    auto optimizer = *Optimizer::Create({group});
    for (const std::vector<int64_t>& words :
         {std::vector<int64_t>{1, 9, 1}, std::vector<int64_t>{},
          std::vector<int64_t>{0}}) {
      optimizer->ZeroGrad();
      const Tensor index = Tensor::FromVector(words).To(device);
      Sum(Square(table.Forward(index))).Backward();
      EXPECT_TRUE(table.weight().gradient().is_sparse());
      WEFT_EXPECT_OK(optimizer::ClipGradNorm({table.weight()}, 0.5));
      WEFT_EXPECT_OK(optimizer->Step());
    }
    return BytesOf(table.weight().value());
  };
  const std::string wanted = run(Device::Cpu());
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    EXPECT_TRUE(run(Device(devices.context(), 0)) == wanted) << seed;
  }
}

TEST(Sparse, ARowOutsideIsNamedByTheOptimizerBeforeAnythingChanges) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Variable w(F32({3, 2}).To(device), true);
  auto optimizer =
      *Optimizer::Create({{optimizer::SgdOptions{0.1}, {{"w", w}}}});
  SparseRows rows;
  rows.indices = Tensor::FromVector<int64_t>({7}).To(device);
  rows.values = F32({1, 2}).To(device);
  rows.rows = 3;
  const absl::Status status =
      optimizer->Apply([&](const optimizer::Parameter&) { return rows; });
  EXPECT_THAT(status, StatusIs(kInvalid, "w"));
  EXPECT_EQ(BytesOf(w.value()), BytesOf(F32({3, 2})));
  EXPECT_THAT(devices.runtime().Health(device.id()), IsOk());
}

TEST(Updates, AGraphThatSavedTheWeightKeepsItAsItWas) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    const Device device(devices.context(), 0);
    const Variable w(F32({3, 3}).To(device), true);
    auto optimizer =
        *Optimizer::Create({{optimizer::SgdOptions{0.1}, {{"w", w}}}});
    const Variable x(F32({2, 3}, 8).To(device), true);
    const Variable first = Sum(MatMul(x, w));
    const Variable second = Sum(Square(MatMul(x, w)));
    second.Backward();
    WEFT_ASSERT_OK(optimizer->Step());
    x.ClearGradient();
    first.Backward();  // dx = ones * w^T, of the old w
    const Tensor wanted =
        MatMul(Tensor::Ones({2, 3}), F32({3, 3}).Transpose(0, 1));
    EXPECT_EQ(BytesOf(x.grad()), BytesOf(wanted)) << seed;
    EXPECT_NE(BytesOf(w.value()), BytesOf(F32({3, 3})));
  }
}

TEST(Check, FindsWhatIsNotFiniteOnADevice) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Variable w(F32({3}).To(device), true);
  auto optimizer =
      *Optimizer::Create({{optimizer::SgdOptions{0.1}, {{"w", w}}}});
  const Tensor bad =
      Tensor::FromVector<float>({1, std::numeric_limits<float>::infinity(), 0});
  w.SetGradient(bad.To(device));
  const auto own = [&](const optimizer::Parameter&) { return w.gradient(); };
  WEFT_EXPECT_OK(optimizer->Check(own));
  EXPECT_THAT(optimizer->Check(own, Finite::kRequired),
              StatusIs(kInvalid, "w"));
  EXPECT_THAT(optimizer::ClipGradNorm({w}, 1), StatusIs(kPrecondition));
  EXPECT_EQ(BytesOf(w.grad()), BytesOf(bad));
  EXPECT_THAT(
      optimizer->Apply([&](const optimizer::Parameter&) { return bad; }),
      StatusIs(kInvalid, "w"));
  EXPECT_EQ(BytesOf(w.value()), BytesOf(F32({3})));
}

TEST(Clip, GradientsOfSeveralDevicesTogether) {
  SimulatedDevices devices(1, 2);
  const Variable a(F32({3}).To(Device(devices.context(), 0)), true);
  const Variable b(F32({4}).To(Device(devices.context(), 1)), true);
  const Variable c(F32({5}), true);
  std::vector<Variable> here;
  for (const Variable& v : {a, b, c}) {
    v.SetGradient(Mul(v.value(), 10.0));
    here.emplace_back(v.value().To(Device::Cpu()).Clone(), true);
    here.back().SetGradient(v.grad().To(Device::Cpu()).Clone());
  }
  WEFT_ASSERT_OK_AND_ASSIGN(const double norm,
                            optimizer::ClipGradNorm({a, b, c}, 1));
  WEFT_ASSERT_OK_AND_ASSIGN(const double wanted,
                            optimizer::ClipGradNorm(here, 1));
  EXPECT_EQ(norm, wanted);
  EXPECT_EQ(BytesOf(b.grad()), BytesOf(here[1].grad()));
  EXPECT_EQ(a.grad().device(), a.value().device());
}

TEST(OptimizerState, MovesByStateDictFromDeviceToDevice) {
  SimulatedDevices devices(1, 2);
  const Device first(devices.context(), 0), second(devices.context(), 1);
  Net a, b;
  a.model.To(first);
  const auto from = a.MakeOptimizer();
  WEFT_ASSERT_OK(TrainStep(a, *from, first));
  b.model.To(second);
  const auto to = b.MakeOptimizer();
  WEFT_ASSERT_OK(b.model.LoadStateDict(a.model.StateDict()));
  WEFT_ASSERT_OK(to->LoadStateDict(from->StateDict()));
  b.noise.Seek(a.noise.position());
  WEFT_ASSERT_OK(TrainStep(a, *from, first));
  WEFT_ASSERT_OK(TrainStep(b, *to, second));
  EXPECT_TRUE(a.Bits() == b.Bits());
}

}  // namespace
}  // namespace weft::outside
