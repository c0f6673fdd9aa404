// CoordinatorCore: members and silence, each rule by itself.

#include "weft/rendezvous/core/coordinator_core.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/coordinator_fixture.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using Fixture = CoordinatorFixture;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(View, SelectsByRoleRankNameAndLabels) {
  const auto member = [](const std::string& role, int rank, uint32_t id,
                         const std::string& zone) {
    Member m;
    m.name = absl::StrCat(role, rank);
    m.role = role;
    m.rank = rank;
    m.key = {id, 1};
    m.labels = {{"zone", zone}};
    return m;
  };
  const View view(1, World::Fixed(1, 2),
                  {member("ps", 0, 0, "a"), member("trainer", 0, 1, "a"),
                   member("trainer", 1, 2, "b")},
                  {});
  const auto select = [&](absl::string_view selector) {
    std::vector<std::string> names;
    const auto members = view.Select(selector);
    EXPECT_THAT(members, IsOk());
    if (!members.ok()) return names;
    for (const Member* m : *members) names.push_back(m->name);
    return names;
  };
  EXPECT_THAT(select(""), ElementsAre("ps0", "trainer0", "trainer1"));
  EXPECT_THAT(select("role=trainer"), ElementsAre("trainer0", "trainer1"));
  EXPECT_THAT(select("zone=a"), ElementsAre("ps0", "trainer0"));
  EXPECT_THAT(select("role=trainer,zone=a"), ElementsAre("trainer0"));
  EXPECT_THAT(select("rank=1"), ElementsAre("trainer1"));
  EXPECT_THAT(select("name=ps0"), ElementsAre("ps0"));
  EXPECT_THAT(select("zone=c"), IsEmpty());
  EXPECT_THAT(select("disk=fast"), IsEmpty());
  for (const char* wrong : {"trainer", "role==ps", "role=", "=ps", "a=b=c"}) {
    EXPECT_THAT(view.Select(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted name=value,..., as in role=ps,zone=a; found"));
  }
}

TEST(CoordinatorCore, GivesIdsByPlaceInAFixedWorldInAnyOrderOfJoining) {
  Fixture f;
  EXPECT_EQ(f.Join("trainer", 1, 12).id, 2u);
  EXPECT_EQ(f.Join("ps", 0, 10).id, 0u);
  EXPECT_THAT(f.view().Missing(), ElementsAre("trainer0"));
  EXPECT_EQ(f.view().Summary(), "2/3 joined, missing trainer0");
  EXPECT_EQ(f.Join("trainer", 0, 11).id, 1u);
  EXPECT_TRUE(f.view().IsComplete());
}

TEST(CoordinatorCore, AnswersARepeatedJoinWithTheSameKey) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  const Epoch version = f.view().version();
  EXPECT_EQ(f.Join("ps", 0, 10), key);
  EXPECT_EQ(f.view().version(), version);
}

TEST(CoordinatorCore, MemberOfALaterStartWaitsForTheNextCoordinator) {
  CoordinatorCore::Options options;
  options.start = 2;
  Fixture f({}, 1, options);
  const auto join = [&](const std::string& role, int rank, uint64_t incarnation,
                        uint32_t start) {
    v1::JoinRequest request = f.JoinOf(role, rank, incarnation);
    request.set_start(start);
    return f.StatusOf(f.Call(request));
  };
  EXPECT_THAT(join("ps", 0, 10, 2), IsOk());
  EXPECT_THAT(join("trainer", 0, 11, 0), IsOk());  // started by hand
  EXPECT_THAT(join("trainer", 1, 12, 3),
              StatusIs(absl::StatusCode::kUnavailable, "about to end"));
  EXPECT_THAT(join("trainer", 1, 13, 1),
              StatusIs(absl::StatusCode::kAborted, "started again (start 2)"));
}

TEST(CoordinatorCore, RefusesTheSecondOfANameOnceTheFirstIsHeard) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  const uint64_t second = f.Call(f.JoinOf("ps", 0, 20));
  EXPECT_TRUE(f.IsHeld(second));
  EXPECT_THAT(f.StatusOf(f.Beat(key, 10)), IsOk());
  EXPECT_THAT(f.StatusOf(second),
              StatusIs(absl::StatusCode::kAlreadyExists, "ps0"));
  EXPECT_EQ(f.view().Find("ps0")->key, key);
}

TEST(CoordinatorCore, LetsARestartedWorkerInOnceTheFirstIsDeclaredGone) {
  Fixture f;
  const WorkerKey old_key = f.Join("ps", 0, 10);
  uint64_t second = f.Call(f.JoinOf("ps", 0, 20));
  f.Tick(absl::Seconds(6));
  EXPECT_THAT(f.StatusOf(second), StatusIs(absl::StatusCode::kUnavailable));
  second = f.Call(f.JoinOf("ps", 0, 20));
  f.Tick(absl::Seconds(5));
  const WorkerKey key = FromWire(f.ReplyTo<v1::JoinReply>(second).key());
  EXPECT_EQ(key.id, old_key.id);
  EXPECT_GT(key.epoch, old_key.epoch);
  EXPECT_THAT(f.StatusOf(f.Beat(old_key, 10)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "silent"));
}

TEST(CoordinatorCore, HeldJoinIsForgottenWhenItsCallerDisconnects) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  const uint64_t second = f.Call(f.JoinOf("ps", 0, 20));
  f.CallerGone(second);
  f.Leave(key, 10);
  EXPECT_EQ(f.view().Find("ps0"), nullptr);
  EXPECT_TRUE(f.IsHeld(second));
}

TEST(CoordinatorCore, LateCopyOfAJoinRevivesNoMember) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  EXPECT_THAT(f.StatusOf(f.Leave(key, 10)), IsOk());
  EXPECT_THAT(f.StatusOf(f.Call(f.JoinOf("ps", 0, 10))),
              StatusIs(absl::StatusCode::kAborted, "is gone"));
  EXPECT_THAT(f.view().members(), IsEmpty());
}

TEST(CoordinatorCore, NamesBothJobsWhenTwoUseOneAddress) {
  Fixture f;
  f.Join("ps", 0, 10);
  v1::JoinRequest other = f.JoinOf("trainer", 0, 11);
  other.set_job("other");
  const absl::Status status = f.StatusOf(f.Call(other));
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, "\"job\""));
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, "\"other\""));
}

TEST(CoordinatorCore, WorldsOfOtherNumbersOfNodesNameTheFlagAndTheNodes) {
  Fixture f;
  World world = World::Fixed(1, 2);
  world.origin = "weft run --nnodes=1 on node 0";
  v1::JoinRequest first = f.JoinOf("ps", 0, 10);
  *first.mutable_world() = ToWire(world);
  EXPECT_THAT(f.StatusOf(f.Call(first)), IsOk());
  v1::JoinRequest other = f.JoinOf("trainer", 3, 11);
  world = World::Fixed(2, 4);
  world.origin = "weft run --nnodes=2 on node 1";
  *other.mutable_world() = ToWire(world);
  EXPECT_THAT(
      f.StatusOf(f.Call(other)),
      StatusIs(
          absl::StatusCode::kFailedPrecondition,
          "trainer3 expects the world \"ps=2 trainer=4\" by weft run "
          "--nnodes=2 on node 1, the job has \"ps=1 trainer=2\" by weft run "
          "--nnodes=1 on node 0: start all workers with the same --nnodes"));
  // The same numbers are one world, however they were made.
  v1::JoinRequest same = f.JoinOf("trainer", 1, 12);
  *same.mutable_world() = ToWire(World::Fixed(1, 2));
  EXPECT_THAT(f.StatusOf(f.Call(same)), IsOk());
}

TEST(CoordinatorCore, RefusesAnotherWorldAndPlacesOutsideIt) {
  Fixture f;
  f.Join("ps", 0, 10);
  v1::JoinRequest other = f.JoinOf("trainer", 0, 11);
  *other.mutable_world() = ToWire(World::Fixed(1, 3));
  EXPECT_THAT(f.StatusOf(f.Call(other)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "trainer=3"));
  EXPECT_THAT(f.StatusOf(f.Call(f.JoinOf("trainer", 2, 11))),
              StatusIs(absl::StatusCode::kInvalidArgument, "no place"));
  EXPECT_THAT(f.StatusOf(f.Call(f.JoinOf("trainer", -1, 11))),
              StatusIs(absl::StatusCode::kInvalidArgument, "no place"));
  v1::JoinRequest misnamed = f.JoinOf("trainer", 0, 11);
  misnamed.mutable_member()->set_name("bob");
  EXPECT_THAT(f.StatusOf(f.Call(misnamed)),
              StatusIs(absl::StatusCode::kInvalidArgument, "trainer0"));
  v1::JoinRequest no_name = f.JoinOf("trainer", 0, 11);
  no_name.mutable_member()->set_name("a b");
  EXPECT_THAT(f.StatusOf(f.Call(no_name)),
              StatusIs(absl::StatusCode::kInvalidArgument, "letters"));
}

// In an elastic job a role may be any, so that the name may be as long as any.
TEST(CoordinatorCore, TakesNamesOf127CharactersAndRefusesMalformedOnes) {
  Fixture f;
  const auto join = [&](const std::string& role, uint64_t incarnation) {
    v1::JoinRequest request = f.JoinOf(role, 0, incarnation);
    *request.mutable_world() = ToWire(World::Elastic(1, 9));
    return f.StatusOf(f.Call(request));
  };
  EXPECT_THAT(join(std::string(126, 'r'), 10), IsOk());
  EXPECT_THAT(join("A-b_c:", 11), IsOk());
  uint64_t incarnation = 11;
  for (const std::string& role :
       {std::string(127, 'r'), std::string(100000, 'r'), std::string("a b"),
        std::string("a/b"), std::string("a.b"), std::string("a\n"),
        std::string("\0", 1), std::string("\xc3\xa9")}) {
    EXPECT_THAT(join(role, ++incarnation),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted 1 to 127 letters, digits, '-', '_' or ':'"));
  }
  v1::JoinRequest no_name = f.JoinOf("", 0, ++incarnation);
  no_name.mutable_member()->clear_name();
  EXPECT_THAT(f.StatusOf(f.Call(no_name)),
              StatusIs(absl::StatusCode::kInvalidArgument, "name \"\""));
  EXPECT_EQ(f.view().members().size(), 2u);
}

TEST(CoordinatorCore, RefusesToShowAllOthersALongMember) {
  Fixture f;
  f.Join("ps", 0, 10);
  const std::string view = f.core().view().SerializeAsString();
  const size_t logged = f.log().size();
  v1::JoinRequest long_label = f.JoinOf("trainer", 0, 11);
  (*long_label.mutable_member()->mutable_labels())["zone"] =
      std::string(1 << 20, 'a');
  EXPECT_THAT(f.StatusOf(f.Call(long_label)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "may with 16384: its labels have 1048580"));
  v1::JoinRequest long_address = f.JoinOf("trainer", 0, 11);
  long_address.mutable_member()->set_address(std::string(20000, 'a'));
  EXPECT_THAT(f.StatusOf(f.Call(long_address)),
              StatusIs(absl::StatusCode::kInvalidArgument, "address 20000"));
  EXPECT_EQ(f.core().view().SerializeAsString(), view);
  EXPECT_EQ(f.log().size(), logged);
  (*long_label.mutable_member()->mutable_labels())["zone"].resize(16000);
  EXPECT_THAT(f.StatusOf(f.Call(long_label)), IsOk());

  Fixture other;
  v1::JoinRequest many_roles = other.JoinOf("ps", 0, 10);
  for (int i = 0; i < 2000; ++i) {
    (*many_roles.mutable_world()->mutable_roles())[absl::StrCat("role", i)] = 1;
  }
  EXPECT_THAT(
      other.StatusOf(other.Call(many_roles)),
      StatusIs(absl::StatusCode::kInvalidArgument, "ps0 expects a world of"));
  EXPECT_THAT(other.StatusOf(other.Call(other.JoinOf("ps", 0, 10))), IsOk());
}

TEST(CoordinatorCore, ManyIncarnationsOfANameTakeFewBytes) {
  Fixture f;
  const WorkerKey first = f.Join("ps", 0, 1);
  f.Leave(first, 1);
  constexpr uint64_t kLast = 3000;
  for (uint64_t i = 2; i <= kLast; ++i) f.Leave(f.Join("ps", 0, i), i);
  EXPECT_LT(f.SnapshotBytes(), 4096u);
  EXPECT_LT(f.log().back().ByteSizeLong(), 4096u);
  for (const uint64_t recent : {kLast, kLast - 200}) {
    EXPECT_THAT(f.StatusOf(f.Call(f.JoinOf("ps", 0, recent))),
                StatusIs(absl::StatusCode::kAborted, "is gone"));
  }
  // A member whose number is forgotten is gone by its epoch, after a restart
  // too.
  for (const bool is_restarted : {false, true}) {
    if (is_restarted) f.Restart();
    EXPECT_TRUE(f.view().IsGone(first));
    EXPECT_THAT(f.StatusOf(f.Beat(first, 1)),
                StatusIs(absl::StatusCode::kFailedPrecondition, "is gone"));
  }
}

TEST(CoordinatorCore, LongReasonIsCutInTheView) {
  Fixture f;
  std::string long_reason = "x";  // so that a cut is within a character
  while (long_reason.size() < 100000) long_reason += "\xc3\xa9";
  const auto expect_short = [&] {
    ASSERT_EQ(f.view().departed().size(), 1u);
    const std::string reason = f.view().departed().front().reason;
    EXPECT_LT(reason.size(), 512u);
    v1::Departed read;  // as it is not, if a character is cut
    EXPECT_TRUE(
        read.ParseFromString(f.core().view().departed(0).SerializeAsString()));
  };
  f.Join("trainer", 0, 11);
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name("trainer0");
  report.set_incarnation(11);
  report.set_reason(long_reason);
  EXPECT_THAT(f.StatusOf(f.Call(report)), IsOk());
  expect_short();
  EXPECT_THAT(f.view().departed().front().reason, EndsWith("\xc3\xa9..."));

  const WorkerKey trainer = f.Join("trainer", 0, 12);
  const WorkerKey ps = f.Join("ps", 0, 10);
  f.Restart();
  v1::HeartbeatRequest beat = TellingOf(trainer, long_reason, ps);
  EXPECT_THAT(f.StatusOf(f.Call(beat)), IsOk());
  EXPECT_TRUE(f.view().IsGone(trainer));
  expect_short();
  for (int i = 0; i < 20000; ++i) beat.add_departed();
  EXPECT_THAT(f.StatusOf(f.Call(beat)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "20001 workers that are gone"));
}

TEST(CoordinatorCore, RefusesFixedAndElasticWorkersInOneJobNamingBoth) {
  Fixture f;
  f.Join("ps", 0, 10);
  v1::JoinRequest elastic = f.JoinOf("trainer", 0, 11);
  *elastic.mutable_world() = ToWire(World::Elastic(1, 4));
  const absl::Status status = f.StatusOf(f.Call(elastic));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "elastic 1 to 4"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "ps=1 trainer=2"));
}

TEST(CoordinatorCore, AnElasticWorldTakesAnyNameUpToItsMaximum) {
  Fixture f;
  const auto join = [&](const std::string& name, uint64_t incarnation) {
    v1::JoinRequest request = f.JoinOf("trainer", 0, incarnation);
    request.mutable_member()->set_name(name);
    *request.mutable_world() = ToWire(World::Elastic(1, 2));
    return f.Call(request);
  };
  EXPECT_THAT(f.StatusOf(join("ann", 1)), IsOk());
  EXPECT_TRUE(f.view().IsComplete());
  EXPECT_THAT(f.StatusOf(join("bob", 2)), IsOk());
  EXPECT_NE(f.view().Find("ann")->key.id, f.view().Find("bob")->key.id);
  EXPECT_THAT(f.StatusOf(join("cid", 3)),
              StatusIs(absl::StatusCode::kResourceExhausted, "full"));
}

TEST(CoordinatorCore, AnAdminWatchesWithoutBeingCounted) {
  Fixture f;
  f.Join("ps", 0, 10);
  const uint64_t admin = f.Call(f.JoinOf("admin", 0, 99));
  EXPECT_THAT(f.StatusOf(admin), IsOk());
  EXPECT_EQ(f.view().Find("admin0")->key.id, 3u);
  EXPECT_EQ(f.view().Summary(), "1/3 joined, missing trainer0, trainer1");
}

TEST(CoordinatorCore, AnAdminThatJoinsFirstTakesNoWorkersPlace) {
  Fixture f;
  const WorkerKey admin = f.Join("admin", 0, 99);
  const WorkerKey ps = f.Join("ps", 0, 10);
  EXPECT_EQ(ps.id, 0u);
  EXPECT_NE(admin.id, 0u);
  for (const bool is_restarted : {false, true}) {
    if (is_restarted) f.Restart();
    EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
    EXPECT_THAT(f.StatusOf(f.Beat(admin, 99)), IsOk());
  }
  f.Leave(admin, 99);
  EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
}

TEST(CoordinatorCore, AdminOfAnOldLogIsReplacedByTheWorkerWithItsId) {
  for (const bool has_left : {false, true}) {
    Fixture first;
    v1::LogRecord admin;
    if (has_left) {
      admin.mutable_departed()->set_name("admin0");
      admin.mutable_departed()->mutable_key()->set_epoch(MakeEpoch(1, 1));
    } else {
      *admin.mutable_joined() = first.JoinOf("admin", 0, 99).member();
      admin.mutable_joined()->mutable_key()->set_epoch(MakeEpoch(1, 1));
    }
    first.Join("ps", 0, 10);
    std::vector<v1::LogRecord> log = {admin};
    Fixture before(log, 2);  // the workers join only now
    log.insert(log.end(), first.log().begin(), first.log().end());
    Fixture after(log, 2);
    const WorkerKey known = first.view().Find("ps0")->key;
    EXPECT_THAT(after.StatusOf(after.Beat(known, 10)), IsOk());
    const WorkerKey ps = before.Join("ps", 0, 10);
    EXPECT_EQ(ps.id, 0u);
    EXPECT_THAT(before.StatusOf(before.Beat(ps, 10)), IsOk());
  }
}

TEST(CoordinatorCore, SuspectsAfterThreeSecondsAndDeclaresGoneAfterTen) {
  Fixture f;
  const WorkerKey silent = f.Join("ps", 0, 10);
  const WorkerKey heard = f.Join("trainer", 0, 11);
  const auto tick = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      f.Tick(absl::Seconds(1));
      EXPECT_THAT(f.StatusOf(f.Beat(heard, 11)), IsOk());
    }
  };
  tick(2);
  EXPECT_FALSE(f.view().Find("ps0")->suspect);
  tick(2);
  EXPECT_TRUE(f.view().Find("ps0")->suspect);
  EXPECT_FALSE(f.view().Find("trainer0")->suspect);
  tick(5);
  EXPECT_NE(f.view().Find("ps0"), nullptr);
  tick(2);
  EXPECT_EQ(f.view().Find("ps0"), nullptr);
  EXPECT_TRUE(f.view().IsGone(silent));
  EXPECT_NE(f.view().Find("trainer0"), nullptr);
}

TEST(CoordinatorCore, FirstToJoinSetsTheSilenceThatACoordinatorOfItsOwnBears) {
  const auto gone_after = [](bool takes, int suspect_ms, int dead_ms) {
    CoordinatorCore::Options options;
    options.takes_silence_limits = takes;
    Fixture f({}, 1, options);
    v1::JoinRequest first = f.JoinOf("ps", 0, 10);
    first.mutable_world()->set_suspect_after_ms(suspect_ms);
    first.mutable_world()->set_dead_after_ms(dead_ms);
    f.ReplyTo<v1::JoinReply>(f.Call(first));
    v1::JoinRequest second = f.JoinOf("trainer", 0, 11);  // is not asked
    second.mutable_world()->set_suspect_after_ms(200);
    second.mutable_world()->set_dead_after_ms(500);
    f.ReplyTo<v1::JoinReply>(f.Call(second));
    f.Restart();  // they are in the log
    int seconds = 0;
    for (; f.view().Find("ps0") != nullptr && seconds < 60; ++seconds) {
      f.Tick(absl::Seconds(1));
    }
    return seconds;
  };
  EXPECT_EQ(gone_after(true, 2000, 6000), 6);
  EXPECT_EQ(gone_after(true, 10000, 30000), 30);
  EXPECT_EQ(gone_after(false, 2000, 6000), 10);
  // What no job means counts as nothing said.
  EXPECT_EQ(gone_after(true, 0, 0), 10);
  EXPECT_EQ(gone_after(true, 6000, 6000), 10);
  EXPECT_EQ(gone_after(true, 1, 2), 10);
  EXPECT_EQ(gone_after(true, 3000, 4000000), 10);
}

TEST(CoordinatorCore, SilentMemberWhoseProcessRunsIsGoneAfterAMinute) {
  Fixture f;
  f.Join("ps", 0, 10);
  f.Join("trainer", 0, 11);
  const auto run_for = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      f.Ran("ps0", 10);
      f.Ran("trainer0", 12);  // another incarnation
      f.Ran("trainer7", 1);   // nobody
      f.Tick(absl::Seconds(1));
    }
  };
  run_for(59);
  ASSERT_NE(f.view().Find("ps0"), nullptr);
  EXPECT_TRUE(f.view().Find("ps0")->suspect);
  EXPECT_EQ(f.view().Find("trainer0"), nullptr);
  run_for(10);
  EXPECT_EQ(f.view().Find("ps0"), nullptr);
  EXPECT_THAT(f.view().departed().front().reason,
              ::testing::HasSubstr("silent for 1m"));
}

TEST(CoordinatorCore, MemberThatRanAndRunsNoMoreIsGoneTenSecondsLater) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  f.Tick(absl::Seconds(8));
  f.Ran("ps0", 10);  // counts as 3 s of silence
  f.Tick(absl::Seconds(6));
  ASSERT_NE(f.view().Find("ps0"), nullptr);
  f.Tick(absl::Seconds(2));
  EXPECT_EQ(f.view().Find("ps0"), nullptr);
  EXPECT_TRUE(f.view().IsGone(key));
}

TEST(CoordinatorCore, ASuspectThatIsHeardIsSuspectNoMore) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  f.Tick(absl::Seconds(5));
  EXPECT_TRUE(f.view().Find("ps0")->suspect);
  EXPECT_THAT(f.StatusOf(f.Beat(key, 10)), IsOk());
  EXPECT_FALSE(f.view().Find("ps0")->suspect);
  f.Tick(absl::Seconds(8));
  EXPECT_NE(f.view().Find("ps0"), nullptr);
}

TEST(CoordinatorCore, ARestartedCoordinatorKnowsThatItsEarlierHostHasEnded) {
  Fixture f;
  v1::JoinRequest host = f.JoinOf("ps", 0, 10);
  host.mutable_member()->set_hosts_coordinator(true);
  const WorkerKey old_key =
      FromWire(f.ReplyTo<v1::JoinReply>(f.Call(host)).key());
  const WorkerKey other = f.Join("trainer", 0, 11);
  f.Restart();
  EXPECT_TRUE(f.view().IsGone(old_key));
  EXPECT_EQ(f.view().Find("trainer0")->key, other);
  const WorkerKey key = f.Join("ps", 0, 20);  // held by nobody
  EXPECT_GT(key.epoch, old_key.epoch);
  // It is in the log, for the successor's successor.
  f.Restart();
  EXPECT_THAT(f.StatusOf(f.Call(f.JoinOf("trainer", 0, 11))), IsOk());
  f.ReportExit("ps0");
  EXPECT_THAT(f.StatusOf(f.Call(host)),
              StatusIs(absl::StatusCode::kAborted, "is gone"));
}

TEST(CoordinatorCore, PausedCoordinatorSuspectsNoMember) {
  Fixture f;
  f.Join("ps", 0, 10);
  f.Sleep(absl::Minutes(5));
  EXPECT_FALSE(f.view().Find("ps0")->suspect);
  f.Tick(absl::Seconds(10));
  EXPECT_EQ(f.view().Find("ps0"), nullptr);
}

TEST(CoordinatorCore, AProvenExitNeedsNoSilence) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  const uint64_t second = f.Call(f.JoinOf("ps", 0, 20));
  f.ReportExit("ps0");
  EXPECT_TRUE(f.view().IsGone(key));
  EXPECT_GT(f.ReplyTo<v1::JoinReply>(second).key().epoch(), key.epoch);
  EXPECT_EQ(f.view().departed().front().reason, "killed by SIGKILL");
}

TEST(CoordinatorCore, RefusesAWorldOfMoreWorkersThanItTakes) {
  Fixture f;
  v1::JoinRequest join = f.JoinOf("trainer", 0, 11);
  *join.mutable_world() = ToWire(World::Fixed(1, 16384));
  EXPECT_THAT(f.StatusOf(f.Call(join)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "of 16385 workers; a coordinator takes at most 16384"));
  *join.mutable_world() = ToWire(World::Fixed(1, 16383));
  EXPECT_THAT(f.StatusOf(f.Call(join)), IsOk());
}

}  // namespace
}  // namespace weft::rendezvous
