// OperationCases: inputs for operations that CUDA has a kernel of, and how far
// it may be from the CPU. Run by the kernels' bodies on the CPU
// (operations_test), and on a GPU (tests/gpu).

#ifndef WEFT_TENSOR_CUDA_OPERATION_CASES_H_
#define WEFT_TENSOR_CUDA_OPERATION_CASES_H_

#include <functional>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::internal::cuda {

struct OperationCase {
  std::string name;
  // Units in the last place, of results below 1 those of 1.
  double ulps = 0;
  std::vector<Tensor> inputs;  // on the CPU
  // Gets the inputs on one device, and may write to them. Returns what it has
  // made or written.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)> run;
};

std::vector<OperationCase> OperationCases();

// Units in the last place between two results of `dtype`.
double UlpsBetween(double found, double wanted, DType dtype);

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_OPERATION_CASES_H_
