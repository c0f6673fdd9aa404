#include "weft/tensor/cuda/cublas.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/product.h"

namespace weft::internal::cuda {
namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";

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

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(kLibrary, " has no ", name, "; it is of another version"));
}

absl::StatusOr<Functions> Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("products on CUDA need ", kLibrary,
                     " of the CUDA toolkit, which was "
                     "not found: ",
                     dlerror(), "; name its folder in LD_LIBRARY_PATH"));
  }
  Functions f;
  const auto find = [library](const char* name, auto* function) {
    return Find(library, name, function);
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

  // Of the current device.
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

int64_t SizeOf(Element element) { return element == Element::kF64 ? 8 : 4; }

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
  cudaDataType_t type() const {
    return t_.element == Element::kF64 ? CUDA_R_64F : CUDA_R_32F;
  }

  absl::Status Describe() {
    const auto compute =
        t_.element == Element::kF64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    WEFT_RETURN_IF_ERROR(CublasStatus(
        f_.desc_create(desc_.out(), compute, type()), "MatmulDescCreate"));
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
  if (!out.is_contiguous) return Lacks(kNotContiguous);
  if (out.numel == 0) return absl::OkStatus();
  Product product;
  WEFT_RETURN_IF_ERROR(Lacks(PlanProduct(a, b, b_is_swapped, out, &product)));
  Terms terms = {};
  terms.element = out.element;
  terms.accumulates = accumulates;
  if (bias != nullptr) {
    // cuBLASLt adds a bias to f32, and loads more than one element at a time.
    if (terms.element == Element::kF32 && bias->is_contiguous &&
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

}  // namespace

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
