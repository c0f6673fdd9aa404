// Partition: the rows of one table that share a lock, an order and a memory of
// what was applied.
//
// A row is a key, its weights, the rule's slots beside them and the number of
// times that it was updated. A sparse row comes into being when it is first
// pushed to; reading one that does not exist gives its initial value and
// leaves no trace. A dense table's row is a slice of its vector, by index.
//
// A push and the mark that it was applied change together, under the lock: so
// a push that is sent again, by whatever way, is applied once.
//
// In a table with RowLife (row_life.h) a push may create no row for some of its
// keys, whose gradients are then dropped; and rows may be removed after it. The
// age of a row is counted in the pushes, or rounds, that the partition has
// applied, also those without keys.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_CORE_PARTITION_H_
#define WEFT_PS_CORE_PARTITION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/changed_rows.h"
#include "weft/ps/core/frozen_rows.h"
#include "weft/ps/core/partition_image.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_life.h"
#include "weft/ps/core/row_store.h"
#include "weft/ps/core/sequence_window.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {

// One client's push to one partition. `values` are the rows' gradients, one
// after another, each as long as its row.
struct PushSpan {
  // The number of a span for which the caller makes sure that it is given only
  // once.
  static constexpr uint64_t kUnnumbered = 0;

  uint64_t client = 0;
  uint64_t sequence = kUnnumbered;
  absl::Span<const uint64_t> keys;  // no key twice
  const float* values = nullptr;
};

// The sum of `spans`, added up in this order, times `scale`: so the same spans
// give the same bits whatever the order in which they came over the network.
struct SpanSum {
  std::vector<uint64_t> keys;
  std::vector<float> values;  // the sums of their rows, one after another
};
SpanSum SumSpans(const TableLayout& layout, absl::Span<const PushSpan> spans,
                 float scale);
// The same rows in the order in which messages have them: by Mix64 of their
// keys, or, of a dense table, by slice.
SpanSum InMessageOrder(const TableLayout& layout, SpanSum sum);

// What became of the rows of a table with RowLife, since the partition was
// made.
struct RowCounts {
  int64_t evicted_idle = 0;
  int64_t evicted_full = 0;
  int64_t not_admitted = 0;
  int64_t dropped_late = 0;
};

void AddCounts(const RowCounts& counts, v1::TableStats& to);

// kResourceExhausted, of a push to table `where` that could make rows of
// `bytes` more than there are, mostly in `partition`.
absl::Status OutOfTableMemory(absl::string_view where, uint32_t partition,
                              int64_t bytes, const ByteBudget& memory);

class Partition {
 public:
  // `layout` must outlive it. `memory`, if given, has the bytes of its rows
  // added to it.
  explicit Partition(const TableLayout* layout,
                     std::shared_ptr<ByteBudget> memory = nullptr);
  ~Partition();

  // A table with RowLife wants the keys of a span in ascending order of Mix64.
  //
  // One step of the rule, its learning rate times `lr_scale`, on each row of a
  // numbered push. False if it had been applied before.
  //   kFailedPrecondition  its sequence is beyond its window; nothing was
  //                        changed
  // `lock_wait`, unless it is null, is set to how long the push waited for the
  // lock.
  absl::StatusOr<bool> ApplyOnce(const PushSpan& span, double lr_scale = 1,
                                 absl::Duration* lock_wait = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The sum of `spans`, added up in this order, times `scale`, as one step of
  // the rule on each row that they name. Their sequences do not count.
  void ApplySum(absl::Span<const PushSpan> spans, float scale,
                double lr_scale = 1) ABSL_LOCKS_EXCLUDED(mu_);

  // The same, and then Read() of the keys of the first span: row after row,
  // while it is in the first-level cache. REQUIRES: the table is dense, there
  // is a span, and all have the same keys.
  float* ApplySumAndRead(absl::Span<const PushSpan> spans, float scale,
                         double lr_scale, float* out) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether that push is in what Read returns.
  bool Applied(uint64_t client, uint64_t sequence) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops what is known of pushes of `clients`, of whom none will come.
  void Forget(absl::Span<const uint64_t> clients) ABSL_LOCKS_EXCLUDED(mu_);

  // Writes the rows' weights to `out`, one after another. Returns the end.
  // `lock_wait` as of ApplyOnce.
  float* Read(absl::Span<const uint64_t> keys, float* out,
              absl::Duration* lock_wait = nullptr) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Makes row `key` with these weights unless it exists.
  void Put(uint64_t key, absl::Span<const float> weights)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Copies all rows under the lock: for partitions that nobody waits for.
  PartitionImage Image() const ABSL_LOCKS_EXCLUDED(mu_);

  // The rows as they are now, to be copied by CopyFrozen some at a time while
  // pushes go on. What pushes copy of them counts against `copies`, if given.
  // To drop it ends it. `as`: if it has an id, the partition keeps track of its
  // changes from now on; those since as.base alone are frozen if all of them
  // are known and they are fewer than the rows (FrozenRows::is_delta).
  std::shared_ptr<FrozenRows> Freeze(std::shared_ptr<ByteBudget> copies,
                                     const SavedAs& as = SavedAs())
      ABSL_LOCKS_EXCLUDED(mu_);
  // FrozenRows::CopyTo, of what Freeze has returned. Returns is_done().
  bool CopyFrozen(FrozenRows& frozen, FrozenRows::Piece& to)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Adds rows; of keys that are there already the new ones count. REQUIRES:
  // CheckImage() is OK.
  void Add(const PartitionImage& image) ABSL_LOCKS_EXCLUDED(mu_);
  // Replaces all rows, and forgets all clients. REQUIRES: CheckImage() is OK.
  void Load(const PartitionImage& image) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t rows() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t windows() const ABSL_LOCKS_EXCLUDED(mu_);  // clients known here
  int64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  RowCounts counts() const ABSL_LOCKS_EXCLUDED(mu_);
  // By how much memory_bytes() may grow with a push to `keys`: 0 if their rows
  // are there.
  int64_t GrowthOf(absl::Span<const uint64_t> keys) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Row = RowStore::Row;

  void AddRows(const PartitionImage& image) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Row Make(uint64_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Initialize(uint64_t key, Row row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As Update, but makes and evicts rows as the table's RowLife says.
  void Learn(absl::Span<const uint64_t> keys, const float* gradients,
             double lr_scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those of `keys` whose rows are there or are made by this push: their
  // places.
  std::vector<size_t> Entering(absl::Span<const uint64_t> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictRows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Account() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // ApplySum of spans that have the same slices. `out`: as of ApplySumAndRead,
  // or null.
  float* UpdateSlices(absl::Span<const PushSpan> spans, float scale,
                      double lr_scale, float* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One step of the rule on each row; their gradients lie one after another.
  void Update(absl::Span<const uint64_t> keys, const float* gradients,
              double lr_scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateTogether(absl::Span<const Row> rows, const float* gradients,
                      double lr_scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateOne(Row row, const float* gradient, double lr_scale)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Row> InKeyOrder() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // To be called before `rows`, or all rows, are changed or removed: copies
  // those that are frozen. Forgets snapshots that need no more copies.
  void BeforeChange(absl::Span<const Row> rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same before all rows change. ChangedRows cannot list such a change, and
  // is dropped.
  void BeforeAllChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Record in `changes_`, which must not be null, that rows are about to
  // change, and that a row is about to be removed.
  void NoteChanged(absl::Span<const Row> rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteRemoval(Row row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TableLayout& layout_;
  const bool is_dense_;
  const int64_t dim_;  // floats of the longest row

  mutable Mutex mu_;
  RowStore rows_ ABSL_GUARDED_BY(mu_);
  std::optional<RowLife> life_ ABSL_GUARDED_BY(mu_);
  bool is_sorted_ ABSL_GUARDED_BY(mu_) = true;  // rows_, by use
  RowCounts counts_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<ByteBudget> memory_;
  int64_t accounted_ ABSL_GUARDED_BY(mu_) = 0;  // in memory_
  absl::flat_hash_map<uint64_t, SequenceWindow> windows_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<FrozenRows>> frozen_ ABSL_GUARDED_BY(mu_);
  // Null: nobody has asked, or what has changed is not known.
  std::unique_ptr<ChangedRows> changes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_PARTITION_H_
