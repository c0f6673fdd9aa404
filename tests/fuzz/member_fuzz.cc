// member: no answer of a coordinator harms a member, nor keeps it busy, and
// what it takes for a view is one. The first byte chooses the method and
// whether it is answered by the rest or by an error of these words.

#include <memory>
#include <utility>

#include "weft/base/driver.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/wire.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using rendezvous::MemberCore;
namespace v1 = rendezvous::v1;

// No time passes.
class NoTimers final : public rendezvous::TimerSource {
 public:
  Driver& driver() override { return ParkingDriver(); }
  void RunAfter(absl::Duration, absl::AnyInvocable<void() &&>) override {}
};

v1::JoinReply Joined() {
  v1::JoinReply joined;
  joined.mutable_key()->set_id(1);
  joined.mutable_key()->set_epoch(rendezvous::MakeEpoch(1, 1));
  v1::View* view = joined.mutable_view();
  view->set_version(rendezvous::MakeEpoch(1, 2));
  *view->mutable_world() = ToWire(rendezvous::World::Fixed(1, 1));
  v1::Member* member = view->add_members();
  member->set_name("trainer0");
  member->set_role("trainer");
  member->set_address("unix:/run/trainer0.sock");
  (*member->mutable_labels())["zone"] = "a";
  *member->mutable_key() = joined.key();
  v1::Departed* departed = view->add_departed();
  departed->set_name("ps0");
  departed->mutable_key()->set_epoch(1);
  departed->set_reason("killed");
  return joined;
}

using Answer = absl::StatusOr<std::string>;

// Joins honestly; all that is asked later is answered by the input.
class Link final : public rendezvous::CoordinatorLink {
 public:
  explicit Link(Answer answer) : answer_(std::move(answer)) {}
  Future<std::string> Call(absl::string_view method, std::string,
                           absl::Duration) override {
    if (method == "Join") {
      return MakeReady<std::string>(Joined().SerializeAsString());
    }
    if (method == "Watch" && !watches_) {  // never answered
      auto [promise, held] = MakePromise<std::string>();
      held_ = std::make_unique<Promise<std::string>>(std::move(promise));
      return std::move(held);
    }
    if (!answer_.ok()) return MakeReady<std::string>(answer_.status());
    return MakeReady<std::string>(std::string(*answer_));
  }
  const std::string& address() const override { return address_; }
  void AnswerWatches() { watches_ = true; }

 private:
  const Answer answer_;
  const std::string address_ = "unix:/run/ps0.sock";
  bool watches_ = false;
  std::unique_ptr<Promise<std::string>> held_;
};

void Use(const rendezvous::View& view) {
  Hold(view.Missing().size() <= rendezvous::kMaxWorkers);
  Hold(view.Summary().size() < 16384);
  for (const rendezvous::Member& member : view.members()) {
    Hold(view.Find(member.name) == &member);
    Hold(view.Find(member.key) == &member);
    Hold(member.phase >= rendezvous::Phase::kActive &&
         member.phase <= rendezvous::Phase::kDrained);
    (void)view.IsGone(member.key);
  }
  Hold(view.Select("role=trainer,rank=0,zone=a").ok());
}

// The answer of one method, to the core.
void TellCore(size_t method, const Answer& answer) {
  MemberCore::Options options;
  options.job = "job";
  options.coordinator = "unix:/run/ps0.sock";
  options.self.set_name("trainer0");
  MemberCore core(options, Instant());
  const auto take = [&](const MemberCore::Actions& actions) {
    int sent = 0;
    for (const auto& action : actions) {
      if (const auto* view = std::get_if<MemberCore::NewView>(&action)) {
        Use(rendezvous::FromWire(*view->view));
      }
      sent += std::holds_alternative<MemberCore::Send>(action);
    }
    Hold(sent <= 1);
  };
  const auto reply =
      answer.ok() ? MemberCore::ParseReply(method, *answer, options.coordinator)
                  : answer.status();
  (void)core.OnEvent(Instant(), MemberCore::Start{});
  if (method == 0) {
    return take(core.OnEvent(Instant(), MemberCore::Replied{1, reply}));
  }
  // 2 is the first Watch; what follows are the heartbeat and the good-bye.
  (void)core.OnEvent(Instant(), MemberCore::Replied{1, Joined()});
  uint64_t call = 2;
  if (method == 1) {
    take(core.OnEvent(Instant() + absl::Seconds(1), MemberCore::Timer{}));
    call = 3;
  } else if (method == 3) {
    take(core.OnEvent(Instant(), MemberCore::WantToLeave{}));
    call = 3;
  }
  take(core.OnEvent(Instant(), MemberCore::Replied{call, reply}));
}

// Gives the answer to the calls that a thread of the member waits for.
void TellMembership(size_t method, const Answer& answer) {
  NoTimers timers;
  rendezvous::JoinOptions options;
  options.job = "job";
  options.role = "trainer";
  options.world = rendezvous::World::Fixed(1, 1);
  options.wait_for_world = false;
  auto link = std::make_unique<Link>(answer);
  if (method == 7) {
    link->AnswerWatches();
    // A member that is there, or is not, in this world or in another one.
    for (const char* name : {"ps0", "trainer0", "nobody"}) {
      for (const auto& world : {options.world, rendezvous::World::Fixed(3, 2),
                                rendezvous::World::Elastic(1, 9)}) {
        (void)CheckNobodyIsThere(timers, *link, "job", name, world,
                                 absl::ZeroDuration());
      }
    }
    return;
  }
  const auto joined =
      rendezvous::Membership::Join(timers, std::move(link), options);
  Hold(joined.ok());
  const absl::Duration now = absl::ZeroDuration();
  if (method == 4) {
    const auto gathered = (*joined)->AllGather("begin", "a", {}, now);
    Hold(!gathered.ok() || gathered->size() == 2);
    return;
  }
  if (method == 5) {
    // One look: without any time a store asks nobody.
    const absl::Duration once = absl::Nanoseconds(1);
    (void)(*joined)->store().Get("key", once);
    (void)(*joined)->store().Wait("key", 0, once);
    (void)(*joined)->store().Set("key", "a", once);
    (void)(*joined)->store().Add("key", 1, once);
    (void)(*joined)->store().CompareSet("key", 1, "a", once);
    (void)(*joined)->store().Delete("key", once);
    (void)(*joined)->store().NumKeys(once);
    return;
  }
  (void)(*joined)->Announce(rendezvous::Phase::kQuiescing, now);
}

std::vector<std::string> Seeds() {
  const v1::JoinReply joined = Joined();
  v1::HeartbeatReply heartbeat;
  heartbeat.set_view_version(joined.view().version());
  v1::WatchReply watch;
  *watch.mutable_view() = joined.view();
  watch.mutable_view()->set_version(rendezvous::MakeEpoch(2, 1));
  watch.mutable_view()->mutable_members(0)->set_phase(v1::DRAINED);
  v1::WatchReply elastic = watch;
  *elastic.mutable_view()->mutable_world() =
      ToWire(rendezvous::World::Elastic(2, 8));
  v1::WatchReply gone = watch;
  *gone.mutable_view()->mutable_departed(0)->mutable_key() = joined.key();
  v1::BarrierReply waits;
  waits.add_missing("ps0");
  v1::BarrierReply barrier;
  barrier.set_released(true);
  barrier.add_brought()->set_name("ps0");
  barrier.mutable_brought(0)->set_payload("payload");
  v1::StoreReply store;
  store.set_found(true);
  store.set_value("42");
  store.set_version(3);
  store.set_applied(true);
  return {'\0' + joined.SerializeAsString(),
          '\1' + heartbeat.SerializeAsString(),
          '\2' + watch.SerializeAsString(), '\2' + elastic.SerializeAsString(),
          '\2' + gone.SerializeAsString(), "\3",
          '\4' + waits.SerializeAsString(), '\4' + barrier.SerializeAsString(),
          '\5' + store.SerializeAsString(), "\6",
          // UNAVAILABLE to a Join, a Heartbeat, a Watch, a Leave, a Barrier.
          std::string(1, 8 * 14 + 0) + "no", std::string(1, 8 * 14 + 1) + "no",
          std::string(1, 8 * 14 + 2) + "no", std::string(1, 8 * 14 + 3) + "no",
          std::string(1, 8 * 14 + 4) + "no",
          // ABORTED, to a Join, a Watch, a Barrier; FAILED_PRECONDITION.
          std::string(1, 8 * 10 + 0) + "is gone",
          std::string(1, 8 * 10 + 2) + "is gone",
          std::string(1, 8 * 10 + 4) + "is gone",
          std::string(1, 8 * 9 + 1) + "is gone",
          std::string(1, 8 * 9 + 7) + "another job",
          '\7' + watch.SerializeAsString()};
}

std::vector<std::string> Words() {
  // roles{"ps": 2147483647}, a phase below 0.
  return {"trainer0", "ps0",
          "\x22\x0c\x0a\x0a\x0a\x02ps\x10\xff\xff\xff\xff\x07",
          "\x48\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x08\x01"};
}

void Run(absl::string_view input) {
  if (input.empty()) return;
  const auto first = static_cast<uint8_t>(input[0]);
  const size_t method = first % 8;
  const auto code = static_cast<absl::StatusCode>(first / 8 % 17);
  input.remove_prefix(1);
  Answer answer = std::string(input);
  if (code != absl::StatusCode::kOk) answer = absl::Status(code, input);
  if (method < 4) return TellCore(method, answer);
  TellMembership(method, answer);
}

WEFT_FUZZ_TARGET(member, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
