// ProcessMetrics: what the system knows of this process, for Prometheus.

#ifndef WEFT_WORKER_TELEMETRY_PROCESS_METRICS_H_
#define WEFT_WORKER_TELEMETRY_PROCESS_METRICS_H_

#include <memory>

#include "weft/telemetry/metrics.h"

namespace weft::worker {

// Keeps weft_process_* of `metrics`, which must outlive the registration, as
// they are at each reading: CPU seconds, resident and virtual memory, open
// descriptors and their limit, threads, and when the process started. From
// /proc; what cannot be read there stays 0.
std::unique_ptr<telemetry::Metrics::Refresher> ShowProcess(
    telemetry::Metrics& metrics);

}  // namespace weft::worker

#endif  // WEFT_WORKER_TELEMETRY_PROCESS_METRICS_H_
