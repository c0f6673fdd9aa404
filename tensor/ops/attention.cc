#include "weft/tensor/ops/attention.h"

#include <algorithm>
#include <array>
#include <limits>

#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/optional_operand.h"
#include "weft/tensor/ops/product.h"
#include "weft/tensor/ops/softmax_row.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::CheckSameDevice;
using internal::IsHalf;
using internal::Matrix;
using internal::Multiply;
using internal::OnDevice;
using internal::Or;
using internal::Product;
using internal::Wide;

// What a query's hidden scores become: very low and not -infinity, of which a
// query that sees nothing would become NaN.
constexpr double kHidden = -1e30;

// AttentionScores without the mask, which is an operand.
struct Scores {
  double scale;
  bool is_causal;
};

// How many of `keys` the query of row `i` sees.
int64_t VisibleKeys(int64_t i, int64_t keys, bool is_causal) {
  return is_causal ? std::min(i + 1, keys) : keys;
}

// ---- rows of scores

// Where loops over the first `visible` of n elements may end instead, so that
// they need no rest element by element.
int64_t WholeVectors(int64_t visible, int64_t n) {
  constexpr int64_t kVectors = 32;  // as FoldTerms takes them
  return std::min((visible + kVectors - 1) / kVectors * kVectors, n);
}

// x = softmax(x * scale) of the first `visible` elements, 0 for the rest of n.
template <typename T>
WEFT_VECTORIZE void WeightsOfRow(T* x, int64_t visible, int64_t whole,
                                 int64_t n, T scale) {
  for (int64_t i = 0; i < visible; ++i) x[i] *= scale;
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  for (int64_t i = visible; i < whole; ++i) x[i] = kNever;
  internal::SoftmaxRow(x, x, whole);
  for (int64_t i = visible; i < n; ++i) x[i] = T(0);
}

// `grad` to the weights becomes the gradient to the scores: of the first
// `visible`, 0 for the rest of n.
template <typename T>
WEFT_VECTORIZE void WeightsOfRowBackward(const T* weights, T* grad,
                                         int64_t visible, int64_t whole,
                                         int64_t n, T scale) {
  // What is hidden counts for nothing, also where it is NaN.
  for (int64_t i = visible; i < n; ++i) grad[i] = T(0);
  const T sum = internal::SumTerms<T>(
      whole, [weights, grad](int64_t i) { return weights[i] * grad[i]; });
  for (int64_t i = 0; i < visible; ++i) {
    grad[i] = weights[i] * (grad[i] - sum) * scale;
  }
}

// The rows [queries, keys] of one head's scores become weights. `mask`: at its
// element (0, 0), or null.
template <typename T>
void WeightsOfHead(T* scores, int64_t queries, int64_t keys,
                   const Scores& options, const bool* mask,
                   const Tensor& all_masks) {
  const T scale = static_cast<T>(options.scale);
  for (int64_t i = 0; i < queries; ++i) {
    T* const row = scores + i * keys;
    const int64_t visible = VisibleKeys(i, keys, options.is_causal);
    const int64_t whole = WholeVectors(visible, keys);
    if (mask == nullptr) {
      WeightsOfRow(row, visible, whole, keys, scale);
      continue;
    }
    const int d = all_masks.dim();
    const bool* const may_see = mask + i * all_masks.strides()[d - 2];
    const int64_t step = all_masks.strides()[d - 1];
    for (int64_t j = 0; j < visible; ++j) {
      row[j] = may_see[j * step] ? row[j] * scale : T(kHidden);
    }
    WeightsOfRow(row, visible, whole, keys, T(1));
    for (int64_t j = 0; j < visible; ++j) {
      if (!may_see[j * step]) row[j] = T(0);
    }
  }
}

// ---- operands

bool IsReadable(const Tensor& x) {
  const int d = x.dim();
  return internal::IsReadable(x.size(-2), x.size(-1), x.strides()[d - 2],
                              x.strides()[d - 1]);
}

Tensor Readable(const Tensor& x) { return IsReadable(x) ? x : x.Clone(); }

// A tensor to write into by whole rows: the one that is wanted, or, where its
// rows have gaps, another whose elements are copied there at the end.
class Rows {
 public:
  explicit Rows(const Tensor& wanted) : wanted_(wanted), used_(wanted) {
    if (!wanted.defined()) return;
    const int d = wanted.dim();
    const bool fits = wanted.strides()[d - 1] == 1 &&
                      wanted.strides()[d - 2] >= wanted.size(-1);
    if (!fits) used_ = Tensor::EmptyLike(wanted);
  }

  const Tensor& used() const { return used_; }
  void Finish() const {
    if (!used_.defined()) return;
    if (used_.IsSameAs(wanted_)) {
      wanted_.BumpVersion();
    } else {
      wanted_.CopyFrom(used_);
    }
  }

 private:
  const Tensor wanted_;
  Tensor used_;
};

// Row-major in its last two dimensions but for gaps; `offset` elements from the
// first. Null for an undefined tensor.
template <typename T>
T* At(const Tensor& x, int64_t offset) {
  return x.defined() ? x.data<T>() + offset : nullptr;
}

template <typename T>
Matrix<T> MatrixAt(const Tensor& x, int64_t offset) {
  const int d = x.dim();
  return {x.data<T>() + offset, x.strides()[d - 2], x.strides()[d - 1]};
}

// out = a * b, [m, k] * [k, n].
template <typename T>
void MultiplyInto(const Tensor& out, int64_t offset, int64_t m, int64_t n,
                  int64_t k, const Matrix<T>& a, const Matrix<T>& b) {
  if (!out.defined() || m == 0 || n == 0) return;
  Product<T> product;
  product.m = m;
  product.n = n;
  product.k = k;
  product.a = a;
  product.b = b;
  product.out = out.data<T>() + offset;
  product.out_row = out.strides()[out.dim() - 2];
  Multiply(product);
}

// Calls visit(offsets of the operands) for each head: where its matrices begin
// in elements. An undefined operand begins at 0.
template <size_t N, typename Visit>
void ForEachHead(const Shape& shape, const std::array<Tensor, N>& operands,
                 Visit&& visit) {
  const size_t lead = shape.size() - 2;
  const absl::Span<const int64_t> heads(shape.data(), lead);
  std::array<internal::Layout, N> layouts;
  for (size_t i = 0; i < N; ++i) {
    layouts[i].shape = heads;
    if (operands[i].defined()) {
      layouts[i].strides = {operands[i].strides().data(), lead};
    } else {
      layouts[i].shape = {};
    }
  }
  const internal::StridedLoop<N> loop(heads, layouts);
  loop.ForEachRun([&](std::array<int64_t, N> at, const auto& steps, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      visit(at);
      for (size_t k = 0; k < N; ++k) at[k] += steps[k];
    }
  });
}

void CheckOperands(const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& out, const char* where) {
  CheckSameDevice(q, k, where);
  CheckSameDevice(q, v, where);
  CheckSameDevice(q, out, where);
  bool fits = q.dim() >= 2 && q.dim() == k.dim() && q.dim() == v.dim() &&
              q.dim() == out.dim() && q.dtype() == k.dtype() &&
              q.dtype() == v.dtype() && q.dtype() == out.dtype();
  for (int d = 0; fits && d + 2 < q.dim(); ++d) {
    fits = q.shape()[d] == k.shape()[d] && q.shape()[d] == v.shape()[d] &&
           q.shape()[d] == out.shape()[d];
  }
  if (!fits || q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2) ||
      out.size(-2) != q.size(-2) || out.size(-1) != v.size(-1)) {
    ThrowInvalidArgument(where, ": query is ", q.Describe(), ", key ",
                         k.Describe(), ", value ", v.Describe(), ", result ",
                         out.Describe(),
                         "; wanted [..., queries, d], [..., keys, d], [..., "
                         "keys, e] and [..., queries, e]");
  }
  internal::CheckFloating(q, where);
}

// Checks where the gradient of `operand` is to be written.
void CheckTarget(const Tensor& out, const Tensor& operand, const char* where) {
  if (!out.defined()) return;
  CheckSameDevice(out, operand, where);
  if (out.shape() != operand.shape() || out.dtype() != operand.dtype()) {
    ThrowInvalidArgument(where, ": a gradient is to be in ", out.Describe(),
                         "; wanted ", operand.Describe(), " as its operand");
  }
  internal::CheckWritable(out, where);
}

// The mask in the shape of the weights; undefined if there is none.
Tensor MaskFor(const Tensor& mask, const Tensor& q, const Shape& weights,
               const char* where) {
  if (!mask.defined()) return mask;
  CheckSameDevice(mask, q, where);
  Shape both;
  if (mask.dtype() != DType::kBool ||
      !TryBroadcast(mask.shape(), weights, &both) || both != weights) {
    ThrowInvalidArgument(where, ": mask is ", mask.Describe(),
                         "; wanted bool that expands to ", ShapeText(weights));
  }
  return mask.Expand(weights);
}

Shape WeightsShape(const Tensor& q, const Tensor& k) {
  Shape shape = q.shape();
  shape.back() = k.size(-2);
  return shape;
}

// AttentionInto on the CPU. Operands are readable, `out` has whole rows, `mask`
// has the shape of the weights or is undefined.
template <typename T>
void AttentionOnHost(const Scores& scores, const Tensor& q, const Tensor& k,
                     const Tensor& v, const Tensor& mask, const Tensor& weights,
                     const Tensor& out) {
  const int64_t queries = q.size(-2), keys = k.size(-2);
  const int64_t d = q.size(-1), e = v.size(-1);
  const std::array<Tensor, 6> operands = {q, k, v, weights, out, mask};
  ForEachHead(weights.shape(), operands, [&](const auto& at) {
    MultiplyInto<T>(weights, at[3], queries, keys, d, MatrixAt<T>(q, at[0]),
                    MatrixAt<T>(k, at[1]).Transposed());
    if (keys > 0) {
      WeightsOfHead(weights.data<T>() + at[3], queries, keys, scores,
                    At<bool>(mask, at[5]), mask);
    }
    MultiplyInto<T>(out, at[4], queries, e, keys, MatrixAt<T>(weights, at[3]),
                    MatrixAt<T>(v, at[2]));
  });
}

// AttentionBackwardInto on the CPU. Operands are readable, `weights`
// contiguous, and the gradients have whole rows or are undefined.
template <typename T>
void AttentionBackwardOnHost(const Scores& scores, const Tensor& grad,
                             const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& weights,
                             const AttentionGradients& out) {
  const int64_t queries = q.size(-2), keys = k.size(-2);
  const int64_t d = q.size(-1), e = v.size(-1);
  const T scale = static_cast<T>(scores.scale);
  // The gradient to one head's weights, then to its scores.
  const Tensor to_scores = Tensor::Empty({queries, keys}, q.dtype());
  const std::array<Tensor, 8> operands = {q,    k,     v,     weights,
                                          grad, out.q, out.k, out.v};
  ForEachHead(weights.shape(), operands, [&](const auto& at) {
    const Matrix<T> w = MatrixAt<T>(weights, at[3]);
    const Matrix<T> from = MatrixAt<T>(grad, at[4]);
    MultiplyInto(out.v, at[7], keys, e, queries, w.Transposed(), from);
    if (!out.q.defined() && !out.k.defined()) return;
    MultiplyInto(to_scores, 0, queries, keys, e, from,
                 MatrixAt<T>(v, at[2]).Transposed());
    // Hidden keys have weight 0, and so no gradient.
    T* const s = to_scores.data<T>();
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t visible = VisibleKeys(i, keys, scores.is_causal);
      WeightsOfRowBackward(w.first + i * keys, s + i * keys, visible,
                           WholeVectors(visible, keys), keys, scale);
    }
    const Matrix<T> ds = MatrixAt<T>(to_scores, 0);
    MultiplyInto(out.q, at[5], queries, d, keys, ds, MatrixAt<T>(k, at[1]));
    MultiplyInto(out.k, at[6], keys, d, queries, ds.Transposed(),
                 MatrixAt<T>(q, at[0]));
  });
}

// AttentionBackwardInto of f16 or bf16; `weights` are f32.
void BackwardInF32(const AttentionGradients& out, const Tensor& grad,
                   const Tensor& query, const Tensor& key, const Tensor& value,
                   const Tensor& weights, const AttentionScores& options) {
  constexpr const char* kWhere = "AttentionBackwardInto";
  const Tensor* const targets[] = {&out.q, &out.k, &out.v};
  const Tensor* const operands[] = {&query, &key, &value};
  AttentionGradients wide;
  Tensor* const made[] = {&wide.q, &wide.k, &wide.v};
  for (int i = 0; i < 3; ++i) {
    CheckTarget(*targets[i], *operands[i], kWhere);
    if (!targets[i]->defined()) continue;
    *made[i] =
        Tensor::Empty(operands[i]->shape(), DType::kF32, operands[i]->device());
  }
  AttentionBackwardInto(wide, Wide(grad), Wide(query), Wide(key), Wide(value),
                        weights, options);
  for (int i = 0; i < 3; ++i) {
    if (targets[i]->defined()) targets[i]->CopyFrom(*made[i]);
  }
}

}  // namespace

Tensor AttentionInto(const Tensor& out, const Tensor& query, const Tensor& key,
                     const Tensor& value, const AttentionScores& options) {
  constexpr const char* kWhere = "AttentionInto";
  CheckOperands(query, key, value, out, kWhere);
  internal::CheckWritable(out, kWhere);
  if (IsHalf(query)) {
    const Tensor wide = Tensor::Empty(out.shape(), DType::kF32, out.device());
    Tensor weights =
        AttentionInto(wide, Wide(query), Wide(key), Wide(value), options);
    out.CopyFrom(wide);
    return weights;
  }
  Tensor weights =
      Tensor::Empty(WeightsShape(query, key), query.dtype(), query.device());
  const Tensor mask = MaskFor(options.mask, query, weights.shape(), kWhere);
  if (weights.numel() == 0 && out.numel() == 0) return weights;
  const Rows result(out);
  const Scores scores = {options.scale, options.is_causal};
  const bool has_mask = mask.defined();
  OnDevice(
      {kWhere,
       {scores.scale, scores.is_causal ? 1.0 : 0.0, has_mask ? 1.0 : 0.0}},
      [scores, has_mask](const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& mask, const Tensor& weights,
                         const Tensor& out) {
        VisitFloating(q.dtype(), kWhere, [&](auto type) {
          AttentionOnHost<typename decltype(type)::Type>(
              scores, q, k, v, has_mask ? mask : Tensor(), weights, out);
        });
      },
      Readable(query), Readable(key), Readable(value), Or(mask, weights),
      weights, result.used());
  result.Finish();
  return weights;
}

void AttentionBackwardInto(const AttentionGradients& out, const Tensor& grad,
                           const Tensor& query, const Tensor& key,
                           const Tensor& value, const Tensor& weights,
                           const AttentionScores& options) {
  constexpr const char* kWhere = "AttentionBackwardInto";
  CheckOperands(query, key, value, grad, kWhere);
  CheckSameDevice(query, weights, kWhere);
  if (IsHalf(query)) {
    return BackwardInF32(out, grad, query, key, value, weights, options);
  }
  const Shape shape = WeightsShape(query, key);
  if (weights.shape() != shape || weights.dtype() != query.dtype()) {
    ThrowInvalidArgument(kWhere, ": weights are ", weights.Describe(),
                         "; wanted ", Name(query.dtype()), ShapeText(shape),
                         ", as AttentionInto returned them");
  }
  CheckTarget(out.q, query, kWhere);
  CheckTarget(out.k, key, kWhere);
  CheckTarget(out.v, value, kWhere);
  const Rows dq(out.q), dk(out.k), dv(out.v);
  const Scores scores = {options.scale, options.is_causal};
  const bool has_q = out.q.defined();
  const bool has_k = out.k.defined();
  const bool has_v = out.v.defined();
  OnDevice(
      {kWhere,
       {scores.scale, scores.is_causal ? 1.0 : 0.0, has_q ? 1.0 : 0.0,
        has_k ? 1.0 : 0.0, has_v ? 1.0 : 0.0}},
      [=](const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
          const Tensor& weights, const Tensor& dq, const Tensor& dk,
          const Tensor& dv) {
        const AttentionGradients to = {has_q ? dq : Tensor(),
                                       has_k ? dk : Tensor(),
                                       has_v ? dv : Tensor()};
        VisitFloating(q.dtype(), kWhere, [&](auto type) {
          AttentionBackwardOnHost<typename decltype(type)::Type>(
              scores, grad, q, k, v, weights, to);
        });
      },
      Readable(grad), Readable(query), Readable(key), Readable(value),
      weights.Contiguous(), Or(dq.used(), weights), Or(dk.used(), weights),
      Or(dv.used(), weights));
  dq.Finish();
  dk.Finish();
  dv.Finish();
}

}  // namespace weft
