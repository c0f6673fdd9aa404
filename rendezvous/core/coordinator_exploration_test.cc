// CoordinatorCore: restarts, then every order of few events.

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

TEST(CoordinatorCore, MembersOutliveTheCoordinator) {
  Fixture f;
  const WorkerKey ps = f.Join("ps", 0, 10);
  const WorkerKey gone = f.Join("trainer", 0, 11);
  f.ReportExit("trainer0");
  const Epoch before = f.view().version();
  f.Restart();
  EXPECT_GT(f.view().version(), before);
  EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
  EXPECT_THAT(f.StatusOf(f.Beat(gone, 11)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "SIGKILL"));
  EXPECT_GT(f.Join("trainer", 0, 12).epoch, gone.epoch);
  v1::JoinRequest other = f.JoinOf("trainer", 1, 13);
  other.set_job("other");
  EXPECT_THAT(f.StatusOf(f.Call(other)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CoordinatorCore, ARestartedCoordinatorLearnsTheDeadFromTheLiving) {
  Fixture f;
  const WorkerKey ps = f.Join("ps", 0, 10);
  const WorkerKey trainer = f.Join("trainer", 0, 11);
  f.Restart();
  v1::HeartbeatRequest beat = TellingOf(trainer, "silent", ps);
  EXPECT_THAT(f.StatusOf(f.Call(beat)), IsOk());
  EXPECT_TRUE(f.view().IsGone(trainer));
  // But a member's report does not remove an incarnation of the present term.
  const WorkerKey fresh = f.Join("trainer", 0, 12);
  *beat.mutable_departed(0)->mutable_key() = ToWire(fresh);
  EXPECT_THAT(f.StatusOf(f.Call(beat)), IsOk());
  EXPECT_FALSE(f.view().IsGone(fresh));
}

TEST(CoordinatorCore, CoordinatorWithoutItsLogHasNoMembers) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  Fixture other;
  EXPECT_THAT(
      other.StatusOf(other.Beat(key, 10)),
      StatusIs(absl::StatusCode::kFailedPrecondition, "without its log"));
}

TEST(CoordinatorCore, ASnapshotMakesTheSameCore) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  f.Join("ps", 0, 3);
  f.ReportExit("ps0");
  f.Call(f.Store(v1::StoreRequest::SET, "x"));
  v1::StoreRequest add = f.Store(v1::StoreRequest::ADD);
  add.set_key("n");
  add.set_client(1);
  add.set_sequence(4);
  add.set_delta(2);
  f.Call(add);
  f.Call(f.Store(v1::StoreRequest::DELETE));
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  f.Arrive(a, 1, both);
  f.Arrive(b, 1, both);
  const auto snapshot = f.core().Snapshot();
  CoordinatorCore copy({}, 1, snapshot, Instant());
  const auto again = copy.Snapshot();
  ASSERT_EQ(snapshot.size(), again.size());
  for (size_t i = 0; i < snapshot.size(); ++i) {
    EXPECT_EQ(snapshot[i].DebugString(), again[i].DebugString());
  }
  EXPECT_EQ(copy.job(), "job");
}

// Every order of few events, restarts of the coordinator among them.
class Exploration {
 public:
  struct World {
    std::shared_ptr<CoordinatorCore> core;
    std::vector<v1::LogRecord> log;
    Instant now;
    // What the members know: by incarnation.
    std::map<uint64_t, WorkerKey> keys;
    std::map<uint64_t, bool> refused;      // told that it is gone
    std::map<std::string, Epoch> highest;  // epoch seen of a name
    Epoch version = 0;
    uint64_t ticket = 0;
    std::map<uint64_t, uint64_t> joins;  // held: ticket to incarnation
  };

  void Run(int depth) {
    World world;
    world.core = std::make_shared<CoordinatorCore>(CoordinatorCore::Options(),
                                                   1, world.log, world.now);
    v1::LogRecord opened;
    opened.mutable_opened()->set_term(1);
    world.log.push_back(opened);
    Explore(world, depth);
  }
  int64_t states() const { return states_; }
  const std::map<std::string, int64_t>& hits() const { return hits_; }

 private:
  static constexpr uint64_t kIncarnations[] = {1, 2, 3};  // 1, 2: the same name

  static std::string NameOf(uint64_t incarnation) {
    return incarnation == 3 ? "trainer0" : "ps0";
  }

  void Explore(const World& world, int depth) {
    ++states_;
    if (depth == 0 || ::testing::Test::HasFailure()) return;
    const auto branch = [&](const std::function<void(World&)>& step) {
      World next = world;
      next.core = std::make_shared<CoordinatorCore>(*world.core);
      step(next);
      Check(world, next);
      Explore(next, depth - 1);
    };
    for (const uint64_t incarnation : kIncarnations) {
      branch([&](World& w) { Join(w, incarnation); });
      if (world.keys.count(incarnation) == 0) continue;
      branch([&](World& w) { Beat(w, incarnation); });
      branch([&](World& w) { Leave(w, incarnation); });
    }
    branch([&](World& w) { Pass(w, absl::Seconds(4)); });
    branch([&](World& w) { Pass(w, absl::Seconds(11)); });
    branch([&](World& w) {
      v1::ReportExitRequest report;
      report.set_job("job");
      report.set_name("ps0");
      report.set_reason("exit");
      Feed(w, CoordinatorCore::Call{++w.ticket, report});
    });
    branch([&](World& w) {
      v1::LogRecord opened;
      opened.mutable_opened()->set_term(w.core->term() + 1);
      w.core = std::make_shared<CoordinatorCore>(
          CoordinatorCore::Options(), w.core->term() + 1, w.log, w.now);
      w.log.push_back(opened);
      w.joins.clear();
    });
  }

  void Feed(World& w, CoordinatorCore::Event event) {
    for (auto& action : w.core->OnEvent(w.now, std::move(event))) {
      if (auto* persist = std::get_if<CoordinatorCore::Persist>(&action)) {
        w.log.push_back(persist->record);
      } else if (auto* answer = std::get_if<CoordinatorCore::Answer>(&action)) {
        const auto join = w.joins.find(answer->ticket);
        if (join == w.joins.end()) continue;
        if (answer->status.ok()) {
          Admitted(w, join->second,
                   FromWire(std::get<v1::JoinReply>(answer->reply).key()));
        } else {
          ++hits_[absl::StrCat("join ", answer->status.code())];
        }
        w.joins.erase(join);
      }
    }
  }

  void Admitted(World& w, uint64_t incarnation, WorkerKey key) {
    ++hits_["admitted"];
    const auto known = w.keys.find(incarnation);
    if (known != w.keys.end()) {
      EXPECT_EQ(known->second, key) << "one incarnation, two keys";
      return;
    }
    EXPECT_GT(key.epoch, w.highest[NameOf(incarnation)])
        << "an epoch went back";
    w.highest[NameOf(incarnation)] = key.epoch;
    EXPECT_EQ(key.id, NameOf(incarnation) == "ps0" ? 0u : 1u);
    w.keys[incarnation] = key;
  }

  void Join(World& w, uint64_t incarnation) {
    v1::JoinRequest join;
    join.set_job("job");
    *join.mutable_world() = ToWire(rendezvous::World::Fixed(1, 1));
    v1::Member* member = join.mutable_member();
    member->set_name(NameOf(incarnation));
    member->set_role(incarnation == 3 ? "trainer" : "ps");
    member->set_incarnation(incarnation);
    join.set_wait_ms(5000);
    w.joins[++w.ticket] = incarnation;
    Feed(w, CoordinatorCore::Call{w.ticket, join});
  }

  void Beat(World& w, uint64_t incarnation) {
    v1::HeartbeatRequest beat;
    beat.set_job("job");
    *beat.mutable_key() = ToWire(w.keys[incarnation]);
    beat.set_incarnation(incarnation);
    const uint64_t ticket = ++w.ticket;
    bool was_ok = false;
    for (auto& action :
         w.core->OnEvent(w.now, CoordinatorCore::Call{ticket, beat})) {
      auto* answer = std::get_if<CoordinatorCore::Answer>(&action);
      if (answer == nullptr) continue;
      if (answer->ticket == ticket) {
        was_ok = answer->status.ok();
      } else {
        w.joins.erase(answer->ticket);
      }
    }
    ++hits_[was_ok ? "heard" : "refused"];
    EXPECT_FALSE(was_ok && w.refused[incarnation])
        << "the dead came back: " << incarnation;
    if (!was_ok) w.refused[incarnation] = true;
    const View view = FromWire(w.core->view());
    EXPECT_EQ(was_ok, view.Find(w.keys[incarnation]) != nullptr);
    EXPECT_EQ(!was_ok, view.IsGone(w.keys[incarnation]));
  }

  void Leave(World& w, uint64_t incarnation) {
    v1::LeaveRequest leave;
    leave.set_job("job");
    *leave.mutable_key() = ToWire(w.keys[incarnation]);
    leave.set_incarnation(incarnation);
    Feed(w, CoordinatorCore::Call{++w.ticket, leave});
    EXPECT_TRUE(FromWire(w.core->view()).IsGone(w.keys[incarnation]));
  }

  void Pass(World& w, absl::Duration d) {
    for (int i = 0; i < absl::ToInt64Seconds(d); ++i) {
      w.now += absl::Seconds(1);
      Feed(w, CoordinatorCore::Tick{});
    }
  }

  void Check(const World& before, World& after) {
    const View was = FromWire(before.core->view());
    const View is = FromWire(after.core->view());
    EXPECT_GE(is.version(), was.version());
    // Who knew the earlier view gets what has changed, also of a successor.
    CoordinatorCore copy = *after.core;
    v1::WatchRequest watch;
    watch.set_job("job");
    watch.set_known_version(was.version());
    watch.set_takes_changes(true);
    for (const auto& action :
         copy.OnEvent(after.now, CoordinatorCore::Call{1000, watch})) {
      const auto* answer = std::get_if<CoordinatorCore::Answer>(&action);
      if (answer == nullptr || answer->ticket != 1000) continue;
      const v1::View& told = answer->told->view;
      ++hits_[told.since() == 0 ? "told whole" : "told changes"];
      const auto merged =
          told.since() == 0 ? told : Merge(before.core->view(), told);
      EXPECT_THAT(merged, IsOk());
      if (!merged.ok()) continue;
      EXPECT_EQ(ContentsOf(*merged), ContentsOf(after.core->view()));
    }
    if (is.version() == was.version()) {
      EXPECT_EQ(before.core->view().DebugString(),
                after.core->view().DebugString());
    }
    std::map<std::string, int> names;
    for (const Member& member : is.members()) {
      EXPECT_EQ(++names[member.name], 1) << member.name << " is in twice";
      EXPECT_FALSE(was.IsGone(member.key)) << member.name << " came back";
    }
    for (const Departed& departed : was.departed()) {
      EXPECT_TRUE(is.IsGone(departed.key)) << departed.name;
    }
    // Every change that was published is in the log.
    const CoordinatorCore reread({}, after.core->term() + 1, after.log,
                                 after.now);
    EXPECT_EQ(reread.view().members_size(), after.core->view().members_size());
    for (const Member& member : is.members()) {
      EXPECT_NE(FromWire(reread.view()).Find(member.key), nullptr);
    }
  }

  int64_t states_ = 0;
  std::map<std::string, int64_t> hits_;
};

TEST(CoordinatorCore, KeepsItsInvariantsInEveryOrderOfFiveEvents) {
  Exploration exploration;
  exploration.Run(5);
  EXPECT_GT(exploration.states(), 10000);
  for (const char* what :
       {"admitted", "heard", "refused", "told whole", "told changes"}) {
    EXPECT_GT(exploration.hits().count(what), 0u) << what << " never happened";
  }
  RecordProperty("states", std::to_string(exploration.states()));
}

}  // namespace
}  // namespace weft::rendezvous
