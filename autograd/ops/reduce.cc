#include "weft/autograd/ops/reduce.h"

#include <utility>

#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::Wide;
using Inputs = absl::Span<const Variable>;

const Op kSum("Sum", {{"all", {{{2, 3}}}, [](Inputs in) { return Sum(in[0]); }},
                      {"dims",
                       {{{2, 3, 4}}},
                       [](Inputs in) {
                         return Sum(in[0], {0, 2});
                       }},
                      {"keepdim", {{{2, 3, 4}}}, [](Inputs in) {
                         return Sum(in[0], {1}, true);
                       }}});

const Op kMean("Mean",
               {{"all", {{{2, 3}}}, [](Inputs in) { return Mean(in[0]); }},
                {"dims",
                 {{{2, 3, 4}}},
                 [](Inputs in) {
                   return Mean(in[0], {1, 2});
                 }},
                {"keepdim", {{{2, 3, 4}}}, [](Inputs in) {
                   return Mean(in[0], {0}, true);
                 }}});

const Op kMax("Max",
              {{"dim", {{{3, 4}}}, [](Inputs in) { return Max(in[0], {1}); }},
               {"keepdim", {{{3, 4, 2}}}, [](Inputs in) {
                  return Max(in[0], {1}, true);
                }}});

const Op kMin("Min",
              {{"dim", {{{3, 4}}}, [](Inputs in) { return Min(in[0], {1}); }},
               {"keepdim", {{{3, 4, 2}}}, [](Inputs in) {
                  return Min(in[0], {1}, true);
                }}});

const Op kVar("Var", {{"all", {{{2, 3}}}, [](Inputs in) { return Var(in[0]); }},
                      {"population", {{{2, 3, 4}}}, [](Inputs in) {
                         return Var(in[0], {0, 2}, 0, true);
                       }}});
const Op kStd("Std", {{"all", {{{2, 3}}}, [](Inputs in) { return Std(in[0]); }},
                      {"dims", {{{2, 3, 4}}}, [](Inputs in) {
                         return Std(in[0], {0, 2});
                       }}});

bool IsReduced(int d, int64_t rank, absl::Span<const int64_t> dims) {
  if (dims.empty()) return true;
  for (const int64_t dim : dims) {
    if (WrapDim(dim, rank, "reduce") == d) return true;
  }
  return false;
}

// The shape of `x` reduced over `dims`, with them kept as sizes of 1.
Shape KeptShape(const Tensor& x, absl::Span<const int64_t> dims) {
  if (dims.empty()) return Shape(x.dim(), 1);
  Shape kept = x.shape();
  for (const int64_t d : dims) kept[WrapDim(d, x.dim(), "reduce")] = 1;
  return kept;
}

// Max or Min, from its result with the reduced dimensions kept.
Variable RecordExtremum(const Op& op, const Tensor& kept, const Variable& x,
                        absl::Span<const int64_t> dims, bool keep_dims) {
  Tensor y = kept;
  if (!keep_dims) {
    Shape shape;
    for (int d = 0; d < kept.dim(); ++d) {
      if (!IsReduced(d, kept.dim(), dims)) shape.push_back(kept.shape()[d]);
    }
    y = kept.View(shape);
  }
  return Record(op, std::move(y), {&x},
                [x = SavedTensor(x), kept = SavedTensor(kept),
                 dims = Shape(dims.begin(), dims.end())](BackwardCall& call) {
                  const Tensor grad = call.output().Reshape(kept.Get().shape());
                  call.inputs[0] =
                      ExtremumBackward(grad, x.Get(), kept.Get(), dims);
                });
}

// d sum((x - mean)^2) / dx = 2 (x - mean): that of the mean cancels.
Tensor VarBackward(const Tensor& grad, const Tensor& x, const Shape& dims,
                   int64_t correction) {
  const Shape kept = KeptShape(x, dims);
  const double count = static_cast<double>(x.numel()) /
                       static_cast<double>(NumElements(kept, "Var"));
  const Tensor slope = Wide(grad);
  const Tensor distance = Centered(x, dims).To(slope.dtype());
  return Mul(Mul(distance, slope.Reshape(kept)),
             2 / (count - static_cast<double>(correction)))
      .To(x.dtype());
}

}  // namespace

Variable Sum(const Variable& x, absl::Span<const int64_t> dims,
             bool keep_dims) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [&](const Variable& in) { return Sum(in, dims, keep_dims); }, x);
  }
  return Record(kSum, Sum(x.value(), dims, keep_dims), {&x},
                [shape = x.shape(),
                 kept = KeptShape(x.value(), dims)](BackwardCall& call) {
                  call.inputs[0] = call.output().Reshape(kept).Expand(shape);
                });
}

Variable Mean(const Variable& x, absl::Span<const int64_t> dims,
              bool keep_dims) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [&](const Variable& in) { return Mean(in, dims, keep_dims); }, x);
  }
  Tensor mean = Mean(x.value(), dims, keep_dims);
  const double share = static_cast<double>(mean.numel()) / x.numel();
  return Record(kMean, std::move(mean), {&x},
                [shape = x.shape(), kept = KeptShape(x.value(), dims),
                 share](BackwardCall& call) {
                  call.inputs[0] =
                      Mul(call.output(), share).Reshape(kept).Expand(shape);
                });
}

Variable Max(const Variable& x, absl::Span<const int64_t> dims,
             bool keep_dims) {
  return RecordExtremum(kMax, Max(x.value(), dims, true), x, dims, keep_dims);
}

Variable Min(const Variable& x, absl::Span<const int64_t> dims,
             bool keep_dims) {
  return RecordExtremum(kMin, Min(x.value(), dims, true), x, dims, keep_dims);
}

Variable Var(const Variable& x, absl::Span<const int64_t> dims,
             int64_t correction, bool keep_dims) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [&](const Variable& in) {
          return Var(in, dims, correction, keep_dims);
        },
        x);
  }
  Tensor variance = Var(x.value(), dims, correction, keep_dims);
  return Record(kVar, std::move(variance), {&x},
                [x = SavedTensor(x), correction,
                 dims = Shape(dims.begin(), dims.end())](BackwardCall& call) {
                  call.inputs[0] =
                      VarBackward(call.output(), x.Get(), dims, correction);
                });
}

Variable Std(const Variable& x, absl::Span<const int64_t> dims,
             int64_t correction, bool keep_dims) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [&](const Variable& in) {
          return Std(in, dims, correction, keep_dims);
        },
        x);
  }
  const Tensor y = Std(x.value(), dims, correction, keep_dims);
  return Record(
      kStd, y, {&x},
      [x = SavedTensor(x), y = SavedTensor(y), correction,
       dims = Shape(dims.begin(), dims.end())](BackwardCall& call) {
        const Tensor deviation = Wide(y.Get());
        const Tensor slope = Div(Wide(call.output()), Mul(deviation, 2));
        const Tensor zero = Tensor::Zeros({}, slope.dtype(), slope.device());
        call.inputs[0] = VarBackward(Where(Equal(deviation, 0), zero, slope),
                                     x.Get(), dims, correction);
      });
}

}  // namespace weft
