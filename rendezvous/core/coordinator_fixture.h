// CoordinatorFixture: a CoordinatorCore with its clock, its log and its
// answers, for tests.

#ifndef WEFT_RENDEZVOUS_CORE_COORDINATOR_FIXTURE_H_
#define WEFT_RENDEZVOUS_CORE_COORDINATOR_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {

// The answer as its caller reads it.
inline CoordinatorCore::Answer Received(CoordinatorCore::Answer answer) {
  if (!answer.status.ok()) return answer;
  std::visit(
      [&](auto& reply) { EXPECT_TRUE(reply.ParseFromString(answer.Encode())); },
      answer.reply);
  answer.told = nullptr;
  return answer;
}

// Who is in a view, and who is gone, in an order that does not depend on how it
// came about.
inline std::string ContentsOf(v1::View view) {
  view.clear_since();
  view.clear_complete_at();  // a coordinator that was started again forgets it
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
class CoordinatorFixture {
 public:
  explicit CoordinatorFixture(std::vector<v1::LogRecord> log = {},
                              uint32_t term = 1,
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
    // Ticks like a driver: never later than the core asks.
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
    EXPECT_THAT(StatusOf(ticket), testing::IsOk());
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

// A beat of ps0, as JoinOf(.., 10) made it, that tells of the end of trainer0.
inline v1::HeartbeatRequest TellingOf(WorkerKey trainer,
                                      const std::string& reason, WorkerKey ps) {
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

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_COORDINATOR_FIXTURE_H_
