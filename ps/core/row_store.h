// RowStore: the rows of one partition, and where each key's row is.
//
// A row is one block of memory: key, count of updates, weights, slots. Blocks
// lie in chunks, of which the last one grows with the rows in it, so that a
// partition of few rows takes little. The index has groups of twelve places, a
// cache line each, with a byte of each key's hash: a look-up compares these at
// once, and mostly reads one line of the index and the row. Groups are ordered
// by the mixed key: keys that come in the order of ps/cut.h go through them
// from one end to the other. A row of one weight and two slots takes 24 bytes,
// and 7 to 11 of the index.
// Source of the groups: Abseil's "Swiss tables".
//
// The keys of the last look-up are remembered with their rows, for a worker
// pushes to the rows that it has just pulled.
//
// Thread-safety: one thread at a time, also for what is const; the partition's
// lock guards it.

#ifndef WEFT_PS_CORE_ROW_STORE_H_
#define WEFT_PS_CORE_ROW_STORE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "weft/ps/core/placement.h"

namespace weft::ps {

class RowStore {
 public:
  // Where a row is, until rows are added or removed.
  struct Row {
    float* block = nullptr;
    bool exists() const { return block != nullptr; }
  };
  static constexpr uint32_t kLastStep = ~uint32_t{0};

  // Rows of `floats` floats each. The top `placed_bits` bits of the mixed keys
  // are the same for all keys.
  RowStore(int64_t floats, int placed_bits);

  int64_t size() const { return size_; }

  // Does not exist() if there is none.
  Row Find(uint64_t key) const;
  // As Find for each of `keys`; faster, since memory is fetched ahead, or none
  // if the last call had the same keys. The result is valid until the next call
  // of Find, FindAll, FindOrAddAll or Clear. REQUIRES: at most kMostKeys.
  static constexpr size_t kMostKeys = 256;
  absl::Span<const Row> FindAll(absl::Span<const uint64_t> keys) const;
  // The same, but adds the rows that there are not, and calls `make(key, row)`
  // for each of those, which must not add any. REQUIRES: no key twice.
  template <typename Make>
  absl::Span<const Row> FindOrAddAll(absl::Span<const uint64_t> keys,
                                     Make make) {
    const absl::Span<const Row> rows = FindAll(keys);
    if (!last_missed_) return rows;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!rows[i].exists()) make(keys[i], Add(keys[i]));
    }
    return FindAll(keys);  // rows have moved
  }
  // A row of zeros, not updated yet. REQUIRES: Find(key) does not exist().
  Row Add(uint64_t key);
  void Clear();

  // Row number `i` of size(), in the order in which they were added.
  Row At(int64_t i) const {
    return {chunks_[i >> chunk_bits_].get() + (i & chunk_mask_) * stride_};
  }

  static uint64_t key(Row row) {
    uint64_t key;
    std::memcpy(&key, row.block, sizeof(key));
    return key;
  }
  // How often the row was updated; stays at the largest once there.
  static uint32_t step(Row row) {
    uint32_t step;
    std::memcpy(&step, row.block + 2, sizeof(step));
    return step;
  }
  static void set_step(Row row, uint32_t step) {
    std::memcpy(row.block + 2, &step, sizeof(step));
  }
  // Counts one more update. Returns the count.
  static uint32_t NextStep(Row row) {
    uint32_t next = step(row);
    next += next != kLastStep ? 1 : 0;
    set_step(row, next);
    return next;
  }
  float* floats(Row row) const { return row.block + header_; }

  // All memory that this holds, but for the object itself.
  int64_t memory_bytes() const;

 private:
  static constexpr int kPlaces = 12;
  // Of so many rows, their numbers, and bytes of their keys' hashes: 0 where a
  // place is free. The last four bytes stay 0.
  struct alignas(64) Group {
    uint8_t tags[16] = {};
    uint32_t rows[kPlaces] = {};
  };
  // Where a key is looked for first.
  struct Place {
    uint32_t group;
    uint32_t tag;
  };
  Place PlaceOf(uint64_t key) const {
    const uint64_t mixed = Mix64(key);
    const uint64_t own = mixed << placed_bits_ >> 32;
    const uint32_t tag = mixed & 0xff;
    return {static_cast<uint32_t>(own * index_.size() >> 32),
            tag + (tag == 0 ? 1 : 0)};
  }
  uint32_t GroupAfter(uint32_t group) const {
    return group + 1 < index_.size() ? group + 1 : 0;
  }
  // The places of `group` that have this tag, a bit each.
  static uint32_t Matches(const Group& group, uint32_t tag);
  // Whether there is a row of each.
  bool LookUp(absl::Span<const uint64_t> keys, Row* rows) const;
  Row Search(uint64_t key, Place place) const;
  void Insert(uint32_t row);
  void Grow();
  void Rehash(size_t groups);

  const int placed_bits_;
  int header_;      // floats before the row's own
  int64_t stride_;  // floats from row to row
  int chunk_bits_;  // a whole chunk has 1 << chunk_bits_ rows
  int64_t chunk_mask_;
  int64_t size_ = 0;
  int64_t room_ = 0;  // rows in all chunks
  std::vector<std::unique_ptr<float[]>> chunks_;
  std::vector<Group> index_;

  mutable std::vector<uint64_t> last_keys_;  // empty: not known any more
  mutable std::vector<Row> last_rows_;
  mutable bool last_missed_ = false;  // a row of a last key did not exist
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_ROW_STORE_H_
