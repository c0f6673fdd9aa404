#include "weft/ps/embedding/ahead.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "weft/ps/core/copy_row.h"
#include "weft/tensor/ops/index.h"

namespace weft::ps {

Tensor JoinKeys(absl::Span<const Tensor> keys) {
  if (keys.empty()) return Tensor::Empty({0}, DType::kI64);
  return keys.size() == 1 ? keys[0] : Concat(keys, 0);
}

Tensor KeysInBoth(const Tensor& a, const Tensor& b) {
  absl::flat_hash_set<int64_t> left;
  left.reserve(b.numel());
  for (const int64_t key : b.span<int64_t>()) left.insert(key);
  std::vector<int64_t> both;
  for (const int64_t key : a.span<int64_t>()) {
    if (left.erase(key) > 0) both.push_back(key);
  }
  return Tensor::FromVector(both);
}

void PatchRows(const Tensor& keys, const Tensor& new_keys,
               const Tensor& new_rows, Tensor& rows) {
  const int64_t dim = rows.size(1);
  absl::flat_hash_map<int64_t, int64_t> place;
  place.reserve(new_keys.numel());
  for (int64_t i = 0; i < new_keys.numel(); ++i) {
    place[new_keys.data<int64_t>()[i]] = i;
  }
  for (int64_t i = 0; i < keys.numel(); ++i) {
    const auto it = place.find(keys.data<int64_t>()[i]);
    if (it == place.end()) continue;
    CopyRow(new_rows.data<float>() + it->second * dim, dim,
            rows.data<float>() + i * dim);
  }
}

Ahead::Part& Ahead::Add(SparseTable* table, int passes,
                        std::vector<Tensor> keys) {
  Part& part = parts_.emplace_back();
  part.table = table;
  part.passes = passes;
  int64_t begin = 0;
  for (const Tensor& each : keys) {
    part.look_ups.emplace_back(begin, begin + each.numel());
    begin += each.numel();
  }
  part.keys = JoinKeys(keys);
  return part;
}

std::optional<Tensor> Ahead::Take(const SparseTable* table, const Tensor& keys,
                                  absl::Duration timeout) {
  const auto wanted = keys.span<int64_t>();
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    if (part->table != table || part->passes != 0) continue;
    const auto is_it = [&](const std::pair<int64_t, int64_t>& range) {
      return part->keys.span<int64_t>().subspan(
                 range.first, range.second - range.first) == wanted;
    };
    const auto range =
        std::find_if(part->look_ups.begin(), part->look_ups.end(), is_it);
    if (range == part->look_ups.end()) continue;
    const auto [begin, end] = *range;
    part->look_ups.erase(range);
    std::optional<Tensor> rows = RowsOf(*part, timeout);
    if (rows.has_value()) rows = rows->Slice(0, begin, end).Clone();
    if (!rows.has_value() || part->look_ups.empty()) parts_.erase(part);
    return rows;
  }
  return std::nullopt;
}

std::optional<Tensor> Ahead::RowsOf(Part& part, absl::Duration timeout) {
  if (!part.rows.has_value()) return std::nullopt;
  absl::StatusOr<Tensor> rows = part.rows->Wait(timeout);
  if (!rows.ok()) return std::nullopt;
  for (const auto& [keys, patch] : part.patches) {
    const absl::StatusOr<Tensor> newer = patch.Wait(timeout);
    if (!newer.ok()) return std::nullopt;
    PatchRows(part.keys, keys, *newer, *rows);
  }
  part.patches.clear();
  return *std::move(rows);
}

void Ahead::NextPass() {
  for (auto part = parts_.begin(); part != parts_.end();) {
    part = --part->passes < 0 ? parts_.erase(part) : std::next(part);
  }
}

}  // namespace weft::ps
