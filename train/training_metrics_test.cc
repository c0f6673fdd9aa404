#include "weft/train/training_metrics.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/telemetry/telemetry.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(TrainingMetrics, StepsSamplesAndPhasesAreCounted) {
  telemetry::Telemetry::Options options;
  options.tracing = true;
  telemetry::Telemetry telemetry(options);
  TrainingMetrics metrics(telemetry);
  for (int step = 0; step < 3; ++step) {
    metrics.BeginStep();
    { const auto phase = metrics.Begin("forward"); }
    metrics.EndStep(/*loss=*/0.25 * step, /*samples=*/32);
  }
  EXPECT_THAT(telemetry.metrics().Text(),
              AllOf(HasSubstr("# TYPE weft_training_steps_total counter"),
                    HasSubstr("# HELP weft_training_last_loss "),
                    ContainsRegex("weft_training_samples_total\\{.*\\} 96"),
                    ContainsRegex("weft_training_last_loss\\{.*\\} 0.5"),
                    ContainsRegex("weft_training_step_seconds_count\\{.*\\} 3"),
                    ContainsRegex("weft_training_phase_seconds_count\\{.*phase="
                                  "\"forward\".*\\} 3")));
  std::ostringstream trace;
  telemetry.spans().WriteChromeTrace(trace);
  EXPECT_THAT(trace.str(),
              AllOf(HasSubstr("\"training.step\""), HasSubstr("forward")));
}

}  // namespace
}  // namespace weft::train
