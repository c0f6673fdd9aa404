// Attention: products of matrices, and between them scores that become weights
// in place.
//
// They compute what tensor/ops/attention.cc does.

#ifndef WEFT_TENSOR_CUDA_ATTENTION_H_
#define WEFT_TENSOR_CUDA_ATTENTION_H_

#include "weft/tensor/cuda/rows.h"

namespace weft::internal::cuda {

// The rows [..., queries, keys] of scores.
struct ScoreRows {
  int64_t queries;
  int64_t keys;
  bool is_causal;
  // How many keys the query of a row sees.
  WEFT_HOST_DEVICE int64_t Visible(int64_t row) const {
    const int64_t upto = row % queries + 1;
    return is_causal && upto < keys ? upto : keys;
  }
};

inline ScoreRows ScoreRowsOf(const Operand& weights, bool is_causal) {
  return {weights.sizes[weights.dims - 2], weights.sizes[weights.dims - 1],
          is_causal};
}

template <typename T>
struct AttentionWeightsBody {
  ScoreRows rows;
  T scale;
  StridedIndex<1> mask_index;
  const bool* mask;  // or null
  T* scores;

  WEFT_HOST_DEVICE bool MaySee(int64_t at) const {
    return mask == nullptr || mask[mask_index.At(at)[0]];
  }
  // Very low and not -infinity, of which a query that sees nothing would become
  // NaN.
  WEFT_HOST_DEVICE T Score(int64_t at) const {
    return MaySee(at) ? scores[at] * scale : T(-1e30);
  }
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const int64_t first = row * rows.keys;
    const int64_t visible = rows.Visible(row);
    T largest = kLowest<T>;
    for (int64_t j = team.lane(); j < visible; j += team.width()) {
      largest = MaximumOp()(largest, Score(first + j));
    }
    largest = team.Fold(largest, MaximumOp());
    Wide<T> total = 0;
    for (int64_t j = team.lane(); j < visible; j += team.width()) {
      total += Exp(Score(first + j) - largest);
    }
    const T share = T(1) / static_cast<T>(team.Fold(total, AddOp()));
    for (int64_t j = team.lane(); j < rows.keys; j += team.width()) {
      const bool is_seen = j < visible && MaySee(first + j);
      scores[first + j] =
          is_seen ? Exp(Score(first + j) - largest) * share : T(0);
    }
  }
};

// Scores become weights. Operands: scores, contiguous; a mask of their shape,
// if there is one. Numbers: scale, whether it is causal.
struct AttentionWeights {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 1 && call.count != 2) return kNoCount;
    const Operand& scores = call.operands[0];
    const bool has_mask = call.count == 2;
    if (!scores.is_contiguous) return kNotContiguous;
    StridedIndex<1> index;
    if (has_mask) {
      const Operand& mask = call.operands[1];
      if (mask.element != Element::kBool) return kNoDType;
      if (!MakeIndex<1>(mask.dims, mask.sizes, {LayoutOf(mask)}, &index)) {
        return kTooManyDims;
      }
    }
    const ScoreRows rows = ScoreRowsOf(scores, call.numbers[1] != 0);
    return VisitReal(scores.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      if (scores.numel == 0) return nullptr;
      executor.ForEachRow(
          scores.numel / rows.keys, rows.keys, false,
          AttentionWeightsBody<T>{
              rows, static_cast<T>(call.numbers[0]), index,
              has_mask ? call.operands[1].data<const bool>() : nullptr,
              scores.data<T>()});
      return nullptr;
    });
  }
};

template <typename T>
struct AttentionWeightsBackwardBody {
  ScoreRows rows;
  T scale;
  const T* weights;
  T* grad;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const T* const w = weights + row * rows.keys;
    T* const g = grad + row * rows.keys;
    const int64_t visible = rows.Visible(row);
    Wide<T> total = 0;
    for (int64_t j = team.lane(); j < visible; j += team.width()) {
      total += w[j] * g[j];
    }
    const T sum = static_cast<T>(team.Fold(total, AddOp()));
    // What is hidden counts for nothing, also where it is NaN.
    for (int64_t j = team.lane(); j < rows.keys; j += team.width()) {
      g[j] = j < visible ? w[j] * (g[j] - sum) * scale : T(0);
    }
  }
};

// The gradient to weights becomes that to scores. Operands: weights, gradient;
// contiguous. Numbers: scale, whether it is causal.
struct AttentionWeightsBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckLines(call, 2)) return lack;
    const Operand& weights = call.operands[0];
    const ScoreRows rows = ScoreRowsOf(weights, call.numbers[1] != 0);
    return VisitReal(weights.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      if (weights.numel == 0) return nullptr;
      executor.ForEachRow(
          weights.numel / rows.keys, rows.keys, false,
          AttentionWeightsBackwardBody<T>{rows, static_cast<T>(call.numbers[0]),
                                          weights.data<const T>(),
                                          call.operands[1].data<T>()});
      return nullptr;
    });
  }
};

inline Operand Transposed(Operand x) {
  const int rows = x.dims - 2;
  const int columns = x.dims - 1;
  const int64_t size = x.sizes[rows];
  const int64_t stride = x.strides[rows];
  x.sizes[rows] = x.sizes[columns];
  x.strides[rows] = x.strides[columns];
  x.sizes[columns] = size;
  x.strides[columns] = stride;
  x.is_contiguous = false;
  return x;
}

// The operand of the call in place of which one was given that is not used.
inline const Operand* OperandIf(const Call& call, int operand, int number) {
  return call.numbers[number] != 0 ? &call.operands[operand] : nullptr;
}

// `steps` runs what attention is made of, in order, each null or what it lacks:
//   Lack Multiply(const Operand& a, const Operand& b, const Operand& out);
//   Lack ToWeights(const Call& call);          see AttentionWeights
//   Lack ToScores(const Call& call);           see AttentionWeightsBackward
//   Lack WithScores(const Operand& like, use); calls use(scores), memory that
//                                              lies as `like`, contiguous
// Lack is OK where !HasLack(lack).
//
// Operands: query, key, value, mask or another, weights, out. Numbers: scale,
// whether it is causal, has a mask.
template <typename Steps>
auto Attention(const Call& call, Steps& steps) {
  const Operand* const x = call.operands;
  auto lack = steps.Multiply(x[0], Transposed(x[1]), x[4]);
  if (Steps::HasLack(lack)) return lack;
  Call scores = {};
  scores.count = call.numbers[2] != 0 ? 2 : 1;
  scores.operands[0] = x[4];
  scores.operands[1] = x[3];
  scores.numbers[0] = call.numbers[0];
  scores.numbers[1] = call.numbers[1];
  lack = steps.ToWeights(scores);
  if (Steps::HasLack(lack)) return lack;
  return steps.Multiply(x[4], x[2], x[5]);
}

// Operands: grad, query, key, value, weights, and the gradients of the query,
// the key and the value. Numbers: scale, whether it is causal, which gradients
// are wanted.
template <typename Steps>
auto AttentionBackward(const Call& call, Steps& steps) {
  const Operand* const x = call.operands;
  const Operand* const to_query = OperandIf(call, 5, 2);
  const Operand* const to_key = OperandIf(call, 6, 3);
  const Operand* const to_value = OperandIf(call, 7, 4);
  if (to_value != nullptr) {
    auto lack = steps.Multiply(Transposed(x[4]), x[0], *to_value);
    if (Steps::HasLack(lack) || (to_query == nullptr && to_key == nullptr)) {
      return lack;
    }
  }
  return steps.WithScores(x[4], [&](const Operand& scores) {
    auto lack = steps.Multiply(x[0], Transposed(x[3]), scores);
    if (Steps::HasLack(lack)) return lack;
    Call back = {};
    back.count = 2;
    back.operands[0] = x[4];
    back.operands[1] = scores;
    back.numbers[0] = call.numbers[0];
    back.numbers[1] = call.numbers[1];
    lack = steps.ToScores(back);
    if (Steps::HasLack(lack)) return lack;
    if (to_query != nullptr) {
      lack = steps.Multiply(scores, x[2], *to_query);
      if (Steps::HasLack(lack)) return lack;
    }
    if (to_key != nullptr) {
      lack = steps.Multiply(Transposed(scores), x[1], *to_key);
    }
    return lack;
  });
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ATTENTION_H_
