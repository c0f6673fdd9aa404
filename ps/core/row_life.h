// RowLife: when a partition of a bounded table makes a row, and when it evicts
// one.
//
// All of it is a function of the pushes that the partition applied and of their
// order: its clock counts them (ASYNC), or the rounds (SYNC), and there is
// neither a time of day nor a random generator. So two copies of a partition,
// and a run that goes on from a checkpoint, make and evict the same rows.
//
// A row comes into being with the n-th push that names its key, as a count-min
// sketch counts them, or with each push by a probability that is a function of
// seed, key and clock. A row is evicted when no push has named it for a number
// of versions; and where a partition has more rows than it may, the one that
// was not named for longest is evicted.
// Sources: Cormode and Muthukrishnan, "An improved data stream summary: the
// count-min sketch and its applications", 2005; Estan and Varghese, "New
// directions in traffic measurement and accounting", 2002 (only the counters
// that are lowest grow); Einziger and others, "TinyLFU", 2017 (halving).
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_ROW_LIFE_H_
#define WEFT_PS_CORE_ROW_LIFE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::ps {

// The limits of one partition.
struct RowLimits {
  int64_t most_rows = 0;      // 0: any number
  int64_t idle_versions = 0;  // 0: a row that is not named stays
  // A push that comes within so many versions after its row was evicted is
  // dropped; 0: it makes the row anew.
  int64_t drop_versions = 0;
  int admit_after = 1;  // by so many pushes; at most kMostAdmitAfter
  int counters = 0;     // in each of the sketch's rows: a power of two
  double admit_probability = 1;
  uint64_t seed = 0;

  bool any() const {
    return most_rows > 0 || idle_versions > 0 || admit_after > 1 ||
           admit_probability < 1;
  }
};

inline constexpr int kMostAdmitAfter = 200;
inline constexpr int kLeastCounters = 16;
inline constexpr int kMostCounters = 65536;
inline constexpr int64_t kMostIdleVersions = (int64_t{1} << 31) - 1;
// Keys of evicted rows that are remembered; beyond that the oldest is
// forgotten.
inline constexpr size_t kMostRemembered = 4096;

// How often each key was counted. An estimate that is never too low; it is too
// high by chance, seldom by much. After counters * admit_after / 4 keys all
// counts are halved, so that an endless stream of keys that come once never
// fills it.
class CountMin {
 public:
  static constexpr int kRows = 4;

  // `counters` a power of two, 16 to kMostCounters; 0: none.
  CountMin(int counters, int admit_after);

  // Counts `key`; returns how often it was counted by now.
  int Add(uint64_t key);

  // The counters, each at most 255.
  const std::vector<uint8_t>& counts() const { return counts_; }
  int64_t added() const { return added_; }
  // REQUIRES: as many as counts() has.
  void Load(std::vector<uint8_t> counts, int64_t added) {
    counts_ = std::move(counts);
    added_ = added;
  }

 private:
  int64_t counters_;
  int64_t halved_after_;
  int64_t added_ = 0;  // since they were halved
  std::vector<uint8_t> counts_;
};

class RowLife {
 public:
  explicit RowLife(const RowLimits& limits);

  const RowLimits& limits() const { return limits_; }
  // How many pushes, or rounds, were applied.
  int64_t clock() const { return clock_; }

  // One more push, or round, is applied.
  void Advance();

  enum class Entry {
    kMade,
    kNotYet,   // its gradient is dropped
    kTooLate,  // the same: its row was evicted a moment ago
  };
  // What becomes of `key`, whose row is not there and which the push at hand
  // names. To be asked in the order of the mixed keys, once each.
  Entry Enter(uint64_t key);

  enum class Verdict { kStays, kIdle, kFull };
  // Whether the row that was not touched for longest stays, where the partition
  // has `rows` rows and that one was touched at version `touched`. Once a push
  // has been applied, ask and evict until the answer is kStays.
  Verdict CheckOldest(int64_t rows, int64_t touched) const;
  // The row of `key` was evicted: remembers the key if pushes to it are to be
  // dropped.
  void NoteEvicted(uint64_t key);

  // Clock, sketch and remembered keys; at most MostBytes.
  std::string Format() const;
  // Goes on where Format() was called. The sketch and the keys begin anew if
  // the limits were others: the first may make a row some pushes later. Empty:
  // at the beginning. kInvalidArgument, and nothing has changed, if it is none.
  absl::Status Load(absl::string_view from);
  static int64_t MostBytes(const RowLimits& limits);

  int64_t memory_bytes() const;

 private:
  RowLimits limits_;
  int64_t clock_ = 0;
  CountMin sketch_;
  std::deque<std::pair<uint64_t, int64_t>> gone_;  // key, and when: in order
  absl::flat_hash_map<uint64_t, int64_t> gone_at_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_ROW_LIFE_H_
