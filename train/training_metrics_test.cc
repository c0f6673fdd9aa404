#include "weft/train/training_metrics.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/device.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using Json = nlohmann::json;

// The fields of the section; null if there is none.
Json Section(telemetry::Telemetry& telemetry) {
  const Json page = Json::parse(telemetry.status().RenderJson());
  for (const Json& section : page["sections"]) {
    if (section["name"] == kTrainingSection) return section["fields"];
  }
  return nullptr;
}

// Lets the clock go on by a part of a step.
void Pass(absl::Duration time) {
  const Instant end = SteadyClock().Now() + time;
  while (SteadyClock().Now() < end) std::this_thread::yield();
}

TEST(TrainingMetrics, StepsSamplesAndPhasesAreCounted) {
  telemetry::Telemetry::Options options;
  options.tracing = true;
  telemetry::Telemetry telemetry(options);
  TrainingMetrics metrics(telemetry);
  for (int step = 0; step < 3; ++step) {
    metrics.BeginStep(step);
    { const auto phase = metrics.Begin(StepPhase::kForward); }
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

TEST(TrainingMetrics, TheSectionHasNoStepBeforeThereIsOne) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  auto metrics = std::make_unique<TrainingMetrics>(telemetry);
  const Json before = Section(telemetry);
  EXPECT_EQ(before["phase"], "between phases");
  EXPECT_FALSE(before.contains("step"));
  EXPECT_FALSE(before.contains("loss"));
  metrics->BeginStep(7);
  EXPECT_EQ(Section(telemetry)["step"], 7);
  EXPECT_FALSE(Section(telemetry).contains("loss"));
  metrics.reset();
  EXPECT_EQ(Section(telemetry), nullptr);
}

TEST(TrainingMetrics, TheSectionHasStepPhaseLossAndRate) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  TrainingMetrics metrics(telemetry);
  metrics.BeginStep(41);
  {
    const auto data = metrics.Begin(StepPhase::kData);
    EXPECT_EQ(Section(telemetry)["phase"], "data");
    EXPECT_EQ(Section(telemetry)["step"], 41);
  }
  EXPECT_EQ(Section(telemetry)["phase"], "between phases");
  Pass(absl::Milliseconds(10));
  metrics.EndStep(/*loss=*/0.5, /*samples=*/32);
  metrics.BeginStep(42);
  const auto phase = metrics.Begin(StepPhase::kBackward);
  const double since = Section(telemetry)["phase_seconds"];
  Pass(absl::Milliseconds(20));
  const Json section = Section(telemetry);
  EXPECT_EQ(section["step"], 42);
  EXPECT_EQ(section["phase"], "backward");
  EXPECT_GE(section["phase_seconds"].get<double>(), since + 0.02);
  EXPECT_EQ(section["loss"], 0.5);
  EXPECT_GT(section["examples_per_s"].get<double>(), 0);
  EXPECT_LE(section["examples_per_s"].get<double>(), 32 / 0.01);
  EXPECT_GE(section["step_seconds"].get<double>(), 0.01);
  EXPECT_EQ(section["wait_share"], 0);
  EXPECT_FALSE(section.contains("operation"));
}

// This happens where a trainer serves the data of one that has died.
TEST(TrainingMetrics, APhaseWithinAnotherLeavesThatOneAsItWas) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  TrainingMetrics metrics(telemetry);
  metrics.BeginStep(0);
  const auto pull = metrics.Begin(StepPhase::kPull);
  Pass(absl::Milliseconds(20));
  {
    const auto forward = metrics.Begin(StepPhase::kForward);
    const Json within = Section(telemetry);
    EXPECT_EQ(within["phase"], "forward");
  }
  const Json after = Section(telemetry);
  EXPECT_EQ(after["phase"], "pull");
  EXPECT_GE(after["phase_seconds"].get<double>(), 0.02);
}

TEST(TrainingMetrics, WaitsAreOfPullAndAllReduceAndNotOfWorkMeanwhile) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  const auto share = [&](StepPhase phase, bool works, absl::Duration waited) {
    TrainingMetrics metrics(telemetry);
    metrics.BeginStep(0);
    {
      const auto outer = metrics.Begin(phase);
      std::optional<TrainingMetrics::Phase> work;
      if (works) work.emplace(metrics, StepPhase::kBackward);
      Pass(absl::Milliseconds(100));
    }
    metrics.EndStep(0, 1, waited);
    return Section(telemetry)["wait_share"].get<double>();
  };
  const absl::Duration none = absl::ZeroDuration();
  EXPECT_GT(share(StepPhase::kPull, false, none), 0.4);
  EXPECT_GT(share(StepPhase::kAllReduce, false, none), 0.4);
  EXPECT_EQ(share(StepPhase::kForward, false, none), 0);
  EXPECT_LT(share(StepPhase::kPull, true, none), 0.4);
  EXPECT_GT(share(StepPhase::kBackward, false, absl::Seconds(100)), 0.99);
}

TEST(TrainingMetrics, AnOpenCollectiveOperationIsNamed) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  TrainingMetrics metrics(telemetry);
  telemetry::FlightRecorder& recorder = telemetry.recorder();
  recorder.RecordFor("collective.start", "trainer/the world", "AllReduce", 3);
  recorder.RecordFor("collective.end", "trainer/the world", "AllReduce", 3);
  EXPECT_FALSE(Section(telemetry).contains("operation"));
  recorder.RecordFor("collective.start", "trainer/the world", "AllReduce", 4);
  recorder.Record("rpc.call", "trainer0", 1, 2);
  const Json section = Section(telemetry);
  EXPECT_EQ(section["operation"], "AllReduce #4 of group trainer/the world");
  EXPECT_GE(section["operation_seconds"].get<double>(), 0);
  recorder.RecordFor("collective.end", "trainer/the world", "AllReduce", 4);
  EXPECT_FALSE(Section(telemetry).contains("operation"));
}

// A reader sees no phase with the begin of another one.
TEST(TrainingMetrics, TheMemoryOfTheDeviceIsShown) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  auto devices = std::make_unique<device::testing::SimulatedDevices>(1, 2);
  const Device second(devices->context(), 1);
  const TrainingMetrics metrics(telemetry, second);
  Tensor kept = Tensor::Zeros({1024}, DType::kF32, second);
  { const Tensor gone = Tensor::Zeros({4096}, DType::kF32, second); }
  const Json fields = Section(telemetry);
  EXPECT_EQ(fields["device"], "simulated:1");
  const auto now = devices->context().allocator(1).statistics();
  EXPECT_GE(now.active_bytes, 4096);
  EXPECT_EQ(fields["device_used_bytes"], now.active_bytes);
  EXPECT_EQ(fields["device_reserved_bytes"], now.reserved_bytes);
  EXPECT_GE(fields["device_peak_bytes"], 4096 + 4 * 4096);
  // The page may be asked for after the last tensor.
  kept = Tensor();
  devices.reset();
  EXPECT_EQ(Section(telemetry)["device_used_bytes"], 0);
}

TEST(TrainingMetrics, OnTheCpuNoDeviceIsShown) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  const TrainingMetrics metrics(telemetry);
  EXPECT_FALSE(Section(telemetry).contains("device"));
}

TEST(TrainingMetrics, TheSectionMayBeReadWhileStepsAreTaken) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  std::atomic<bool> ends{false};
  std::atomic<int64_t> taken{0};
  std::thread trainer([&] {
    TrainingMetrics metrics(telemetry);
    for (int64_t step = 0; !ends; ++step) {
      metrics.BeginStep(step);
      { const auto phase = metrics.Begin(StepPhase::kData); }
      { const auto phase = metrics.Begin(StepPhase::kPull); }
      metrics.EndStep(1, 1);
      taken = step;
    }
  });
  int64_t last = 0;
  int read = 0;
  EXPECT_TRUE(Becomes([&] {
    const Json section = Section(telemetry);
    if (!section.is_object() || !section.contains("step")) return false;
    EXPECT_GE(section["step"].get<int64_t>(), last);
    EXPECT_LT(section["phase_seconds"].get<double>(), 20);
    last = section["step"];
    return ++read >= 200 && taken > 200;
  }));
  ends = true;
  trainer.join();
}

}  // namespace
}  // namespace weft::train
