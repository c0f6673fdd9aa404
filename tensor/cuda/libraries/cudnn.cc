#include "weft/tensor/cuda/libraries/cudnn.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/libraries/library.h"

namespace weft::internal::cuda {
namespace {

// The functions of the library that are called, by their own names.
struct Functions {
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnSetStream) set_stream;
  decltype(&::cudnnCreateTensorDescriptor) tensor_create;
  decltype(&::cudnnSetTensor4dDescriptor) tensor_set;
  decltype(&::cudnnDestroyTensorDescriptor) tensor_destroy;
  decltype(&::cudnnCreateFilterDescriptor) filter_create;
  decltype(&::cudnnSetFilter4dDescriptor) filter_set;
  decltype(&::cudnnDestroyFilterDescriptor) filter_destroy;
  decltype(&::cudnnCreateConvolutionDescriptor) convolution_create;
  decltype(&::cudnnSetConvolution2dDescriptor) convolution_set;
  decltype(&::cudnnSetConvolutionMathType) convolution_set_math;
  decltype(&::cudnnDestroyConvolutionDescriptor) convolution_destroy;
  decltype(&::cudnnGetConvolutionForwardWorkspaceSize) forward_size;
  decltype(&::cudnnConvolutionForward) forward;
  decltype(&::cudnnGetConvolutionBackwardDataWorkspaceSize) input_size;
  decltype(&::cudnnConvolutionBackwardData) input;
  decltype(&::cudnnGetConvolutionBackwardFilterWorkspaceSize) weight_size;
  decltype(&::cudnnConvolutionBackwardFilter) weight;
};

absl::StatusOr<Functions> Load() {
  WEFT_ASSIGN_OR_RETURN(
      const Library library,
      Library::Open("libcudnn.so.9", "convolutions", "cuDNN"));
  Functions f;
#define WEFT_FIND(name, function) \
  WEFT_RETURN_IF_ERROR(library.Find(#name, &f.function))
  WEFT_FIND(cudnnCreate, create);
  WEFT_FIND(cudnnSetStream, set_stream);
  WEFT_FIND(cudnnCreateTensorDescriptor, tensor_create);
  WEFT_FIND(cudnnSetTensor4dDescriptor, tensor_set);
  WEFT_FIND(cudnnDestroyTensorDescriptor, tensor_destroy);
  WEFT_FIND(cudnnCreateFilterDescriptor, filter_create);
  WEFT_FIND(cudnnSetFilter4dDescriptor, filter_set);
  WEFT_FIND(cudnnDestroyFilterDescriptor, filter_destroy);
  WEFT_FIND(cudnnCreateConvolutionDescriptor, convolution_create);
  WEFT_FIND(cudnnSetConvolution2dDescriptor, convolution_set);
  WEFT_FIND(cudnnSetConvolutionMathType, convolution_set_math);
  WEFT_FIND(cudnnDestroyConvolutionDescriptor, convolution_destroy);
  WEFT_FIND(cudnnGetConvolutionForwardWorkspaceSize, forward_size);
  WEFT_FIND(cudnnConvolutionForward, forward);
  WEFT_FIND(cudnnGetConvolutionBackwardDataWorkspaceSize, input_size);
  WEFT_FIND(cudnnConvolutionBackwardData, input);
  WEFT_FIND(cudnnGetConvolutionBackwardFilterWorkspaceSize, weight_size);
  WEFT_FIND(cudnnConvolutionBackwardFilter, weight);
#undef WEFT_FIND
  return f;
}

absl::Status CudnnStatus(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat(what, " failed with cudnnStatus_t ", status);
  // All codes of what is not supported are in this hundred or thousand.
  const bool is_lack =
      status >= CUDNN_STATUS_NOT_SUPPORTED &&
      status < static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED) + 1000;
  return is_lack ? absl::UnimplementedError(text) : absl::InternalError(text);
}

// The library and its handle for each device.
//
// Thread-safety: thread-safe.
class Cudnn {
 public:
  Cudnn() : functions_(Load()) {}

  const absl::StatusOr<Functions>& functions() const { return functions_; }

  // use(handle), of the current device and on `stream`. One at a time: a handle
  // is for one thread. What `use` launches runs later.
  template <typename Use>
  absl::Status With(void* stream, const Use& use) ABSL_LOCKS_EXCLUDED(mu_) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) {
      return absl::InternalError(
          absl::StrCat("cudaGetDevice: ", cudaGetErrorString(error)));
    }
    const MutexLock lock(mu_);
    cudnnHandle_t& handle = handles_[device];
    if (handle == nullptr) {
      WEFT_RETURN_IF_ERROR(
          CudnnStatus(functions_->create(&handle), "cudnnCreate"));
    }
    WEFT_RETURN_IF_ERROR(CudnnStatus(
        functions_->set_stream(handle, static_cast<cudaStream_t>(stream)),
        "cudnnSetStream"));
    return use(handle);
  }

 private:
  const absl::StatusOr<Functions> functions_;
  Mutex mu_;
  std::map<int, cudnnHandle_t> handles_ ABSL_GUARDED_BY(mu_);
};

// One for the process, and never destroyed: see cublas.cc.
Cudnn& TheCudnn() {
  static Cudnn& cudnn = *new Cudnn();
  return cudnn;
}

// Memory between two calls on a stream.
class Workspace {
 public:
  explicit Workspace(void* stream)
      : stream_(static_cast<cudaStream_t>(stream)) {}
  ~Workspace() {
    if (memory_ != nullptr) (void)cudaFreeAsync(memory_, stream_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  absl::Status Take(size_t bytes) {
    bytes_ = bytes;
    if (bytes == 0) return absl::OkStatus();
    const cudaError_t error = cudaMallocAsync(&memory_, bytes, stream_);
    if (error == cudaSuccess) return absl::OkStatus();
    memory_ = nullptr;
    (void)cudaGetLastError();  // It is told here.
    return absl::ResourceExhaustedError(
        absl::StrCat("cuDNN wants ", bytes,
                     " bytes of workspace: ", cudaGetErrorString(error)));
  }
  void* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// One convolution: how its operands lie, and what it does.
class Convolution {
 public:
  Convolution(const Functions& functions, const double* numbers)
      : f_(functions), numbers_(numbers) {}
  ~Convolution() {
    if (x_ != nullptr) f_.tensor_destroy(x_);
    if (y_ != nullptr) f_.tensor_destroy(y_);
    if (weight_ != nullptr) f_.filter_destroy(weight_);
    if (convolution_ != nullptr) f_.convolution_destroy(convolution_);
  }
  Convolution(const Convolution&) = delete;
  Convolution& operator=(const Convolution&) = delete;

  absl::Status Describe(const Operand& x, const Operand& weight,
                        const Operand& y) {
    type_ = x.element == Element::kF64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    WEFT_RETURN_IF_ERROR(DescribeTensor(x, &x_));
    WEFT_RETURN_IF_ERROR(DescribeTensor(y, &y_));
    WEFT_RETURN_IF_ERROR(
        CudnnStatus(f_.filter_create(&weight_), "CreateFilterDescriptor"));
    WEFT_RETURN_IF_ERROR(CudnnStatus(
        f_.filter_set(weight_, type_, CUDNN_TENSOR_NCHW, SizeOf(weight, 0),
                      SizeOf(weight, 1), SizeOf(weight, 2), SizeOf(weight, 3)),
        "SetFilter4dDescriptor"));
    WEFT_RETURN_IF_ERROR(CudnnStatus(f_.convolution_create(&convolution_),
                                     "CreateConvolutionDescriptor"));
    // As in all libraries for training, the kernel is not turned round.
    WEFT_RETURN_IF_ERROR(CudnnStatus(
        f_.convolution_set(convolution_, Number(2), Number(3), Number(0),
                           Number(1), Number(4), Number(5),
                           CUDNN_CROSS_CORRELATION, type_),
        "SetConvolution2dDescriptor"));
    return CudnnStatus(f_.convolution_set_math(convolution_, CUDNN_FMA_MATH),
                       "SetConvolutionMathType");
  }

  // y = x * weight, plus what is in y if it `accumulates`.
  absl::Status Forward(cudnnHandle_t handle, const Call& call, const Operand& y,
                       bool accumulates, Workspace& workspace) const {
    constexpr auto kAlgorithm =
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    size_t bytes = 0;
    WEFT_RETURN_IF_ERROR(
        CudnnStatus(f_.forward_size(handle, x_, weight_, convolution_, y_,
                                    kAlgorithm, &bytes),
                    "GetConvolutionForwardWorkspaceSize"));
    WEFT_RETURN_IF_ERROR(workspace.Take(bytes));
    return CudnnStatus(
        f_.forward(handle, Factor(1), x_, call.operands[0].address, weight_,
                   call.operands[1].address, convolution_, kAlgorithm,
                   workspace.memory(), workspace.bytes(),
                   Factor(accumulates ? 1 : 0), y_, y.address),
        "cudnnConvolutionForward");
  }

  absl::Status BackwardInput(cudnnHandle_t handle, const Call& call,
                             Workspace& workspace) const {
    constexpr auto kAlgorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    size_t bytes = 0;
    WEFT_RETURN_IF_ERROR(
        CudnnStatus(f_.input_size(handle, weight_, y_, convolution_, x_,
                                  kAlgorithm, &bytes),
                    "GetConvolutionBackwardDataWorkspaceSize"));
    WEFT_RETURN_IF_ERROR(workspace.Take(bytes));
    return CudnnStatus(
        f_.input(handle, Factor(1), weight_, call.operands[1].address, y_,
                 call.operands[0].address, convolution_, kAlgorithm,
                 workspace.memory(), workspace.bytes(), Factor(0), x_,
                 call.operands[2].address),
        "cudnnConvolutionBackwardData");
  }

  absl::Status BackwardWeight(cudnnHandle_t handle, const Call& call,
                              Workspace& workspace) const {
    constexpr auto kAlgorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    size_t bytes = 0;
    WEFT_RETURN_IF_ERROR(
        CudnnStatus(f_.weight_size(handle, x_, y_, convolution_, weight_,
                                   kAlgorithm, &bytes),
                    "GetConvolutionBackwardFilterWorkspaceSize"));
    WEFT_RETURN_IF_ERROR(workspace.Take(bytes));
    return CudnnStatus(
        f_.weight(handle, Factor(1), x_, call.operands[1].address, y_,
                  call.operands[0].address, convolution_, kAlgorithm,
                  workspace.memory(), workspace.bytes(), Factor(0), weight_,
                  call.operands[2].address),
        "cudnnConvolutionBackwardFilter");
  }

 private:
  static int SizeOf(const Operand& x, int d) {
    return static_cast<int>(x.sizes[d]);  // below 2^31: see ops/conv.cc
  }
  int Number(int i) const { return static_cast<int>(numbers_[i]); }

  absl::Status DescribeTensor(const Operand& x,
                              cudnnTensorDescriptor_t* tensor) const {
    WEFT_RETURN_IF_ERROR(
        CudnnStatus(f_.tensor_create(tensor), "CreateTensorDescriptor"));
    return CudnnStatus(
        f_.tensor_set(*tensor, CUDNN_TENSOR_NCHW, type_, SizeOf(x, 0),
                      SizeOf(x, 1), SizeOf(x, 2), SizeOf(x, 3)),
        "SetTensor4dDescriptor");
  }

  // 0 or 1 as the library reads it: a double for doubles, else a float.
  const void* Factor(int value) const {
    static constexpr float kFloats[] = {0, 1};
    static constexpr double kDoubles[] = {0, 1};
    return type_ == CUDNN_DATA_DOUBLE
               ? static_cast<const void*>(&kDoubles[value])
               : static_cast<const void*>(&kFloats[value]);
  }

  const Functions& f_;
  const double* const numbers_;
  cudnnDataType_t type_ = CUDNN_DATA_FLOAT;
  cudnnTensorDescriptor_t x_ = nullptr;
  cudnnTensorDescriptor_t y_ = nullptr;
  cudnnFilterDescriptor_t weight_ = nullptr;
  cudnnConvolutionDescriptor_t convolution_ = nullptr;
};

absl::Status Lacks(const char* lack) {
  return lack == nullptr ? absl::OkStatus() : absl::UnimplementedError(lack);
}

absl::Status Check(const Call& call) {
  const Element element = call.operands[0].element;
  if (element != Element::kF32 && element != Element::kF64) {
    return Lacks(kNoDType);
  }
  for (int i = 0; i < call.count; ++i) {
    if (call.operands[i].element != element) return Lacks(kNoDType);
    if (!call.operands[i].is_contiguous) return Lacks(kNotContiguous);
  }
  return absl::OkStatus();
}

absl::Status Zero(const Operand& out, void* stream) {
  Call call = {};
  call.count = 1;
  call.operands[0] = out;
  return Lacks(LaunchFill(call, stream));
}

// Writes `bias` [filters] to each place of `out`.
absl::Status SpreadBias(const Operand& bias, const Operand& out, void* stream) {
  Call call = {};
  call.count = 2;
  call.operands[0] = bias;
  call.operands[0].dims = 3;
  for (int d = 1; d < 3; ++d) {
    call.operands[0].sizes[d] = 1;
    call.operands[0].strides[d] = 1;
  }
  call.operands[1] = out;
  return Lacks(LaunchCopy(call, stream));
}

absl::Status SumOfFilters(const Operand& grad, const Operand& to_bias,
                          void* stream) {
  Call call = {};
  call.count = 2;
  call.operands[0] = grad;
  Operand& kept = call.operands[1];
  kept = to_bias;
  kept.dims = 4;
  for (int d = 0; d < 4; ++d) {
    kept.sizes[d] = d == 1 ? to_bias.sizes[0] : 1;
    kept.strides[d] = 1;
  }
  return Lacks(LaunchSum(call, stream));
}

// run(convolution, handle, workspace) of the described operands.
template <typename Run>
absl::Status Convolve(const Call& call, const Operand& x, const Operand& weight,
                      const Operand& y, void* stream, const Run& run) {
  Cudnn& cudnn = TheCudnn();
  WEFT_RETURN_IF_ERROR(cudnn.functions().status());
  Convolution convolution(*cudnn.functions(), call.numbers);
  WEFT_RETURN_IF_ERROR(convolution.Describe(x, weight, y));
  Workspace workspace(stream);
  return cudnn.With(stream, [&](cudnnHandle_t handle) {
    return run(convolution, handle, workspace);
  });
}

}  // namespace

absl::Status CheckCudnn() { return TheCudnn().functions().status(); }

absl::Status Conv2dByCudnn(const Call& call, void* stream) {
  if (call.count != 3 && call.count != 4) return Lacks(kNoCount);
  WEFT_RETURN_IF_ERROR(Check(call));
  const Operand& y = call.operands[call.count - 1];
  const bool has_bias = call.count == 4;
  const bool is_empty = call.operands[1].numel == 0;
  if (has_bias) {
    WEFT_RETURN_IF_ERROR(SpreadBias(call.operands[2], y, stream));
  } else if (is_empty) {
    WEFT_RETURN_IF_ERROR(Zero(y, stream));
  }
  if (is_empty) return absl::OkStatus();
  return Convolve(call, call.operands[0], call.operands[1], y, stream,
                  [&](const Convolution& convolution, cudnnHandle_t handle,
                      Workspace& workspace) {
                    return convolution.Forward(handle, call, y, has_bias,
                                               workspace);
                  });
}

absl::Status Conv2dBackwardInputByCudnn(const Call& call, void* stream) {
  if (call.count != 3) return Lacks(kNoCount);
  WEFT_RETURN_IF_ERROR(Check(call));
  const Operand* const x = call.operands;
  if (x[0].numel == 0 || x[1].numel == 0) return Zero(x[2], stream);
  return Convolve(call, x[2], x[1], x[0], stream,
                  [&](const Convolution& convolution, cudnnHandle_t handle,
                      Workspace& workspace) {
                    return convolution.BackwardInput(handle, call, workspace);
                  });
}

absl::Status Conv2dBackwardWeightByCudnn(const Call& call, void* stream) {
  if (call.count != 3 && call.count != 4) return Lacks(kNoCount);
  WEFT_RETURN_IF_ERROR(Check(call));
  const Operand* const x = call.operands;
  if (call.count == 4) {
    WEFT_RETURN_IF_ERROR(SumOfFilters(x[0], x[3], stream));
  }
  if (x[0].numel == 0 || x[2].numel == 0) return Zero(x[2], stream);
  return Convolve(call, x[1], x[2], x[0], stream,
                  [&](const Convolution& convolution, cudnnHandle_t handle,
                      Workspace& workspace) {
                    return convolution.BackwardWeight(handle, call, workspace);
                  });
}

absl::Status Conv2dBackwardBiasByCudnn(const Call& call, void* stream) {
  if (call.count != 2) return Lacks(kNoCount);
  WEFT_RETURN_IF_ERROR(Check(call));
  return SumOfFilters(call.operands[0], call.operands[1], stream);
}

}  // namespace weft::internal::cuda
