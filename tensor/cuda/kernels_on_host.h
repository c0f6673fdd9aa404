// KernelsOnHost: on a simulated device the bodies of CUDA's kernels run in
// place of the CPU's functions, found by name and given operands and numbers as
// on CUDA. So the public functions of tensors test them.
//
// What libraries compute (products, convolutions) the CPU's functions do; for
// attention, what is between its products is the kernels'.

#ifndef WEFT_TENSOR_CUDA_KERNELS_ON_HOST_H_
#define WEFT_TENSOR_CUDA_KERNELS_ON_HOST_H_

#include <string>
#include <vector>

#include "weft/tensor/on_device.h"

namespace weft::internal::cuda {

// An operation that CUDA has.
struct CudaOperation {
  std::string name;
  std::string dtypes;
  std::string by;  // what computes it
};
std::vector<CudaOperation> CudaOperations();

// While it lives, on its thread. A task fails, and names the operation, if CUDA
// has none of that name, or none for these operands.
//
// Thread-safety: one thread at a time, that which made it.
class KernelsOnHost final : public OperationObserver {
 public:
  KernelsOnHost();
  ~KernelsOnHost() override;
  KernelsOnHost(const KernelsOnHost&) = delete;
  KernelsOnHost& operator=(const KernelsOnHost&) = delete;

  HostFunction OnEnqueue(const Operation& operation,
                         absl::Span<const Tensor* const> tensors,
                         HostFunction host) override;

 private:
  OperationObserver* const before_;
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_KERNELS_ON_HOST_H_
