#include "weft/ps/core/snapshot_cursor.h"

#include "weft/base/check.h"

namespace weft::ps {

SnapshotCursor::SnapshotCursor(int64_t rows)
    : rows_(rows),
      left_(rows),
      blocks_(static_cast<size_t>((rows + kBlockRows - 1) / kBlockRows)) {
  WEFT_CHECK(rows >= 0);
}

bool SnapshotCursor::Mark(int64_t number) {
  std::unique_ptr<Block>& block = blocks_[number / kBlockRows];
  if (block == nullptr) block = std::make_unique<Block>();
  uint64_t& word = (*block)[number % kBlockRows / kWordBits];
  const uint64_t bit = uint64_t{1} << (number % kWordBits);
  const bool is_new = (word & bit) == 0;
  word |= bit;
  return is_new;
}

bool SnapshotCursor::IsMarked(int64_t number) const {
  const std::unique_ptr<Block>& block = blocks_[number / kBlockRows];
  return block != nullptr &&
         ((*block)[number % kBlockRows / kWordBits] >> (number % kWordBits) &
          1) != 0;
}

bool SnapshotCursor::Take(int64_t number) {
  if (number < next_ || number >= rows_ || !Mark(number)) return false;
  --left_;
  return true;
}

int64_t SnapshotCursor::Next() {
  if (left_ == 0) return kNone;
  while (IsMarked(next_)) ++next_;
  --left_;
  return next_++;
}

}  // namespace weft::ps
