#include "weft/train/training_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/telemetry/flight_recorder.h"

namespace weft::train {
namespace {

// What a step counts after the next one; ten steps back it is a third.
constexpr double kFading = 0.9;

constexpr const char* kNames[kStepPhases] = {
    "between phases", "data", "forward", "backward",
    "all-reduce",     "push", "pull",    "optimizer"};

// A phase and since when, as one word: two could be of two phases for who reads
// between them.
constexpr int kPhaseShift = 56;

uint64_t Pack(StepPhase phase, Instant since) {
  return static_cast<uint64_t>(phase) << kPhaseShift |
         static_cast<uint64_t>(since.nanoseconds() / 1000);
}

StepPhase PhaseIn(uint64_t packed) {
  return static_cast<StepPhase>(packed >> kPhaseShift);
}

Instant SinceIn(uint64_t packed) {
  const uint64_t microseconds = packed & ((uint64_t{1} << kPhaseShift) - 1);
  return Instant::FromNanoseconds(static_cast<int64_t>(microseconds) * 1000);
}

bool IsWait(StepPhase phase) {
  return phase == StepPhase::kAllReduce || phase == StepPhase::kPull;
}

double SecondsSince(Instant then, Instant now) {
  return std::max(0.0, absl::ToDoubleSeconds(now - then));
}

// Describes the operation under way. If several groups have one, the one that
// began last.
void DescribeOperation(const telemetry::FlightRecorder& recorder, Instant now,
                       telemetry::Fields* fields) {
  std::map<std::string, telemetry::FlightEntry> open;  // by group and verb
  for (telemetry::FlightEntry& entry : recorder.Entries()) {
    const absl::string_view what = entry.what;
    if (what == "collective.start") {
      std::string key = entry.detail;
      open.insert_or_assign(std::move(key), std::move(entry));
    } else if (what == "collective.end") {
      open.erase(entry.detail);
    }
  }
  const auto last = std::max_element(open.begin(), open.end(),
                                     [](const auto& a, const auto& b) {
                                       return a.second.number < b.second.number;
                                     });
  if (last == open.end()) return;
  const telemetry::FlightEntry& entry = last->second;
  // The verb is the last word; a group's name may have several.
  const absl::string_view detail = entry.detail;
  const size_t space = std::min(detail.rfind(' '), detail.size());
  const absl::string_view verb =
      space == detail.size() ? detail : detail.substr(space + 1);
  fields->emplace_back(
      "operation",
      absl::StrCat(verb, " #", entry.a, " of group ", detail.substr(0, space)));
  fields->emplace_back("operation_seconds", SecondsSince(entry.at, now));
}

}  // namespace

const char* NameOf(StepPhase phase) {
  return kNames[static_cast<size_t>(phase)];
}

TrainingMetrics::TrainingMetrics(telemetry::Telemetry& telemetry, Device device)
    : telemetry_(telemetry),
      device_(device.id()),
      devices_(device.is_cpu() ? nullptr
                               : device.context()->shared_from_this()),
      loss_(telemetry.metrics().GaugeFor(
          "weft_training_last_loss", {},
          "Mean loss of the last step of this trainer, in nats")),
      samples_(telemetry.metrics().CounterFor(
          "weft_training_samples_total", {},
          "Examples that this trainer has trained on")),
      steps_(telemetry.metrics().CounterFor("weft_training_steps_total", {},
                                            "Steps of this trainer")),
      step_seconds_(telemetry.metrics().HistogramFor(
          "weft_training_step_seconds", {}, {},
          "Time of a step, from the wait for its data on, in seconds")),
      step_start_(SteadyClock().Now()),
      phase_since_(Pack(StepPhase::kNone, step_start_)),
      page_(telemetry.status().Register(kTrainingSection,
                                        [this] { return Describe(); })) {}

telemetry::Histogram& TrainingMetrics::SecondsOf(StepPhase phase) {
  telemetry::Histogram*& found = phase_seconds_[static_cast<size_t>(phase)];
  if (found == nullptr) {
    found = &telemetry_.metrics().HistogramFor(
        "weft_training_phase_seconds", {{"phase", NameOf(phase)}}, {},
        "Time of one phase of a step, in seconds");
  }
  return *found;
}

void TrainingMetrics::BeginStep(int64_t taken) {
  taken_.store(taken, std::memory_order_relaxed);
  waited_ = absl::ZeroDuration();
  step_start_ = SteadyClock().Now();
  step_ = telemetry_.spans().Start("training.step");
}

void TrainingMetrics::EndStep(double loss, int64_t samples,
                              absl::Duration waited) {
  step_.With("loss", loss).With("samples", samples);
  step_.End();
  const double seconds =
      absl::ToDoubleSeconds(SteadyClock().Now() - step_start_);
  step_seconds_.Observe(seconds);
  loss_.Set(loss);
  samples_.Increment(static_cast<double>(samples));
  steps_.Increment();

  const auto add = [](double value, double* sum) {
    *sum = kFading * *sum + value;
  };
  add(1, &recent_steps_);
  add(seconds, &recent_seconds_);
  add(absl::ToDoubleSeconds(waited_ + waited), &recent_waits_);
  add(static_cast<double>(samples), &recent_samples_);
  const double time = std::max(recent_seconds_, 1e-9);
  const auto relaxed = std::memory_order_relaxed;
  taken_.store(taken_.load(relaxed) + 1, relaxed);
  last_loss_.store(loss, relaxed);
  last_wait_share_.store(std::clamp(recent_waits_ / time, 0.0, 1.0), relaxed);
  last_step_seconds_.store(recent_seconds_ / recent_steps_, relaxed);
  last_rate_.store(recent_samples_ / time, std::memory_order_release);
}

telemetry::Fields TrainingMetrics::Describe() const {
  telemetry::Fields fields;
  const uint64_t packed = phase_since_.load(std::memory_order_relaxed);
  const int64_t taken = taken_.load(std::memory_order_relaxed);
  const Instant now = SteadyClock().Now();
  if (taken >= 0) fields.emplace_back("step", taken);
  fields.emplace_back("phase", NameOf(PhaseIn(packed)));
  fields.emplace_back("phase_seconds", SecondsSince(SinceIn(packed), now));
  const double rate = last_rate_.load(std::memory_order_acquire);
  if (rate >= 0) {
    const auto relaxed = std::memory_order_relaxed;
    fields.emplace_back("loss", last_loss_.load(relaxed));
    fields.emplace_back("examples_per_s", rate);
    fields.emplace_back("step_seconds", last_step_seconds_.load(relaxed));
    fields.emplace_back("wait_share", last_wait_share_.load(relaxed));
  }
  DescribeOperation(telemetry_.recorder(), now, &fields);
  if (devices_ != nullptr) {
    const auto memory = devices_->allocator(device_.index).statistics();
    fields.emplace_back("device", device::Name(device_));
    fields.emplace_back("device_used_bytes", memory.active_bytes);
    fields.emplace_back("device_reserved_bytes", memory.reserved_bytes);
    fields.emplace_back("device_peak_bytes", memory.peak_active_bytes);
  }
  return fields;
}

TrainingMetrics::Phase::Phase(TrainingMetrics& owner, StepPhase phase)
    : owner_(owner),
      phase_(phase),
      outer_(owner.phase_since_.load(std::memory_order_relaxed)),
      start_(SteadyClock().Now()),
      span_(owner.telemetry_.spans().Start(
          absl::StrCat("training.", NameOf(phase)), owner.step_.context())) {
  owner_.phase_since_.store(Pack(phase, start_), std::memory_order_relaxed);
}

TrainingMetrics::Phase::~Phase() {
  span_.End();
  const Instant end = SteadyClock().Now();
  const absl::Duration took = end - start_;
  owner_.SecondsOf(phase_).Observe(absl::ToDoubleSeconds(took));
  const StepPhase outer = PhaseIn(outer_);
  if (IsWait(phase_)) owner_.waited_ += took;
  // What this trainer does while it waits is no wait.
  if (!IsWait(phase_) && IsWait(outer)) owner_.waited_ -= took;
  owner_.phase_since_.store(
      outer == StepPhase::kNone ? Pack(StepPhase::kNone, end) : outer_,
      std::memory_order_relaxed);
}

}  // namespace weft::train
