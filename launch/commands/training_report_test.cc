#include "weft/launch/commands/training_report.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Json At(int64_t step, const std::string& phase, double since) {
  return {{"step", step},           {"phase", phase},
          {"phase_seconds", since}, {"loss", 0.3121},
          {"examples_per_s", 1873}, {"step_seconds", 0.01},
          {"wait_share", 0.5}};
}

TEST(TrainingReport, NamesWhoIsBehindAndInWhichPhase) {
  TrainingReport report;
  report.trainers = {{"trainer0", At(1204, "pull", 3.1)},
                     {"trainer1", At(1203, "forward", 3.2)}};
  report.spread = absl::Milliseconds(30);
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("training\n  trainer0: step 1204, pull for 3.100 "
                              "s, waits 50 %, loss 0.3121, 1873 examples/s\n"));
  EXPECT_THAT(text, HasSubstr("trainer1: step 1203, 1 behind, forward for "
                              "3.200 s, "));
  EXPECT_THAT(text, HasSubstr("\n  behind: trainer1 (1 step)\n"));
  EXPECT_THAT(text, Not(HasSubstr("slowest")));
  const Json json = ToJson(report);
  EXPECT_EQ(json["workers"]["trainer0"]["steps_behind"], 0);
  EXPECT_EQ(json["workers"]["trainer1"]["steps_behind"], 1);
  EXPECT_EQ(json["workers"]["trainer1"]["phase"], "forward");
  EXPECT_EQ(json["no_answer"], Json::array());
}

TEST(TrainingReport, ShowsTheMemoryOfADevice) {
  TrainingReport report;
  Json fields = At(7, "backward", 0.1);
  fields["device"] = "cuda:1";
  fields["device_used_bytes"] = 3 << 20;
  fields["device_reserved_bytes"] = 16 << 20;
  fields["device_peak_bytes"] = 5 << 19;
  report.trainers = {{"trainer0", fields}};
  EXPECT_THAT(ToText(report),
              HasSubstr(", 1873 examples/s, cuda:1 3.0 MiB in use of 16.0, at "
                        "most 2.5\n"));
  fields["device_used_bytes"] = "much";  // of a hostile one
  report.trainers = {{"trainer0", fields}};
  EXPECT_THAT(ToText(report), Not(HasSubstr("MiB")));
}

// They were asked one after the other, and train meanwhile.
TEST(TrainingReport, StepsThatTheQuestionsTookAreNotBehind) {
  TrainingReport report;
  report.trainers = {{"trainer0", At(1204, "pull", 0.001)},
                     {"trainer1", At(1200, "pull", 0.001)}};
  report.spread = absl::Milliseconds(50);
  EXPECT_THAT(ToText(report), Not(HasSubstr("  behind: ")));
  EXPECT_THAT(ToText(report), HasSubstr("step 1200, 4 behind"));
  report.spread = absl::Milliseconds(30);
  EXPECT_THAT(ToText(report), HasSubstr("  behind: trainer1 (4 steps)\n"));
}

TEST(TrainingReport, NamesWhoDoesNotAnswerAndWhy) {
  TrainingReport report;
  report.trainers = {{"trainer0", At(9, "pull", 3)}};
  report.silent = {{"trainer1", absl::DeadlineExceededError("not \x1b[2J in "
                                                            "5s")}};
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("  trainer1: no answer: not \\x1b[2J in 5s\n"));
  EXPECT_THAT(text, HasSubstr("  behind: trainer1 (no answer)\n"));
  const Json json = ToJson(report);
  EXPECT_EQ(json["no_answer"], Json::array({"trainer1"}));
  EXPECT_THAT(json["reasons"]["trainer1"].get<std::string>(),
              HasSubstr("DEADLINE_EXCEEDED: not "));
}

TEST(TrainingReport, TheSlowestIsTheOneThatDoesNotWait) {
  TrainingReport report;
  report.trainers = {{"trainer0", At(9, "pull", 0)},
                     {"trainer1", At(9, "forward", 0)},
                     {"trainer2", At(9, "pull", 0)}};
  EXPECT_THAT(ToText(report), Not(HasSubstr("slowest")));
  report.trainers[1].second["wait_share"] = 0.02;
  report.trainers[2].second["wait_share"] = 0.61;
  EXPECT_THAT(ToText(report),
              HasSubstr("  slowest: trainer1 waits 2 % of its time for others, "
                        "each other trainer 50 % or more\n"));
  report.trainers.resize(1);
  EXPECT_THAT(ToText(report), Not(HasSubstr("slowest")));
}

// One is slow on the whole, another stands still at this moment.
TEST(TrainingReport, SaysWhyAnotherIsBehindThanTheSlowest) {
  constexpr char kWhy[] = "; who is behind is as of now\n";
  TrainingReport report;
  report.trainers = {{"trainer0", At(9, "all-reduce", 0)},
                     {"trainer1", At(9, "all-reduce", 0)},
                     {"trainer2", At(8, "data", 3)}};
  report.trainers[1].second["wait_share"] = 0.02;
  EXPECT_THAT(ToText(report), HasSubstr("  behind: trainer2 (1 step)\n"));
  EXPECT_THAT(ToText(report), HasSubstr("  slowest: trainer1 waits 2 % "));
  EXPECT_THAT(ToText(report), HasSubstr(kWhy));
  // They agree.
  report.trainers[1].second["step"] = 8;
  report.trainers[1].second["phase_seconds"] = 3;
  report.trainers[2].second["step"] = 9;
  EXPECT_THAT(ToText(report), HasSubstr("  behind: trainer1 (1 step)\n"));
  EXPECT_THAT(ToText(report), HasSubstr("  slowest: trainer1 waits 2 % "));
  EXPECT_THAT(ToText(report), Not(HasSubstr(kWhy)));
}

TEST(TrainingReport, NamesTheOperationThatATrainerIsIn) {
  TrainingReport report;
  Json fields = At(9, "backward", 3);
  fields["operation"] = "AllReduce #12 of group trainer/world";
  fields["operation_seconds"] = 2.5;
  report.trainers = {{"trainer0", fields}};
  EXPECT_THAT(ToText(report),
              HasSubstr("backward for 3.000 s, in AllReduce #12 of group "
                        "trainer/world for 2.500 s, "));
}

// trainer0 and trainer2 wait for trainer1, which is not in the operation.
TEST(TrainingReport, NamesWhomTheOthersHaveWaitedForLong) {
  TrainingReport report;
  report.job = "mnist";
  Json waits = At(9, "backward", 6);
  waits["operation"] = "AllReduce #12 of group trainer/world";
  waits["operation_seconds"] = 5.5;
  report.trainers = {
      {"trainer0", waits}, {"trainer1", At(9, "data", 6)}, {"trainer2", waits}};
  EXPECT_THAT(
      ToText(report),
      HasSubstr("  no progress: trainer0 and trainer2 wait in AllReduce "
                "#12 of group trainer/world (5.5 s) for trainer1, "
                "which runs and is not in that call"));
  const Json stuck = ToJson(report)["stuck"];
  ASSERT_EQ(stuck.size(), 1u);
  EXPECT_EQ(stuck[0]["class"], "busy");
  EXPECT_EQ(stuck[0]["ranks"], "trainer1");
  EXPECT_EQ(stuck[0]["waiting"], "trainer0,trainer2");

  // One that does not answer is not known.
  report.trainers.erase(report.trainers.begin() + 1);
  report.silent = {{"trainer1", absl::DeadlineExceededError("no answer")}};
  EXPECT_EQ(ToJson(report)["stuck"][0]["class"], "not-known");
  EXPECT_THAT(ToText(report), HasSubstr("which does not answer"));

  // A wait that may have begun while the trainers were asked is not reported.
  report.spread = absl::Seconds(2);
  EXPECT_THAT(ToText(report), Not(HasSubstr("no progress")));
}

TEST(TrainingReport, NamesForWhomServersWait) {
  TrainingReport report;
  report.job = "mnist";
  report.trainers = {{"trainer0", At(7, "pull", 6)},
                     {"trainer1", At(7, "forward", 6)}};
  report.servers = {{"ps0",
                     "users",
                     "round 7 waits for shard 1",
                     {"trainer1"},
                     absl::Seconds(5.5)}};
  EXPECT_THAT(ToText(report),
              HasSubstr("  ps0: table users waits for trainer1 for 5.5 s: "
                        "round 7 waits for shard 1\n"));
  EXPECT_THAT(ToText(report),
              HasSubstr("no progress: ps0 and trainer0 wait in Pull on table "
                        "users (6.0 s) for trainer1, which runs"));
  const Json json = ToJson(report);
  EXPECT_EQ(json["servers"][0]["waits_for"][0], "trainer1");
  EXPECT_EQ(json["stuck"][0]["class"], "busy");
  EXPECT_EQ(json["stuck"][0]["ranks"], "trainer1");
  // It waits as well, and it is not known for whom.
  report.trainers[1].second = At(7, "push", 6);
  EXPECT_THAT(ToText(report), Not(HasSubstr("no progress")));
  report.trainers.pop_back();
  report.silent = {{"trainer1", absl::DeadlineExceededError("no answer")}};
  EXPECT_THAT(ToText(report),
              HasSubstr("for trainer1, of which nothing is seen here, and "
                        "which does not answer"));
}

TEST(TrainingReport, NothingIsSaidWhereNobodyTrains) {
  EXPECT_EQ(ToText({}), "");
  EXPECT_EQ(ToJson({})["workers"], Json::object());
}

TEST(TrainingReport, ATrainerWithoutAStepIsNotBehind) {
  TrainingReport report;
  report.trainers = {
      {"trainer0", At(1204, "pull", 3)},
      {"trainer1", {{"phase", "between phases"}, {"phase_seconds", 40}}}};
  EXPECT_THAT(
      ToText(report),
      HasSubstr("trainer1: no step yet, between phases for 40.000 s\n"));
  EXPECT_THAT(ToText(report), Not(HasSubstr("behind: ")));
}

// Whoever is in the job may have sent it.
TEST(TrainingReport, FieldsThatNoTrainerSendsDoNoHarm) {
  const Json values[] = {nullptr,
                         true,
                         -1,
                         std::numeric_limits<int64_t>::min(),
                         std::numeric_limits<uint64_t>::max(),
                         1e308,
                         "\x1b[2J\ntext",
                         Json::array({1, 2}),
                         Json::object({{"a", 1}})};
  for (const char* key : {"step", "phase", "phase_seconds", "loss",
                          "examples_per_s", "step_seconds", "wait_share",
                          "operation", "operation_seconds", "error"}) {
    for (const Json& value : values) {
      TrainingReport report;
      Json fields = At(7, "pull", 1);
      fields[key] = value;
      report.trainers = {{"trainer0", fields}, {"trainer1", At(8, "pull", 1)}};
      const std::string text = ToText(report);
      EXPECT_THAT(text, HasSubstr("  trainer1: step 8, ")) << key << value;
      EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << key << value;
      const Json workers = ToJson(report)["workers"];
      EXPECT_TRUE(workers.contains("trainer0")) << key << value;
      // What is no step moves the furthest nowhere.
      EXPECT_EQ(workers["trainer1"]["steps_behind"], 0) << key << value;
    }
  }
}

}  // namespace
}  // namespace weft::launch
