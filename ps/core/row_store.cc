#include "weft/ps/core/row_store.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "weft/base/check.h"

namespace weft::ps {
namespace {

constexpr int64_t kChunkBytes = 16384;
constexpr int64_t kFirstRows = 4;
constexpr size_t kFirstIndex = 8;
// Lengths up to which a row's own floats need not begin at a multiple of 16
// bytes.
constexpr int64_t kShortRow = 16;
constexpr size_t kAhead = 32;

}  // namespace

RowStore::RowStore(int64_t floats, int placed_bits)
    : placed_bits_(placed_bits),
      header_(floats < kShortRow ? 3 : 4),
      stride_(header_ + floats) {
  const int64_t rows = std::max<int64_t>(
      1, kChunkBytes / (stride_ * static_cast<int64_t>(sizeof(float))));
  chunk_bits_ =
      static_cast<int>(absl::bit_width(static_cast<uint64_t>(rows))) - 1;
  chunk_mask_ = (Row{1} << chunk_bits_) - 1;
}

RowStore::Row RowStore::Find(uint64_t key) const {
  return FindAll(absl::MakeConstSpan(&key, 1))[0];
}

absl::Span<const RowStore::Row> RowStore::FindAll(
    absl::Span<const uint64_t> keys) const {
  if (keys.empty()) return {};
  if (keys == absl::MakeConstSpan(last_keys_)) return last_rows_;
  WEFT_CHECK(keys.size() <= kMostKeys);
  last_keys_.assign(keys.begin(), keys.end());
  last_rows_.resize(keys.size());
  last_missed_ = !LookUp(keys, last_rows_.data());
  return last_rows_;
}

bool RowStore::LookUp(absl::Span<const uint64_t> keys, Row* rows) const {
  if (index_.empty()) {
    std::fill_n(rows, keys.size(), kNoRow);
    return keys.empty();
  }
  const Row* const index = index_.data();
  const size_t mask = index_.size() - 1;
  size_t slots[kAhead];
  bool all = true;
  for (size_t begin = 0; begin < keys.size(); begin += kAhead) {
    const size_t n = std::min(kAhead, keys.size() - begin);
    const uint64_t* const wanted = keys.data() + begin;
    for (size_t i = 0; i < n; ++i) {
      slots[i] = SlotOf(wanted[i]);
      __builtin_prefetch(index + slots[i]);
    }
    for (size_t i = 0; i < n; ++i) {
      const Row row = index[slots[i]];
      __builtin_prefetch(Block(row == kNoRow ? 0 : row));
    }
    for (size_t i = 0; i < n; ++i) {
      size_t slot = slots[i];
      Row row = index[slot];
      while (row != kNoRow && key(row) != wanted[i]) {
        slot = (slot + 1) & mask;
        row = index[slot];
      }
      rows[begin + i] = row;
      all &= row != kNoRow;
    }
  }
  return all;
}

RowStore::Row RowStore::Add(uint64_t key) {
  const Row row = static_cast<Row>(size_);
  WEFT_CHECK(row != kNoRow);
  if (size_ == room_) Grow();
  ++size_;
  if (last_missed_) last_keys_.clear();
  std::memcpy(Block(row), &key, sizeof(key));
  // At most half of the index is taken.
  if (static_cast<size_t>(size_) * 2 > index_.size()) {
    Rehash(std::max(kFirstIndex, index_.size() * 2));
    return row;
  }
  size_t slot = SlotOf(key);
  while (index_[slot] != kNoRow) slot = (slot + 1) & (index_.size() - 1);
  index_[slot] = row;
  return row;
}

void RowStore::Grow() {
  const int64_t whole = int64_t{1} << chunk_bits_;
  const int64_t in_last = room_ & (whole - 1);  // 0: there is none to grow
  // The first chunk doubles from a few rows; a later one begins with a quarter.
  const int64_t least = chunks_.empty() ? kFirstRows : whole / 4;
  const int64_t rows =
      std::min(whole, std::max({2 * in_last, least, int64_t{1}}));
  auto chunk = std::make_unique<float[]>(rows * stride_);
  room_ += rows - in_last;
  if (in_last == 0) {
    chunks_.push_back(std::move(chunk));
    return;
  }
  std::copy_n(chunks_.back().get(), in_last * stride_, chunk.get());
  chunks_.back() = std::move(chunk);
}

void RowStore::Rehash(size_t capacity) {
  index_.assign(capacity, kNoRow);
  slot_shift_ = 65 - static_cast<int>(absl::bit_width(capacity));
  for (Row row = 0; row < size_; ++row) {
    size_t slot = SlotOf(key(row));
    while (index_[slot] != kNoRow) slot = (slot + 1) & (capacity - 1);
    index_[slot] = row;
  }
}

void RowStore::Clear() {
  size_ = 0;
  room_ = 0;
  chunks_.clear();
  index_.clear();
  last_keys_.clear();
  last_rows_.clear();
}

int64_t RowStore::memory_bytes() const {
  return static_cast<int64_t>(
      room_ * stride_ * static_cast<int64_t>(sizeof(float)) +
      static_cast<int64_t>(chunks_.capacity() * sizeof(chunks_[0]) +
                           index_.capacity() * sizeof(Row) +
                           last_keys_.capacity() * sizeof(uint64_t) +
                           last_rows_.capacity() * sizeof(Row)));
}

}  // namespace weft::ps
