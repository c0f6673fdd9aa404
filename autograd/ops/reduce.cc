#include "weft/autograd/ops/reduce.h"

#include <utility>

#include "weft/autograd/op.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft {
namespace {

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

// The shape of `x` reduced over `dims`, with them kept as sizes of 1.
Shape KeptShape(const Tensor& x, absl::Span<const int64_t> dims) {
  if (dims.empty()) return Shape(x.dim(), 1);
  Shape kept = x.shape();
  for (const int64_t d : dims) kept[WrapDim(d, x.dim(), "reduce")] = 1;
  return kept;
}

}  // namespace

Variable Sum(const Variable& x, absl::Span<const int64_t> dims,
             bool keep_dims) {
  return Record(kSum, Sum(x.value(), dims, keep_dims), {&x},
                [shape = x.shape(),
                 kept = KeptShape(x.value(), dims)](BackwardCall& call) {
                  call.inputs[0] = call.output().Reshape(kept).Expand(shape);
                });
}

Variable Mean(const Variable& x, absl::Span<const int64_t> dims,
              bool keep_dims) {
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
  const Tensor kept = Max(x.value(), dims, true);
  Tensor max = keep_dims ? kept : Max(x.value(), dims, false);
  return Record(kMax, std::move(max), {&x},
                [x = SavedTensor(x.value()), kept = SavedTensor(kept),
                 dims = Shape(dims.begin(), dims.end())](BackwardCall& call) {
                  const Tensor grad = call.output().Reshape(kept.Get().shape());
                  call.inputs[0] =
                      ExtremumBackward(grad, x.Get(), kept.Get(), dims);
                });
}

}  // namespace weft
