#include "weft/autograd/ops/attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/record.h"
#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/matmul.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;
using Kind = SampleInput::Kind;

Variable PlainCase(Inputs in) {
  return ScaledDotProductAttention(in[0], in[1], in[2]);
}
Variable CausalCase(Inputs in) {
  AttentionOptions options;
  options.is_causal = true;
  return ScaledDotProductAttention(in[0], in[1], in[2], options);
}
Variable MaskedCase(Inputs in) {
  AttentionOptions options;
  options.mask = in[3].value();
  options.scale = 0.75;
  return ScaledDotProductAttention(in[0], in[1], in[2], options);
}

const Op kAttention(
    "ScaledDotProductAttention",
    {{"plain", {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 3}}}, PlainCase},
     {"causal", {{{2, 2, 4, 3}}, {{2, 2, 4, 3}}, {{2, 2, 4, 3}}}, CausalCase},
     {"masked",
      {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 4}}, {{3, 5}, 0, 1, Kind::kBool}},
      MaskedCase}});

OpCase EinsumCase(const char* name, const char* equation, Shape a, Shape b) {
  return {name, {{std::move(a)}, {std::move(b)}}, [equation](Inputs in) {
            return Einsum(equation, in[0], in[1]);
          }};
}

const Op kEinsum("Einsum",
                 {EinsumCase("matrices", "ij,jk->ik", {3, 4}, {4, 2}),
                  EinsumCase("heads", "bthd,bshd->bhts", {2, 3, 2, 4},
                             {2, 5, 2, 4}),
                  EinsumCase("outer", "i,j->ji", {3}, {4}),
                  EinsumCase("inner", "ij,ij->", {3, 4}, {3, 4}),
                  EinsumCase("summed", "abi,jb->j", {2, 3, 4}, {5, 3}),
                  {"one", {{{2, 3, 4}}}, [](Inputs in) {
                     return Einsum("ijk->ki", in[0]);
                   }}});

Tensor Transposed(const Tensor& x) { return x.Transpose(-2, -1); }

void CheckOperands(const Tensor& q, const Tensor& k, const Tensor& v) {
  bool fits = q.dim() >= 2 && q.dim() == k.dim() && q.dim() == v.dim();
  for (int d = 0; fits && d + 2 < q.dim(); ++d) {
    fits = q.shape()[d] == k.shape()[d] && q.shape()[d] == v.shape()[d];
  }
  if (!fits || q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2)) {
    ThrowInvalidArgument("ScaledDotProductAttention: query is ", q.Describe(),
                         ", key ", k.Describe(), ", value ", v.Describe(),
                         "; wanted [..., queries, d], [..., keys, d] and [..., "
                         "keys, e]");
  }
}

// Which keys each query sees, or undefined for all.
Tensor VisibleKeys(const AttentionOptions& options, int64_t queries,
                   int64_t keys) {
  Tensor visible = options.mask;
  if (visible.defined() && visible.dtype() != DType::kBool) {
    ThrowInvalidArgument("ScaledDotProductAttention: mask is ",
                         visible.Describe(), "; wanted bool");
  }
  if (!options.is_causal) return visible;
  const Tensor causal = Tril(Tensor::Ones({queries, keys}, DType::kBool));
  return visible.defined() ? LogicalAnd(visible, causal) : causal;
}

// softmax(scores), 0 for what is not visible. The hidden scores are made very
// low and not -infinity, of which a query that sees nothing would become NaN.
Tensor WeightsOf(const Tensor& scores, const Tensor& visible) {
  if (!visible.defined()) return Softmax(scores, -1);
  const Tensor hidden = LogicalNot(visible);
  const Tensor masked = MaskedFill(scores, hidden, -1e30);
  if (masked.shape() != scores.shape()) {
    ThrowInvalidArgument("ScaledDotProductAttention: mask is ",
                         visible.Describe(), "; wanted one that expands to ",
                         ShapeText(scores.shape()));
  }
  return MaskedFill(Softmax(masked, -1), hidden, 0);
}

}  // namespace

Variable ScaledDotProductAttention(const Variable& query, const Variable& key,
                                   const Variable& value,
                                   const AttentionOptions& options) {
  const Tensor &q = query.value(), &k = key.value(), &v = value.value();
  CheckOperands(q, k, v);
  const double scale = options.scale.value_or(
      1 / std::sqrt(static_cast<double>(std::max<int64_t>(q.size(-1), 1))));
  const Tensor scores = MatMul(q, Transposed(k));
  Mul_(scores, scale);
  const Tensor weights =
      WeightsOf(scores, VisibleKeys(options, q.size(-2), k.size(-2)));
  return Record(kAttention, MatMul(weights, v), {&query, &key, &value},
                [q = SavedTensor(q), k = SavedTensor(k), v = SavedTensor(v),
                 weights = SavedTensor(weights), scale](BackwardCall& call) {
                  const Tensor grad = call.output();
                  const Tensor& w = weights.Get();
                  if (call.needs(2))
                    call.inputs[2] = MatMul(Transposed(w), grad);
                  if (!call.needs(0) && !call.needs(1)) return;
                  const Tensor to_weights = MatMul(grad, Transposed(v.Get()));
                  // Hidden keys have weight 0, and so no gradient.
                  const Tensor to_scores = SoftmaxBackward(to_weights, w, -1);
                  Mul_(to_scores, scale);
                  if (call.needs(0))
                    call.inputs[0] = MatMul(to_scores, k.Get());
                  if (call.needs(1)) {
                    call.inputs[1] = MatMul(Transposed(to_scores), q.Get());
                  }
                });
}

Variable Einsum(absl::string_view equation, const Variable& a) {
  return Record(kEinsum, Einsum(equation, a.value()), {&a},
                [equation = std::string(equation),
                 shape = a.shape()](BackwardCall& call) {
                  call.inputs[0] =
                      EinsumBackward(equation, call.output(), shape);
                });
}

Variable Einsum(absl::string_view equation, const Variable& a,
                const Variable& b) {
  return Record(
      kEinsum, Einsum(equation, a.value(), b.value()), {&a, &b},
      [equation = std::string(equation), a = SavedTensor(a.value()),
       b = SavedTensor(b.value())](BackwardCall& call) {
        const Tensor grad = call.output();
        const Tensor &x = a.Get(), &y = b.Get();
        if (call.needs(0)) {
          call.inputs[0] = EinsumBackwardA(equation, grad, y, x.shape());
        }
        if (call.needs(1)) {
          call.inputs[1] = EinsumBackwardB(equation, grad, x, y.shape());
        }
      });
}

}  // namespace weft
