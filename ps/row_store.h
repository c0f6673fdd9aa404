// RowStore: the rows of one partition, and where each key's row is.
//
// A row is one block of memory: key, count of updates, weights, slots. Blocks
// lie in chunks that never move; the first chunks are small, so that a
// partition of few rows takes little. The index is an open-addressing table of
// row numbers, ordered by the mixed key: keys that come in the order of
// ps/cut.h go through it from one end to the other. A row of one weight and two
// slots takes 24 bytes, and 6 to 12 of the index.
//
// Thread-safety: one thread at a time; the partition's lock guards it.

#ifndef WEFT_PS_ROW_STORE_H_
#define WEFT_PS_ROW_STORE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/types/span.h"

namespace weft::ps {

class RowStore {
 public:
  using Row = uint32_t;  // a number from 0; rows are never removed
  static constexpr Row kNoRow = ~Row{0};

  // Rows of `floats` floats each. The top `placed_bits` bits of the mixed keys
  // are the same for all keys.
  RowStore(int64_t floats, int placed_bits);

  int64_t size() const { return size_; }

  // kNoRow if there is none.
  Row Find(uint64_t key) const;
  // As Find for each of `keys`; faster, since memory is fetched ahead.
  // REQUIRES: as many `rows`.
  void FindAll(absl::Span<const uint64_t> keys, Row* rows) const;
  // A row of zeros, not updated yet. REQUIRES: Find(key) == kNoRow.
  Row Add(uint64_t key);
  void Clear();

  uint64_t key(Row row) const {
    uint64_t key;
    std::memcpy(&key, Block(row), sizeof(key));
    return key;
  }
  // How often the row was updated; stays at the largest once there.
  uint32_t step(Row row) const {
    uint32_t step;
    std::memcpy(&step, Block(row) + 2, sizeof(step));
    return step;
  }
  void set_step(Row row, uint32_t step) {
    std::memcpy(Block(row) + 2, &step, sizeof(step));
  }
  float* floats(Row row) const { return Block(row) + header_; }

  // All memory that this holds, but for the object itself.
  int64_t memory_bytes() const;

 private:
  float* Block(Row row) const {
    // Chunks have first_, first_, 2 * first_, 4 * first_, ... rows, until they
    // have 1 << chunk_bits_, and then as many each.
    const Row large = row >> chunk_bits_;
    if (large > 0) {
      return chunks_[small_chunks_ + large - 1].get() +
             (row & ((Row{1} << chunk_bits_) - 1)) * stride_;
    }
    const int bits = static_cast<int>(absl::bit_width(row));
    if (bits <= first_bits_) return chunks_[0].get() + row * stride_;
    return chunks_[bits - first_bits_].get() +
           (row - (Row{1} << (bits - 1))) * stride_;
  }
  size_t SlotOf(uint64_t key) const;
  void AddChunk();
  void Rehash(size_t capacity);

  const int placed_bits_;
  int header_;        // floats before the row's own
  int64_t stride_;    // floats from row to row
  int first_bits_;    // the first chunk has 1 << first_bits_ rows
  int chunk_bits_;    // a large chunk has 1 << chunk_bits_ rows
  int small_chunks_;  // chunks before the first large one
  int64_t size_ = 0;
  int64_t room_ = 0;  // rows in all chunks
  std::vector<std::unique_ptr<float[]>> chunks_;
  std::vector<Row> index_;  // kNoRow: free. A power of two, or empty
};

}  // namespace weft::ps

#endif  // WEFT_PS_ROW_STORE_H_
