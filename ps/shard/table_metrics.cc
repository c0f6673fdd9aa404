#include "weft/ps/shard/table_metrics.h"

#include <utility>

namespace weft::ps {

void TableMetrics::PulledAt(uint64_t client, int64_t version) {
  MutexLock lock(mu_);
  if (pulled_at_.size() >= kMostClients && !pulled_at_.contains(client)) {
    pulled_at_.clear();
  }
  pulled_at_[client] = version;
}

void TableMetrics::PushedAt(uint64_t client, int64_t version) {
  int64_t pulled_at;
  {
    MutexLock lock(mu_);
    const auto found = pulled_at_.find(client);
    if (found == pulled_at_.end()) return;
    pulled_at = found->second;
  }
  staleness_.Add(version - pulled_at);
}

void TableMetrics::Export(telemetry::Metrics& to, const std::string& table) {
  const telemetry::Metrics::Labels labels = {{"table", table}};
  push_bytes_.ExportTo(to, "weft_ps_push_bytes", labels);
  pull_bytes_.ExportTo(to, "weft_ps_pull_bytes", labels);
  staleness_.ExportTo(to, "weft_ps_staleness_versions", labels);
  lock_waits_.ExportTo(to, "weft_ps_lock_wait_seconds", labels, 1e-9);
  const int64_t repeated = repeated_.load(std::memory_order_relaxed);
  to.CounterFor("weft_ps_repeated_pushes_total", labels)
      .Increment(static_cast<double>(
          repeated - std::exchange(exported_repeated_, repeated)));
}

}  // namespace weft::ps
