#include "weft/ps/core/row_set.h"

#include <cstddef>

#include "absl/numeric/bits.h"

namespace weft::ps {

RowSet::Block* RowSet::BlockOf(int64_t number) const {
  const auto block = static_cast<size_t>(number / kBlockRows);
  return block < blocks_.size() ? blocks_[block].get() : nullptr;
}

bool RowSet::Add(int64_t number) {
  const auto index = static_cast<size_t>(number / kBlockRows);
  if (index >= blocks_.size()) blocks_.resize(index + 1);
  std::unique_ptr<Block>& block = blocks_[index];
  if (block == nullptr) block = std::make_unique<Block>();
  uint64_t& word = (*block)[WordOf(number)];
  const bool is_new = (word & BitOf(number)) == 0;
  word |= BitOf(number);
  size_ += is_new ? 1 : 0;
  return is_new;
}

bool RowSet::Remove(int64_t number) {
  if (!Contains(number)) return false;
  (*BlockOf(number))[WordOf(number)] &= ~BitOf(number);
  --size_;
  return true;
}

bool RowSet::Contains(int64_t number) const {
  const Block* const block = BlockOf(number);
  return block != nullptr && ((*block)[WordOf(number)] & BitOf(number)) != 0;
}

void RowSet::AddAll(const RowSet& other) {
  if (blocks_.size() < other.blocks_.size()) {
    blocks_.resize(other.blocks_.size());
  }
  for (size_t b = 0; b < other.blocks_.size(); ++b) {
    if (other.blocks_[b] == nullptr) continue;
    if (blocks_[b] == nullptr) blocks_[b] = std::make_unique<Block>();
    for (int64_t w = 0; w < kBlockWords; ++w) {
      const uint64_t added = (*other.blocks_[b])[w] & ~(*blocks_[b])[w];
      (*blocks_[b])[w] |= added;
      size_ += absl::popcount(added);
    }
  }
}

int64_t RowSet::FirstFrom(int64_t number) const {
  const auto rows = static_cast<int64_t>(blocks_.size()) * kBlockRows;
  uint64_t mask = ~uint64_t{0} << (number % kWordBits);
  for (int64_t at = number - number % kWordBits; at < rows; at += kWordBits) {
    const Block* const block = BlockOf(at);
    if (block == nullptr) {
      at += kBlockRows - at % kBlockRows - kWordBits;
    } else if (const uint64_t word = (*block)[WordOf(at)] & mask; word != 0) {
      return at + absl::countr_zero(word);
    }
    mask = ~uint64_t{0};
  }
  return kNone;
}

int64_t RowSet::memory_bytes() const {
  auto bytes = static_cast<int64_t>(blocks_.capacity() * sizeof(blocks_[0]));
  for (const std::unique_ptr<Block>& block : blocks_) {
    bytes += block != nullptr ? static_cast<int64_t>(sizeof(Block)) : 0;
  }
  return bytes;
}

}  // namespace weft::ps
