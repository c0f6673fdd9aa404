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
// Thread-safety: thread-safe.

#ifndef WEFT_PS_CORE_PARTITION_H_
#define WEFT_PS_CORE_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/base/mutex.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_store.h"
#include "weft/ps/core/sequence_window.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {

// One client's push to one partition. `values` are the rows' gradients, one
// after another, each as long as its row.
struct PushSpan {
  // For a span that somebody else saw to being given once only.
  static constexpr uint64_t kUnnumbered = 0;

  uint64_t client = 0;
  uint64_t sequence = kUnnumbered;
  absl::Span<const uint64_t> keys;  // no key twice
  const float* values = nullptr;
};

// All rows of a partition, copied out, in ascending order of their keys. What
// was applied of which client is not kept: clients open a table that was
// restored again, and begin anew.
struct PartitionImage {
  std::vector<uint64_t> keys;             // [n]
  std::vector<int64_t> steps;             // [n], each below 2^32
  std::vector<float> weights;             // rows one after another
  std::vector<std::vector<float>> slots;  // [slots], each like weights
};

// kInvalidArgument if `image` is not one of partition `partition` of such a
// table: lengths differ, a key belongs elsewhere, keys do not ascend.
absl::Status CheckImage(const TableLayout& layout, const Placement& placement,
                        int partition, const PartitionImage& image);

class Partition {
 public:
  // `layout` must outlive it.
  explicit Partition(const TableLayout* layout);

  // One step of the rule, its learning rate times `lr_scale`, on each row of a
  // numbered push. False if it had been applied before.
  //   kFailedPrecondition  its sequence is beyond its window; nothing was
  //                        changed
  absl::StatusOr<bool> ApplyOnce(const PushSpan& span, double lr_scale = 1)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The sum of `spans`, added up in this order, times `scale`, as one step of
  // the rule on each row that they name. Their sequences do not count.
  void ApplySum(absl::Span<const PushSpan> spans, float scale,
                double lr_scale = 1) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether that push is in what Read returns.
  bool Applied(uint64_t client, uint64_t sequence) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops what is known of pushes of `clients`, of whom none will come.
  void Forget(absl::Span<const uint64_t> clients) ABSL_LOCKS_EXCLUDED(mu_);

  // Writes the rows' weights to `out`, one after another. Returns the end.
  float* Read(absl::Span<const uint64_t> keys, float* out) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Makes row `key` with these weights unless it exists.
  void Put(uint64_t key, absl::Span<const float> weights)
      ABSL_LOCKS_EXCLUDED(mu_);

  PartitionImage Image() const ABSL_LOCKS_EXCLUDED(mu_);
  // Replaces all rows, and forgets all clients. REQUIRES: CheckImage() is OK.
  void Load(const PartitionImage& image) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t rows() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t windows() const ABSL_LOCKS_EXCLUDED(mu_);  // clients known here
  int64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Row = RowStore::Row;

  Row Make(uint64_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Initialize(uint64_t key, Row row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One step of the rule on each row; their gradients lie one after another.
  void Update(absl::Span<const uint64_t> keys, const float* gradients,
              double lr_scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateTogether(absl::Span<const Row> rows, const float* gradients,
                      double lr_scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateOne(Row row, const float* gradient, double lr_scale)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Row> InKeyOrder() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TableLayout& layout_;
  const bool is_dense_;
  const int64_t dim_;  // floats of the longest row

  mutable Mutex mu_;
  RowStore rows_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, SequenceWindow> windows_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_PARTITION_H_
