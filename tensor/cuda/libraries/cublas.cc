#include "weft/tensor/cuda/libraries/cublas.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/cuda/attention.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/libraries/library.h"
#include "weft/tensor/cuda/product.h"

namespace weft::internal::cuda {
namespace {

// The functions of the library that are called, by their own names.
struct Functions {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulDescCreate) desc_create;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&::cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set;
};

absl::StatusOr<Functions> Load() {
  WEFT_ASSIGN_OR_RETURN(
      const Library library,
      Library::Open("libcublasLt.so.13", "products", "the CUDA toolkit"));
  Functions f;
  const auto find = [&library](const char* name, auto* function) {
    return library.Find(name, function);
  };
  WEFT_RETURN_IF_ERROR(find("cublasLtCreate", &f.create));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatmul", &f.matmul));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatmulAlgoGetHeuristic", &f.heuristic));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatmulDescCreate", &f.desc_create));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatmulDescDestroy", &f.desc_destroy));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatmulDescSetAttribute", &f.desc_set));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatrixLayoutCreate", &f.layout_create));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatrixLayoutDestroy", &f.layout_destroy));
  WEFT_RETURN_IF_ERROR(find("cublasLtMatrixLayoutSetAttribute", &f.layout_set));
  WEFT_RETURN_IF_ERROR(
      find("cublasLtMatmulPreferenceCreate", &f.preference_create));
  WEFT_RETURN_IF_ERROR(
      find("cublasLtMatmulPreferenceDestroy", &f.preference_destroy));
  WEFT_RETURN_IF_ERROR(
      find("cublasLtMatmulPreferenceSetAttribute", &f.preference_set));
  return f;
}

absl::Status CublasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat(what, " failed with cublasStatus_t ", status);
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? absl::UnimplementedError(text)
                                               : absl::InternalError(text);
}

// The library and its handle for each device.
//
// Thread-safety: thread-safe.
class Cublas {
 public:
  Cublas() : functions_(Load()) {}

  const absl::StatusOr<Functions>& functions() const { return functions_; }

  // The handle of the current device.
  absl::StatusOr<cublasLtHandle_t> Handle() ABSL_LOCKS_EXCLUDED(mu_) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) {
      return absl::InternalError(
          absl::StrCat("cudaGetDevice: ", cudaGetErrorString(error)));
    }
    const MutexLock lock(mu_);
    const auto found = handles_.find(device);
    if (found != handles_.end()) return found->second;
    cublasLtHandle_t handle = nullptr;
    WEFT_RETURN_IF_ERROR(
        CublasStatus(functions_->create(&handle), "cublasLtCreate"));
    handles_[device] = handle;
    return handle;
  }

 private:
  const absl::StatusOr<Functions> functions_;
  Mutex mu_;
  std::map<int, cublasLtHandle_t> handles_ ABSL_GUARDED_BY(mu_);
};

// One for the process, as a library that is linked is, and never destroyed:
// at exit the driver may be gone before it.
Cublas& TheCublas() {
  static Cublas& cublas = *new Cublas();
  return cublas;
}

// Creates and destroys one of cuBLASLt's descriptions.
template <typename Description>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(Description);
  explicit Owned(Destroy destroy) : destroy_(destroy) {}
  ~Owned() {
    if (description_ != nullptr) destroy_(description_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Description* out() { return &description_; }
  Description get() const { return description_; }

 private:
  const Destroy destroy_;
  Description description_ = nullptr;
};

// What is multiplied, and how it is added to `out`.
struct Terms {
  Element element;
  const char* a;
  const char* b;
  const char* bias = nullptr;  // added by the product itself
  char* out;
  bool accumulates = false;
};

int64_t SizeOf(Element element) {
  if (element == Element::kF64) return 8;
  return element == Element::kF32 ? 4 : 2;
}

cudaDataType_t ProductTypeOf(Element element) {
  switch (element) {
    case Element::kF64:
      return CUDA_R_64F;
    case Element::kF16:
      return CUDA_R_16F;
    case Element::kBF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// The largest power of two that divides the address, at most 256, which is
// what cuBLASLt takes for granted if it is not told.
uint32_t AlignmentOf(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  uint32_t alignment = 256;
  while (bits % alignment != 0) alignment /= 2;
  return alignment;
}

// One call of cublasLtMatmul. Its descriptions live as long as it.
class Multiplication {
 public:
  Multiplication(const Functions& functions, const Product& product,
                 const Terms& terms)
      : f_(functions),
        p_(product),
        t_(terms),
        desc_(f_.desc_destroy),
        first_(f_.layout_destroy),
        second_(f_.layout_destroy),
        out_(f_.layout_destroy),
        preference_(f_.preference_destroy) {}

  absl::Status Run(cublasLtHandle_t handle, cudaStream_t stream) {
    WEFT_RETURN_IF_ERROR(Describe());
    cublasLtMatmulHeuristicResult_t chosen;
    int count = 0;
    WEFT_RETURN_IF_ERROR(
        CublasStatus(f_.heuristic(handle, desc_.get(), first_.get(),
                                  second_.get(), out_.get(), out_.get(),
                                  preference_.get(), 1, &chosen, &count),
                     "cublasLtMatmulAlgoGetHeuristic"));
    if (count == 0) {
      return absl::UnimplementedError("cuBLASLt knows no way to multiply this");
    }
    const double one64 = 1;
    const double beta64 = t_.accumulates ? 1 : 0;
    const float one32 = 1;
    const float beta32 = t_.accumulates ? 1 : 0;
    const bool is_wide = t_.element == Element::kF64;
    const void* const alpha =
        is_wide ? static_cast<const void*>(&one64) : &one32;
    const void* const beta =
        is_wide ? static_cast<const void*>(&beta64) : &beta32;
    return CublasStatus(
        f_.matmul(handle, desc_.get(), alpha, t_.b, first_.get(), t_.a,
                  second_.get(), beta, t_.out, out_.get(), t_.out, out_.get(),
                  &chosen.algo, nullptr, 0, stream),
        "cublasLtMatmul");
  }

 private:
  cudaDataType_t type() const { return ProductTypeOf(t_.element); }
  // In which products are added up, and of the factors of `out`.
  cudaDataType_t scale_type() const {
    return t_.element == Element::kF64 ? CUDA_R_64F : CUDA_R_32F;
  }

  absl::Status Describe() {
    const auto compute =
        t_.element == Element::kF64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    WEFT_RETURN_IF_ERROR(
        CublasStatus(f_.desc_create(desc_.out(), compute, scale_type()),
                     "MatmulDescCreate"));
    WEFT_RETURN_IF_ERROR(SetTransposed(CUBLASLT_MATMUL_DESC_TRANSA, p_.first));
    WEFT_RETURN_IF_ERROR(SetTransposed(CUBLASLT_MATMUL_DESC_TRANSB, p_.second));
    if (t_.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      WEFT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
      WEFT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                               static_cast<const void*>(t_.bias)));
    }
    WEFT_RETURN_IF_ERROR(DescribeSide(p_.first, first_.out()));
    WEFT_RETURN_IF_ERROR(DescribeSide(p_.second, second_.out()));
    WEFT_RETURN_IF_ERROR(DescribeSide(p_.out, out_.out()));
    WEFT_RETURN_IF_ERROR(CublasStatus(f_.preference_create(preference_.out()),
                                      "MatmulPreferenceCreate"));
    // No memory beside: what is lent to a stream has no owner here.
    WEFT_RETURN_IF_ERROR(
        Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{0}));
    WEFT_RETURN_IF_ERROR(
        Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(t_.b)));
    WEFT_RETURN_IF_ERROR(
        Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(t_.a)));
    WEFT_RETURN_IF_ERROR(Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                AlignmentOf(t_.out)));
    return Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                  AlignmentOf(t_.out));
  }

  absl::Status SetTransposed(cublasLtMatmulDescAttributes_t attribute,
                             const Side& side) {
    const cublasOperation_t operation =
        side.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return Set(attribute, operation);
  }

  absl::Status DescribeSide(const Side& side, cublasLtMatrixLayout_t* layout) {
    WEFT_RETURN_IF_ERROR(CublasStatus(
        f_.layout_create(layout, type(), side.rows, side.columns, side.leading),
        "MatrixLayoutCreate"));
    if (p_.batches == 1) return absl::OkStatus();
    const int32_t count = static_cast<int32_t>(p_.batches);
    WEFT_RETURN_IF_ERROR(
        CublasStatus(f_.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                   &count, sizeof(count)),
                     "MatrixLayoutSetAttribute"));
    return CublasStatus(
        f_.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                      &side.batch_stride, sizeof(side.batch_stride)),
        "MatrixLayoutSetAttribute");
  }

  template <typename T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return CublasStatus(
        f_.desc_set(desc_.get(), attribute, &value, sizeof(value)),
        "MatmulDescSetAttribute");
  }
  template <typename T>
  absl::Status Prefer(cublasLtMatmulPreferenceAttributes_t attribute,
                      const T& value) {
    return CublasStatus(
        f_.preference_set(preference_.get(), attribute, &value, sizeof(value)),
        "MatmulPreferenceSetAttribute");
  }

  const Functions& f_;
  const Product& p_;
  const Terms t_;
  Owned<cublasLtMatmulDesc_t> desc_;
  Owned<cublasLtMatrixLayout_t> first_;
  Owned<cublasLtMatrixLayout_t> second_;
  Owned<cublasLtMatrixLayout_t> out_;
  Owned<cublasLtMatmulPreference_t> preference_;
};

absl::Status Lacks(const char* lack) {
  return lack == nullptr ? absl::OkStatus() : absl::UnimplementedError(lack);
}

// Writes `x`, broadcast, to `out`.
absl::Status Spread(const Operand& x, const Operand& out, void* stream) {
  Call call = {};
  call.count = 2;
  call.operands[0] = x;
  call.operands[1] = out;
  return Lacks(LaunchCopy(call, stream));
}

absl::Status Zero(const Operand& out, void* stream) {
  Call call = {};
  call.count = 1;
  call.operands[0] = out;
  return Lacks(LaunchFill(call, stream));
}

// The last operand is the result. `bias`: null if there is none.
absl::Status Multiply(const Call& call, bool b_is_swapped, const Operand* bias,
                      bool accumulates, void* stream) {
  const Operand& a = call.operands[0];
  const Operand& b = call.operands[1];
  const Operand& out = call.operands[call.count - 1];
  const bool is_known = AreProductElements(call);
  if (!is_known) return Lacks(kNoDType);
  if (out.numel == 0) return absl::OkStatus();
  Product product;
  WEFT_RETURN_IF_ERROR(Lacks(PlanProduct(a, b, b_is_swapped, out, &product)));
  Terms terms = {};
  terms.element = out.element;
  terms.accumulates = accumulates;
  if (bias != nullptr) {
    // cuBLASLt adds no bias to f64, and loads more than one element at a time.
    if (terms.element != Element::kF64 && bias->is_contiguous &&
        AlignmentOf(bias->address) >= 16 && product.k > 0) {
      terms.bias = bias->data<const char>();
    } else {
      WEFT_RETURN_IF_ERROR(Spread(*bias, out, stream));
      terms.accumulates = true;
    }
  }
  if (product.k == 0) {
    return terms.accumulates ? absl::OkStatus() : Zero(out, stream);
  }
  Cublas& cublas = TheCublas();
  WEFT_RETURN_IF_ERROR(cublas.functions().status());
  WEFT_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, cublas.Handle());
  const int64_t item = SizeOf(terms.element);
  for (int64_t i = 0; i < product.calls; ++i) {
    const Offsets<3> at = product.Place(i);
    terms.a = a.data<const char>() + at[0] * item;
    terms.b = b.data<const char>() + at[1] * item;
    terms.out = out.data<char>() + at[2] * item;
    Multiplication multiplication(*cublas.functions(), product, terms);
    WEFT_RETURN_IF_ERROR(
        multiplication.Run(handle, static_cast<cudaStream_t>(stream)));
  }
  return absl::OkStatus();
}

// What Attention of attention.h is made of.
class AttentionSteps {
 public:
  explicit AttentionSteps(void* stream) : stream_(stream) {}

  static bool HasLack(const absl::Status& status) { return !status.ok(); }

  absl::Status Multiply(const Operand& a, const Operand& b,
                        const Operand& out) const {
    Call call = {};
    call.count = 3;
    call.operands[0] = a;
    call.operands[1] = b;
    call.operands[2] = out;
    return cuda::Multiply(call, false, nullptr, false, stream_);
  }
  absl::Status ToWeights(const Call& call) const {
    return Lacks(LaunchOp<AttentionWeights>(call, stream_));
  }
  absl::Status ToScores(const Call& call) const {
    return Lacks(LaunchOp<AttentionWeightsBackward>(call, stream_));
  }
  template <typename Use>
  absl::Status WithScores(const Operand& like, const Use& use) const {
    if (like.numel == 0) return use(like);
    const auto stream = static_cast<cudaStream_t>(stream_);
    Operand scores = like;
    const auto bytes = static_cast<size_t>(like.numel * SizeOf(like.element));
    const cudaError_t error = cudaMallocAsync(&scores.address, bytes, stream);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // It is told here.
      return absl::ResourceExhaustedError(absl::StrCat(
          bytes,
          " bytes for the gradient of scores: ", cudaGetErrorString(error)));
    }
    const absl::Status status = use(scores);
    (void)cudaFreeAsync(scores.address, stream);
    return status;
  }

 private:
  void* const stream_;
};

}  // namespace

absl::Status CheckCublas() { return TheCublas().functions().status(); }

absl::Status AttentionByCublas(const Call& call, void* stream) {
  if (call.count != 6) return Lacks(kNoCount);
  AttentionSteps steps(stream);
  return Attention(call, steps);
}

absl::Status AttentionBackwardByCublas(const Call& call, void* stream) {
  if (call.count != 8) return Lacks(kNoCount);
  AttentionSteps steps(stream);
  return AttentionBackward(call, steps);
}

absl::Status MatMulByCublas(const Call& call, void* stream) {
  if (call.count != 3) return Lacks(kNoCount);
  return Multiply(call, false, nullptr, false, stream);
}

absl::Status MatMulAddByCublas(const Call& call, void* stream) {
  if (call.count != 3) return Lacks(kNoCount);
  return Multiply(call, false, nullptr, true, stream);
}

absl::Status LinearByCublas(const Call& call, void* stream) {
  if (call.count != 3 && call.count != 4) return Lacks(kNoCount);
  return Multiply(call, true, call.count == 4 ? &call.operands[2] : nullptr,
                  false, stream);
}

}  // namespace weft::internal::cuda
