// Update rules of optimizers, of dense gradients and of rows, clipped or not.
//
// They compute what optimizer/rules does, step by step, so that the bits are
// the same; but norms, of which clipping, lamb and rowwise_adagrad make use,
// are added up in another order, in f64. Numbers are those of
// optimizer/rules/rule_numbers.h. Operands are the weights, the slots in
// the rule's order, and the gradient, or the indices i64 [n] and values [n,
// width] of its rows, which are sorted and added up as Coalesce does; all
// contiguous, of one dtype: f32 or f64.
//
// Executor: see rows.h.

#ifndef WEFT_TENSOR_CUDA_UPDATE_H_
#define WEFT_TENSOR_CUDA_UPDATE_H_

#include <cmath>
#include <cstdint>

#include "weft/tensor/cuda/indexing.h"
#include "weft/tensor/ops/update_rules.h"

namespace weft::internal::cuda {

template <typename T>
struct UpdateState {
  T* weights;
  int slot_count;
  T* slots[3];  // in the rule's order
};

template <typename Rule, typename T>
WEFT_HOST_DEVICE void ApplyTo(const UpdateState<T>& state, int64_t i,
                              const Rule& rule, T gradient) {
  WithSlots<Rule>(state.slots, state.slot_count, [&](auto*... slots) {
    rule.Apply(gradient, state.weights[i], slots[i]...);
  });
}

// Of rules that look at norms: a row of n elements from `first` on, whose
// gradient is g(j).
template <typename T, typename Gradient, typename Team>
WEFT_HOST_DEVICE void ApplyToRow(const UpdateState<T>& state,
                                 const Lamb<T>& rule, int64_t /*row*/,
                                 int64_t first, int64_t n, const Gradient& g,
                                 const Team& team) {
  T* const weights = state.weights + first;
  T* const m = state.slots[0] + first;
  T* const v = state.slots[1] + first;
  double of_weights = 0;
  double of_steps = 0;
  for (int64_t j = team.lane(); j < n; j += team.width()) {
    rule.Average(g(j), m[j], v[j]);
    const double weight = static_cast<double>(weights[j]);
    const double step = static_cast<double>(rule.Step(weights[j], m[j], v[j]));
    of_weights += weight * weight;
    of_steps += step * step;
  }
  of_weights = std::sqrt(team.Fold(of_weights, AddOp()));
  of_steps = std::sqrt(team.Fold(of_steps, AddOp()));
  const T size = rule.Size(of_weights, of_steps);
  for (int64_t j = team.lane(); j < n; j += team.width()) {
    weights[j] -= size * rule.Step(weights[j], m[j], v[j]);
  }
}

// Its slot is one for a row.
template <typename T, typename Gradient, typename Team>
WEFT_HOST_DEVICE void ApplyToRow(const UpdateState<T>& state,
                                 const RowwiseAdagrad<T>& rule, int64_t row,
                                 int64_t first, int64_t n, const Gradient& g,
                                 const Team& team) {
  T* const weights = state.weights + first;
  T& accumulator = state.slots[0][row];
  double total = 0;
  for (int64_t j = team.lane(); j < n; j += team.width()) {
    const double decayed = static_cast<double>(rule.Decayed(g(j), weights[j]));
    total += decayed * decayed;
  }
  const T before = accumulator;
  total = team.Fold(total, AddOp());  // after all have read `before`
  const T sum = before + static_cast<T>(total / static_cast<double>(n));
  if (team.leads()) accumulator = sum;
  const T size = rule.Size(sum);
  for (int64_t j = team.lane(); j < n; j += team.width()) {
    weights[j] -= size * rule.Decayed(g(j), weights[j]);
  }
}

// ---------------------------------------------------------------- gradients

// Rows of a gradient: all of them, or, sorted, those that keys name, of which
// the first of equal ones holds the sum.
template <typename T>
struct GradientRows {
  int64_t count;
  int64_t width;
  const T* values;
  SortedView sorted;  // keys null: all rows

  WEFT_HOST_DEVICE bool IsSkipped(int64_t place) const {
    return sorted.keys != nullptr && !sorted.IsFirst(place);
  }
  WEFT_HOST_DEVICE int64_t Row(int64_t place) const {
    return sorted.keys == nullptr ? place : sorted.keys[place];
  }
};

template <typename T>
WEFT_HOST_DEVICE T ClippedTo(T most, T g) {
  if (!(most > T(0))) return g;
  return g > most ? most : (g < -most ? -most : g);
}

template <typename Rule, typename T>
struct UpdateElementsBody {
  UpdateState<T> state;
  Rule rule;
  GradientRows<T> rows;
  T most;  // 0: any
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    if (rows.sorted.keys == nullptr) {
      ApplyTo(state, i, rule, ClippedTo(most, rows.values[i]));
      return;
    }
    const int64_t place = i / rows.width;
    if (rows.IsSkipped(place)) return;
    ApplyTo(state, rows.Row(place) * rows.width + i % rows.width, rule,
            ClippedTo(most, rows.values[i]));
  }
};

// One row of a gradient, clipped.
template <typename T>
struct ClippedRow {
  const T* values;
  T most;     // 0: any
  T divisor;  // 1 but where squares would be infinite
  T factor;
  WEFT_HOST_DEVICE T operator()(int64_t j) const {
    return ClippedTo(most, values[j]) / divisor * factor;
  }
};

template <typename T, typename Team>
WEFT_HOST_DEVICE double NormOf(const ClippedRow<T>& row, int64_t n,
                               const Team& team) {
  double total = 0;
  for (int64_t j = team.lane(); j < n; j += team.width()) {
    const double g = static_cast<double>(row(j));
    total += g * g;
  }
  return std::sqrt(team.Fold(total, AddOp()));
}

// Source: as rules/clipped.cc.
template <typename T, typename Team>
WEFT_HOST_DEVICE ClippedRow<T> ClipRow(const T* values, int64_t n, T most,
                                       double most_norm, const Team& team) {
  ClippedRow<T> row = {values, most, T(1), T(1)};
  if (most_norm == 0.0) return row;
  const double norm = NormOf(row, n, team);
  if (!(norm > most_norm)) return row;
  if (!std::isinf(norm)) {
    row.factor = static_cast<T>(most_norm / norm);
    return row;
  }
  T largest = 0;
  for (int64_t j = team.lane(); j < n; j += team.width()) {
    const T size = std::fabs(row(j));
    largest = largest < size ? size : largest;
  }
  largest = team.Fold(largest, MaximumOp());
  if (std::isinf(largest)) {
    row.factor = T(0);
    return row;
  }
  row.divisor = largest;
  row.factor = static_cast<T>(most_norm / NormOf(row, n, team));
  return row;
}

template <typename Rule, typename T>
struct UpdateRowsBody {
  UpdateState<T> state;
  Rule rule;
  GradientRows<T> rows;
  T most;
  double most_norm;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t place, const Team& team) const {
    // All threads of a block are at one row, and so turn off together.
    if (rows.IsSkipped(place)) return;
    const int64_t row = rows.Row(place);
    const int64_t first = row * rows.width;
    const ClippedRow<T> gradient = ClipRow(rows.values + place * rows.width,
                                           rows.width, most, most_norm, team);
    if constexpr (Rule::kScope == UpdateScope::kElement) {
      for (int64_t j = team.lane(); j < rows.width; j += team.width()) {
        ApplyTo(state, first + j, rule, gradient(j));
      }
    } else {
      ApplyToRow(state, rule, row, first, rows.width, gradient, team);
    }
  }
};

// The first of equal keys gets the sum of all their rows.
template <typename T>
struct CoalesceBody {
  int64_t count;
  int64_t width;
  SortedView sorted;
  const T* values;
  T* sums;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t place = i / width;
    if (!sorted.IsFirst(place)) return;
    const int64_t key = sorted.keys[place];
    T total = 0;
    for (int64_t j = place; j < count && sorted.keys[j] == key; ++j) {
      total += values[sorted.from[j] * width + i % width];
    }
    sums[i] = total;
  }
};

// ----------------------------------------------------------------- launching

// The parts of a call.
struct UpdateCall {
  bool is_sparse;
  int slot_count;
  const Operand* weights;
  const Operand* gradient;  // or its values
  const Operand* indices;   // null if dense
};

inline UpdateCall UpdateCallOf(const Call& call) {
  const Operand* const last = &call.operands[call.count - 1];
  const bool is_sparse =
      call.count > 2 && call.operands[call.count - 2].element == Element::kI64;
  return {is_sparse, call.count - (is_sparse ? 3 : 2), &call.operands[0], last,
          is_sparse ? last - 1 : nullptr};
}

inline int64_t RowsOf(UpdateScope scope, const Operand& weights) {
  return scope == UpdateScope::kParameter || weights.dims == 0
             ? 1
             : weights.sizes[0];
}

// Null if the operands are as above.
inline const char* CheckUpdate(const Call& call, const UpdateCall& update,
                               bool has_row_slots) {
  for (int i = 0; i < call.count; ++i) {
    const Operand& x = call.operands[i];
    if (!x.is_contiguous) return kNotContiguous;
    if (&x == update.indices) continue;
    if (x.element != update.weights->element) return kNoDType;
    const bool is_slot = i > 0 && i <= update.slot_count;
    const bool is_free = (is_slot && has_row_slots) ||
                         (update.is_sparse && &x == update.gradient);
    if (!is_free && x.numel != update.weights->numel) {
      return "its kernel takes weights, slots and gradient of one size";
    }
  }
  return nullptr;
}

template <typename Rule, typename T, typename Executor>
void LaunchUpdate(const Call& call, const UpdateState<T>& state,
                  const GradientRows<T>& rows, Executor& executor) {
  const Rule rule(call.numbers);
  const T most = static_cast<T>(call.numbers[kClipValue]);
  const double most_norm = call.numbers[kClipNorm];
  if constexpr (Rule::kScope == UpdateScope::kElement) {
    if (most_norm == 0.0) {
      executor.ForEach(rows.count * rows.width,
                       UpdateElementsBody<Rule, T>{state, rule, rows, most});
      return;
    }
  }
  executor.ForEachRow(
      rows.count, rows.width, false,
      UpdateRowsBody<Rule, T>{state, rule, rows, most, most_norm});
}

template <typename Rule, typename T, typename Executor>
const char* UpdateSparse(const Call& call, const UpdateCall& update,
                         const UpdateState<T>& state, Executor& executor) {
  const Operand& values = *update.gradient;
  const int64_t count = update.indices->numel;
  if (values.numel == 0) return nullptr;
  const SortedKeys<Executor> sorted(
      executor, count,
      RowKey{update.indices->data<int64_t>(),
             RowsOf(UpdateScope::kRow, *update.weights)});
  T* const sums = executor.template Allocate<T>(values.numel);
  if (!sorted.ok() || sums == nullptr) {
    if (sums != nullptr) executor.Free(sums);
    return kNoMemory;
  }
  const int64_t width = values.numel / count;
  executor.ForEach(values.numel, CoalesceBody<T>{count, width, sorted.view(),
                                                 values.data<T>(), sums});
  LaunchUpdate<Rule>(call, state,
                     GradientRows<T>{count, width, sums, sorted.view()},
                     executor);
  executor.Free(sums);
  return nullptr;
}

template <template <typename> typename Rule>
struct Update {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count < 2) return kNoCount;
    const UpdateCall update = UpdateCallOf(call);
    using Any = Rule<float>;
    if (update.slot_count < Any::kFewestSlots ||
        update.slot_count > Any::kMostSlots) {
      return kNoCount;
    }
    if (const char* lack =
            CheckUpdate(call, update, Any::kScope == UpdateScope::kRow)) {
      return lack;
    }
    return VisitReal(update.weights->element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      UpdateState<T> state = {update.weights->data<T>(), update.slot_count, {}};
      for (int i = 0; i < update.slot_count; ++i) {
        state.slots[i] = call.operands[1 + i].data<T>();
      }
      if (update.is_sparse) {
        return UpdateSparse<Rule<T>>(call, update, state, executor);
      }
      const Operand& gradient = *update.gradient;
      if (gradient.numel == 0) return nullptr;
      const int64_t rows = RowsOf(Any::kScope, *update.weights);
      LaunchUpdate<Rule<T>>(
          call, state,
          GradientRows<T>{rows, gradient.numel / rows, gradient.data<T>(), {}},
          executor);
      return nullptr;
    });
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_UPDATE_H_
