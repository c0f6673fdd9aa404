// Many workers as processes: one is stopped or killed while all call each other
// for the first time, comes twice, or has too few descriptors or too little
// shared memory.

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::outside {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::Process;
using ::weft::testing::RunfilePath;

constexpr absl::Duration kLong = absl::Seconds(100);

using Words = std::vector<std::string>;

std::unique_ptr<Process> Start(Words argv, Words environment = {}) {
  auto process = Process::Start({std::move(argv), std::move(environment)});
  EXPECT_THAT(process.status(), IsOk());
  return *std::move(process);
}

class Crowd : public ::testing::Test {
 protected:
  Crowd() { chmod(dir_.path().c_str(), 0700); }

  std::string Path(const std::string& name) const { return dir_.Path(name); }
  void Touch(const std::string& name) const { std::ofstream(Path(name)); }
  // One of `trainers`; `first` comes before all flags.
  std::unique_ptr<Process> Caller(int rank, int trainers, const Words& words,
                                  const Words& first = {}) const {
    Words argv = {RunfilePath("tests/outside/scale/caller")};
    argv.insert(argv.end(), first.begin(), first.end());
    const Words flags = {"--job=crowd",
                         absl::StrCat("--rank=", rank),
                         absl::StrCat("--trainers=", trainers),
                         absl::StrCat("--ranks-on-host=", trainers),
                         "--coordinator=unix:" + Path("c.sock"),
                         "--dump-dir=" + dir_.path()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), words.begin(), words.end());
    // Where the job counts its memory.
    return Start(std::move(argv), {"XDG_RUNTIME_DIR=" + dir_.path()});
  }
  std::vector<std::unique_ptr<Process>> Callers(int trainers,
                                                const Words& words) const {
    std::vector<std::unique_ptr<Process>> all;
    for (int rank = 0; rank < trainers; ++rank) {
      all.push_back(Caller(rank, trainers, words));
    }
    return all;
  }

 private:
  weft::testing::TempDir dir_;
};

void AwaitOutput(Process& process, const std::string& text) {
  ASSERT_THAT(process.WaitForOutput(text, kLong), IsOk());
}

// Every line that says which call was lost names `name`.
void ExpectLostIsOnly(const std::string& name, const std::string& output) {
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (!absl::StartsWith(line, "lost ")) continue;
    EXPECT_TRUE(
        absl::StartsWith(line, absl::StrCat("lost ", name, ": UNAVAIL")))
        << line;
  }
}

// A process that stands still holds up the calls to it alone, and these go on
// with it.
TEST_F(Crowd, OneThatIsStoppedBeforeItsFirstCallsHoldsUpNobodyElse) {
  constexpr int kTrainers = 12;
  constexpr int kStopped = 7;
  const auto all = Callers(
      kTrainers, {"--silence=100s", "await:" + Path("go"), "call:1:100"});
  for (const auto& each : all) AwaitOutput(*each, "joined");
  all[kStopped]->Signal(SIGSTOP);
  Touch("go");
  for (int r = 0; r < kTrainers; ++r) {
    if (r == kStopped) continue;
    AwaitOutput(*all[r], absl::StrCat("answered ", kTrainers - 2, "\n"));
    EXPECT_THAT(all[r]->output(), Not(HasSubstr("lost")));
  }
  all[kStopped]->Signal(SIGCONT);
  for (const auto& each : all) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(0)) << each->output();
    EXPECT_THAT(each->output(),
                HasSubstr(absl::StrCat("answered ", kTrainers - 1, "\n")));
    EXPECT_THAT(each->output(), Not(HasSubstr("WRONG")));
  }
}

// "its process has ended" (docs/rendezvous.md): who is killed while all call is
// named, and nobody else.
TEST_F(Crowd, OneThatIsKilledAmidTheFirstCallsIsNamedAndNobodyElse) {
  constexpr int kTrainers = 16;
  constexpr int kKilled = 9;
  const auto all = Callers(kTrainers, {"await:" + Path("go"), "call:2:100"});
  for (const auto& each : all) AwaitOutput(*each, "joined");
  Touch("go");
  AwaitOutput(*all[kKilled], "answered 1\n");
  all[kKilled]->Signal(SIGKILL);
  for (int r = 0; r < kTrainers; ++r) {
    if (r == kKilled) continue;
    EXPECT_THAT(all[r]->Wait(kLong), IsOkAndHolds(0)) << all[r]->output();
    ExpectLostIsOnly("trainer9", all[r]->output());
    EXPECT_THAT(all[r]->output(), HasSubstr("called\n"));
  }
}

// One more than a worker shares memory with, and it answers when all the others
// have called each other: it is waited for, and nobody is taken for lost.
TEST_F(Crowd, SixtyFifthThatIsLateIsWaitedForAndAnswered) {
  constexpr int kTrainers = 65;
  const auto all = Callers(
      kTrainers, {"--silence=100s", "await:" + Path("go"), "call:1:100"});
  for (const auto& each : all) {
    AwaitOutput(*each, "joined");
    if (HasFatalFailure()) return;
  }
  all.back()->Signal(SIGSTOP);
  Touch("go");
  for (int rank = 0; rank + 1 < kTrainers; ++rank) {
    AwaitOutput(*all[rank], absl::StrCat("answered ", kTrainers - 2, "\n"));
    if (HasFatalFailure()) return;
  }
  all.back()->Signal(SIGCONT);
  for (const auto& each : all) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(0)) << each->output();
    EXPECT_THAT(each->output(),
                HasSubstr(absl::StrCat("answered ", kTrainers - 1, "\n")));
    EXPECT_THAT(each->output(), Not(HasSubstr("lost")));
  }
}

// Twice the same name, while all call each other: the second is refused, and
// the first goes on.
TEST_F(Crowd, SecondOfANameIsRefusedAndTheFirstGoesOn) {
  constexpr int kTrainers = 6;
  const Words words = {"await:" + Path("go"), "call:2:100",
                       "await:" + Path("end"), "call:1:100"};
  const auto all = Callers(kTrainers, words);
  for (const auto& each : all) AwaitOutput(*each, "joined");
  Touch("go");
  const auto second = Caller(3, kTrainers, words);
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(3)) << second->output();
  EXPECT_THAT(second->output(), HasSubstr("trainer3"));
  Touch("end");
  for (const auto& each : all) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(0)) << each->output();
    EXPECT_THAT(each->output(), Not(HasSubstr("lost")));
  }
}

// More workers than descriptors allow: refused at the start, with the numbers
// and what to set. Later each would name a peer that it cannot reach.
TEST_F(Crowd, WorkerWithTooFewDescriptorsForItsJobIsRefusedAtTheStart) {
  const auto few = Caller(5, 100, {"call:1:1"}, {"--descriptors=150"});
  EXPECT_THAT(few->Wait(kLong), IsOkAndHolds(13)) << few->output();
  // A connection to and from each of 99 others, and 32 of its own.
  EXPECT_THAT(few->output(),
              AllOf(HasSubstr("wanted at least 230 free descriptors"),
                    HasSubstr("one of 100 workers"),
                    HasSubstr("of a limit of 150"), HasSubstr("ulimit -n")));
}

// With just as many descriptors as that, and none for shared memory, everything
// works as usual.
TEST_F(Crowd, WorkersWithoutDescriptorsForSharedMemoryUseTheirStreams) {
  constexpr int kTrainers = 12;
  std::vector<std::unique_ptr<Process>> all;
  for (int rank = 0; rank < kTrainers; ++rank) {
    // trainer0 hosts the coordinator.
    all.push_back(
        Caller(rank, kTrainers, {"call:2:100000", "call:1:100"},
               {rank == 0 ? "--descriptors=110" : "--descriptors=85"}));
  }
  for (const auto& each : all) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(0)) << each->output();
    EXPECT_THAT(each->output(), Not(HasSubstr("lost")));
    EXPECT_THAT(each->output(), HasSubstr("for want of descriptors"));
  }
}

// A group for which the budget has no memory is refused at each rank, with the
// numbers and what to set, also where the host of the job ends by it first.
TEST_F(Crowd, GroupBeyondTheBudgetIsRefusedOnEachRank) {
  constexpr int kTrainers = 8;
  const auto all =
      Callers(kTrainers, {"--shared-memory-budget=100000", "group:g:8"});
  for (const auto& each : all) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(13)) << each->output();
    EXPECT_THAT(each->output(), HasSubstr("raise --shared-memory-budget"));
  }
}

}  // namespace
}  // namespace weft::outside
