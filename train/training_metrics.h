// TrainingMetrics: what a trainer shows of its steps: metrics for Prometheus,
// and a span for each step and each of its phases.

#ifndef WEFT_TRAIN_TRAINING_METRICS_H_
#define WEFT_TRAIN_TRAINING_METRICS_H_

#include <cstdint>
#include <string>

#include "weft/base/clock.h"
#include "weft/input/dataset.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/spans.h"
#include "weft/telemetry/telemetry.h"

namespace weft::train {

// The examples of a batch: its first tensor's first dimension.
inline int64_t ExamplesOf(const input::Example& batch) {
  return batch.empty() || batch[0].dim() == 0 ? 0 : batch[0].size(0);
}

// Thread-safety: one thread at a time.
class TrainingMetrics {
 public:
  explicit TrainingMetrics(telemetry::Telemetry& telemetry);

  // One phase of the present step, until its end: data, forward, backward, then
  // push and pull with servers, optimizer without.
  class Phase {
   public:
    // `owner` must outlive it.
    Phase(TrainingMetrics& owner, const std::string& name);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    telemetry::Histogram& seconds_;
    const Instant start_;
    telemetry::Span span_;
  };
  [[nodiscard]] Phase Begin(const std::string& name) {
    return Phase(*this, name);
  }

  // A step begins with the wait for its data, and ends with its loss.
  void BeginStep();
  void EndStep(double loss, int64_t samples);

 private:
  telemetry::Telemetry& telemetry_;
  telemetry::Gauge& loss_;
  telemetry::Counter& samples_;
  telemetry::Counter& steps_;
  telemetry::Histogram& step_seconds_;
  Instant step_start_;
  telemetry::Span step_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_TRAINING_METRICS_H_
