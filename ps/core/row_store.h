// RowStore: the rows of one partition, and where each key's row is.
//
// A row is one block of memory: key, count of updates, weights, slots. Blocks
// lie in chunks, of which the last one grows with the rows in it, so that a
// partition of few rows takes little. The index is an open-addressing table of
// row numbers, ordered by the mixed key: keys that come in the order of
// ps/cut.h go through it from one end to the other. A row of one weight and two
// slots takes 24 bytes, and 8 to 16 of the index.
//
// The keys of the last look-up are remembered with their rows, for a worker
// pushes to the rows that it has just pulled.
//
// Thread-safety: one thread at a time, also for what is const; the partition's
// lock guards it.

#ifndef WEFT_PS_CORE_ROW_STORE_H_
#define WEFT_PS_CORE_ROW_STORE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "weft/ps/core/placement.h"

namespace weft::ps {

class RowStore {
 public:
  using Row = uint32_t;  // a number from 0; rows are never removed
  static constexpr Row kNoRow = ~Row{0};
  static constexpr uint32_t kLastStep = ~uint32_t{0};

  // Rows of `floats` floats each. The top `placed_bits` bits of the mixed keys
  // are the same for all keys.
  RowStore(int64_t floats, int placed_bits);

  int64_t size() const { return size_; }

  // kNoRow if there is none.
  Row Find(uint64_t key) const;
  // As Find for each of `keys`; faster, since memory is fetched ahead, or none
  // if the last call had the same keys. Valid until the next call of Find,
  // FindAll or Clear. REQUIRES: at most kMostKeys of them.
  static constexpr size_t kMostKeys = 256;
  absl::Span<const Row> FindAll(absl::Span<const uint64_t> keys) const;
  // A row of zeros, not updated yet; what floats() returned before is not valid
  // any more. REQUIRES: Find(key) == kNoRow.
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
  // Counts one more update. Returns the count.
  uint32_t NextStep(Row row) {
    uint32_t next = step(row);
    next += next != kLastStep ? 1 : 0;
    set_step(row, next);
    return next;
  }
  float* floats(Row row) const { return Block(row) + header_; }

  // All memory that this holds, but for the object itself.
  int64_t memory_bytes() const;

 private:
  float* Block(Row row) const {
    return chunks_[row >> chunk_bits_].get() + (row & chunk_mask_) * stride_;
  }
  // The top bits of the mixed key that tell keys of one partition apart.
  size_t SlotOf(uint64_t key) const {
    return static_cast<size_t>(Mix64(key) << placed_bits_ >> slot_shift_);
  }
  // Whether there is a row of each.
  bool LookUp(absl::Span<const uint64_t> keys, Row* rows) const;
  void Grow();
  void Rehash(size_t capacity);

  const int placed_bits_;
  int header_;      // floats before the row's own
  int64_t stride_;  // floats from row to row
  int chunk_bits_;  // a whole chunk has 1 << chunk_bits_ rows
  Row chunk_mask_;
  int slot_shift_ = 63;  // 64 less the bits of a place in the index
  int64_t size_ = 0;
  int64_t room_ = 0;  // rows in all chunks
  std::vector<std::unique_ptr<float[]>> chunks_;
  std::vector<Row> index_;  // kNoRow: free. A power of two, or empty

  mutable std::vector<uint64_t> last_keys_;  // empty: not known any more
  mutable std::vector<Row> last_rows_;
  mutable bool last_missed_ = false;  // a row of a last key did not exist
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_ROW_STORE_H_
