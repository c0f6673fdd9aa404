// Tests of CoordinatorCore: each rule by itself, then every order of few
// events.

#include "weft/rendezvous/core/coordinator_core.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// As its caller reads it.
CoordinatorCore::Answer Received(CoordinatorCore::Answer answer) {
  if (!answer.status.ok()) return answer;
  std::visit(
      [&](auto& reply) { EXPECT_TRUE(reply.ParseFromString(answer.Encode())); },
      answer.reply);
  answer.told = nullptr;
  return answer;
}

// Who is in a view, and who is gone, in an order that does not depend on how it
// came about.
std::string ContentsOf(v1::View view) {
  view.clear_since();
  const auto by_id = [](const auto& a, const auto& b) {
    return a.key().id() < b.key().id();
  };
  std::sort(view.mutable_members()->begin(), view.mutable_members()->end(),
            by_id);
  std::sort(view.mutable_departed()->begin(), view.mutable_departed()->end(),
            by_id);
  return view.DebugString();
}

// A core, its clock, its log and its answers.
class Fixture {
 public:
  explicit Fixture(std::vector<v1::LogRecord> log = {}, uint32_t term = 1,
                   CoordinatorCore::Options options = {})
      : options_(options),
        log_(std::move(log)),
        core_(options_, term, log_, now_) {}

  // Replaces the coordinator by a successor with its log.
  void Restart() {
    core_.emplace_or_replace(options_, core_.get().term() + 1, log_, now_);
    answers_.clear();
  }

  uint64_t Call(CoordinatorCore::Request request) {
    const uint64_t ticket = ++last_ticket_;
    Do(CoordinatorCore::Call{ticket, std::move(request)});
    return ticket;
  }
  void Tick(absl::Duration d) {
    // As a driver ticks: never later than the core asks.
    const Instant until = now_ + d;
    while (now_ < until) {
      now_ = std::min(until, std::max(core_.get().NextTick(),
                                      now_ + absl::Milliseconds(1)));
      Do(CoordinatorCore::Tick{});
    }
  }
  void Ran(const std::string& name, uint64_t incarnation) {
    Do(CoordinatorCore::Ran{name, incarnation});
  }
  void CallerGone(uint64_t ticket) { Do(CoordinatorCore::CallerGone{ticket}); }
  // The process was stopped for so long.
  void Sleep(absl::Duration d) {
    now_ += d;
    Do(CoordinatorCore::Tick{});
  }

  bool IsHeld(uint64_t ticket) const { return answers_.count(ticket) == 0; }
  absl::Status StatusOf(uint64_t ticket) const {
    const auto found = answers_.find(ticket);
    return found == answers_.end() ? absl::UnknownError("no answer yet")
                                   : found->second.status;
  }
  template <typename Reply>
  Reply ReplyTo(uint64_t ticket) const {
    EXPECT_THAT(StatusOf(ticket), IsOk());
    if (!StatusOf(ticket).ok()) return Reply();
    return std::get<Reply>(answers_.at(ticket).reply);
  }

  View view() const { return FromWire(core_.get().view()); }
  CoordinatorCore& core() { return core_.get(); }
  const std::vector<v1::LogRecord>& log() const { return log_; }
  size_t SnapshotBytes() const {
    size_t bytes = 0;
    for (const v1::LogRecord& record : core_.get().Snapshot()) {
      bytes += record.ByteSizeLong();
    }
    return bytes;
  }

  v1::JoinRequest JoinOf(const std::string& role, int rank,
                         uint64_t incarnation) const {
    v1::JoinRequest join;
    join.set_job("job");
    *join.mutable_world() = ToWire(World::Fixed(1, 2));
    join.mutable_member()->set_name(absl::StrCat(role, rank));
    join.mutable_member()->set_role(role);
    join.mutable_member()->set_rank(rank);
    join.mutable_member()->set_address("unix:/a");
    join.mutable_member()->set_incarnation(incarnation);
    join.set_wait_ms(5000);
    return join;
  }
  WorkerKey Join(const std::string& role, int rank, uint64_t incarnation) {
    const uint64_t ticket = Call(JoinOf(role, rank, incarnation));
    return FromWire(ReplyTo<v1::JoinReply>(ticket).key());
  }
  uint64_t Beat(WorkerKey key, uint64_t incarnation) {
    v1::HeartbeatRequest beat;
    beat.set_job("job");
    *beat.mutable_key() = ToWire(key);
    beat.set_incarnation(incarnation);
    return Call(beat);
  }
  uint64_t Leave(WorkerKey key, uint64_t incarnation) {
    v1::LeaveRequest leave;
    leave.set_job("job");
    *leave.mutable_key() = ToWire(key);
    leave.set_incarnation(incarnation);
    return Call(leave);
  }
  uint64_t ReportExit(const std::string& name) {
    v1::ReportExitRequest report;
    report.set_job("job");
    report.set_name(name);
    for (const v1::Member& member : core().view().members()) {
      if (member.name() == name) report.set_incarnation(member.incarnation());
    }
    report.set_reason("killed by SIGKILL");
    return Call(report);
  }
  // A Watch of one that takes changes, or of one that does not.
  uint64_t Watch(Epoch known, bool takes_changes = true,
                 uint32_t wait_ms = 5000) {
    v1::WatchRequest watch;
    watch.set_job("job");
    watch.set_known_version(known);
    watch.set_takes_changes(takes_changes);
    watch.set_wait_ms(wait_ms);
    return Call(watch);
  }
  v1::View Seen(uint64_t ticket) const {
    return ReplyTo<v1::WatchReply>(ticket).view();
  }
  uint64_t Announce(WorkerKey key, uint64_t incarnation, int phase) {
    v1::AnnounceRequest announce;
    announce.set_job("job");
    *announce.mutable_key() = ToWire(key);
    announce.set_incarnation(incarnation);
    announce.set_phase(static_cast<v1::Phase>(phase));
    return Call(announce);
  }
  v1::BarrierRequest AtBarrier(WorkerKey key, uint64_t arrival,
                               std::vector<std::string> members) const {
    v1::BarrierRequest at;
    at.set_job("job");
    *at.mutable_key() = ToWire(key);
    at.set_tag("start");
    at.set_arrival(arrival);
    at.set_settled_below(arrival);
    *at.mutable_members() = {members.begin(), members.end()};
    at.set_wait_ms(5000);
    at.set_remaining_ms(60000);
    return at;
  }
  uint64_t Arrive(WorkerKey key, uint64_t arrival,
                  std::vector<std::string> members,
                  absl::Duration stands = absl::Seconds(60),
                  const std::string& payload = "") {
    v1::BarrierRequest at = AtBarrier(key, arrival, std::move(members));
    at.set_remaining_ms(absl::ToInt64Milliseconds(stands));
    at.set_payload(payload);
    return Call(at);
  }
  v1::StoreRequest Store(v1::StoreRequest::Operation operation,
                         const std::string& value = "") const {
    v1::StoreRequest store;
    store.set_job("job");
    store.set_operation(operation);
    store.set_key("key");
    store.set_value(value);
    return store;
  }

 private:
  // CoordinatorCore cannot be assigned, having a constant term.
  class Holder {
   public:
    template <typename... Args>
    explicit Holder(Args&&... args)
        : core_(
              std::make_unique<CoordinatorCore>(std::forward<Args>(args)...)) {}
    template <typename... Args>
    void emplace_or_replace(Args&&... args) {
      core_ = std::make_unique<CoordinatorCore>(std::forward<Args>(args)...);
    }
    CoordinatorCore& get() const { return *core_; }

   private:
    std::unique_ptr<CoordinatorCore> core_;
  };

  void Do(CoordinatorCore::Event event) {
    for (auto& action : core_.get().OnEvent(now_, std::move(event))) {
      if (auto* persist = std::get_if<CoordinatorCore::Persist>(&action)) {
        log_.push_back(persist->record);
      } else if (auto* answer = std::get_if<CoordinatorCore::Answer>(&action)) {
        const bool is_first =
            answers_.emplace(answer->ticket, Received(*answer)).second;
        EXPECT_TRUE(is_first)
            << "call " << answer->ticket << " was answered twice";
      }
    }
  }

  CoordinatorCore::Options options_;
  Instant now_;
  std::vector<v1::LogRecord> log_;
  Holder core_;
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, CoordinatorCore::Answer> answers_;
};

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

// A beat of ps0, as JoinOf(.., 10) made it, that tells of the end of trainer0.
v1::HeartbeatRequest TellingOf(WorkerKey trainer, const std::string& reason,
                               WorkerKey ps) {
  v1::HeartbeatRequest beat;
  beat.set_job("job");
  *beat.mutable_key() = ToWire(ps);
  beat.set_incarnation(10);
  v1::Departed* departed = beat.add_departed();
  departed->set_name("trainer0");
  *departed->mutable_key() = ToWire(trainer);
  departed->set_reason(reason);
  return beat;
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

  // Who is behind gets all of it at once, and others as much as they lack.
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
  // Who is behind gets what it lacks though nothing has changed since.
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

TEST(CoordinatorCore, ABarrierOfEveryoneNamesNobody) {
  Fixture f;
  const std::vector<std::string> names = {"ps0", "trainer0", "trainer1"};
  const std::vector<WorkerKey> keys = {
      f.Join("ps", 0, 10), f.Join("trainer", 0, 11), f.Join("trainer", 1, 12)};
  const auto arrive = [&](int who, uint64_t arrival) {
    v1::BarrierRequest at = f.AtBarrier(keys[who], arrival, {});
    at.set_everyone(true);
    return f.Call(at);
  };
  const uint64_t first = arrive(0, 1);
  const uint64_t second = f.Arrive(keys[1], 1, names);  // who means the same
  EXPECT_TRUE(f.IsHeld(first));
  EXPECT_THAT(f.StatusOf(f.Arrive(keys[2], 1, {"ps0", "trainer1"})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "same members"));
  const uint64_t third = arrive(2, 2);
  for (const uint64_t ticket : {first, second, third}) {
    EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(ticket).released());
  }
  f.Leave(keys[2], 12);
  EXPECT_THAT(f.StatusOf(arrive(0, 2)),
              StatusIs(absl::StatusCode::kAborted, "trainer1 is gone (left)"));

  Fixture elastic;
  v1::JoinRequest join = elastic.JoinOf("trainer", 0, 1);
  *join.mutable_world() = ToWire(World::Elastic(1, 2));
  const auto joined = elastic.ReplyTo<v1::JoinReply>(elastic.Call(join));
  v1::BarrierRequest at = elastic.AtBarrier(FromWire(joined.key()), 1, {});
  at.set_everyone(true);
  EXPECT_THAT(
      elastic.StatusOf(elastic.Call(at)),
      StatusIs(absl::StatusCode::kInvalidArgument, "wants the members named"));
}

TEST(CoordinatorCore, ABarrierNamesTheFirstOfManyThatAreMissing) {
  Fixture f;
  v1::JoinRequest join = f.JoinOf("trainer", 0, 1);
  *join.mutable_world() = ToWire(World::Fixed(0, 100));
  const auto joined = f.ReplyTo<v1::JoinReply>(f.Call(join));
  v1::BarrierRequest at = f.AtBarrier(FromWire(joined.key()), 1, {});
  at.set_everyone(true);
  at.set_wait_ms(1000);
  const auto missing = [&] {
    const uint64_t ticket = f.Call(at);
    f.Tick(absl::Seconds(1));
    return f.ReplyTo<v1::BarrierReply>(ticket);
  };
  EXPECT_FALSE(missing().released());
  EXPECT_EQ(missing().missing_size(), 32);
  EXPECT_EQ(missing().missing(0), "trainer1");
  EXPECT_EQ(missing().missing_count(), 99u);
  // One more is there, and does not wait for long.
  join.mutable_member()->set_name("trainer1");
  join.mutable_member()->set_rank(1);
  join.mutable_member()->set_incarnation(2);
  const auto other = f.ReplyTo<v1::JoinReply>(f.Call(join));
  v1::BarrierRequest briefly = f.AtBarrier(FromWire(other.key()), 1, {});
  briefly.set_everyone(true);
  briefly.set_remaining_ms(1500);
  f.Call(briefly);
  EXPECT_EQ(missing().missing(0), "trainer10");  // names are in their order
  EXPECT_EQ(missing().missing_count(), 99u);
}

TEST(CoordinatorCore, ABarrierOpensOnceAllAreThere) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both);
  EXPECT_TRUE(f.IsHeld(first));
  const uint64_t second = f.Arrive(b, 1, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(first).released());
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(second).released());
  // A repetition of an answered arrival is no arrival at the next one.
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(f.Arrive(b, 1, both)).released());
  const uint64_t again = f.Arrive(a, 2, both);
  EXPECT_TRUE(f.IsHeld(again));
}

TEST(CoordinatorCore, ALateCopyOfAnArrivalIsNoArrivalAtALaterBarrier) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  f.Arrive(a, 1, both);
  f.Arrive(b, 1, both);
  const uint64_t second = f.Arrive(a, 2, both);
  const auto is_late = StatusIs(absl::StatusCode::kCancelled, "late copy");
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 1, both)), is_late);
  EXPECT_TRUE(f.IsHeld(second)) << "the copy took its place";
  f.Arrive(b, 2, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(second).released());
  // Nor where its member is at another barrier, or at none.
  v1::BarrierRequest third = f.AtBarrier(a, 3, {"trainer0"});
  third.set_tag("another");
  EXPECT_THAT(f.StatusOf(f.Call(third)), IsOk());
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 2, both)), is_late);
  EXPECT_TRUE(f.IsHeld(f.Arrive(b, 3, both)));
}

TEST(CoordinatorCore, CopyOfAnAbandonedArrivalIsIgnored) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  v1::BarrierRequest at = f.AtBarrier(a, 1, both);
  at.set_arrivals(1);
  at.add_unsettled(1);
  at.set_remaining_ms(1000);
  f.Call(at);
  f.Tick(absl::Seconds(1));
  EXPECT_THAT(f.StatusOf(f.Call(at)), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(f.IsHeld(f.Arrive(b, 1, both)));
}

TEST(CoordinatorCore, FailedBarrierFailsAgainWhenAskedAgain) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  f.Arrive(a, 1, both);
  f.ReportExit("trainer1");
  const WorkerKey b = f.Join("trainer", 1, 3);
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 1, both)),
              StatusIs(absl::StatusCode::kAborted, "trainer1 is gone"));
  EXPECT_TRUE(f.IsHeld(f.Arrive(b, 1, both)));
}

TEST(CoordinatorCore, BarrierGathersAllPayloadsAcrossARestartToo) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const auto brought = [&](uint64_t ticket) {
    std::map<std::string, std::string> all;
    const auto reply = f.ReplyTo<v1::BarrierReply>(ticket);
    for (const v1::Brought& one : reply.brought()) {
      all[one.name()] = one.payload();
    }
    return all;
  };
  const std::map<std::string, std::string> all = {{"trainer0", "x"},
                                                  {"trainer1", "y"}};
  const uint64_t first = f.Arrive(a, 1, both, absl::Seconds(60), "x");
  const uint64_t second = f.Arrive(b, 1, both, absl::Seconds(60), "y");
  EXPECT_EQ(brought(first), all);
  EXPECT_EQ(brought(second), all);
  f.Restart();
  EXPECT_EQ(brought(f.Arrive(b, 1, both, absl::Seconds(60), "y")), all);
  const CoordinatorCore shortened({}, 3, f.core().Snapshot(), Instant());
  EXPECT_EQ(shortened.Snapshot().size(), f.core().Snapshot().size());
}

TEST(CoordinatorCore, RefusesMoreThanABarrierMayGather) {
  CoordinatorCore::Options options;
  options.max_payload_bytes = 8;
  options.max_gathered_bytes = 10;
  Fixture f({}, 1, options);
  const WorkerKey a = f.Join("trainer", 0, 1);
  const auto arrive = [&](std::vector<std::string> members, size_t bytes) {
    return f.StatusOf(f.Arrive(a, 1, std::move(members), absl::Seconds(60),
                               std::string(bytes, 'x')));
  };
  EXPECT_THAT(
      arrive({"trainer0"}, 9),
      StatusIs(absl::StatusCode::kResourceExhausted, "trainer0 brings 9"));
  EXPECT_THAT(arrive({"trainer0", "trainer1"}, 6),
              StatusIs(absl::StatusCode::kResourceExhausted, "may bring 5"));
  EXPECT_THAT(arrive({"trainer0"}, 8), IsOk());
}

// As of a second `weft run` of the job, whose ps0 was refused.
TEST(CoordinatorCore, ExitOfAnotherProcessDoesNotEndTheHolderOfTheName) {
  Fixture f;
  v1::JoinRequest join = f.JoinOf("ps", 0, 10);
  v1::Process* process = join.mutable_member()->mutable_process();
  process->set_pid(101);
  process->set_group(100);
  process->set_space("boot 1");
  EXPECT_THAT(f.StatusOf(f.Call(join)), IsOk());
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name("ps0");
  const auto report_end = [&](uint32_t pid, const std::string& space) {
    report.mutable_process()->set_pid(pid);
    report.mutable_process()->set_space(space);
    EXPECT_THAT(f.StatusOf(f.Call(report)), IsOk());
    return f.view().Find("ps0") == nullptr;
  };
  EXPECT_FALSE(report_end(0, ""));
  EXPECT_FALSE(report_end(0, "boot 1"));
  EXPECT_FALSE(report_end(200, "boot 1"));
  EXPECT_FALSE(report_end(100, "boot 2"));
  EXPECT_TRUE(report_end(100, "boot 1"));
}

TEST(CoordinatorCore, RefusesABarrierThatNoJobCouldHave) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const auto arrive = [&](const std::string& tag,
                          std::vector<std::string> members) {
    members.push_back("trainer0");
    v1::BarrierRequest at = f.AtBarrier(a, 1, std::move(members));
    at.set_tag(tag);
    return f.StatusOf(f.Call(at));
  };
  EXPECT_THAT(arrive(std::string(1025, 't'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the tag has 1025 bytes, at most 1024"));
  EXPECT_THAT(arrive("start", std::vector<std::string>(16384, "x")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "names 16385 members; a job has at most 16384"));
  for (const std::string& name : {std::string(), std::string(128, 'x')}) {
    EXPECT_THAT(arrive("start", {name}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "Barrier start: worker name"));
  }
  EXPECT_THAT(arrive(std::string(1024, 't'), {}), IsOk());
  v1::BarrierRequest at = f.AtBarrier(a, 1, {"trainer0"});
  for (uint64_t number = 1; number <= 1025; ++number) at.add_unsettled(number);
  EXPECT_THAT(f.StatusOf(f.Call(at)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "is at 1025 barriers, at most 1024"));
}

TEST(CoordinatorCore, OneMembersManyArrivalsLeaveRoomForOthers) {
  CoordinatorCore::Options options;
  options.max_held_calls = 4096;
  Fixture f({}, 1, options);
  const WorkerKey ps = f.Join("ps", 0, 10);
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  // Answered at once, and stands for weeks.
  const auto arrive = [&](int i) {
    v1::BarrierRequest at = f.AtBarrier(ps, i, {"ps0", "trainer0"});
    at.set_tag(absl::StrCat("tag", i));
    at.set_settled_below(1);
    at.set_wait_ms(0);
    at.set_remaining_ms(0xffffffff);
    return f.StatusOf(f.Call(at));
  };
  for (int i = 1; i <= 4096; ++i) {
    const absl::Status status = arrive(i);
    if (i <= 1024) continue;
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "ps0 is at 1024 barriers already"));
  }
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both);
  const uint64_t second = f.Arrive(b, 1, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(first).released());
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(second).released());
  // A repetition takes no more room; what has ended leaves it to others.
  const auto is_waiting = StatusIs(absl::StatusCode::kUnknown, "no answer");
  EXPECT_THAT(arrive(1), is_waiting);
  f.ReportExit("trainer0");
  EXPECT_THAT(f.StatusOf(f.Arrive(ps, 5000, {"ps0", "trainer1"})), is_waiting);
}

TEST(CoordinatorCore, OneMembersArrivalsAreBoundedInBytesToo) {
  CoordinatorCore::Options options;
  options.barriers.bytes = 1 << 20;
  Fixture f({}, 1, options);
  const WorkerKey ps = f.Join("ps", 0, 10);
  const auto arrive = [&](int i, size_t payload, size_t others) {
    v1::BarrierRequest at = f.AtBarrier(ps, i, {"ps0"});
    at.set_tag(absl::StrCat("tag", i));
    at.set_settled_below(1);
    at.set_payload(std::string(payload, 'x'));
    for (size_t j = 0; j < others; ++j) {
      at.add_members(absl::StrCat("trainer", j));
    }
    return f.StatusOf(f.Call(at));
  };
  for (const auto& [payload, others] :
       {std::pair<size_t, size_t>{60000, 1}, {0, 5000}}) {
    int taken = 0;
    absl::Status status = absl::UnknownError("");
    for (int i = 1; i <= 100 && absl::IsUnknown(status); ++i) {
      status = arrive(i, payload, others);
      taken += absl::IsUnknown(status);
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "1048576 bytes"));
    EXPECT_GE(taken, 1);
    EXPECT_LE(taken, 17);
    f.Tick(absl::Seconds(9));  // the calls are answered, the arrivals stand
    EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
    EXPECT_THAT(arrive(99, payload, others),
                StatusIs(absl::StatusCode::kResourceExhausted));
    for (int i = 0; i < 60; ++i) {
      f.Tick(absl::Seconds(1));
      EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
    }
  }
}

TEST(CoordinatorCore, OpeningsThatAMemberDoesNotSettleAreBounded) {
  Fixture f;
  const WorkerKey ps = f.Join("ps", 0, 10);
  const auto arrive = [&](uint64_t i, uint64_t settled_below) {
    v1::BarrierRequest at = f.AtBarrier(ps, i, {"ps0"});
    at.set_settled_below(settled_below);
    at.set_payload(std::string(100, 'x'));
    return f.StatusOf(f.Call(at));
  };
  constexpr uint64_t kLast = 10000;
  for (uint64_t i = 1; i <= kLast; ++i) {
    const absl::Status status = arrive(i, 0);
    if (i <= 1024) {
      ASSERT_THAT(status, IsOk());
    } else {
      ASSERT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   "whose opening it has not confirmed"));
    }
  }
  EXPECT_LT(f.SnapshotBytes(), 1024u * 256);
  EXPECT_LT(f.log().size(), 1100u);
  EXPECT_THAT(arrive(1, 0), IsOk());  // it is still answered
  EXPECT_THAT(arrive(kLast + 1, kLast), IsOk());
  EXPECT_LT(f.SnapshotBytes(), 1024u);
}

// Each arrival is small, and what it is owed once the others have come is not.
TEST(CoordinatorCore, UnconfirmedBarrierAnswersOfAMemberAreBounded) {
  CoordinatorCore::Options options;
  options.barriers.bytes = 1 << 20;
  Fixture f({}, 1, options);
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const auto arrive = [&](WorkerKey key, int i, int settled_below, int bytes) {
    v1::BarrierRequest at = f.AtBarrier(key, i, {"trainer0", "trainer1"});
    at.set_tag(absl::StrCat("tag", i));
    at.set_settled_below(settled_below);
    at.set_payload(std::string(bytes, 'x'));
    return f.Call(at);
  };
  std::vector<uint64_t> waiting;
  for (int i = 1; i <= 100; ++i) waiting.push_back(arrive(a, i, 0, 0));
  const auto is_too_much = StatusIs(absl::StatusCode::kResourceExhausted,
                                    "trainer0 is at barriers, of ");
  for (int i = 1; i <= 100; ++i) {
    const absl::Status end = f.StatusOf(arrive(b, i, i, 60000));
    EXPECT_EQ(end, f.StatusOf(waiting[i - 1]));
    if (i <= 10) {
      EXPECT_THAT(end, IsOk());
    } else if (i > 17) {
      EXPECT_THAT(end, is_too_much);
    }
  }
  EXPECT_LT(f.SnapshotBytes(), 1u << 20);
  EXPECT_TRUE(f.IsHeld(arrive(a, 101, 101, 0)));  // has confirmed them
  EXPECT_THAT(f.StatusOf(arrive(b, 101, 101, 60000)), IsOk());
}

TEST(CoordinatorCore, AnArrivalThatWaitsForLongLeavesLaterOnesSettled) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t end = f.Arrive(a, 1, both);
  for (uint64_t i = 2; i <= 3000; ++i) {
    v1::BarrierRequest at = f.AtBarrier(a, i, {"trainer0"});
    at.set_tag("step");
    at.set_settled_below(1);
    at.set_arrivals(i);
    at.add_unsettled(1);
    at.add_unsettled(i);
    ASSERT_THAT(f.StatusOf(f.Call(at)), IsOk());
    ASSERT_THAT(f.StatusOf(f.Call(at)), IsOk()) << "its answer was lost";
  }
  EXPECT_LT(f.SnapshotBytes(), 1024u);
  f.Arrive(b, 1, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(end).released());
}

TEST(CoordinatorCore, APhaseIsSeenByAllAndNeverGoesBack) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kActive);
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, v1::DRAINED)), IsOk());
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kDrained);
  const Epoch version = f.view().version();
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, v1::QUIESCING)), IsOk());
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kDrained);
  EXPECT_EQ(f.view().version(), version);
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, "phase 7"));
  f.Restart();
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kDrained);
  f.ReportExit("ps0");
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, v1::DRAINED)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "is gone"));
  f.Join("ps", 0, 20);
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kActive);
}

TEST(CoordinatorCore, BarrierNamesMissingMembersAndEndsAtItsDeadline) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both, absl::Seconds(1));
  f.Tick(absl::Seconds(1));
  EXPECT_FALSE(f.ReplyTo<v1::BarrierReply>(first).released());
  EXPECT_THAT(f.ReplyTo<v1::BarrierReply>(first).missing(),
              ElementsAre("trainer1"));
  const uint64_t late = f.Arrive(b, 1, both);
  EXPECT_TRUE(f.IsHeld(late)) << "trainer0 had given up";
}

TEST(CoordinatorCore, ABarrierFailsForAllWhenOneOfThemIsGone) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both);
  f.ReportExit("trainer1");
  EXPECT_THAT(f.StatusOf(first),
              StatusIs(absl::StatusCode::kAborted, "trainer1 is gone"));
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 2, both)),
              StatusIs(absl::StatusCode::kAborted, "killed by SIGKILL"));
}

TEST(CoordinatorCore, ABarrierWantsTheSameMembersFromAll) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const uint64_t first = f.Arrive(a, 1, {"trainer0", "trainer1"});
  EXPECT_THAT(f.StatusOf(f.Arrive(b, 1, {"ps0", "trainer1"})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "ps0"));
  EXPECT_TRUE(f.IsHeld(first));
  EXPECT_THAT(f.StatusOf(f.Arrive(b, 1, {"ps0", "trainer0"})),
              StatusIs(absl::StatusCode::kInvalidArgument, "not among"));
}

TEST(CoordinatorCore, TheStoreSetsAddsComparesWaitsAndDeletes) {
  Fixture f;
  using Request = v1::StoreRequest;
  EXPECT_FALSE(
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::GET))).found());
  Request wait = f.Store(Request::WAIT);
  wait.set_wait_ms(5000);
  const uint64_t waiter = f.Call(wait);
  EXPECT_TRUE(f.IsHeld(waiter));
  const auto set =
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::SET, "5")));
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(waiter).value(), "5");
  Request add = f.Store(Request::ADD);
  add.set_delta(-7);
  const auto sum = f.ReplyTo<v1::StoreReply>(f.Call(add));
  EXPECT_EQ(sum.value(), "-2");
  EXPECT_GT(sum.version(), set.version());
  Request swap = f.Store(Request::COMPARE_SET, "new");
  swap.set_version(set.version());
  EXPECT_FALSE(f.ReplyTo<v1::StoreReply>(f.Call(swap)).applied());
  swap.set_version(sum.version());
  EXPECT_TRUE(f.ReplyTo<v1::StoreReply>(f.Call(swap)).applied());
  EXPECT_THAT(f.StatusOf(f.Call(add)),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"new\""));
  EXPECT_TRUE(
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::DELETE))).applied());
  EXPECT_FALSE(
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::DELETE))).applied());
}

TEST(CoordinatorCore, TheStoreKeepsItsLimits) {
  CoordinatorCore::Options options;
  options.store.max_key_bytes = 3;
  options.store.max_value_bytes = 8;
  options.store.max_total_bytes = 2 * VersionedMap::kEntryBytes + 11;
  Fixture f({}, 1, options);
  using Request = v1::StoreRequest;
  EXPECT_THAT(f.StatusOf(f.Call(f.Store(Request::SET, "123456789"))),
              StatusIs(absl::StatusCode::kInvalidArgument, "9 bytes"));
  EXPECT_THAT(f.StatusOf(f.Call(f.Store(Request::SET, "12345678"))), IsOk());
  Request other = f.Store(Request::SET, "1");
  other.set_key("k2");
  EXPECT_THAT(f.StatusOf(f.Call(other)),
              StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
  other.set_key("toolong");
  EXPECT_THAT(f.StatusOf(f.Call(other)),
              StatusIs(absl::StatusCode::kInvalidArgument, "7 bytes"));
  EXPECT_THAT(f.StatusOf(f.Call(f.Store(Request::SET, "1"))), IsOk());
  Request unknown = f.Store(static_cast<Request::Operation>(77));
  EXPECT_THAT(f.StatusOf(f.Call(unknown)),
              StatusIs(absl::StatusCode::kInvalidArgument, "77"));
}

// ATT-M2: keys that are small count what they take.
TEST(CoordinatorCore, OneCallersManySmallKeysTakeItsShareOfTheStoreAlone) {
  CoordinatorCore::Options options;
  options.store.max_owner_bytes = 100 * (VersionedMap::kEntryBytes + 10);
  Fixture f({}, 1, options);
  const auto set = [](Fixture& at, const std::string& owner, int key) {
    v1::StoreRequest request = at.Store(v1::StoreRequest::SET);
    request.set_key(absl::StrCat(1'000'000'000 + key));
    request.set_owner(owner);
    return at.StatusOf(at.Call(request));
  };
  for (int i = 0; i < 100; ++i) EXPECT_THAT(set(f, "trainer0", i), IsOk());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                             "what trainer0 wrote takes 26600 of 26600 bytes");
  EXPECT_THAT(set(f, "trainer0", 100), full);
  EXPECT_THAT(set(f, "trainer0", 7), IsOk());  // in place of its own
  EXPECT_THAT(set(f, "ps0", 100), IsOk());
  EXPECT_THAT(set(f, "", 101), IsOk());
  // So it is in the log, and in what that is shortened to.
  f.Restart();
  EXPECT_THAT(set(f, "trainer0", 102), full);
  Fixture shortened(f.core().Snapshot(), 5, options);
  EXPECT_THAT(set(shortened, "trainer0", 102), full);
  // With less room than is taken, what takes no more than before goes on.
  options.store.max_total_bytes = options.store.max_owner_bytes = 1000;
  Fixture lessened(f.core().Snapshot(), 6, options);
  EXPECT_THAT(set(lessened, "trainer0", 7), IsOk());
  EXPECT_THAT(set(lessened, "ps0", 7), IsOk());
  EXPECT_THAT(set(lessened, "ps0", 500),
              StatusIs(absl::StatusCode::kResourceExhausted, "are in use"));
  // An entry counts for who wrote it last, until it is deleted.
  EXPECT_THAT(set(f, "ps0", 7), IsOk());
  EXPECT_THAT(set(f, "trainer0", 102), IsOk());
  EXPECT_THAT(set(f, "trainer0", 103), full);
  v1::StoreRequest gone = f.Store(v1::StoreRequest::DELETE);
  gone.set_key("1000000000");
  EXPECT_THAT(f.StatusOf(f.Call(gone)), IsOk());
  EXPECT_THAT(set(f, "trainer0", 103), IsOk());
}

TEST(CoordinatorCore, AChangeIsOfTheMemberThatMakesIt) {
  CoordinatorCore::Options options;
  options.store.max_owner_bytes = VersionedMap::kEntryBytes + 9;
  Fixture f({}, 1, options);
  f.Join("ps", 0, 10);
  f.Join("trainer", 0, 11);
  uint64_t sequence = 0;
  const auto set = [&](const std::string& owner, uint64_t client,
                       const std::string& key) {
    v1::StoreRequest request = f.Store(v1::StoreRequest::SET, "12345678");
    request.set_key(key);
    request.set_owner(owner);
    request.set_client(client);
    request.set_sequence(++sequence);
    return f.StatusOf(f.Call(request));
  };
  EXPECT_THAT(set("", 11, "a"), IsOk());
  EXPECT_THAT(set("", 11, "b"),
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
  EXPECT_THAT(set("trainer0", 0, "b"),
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
  EXPECT_THAT(set("trainer0", 10, "b"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "has the certificate of trainer0 and speaks as ps0"));
  sequence = 0;  // which ps0 begins with: nothing of it was taken
  EXPECT_THAT(set("ps0", 10, "b"), IsOk());
}

TEST(CoordinatorCore, ARepeatedChangeIsMadeOnceAlsoAcrossARestart) {
  Fixture f;
  f.Join("ps", 0, 10);
  v1::StoreRequest add = f.Store(v1::StoreRequest::ADD);
  add.set_delta(1);
  add.set_client(10);
  add.set_sequence(1);
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "1");
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "1");
  f.Restart();
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "1");
  add.set_sequence(2);
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "2");
  add.set_sequence(1);
  EXPECT_THAT(f.StatusOf(f.Call(add)), StatusIs(absl::StatusCode::kCancelled));
  add.set_client(77);
  EXPECT_THAT(f.StatusOf(f.Call(add)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CoordinatorCore, ALateCopyOfAChangeThatWasRefusedChangesNothing) {
  Fixture f;
  f.Join("ps", 0, 10);
  using Request = v1::StoreRequest;
  const auto change = [&](Request request, uint64_t sequence) {
    request.set_client(10);
    request.set_sequence(sequence);
    return f.Call(std::move(request));
  };
  Request swap = f.Store(Request::COMPARE_SET, "new");
  swap.set_version(1);
  EXPECT_FALSE(f.ReplyTo<v1::StoreReply>(change(swap, 1)).applied());
  const auto set =
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::SET, "x")));
  EXPECT_EQ(set.version(), 1u);  // which the copy would change
  EXPECT_FALSE(f.ReplyTo<v1::StoreReply>(change(swap, 1)).applied());
  EXPECT_THAT(f.StatusOf(change(f.Store(Request::ADD), 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"x\""));
  f.Call(f.Store(Request::SET, "5"));
  EXPECT_THAT(f.StatusOf(change(f.Store(Request::ADD), 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"x\""));
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::GET))).value(),
            "5");
  Fixture shortened(f.core().Snapshot(), 2);
  Request copy = swap;
  copy.set_client(10);
  copy.set_sequence(1);
  copy.set_version(2);
  shortened.Call(copy);
  EXPECT_EQ(shortened
                .ReplyTo<v1::StoreReply>(
                    shortened.Call(shortened.Store(Request::GET)))
                .value(),
            "5");
}

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
  // But nobody can bury an incarnation of the present term.
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
