#include "weft/autograd/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/base/error.h"
#include "weft/tensor/ops/attention.h"

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

Variable SelfCase(Inputs in) { return SelfAttention(in[0], 2); }
Variable SelfCausalCase(Inputs in) {
  AttentionOptions options;
  options.is_causal = true;
  return SelfAttention(in[0], 2, options);
}
Variable SelfMaskedCase(Inputs in) {
  AttentionOptions options;
  options.mask = in[1].value();
  return SelfAttention(in[0], 2, options);
}

const Op kSelfAttention("SelfAttention",
                        {{"plain", {{{2, 3, 18}}}, SelfCase},
                         {"causal", {{{2, 4, 12}}}, SelfCausalCase},
                         {"masked",
                          {{{2, 3, 12}}, {{2, 1, 3, 3}, 0, 1, Kind::kBool}},
                          SelfMaskedCase}});

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

// A query and a key have `d` elements.
AttentionScores ScoresOf(const AttentionOptions& options, int64_t d) {
  AttentionScores scores;
  scores.scale = options.scale.value_or(
      1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1))));
  scores.is_causal = options.is_causal;
  scores.mask = options.mask;
  return scores;
}

Shape ResultShape(const Tensor& q, const Tensor& v) {
  Shape shape = q.shape();
  if (!shape.empty() && v.dim() > 0) shape.back() = v.size(-1);
  return shape;
}

// The queries, keys and values of rows that hold them one after another: `all`
// [n, T, 3 * heads * d], contiguous, as three views [n, heads, T, d].
AttentionGradients PartsOf(const Tensor& all, int64_t heads) {
  const Tensor parts =
      all.View({all.size(0), all.size(1), 3, heads, all.size(2) / (3 * heads)});
  const auto part = [&](int64_t i) {
    return parts.Select(2, i).Permute({0, 2, 1, 3});
  };
  return {part(0), part(1), part(2)};
}

// x [n, T, heads * d], contiguous, as [n, heads, T, d].
Tensor HeadsOf(const Tensor& x, int64_t heads) {
  return x.View({x.size(0), x.size(1), heads, x.size(2) / heads})
      .Permute({0, 2, 1, 3});
}

}  // namespace

Variable ScaledDotProductAttention(const Variable& query, const Variable& key,
                                   const Variable& value,
                                   const AttentionOptions& options) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [&options](const Variable& q, const Variable& k, const Variable& v) {
          return ScaledDotProductAttention(q, k, v, options);
        },
        query, key, value);
  }
  const Tensor &q = query.value(), &k = key.value(), &v = value.value();
  const AttentionScores scores =
      ScoresOf(options, q.dim() > 0 ? q.size(-1) : 1);
  const Tensor result = Tensor::Empty(ResultShape(q, v), q.dtype(), q.device());
  const Tensor weights = AttentionInto(result, q, k, v, scores);
  return Record(
      kAttention, result, {&query, &key, &value},
      [q = SavedTensor(query), k = SavedTensor(key), v = SavedTensor(value),
       weights = SavedTensor(weights), scores](BackwardCall& call) {
        AttentionGradients out;
        if (call.needs(0)) out.q = Tensor::EmptyLike(q.Get());
        if (call.needs(1)) out.k = Tensor::EmptyLike(k.Get());
        if (call.needs(2)) out.v = Tensor::EmptyLike(v.Get());
        AttentionBackwardInto(out, call.output(), q.Get(), k.Get(), v.Get(),
                              weights.Get(), scores);
        call.inputs[0] = std::move(out.q);
        call.inputs[1] = std::move(out.k);
        call.inputs[2] = std::move(out.v);
      });
}

Variable SelfAttention(const Variable& projected, int64_t heads,
                       const AttentionOptions& options) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [heads, &options](const Variable& x) {
          return SelfAttention(x, heads, options);
        },
        projected);
  }
  const Tensor& x = projected.value();
  if (x.dim() != 3 || heads < 1 || x.size(2) % (3 * heads) != 0) {
    ThrowInvalidArgument("SelfAttention: projected is ", x.Describe(), ", of ",
                         heads, " heads; wanted [n, T, 3 * heads * d]");
  }
  const Tensor all = x.Contiguous();
  const AttentionGradients in = PartsOf(all, heads);
  const AttentionScores scores = ScoresOf(options, in.q.size(-1));
  const Tensor result = Tensor::Empty({x.size(0), x.size(1), x.size(2) / 3},
                                      x.dtype(), x.device());
  const Tensor weights =
      AttentionInto(HeadsOf(result, heads), in.q, in.k, in.v, scores);
  // Saves a contiguous leaf itself, not its memory.
  const SavedTensor saved =
      all.storage() == x.storage() ? SavedTensor(projected) : SavedTensor(all);
  return Record(kSelfAttention, result, {&projected},
                [all = saved, weights = SavedTensor(weights), scores,
                 heads](BackwardCall& call) {
                  const AttentionGradients in = PartsOf(all.Get(), heads);
                  Tensor grad = Tensor::EmptyLike(all.Get());
                  AttentionBackwardInto(
                      PartsOf(grad, heads),
                      HeadsOf(call.output().Contiguous(), heads), in.q, in.k,
                      in.v, weights.Get(), scores);
                  call.inputs[0] = std::move(grad);
                });
}

Variable Einsum(absl::string_view equation, const Variable& a) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [equation](const Variable& x) { return Einsum(equation, x); }, a);
  }
  return Record(kEinsum, Einsum(equation, a.value()), {&a},
                [equation = std::string(equation),
                 shape = a.shape()](BackwardCall& call) {
                  call.inputs[0] =
                      EinsumBackward(equation, call.output(), shape);
                });
}

Variable Einsum(absl::string_view equation, const Variable& a,
                const Variable& b) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [equation](const Variable& x, const Variable& y) {
          return Einsum(equation, x, y);
        },
        a, b);
  }
  return Record(
      kEinsum, Einsum(equation, a.value(), b.value()), {&a, &b},
      [equation = std::string(equation), a = SavedTensor(a),
       b = SavedTensor(b)](BackwardCall& call) {
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
