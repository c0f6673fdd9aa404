// TableMetrics: how large a table's messages are, and how old what its clients
// pull is by the time they push.

#ifndef WEFT_PS_SHARD_TABLE_METRICS_H_
#define WEFT_PS_SHARD_TABLE_METRICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
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

  // Adds what is new since the last Export.
  void Export(telemetry::Metrics& to, const std::string& table);

  // The last pulls of so many clients are remembered; with more, all are
  // forgotten.
  static constexpr size_t kMostClients = 4096;

 private:
  using Sizes = telemetry::BucketCounts<telemetry::kSizeBounds.size()>;
  static constexpr std::array<int64_t, 16> kVersionBounds = {
      0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

  Sizes push_bytes_{telemetry::kSizeBounds};
  Sizes pull_bytes_{telemetry::kSizeBounds};
  telemetry::BucketCounts<kVersionBounds.size()> staleness_{kVersionBounds};
  Mutex mu_;
  // The version of each client's last pull.
  absl::flat_hash_map<uint64_t, int64_t> pulled_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_TABLE_METRICS_H_
