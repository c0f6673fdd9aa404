// TrainingMetrics: what a trainer shows of its steps: metrics for Prometheus, a
// span for each step and each of its phases, and the section "training" of the
// status page.

#ifndef WEFT_TRAIN_TRAINING_METRICS_H_
#define WEFT_TRAIN_TRAINING_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/device/context.h"
#include "weft/input/dataset.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/spans.h"
#include "weft/telemetry/status_page.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/device.h"

namespace weft::train {

// The section of the status page. `weft status` reads its fields:
//   step              taken since the training began, in earlier runs too;
//                     missing before this trainer has found its place
//   phase             NameOf(StepPhase)
//   phase_seconds     since when
//   loss, examples_per_s, step_seconds, wait_share
//                     once a step has ended: of the last one; the other three
//                     of about the last ten, the last one from 0 to 1: the part
//                     of the time in which this trainer waited for others
//   operation, operation_seconds
//                     a collective operation that has begun and not ended
//   device, device_used_bytes, device_reserved_bytes, device_peak_bytes
//                     where the model is on a device: its name, the memory in
//                     use, what was taken from it, the most that was in use
inline constexpr char kTrainingSection[] = "training";

// The examples of a batch: its first tensor's first dimension.
inline int64_t ExamplesOf(const input::Example& batch) {
  return batch.empty() || batch[0].dim() == 0 ? 0 : batch[0].size(0);
}

// What a trainer does in a step. kNone is all between the others: waiting to
// begin, saving, testing.
enum class StepPhase : uint8_t {
  kNone,
  kData,
  kForward,
  kBackward,
  kAllReduce,  // what is left of it after the backward pass
  kPush,
  kPull,
  kOptimizer,
};
inline constexpr int kStepPhases = 8;

// "data", "all-reduce"; "between phases" of kNone.
const char* NameOf(StepPhase phase);

// Thread-safety: one thread at a time; the status page reads beside it.
class TrainingMetrics {
 public:
  // `telemetry` must outlive it. `device`: where the model is.
  explicit TrainingMetrics(telemetry::Telemetry& telemetry,
                           Device device = Device::Cpu());
  TrainingMetrics(const TrainingMetrics&) = delete;
  TrainingMetrics& operator=(const TrainingMetrics&) = delete;

  // One phase of the present step, until this object ends. A phase may contain
  // another, after which it goes on.
  class Phase {
   public:
    // `owner` must outlive it.
    Phase(TrainingMetrics& owner, StepPhase phase);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    TrainingMetrics& owner_;
    const StepPhase phase_;
    const uint64_t outer_;  // what was published before
    const Instant start_;
    telemetry::Span span_;
  };
  [[nodiscard]] Phase Begin(StepPhase phase) { return Phase(*this, phase); }

  // A step begins with the wait for its data, and ends with its loss. `taken`
  // steps are before it. `waited` for others within a phase that is not
  // kAllReduce or kPull, which are taken for such waits themselves.
  void BeginStep(int64_t taken);
  void EndStep(double loss, int64_t samples,
               absl::Duration waited = absl::ZeroDuration());

 private:
  telemetry::Histogram& SecondsOf(StepPhase phase);
  telemetry::Fields Describe() const;

  telemetry::Telemetry& telemetry_;
  const device::Device device_;
  const std::shared_ptr<device::Context> devices_;  // null for the CPU
  telemetry::Gauge& loss_;
  telemetry::Counter& samples_;
  telemetry::Counter& steps_;
  telemetry::Histogram& step_seconds_;
  std::array<telemetry::Histogram*, kStepPhases> phase_seconds_{};  // once used
  Instant step_start_;
  telemetry::Span step_;
  absl::Duration waited_;  // in this step
  // Sums over the steps, in which older steps count less and less.
  double recent_steps_ = 0;
  double recent_seconds_ = 0;
  double recent_waits_ = 0;
  double recent_samples_ = 0;

  // For the status page, which must not hold up a step: no value needs another
  // but those after a step's end, of which `last_rate_` is written last.
  std::atomic<uint64_t> phase_since_;  // Pack() of training_metrics.cc
  std::atomic<int64_t> taken_{-1};     // steps; -1: not known yet
  std::atomic<double> last_loss_{0};
  std::atomic<double> last_wait_share_{0};
  std::atomic<double> last_step_seconds_{0};
  std::atomic<double> last_rate_{-1};  // examples a second; -1: no step yet
  telemetry::StatusPage::Registration page_;  // of what is above
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_TRAINING_METRICS_H_
