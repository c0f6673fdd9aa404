#include "weft/ps/row_store.h"

#include <algorithm>

#include "weft/base/check.h"
#include "weft/ps/placement.h"

namespace weft::ps {
namespace {

constexpr int64_t kChunkBytes = 8192;
constexpr int kFirstBits = 2;
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
  first_bits_ = std::min(kFirstBits, chunk_bits_);
  small_chunks_ = chunk_bits_ - first_bits_ + 1;
}

// The top bits of the mixed key that tell keys of one partition apart.
size_t RowStore::SlotOf(uint64_t key) const {
  const int bits = absl::countr_zero(index_.size());
  if (bits == 0) return 0;
  const uint64_t mixed = Mix64(key) << placed_bits_;
  return static_cast<size_t>(mixed >> (64 - bits));
}

RowStore::Row RowStore::Find(uint64_t key) const {
  Row row = kNoRow;
  FindAll(absl::MakeConstSpan(&key, 1), &row);
  return row;
}

void RowStore::FindAll(absl::Span<const uint64_t> keys, Row* rows) const {
  if (index_.empty()) {
    std::fill_n(rows, keys.size(), kNoRow);
    return;
  }
  const size_t mask = index_.size() - 1;
  size_t slots[kAhead];
  for (size_t begin = 0; begin < keys.size(); begin += kAhead) {
    const size_t n = std::min(kAhead, keys.size() - begin);
    for (size_t i = 0; i < n; ++i) slots[i] = SlotOf(keys[begin + i]);
    for (size_t i = 0; i < n; ++i) {
      const Row row = index_[slots[i]];
      if (row != kNoRow) __builtin_prefetch(Block(row));
    }
    for (size_t i = 0; i < n; ++i) {
      const uint64_t wanted = keys[begin + i];
      size_t slot = slots[i];
      while (index_[slot] != kNoRow && key(index_[slot]) != wanted) {
        slot = (slot + 1) & mask;
      }
      rows[begin + i] = index_[slot];
    }
  }
}

RowStore::Row RowStore::Add(uint64_t key) {
  const Row row = static_cast<Row>(size_);
  WEFT_CHECK(row != kNoRow);
  if (size_ == room_) AddChunk();
  ++size_;
  std::memcpy(Block(row), &key, sizeof(key));
  // At most two thirds of the index are taken.
  if (static_cast<size_t>(size_) * 3 > index_.size() * 2) {
    Rehash(std::max(kFirstIndex, index_.size() * 2));
    return row;
  }
  size_t slot = SlotOf(key);
  while (index_[slot] != kNoRow) slot = (slot + 1) & (index_.size() - 1);
  index_[slot] = row;
  return row;
}

void RowStore::AddChunk() {
  const int64_t large = int64_t{1} << chunk_bits_;
  const int64_t small =
      room_ == 0 ? int64_t{1} << first_bits_ : room_;  // doubles what there is
  const int64_t rows = std::min(small, large);
  chunks_.push_back(std::make_unique<float[]>(rows * stride_));
  room_ += rows;
}

void RowStore::Rehash(size_t capacity) {
  index_.assign(capacity, kNoRow);
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
}

int64_t RowStore::memory_bytes() const {
  return static_cast<int64_t>(
      room_ * stride_ * static_cast<int64_t>(sizeof(float)) +
      static_cast<int64_t>(chunks_.capacity() * sizeof(chunks_[0]) +
                           index_.capacity() * sizeof(Row)));
}

}  // namespace weft::ps
