#include "weft/collectives/backends/same_device/reduce_on_device.h"

#include <utility>

#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/same_device/reduce_cuda.h"
#include "weft/device/launch.h"

namespace weft::collectives {
namespace {

using internal::KernelOp;
using internal::ReduceCall;
using weft::internal::cuda::Element;

constexpr bool Is(KernelOp kernel, ReduceOp op) {
  return static_cast<int>(kernel) == static_cast<int>(op);
}
static_assert(Is(KernelOp::kSum, ReduceOp::kSum));
static_assert(Is(KernelOp::kProduct, ReduceOp::kProduct));
static_assert(Is(KernelOp::kMin, ReduceOp::kMin));
static_assert(Is(KernelOp::kMax, ReduceOp::kMax));
static_assert(Is(KernelOp::kAverage, ReduceOp::kAverage));
static_assert(Is(KernelOp::kAnd, ReduceOp::kAnd));
static_assert(Is(KernelOp::kOr, ReduceOp::kOr));
static_assert(Is(KernelOp::kXor, ReduceOp::kXor));

}  // namespace

absl::Status ReduceOnDevice(device::Stream stream, DType dtype, ReduceOp op,
                            std::vector<Contribution> contributions,
                            std::vector<std::byte*> outputs, int64_t count) {
  WEFT_CHECK(contributions.size() <= internal::kMostSharers);
  WEFT_CHECK(outputs.size() <= internal::kMostSharers);
  ReduceCall call = {};
  for (const Contribution& one : contributions) {
    call.inputs[call.input_count] = one.elements;
    call.factors[call.input_count++] = one.factor;
  }
  for (std::byte* const output : outputs) {
    call.outputs[call.output_count++] = output;
  }
  call.elements = count;
  call.element = static_cast<Element>(dtype);
  call.op = static_cast<KernelOp>(op);
  return device::Launch(
      stream, "Reduce",
      [=, contributions = std::move(contributions),
       outputs = std::move(outputs)](
          const device::DeviceMemory& memory) mutable -> absl::Status {
        const int64_t bytes = count * ItemSize(dtype);
        for (Contribution& one : contributions) {
          WEFT_ASSIGN_OR_RETURN(one.elements, memory.At(one.elements, bytes));
        }
        for (std::byte*& output : outputs) {
          WEFT_ASSIGN_OR_RETURN(output, memory.At(output, bytes));
        }
        ReduceContributions(dtype, op, contributions, outputs, count);
        return absl::OkStatus();
      },
      [&](void* native) -> absl::Status {
        if (internal::LaunchReduce(native, call)) return absl::OkStatus();
        return absl::UnimplementedError(
            "the reduction of tensors on a CUDA device wants a build with the "
            "CUDA toolkit");
      });
}

}  // namespace weft::collectives
