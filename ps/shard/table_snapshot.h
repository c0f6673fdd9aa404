// TableSnapshot: what one server holds of a table as it was at one moment,
// copied partition by partition while pushes, pulls and rounds go on.
//
// A partition's lock is held for one piece of rows at a time (kPieceBytes);
// what has to be done with the copied rows is done without it.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_SHARD_TABLE_SNAPSHOT_H_
#define WEFT_PS_SHARD_TABLE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/changed_rows.h"
#include "weft/ps/core/frozen_rows.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/rate_changes.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {

// Files that one server may write of a checkpoint.
inline constexpr int kMostFilesOfServer = 1024;

class TableSnapshot {
 public:
  // Bytes of rows that are copied under a partition's lock, once it is taken.
  static constexpr int64_t kPieceBytes = 65536;

  struct Moment {
    int64_t version = 0;
    RateChanges rates;
  };
  // Runs the function on a partition, under what guards that beside its own
  // lock, or returns an error.
  using Reach = std::function<absl::Status(
      int partition, absl::FunctionRef<void(Partition&)> fn)>;
  struct Access {
    Reach freeze;  // an error if its rows may not be saved now
    Reach copy;    // of one that is frozen
  };

  // A snapshot of these partitions, in this order, each as it is when its turn
  // comes. `layout` and what `access` uses must outlive it. What pushes copy
  // counts against `copies`; null: any number of bytes. `as`:
  // Partition::Freeze.
  TableSnapshot(const TableLayout& layout, Moment moment,
                std::vector<int> partitions, Access access,
                std::shared_ptr<ByteBudget> copies, SavedAs as = SavedAs());

  // From now on all partitions are as they are now. Takes some microseconds
  // for each, and the time to copy its RowLife. Errors as Access.
  absl::Status FreezeAll();

  // For so long it keeps off a partition after each piece. A lock goes to
  // whoever asks first once it is free: one who waits must be woken, and would
  // come too late if this took it again at once.
  void set_pause(absl::Duration pause) { pause_ = pause; }

  const v1::TableSpec& spec() const { return layout_.spec(); }
  const Moment& moment() const { return moment_; }
  const SavedAs& as() const { return as_; }
  size_t size() const { return partitions_.size(); }
  bool is_done() const { return next_ == partitions_.size(); }

  // The next partition and its rows. REQUIRES: !is_done(). Errors, after which
  // there is no next: as Access; kResourceExhausted if pushes would have to
  // copy more than the budget allows.
  absl::StatusOr<std::pair<int, PartitionImage>> Next();

 private:
  absl::Status FreezeOne(size_t i);

  const TableLayout& layout_;
  const Moment moment_;
  const std::vector<int> partitions_;
  const Access access_;
  const std::shared_ptr<ByteBudget> copies_;
  const SavedAs as_;
  std::vector<std::shared_ptr<FrozenRows>> frozen_;  // null: not yet, or done
  size_t next_ = 0;
  absl::Duration pause_ = absl::ZeroDuration();
};

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_TABLE_SNAPSHOT_H_
