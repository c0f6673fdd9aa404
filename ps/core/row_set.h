// RowSet: numbers of rows of a partition, a bit each.
//
// Bits come in blocks of 4,096, of which only those are there that were added
// to: a set of few rows of a large partition takes little.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_ROW_SET_H_
#define WEFT_PS_CORE_ROW_SET_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weft::ps {

class RowSet {
 public:
  RowSet() = default;
  RowSet(const RowSet& other) { AddAll(other); }
  RowSet(RowSet&& other) noexcept
      : blocks_(std::move(other.blocks_)),
        size_(std::exchange(other.size_, 0)) {
    other.blocks_.clear();
  }
  RowSet& operator=(RowSet other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(size_, other.size_);
    return *this;
  }

  // False if it was there. REQUIRES: `number` is not negative.
  bool Add(int64_t number);
  // False if it was not there.
  bool Remove(int64_t number);
  bool Contains(int64_t number) const;
  int64_t size() const { return size_; }
  void AddAll(const RowSet& other);

  // The smallest of at least `number`; negative if there is none.
  static constexpr int64_t kNone = -1;
  int64_t FirstFrom(int64_t number) const;

  int64_t memory_bytes() const;

 private:
  static constexpr int64_t kWordBits = 64;
  static constexpr int64_t kBlockWords = 64;
  static constexpr int64_t kBlockRows = kWordBits * kBlockWords;
  using Block = std::array<uint64_t, kBlockWords>;

  static int64_t WordOf(int64_t number) {
    return number % kBlockRows / kWordBits;
  }
  static uint64_t BitOf(int64_t number) {
    return uint64_t{1} << (number % kWordBits);
  }
  // Null: none of its numbers.
  Block* BlockOf(int64_t number) const;

  std::vector<std::unique_ptr<Block>> blocks_;
  int64_t size_ = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_ROW_SET_H_
