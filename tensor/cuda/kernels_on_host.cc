#include "weft/tensor/cuda/kernels_on_host.h"

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/check.h"
#include "weft/base/error.h"
#include "weft/tensor/cuda/attention.h"
#include "weft/tensor/cuda/bags.h"
#include "weft/tensor/cuda/copy.h"
#include "weft/tensor/cuda/cross_entropy.h"
#include "weft/tensor/cuda/elementwise.h"
#include "weft/tensor/cuda/indexing.h"
#include "weft/tensor/cuda/losses.h"
#include "weft/tensor/cuda/norm.h"
#include "weft/tensor/cuda/on_host.h"
#include "weft/tensor/cuda/pool.h"
#include "weft/tensor/cuda/random.h"
#include "weft/tensor/cuda/rows.h"
#include "weft/tensor/cuda/scan.h"
#include "weft/tensor/cuda/update.h"
#include "weft/tensor/cuda_operands.h"

namespace weft::internal::cuda {
namespace {

using HostLauncher = const char* (*)(const Call& call, OnHost& executor);

struct HostKernel {
  absl::string_view name;
  HostLauncher launch;  // null: what a library computes
  absl::string_view dtypes;
  absl::string_view by;
};

template <typename Fn>
constexpr absl::string_view DTypesOf() {
  if (Fn::kHasAll) return "all";
  if (Fn::kHasIntegers) return "f32, f64, i64, u8";
  return Fn::kHasReals ? "f32, f64" : "bool";
}

constexpr HostKernel kHostKernels[] = {
#define WEFT_UNARY(name, ...) \
  {name, &Unary<__VA_ARGS__, OnHost>, DTypesOf<__VA_ARGS__>(), "kernel"},
#define WEFT_BINARY(name, ...) \
  {name, &Binary<__VA_ARGS__, OnHost>, DTypesOf<__VA_ARGS__>(), "kernel"},
#define WEFT_OP(name, Op, dtypes) \
  {name, &Op::template Run<OnHost>, dtypes, "kernel"},
#define WEFT_FUNCTION(name, Launch, Function, dtypes) \
  {name, static_cast<HostLauncher>(&Function), dtypes, "kernel"},
#define WEFT_LIBRARY(name, Function, library, dtypes) \
  {name, nullptr, dtypes, library},
#include "weft/tensor/cuda/operations.inc"
#undef WEFT_UNARY
#undef WEFT_BINARY
#undef WEFT_OP
#undef WEFT_FUNCTION
#undef WEFT_LIBRARY
};

// A product by hand, of matrices that lie in any way.
template <typename T>
void MultiplyByHand(const Operand& a, const Operand& b, const Operand& out) {
  StridedIndex<3> places;
  WEFT_CHECK(MakeIndex<3>(out.dims - 2, out.sizes,
                          {Layout{a.dims - 2, a.sizes, a.strides},
                           Layout{b.dims - 2, b.sizes, b.strides},
                           Layout{out.dims - 2, out.sizes, out.strides}},
                          &places));
  const auto step = [](const Operand& x, int from_end) {
    return x.strides[x.dims - from_end];
  };
  for (int64_t batch = 0; batch < places.count; ++batch) {
    const Offsets<3> at = places.At(batch);
    for (int64_t i = 0; i < out.sizes[out.dims - 2]; ++i) {
      for (int64_t j = 0; j < out.sizes[out.dims - 1]; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < a.sizes[a.dims - 1]; ++k) {
          sum += static_cast<double>(
                     a.data<T>()[at[0] + i * step(a, 2) + k * step(a, 1)]) *
                 static_cast<double>(
                     b.data<T>()[at[1] + k * step(b, 2) + j * step(b, 1)]);
        }
        out.data<T>()[at[2] + i * step(out, 2) + j * step(out, 1)] =
            static_cast<T>(sum);
      }
    }
  }
}

// See attention.h.
struct HandSteps {
  OnHost executor;

  static bool HasLack(const char* lack) { return lack != nullptr; }
  static const char* Multiply(const Operand& a, const Operand& b,
                              const Operand& out) {
    return VisitReal(out.element, [&](auto type) -> const char* {
      MultiplyByHand<typename decltype(type)::Type>(a, b, out);
      return nullptr;
    });
  }
  const char* ToWeights(const Call& call) {
    return AttentionWeights::Run(call, executor);
  }
  const char* ToScores(const Call& call) {
    return AttentionWeightsBackward::Run(call, executor);
  }
  template <typename Use>
  const char* WithScores(const Operand& like, const Use& use) {
    Operand scores = like;
    scores.address = executor.Allocate<double>(like.numel);
    const char* const lack = use(scores);
    executor.Free(scores.address);
    return lack;
  }
};

const char* AttentionByHand(const Call& call, OnHost& /*executor*/) {
  HandSteps steps;
  return Attention(call, steps);
}

const char* AttentionBackwardByHand(const Call& call, OnHost& /*executor*/) {
  HandSteps steps;
  return AttentionBackward(call, steps);
}

const HostKernel* Find(absl::string_view name) {
  for (const HostKernel& kernel : kHostKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

HostLauncher LauncherOf(const HostKernel& kernel) {
  if (kernel.name == "AttentionInto") return &AttentionByHand;
  if (kernel.name == "AttentionBackwardInto") return &AttentionBackwardByHand;
  return kernel.launch;
}

}  // namespace

std::vector<CudaOperation> CudaOperations() {
  std::vector<CudaOperation> all;
  for (const HostKernel& kernel : kHostKernels) {
    all.push_back({std::string(kernel.name), std::string(kernel.dtypes),
                   std::string(kernel.by)});
  }
  return all;
}

KernelsOnHost::KernelsOnHost() : before_(OperationObserver::Set(this)) {}

KernelsOnHost::~KernelsOnHost() { OperationObserver::Set(before_); }

OperationObserver::HostFunction KernelsOnHost::OnEnqueue(
    const Operation& operation, absl::Span<const Tensor* const> tensors,
    HostFunction host) {
  const std::string name = operation.name;
  const HostKernel* const kernel = Find(name);
  if (kernel == nullptr) {
    throw Error(absl::UnimplementedError(absl::StrCat(name, ": no kernel")));
  }
  const HostLauncher launch = LauncherOf(*kernel);
  if (launch == nullptr) return host;
  return [name, launch, numbers = operation.numbers,
          count = tensors.size()](const Tensor* on_host) {
    Operation own(name.c_str());
    own.numbers = numbers;
    std::vector<const Tensor*> pointers;
    for (size_t i = 0; i < count; ++i) pointers.push_back(&on_host[i]);
    OnHost executor;
    const char* const lack = launch(CallOf(own, pointers), executor);
    if (lack != nullptr) {
      throw Error(absl::UnimplementedError(absl::StrCat(name, ": ", lack)));
    }
  };
}

}  // namespace weft::internal::cuda
