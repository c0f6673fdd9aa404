// TableMetrics: how large a table's messages are, how old what its clients pull
// is by the time they push, how long requests wait for locks, and how many
// pushes were repetitions.

#ifndef WEFT_PS_SHARD_TABLE_METRICS_H_
#define WEFT_PS_SHARD_TABLE_METRICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/telemetry/bucket_counts.h"
#include "weft/telemetry/metrics.h"

namespace weft::ps {

// Metrics of the part of a table that one server holds. Exported as
//
//   weft_ps_push_bytes{table}, weft_ps_pull_bytes{table}   keys and values
//   weft_ps_staleness_versions{table}   ASYNC: pushes of all clients that were
//                                       applied between a client's last pull
//                                       and its push
//   weft_ps_lock_wait_seconds{table}    of a push or a read: the wait for the
//                                       lock of one of its partitions, of each
//                                       in its turn
//   weft_ps_repeated_pushes_total{table}   pushes that had been taken before,
//                                       by partition
//
// Thread-safety: thread-safe; Export, one thread at a time.
class TableMetrics {
 public:
  void Pushed(int64_t bytes) { push_bytes_.Add(bytes); }
  void Pulled(int64_t bytes) { pull_bytes_.Add(bytes); }

  // ASYNC: `client` gets what the table is at `version`.
  void PulledAt(uint64_t client, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // ASYNC: a push of `client` is applied to the table at `version`. A client
  // that has not pulled is not counted.
  void PushedAt(uint64_t client, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

  // Which one of `count` places is measured next; 0 if there is none.
  size_t NextMeasured(size_t count) {
    const uint64_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
    return count == 0 ? 0 : static_cast<size_t>(turn % count);
  }
  // `waited`: not negative.
  void AwaitedLock(absl::Duration waited) {
    lock_waits_.Add(absl::ToInt64Nanoseconds(waited));
  }
  void Repeated(int64_t parts) {
    repeated_.fetch_add(parts, std::memory_order_relaxed);
  }

  // Adds what is new since the last Export.
  void Export(telemetry::Metrics& to, const std::string& table);

  // The last pulls of so many clients are remembered; with more, all are
  // forgotten.
  static constexpr size_t kMostClients = 4096;

 private:
  using Times = telemetry::BucketCounts<telemetry::kDurationBoundsInNs.size()>;
  using Sizes = telemetry::BucketCounts<telemetry::kSizeBounds.size()>;
  static constexpr std::array<int64_t, 16> kVersionBounds = {
      0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

  Sizes push_bytes_{telemetry::kSizeBounds};
  Sizes pull_bytes_{telemetry::kSizeBounds};
  telemetry::BucketCounts<kVersionBounds.size()> staleness_{kVersionBounds};
  Times lock_waits_{telemetry::kDurationBoundsInNs};
  std::atomic<uint64_t> turns_{0};
  std::atomic<int64_t> repeated_{0};
  int64_t exported_repeated_ = 0;
  Mutex mu_;
  // The version of each client's last pull.
  absl::flat_hash_map<uint64_t, int64_t> pulled_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_TABLE_METRICS_H_
