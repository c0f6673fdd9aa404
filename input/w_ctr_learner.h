// WCtrLearner: the one-process logistic regression that W-CTR-v1 is judged by.
//
// Batches of 1,024 rows in order, f32. Weights (one a key, 13 dense, a bias)
// start at 0; a gradient is the sum over the batch, not the mean; Adagrad with
// rate 0.05 and an accumulator that starts at 0.1, without epsilon. The truth
// is logistic regression.

#ifndef WEFT_INPUT_W_CTR_LEARNER_H_
#define WEFT_INPUT_W_CTR_LEARNER_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "weft/input/metrics.h"
#include "weft/input/w_ctr.h"

namespace weft::input {

class WCtrLearner {
 public:
  struct Score {
    double auc;
    double log_loss;
  };

  // Learns rows [begin, end), which must be whole batches.
  void Learn(int64_t begin, int64_t end) {
    for (; begin < end; begin += kBatch) LearnBatch(begin);
  }

  // On the first `rows` test rows.
  Score Test(int64_t rows) {
    std::vector<double> logits;
    std::vector<float> labels;
    for (int64_t i = 0; i < rows; ++i) {
      const w_ctr::Row row = RowAt(w_ctr::kFirstTestRow + i);
      logits.push_back(Logit(row, /*make=*/false));
      labels.push_back(row.label ? 1.0f : 0.0f);
    }
    return {Auc(logits, labels).value_or(0),
            LogLoss(logits, labels).value_or(0)};
  }

  int64_t distinct_keys() const { return cells_.size(); }

 private:
  static constexpr int64_t kBatch = 1024;

  struct Cell {
    float weight = 0.0f;
    float accumulator = 0.1f;
    float gradient = 0.0f;
    bool touched = false;
  };

  static w_ctr::Row RowAt(int64_t index) {
    return w_ctr::MakeRow(index, w_ctr::Truth::kLogisticRegression);
  }

  Cell* Find(int field, int64_t value, bool make) {
    const int64_t key = w_ctr::KeyOf(field, value);
    if (make) return &cells_[key];
    const auto found = cells_.find(key);
    return found == cells_.end() ? nullptr : &found->second;
  }

  float Logit(const w_ctr::Row& row, bool make) {
    float logit = dense_[w_ctr::kDense].weight;
    for (int f = 0; f < w_ctr::kFields; ++f) {
      const Cell* cell = Find(f, row.values[f], make);
      if (cell != nullptr) logit += cell->weight;
    }
    for (int j = 0; j < w_ctr::kDense; ++j) {
      logit += dense_[j].weight * static_cast<float>(row.dense[j]);
    }
    return logit;
  }

  // A cell's address does not survive an insertion: keys are kept instead.
  void LearnBatch(int64_t begin) {
    std::vector<int64_t> touched;
    for (int64_t i = begin; i < begin + kBatch; ++i) {
      const w_ctr::Row row = RowAt(i);
      const float p = 1.0f / (1.0f + std::exp(-Logit(row, /*make=*/true)));
      const float error = p - (row.label ? 1.0f : 0.0f);
      for (int f = 0; f < w_ctr::kFields; ++f) {
        Cell& cell = *Find(f, row.values[f], /*make=*/true);
        cell.gradient += error;
        if (!cell.touched) touched.push_back(w_ctr::KeyOf(f, row.values[f]));
        cell.touched = true;
      }
      for (int j = 0; j < w_ctr::kDense; ++j) {
        dense_[j].gradient += error * static_cast<float>(row.dense[j]);
      }
      dense_[w_ctr::kDense].gradient += error;
    }
    for (const int64_t key : touched) Step(cells_[key]);
    for (Cell& cell : dense_) Step(cell);
  }

  static void Step(Cell& cell) {
    cell.accumulator += cell.gradient * cell.gradient;
    cell.weight -= 0.05f * cell.gradient / std::sqrt(cell.accumulator);
    cell.gradient = 0.0f;
    cell.touched = false;
  }

  absl::flat_hash_map<int64_t, Cell> cells_;
  std::array<Cell, w_ctr::kDense + 1> dense_;  // the bias is last
};

}  // namespace weft::input

#endif  // WEFT_INPUT_W_CTR_LEARNER_H_
