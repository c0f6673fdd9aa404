// ChangedRows: which rows of a partition have changed, and which have gone,
// since it was frozen for a checkpoint: what the next checkpoint has to write.
//
// A checkpoint is known by the name of its attempt, which no other one has.
// Nobody is told whether an attempt became a checkpoint: one that is named as a
// base has. So two spans are kept, since the base that was named last, and
// since the newest freeze. If the newest is named next, it is the base; if the
// one before is named again, the newest was given up, and both spans are one.
// Any other base is not known, and all rows have to be written.
//
// Memory: a bit a row, or two between a freeze and the next, and the keys that
// went.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time; the
// partition's lock guards it.

#ifndef WEFT_PS_CORE_CHANGED_ROWS_H_
#define WEFT_PS_CORE_CHANGED_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "weft/ps/core/row_set.h"

namespace weft::ps {

// The checkpoint for which rows are frozen.
struct SavedAs {
  // The attempt that may be the base of a later one; empty: it will not be, and
  // what is known of other bases stays.
  std::string id;
  // The attempt of a checkpoint: only what has changed since is wanted, where
  // that is known. Empty: all is.
  std::string base;
};

class ChangedRows {
 public:
  // What has changed since a base.
  struct Since {
    RowSet rows;
    std::vector<uint64_t> removed;  // in no order; some may be there again
  };

  // The most removed keys that are listed, or half of the rows that exist if
  // that is more. Beyond it all rows are to be written instead.
  static constexpr int64_t kLeastRemoved = 1024;

  // The rows are frozen. Null: what has changed since `as.base` is not known.
  // REQUIRES: as.id is not empty.
  std::optional<Since> Freeze(const SavedAs& as);

  // Row `number` is changed, or made.
  void Change(int64_t number) { newest_.rows.Add(number); }
  // Row `number`, of `key`, goes, and the last one takes its number. False if
  // too many have gone: then this is of no use any more.
  bool Remove(int64_t number, int64_t last, uint64_t key);

  int64_t memory_bytes() const;

 private:
  // What has changed from a freeze on.
  struct Span {
    std::string id;
    RowSet rows;
    absl::flat_hash_set<uint64_t> removed;

    void Add(const Span& other);
    void MoveLast(int64_t number, int64_t last);
    Since Copy() const;
  };

  std::optional<Span> base_;  // up to the newest freeze
  Span newest_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_CHANGED_ROWS_H_
