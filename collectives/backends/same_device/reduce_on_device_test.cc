#include "weft/collectives/backends/same_device/reduce_on_device.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/backends/same_device/reduce_call.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using internal::KernelOp;
using internal::ReduceCall;
using weft::internal::cuda::Element;
using ::weft::testing::StatusIs;

constexpr int64_t kCount = 40;

std::string BytesOf(const Tensor& x) {
  return std::string(static_cast<const char*>(x.raw()), x.bytes());
}

// Any bits that `dtype` may have, NaNs and infinities among them.
Tensor AnyBits(DType dtype, std::mt19937& random) {
  const Tensor made = Tensor::Empty({kCount}, dtype);
  auto* const bytes = static_cast<unsigned char*>(made.raw());
  for (int64_t i = 0; i < made.bytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(random());
    if (dtype == DType::kBool) bytes[i] &= 1;
  }
  return made;
}

// Whether two results are the same, where any NaN is as good as another.
bool AreSame(const Tensor& a, const Tensor& b) {
  const int64_t item = ItemSize(a.dtype());
  const Tensor wide_a = a.To(DType::kF64), wide_b = b.To(DType::kF64);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto* const x = static_cast<const char*>(a.raw()) + i * item;
    const auto* const y = static_cast<const char*>(b.raw()) + i * item;
    if (std::memcmp(x, y, item) == 0) continue;
    const double left = wide_a.data<double>()[i];
    const double right = wide_b.data<double>()[i];
    if (left == left || right == right) return false;
  }
  return true;
}

// Visits each dtype and reduction that there is, with 1 to 4 ranks.
template <typename Visit>
void ForEachReduction(const Visit& visit) {
  std::mt19937 random(7);
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI64,
        DType::kI32, DType::kI8, DType::kU8, DType::kBool}) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kXor); ++op) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        const double factor = IsFloating(dtype) && ranks == 3 ? 0.3 : 1;
        const Reduction reduction(static_cast<ReduceOp>(op), factor);
        if (!CheckReduction(reduction, dtype).ok()) continue;
        SCOPED_TRACE(
            absl::StrCat(Name(dtype), " ", Name(reduction.op), " of ", ranks));
        std::vector<Tensor> inputs;
        for (int r = 0; r < ranks; ++r) {
          inputs.push_back(AnyBits(dtype, random));
        }
        visit(reduction, inputs);
      }
    }
  }
}

Tensor Wanted(const Reduction& reduction, const std::vector<Tensor>& inputs) {
  std::vector<Contribution> all;
  for (const Tensor& x : inputs) {
    all.push_back({static_cast<std::byte*>(x.raw()), reduction.factor});
  }
  const Tensor wanted = Tensor::EmptyLike(inputs[0]);
  auto* const out = static_cast<std::byte*>(wanted.raw());
  ReduceContributions(wanted.dtype(), reduction.op, all, {&out, 1}, kCount);
  return wanted;
}

// What the kernel of CUDA computes for each element, run on the CPU; in place.
TEST(ReduceCall, HasTheBitsOfReduceContributions) {
  int64_t calls = 0;
  ForEachReduction(
      [&](const Reduction& reduction, const std::vector<Tensor>& inputs) {
        const Tensor wanted = Wanted(reduction, inputs);
        ReduceCall call = {};
        for (const Tensor& x : inputs) {
          call.inputs[call.input_count] = x.raw();
          call.factors[call.input_count++] = reduction.factor;
          call.outputs[call.output_count++] = x.raw();
        }
        call.elements = kCount;
        call.element = static_cast<Element>(inputs[0].dtype());
        call.op = static_cast<KernelOp>(reduction.op);
        internal::VisitReduceCall(call, [&](auto type, auto function) {
          using T = typename decltype(type)::Type;
          ++calls;
          for (int64_t i = 0; i < kCount; ++i) {
            internal::ReduceElement<T>(call, function, i);
          }
        });
        for (const Tensor& x : inputs) EXPECT_TRUE(AreSame(x, wanted));
      });
  EXPECT_GT(calls, 4 * 9 * 4);
}

TEST(ReduceOnDevice, HasTheBitsOfReduceContributions) {
  device::testing::SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  auto stream = devices.context().CurrentStream(0);
  WEFT_ASSERT_OK(stream);
  ForEachReduction(
      [&](const Reduction& reduction, const std::vector<Tensor>& inputs) {
        std::vector<Tensor> placed;
        std::vector<Contribution> all;
        std::vector<std::byte*> outputs;
        for (const Tensor& x : inputs) {
          placed.push_back(x.To(device));
          auto* const at = static_cast<std::byte*>(placed.back().address());
          all.push_back({at, reduction.factor});
          outputs.push_back(at);
        }
        WEFT_EXPECT_OK(ReduceOnDevice(*stream, inputs[0].dtype(), reduction.op,
                                      all, outputs, kCount));
        const std::string wanted = BytesOf(Wanted(reduction, inputs));
        for (const Tensor& x : placed) {
          EXPECT_EQ(BytesOf(x.To(Device::Cpu())), wanted);
        }
      });
}

TEST(ReduceOnDevice, LeavesNoMemoryOfItsBlocks) {
  device::testing::SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  auto stream = devices.context().CurrentStream(0);
  WEFT_ASSERT_OK(stream);
  const Tensor x = Tensor::Ones({4}).To(device);
  auto* const at = static_cast<std::byte*>(x.address());
  WEFT_EXPECT_OK(ReduceOnDevice(*stream, DType::kF32, ReduceOp::kSum, {{at, 1}},
                                {at}, int64_t{1} << 40));
  EXPECT_THAT(devices.runtime().Synchronize(*stream, absl::Seconds(30)),
              StatusIs(absl::StatusCode::kInternal, "illegal address"));
}

}  // namespace
}  // namespace weft::collectives
