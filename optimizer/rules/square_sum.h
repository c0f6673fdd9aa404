// SquareSum: a sum of squares whose bits depend on the elements alone.
//
// It has eight partial sums, element i in number i mod 8, in f64, where the
// square of an f32 is exact: so compilers may use vectors without changing the
// order of the additions.

#ifndef WEFT_OPTIMIZER_RULES_SQUARE_SUM_H_
#define WEFT_OPTIMIZER_RULES_SQUARE_SUM_H_

#include <cstdint>

namespace weft::optimizer {

class SquareSum {
 public:
  static constexpr int64_t kLanes = 8;

  // REQUIRES: the n of all calls but the last are multiples of kLanes.
  template <typename T>
  void Add(const T* __restrict x, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const double value = static_cast<double>(x[i + lane]);
        sums_[lane] += value * value;
      }
    }
    for (int64_t lane = 0; i < n; ++i, ++lane) {
      const double value = static_cast<double>(x[i]);
      sums_[lane] += value * value;
    }
  }

  double total() const {
    return ((sums_[0] + sums_[1]) + (sums_[2] + sums_[3])) +
           ((sums_[4] + sums_[5]) + (sums_[6] + sums_[7]));
  }

 private:
  double sums_[kLanes] = {};
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_SQUARE_SUM_H_
