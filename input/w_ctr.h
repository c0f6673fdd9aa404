// W-CTR-v1: a click-through-rate workload that any worker can make row by row.
//
// Rows have 26 categorical fields of Criteo's shape with a bounded Zipf
// distribution, 13 dense inputs and a label drawn from a known truth: logistic
// regression, or that plus a factorisation machine. All is counter-based: row i
// is a function of i alone, equal in every language up to pow().
// Source: the project's parameter-server specification, section 5.1.

#ifndef WEFT_INPUT_W_CTR_H_
#define WEFT_INPUT_W_CTR_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/input/dataset.h"

namespace weft::input {

namespace w_ctr {

inline constexpr int kFields = 26;
inline constexpr int kDense = 13;
// Rows from here on are for testing only.
inline constexpr int64_t kFirstTestRow = int64_t{1} << 40;

enum class Truth { kLogisticRegression, kFactorizationMachine };

// The finaliser of splitmix64, golden ratio added first.
uint64_t Mix(uint64_t x);
// Three words hashed into one.
uint64_t Hash3(uint64_t a, uint64_t b, uint64_t c);
// A hash as a real in (0, 1).
double Uniform(uint64_t hash);
// A hash as a nearly normal real, mean 0 and variance 1: the sum of its four
// 16-bit lanes.
double NearlyNormal(uint64_t hash);

// How many values `field` can take.
int64_t Cardinality(int field);

struct Row {
  std::array<int64_t, kFields> values;  // 1 <= values[f] <= Cardinality(f)
  std::array<double, kDense> dense;
  double logit;  // of the truth
  bool label;
};

Row MakeRow(int64_t index, Truth truth);

// The table key of a field's value: the field in the upper 32 bits.
inline int64_t KeyOf(int field, int64_t value) {
  return (int64_t{field} << 32) | value;
}

}  // namespace w_ctr

// Rows [first, first + size) as a Dataset. An example is {keys i64 [26],
// dense f32 [13], label f32 []}.
class WCtrDataset final : public Dataset {
 public:
  struct Options {
    int64_t first = 0;
    int64_t size = 0;
    w_ctr::Truth truth = w_ctr::Truth::kLogisticRegression;
  };

  // kInvalidArgument for a negative range.
  static absl::StatusOr<WCtrDataset> Create(const Options& options);

  int64_t size() const override { return options_.size; }
  absl::StatusOr<Example> Get(int64_t index) const override;
  absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const override;

 private:
  explicit WCtrDataset(const Options& options) : options_(options) {}

  const Options options_;
};

}  // namespace weft::input

#endif  // WEFT_INPUT_W_CTR_H_
