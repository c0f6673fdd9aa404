// What holds for every registered operation, in every case it registers.

#include "weft/autograd/op.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/gradcheck.h"
#include "weft/base/catch_to_status.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/cuda/kernels_on_host.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using Json = nlohmann::json;

const Json& Golden() {
  static const Json* golden =
      new Json(Json::parse(std::ifstream("tests/golden/ops.json")));
  return *golden;
}

Tensor FromJson(const Json& json) {
  const auto sizes = json["shape"].get<std::vector<int64_t>>();
  const Shape shape(sizes.begin(), sizes.end());
  const std::string dtype = json["dtype"];
  if (dtype == "f32") {
    return Tensor::FromVector(json["values"].get<std::vector<float>>(), shape);
  }
  const Tensor whole =
      Tensor::FromVector(json["values"].get<std::vector<int64_t>>(), shape);
  return dtype == "bool" ? whole.To(DType::kBool) : whole;
}

struct RegisteredCase {
  const Op* op;
  const OpCase* sample;
  std::string name() const {
    return std::string(op->name()) + "/" + sample->name;
  }
};

void PrintTo(const RegisteredCase& one, std::ostream* out) {
  *out << one.name();
}

std::vector<RegisteredCase> AllCases() {
  std::vector<RegisteredCase> all;
  for (const Op* op : Op::Registered()) {
    for (const OpCase& sample : op->cases()) all.push_back({op, &sample});
  }
  return all;
}

// [low, high) by the sample's kind; f64 where real.
Variable MakeInput(const SampleInput& sample, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(sample.low, sample.high);
  const Tensor x = Tensor::Empty(sample.shape, DType::kF64);
  for (double& element : x.span<double>()) element = uniform(random);
  switch (sample.kind) {
    case SampleInput::Kind::kReal:
      return Variable(x, /*requires_grad=*/true);
    case SampleInput::Kind::kTarget:
      return Variable(x);
    case SampleInput::Kind::kIndex:
      return Variable(x.To(DType::kI64));
    case SampleInput::Kind::kBool:
      return Variable(Greater(x, 0.5 * (sample.low + sample.high)));
  }
  return Variable();
}

std::vector<Variable> MakeInputs(const OpCase& sample) {
  std::mt19937_64 random(20);
  std::vector<Variable> inputs;
  for (const SampleInput& input : sample.inputs) {
    inputs.push_back(MakeInput(input, random));
  }
  return inputs;
}

std::vector<std::vector<double>> Gradients(const std::vector<Variable>& of) {
  std::vector<std::vector<double>> all;
  for (const Variable& x : of) {
    if (x.requires_grad()) all.push_back(x.grad().ToVector<double>());
  }
  return all;
}

// f32 rounds to 6e-8; the sums here are short, and each side errs by a few
// roundings of its largest term.
void ExpectClose(const Tensor& found, const Json& golden, const char* what) {
  const Tensor wanted = FromJson(golden);
  ASSERT_EQ(found.Describe(), wanted.Describe()) << what;
  const auto got = found.ToVector<float>(), want = wanted.ToVector<float>();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2e-6 + 2e-6 * std::abs(want[i]))
        << what << ", element " << i;
  }
}

class EachOp : public ::testing::TestWithParam<RegisteredCase> {
 protected:
  const OpCase& sample() const { return *GetParam().sample; }
};

TEST_P(EachOp, AgreesWithFiniteDifferences) {
  EXPECT_THAT(CheckGradients(sample().forward, MakeInputs(sample())), IsOk());
}

TEST_P(EachOp, AgreesWithPyTorch) {
  const auto found = Golden().find(GetParam().name());
  ASSERT_NE(found, Golden().end())
      << "no golden values: add the case to tools/make_golden.py and run it";
  const Json& golden = *found;
  ASSERT_EQ(golden["inputs"].size(), sample().inputs.size());
  std::vector<Variable> inputs;
  for (size_t i = 0; i < sample().inputs.size(); ++i) {
    const bool real = sample().inputs[i].kind == SampleInput::Kind::kReal;
    inputs.emplace_back(FromJson(golden["inputs"][i]), real);
    ASSERT_EQ(inputs[i].shape(), sample().inputs[i].shape) << "input " << i;
  }
  const Variable output = sample().forward(inputs);
  ExpectClose(output.value(), golden["output"], "output");
  output.Backward(FromJson(golden["cotangent"]));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Json& gradient = golden["gradients"][i];
    ASSERT_EQ(inputs[i].has_grad(), !gradient.is_null()) << "input " << i;
    if (!gradient.is_null()) {
      ExpectClose(inputs[i].grad(), gradient, "gradient");
    }
  }
}

TEST_P(EachOp, RecordsNothingUnderNoGradScope) {
  NoGradScope no_grad;
  EXPECT_FALSE(sample().forward(MakeInputs(sample())).requires_grad());
}

TEST_P(EachOp, RecordsUnderItsName) {
  const Variable y = sample().forward(MakeInputs(sample()));
  ASSERT_TRUE(y.requires_grad());
  EXPECT_EQ(y.edge().node->name(), GetParam().op->name());
}

TEST_P(EachOp, GivesTheSameGradientAgainIfRetained) {
  const std::vector<Variable> inputs = MakeInputs(sample());
  const Variable y = sample().forward(inputs);
  BackwardOptions options;
  options.retain_graph = true;
  y.Backward(Tensor::Ones(y.shape(), DType::kF64), options);
  const auto once = Gradients(inputs);
  for (const Variable& x : inputs) {
    if (x.requires_grad()) x.ClearGradient();
  }
  y.Backward(Tensor::Ones(y.shape(), DType::kF64));
  EXPECT_EQ(Gradients(inputs), once);
}

// Writing to an input after the forward pass is noticed, or does no harm.
TEST_P(EachOp, RefusesOverwrittenSavedTensors) {
  for (size_t written = 0; written < sample().inputs.size(); ++written) {
    const std::vector<Variable> inputs = MakeInputs(sample());
    const Variable clean = sample().forward(inputs);
    clean.Backward(Tensor::Ones(clean.shape(), DType::kF64));
    const auto wanted = Gradients(inputs);
    for (const Variable& x : inputs) {
      if (x.requires_grad()) x.ClearGradient();
    }
    const Variable y = sample().forward(inputs);
    inputs[written].value().Fill(1);
    const absl::Status status =
        Backward({y}, {Gradient(Tensor::Ones(y.shape(), DType::kF64))});
    if (status.ok()) {
      EXPECT_EQ(Gradients(inputs), wanted) << "input " << written;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(std::string(GetParam().op->name())));
    }
  }
}

// `inputs` where real in `dtype`, all on `device`.
std::vector<Variable> InputsOn(Device device, DType dtype,
                               const std::vector<Variable>& inputs) {
  std::vector<Variable> moved;
  for (const Variable& input : inputs) {
    const bool is_real = input.dtype() == DType::kF64;
    const Tensor value = is_real ? input.value().To(dtype) : input.value();
    // A copy: a leaf's elements are its own.
    moved.emplace_back(value.Clone().To(device), input.requires_grad());
  }
  return moved;
}

// The result and all gradients, as bytes.
std::vector<std::string> BytesOfPass(const OpCase& sample,
                                     const std::vector<Variable>& inputs) {
  const Variable y = sample.forward(inputs);
  y.Backward(Mul(y.value(), 0.5));
  std::vector<std::string> bytes = {testing::BytesOf(y.value())};
  for (const Variable& x : inputs) {
    if (!x.requires_grad()) continue;
    EXPECT_EQ(x.gradient().device(), x.value().device());
    bytes.push_back(testing::BytesOf(x.gradient().ToDense()));
  }
  return bytes;
}

TEST_P(EachOp, HasTheSameBitsOnADevice) {
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    const std::vector<Variable> inputs = MakeInputs(sample());
    const auto wanted =
        BytesOfPass(sample(), InputsOn(Device::Cpu(), dtype, inputs));
    for (uint64_t seed = 0; seed < 3; ++seed) {
      device::testing::SimulatedDevices devices(seed);
      const Device device(devices.context(), 0);
      EXPECT_TRUE(BytesOfPass(sample(), InputsOn(device, dtype, inputs)) ==
                  wanted)
          << Name(dtype) << ", seed " << seed;
    }
  }
}

// Within the roundings of sums that are added up in other orders.
void ExpectNear(const Tensor& found, const Tensor& wanted) {
  ASSERT_EQ(found.shape(), wanted.shape());
  ASSERT_EQ(found.dtype(), wanted.dtype());
  const double tolerance = wanted.dtype() == DType::kF32 ? 4e-6 : 1e-14;
  const auto f = found.To(Device::Cpu()).To(DType::kF64).ToVector<double>();
  const auto w = wanted.To(DType::kF64).ToVector<double>();
  for (size_t i = 0; i < w.size(); ++i) {
    EXPECT_NEAR(f[i], w[i], tolerance * std::max(1.0, std::abs(w[i]))) << i;
  }
}

// The bodies of CUDA's kernels give what the CPU gives, forward and backward.
TEST_P(EachOp, HasAKernelForEachOfItsOperations) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    SCOPED_TRACE(Name(dtype));
    const std::vector<Variable> inputs = MakeInputs(sample());
    const std::vector<Variable> here = InputsOn(Device::Cpu(), dtype, inputs);
    const Variable wanted = sample().forward(here);
    wanted.Backward(Mul(wanted.value(), 0.5));
    device::testing::SimulatedDevices devices(1);
    const std::vector<Variable> there =
        InputsOn(Device(devices.context(), 0), dtype, inputs);
    const internal::cuda::KernelsOnHost kernels;
    const Variable found = sample().forward(there);
    found.Backward(Mul(found.value(), 0.5));
    ExpectNear(found.value(), wanted.value());
    for (size_t i = 0; i < here.size(); ++i) {
      if (!here[i].requires_grad()) continue;
      ExpectNear(there[i].gradient().ToDense(), here[i].gradient().ToDense());
    }
  }
}

// The distance of two neighbours of `dtype`, f16 or bf16, at x.
double Ulp(DType dtype, double x) {
  const int fraction = dtype == DType::kF16 ? 10 : 7;
  const int least = dtype == DType::kF16 ? -14 : -126;
  return std::ldexp(
      1.0,
      std::max(std::ilogb(std::max(std::abs(x), 1e-30)), least) - fraction);
}

double LargestOf(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// f16 and bf16 beside f64, of the same inputs. Results are rounded once: half a
// unit in the last place, and what f32 errs. Gradients are rounded once, too,
// but come from results that were: two units of the largest element, and what
// f32 errs.
TEST_P(EachOp, IsWithinUlpsOfF64InHalves) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const std::vector<Variable> inputs =
        InputsOn(Device::Cpu(), dtype, MakeInputs(sample()));
    std::vector<Variable> wide;
    for (const Variable& input : inputs) {
      const bool is_real = input.dtype() == dtype;
      wide.emplace_back(is_real ? input.value().To(DType::kF64) : input.value(),
                        input.requires_grad());
    }
    const Variable y = sample().forward(inputs);
    const Variable wanted = sample().forward(wide);
    ASSERT_EQ(y.dtype(), dtype);
    const std::vector<double> found =
        y.value().To(DType::kF64).ToVector<double>();
    const std::vector<double> reals = wanted.value().ToVector<double>();
    const double largest = LargestOf(reals);
    ASSERT_EQ(found.size(), reals.size());
    for (size_t i = 0; i < reals.size(); ++i) {
      EXPECT_NEAR(found[i], reals[i],
                  0.5 * Ulp(dtype, reals[i]) + 1e-6 * std::max(1.0, largest))
          << Name(dtype) << ", element " << i;
    }
    const Tensor seed = Mul(y.value(), 0.5);
    y.Backward(seed);
    wanted.Backward(seed.To(DType::kF64));
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].requires_grad()) continue;
      ASSERT_EQ(inputs[i].gradient().dtype(), dtype);
      const auto to = inputs[i].grad().To(DType::kF64).ToVector<double>();
      const auto exact = wide[i].grad().ToVector<double>();
      const double bound =
          2 * Ulp(dtype, LargestOf(exact)) + 1e-6 * std::max(1.0, largest);
      for (size_t k = 0; k < exact.size(); ++k) {
        EXPECT_NEAR(to[k], exact[k], bound)
            << Name(dtype) << ", gradient " << i << ", element " << k;
      }
    }
  }
}

std::string TestName(const ::testing::TestParamInfo<RegisteredCase>& info) {
  const std::string& name = info.param.sample->name;
  return std::string(info.param.op->name()) + (name.empty() ? "" : "_") + name;
}

INSTANTIATE_TEST_SUITE_P(Registered, EachOp, ::testing::ValuesIn(AllCases()),
                         TestName);

TEST(OpRegistry, HoldsEachCaseOnce) {
  std::set<std::string> names;
  for (const RegisteredCase& one : AllCases()) {
    EXPECT_TRUE(names.insert(one.name()).second) << one.name();
  }
}

TEST(OpRegistry, KnowsEachCaseThatHasGoldenValues) {
  std::set<std::string> names;
  for (const RegisteredCase& one : AllCases()) names.insert(one.name());
  ASSERT_FALSE(Golden().empty());
  for (const auto& [name, golden] : Golden().items()) {
    EXPECT_EQ(names.count(name), 1u) << name << " is not registered";
  }
}

}  // namespace
}  // namespace weft
