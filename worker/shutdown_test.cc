#include "weft/worker/shutdown.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/fake_clock.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Phases that take their time by a FakeClock.
struct Phases {
  std::map<std::string, absl::Duration> takes;
  std::map<std::string, absl::Status> fails;
  std::vector<rpc::Leak> leaks;
  // Those that ran, in order, with the time that they had.
  std::vector<std::pair<std::string, absl::Duration>> ran;
  FakeClock clock;

  absl::Status Do(const std::string& name, absl::Duration timeout) {
    ran.emplace_back(name, timeout);
    const absl::Duration takes_now = takes[name];
    clock.Advance(std::min(takes_now, timeout));
    if (takes_now > timeout) return absl::DeadlineExceededError("late");
    return fails[name];
  }

  ShutdownReport Run(const ShutdownOptions& options) {
    ShutdownSteps steps;
    steps.quiesce = [this](absl::Duration t) { return Do("quiesce", t); };
    steps.drain = [this](absl::Duration t) { return Do("drain", t); };
    steps.release = [this](absl::Duration t, ShutdownReport* report) {
      report->AddLeaks(leaks);
      return Do("release", t);
    };
    steps.leave = [this](absl::Duration t) { return Do("leave", t); };
    return RunShutdown(options, clock, steps);
  }
};

// "quiesce ok 1s" of each phase.
std::vector<std::string> Told(const ShutdownReport& report) {
  std::vector<std::string> told;
  for (const ShutdownReport::Phase& phase : report.phases) {
    told.push_back(absl::StrCat(phase.name, " ",
                                absl::StatusCodeToString(phase.status.code()),
                                " ", absl::FormatDuration(phase.took)));
  }
  return told;
}

ShutdownOptions TenSeconds() {
  ShutdownOptions options;
  options.deadline = absl::Seconds(10);
  return options;
}

rpc::Leak Left(bool is_stream, const std::string& what) {
  rpc::Leak left;
  left.is_stream = is_stream;
  left.what = what;
  left.peer = "ps0";
  left.count = 1;
  left.ids = {7};
  return left;
}

TEST(RunShutdown, EachPhaseGetsTheRestOfTheDeadlineAndIsTimed) {
  Phases phases;
  phases.takes = {{"quiesce", absl::Seconds(1)},
                  {"drain", absl::Seconds(2)},
                  {"release", absl::Seconds(3)},
                  {"leave", absl::Milliseconds(500)}};
  const ShutdownReport report = phases.Run(TenSeconds());
  EXPECT_THAT(report.status(), IsOk());
  EXPECT_THAT(phases.ran, ElementsAre(Pair("quiesce", absl::Seconds(10)),
                                      Pair("drain", absl::Seconds(9)),
                                      Pair("release", absl::Seconds(7)),
                                      Pair("leave", absl::Seconds(4))));
  EXPECT_THAT(Told(report), ElementsAre("quiesce OK 1s", "drain OK 2s",
                                        "release OK 3s", "leave OK 500ms"));
  EXPECT_EQ(report.ToString(),
            "quiesce ok (1s); drain ok (2s); release ok (3s); "
            "leave ok (500ms)");
}

TEST(RunShutdown, AfterTheFirstFailureNothingIsWaitedFor) {
  Phases phases;
  phases.takes = {{"quiesce", absl::Minutes(1)}};
  const ShutdownReport late = phases.Run(TenSeconds());
  EXPECT_THAT(phases.ran, ElementsAre(Pair("quiesce", absl::Seconds(10)),
                                      Pair("release", absl::ZeroDuration()),
                                      Pair("leave", absl::ZeroDuration())));
  EXPECT_THAT(Told(late), ElementsAre("quiesce DEADLINE_EXCEEDED 10s",
                                      "release OK 0", "leave OK 0"));
  EXPECT_THAT(late.status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "quiesce: late"));
  Phases others;
  others.takes = {{"quiesce", absl::Seconds(1)}};
  others.fails = {{"drain", absl::AbortedError("out of the job")},
                  {"leave", absl::UnavailableError("nobody there")}};
  const ShutdownReport failed = others.Run(TenSeconds());
  EXPECT_THAT(others.ran, ElementsAre(Pair("quiesce", absl::Seconds(10)),
                                      Pair("drain", absl::Seconds(9)),
                                      Pair("release", absl::ZeroDuration()),
                                      Pair("leave", absl::ZeroDuration())));
  EXPECT_THAT(failed.status(),
              StatusIs(absl::StatusCode::kAborted, "drain: out of the job"));
}

TEST(RunShutdown, WithoutGraceTwoPhasesRunAndNoErrorCounts) {
  Phases phases;
  phases.fails = {{"release", absl::DeadlineExceededError("2 calls")},
                  {"leave", absl::UnavailableError("nobody there")}};
  ShutdownOptions at_once;
  at_once.graceful = false;
  const ShutdownReport report = phases.Run(at_once);
  EXPECT_THAT(phases.ran, ElementsAre(Pair("release", absl::ZeroDuration()),
                                      Pair("leave", absl::ZeroDuration())));
  EXPECT_THAT(Told(report), ElementsAre("release OK 0", "leave OK 0"));
  EXPECT_THAT(report.status(), IsOk());
}

TEST(RunShutdown, LeaksAreAnErrorOnlyWithStrictLeaks) {
  Phases phases;
  EXPECT_THAT(phases.Run(TenSeconds()).LeakStatus(), IsOk());
  phases.leaks = {Left(false, "Embedding::new"), Left(true, "Tokens")};
  const ShutdownReport lax = phases.Run(TenSeconds());
  EXPECT_THAT(lax.leaked_objects,
              ElementsAre("1 Embedding::new at ps0 (call 7)"));
  EXPECT_THAT(lax.leaked_streams, ElementsAre("1 Tokens at ps0 (call 7)"));
  EXPECT_THAT(lax.status(), IsOk());
  EXPECT_THAT(lax.ToString(),
              AllOf(HasSubstr("; objects left: 1 Embedding::new at ps0"),
                    HasSubstr("; streams left: 1 Tokens at ps0")));
  ShutdownOptions strict = TenSeconds();
  strict.strict_leaks = true;
  phases.ran.clear();
  const ShutdownReport told = phases.Run(strict);
  EXPECT_THAT(told.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "found 1 Embedding::new at ps0 (call 7), 1 Tokens at "
                       "ps0 (call 7); "));
  EXPECT_EQ(phases.ran.size(), 4u);  // all phases had their time
  EXPECT_THAT(phases.ran.back(), Pair("leave", absl::Seconds(10)));
  phases.takes = {{"drain", absl::Minutes(1)}};
  EXPECT_THAT(phases.Run(strict).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "drain: late; wanted no object and no stream left, "
                       "found 1 Embedding::new"));
  phases.leaks.clear();
  EXPECT_THAT(phases.Run(strict).status().message(),
              Not(HasSubstr("wanted no object")));
  EXPECT_THAT(phases.Run(strict).leaked_objects, IsEmpty());
}

}  // namespace
}  // namespace weft::worker
