#include "weft/input/w_ctr.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/split_mix.h"

namespace weft::input {
namespace w_ctr {
namespace {

constexpr uint64_t kSeed = 20251120;
constexpr int kFactors = 4;

constexpr std::array<int64_t, kFields> kCardinalities = {
    1460,  583,  1000000, 1000000, 305, 24,     12517,   633,   3,
    93145, 5683, 1000000, 3194,    27,  14992,  1000000, 10,    5652,
    2173,  4,    1000000, 18,      15,  286181, 105,     142572};

// Bounded Zipf of exponent 1.1 by inverting its continuous distribution.
constexpr double kExponent = 1 - 1.1;
constexpr double kInverse = 1 / (1 - 1.1);

// (V + 1)^(1 - 1.1) - 1 of each field.
std::array<double, kFields> MakeReaches() {
  std::array<double, kFields> reaches;
  for (int f = 0; f < kFields; ++f) {
    const double end = static_cast<double>(kCardinalities[f] + 1);
    reaches[f] = std::pow(end, kExponent) - 1;
  }
  return reaches;
}

int64_t Value(int64_t row, int field) {
  static const std::array<double, kFields> reaches = MakeReaches();
  const double u = Uniform(Hash3(kSeed ^ 1, row, field));
  const double k = std::floor(std::pow(1 + u * reaches[field], kInverse));
  return static_cast<int64_t>(
      std::clamp(k, 1.0, static_cast<double>(kCardinalities[field])));
}

double FactorTerm(const std::array<int64_t, kFields>& values) {
  std::array<double, kFactors> sum = {};
  double squares = 0.0;
  for (int f = 0; f < kFields; ++f) {
    const uint64_t key = KeyOf(f, values[f]);
    for (int c = 0; c < kFactors; ++c) {
      const double e = 0.18 * NearlyNormal(Hash3(kSeed ^ 5, key, c));
      sum[c] += e;
      squares += e * e;
    }
  }
  double square_of_sum = 0.0;
  for (const double s : sum) square_of_sum += s * s;
  return 0.5 * (square_of_sum - squares);
}

}  // namespace

uint64_t Mix(uint64_t x) { return SplitMix64(x); }

uint64_t Hash3(uint64_t a, uint64_t b, uint64_t c) {
  return Mix(Mix(Mix(a) ^ b) ^ c);
}

double Uniform(uint64_t hash) {
  return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
}

double NearlyNormal(uint64_t hash) {
  const uint64_t lanes = (hash & 0xffff) + (hash >> 16 & 0xffff) +
                         (hash >> 32 & 0xffff) + (hash >> 48);
  return (static_cast<double>(lanes) / 65536 + 2.0 / 65536 - 2) *
         std::sqrt(3.0);
}

int64_t Cardinality(int field) { return kCardinalities[field]; }

Row MakeRow(int64_t index, Truth truth) {
  Row row;
  row.logit = -1.6;
  for (int f = 0; f < kFields; ++f) {
    row.values[f] = Value(index, f);
    row.logit += 0.28 * NearlyNormal(Hash3(kSeed ^ 2, f, row.values[f]));
  }
  for (int j = 0; j < kDense; ++j) {
    static const std::array<double, kDense> weights = [] {
      std::array<double, kDense> made;
      for (int i = 0; i < kDense; ++i) {
        made[i] = 0.15 * NearlyNormal(Hash3(kSeed ^ 4, i, 0));
      }
      return made;
    }();
    row.dense[j] = NearlyNormal(Hash3(kSeed ^ 3, index, j));
    row.logit += weights[j] * row.dense[j];
  }
  const bool fm = truth == Truth::kFactorizationMachine;
  if (fm) row.logit += FactorTerm(row.values);
  const double u = Uniform(Hash3(kSeed ^ 6, index, fm ? 1 : 0));
  row.label = u < 1 / (1 + std::exp(-row.logit));
  return row;
}

}  // namespace w_ctr

absl::StatusOr<WCtrDataset> WCtrDataset::Create(const Options& options) {
  if (options.first < 0 || options.size < 0 ||
      options.first > std::numeric_limits<int64_t>::max() - options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("WCtrDataset: first row ", options.first, " and size ",
                     options.size, " are no range of rows from 0"));
  }
  return WCtrDataset(options);
}

absl::StatusOr<Example> WCtrDataset::Get(int64_t index) const {
  WEFT_ASSIGN_OR_RETURN(const Example batch, GetBatch({index}));
  return Example{batch[0].Select(0, 0), batch[1].Select(0, 0),
                 batch[2].Select(0, 0)};
}

absl::StatusOr<Example> WCtrDataset::GetBatch(
    absl::Span<const int64_t> indices) const {
  const int64_t n = indices.size();
  const Tensor keys = Tensor::Empty({n, w_ctr::kFields}, DType::kI64);
  const Tensor dense = Tensor::Empty({n, w_ctr::kDense});
  const Tensor labels = Tensor::Empty({n});
  int64_t* key = keys.data<int64_t>();
  float* x = dense.data<float>();
  float* label = labels.data<float>();
  for (const int64_t index : indices) {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "WCtrDataset"));
    const w_ctr::Row row =
        w_ctr::MakeRow(options_.first + index, options_.truth);
    for (int f = 0; f < w_ctr::kFields; ++f) {
      *key++ = w_ctr::KeyOf(f, row.values[f]);
    }
    for (const double value : row.dense) *x++ = static_cast<float>(value);
    *label++ = row.label ? 1.0f : 0.0f;
  }
  return Example{keys, dense, labels};
}

}  // namespace weft::input
