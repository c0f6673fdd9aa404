// Products of matrices, and attention, by cuBLASLt, which is loaded when
// the first of them runs: a program that multiplies nothing needs no library.

#ifndef WEFT_TENSOR_CUDA_LIBRARIES_CUBLAS_H_
#define WEFT_TENSOR_CUDA_LIBRARIES_CUBLAS_H_

#include "absl/status/status.h"
#include "weft/tensor/cuda/call.h"

namespace weft::internal::cuda {

// f32, f64, f16 and bf16; f32 is multiplied as f32, not TF32, and f16 and bf16
// are added up in f32 and rounded once. Operands: a, b, out; for
// Linear x [m, k], weight [n, k], bias [n] if there is one, and y [m, n].
// `stream` is a cudaStream_t of the current device. kUnimplemented for what
// cuBLASLt or Weft's call of it lacks, or if libcublasLt.so.13 is not found;
// kInternal with cuBLASLt's status if it fails.
absl::Status MatMulByCublas(const Call& call, void* stream);
absl::Status MatMulAddByCublas(const Call& call, void* stream);
absl::Status LinearByCublas(const Call& call, void* stream);

// Whether the library is found and has all functions that are called.
absl::Status CheckCublas();

// f32 and f64; see attention.h. As above; kResourceExhausted without memory for
// the gradient of scores.
absl::Status AttentionByCublas(const Call& call, void* stream);
absl::Status AttentionBackwardByCublas(const Call& call, void* stream);

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_LIBRARIES_CUBLAS_H_
