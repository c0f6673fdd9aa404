#include "weft/autograd/ops/matmul.h"

#include <utility>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/reduce.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;

Variable MatMulCase(Inputs in) { return MatMul(in[0], in[1]); }
const Op kMatMul("MatMul",
                 {{"2d", {{{3, 4}}, {{4, 5}}}, MatMulCase},
                  {"batched", {{{2, 3, 4}}, {{2, 4, 5}}}, MatMulCase}});

const Op kLinear("Linear",
                 {{"bias",
                   {{{3, 4}}, {{5, 4}}, {{5}}},
                   [](Inputs in) { return Linear(in[0], in[1], in[2]); }},
                  {"no_bias", {{{3, 4}}, {{5, 4}}}, [](Inputs in) {
                     return Linear(in[0], in[1], Variable());
                   }}});

// a x b for the gradient of input `i`, in the place that its sink names.
Tensor Product(const BackwardCall& call, int i, const Tensor& a,
               const Tensor& b) {
  const GradientDestination out = call.destination(i);
  if (!out.tensor.defined() || !out.tensor.is_contiguous() ||
      out.tensor.dtype() != a.dtype()) {
    return MatMul(a, b);
  }
  if (out.add) {
    MatMulAdd_(out.tensor, a, b);
  } else {
    MatMulInto(out.tensor, a, b);
  }
  return out.tensor;
}

// The product of all sizes but the last.
int64_t NumRows(const Tensor& x) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.shape()[d];
  return rows;
}

Tensor Transposed(const Tensor& x) { return x.Transpose(-2, -1); }

}  // namespace

Variable MatMul(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [](const Variable& x, const Variable& y) { return MatMul(x, y); }, a,
        b);
  }
  return Record(
      kMatMul, MatMul(a.value(), b.value()), {&a, &b},
      [a = SavedTensor(a), b = SavedTensor(b)](BackwardCall& call) {
        const Tensor grad = call.output();
        const Tensor &x = a.Get(), &y = b.Get();
        if (call.needs(0)) {
          call.inputs[0] = SumTo(MatMul(grad, Transposed(y)), x.shape());
        }
        if (call.needs(1)) {
          call.inputs[1] = SumTo(MatMul(Transposed(x), grad), y.shape());
        }
      });
}

Variable Linear(const Variable& x, const Variable& weight,
                const Variable& bias) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [](const Variable& in, const Variable& w, const Variable& b) {
          return Linear(in, w, b);
        },
        x, weight, bias);
  }
  return Record(
      kLinear, Linear(x.value(), weight.value(), bias.value()),
      {&x, &weight, &bias},
      [x = SavedTensor(x), weight = SavedTensor(weight)](BackwardCall& call) {
        const Tensor grad = call.output();
        const Tensor &in = x.Get(), &w = weight.Get();
        // Not -1: there may be 0 inputs or outputs.
        const int64_t n = NumRows(in);
        const Tensor rows = grad.Reshape({n, w.size(0)});
        if (call.needs(0)) {
          call.inputs[0] = MatMul(rows, w).Reshape(in.shape());
        }
        if (call.needs(1)) {
          call.inputs[1] =
              Product(call, 1, Transposed(rows), in.Reshape({n, w.size(1)}));
        }
        if (call.needs(2)) call.Put(2, Sum(rows, {0}));
      });
}

}  // namespace weft
