// TrainingMetrics: see the header.

#include "weft/train/training_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace weft::train {

TrainingMetrics::TrainingMetrics(telemetry::Telemetry& telemetry)
    : telemetry_(telemetry),
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
      step_start_(SteadyClock().Now()) {}

void TrainingMetrics::BeginStep() {
  step_start_ = SteadyClock().Now();
  step_ = telemetry_.spans().Start("training.step");
}

void TrainingMetrics::EndStep(double loss, int64_t samples) {
  step_.With("loss", loss).With("samples", samples);
  step_.End();
  step_seconds_.Observe(
      absl::ToDoubleSeconds(SteadyClock().Now() - step_start_));
  loss_.Set(loss);
  samples_.Increment(static_cast<double>(samples));
  steps_.Increment();
}

TrainingMetrics::Phase::Phase(TrainingMetrics& owner, const std::string& name)
    : seconds_(owner.telemetry_.metrics().HistogramFor(
          "weft_training_phase_seconds", {{"phase", name}}, {},
          "Time of one phase of a step, in seconds")),
      start_(SteadyClock().Now()),
      span_(owner.telemetry_.spans().Start(absl::StrCat("training.", name),
                                           owner.step_.context())) {}

TrainingMetrics::Phase::~Phase() {
  span_.End();
  seconds_.Observe(absl::ToDoubleSeconds(SteadyClock().Now() - start_));
}

}  // namespace weft::train
