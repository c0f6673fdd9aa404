#include "weft/launch/stuck/stuck_watch.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/stuck/stuck_text.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two trainers, of which trainer0 waits for trainer1.
class StuckWatchTest : public ::testing::Test {
 protected:
  StuckWatchTest() {
    Start("trainer0", 10, 0);
    Start("trainer1", 11, 0);
  }

  void Start(const std::string& name, pid_t pid, double at,
             bool joins_others = false) {
    watch_.Start(name, pid, joins_others, At(at));
  }

  Instant At(double seconds) const { return start_ + absl::Seconds(seconds); }

  // Looks at both, each second, until then: what is said meanwhile.
  std::vector<StuckCause> RunUntil(double seconds) {
    std::vector<StuckCause> said;
    for (; now_ <= seconds; now_ += 1) {
      const absl::Duration cpu = absl::Seconds(now_);
      watch_.Look("trainer0", {10, 'S', absl::ZeroDuration()}, At(now_));
      watch_.Look("trainer1", {11, state_, cpu}, At(now_));
      Take(watch_.Check(At(now_)), &said);
    }
    return said;
  }

  std::vector<StuckCause> Wait(double at, double waited) {
    watch_.Line("trainer0",
                absl::StrCat("AllReduce #7 at x.cc:1: rank 0 of group g still "
                             "waits after ",
                             waited, "s: rank 1 (trainer1) has not called it"),
                At(at));
    std::vector<StuckCause> said;
    Take(watch_.Check(At(at)), &said);
    return said;
  }

  void Take(StuckWatch::News news, std::vector<StuckCause>* said) {
    if (news.is_over) ++over_;
    said->insert(said->end(), news.causes.begin(), news.causes.end());
  }

  bool EndsWait(double at, double waited, const std::string& how = "") {
    watch_.Line("trainer0",
                absl::StrCat("AllReduce #7 at x.cc:1: rank 0 of group g no "
                             "longer waits, after ",
                             waited, "s", how),
                At(at));
    return watch_.Check(At(at)).is_over;
  }

  StuckWatch watch_;
  const Instant start_ = Instant::FromNanoseconds(1'000'000'000);
  double now_ = 0;
  char state_ = 'R';
  int over_ = 0;
};

TEST_F(StuckWatchTest, SaysWhoIsBusyOnceTheWaitIsLong) {
  EXPECT_THAT(RunUntil(1), IsEmpty());
  EXPECT_THAT(Wait(2, 2), IsEmpty());
  EXPECT_THAT(RunUntil(3), IsEmpty());
  const std::vector<StuckCause> said = Wait(4, 4);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kBusy);
  EXPECT_THAT(said[0].ranks, ElementsAre("trainer1"));
  EXPECT_TRUE(EndsWait(6, 6));
}

// It has used 4 s of CPU in 4 s.
TEST_F(StuckWatchTest, KnowsTheCpuTimeOfTheLastSeconds) {
  RunUntil(20);
  for (const RankFacts& rank : watch_.Facts(At(20))) {
    EXPECT_EQ(rank.over, absl::Seconds(4)) << rank.name;
    EXPECT_EQ(rank.cpu, absl::Seconds(rank.name == "trainer1" ? 4 : 0));
  }
}

TEST_F(StuckWatchTest, StoppedRankIsSaidWithoutThatAnybodyWaits) {
  RunUntil(1);
  state_ = 'T';
  const std::vector<StuckCause> said = RunUntil(7);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kStopped);
  state_ = 'R';
  EXPECT_THAT(RunUntil(8), IsEmpty());
  EXPECT_EQ(over_, 1);
}

// Its backups serve: whoever wants something of it says so.
TEST_F(StuckWatchTest, StoppedServerForWhichNobodyWaitsIsNotNamed) {
  Start("ps1", 12, 0);
  const auto run_until = [&](double seconds) {
    std::vector<StuckCause> said;
    for (; now_ <= seconds; now_ += 1) {
      // Nobody computes.
      for (const auto& [name, pid] :
           {std::pair("trainer0", 10), std::pair("trainer1", 11)}) {
        watch_.Look(name, {pid, 'S', absl::ZeroDuration()}, At(now_));
      }
      watch_.Look("ps1", {12, 'T', absl::ZeroDuration()}, At(now_));
      Take(watch_.Check(At(now_)), &said);
    }
    return said;
  };
  EXPECT_THAT(run_until(30), IsEmpty());
  watch_.Line("trainer0",
              "Pull on table users still waits after 4s: ps1 does not answer",
              At(31));
  const auto said = run_until(31);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kStopped);
  EXPECT_THAT(said[0].ranks, ElementsAre("ps1"));
  EXPECT_EQ(over_, 0);
  watch_.Line("trainer0", "Pull on table users no longer waits, after 6s",
              At(33));
  EXPECT_THAT(run_until(90), IsEmpty());
  EXPECT_EQ(over_, 1);
}

// As where the others have gone on without it, or have no need of it.
TEST_F(StuckWatchTest, StoppedRankIsNotNamedWhileAnotherTrainsOn) {
  double used = 0;
  const auto look = [&](double cpu) {
    watch_.Look("trainer0", {10, 'S', absl::Seconds(used += cpu)}, At(now_));
    watch_.Look("trainer1", {11, 'T', absl::ZeroDuration()}, At(now_));
    std::vector<StuckCause> said;
    Take(watch_.Check(At(now_)), &said);
    now_ += 1;
    return said;
  };
  for (int i = 0; i < 60; ++i) EXPECT_THAT(look(0.3), IsEmpty()) << i;
  EXPECT_EQ(over_, 0);
  // It has ended: then nobody goes on.
  watch_.End("trainer0");
  const auto said = look(0);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].ranks, ElementsAre("trainer1"));
}

// This happens where a debugger holds a rank for minutes.
TEST_F(StuckWatchTest, IsSaidAgainAfterLongerAndLongerPauses) {
  state_ = 't';
  const size_t said = RunUntil(600).size();
  // It was said after 4, 14, 34, 74, 154 and 314 s.
  EXPECT_EQ(said, 6u);
  EXPECT_EQ(over_, 0);
}

// A step that waits for a slow rank each time, as while it saves.
TEST_F(StuckWatchTest, SlowRankWhoseWaitsEndByThemselvesIsReportedLater) {
  RunUntil(1);
  EXPECT_THAT(Wait(4, 4), SizeIs(1));
  EXPECT_TRUE(EndsWait(8, 8));
  now_ = 9;
  for (double step = 1; step < 10; ++step) {
    RunUntil(10 * step + 1);
    EXPECT_THAT(Wait(10 * step + 4, 4), IsEmpty());
    EXPECT_THAT(Wait(10 * step + 8, 8), IsEmpty());
    EXPECT_FALSE(EndsWait(10 * step + 9, 9));
  }
  EXPECT_THAT(Wait(216, 16), SizeIs(1));
}

// A group that goes on without a rank that it has lost.
TEST_F(StuckWatchTest, WaitsThatEndWithAnErrorAreNoSlowness) {
  Wait(4, 4);
  EXPECT_TRUE(EndsWait(8, 8, " (UNAVAILABLE)"));
  EXPECT_THAT(Wait(34, 4), SizeIs(1));
}

TEST_F(StuckWatchTest, WaitOfARankThatEndsIsOver) {
  Wait(4, 4);
  watch_.End("trainer0");
  EXPECT_TRUE(watch_.Check(At(5)).is_over);
  Start("trainer0", 12, 6);
  EXPECT_FALSE(watch_.Check(At(6)).is_over);
}

TEST_F(StuckWatchTest, RankThatHasEndedIsSaidToBeGone) {
  watch_.End("trainer1");
  const std::vector<StuckCause> said = Wait(4, 4);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kGone);
}

// The others train while it gets a first copy of the state, however long that
// takes. Once it takes part they wait for it too.
TEST_F(StuckWatchTest, WaitsOfARankThatIsStillToTakePartSayNothingOfTheJob) {
  watch_.End("trainer0");
  Start("trainer0", 12, 10, /*joins_others=*/true);
  RunUntil(12);
  EXPECT_THAT(Wait(16, 4), IsEmpty());
  EXPECT_THAT(RunUntil(30), IsEmpty());
  EXPECT_THAT(Wait(44, 32), IsEmpty());
  watch_.Joined("trainer0");
  EXPECT_THAT(Wait(76, 64), SizeIs(1));
  EXPECT_TRUE(EndsWait(80, 68));
}

// Its log may not say that it takes part.
TEST_F(StuckWatchTest, RankThatNeverTakesPartCountsAfterAWhile) {
  watch_.End("trainer0");
  Start("trainer0", 12, 10, /*joins_others=*/true);
  EXPECT_THAT(Wait(300, 290), IsEmpty());
  EXPECT_THAT(Wait(320, 310), SizeIs(1));
}

// Others wait for it, and it waits itself: nobody else is named in its place.
TEST_F(StuckWatchTest, RankThatIsStillToTakePartIsNotTakenForBusyInItsWait) {
  watch_.End("trainer1");
  Start("trainer1", 12, 0, /*joins_others=*/true);
  watch_.Line("trainer1",
              "AllReduce #7 at x.cc:1: rank 1 of group g still waits after 2s: "
              "rank 2 (trainer2) has not called it",
              At(2));
  EXPECT_THAT(Wait(4, 4), IsEmpty());
}

// Whoever waits on reports it again.
TEST_F(StuckWatchTest, WaitForServersThatIsNotReportedAgainIsOver) {
  const auto wait = [&](double at, double waited) {
    watch_.Line("trainer0",
                absl::StrCat("Pull on table users still waits after ", waited,
                             "s: ps0 waits for trainer1 (round 3)"),
                At(at));
    return watch_.Check(At(at)).causes;
  };
  RunUntil(1);
  wait(2, 2);
  RunUntil(3);
  EXPECT_THAT(wait(4, 4), SizeIs(1));
  EXPECT_THAT(RunUntil(11), IsEmpty());
  EXPECT_EQ(over_, 0);
  RunUntil(14);
  EXPECT_EQ(over_, 1);
}

constexpr char kForAKey[] =
    "Wait for key users/0 of the store still waits after 2s: nobody has set it";

TEST_F(StuckWatchTest, RankThatWaitsForAKeyIsNamedWithItWhereOthersWaitForIt) {
  watch_.Line("trainer1", kForAKey, At(2));
  EXPECT_THAT(RunUntil(3), IsEmpty());
  const auto said = Wait(4, 4);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kStoreKey);
  EXPECT_THAT(said[0].ranks, ElementsAre("trainer1"));
  EXPECT_THAT(
      StuckText(said[0], watch_.Facts(At(4)), "node0", "job"),
      ::testing::HasSubstr("trainer0 waits in AllReduce #7 of group g (4.0 s) "
                           "for trainer1 (pid 11 on node0), which is in Wait "
                           "for key users/0 of the store (4.0 s), which nobody "
                           "sets"));
  watch_.Line("trainer1",
              "Wait for key users/0 of the store no longer waits, after 5s",
              At(5));
  EXPECT_EQ(Wait(8, 8)[0].why, StuckClass::kBusy);
}

// It may be what it is there for, as where a rank waits for orders.
TEST_F(StuckWatchTest, RankThatWaitsForAKeyAndKeepsNobodyIsNotNamed) {
  watch_.Line("trainer1", kForAKey, At(2));
  EXPECT_THAT(RunUntil(100), IsEmpty());
  EXPECT_EQ(over_, 0);
}

TEST_F(StuckWatchTest, CoordinatorThatDoesNotAnswerIsNamed) {
  watch_.Line("trainer1",
              "Wait for key users/0 of the store still waits after 2s: the "
              "coordinator does not answer",
              At(2));
  const auto said = RunUntil(5);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kUnknown);
  EXPECT_THAT(said[0].ranks, ElementsAre("the coordinator"));
  EXPECT_THAT(StuckText(said[0], watch_.Facts(At(5)), "node0", "job"),
              ::testing::HasSubstr("trainer1 waits in Wait for key users/0 of "
                                   "the store (5.0 s) for the coordinator"));
}

// trainer1 is at a barrier of the coordinator for so long, and trainer2 is not.
constexpr char kAtABarrier[] =
    "Barrier orders of the coordinator still waits after ";

TEST_F(StuckWatchTest, WhoIsMissingAtABarrierIsNamedWhereOthersWaitForIt) {
  Start("trainer2", 12, 0);
  watch_.Line("trainer1", absl::StrCat(kAtABarrier, "4s: missing trainer2"),
              At(4));
  const auto said = Wait(4, 4);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kBusy);
  EXPECT_THAT(said[0].ranks, ElementsAre("trainer2"));
  EXPECT_THAT(
      StuckText(said[0], watch_.Facts(At(4)), "node0", "job"),
      ::testing::HasSubstr("trainer0 waits in AllReduce #7 of group g (4.0 s), "
                           "trainer1 in Barrier orders of the coordinator (4.0 "
                           "s) for trainer2 (pid 12 on node0), which runs and "
                           "is not in that call"));
  watch_.Line("trainer1",
              "Barrier orders of the coordinator no longer waits, after 5s",
              At(5));
  // It was slow once: the next wait is borne for twice as long.
  const auto next = Wait(16, 16);
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_THAT(next[0].ranks, ElementsAre("trainer1"));
}

// As servers that wait until the trainers have trained.
TEST_F(StuckWatchTest, WhoIsMissingAtABarrierThatKeepsNobodyIsNotNamed) {
  for (const double waited : {2, 4, 8, 16, 32, 64}) {
    watch_.Line("trainer1",
                absl::StrCat(kAtABarrier, waited, "s: missing trainer0"),
                At(waited));
    EXPECT_THAT(RunUntil(waited + 1), IsEmpty());
    EXPECT_THAT(FindStuck(watch_.Facts(At(waited)), kStuckAfter), IsEmpty());
  }
  EXPECT_THAT(watch_.AwaitedElsewhere({}), IsEmpty());
  EXPECT_EQ(over_, 0);
}

TEST_F(StuckWatchTest, RanksAtTwoBarriersThatWaitForEachOtherAreNamed) {
  watch_.Line("trainer0",
              "Barrier a of the coordinator still waits after 4s: missing "
              "trainer1 and 2 more",
              At(4));
  watch_.Line("trainer1", absl::StrCat(kAtABarrier, "4s: missing trainer0"),
              At(4));
  const auto said = watch_.Check(At(4)).causes;
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].why, StuckClass::kDifferentCalls);
  EXPECT_THAT(said[0].ranks, ElementsAre("trainer0", "trainer1"));
}

// A launcher that has trainer0 alone, and what another one sees of its ranks.
class StuckElsewhereTest : public StuckWatchTest {
 protected:
  StuckElsewhereTest() { watch_ = StuckWatch(); }

  static RankFacts Elsewhere(const std::string& name,
                             RankFacts::Process process) {
    RankFacts rank;
    rank.name = name;
    rank.host = "node1";
    rank.process = process;
    rank.pid = 4711;
    rank.is_heard = true;
    return rank;
  }
  static RankFacts Waiting(const std::string& name, const std::string& group,
                           const std::string& for_whom) {
    RankFacts rank = Elsewhere(name, RankFacts::Process::kRuns);
    RankWait wait;
    wait.operation = "AllReduce #3";
    wait.group = group;
    wait.waited = absl::Seconds(6);
    wait.awaited = {{for_whom}};
    rank.waits = {wait};
    return rank;
  }
  // trainer0 waits for trainer1, for so long, and says so now.
  std::vector<StuckCause> Hear(double waited,
                               const std::vector<RankFacts>& elsewhere,
                               bool asks = true) {
    Start("trainer0", 10, 0);
    watch_.Line("trainer0",
                absl::StrCat("AllReduce #7 at x.cc:1: rank 0 of group g still "
                             "waits after ",
                             waited, "s: rank 1 (trainer1) has not called it"),
                At(waited));
    return watch_.Check(At(waited), elsewhere, asks).causes;
  }
};

TEST_F(StuckElsewhereTest, RankOfAnotherNodeIsNamedWithItsClass) {
  using Process = RankFacts::Process;
  for (const auto& [process, why] :
       {std::pair(Process::kRuns, StuckClass::kBusy),
        std::pair(Process::kStopped, StuckClass::kStopped),
        std::pair(Process::kGone, StuckClass::kGone)}) {
    watch_ = StuckWatch();
    const auto causes = Hear(4, {Elsewhere("trainer1", process)});
    ASSERT_THAT(causes, SizeIs(1));
    EXPECT_EQ(causes[0].why, why);
    EXPECT_THAT(causes[0].ranks, ElementsAre("trainer1"));
  }
}

TEST_F(StuckElsewhereTest, WaitsAreFollowedFromNodeToNode) {
  const RankFacts victim = Waiting("trainer1", "g", "trainer2");
  EXPECT_THAT(watch_.AwaitedElsewhere({victim}), IsEmpty());
  const auto causes =
      Hear(4, {victim, Elsewhere("trainer2", RankFacts::Process::kStopped)});
  EXPECT_THAT(watch_.AwaitedElsewhere({}), ElementsAre("trainer1"));
  EXPECT_THAT(watch_.AwaitedElsewhere({victim}),
              ElementsAre("trainer1", "trainer2"));
  ASSERT_THAT(causes, SizeIs(1));
  EXPECT_EQ(causes[0].why, StuckClass::kStopped);
  EXPECT_THAT(causes[0].ranks, ElementsAre("trainer2"));
}

// Of a barrier here, too: who waits for a rank that is at it may be elsewhere.
TEST_F(StuckElsewhereTest, WaitsAreFollowedThroughABarrier) {
  Start("trainer1", 11, 0);
  watch_.Line("trainer1", absl::StrCat(kAtABarrier, "4s: missing trainer2"),
              At(4));
  const auto causes =
      Hear(4, {Elsewhere("trainer2", RankFacts::Process::kRuns)});
  EXPECT_THAT(watch_.AwaitedElsewhere({}), ElementsAre("trainer2"));
  ASSERT_THAT(causes, SizeIs(1));
  EXPECT_EQ(causes[0].why, StuckClass::kBusy);
  EXPECT_THAT(causes[0].ranks, ElementsAre("trainer2"));
}

TEST_F(StuckElsewhereTest, RanksOfTwoNodesThatCalledDifferentThingsAreNamed) {
  const auto causes = Hear(4, {Waiting("trainer1", "other", "trainer0")});
  ASSERT_THAT(causes, SizeIs(1));
  EXPECT_EQ(causes[0].why, StuckClass::kDifferentCalls);
  EXPECT_THAT(causes[0].ranks, ElementsAre("trainer0", "trainer1"));
}

// What keeps others only is theirs to say.
TEST_F(StuckElsewhereTest, WhatKeepsNoRankOfThisNodeIsNotSaid) {
  const auto causes =
      Hear(4, {Elsewhere("trainer1", RankFacts::Process::kStopped),
               Waiting("trainer2", "other", "trainer3"),
               Elsewhere("trainer3", RankFacts::Process::kStopped)});
  ASSERT_THAT(causes, SizeIs(1));
  EXPECT_THAT(causes[0].ranks, ElementsAre("trainer1"));
}

TEST_F(StuckElsewhereTest, ThatNothingIsKnownIsSaidOnceTheOthersHadTime) {
  EXPECT_THAT(Hear(4, {}), IsEmpty());
  EXPECT_THAT(Hear(5, {}), IsEmpty());
  const auto causes = Hear(5.5, {});
  ASSERT_THAT(causes, SizeIs(1));
  EXPECT_EQ(causes[0].why, StuckClass::kUnknown);
  // At once where nobody can be asked.
  watch_ = StuckWatch();
  EXPECT_THAT(Hear(4, {}, /*asks=*/false), SizeIs(1));
}

TEST_F(StuckWatchTest, UnknownRanksAreIgnored) {
  watch_.Line("trainer7",
              "AllReduce #7 at x: rank 0 of group g still waits "
              "after 9s: rank 1 (trainer1) has not called it",
              At(9));
  watch_.Look("trainer7", {7, 'T', absl::ZeroDuration()}, At(9));
  EXPECT_THAT(watch_.Check(At(20)).causes, IsEmpty());
}

}  // namespace
}  // namespace weft::launch
