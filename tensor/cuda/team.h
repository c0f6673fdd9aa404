// Team: the threads that work together on one row of a tensor.
//
//   T sum = 0;
//   for (int64_t j = team.lane(); j < n; j += team.width()) sum += x[j];
//   sum = team.Fold(sum, AddOp());
//   if (team.leads()) *out = sum;

#ifndef WEFT_TENSOR_CUDA_TEAM_H_
#define WEFT_TENSOR_CUDA_TEAM_H_

#include <cstdint>

#include "weft/tensor/cuda/host_device.h"

namespace weft::internal::cuda {

// What Fold takes for a thread, at most.
inline constexpr int kSlotBytes = 16;

// `Barrier` is called by all threads of a block, and lets none on before all
// have come.
template <typename Barrier>
class Team {
 public:
  // Thread `lane` of `width`, a power of two. A block holds the teams of
  // `columns` rows, of which this is number `column`; together they have
  // kSlotBytes for each thread at `slots`. A team that `has_row` false has no
  // lane in the row, and only comes to barriers.
  WEFT_HOST_DEVICE Team(int lane, int width, int column, int columns,
                        bool has_row, void* slots, Barrier barrier)
      : lane_(lane),
        width_(width),
        column_(column),
        columns_(columns),
        has_row_(has_row),
        slots_(slots),
        barrier_(barrier) {}

  WEFT_HOST_DEVICE int64_t lane() const {
    return has_row_ ? lane_ : INT64_MAX / 2;
  }
  WEFT_HOST_DEVICE int64_t width() const { return width_; }
  // True for one thread.
  WEFT_HOST_DEVICE bool leads() const { return has_row_ && lane_ == 0; }

  // The fold of the values of all threads, for each of them. All must call it,
  // in the same order. The order of the operands follows from width().
  template <typename T, typename Op>
  WEFT_HOST_DEVICE T Fold(T value, Op op) const {
    static_assert(sizeof(T) <= kSlotBytes);
    T* const slots = static_cast<T*>(slots_) + column_;
    T* const own = slots + lane_ * columns_;
    *own = value;
    barrier_();
    for (int half = width_ / 2; half > 0; half /= 2) {
      if (lane_ < half) *own = op(*own, own[half * columns_]);
      barrier_();
    }
    const T result = slots[0];
    barrier_();  // Before the next one writes.
    return result;
  }

  template <typename T>
  struct Prefixes {
    T upto;  // the fold of all lanes before this one, and of its own
    T all;
  };
  // As Fold, of the lanes in their order.
  template <typename T, typename Op>
  WEFT_HOST_DEVICE Prefixes<T> Prefix(T value, Op op) const {
    static_assert(sizeof(T) <= kSlotBytes);
    T* const slots = static_cast<T*>(slots_) + column_;
    T* const own = slots + lane_ * columns_;
    *own = value;
    barrier_();
    for (int step = 1; step < width_; step *= 2) {
      const bool has_before = lane_ >= step;
      const T before = has_before ? own[-step * columns_] : value;
      barrier_();
      if (has_before) *own = op(before, *own);
      barrier_();
    }
    const Prefixes<T> result = {*own, slots[(width_ - 1) * columns_]};
    barrier_();  // Before the next one writes.
    return result;
  }

 private:
  int lane_;
  int width_;
  int column_;
  int columns_;
  bool has_row_;
  void* slots_;
  Barrier barrier_;
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_TEAM_H_
