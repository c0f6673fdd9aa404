#include "weft/device/free_blocks.h"

#include "weft/base/check.h"

namespace weft::device {
namespace {

// At most so many blocks of one class are compared.
constexpr int kCompared = 8;

// The smallest of the first blocks of a list that has `bytes`; null if none.
FreeBlock* Smallest(FreeBlock* head, int64_t bytes, int compared) {
  FreeBlock* best = nullptr;
  for (FreeBlock* block = head; block != nullptr && compared != 0;
       block = block->older, --compared) {
    if (block->bytes < bytes) continue;
    if (block->bytes == bytes) return block;
    if (best == nullptr || block->bytes < best->bytes) best = block;
  }
  return best;
}

}  // namespace

FreeBlocks::Class FreeBlocks::ClassOf(int64_t bytes) {
  const uint64_t units = static_cast<uint64_t>(bytes) / kUnitBytes;
  // Below 16 units each size is a class. Above, the four bits after the highest
  // one are the column.
  if (units < kColumns) return {0, static_cast<int>(units)};
  const int highest = 63 - __builtin_clzll(units);
  return {highest - kSplit + 1,
          static_cast<int>((units >> (highest - kSplit)) & (kColumns - 1))};
}

void FreeBlocks::Insert(FreeBlock& block) {
  const Class c = ClassOf(block.bytes);
  WEFT_CHECK_LT(c.row, kRows);
  FreeBlock*& first = head(c);
  block.newer = nullptr;
  block.older = first;
  if (first != nullptr) first->newer = &block;
  first = &block;
  columns_[c.row] |= uint32_t{1} << c.column;
  rows_ |= uint64_t{1} << c.row;
}

void FreeBlocks::Remove(FreeBlock& block) {
  if (block.older != nullptr) block.older->newer = block.newer;
  if (block.newer != nullptr) {
    block.newer->older = block.older;
    return;
  }
  const Class c = ClassOf(block.bytes);
  head(c) = block.older;
  if (block.older != nullptr) return;
  columns_[c.row] &= ~(uint32_t{1} << c.column);
  if (columns_[c.row] == 0) rows_ &= ~(uint64_t{1} << c.row);
}

FreeBlocks::Class FreeBlocks::NextFilled(Class from) const {
  if (from.row >= kRows) return {-1, 0};
  const uint32_t right = columns_[from.row] & (~uint32_t{0} << from.column);
  if (right != 0) return {from.row, __builtin_ctz(right)};
  const uint64_t below = rows_ & (~uint64_t{0} << (from.row + 1));
  if (below == 0) return {-1, 0};
  const int row = __builtin_ctzll(below);
  return {row, __builtin_ctz(columns_[row])};
}

FreeBlock* FreeBlocks::Find(int64_t bytes, bool in_full) const {
  const Class own = ClassOf(bytes);
  if (own.row >= kRows) return nullptr;
  // In its own class a block may be too small; in each later one all fit.
  FreeBlock* const found = Smallest(head(own), bytes, in_full ? -1 : kCompared);
  if (found != nullptr) return found;
  const Class next =
      NextFilled(own.column + 1 < kColumns ? Class{own.row, own.column + 1}
                                           : Class{own.row + 1, 0});
  return next.row < 0 ? nullptr : Smallest(head(next), bytes, kCompared);
}

}  // namespace weft::device
