// Update rules of optimizers, of dense gradients and of rows, clipped or not.
//
// They compute what optimizer/rules does, step by step, so that the bits are
// the same; but norms, of which clipping, lamb and rowwise_adagrad make use,
// are added up in another order, in f64. Numbers are those that
// optimizer/kernel_operation.h makes. Operands are the weights, the slots in
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

namespace weft::internal::cuda {

// Where the limits of the gradient are among the numbers; 0: none.
inline constexpr int kClipValue = 8;
inline constexpr int kClipNorm = 9;

// What a rule must see whole: the values of Scope of rules/update_rule.h.
enum class UpdateScope { kElement, kRow, kParameter };

template <typename T>
struct UpdateState {
  T* weights;
  int slot_count;
  T* slots[3];  // null where there is none
};

// A rule is made of the state and numbers. It has a scope; the most and fewest
// slots; and, by its scope,
//   void Apply(int64_t i, T gradient) const;      of one element, or
//   void ApplyRow(int64_t row, int64_t first, int64_t n, const Gradient& g,
//                 const Team& team) const;        of n from `first` on, g(j).

// g = gradient + decay w; m = kept m + taken g; w -= lr (ahead g + speed m).
// Without momentum w -= lr g.
template <typename T>
struct Sgd {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 0;
  static constexpr int kMostSlots = 1;
  Sgd(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        m(state.slots[0]),
        lr(static_cast<T>(n[0])),
        decay(static_cast<T>(n[1])),
        kept(static_cast<T>(n[2])),
        taken(static_cast<T>(n[3])),
        ahead(static_cast<T>(n[4])),
        speed(static_cast<T>(n[5])) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T gradient) const {
    const T g = gradient + decay * weights[i];
    if (m == nullptr) {
      weights[i] -= lr * g;
      return;
    }
    m[i] = kept * m[i] + taken * g;
    weights[i] -= lr * (ahead * g + speed * m[i]);
  }

  T* weights;
  T* m;
  T lr, decay, kept, taken, ahead, speed;
};

// Numbers: step size, root of the correction, beta1, beta2, epsilon, and the
// decay that enters the gradient, or, decoupled, what is kept of the weights.
// Source: as optimizer/rules/adam.cc.
template <typename T, bool kIsDecoupled>
struct AdamLike {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 3;
  AdamLike(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        m(state.slots[0]),
        v(state.slots[1]),
        v_max(state.slots[2]),
        size(static_cast<T>(n[0])),
        root(static_cast<T>(n[1])),
        beta1(static_cast<T>(n[2])),
        beta2(static_cast<T>(n[3])),
        rest1(static_cast<T>(1.0 - n[2])),
        rest2(static_cast<T>(1.0 - n[3])),
        epsilon(static_cast<T>(n[4])),
        decay(kIsDecoupled ? T(0) : static_cast<T>(n[5])),
        keep(kIsDecoupled ? static_cast<T>(n[5]) : T(1)) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T gradient) const {
    const T g = gradient + decay * weights[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    T square = v[i];
    if (v_max != nullptr) {
      square = v_max[i] < square ? square : v_max[i];
      v_max[i] = square;
    }
    const T scale = std::sqrt(square) / root + epsilon;
    weights[i] = keep * weights[i] - size * (m[i] / scale);
  }

  T* weights;
  T* m;
  T* v;
  T* v_max;  // null without amsgrad
  T size, root, beta1, beta2, rest1, rest2, epsilon, decay, keep;
};
template <typename T>
using Adam = AdamLike<T, false>;
template <typename T>
using AdamW = AdamLike<T, true>;

// Numbers: lr, decay, epsilon.
template <typename T>
struct Adagrad {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 1;
  Adagrad(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        accumulator(state.slots[0]),
        lr(static_cast<T>(n[0])),
        decay(static_cast<T>(n[1])),
        epsilon(static_cast<T>(n[2])) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T gradient) const {
    const T g = gradient + decay * weights[i];
    accumulator[i] += g * g;
    weights[i] -= lr * g / (std::sqrt(accumulator[i]) + epsilon);
  }

  T* weights;
  T* accumulator;
  T lr, decay, epsilon;
};

// Numbers: lr, beta, l1, l2.
template <typename T>
struct Ftrl {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 2;
  Ftrl(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        z(state.slots[0]),
        squares(state.slots[1]),
        stands_still(n[0] == 0.0),
        per_lr(static_cast<T>(1.0 / n[0])),
        beta(static_cast<T>(n[1])),
        l1(static_cast<T>(n[2])),
        l2(static_cast<T>(n[3])) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T g) const {
    if (stands_still) return;
    const T root = std::sqrt(squares[i]);
    squares[i] += g * g;
    const T new_root = std::sqrt(squares[i]);
    z[i] += g - (new_root - root) * per_lr * weights[i];
    const T beyond = std::fabs(z[i]) - l1;
    const T curvature = (beta + new_root) * per_lr + l2;
    weights[i] =
        beyond > T(0) ? -std::copysign(beyond, z[i]) / curvature : T(0);
  }

  T* weights;
  T* z;
  T* squares;
  bool stands_still;
  T per_lr, beta, l1, l2;
};

// Numbers: lr, alpha, epsilon, decay, momentum, whether it is centered.
template <typename T>
struct Rmsprop {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 3;
  Rmsprop(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        square(state.slots[0]),
        mean(n[5] != 0 ? state.slots[1] : nullptr),
        speed(state.slots[n[5] != 0 ? 2 : 1]),
        lr(static_cast<T>(n[0])),
        alpha(static_cast<T>(n[1])),
        rest(static_cast<T>(1.0 - n[1])),
        epsilon(static_cast<T>(n[2])),
        decay(static_cast<T>(n[3])),
        momentum(static_cast<T>(n[4])) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T gradient) const {
    const T g = gradient + decay * weights[i];
    square[i] = alpha * square[i] + rest * g * g;
    T size = square[i];
    if (mean != nullptr) {
      mean[i] = alpha * mean[i] + rest * g;
      size -= mean[i] * mean[i];
      size = size < T(0) ? T(0) : size;
    }
    T step = g / (std::sqrt(size) + epsilon);
    if (speed != nullptr) {
      speed[i] = momentum * speed[i] + step;
      step = speed[i];
    }
    weights[i] -= lr * step;
  }

  T* weights;
  T* square;
  T* mean;   // null if not centered
  T* speed;  // null without momentum
  T lr, alpha, rest, epsilon, decay, momentum;
};

// Numbers: lr, rho, epsilon, decay.
template <typename T>
struct Adadelta {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 2;
  Adadelta(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        square(state.slots[0]),
        moved(state.slots[1]),
        lr(static_cast<T>(n[0])),
        rho(static_cast<T>(n[1])),
        rest(static_cast<T>(1.0 - n[1])),
        epsilon(static_cast<T>(n[2])),
        decay(static_cast<T>(n[3])) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T gradient) const {
    const T g = gradient + decay * weights[i];
    square[i] = rho * square[i] + rest * g * g;
    const T delta =
        std::sqrt(moved[i] + epsilon) / std::sqrt(square[i] + epsilon) * g;
    moved[i] = rho * moved[i] + rest * delta * delta;
    weights[i] -= lr * delta;
  }

  T* weights;
  T* square;
  T* moved;
  T lr, rho, rest, epsilon, decay;
};

// Numbers: lr, what is kept of the weights, beta1, beta2.
template <typename T>
struct Lion {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 1;
  Lion(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        m(state.slots[0]),
        lr(static_cast<T>(n[0])),
        keep(static_cast<T>(n[1])),
        beta1(static_cast<T>(n[2])),
        beta2(static_cast<T>(n[3])),
        rest1(static_cast<T>(1.0 - n[2])),
        rest2(static_cast<T>(1.0 - n[3])) {}

  WEFT_HOST_DEVICE void Apply(int64_t i, T gradient) const {
    const T ahead = beta1 * m[i] + rest1 * gradient;
    const T sign = ahead > T(0) ? T(1) : (ahead < T(0) ? T(-1) : ahead);
    weights[i] = keep * weights[i] - lr * sign;
    m[i] = beta2 * m[i] + rest2 * gradient;
  }

  T* weights;
  T* m;
  T lr, keep, beta1, beta2, rest1, rest2;
};

// Numbers: lr, the corrections 1 - beta1^t and sqrt(1 - beta2^t), beta1, beta2,
// epsilon, decay.
template <typename T>
struct Lamb {
  static constexpr UpdateScope kScope = UpdateScope::kParameter;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 2;
  Lamb(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        m(state.slots[0]),
        v(state.slots[1]),
        lr(n[0]),
        correction(static_cast<T>(n[1])),
        root(static_cast<T>(n[2])),
        beta1(static_cast<T>(n[3])),
        beta2(static_cast<T>(n[4])),
        rest1(static_cast<T>(1.0 - n[3])),
        rest2(static_cast<T>(1.0 - n[4])),
        epsilon(static_cast<T>(n[5])),
        decay(static_cast<T>(n[6])) {}

  WEFT_HOST_DEVICE T Step(int64_t i) const {
    return m[i] / correction / (std::sqrt(v[i]) / root + epsilon) +
           decay * weights[i];
  }
  template <typename Gradient, typename Team>
  WEFT_HOST_DEVICE void ApplyRow(int64_t /*row*/, int64_t first, int64_t n,
                                 const Gradient& gradient,
                                 const Team& team) const {
    double of_weights = 0;
    double of_steps = 0;
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      const int64_t i = first + j;
      const T g = gradient(j);
      m[i] = beta1 * m[i] + rest1 * g;
      v[i] = beta2 * v[i] + rest2 * g * g;
      const double weight = static_cast<double>(weights[i]);
      const double step = static_cast<double>(Step(i));
      of_weights += weight * weight;
      of_steps += step * step;
    }
    of_weights = std::sqrt(team.Fold(of_weights, AddOp()));
    of_steps = std::sqrt(team.Fold(of_steps, AddOp()));
    const double ratio =
        of_weights > 0.0 && of_steps > 0.0 ? of_weights / of_steps : 1.0;
    const T size = static_cast<T>(lr * ratio);
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      weights[first + j] -= size * Step(first + j);
    }
  }

  T* weights;
  T* m;
  T* v;
  double lr;
  T correction, root, beta1, beta2, rest1, rest2, epsilon, decay;
};

// Numbers: lr, decay, epsilon. Its slot is one for a row.
template <typename T>
struct RowwiseAdagrad {
  static constexpr UpdateScope kScope = UpdateScope::kRow;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 1;
  RowwiseAdagrad(const UpdateState<T>& state, const double* n)
      : weights(state.weights),
        accumulator(state.slots[0]),
        lr(static_cast<T>(n[0])),
        decay(static_cast<T>(n[1])),
        epsilon(static_cast<T>(n[2])) {}

  template <typename Gradient, typename Team>
  WEFT_HOST_DEVICE void ApplyRow(int64_t row, int64_t first, int64_t n,
                                 const Gradient& gradient,
                                 const Team& team) const {
    double total = 0;
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      const double g =
          static_cast<double>(gradient(j) + decay * weights[first + j]);
      total += g * g;
    }
    const T before = accumulator[row];
    total = team.Fold(total, AddOp());  // after all have read `before`
    const T sum = before + static_cast<T>(total / static_cast<double>(n));
    if (team.leads()) accumulator[row] = sum;
    const T size = lr / (std::sqrt(sum) + epsilon);
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      weights[first + j] -= size * (gradient(j) + decay * weights[first + j]);
    }
  }

  T* weights;
  T* accumulator;
  T lr, decay, epsilon;
};

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
  Rule rule;
  GradientRows<T> rows;
  T most;  // 0: any
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    if (rows.sorted.keys == nullptr) {
      rule.Apply(i, ClippedTo(most, rows.values[i]));
      return;
    }
    const int64_t place = i / rows.width;
    if (rows.IsSkipped(place)) return;
    rule.Apply(rows.Row(place) * rows.width + i % rows.width,
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
        rule.Apply(first + j, gradient(j));
      }
    } else {
      rule.ApplyRow(row, first, rows.width, gradient, team);
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
void LaunchUpdate(const Call& call, const Rule& rule,
                  const GradientRows<T>& rows, Executor& executor) {
  const T most = static_cast<T>(call.numbers[kClipValue]);
  const double most_norm = call.numbers[kClipNorm];
  if constexpr (Rule::kScope == UpdateScope::kElement) {
    if (most_norm == 0.0) {
      executor.ForEach(rows.count * rows.width,
                       UpdateElementsBody<Rule, T>{rule, rows, most});
      return;
    }
  }
  executor.ForEachRow(rows.count, rows.width, false,
                      UpdateRowsBody<Rule, T>{rule, rows, most, most_norm});
}

template <typename Rule, typename T, typename Executor>
const char* UpdateSparse(const Call& call, const UpdateCall& update,
                         const Rule& rule, Executor& executor) {
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
  LaunchUpdate(call, rule, GradientRows<T>{count, width, sums, sorted.view()},
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
      const Rule<T> rule(state, call.numbers);
      if (update.is_sparse) {
        return UpdateSparse<Rule<T>, T>(call, update, rule, executor);
      }
      const Operand& gradient = *update.gradient;
      if (gradient.numel == 0) return nullptr;
      const int64_t rows = RowsOf(Any::kScope, *update.weights);
      LaunchUpdate(
          call, rule,
          GradientRows<T>{rows, gradient.numel / rows, gradient.data<T>(), {}},
          executor);
      return nullptr;
    });
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_UPDATE_H_
