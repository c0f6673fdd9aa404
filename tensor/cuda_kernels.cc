#include "weft/tensor/cuda_kernels.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/tensor/cuda/bags.h"
#include "weft/tensor/cuda/functions.h"
#include "weft/tensor/cuda/indexing.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/libraries/cublas.h"
#include "weft/tensor/cuda/libraries/cudnn.h"
#include "weft/tensor/cuda/losses.h"
#include "weft/tensor/cuda/norm.h"
#include "weft/tensor/cuda/pool.h"
#include "weft/tensor/cuda/random.h"
#include "weft/tensor/cuda/scan.h"
#include "weft/tensor/cuda/update.h"
#include "weft/tensor/cuda_operands.h"

namespace weft::internal {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): a table of it.

using LibraryCall = absl::Status (*)(const Call& call, void* stream);

// One of the two.
struct Kernel {
  constexpr Kernel(absl::string_view operation, Launcher launcher)
      : name(operation), launch(launcher) {}
  constexpr Kernel(absl::string_view operation, LibraryCall library)
      : name(operation), call(library) {}

  absl::string_view name;
  Launcher launch = nullptr;
  LibraryCall call = nullptr;
};

// Sorted by name.
constexpr Kernel kKernels[] = {
#define WEFT_UNARY(name, ...) {name, &LaunchUnary<__VA_ARGS__>},
#define WEFT_BINARY(name, ...) {name, &LaunchBinary<__VA_ARGS__>},
#define WEFT_OP(name, Op, dtypes) {name, &LaunchOp<Op>},
#define WEFT_FUNCTION(name, Launch, Function, dtypes) {name, &Launch},
#define WEFT_LIBRARY(name, Function, library, dtypes) {name, &Function},
#include "weft/tensor/cuda/operations.inc"
#undef WEFT_UNARY
#undef WEFT_BINARY
#undef WEFT_OP
#undef WEFT_FUNCTION
#undef WEFT_LIBRARY
};

constexpr bool IsSorted() {
  for (size_t i = 1; i < std::size(kKernels); ++i) {
    if (!(kKernels[i - 1].name < kKernels[i].name)) return false;
  }
  return true;
}
static_assert(IsSorted(), "Find searches by halves");

const Kernel* Find(absl::string_view name) {
  const Kernel* const found =
      std::lower_bound(std::begin(kKernels), std::end(kKernels), name,
                       [](const Kernel& kernel, absl::string_view n) {
                         return kernel.name < n;
                       });
  return found != std::end(kKernels) && found->name == name ? found : nullptr;
}

// "Add: f32[2, 3] on cuda:0, i64[3] on cuda:0: <lack>; ...".
absl::Status Lacking(const Operation& operation,
                     absl::Span<const Tensor* const> tensors,
                     absl::string_view lack) {
  std::string given;
  for (const Tensor* tensor : tensors) {
    absl::StrAppend(&given, given.empty() ? "" : ", ", tensor->Describe());
  }
  return absl::UnimplementedError(
      absl::StrCat(operation.name, " of ", given, " on CUDA: ", lack,
                   "; compute it on the CPU, from To(Device::Cpu())"));
}

}  // namespace

absl::Status LaunchCudaKernel(const Operation& operation,
                              absl::Span<const Tensor* const> tensors,
                              void* stream) {
  const Kernel* const kernel = Find(operation.name);
  if (kernel == nullptr) {
    return Lacking(operation, tensors, "there is no kernel of it");
  }
  if (tensors.size() > static_cast<size_t>(kMaxOperands)) {
    return Lacking(operation, tensors, kNoCount);
  }
  const Call call = CallOf(operation, tensors);
  if (kernel->launch != nullptr) {
    const char* const lack = kernel->launch(call, stream);
    if (lack == nullptr) return absl::OkStatus();
    if (absl::string_view(lack) == kNoMemory) {
      return absl::ResourceExhaustedError(
          absl::StrCat(operation.name, " on CUDA: ", lack));
    }
    return Lacking(operation, tensors, lack);
  }
  const absl::Status status = kernel->call(call, stream);
  if (status.code() == absl::StatusCode::kUnimplemented) {
    return Lacking(operation, tensors, status.message());
  }
  return status.ok()
             ? status
             : absl::Status(status.code(), absl::StrCat(operation.name, ": ",
                                                        status.message()));
}

}  // namespace weft::internal
