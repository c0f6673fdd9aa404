// Residuals: what the pushes of one client to a table have lost of each row,
// and the next push of that row is to add.
//
// For a SYNC table they are kept by shard of the data as well, so that they
// depend on what was pushed for that shard, and not on which others the client
// serves. Where there is no memory for one more row, a row is dropped that was
// not asked for lately, or only once (CLOCK: second chance).
// Source: Seide et al., "1-bit stochastic gradient descent and its application
// to data-parallel distributed training of speech DNNs", Interspeech 2014
// (error feedback); Corbato, "A paging experiment with the Multics system",
// 1968 (CLOCK).
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_WIRE_RESIDUALS_H_
#define WEFT_PS_WIRE_RESIDUALS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace weft::ps {

class Residuals {
 public:
  // For rows of at most `dim` values. Takes about `most_bytes`, and holds one
  // row at least.
  Residuals(int64_t dim, int64_t most_bytes)
      : dim_(dim),
        most_rows_(std::clamp<int64_t>(most_bytes / BytesOfRow(dim), 1,
                                       std::numeric_limits<int32_t>::max())) {}

  // What a row takes, its place in the index included.
  static int64_t BytesOfRow(int64_t dim) {
    constexpr int64_t kIndex = 128;
    return dim * static_cast<int64_t>(sizeof(float)) + kIndex;
  }

  // [dim], zeros if there is none of the row yet, or no more. Until the next
  // call.
  float* Of(int shard, uint64_t key) {
    const auto [it, is_new] = places_.try_emplace(Row(key, shard), 0);
    if (is_new) {
      it->second = static_cast<int32_t>(Take());
      rows_[it->second].name = it->first;
    }
    Kept& row = rows_[it->second];
    row.is_recent = !is_new;
    if (is_new) row.values.assign(dim_, 0.0f);
    return row.values.data();
  }

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }

 private:
  using Row = std::pair<uint64_t, int>;  // key, shard
  struct Kept {
    Row name;
    bool is_recent = false;
    std::vector<float> values;
  };

  // A place for one more row.
  size_t Take() {
    if (rows() < most_rows_) {
      rows_.emplace_back();
      return rows_.size() - 1;
    }
    for (;; hand_ = (hand_ + 1) % rows_.size()) {
      if (!std::exchange(rows_[hand_].is_recent, false)) break;
    }
    const size_t place = hand_;
    hand_ = (hand_ + 1) % rows_.size();
    places_.erase(rows_[place].name);
    return place;
  }

  const int64_t dim_;
  const int64_t most_rows_;
  absl::flat_hash_map<Row, int32_t> places_;
  std::vector<Kept> rows_;
  size_t hand_ = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_WIRE_RESIDUALS_H_
