// WEFT_HOST_DEVICE: marks a function that kernels and the CPU share; empty
// where the compiler is not nvcc.
//
// What kernels compute is written in headers of this folder, so that tests on
// the CPU run it.

#ifndef WEFT_TENSOR_CUDA_HOST_DEVICE_H_
#define WEFT_TENSOR_CUDA_HOST_DEVICE_H_

#ifdef __CUDACC__
#define WEFT_HOST_DEVICE __host__ __device__
#else
#define WEFT_HOST_DEVICE
#endif

// Ends a kernel, and makes its device fail, for data that no kernel can go on
// with. Not for what a launcher can check.
#ifdef __CUDA_ARCH__
#define WEFT_TRAP() __trap()
#else
#define WEFT_TRAP() __builtin_trap()
#endif

#endif  // WEFT_TENSOR_CUDA_HOST_DEVICE_H_
