// FreeBlocks: the free blocks of one stream and pool, by size, for
// CachingAllocator.
//
// Blocks of the same size class form a list, newest first; a bit for each class
// says whether its list has any. A power of two has 16 classes, so that what is
// found is at most 1/16 larger than the best fit, or of the first few of the
// best class. Insert, Remove and Find are O(1) (Find in full is O(n)).
//
// Source: Masmano et al., "TLSF: A New Dynamic Memory Allocator for Real-Time
// Systems", ECRTS 2004.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DEVICE_FREE_BLOCKS_H_
#define WEFT_DEVICE_FREE_BLOCKS_H_

#include <array>
#include <cstdint>

namespace weft::device {

// What the lists need of a block; its owner's blocks derive from it.
struct FreeBlock {
  int64_t bytes = 0;  // a multiple of FreeBlocks::kUnitBytes
  FreeBlock* newer = nullptr;
  FreeBlock* older = nullptr;
};

class FreeBlocks {
 public:
  static constexpr int64_t kUnitBytes = 512;

  // REQUIRES: block.bytes is a positive multiple of kUnitBytes, below 2^40
  // units. `block` must stay until it is removed.
  void Insert(FreeBlock& block);
  void Remove(FreeBlock& block);

  // A block of at least `bytes`, which stays in; null if there is none. Without
  // `in_full` it may overlook one that is less than 1/16 larger than `bytes`.
  FreeBlock* Find(int64_t bytes, bool in_full) const;

 private:
  static constexpr int kSplit = 4;  // 2^4 classes for a power of two
  static constexpr int kRows = 41 - kSplit;
  static constexpr int kColumns = 1 << kSplit;
  struct Class {
    int row = 0;
    int column = 0;
  };

  static Class ClassOf(int64_t bytes);
  // The first class from `from` on that has a block; a row of -1 if none has.
  Class NextFilled(Class from) const;
  FreeBlock*& head(Class c) { return heads_[c.row * kColumns + c.column]; }
  FreeBlock* head(Class c) const { return heads_[c.row * kColumns + c.column]; }

  uint64_t rows_ = 0;  // a bit for each row that has a block
  std::array<uint32_t, kRows> columns_{};
  std::array<FreeBlock*, kRows * kColumns> heads_{};
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_FREE_BLOCKS_H_
