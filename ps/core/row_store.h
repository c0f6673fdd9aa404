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
// A row that is removed leaves no hole: the last row takes its block, so that
// rows stay numbered from 0 on and whole chunks at the end are given back. Its
// place in the index is filled by a row that had found the group full; there
// are no tombstones. A store that keeps use has 12 bytes more a row: when it
// was touched, and its neighbours in the order of that.
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
  // are the same for all keys. `keeps_use`: Touch, Oldest and their like may be
  // called.
  RowStore(int64_t floats, int placed_bits, bool keeps_use = false);

  // What a row takes, its share of the index included, about.
  static int64_t BytesOfRow(int64_t floats, bool keeps_use);

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
  // False if there is none. Memory is given back once there is half a chunk of
  // it, or three quarters of the index, too much.
  bool Remove(uint64_t key);
  void Clear();

  // Row number `i` of size(): in the order in which they were added, until one
  // is removed.
  Row At(int64_t i) const {
    return {chunks_[i >> chunk_bits_].get() + (i & chunk_mask_) * stride_};
  }

  // The number of a row that is there.
  int64_t NumberOf(Row row) const;

  // A block, for those who copy blocks: it has so many floats, of which
  // header() come before the row's own.
  int64_t stride() const { return stride_; }
  int64_t header() const { return header_; }

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

  // The row that was not touched for longest. Rows are in the order in which
  // Touch named them; one that was added and not touched is the newest.
  // REQUIRES: the store keeps use, size() > 0.
  Row Oldest() const { return At(oldest_); }
  // When the row was touched last: `now` of that call. What is longer ago than
  // kExactAge tells as about so long ago.
  static constexpr int64_t kExactAge = int64_t{1} << 31;
  int64_t touched(Row row) const { return touched(row, base_); }
  // The same for a copy of a block that was made when base() was `base`. A
  // Touch at a time of another BaseOf changes all blocks.
  static int64_t touched(Row row, int64_t base) {
    return base + Word(row, kTouched);
  }
  int64_t base() const { return base_; }
  static int64_t BaseOf(int64_t now);
  // Takes a constant time, but for once in kExactAge. REQUIRES: `now` is none
  // below that of an earlier call, and not negative.
  void Touch(Row row, int64_t now);
  // For rows that come from elsewhere: sets what touched() tells, at the time
  // `now`; once all are there, SortByUse orders them by that, and rows that
  // were touched together by Mix64 of their keys.
  void SetTouched(Row row, int64_t touched, int64_t now);
  void SortByUse();

  // All memory that this holds, but for the object itself.
  int64_t memory_bytes() const;
  // By how much that grows if `rows` are added.
  int64_t GrowthOf(int64_t rows) const;

 private:
  static constexpr int kPlaces = 12;
  // The numbers of up to kPlaces rows, and a byte of each key's hash: 0 where a
  // place is free. The last four tags stay 0.
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
  // Words of a block that keeps use: when it was touched, from base_ on, and
  // the numbers of the rows before and after it.
  static constexpr int kTouched = 3;
  static constexpr int kOlder = 4;
  static constexpr int kNewer = 5;
  static constexpr uint32_t kNone = ~uint32_t{0};
  static uint32_t Word(Row row, int word) {
    uint32_t value;
    std::memcpy(&value, row.block + word, sizeof(value));
    return value;
  }
  static void SetWord(Row row, int word, uint32_t value) {
    std::memcpy(row.block + word, &value, sizeof(value));
  }
  // Makes `number` the neighbour of `older` and `newer`, each kNone at an end.
  void Join(uint32_t older, uint32_t newer);
  void AddNewest(uint32_t number);
  void SetBase(int64_t now);

  // The places of `group` that have this tag, a bit each.
  static uint32_t Matches(const Group& group, uint32_t tag);
  // Whether there is a row of each.
  bool LookUp(absl::Span<const uint64_t> keys, Row* rows) const;
  Row Search(uint64_t key, Place place) const;
  void Insert(uint32_t row);
  // Where a key is in the index; false if nowhere.
  struct Spot {
    uint32_t group = 0;
    int place = 0;
  };
  bool Locate(uint64_t key, Spot& spot) const;
  // Empties the spot in such a way that all other keys are still found.
  void Free(Spot spot);
  // Moves the last row into the block of row `number`.
  void MoveLastTo(uint32_t number);
  void GiveBack();
  int64_t RowsAfter(int64_t room) const;
  void Grow();
  void Rehash(size_t groups);

  const int placed_bits_;
  const bool keeps_use_;
  int header_;      // floats before the row's own
  int64_t stride_;  // floats from row to row
  int chunk_bits_;  // a whole chunk has 1 << chunk_bits_ rows
  int64_t chunk_mask_;
  int64_t size_ = 0;
  int64_t room_ = 0;  // rows in all chunks
  std::vector<std::unique_ptr<float[]>> chunks_;
  std::vector<Group> index_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
  int64_t base_ = 0;  // a function of the time: SetBase

  mutable std::vector<uint64_t> last_keys_;  // empty: not known any more
  mutable std::vector<Row> last_rows_;
  mutable bool last_missed_ = false;  // a row of a last key did not exist
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_ROW_STORE_H_
