#include "weft/autograd/ops/scan.h"

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/index.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;

const Op kCumsum(
    "Cumsum",
    {{"last", {{{3, 4}}}, [](Inputs in) { return Cumsum(in[0], 1); }},
     {"first", {{{3, 4}}}, [](Inputs in) { return Cumsum(in[0], 0); }}});

const Op kTopK("TopK",
               {{"largest",
                 {{{3, 5}}},
                 [](Inputs in) { return TopK(in[0], 2, 1).values; }},
                {"smallest", {{{5, 3}}}, [](Inputs in) {
                   return TopK(in[0], 3, 0, /*is_largest=*/false).values;
                 }}});

}  // namespace

Variable Cumsum(const Variable& x, int64_t dim) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [dim](const Variable& in) { return Cumsum(in, dim); }, x);
  }
  return Record(kCumsum, Cumsum(x.value(), dim), {&x},
                [dim](BackwardCall& call) {
                  call.inputs[0] = CumsumBackward(call.output(), dim);
                });
}

TopKVariables TopK(const Variable& x, int64_t k, int64_t dim, bool is_largest) {
  const TopKResult best = TopK(x.value(), k, dim, is_largest);
  Variable values = Record(
      kTopK, best.values, {&x},
      [shape = x.shape(), dim,
       indices = SavedTensor(best.indices)](BackwardCall& call) {
        const Tensor grad = call.output();
        const Tensor whole = Tensor::Zeros(shape, grad.dtype(), grad.device());
        ScatterAdd_(whole, dim, indices.Get(), grad);
        call.inputs[0] = whole;
      });
  return {std::move(values), best.indices};
}

}  // namespace weft
