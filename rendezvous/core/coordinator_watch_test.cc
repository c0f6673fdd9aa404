// CoordinatorCore: what those who watch are told.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/core/coordinator_fixture.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using Fixture = CoordinatorFixture;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(CoordinatorCore, AWatchIsAnsweredByAChangeOrByItsTime) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  v1::WatchRequest watch;
  watch.set_job("job");
  watch.set_known_version(f.view().version());
  watch.set_wait_ms(2000);
  const uint64_t changed = f.Call(watch);
  EXPECT_TRUE(f.IsHeld(changed));
  f.Leave(key, 10);
  EXPECT_GT(f.ReplyTo<v1::WatchReply>(changed).view().version(),
            watch.known_version());
  const uint64_t behind = f.Call(watch);
  EXPECT_FALSE(f.IsHeld(behind));
  watch.set_known_version(f.view().version());
  const uint64_t quiet = f.Call(watch);
  f.Tick(absl::Seconds(2));
  EXPECT_EQ(f.ReplyTo<v1::WatchReply>(quiet).view().version(),
            watch.known_version());
}

TEST(CoordinatorCore, AViewSaysWhenTheWorldWasCompleteLast) {
  Fixture f;
  f.Join("ps", 0, 10);
  const WorkerKey first = f.Join("trainer", 0, 11);
  EXPECT_EQ(f.core().view().complete_at(), 0u);
  const v1::View before = f.core().view();
  const WorkerKey last = f.Join("trainer", 1, 12);
  const uint64_t complete_at = f.core().view().complete_at();
  EXPECT_GE(complete_at, last.epoch);
  f.Leave(first, 11);
  f.Leave(last, 12);
  EXPECT_EQ(f.core().view().complete_at(), complete_at);
  const v1::View changes = f.Seen(f.Watch(before.version()));
  EXPECT_EQ(changes.complete_at(), complete_at);
  EXPECT_EQ(Merge(before, changes).value().complete_at(), complete_at);
  // For one that has come since, it is too long ago.
  const WorkerKey again = f.Join("trainer", 1, 13);
  EXPECT_FALSE(FromWire(f.core().view()).WasCompleteSince(again.epoch));
  EXPECT_TRUE(FromWire(f.core().view()).WasCompleteSince(last.epoch));
}

TEST(CoordinatorCore, AWatcherGetsWhatHasChangedSinceItLooked) {
  Fixture f;
  f.Join("ps", 0, 10);
  const WorkerKey trainer = f.Join("trainer", 0, 11);
  const v1::View before = f.core().view();
  const uint64_t held = f.Watch(before.version());
  f.Join("trainer", 1, 12);
  const v1::View joined = f.Seen(held);
  EXPECT_EQ(joined.since(), before.version());
  ASSERT_EQ(joined.members_size(), 1);
  EXPECT_EQ(joined.members(0).name(), "trainer1");
  EXPECT_FALSE(joined.has_world());

  // A watcher gets all the changes that it lacks at once, few or many.
  f.Leave(trainer, 11);
  f.Announce(FromWire(before.members(0).key()), 10, v1::QUIESCING);
  const v1::View all = f.Seen(f.Watch(before.version()));
  EXPECT_EQ(all.members_size(), 2);
  EXPECT_EQ(all.departed_size(), 1);
  const auto merged = Merge(before, all);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(ContentsOf(*merged), ContentsOf(f.core().view()));
  const v1::View later = f.Seen(f.Watch(joined.version()));
  EXPECT_EQ(later.members_size(), 1);
  EXPECT_THAT(Merge(*Merge(before, joined), later), IsOk());

  // Who takes no changes, or knows nothing, gets whole views.
  EXPECT_EQ(ContentsOf(f.Seen(f.Watch(before.version(), false))),
            ContentsOf(f.core().view()));
  EXPECT_EQ(ContentsOf(f.Seen(f.Watch(0))), ContentsOf(f.core().view()));
}

TEST(CoordinatorCore, AWatchWithoutNewsIsAnsweredInAFewBytes) {
  Fixture f;
  f.Join("ps", 0, 10);
  for (const bool takes_changes : {true, false}) {
    const Epoch version = f.view().version();
    const uint64_t quiet = f.Watch(version, takes_changes, 1000);
    f.Tick(absl::Seconds(1));
    EXPECT_EQ(f.Seen(quiet).version(), version);
    EXPECT_LT(f.Seen(quiet).ByteSizeLong(), 40u);
    EXPECT_FALSE(f.IsHeld(f.Watch(version, takes_changes, 0)));
  }
}

// Options of a core that answers two at once.
CoordinatorCore::Options Crowded() {
  CoordinatorCore::Options options;
  options.unpaced_answers = 2;
  return options;
}

TEST(CoordinatorCore, ChangesThatComeCloseTogetherAreInOneAnswerForMany) {
  Fixture f({}, 1, Crowded());
  const WorkerKey ps = f.Join("ps", 0, 10);
  const WorkerKey trainer = f.Join("trainer", 0, 11);
  const auto watch = [&](Epoch known) {
    std::vector<uint64_t> watches;
    for (int i = 0; i < 3; ++i) watches.push_back(f.Watch(known));
    return watches;
  };
  const auto first = watch(f.view().version());
  f.Announce(ps, 10, v1::QUIESCING);
  for (const uint64_t ticket : first) EXPECT_FALSE(f.IsHeld(ticket));
  const Epoch published = f.view().version();
  // They ask again, and do not get each of the next changes by itself...
  const auto second = watch(published);
  f.Announce(ps, 10, v1::DRAINED);
  f.Announce(trainer, 11, v1::QUIESCING);
  const auto third = watch(published);
  for (const uint64_t ticket : second) EXPECT_TRUE(f.IsHeld(ticket));
  for (const uint64_t ticket : third) EXPECT_TRUE(f.IsHeld(ticket));
  // ...while who does not want to wait does not.
  EXPECT_EQ(f.Seen(f.Watch(published, true, 0)).version(), f.view().version());
  const uint64_t behind = f.Watch(published - 1);
  const uint64_t brief = f.Watch(published, true, 10);
  f.Tick(absl::Milliseconds(50));
  EXPECT_TRUE(f.IsHeld(behind));
  EXPECT_TRUE(f.IsHeld(brief));
  f.Tick(absl::Milliseconds(51));
  EXPECT_EQ(f.Seen(behind).version(), f.view().version());
  EXPECT_EQ(f.Seen(brief).version(), f.view().version());
  for (const uint64_t ticket : second) {
    EXPECT_EQ(f.Seen(ticket).version(), f.view().version());
    EXPECT_EQ(f.Seen(ticket).members_size(), 2);
  }
  // A watcher that is behind gets what it lacks though nothing has changed
  // since.
  const uint64_t late = f.Watch(published);
  EXPECT_TRUE(f.IsHeld(late));
  f.Tick(absl::Milliseconds(101));
  EXPECT_EQ(f.Seen(late).version(), f.view().version());
  EXPECT_FALSE(f.IsHeld(f.Watch(published)));
  // After a while the next is told at once again.
  const auto fourth = watch(f.view().version());
  f.Tick(absl::Milliseconds(101));
  f.Leave(trainer, 11);
  for (const uint64_t ticket : fourth) EXPECT_FALSE(f.IsHeld(ticket));
}

TEST(CoordinatorCore, ManyWhoAreBehindAreAnsweredTogether) {
  Fixture f({}, 1, Crowded());
  f.Join("ps", 0, 10);
  const Epoch before = f.view().version();
  f.Join("trainer", 0, 11);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(f.IsHeld(f.Watch(before)));
  const uint64_t fourth = f.Watch(before);
  EXPECT_TRUE(f.IsHeld(fourth));
  f.Tick(absl::Milliseconds(101));
  EXPECT_EQ(f.Seen(fourth).version(), f.view().version());
  for (int i = 0; i < 4; ++i) {  // not close together
    EXPECT_FALSE(f.IsHeld(f.Watch(before)));
    f.Tick(absl::Milliseconds(60));
  }
}

TEST(CoordinatorCore, JoinsThatComeCloseTogetherAreAnsweredWithOneView) {
  Fixture f({}, 1, Crowded());
  f.Join("ps", 0, 10);
  for (int i = 0; i < 3; ++i) f.Watch(f.view().version());
  f.Join("trainer", 0, 11);
  v1::JoinRequest join = f.JoinOf("trainer", 1, 12);
  const uint64_t held = f.Call(join);
  const uint64_t again = f.Call(join);
  const uint64_t given_up = f.Call(join);
  f.CallerGone(given_up);
  EXPECT_TRUE(f.IsHeld(held));
  EXPECT_NE(f.view().Find("trainer1"), nullptr);  // it is decided, and logged
  EXPECT_TRUE(f.log().back().has_joined());
  f.Tick(absl::Milliseconds(101));
  const auto reply = f.ReplyTo<v1::JoinReply>(held);
  EXPECT_THAT(CheckHas(reply.view(), "trainer1", reply.key()), IsOk());
  EXPECT_EQ(FromWire(f.ReplyTo<v1::JoinReply>(again).key()),
            FromWire(reply.key()));
  EXPECT_TRUE(f.IsHeld(given_up));
}

TEST(CoordinatorCore, AJoinOfOneThatEndsBeforeItsAnswerIsRefused) {
  Fixture f({}, 1, Crowded());
  f.Join("ps", 0, 10);
  for (int i = 0; i < 3; ++i) f.Watch(f.view().version());
  f.Join("trainer", 0, 11);
  const uint64_t held = f.Call(f.JoinOf("trainer", 1, 12));
  f.ReportExit("trainer1");
  f.Tick(absl::Milliseconds(101));
  EXPECT_THAT(f.StatusOf(held),
              StatusIs(absl::StatusCode::kAborted, "killed by SIGKILL"));
}

TEST(CoordinatorCore, ChangesReachAcrossARestart) {
  Fixture f;
  const WorkerKey ps = f.Join("ps", 0, 10);
  const WorkerKey trainer = f.Join("trainer", 0, 11);
  f.Tick(absl::Seconds(4));
  const v1::View first = f.core().view();
  EXPECT_TRUE(FromWire(first).Find("ps0")->suspect);
  f.Join("trainer", 1, 12);
  const v1::View second = f.core().view();
  f.Announce(ps, 10, v1::QUIESCING);
  const v1::View third = f.core().view();
  f.Leave(trainer, 11);
  const v1::View fourth = f.core().view();
  f.Restart();
  EXPECT_FALSE(f.view().Find("ps0")->suspect);
  // A successor of a log that was shortened knows as much.
  Fixture other(f.core().Snapshot(), 3);
  for (Fixture* successor : {&f, &other}) {
    int entries = 3;
    for (const v1::View& before : {first, second, third, fourth}) {
      const v1::View changes =
          successor->Seen(successor->Watch(before.version()));
      EXPECT_EQ(changes.members_size() + changes.departed_size(), entries--);
      const auto merged = Merge(before, changes);
      ASSERT_THAT(merged, IsOk());
      EXPECT_EQ(ContentsOf(*merged), ContentsOf(successor->core().view()));
    }
  }
}

TEST(CoordinatorCore, LogsWithoutVersionsAreToldWhole) {
  Fixture f;
  f.Join("ps", 0, 10);
  const v1::View before = f.core().view();
  const WorkerKey trainer = f.Join("trainer", 0, 11);
  f.Leave(trainer, 11);
  std::vector<v1::LogRecord> old = f.log();
  for (v1::LogRecord& record : old) record.clear_version();
  Fixture other(old, 2);
  const v1::View changes = other.Seen(other.Watch(before.version()));
  EXPECT_EQ(changes.members_size() + changes.departed_size(), 2);
  const auto merged = Merge(before, changes);
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(ContentsOf(*merged), ContentsOf(other.core().view()));
}

TEST(CoordinatorCore, ALostRecordShowsInTheChanges) {
  Fixture f;
  f.Join("ps", 0, 10);
  const WorkerKey trainer = f.Join("trainer", 0, 11);
  f.Leave(trainer, 11);
  std::vector<v1::LogRecord> log = f.log();
  ASSERT_TRUE(log.back().has_departed());
  log.pop_back();
  Fixture other(log, 2);
  const v1::View before = f.core().view();
  EXPECT_THAT(Merge(before, other.Seen(other.Watch(before.version()))),
              StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace weft::rendezvous
