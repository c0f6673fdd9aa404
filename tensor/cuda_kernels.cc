#include "weft/tensor/cuda_kernels.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/tensor/cuda/cublas.h"
#include "weft/tensor/cuda/functions.h"
#include "weft/tensor/cuda/launchers.h"
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
    {"Abs", &LaunchUnary<Abs>},
    {"Add", &LaunchBinary<OfTwo<AddOp>>},
    {"AddNumber", &LaunchUnary<WithNumber<AddOp>>},
    {"AddNumber_", &LaunchUnary<WithNumber<AddOp>>},
    {"Add_", &LaunchBinary<OfTwo<AddOp>>},
    {"ArgMax", &LaunchArgMax},
    {"ArgMin", &LaunchArgMin},
    {"Axpy_", &LaunchBinary<Axpy>},
    {"Clamp", &LaunchUnary<Clamp>},
    {"Copy", &LaunchCopy},
    {"Cos", &LaunchUnary<Cos>},
    {"CrossEntropy", &LaunchCrossEntropy},
    {"CrossEntropyBackward", &LaunchCrossEntropyBackward},
    {"Div", &LaunchBinary<OfTwo<DivOp>>},
    {"DivNumber", &LaunchUnary<WithNumber<DivOp>>},
    {"Div_", &LaunchBinary<OfTwo<DivOp>>},
    {"Equal", &LaunchBinary<OfTwo<EqualOp>>},
    {"EqualNumber", &LaunchUnary<WithNumber<EqualOp>>},
    {"Exp", &LaunchUnary<Exponential>},
    {"Fill", &LaunchFill},
    {"Gelu", &LaunchUnary<Gelu>},
    {"GeluBackward", &LaunchBinary<GeluBackward>},
    {"GeluTanh", &LaunchUnary<GeluTanh>},
    {"GeluTanhBackward", &LaunchBinary<GeluTanhBackward>},
    {"Greater", &LaunchBinary<OfTwo<GreaterOp>>},
    {"GreaterEqual", &LaunchBinary<OfTwo<GreaterEqualOp>>},
    {"GreaterEqualNumber", &LaunchUnary<WithNumber<GreaterEqualOp>>},
    {"GreaterNumber", &LaunchUnary<WithNumber<GreaterOp>>},
    {"Less", &LaunchBinary<OfTwo<LessOp>>},
    {"LessEqual", &LaunchBinary<OfTwo<LessEqualOp>>},
    {"LessNumber", &LaunchUnary<WithNumber<LessOp>>},
    {"Linear", &LinearByCublas},
    {"Log", &LaunchUnary<Log>},
    {"Log1p", &LaunchUnary<Log1p>},
    {"LogSoftmax", &LaunchLogSoftmax},
    {"LogSoftmaxBackward", &LaunchLogSoftmaxBackward},
    {"MatMul", &MatMulByCublas},
    {"MatMulAdd_", &MatMulAddByCublas},
    {"MatMulInto", &MatMulByCublas},
    {"Max", &LaunchMax},
    {"Maximum", &LaunchBinary<OfTwo<MaximumOp>>},
    {"Min", &LaunchMin},
    {"Minimum", &LaunchBinary<OfTwo<MinimumOp>>},
    {"Mul", &LaunchBinary<OfTwo<MulOp>>},
    {"MulNumber", &LaunchUnary<WithNumber<MulOp>>},
    {"MulNumber_", &LaunchUnary<WithNumber<MulOp>>},
    {"Mul_", &LaunchBinary<OfTwo<MulOp>>},
    {"Neg", &LaunchUnary<Neg>},
    {"NotEqual", &LaunchBinary<OfTwo<NotEqualOp>>},
    {"NumberDiv", &LaunchUnary<OfNumberAnd<DivOp>>},
    {"NumberSub", &LaunchUnary<OfNumberAnd<SubOp>>},
    {"Pow", &LaunchUnary<Pow>},
    {"Relu", &LaunchUnary<Relu>},
    {"ReluBackward", &LaunchBinary<ReluBackward>},
    {"Relu_", &LaunchUnary<Relu>},
    {"Sigmoid", &LaunchUnary<Logistic>},
    {"SigmoidBackward", &LaunchBinary<SigmoidBackward>},
    {"Sign", &LaunchUnary<Sign>},
    {"Silu", &LaunchUnary<Silu>},
    {"SiluBackward", &LaunchBinary<SiluBackward>},
    {"Sin", &LaunchUnary<Sin>},
    {"Softmax", &LaunchSoftmax},
    {"SoftmaxBackward", &LaunchSoftmaxBackward},
    {"Softplus", &LaunchUnary<Softplus>},
    {"Sqrt", &LaunchUnary<Sqrt>},
    {"Square", &LaunchUnary<Square>},
    {"SquaredNorm", &LaunchSquaredNorm},
    {"Sub", &LaunchBinary<OfTwo<SubOp>>},
    {"SubNumber", &LaunchUnary<WithNumber<SubOp>>},
    {"Sub_", &LaunchBinary<OfTwo<SubOp>>},
    {"Sum", &LaunchSum},
    {"Tanh", &LaunchUnary<HyperbolicTangent>},
    {"TanhBackward", &LaunchBinary<TanhBackward>},
    {"Where", &LaunchWhere},
    {"adam", &LaunchAdam},
    {"adamw", &LaunchAdamW},
    {"sgd", &LaunchSgd},
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
    return lack == nullptr ? absl::OkStatus()
                           : Lacking(operation, tensors, lack);
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
