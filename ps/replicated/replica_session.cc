#include "weft/ps/replicated/replica_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/check.h"
#include "weft/base/driver.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/replicated/service.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kAskTimeout = absl::Seconds(1);
// A server that has not answered for so long may be gone, or be cut off.
constexpr absl::Duration kAskNextAfter = absl::Milliseconds(200);
constexpr absl::Duration kStableWithin = absl::Seconds(2);
constexpr absl::Duration kOneAfterAnother = absl::Milliseconds(100);

}  // namespace

ReplicaSession::ReplicaSession(Options options)
    : options_(std::move(options)),
      agent_(std::make_shared<rpc::extension::WeakAgent>(*options_.agent)),
      waits_(ServerWaits::Of(*options_.agent)) {
  WEFT_CHECK(!options_.servers.empty());
}

absl::StatusOr<std::shared_ptr<ReplicaSession>> ReplicaSession::Begin(
    Options options, absl::Duration timeout) {
  std::shared_ptr<ReplicaSession> session(
      new ReplicaSession(std::move(options)));
  // What is under way may keep its table, and that the session, beyond the
  // agent's end.
  session->waits_->EndWithAgent(session);
  const Instant give_up = SteadyClock().Now() + timeout;
  for (;;) {
    const absl::StatusOr<v1::MapReply> reply = rpc::Call(
        session->options_.agent->To(session->NextToAsk(), kAskTimeout),
        &GetMap);
    absl::Status status = reply.status();
    if (reply.ok()) status = session->TakeMap(reply->map());
    if (status.ok()) break;
    // This worker is out of its job, or ends.
    if (absl::IsAborted(status) || absl::IsFailedPrecondition(status)) {
      return status;
    }
    const auto& is_asked_to_stop = session->options_.is_asked_to_stop;
    if (is_asked_to_stop != nullptr && is_asked_to_stop()) {
      return absl::CancelledError(
          absl::StrCat("gave up waiting for the first answer of a server, for "
                       "this worker is asked to stop: ",
                       status.message()));
    }
    if (SteadyClock().Now() + kTick >= give_up) return status;
    const BlockingScope blocking;
    absl::SleepFor(kTick);
  }
  WEFT_ASSIGN_OR_RETURN(
      session->thread_,
      StartThread("a client of tables with two replicas",
                  [weak = std::weak_ptr<ReplicaSession>(session),
                   end = session->end_] { Run(weak, *end); }));
  return session;
}

ReplicaSession::~ReplicaSession() {
  {
    MutexLock lock(end_->mu);
    end_->is_over = true;
  }
  end_->changed.NotifyAll();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // it sees the end, and touches this no more
  } else {
    thread_.join();
  }
}

void ReplicaSession::Close() {
  agent_->End();
  const absl::Status why = absl::CancelledError("the client has been closed");
  for (const auto& follower : Followers()) follower->OnClose(why);
}

void ReplicaSession::GiveUpOnGoneServers() {
  MutexLock lock(mu_);
  gives_up_at_ = std::min(gives_up_at_, SteadyClock().Now() + kGiveUpAfter);
}

bool ReplicaSession::gives_up(Instant now) const {
  MutexLock lock(mu_);
  return now >= gives_up_at_;
}

absl::Duration ReplicaSession::StableWithin() const {
  MutexLock lock(mu_);
  const bool is_next = unstable_at_.has_value() &&
                       SteadyClock().Now() - *unstable_at_ < kOneAfterAnother;
  return is_next ? kTick : kStableWithin;
}

void ReplicaSession::NoteUnstable() {
  MutexLock lock(mu_);
  unstable_at_ = SteadyClock().Now();
}

PartitionMap ReplicaSession::map() const {
  MutexLock lock(mu_);
  return map_;
}

const std::string& ReplicaSession::NextToAsk() {
  MutexLock lock(mu_);
  return options_.servers[next_++ % options_.servers.size()];
}

Future<v1::MapReply> ReplicaSession::AskForMap(
    const std::string& server) const {
  const rpc::extension::WeakAgent::Use agent(*agent_);
  if (!agent) {
    return MakeReady<v1::MapReply>(
        absl::CancelledError("the client has been closed"));
  }
  return rpc::CallAsync(agent->To(server, kAskTimeout), &GetMap);
}

absl::Status ReplicaSession::TakeMap(const std::string& encoded) {
  WEFT_ASSIGN_OR_RETURN(const PartitionMap map, PartitionMap::Decode(encoded));
  {
    MutexLock lock(mu_);
    if (map.epoch() <= map_.epoch()) return absl::OkStatus();
    if (map_.epoch() > 0 && map.entries() != map_.entries()) {
      return absl::InvalidArgumentError(absl::StrCat("a map of ", map.entries(),
                                                     " entries came, wanted ",
                                                     map_.entries()));
    }
    map_ = map;
  }
  for (const auto& follower : Followers()) follower->OnMap(map);
  return absl::OkStatus();
}

void ReplicaSession::Learn() {
  uint64_t question = 0;
  {
    MutexLock lock(mu_);
    const Instant now = SteadyClock().Now();
    if (is_asking_ && now - asked_at_ < kAskNextAfter) return;
    is_asking_ = true;
    asked_at_ = now;
    question = ++last_question_;
  }
  AskForMap(NextToAsk())
      .OnReady([weak = weak_from_this(),
                question](const absl::StatusOr<v1::MapReply>& reply) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        {
          MutexLock lock(self->mu_);
          if (question == self->last_question_) self->is_asking_ = false;
        }
        if (reply.ok()) (void)self->TakeMap(reply->map());
      });
}

void ReplicaSession::LearnFromAll() {
  std::vector<Future<v1::MapReply>> asked;
  for (const std::string& server : options_.servers) {
    asked.push_back(AskForMap(server));
  }
  for (const Future<v1::MapReply>& one : asked) {
    const auto reply = one.Wait(2 * kAskTimeout);
    if (reply.ok()) (void)TakeMap(reply->map());
  }
}

void ReplicaSession::Add(const std::weak_ptr<MapFollower>& follower) {
  MutexLock lock(mu_);
  followers_.push_back(follower);
}

std::vector<std::shared_ptr<MapFollower>> ReplicaSession::Followers() {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<MapFollower>> live;
  std::vector<std::weak_ptr<MapFollower>> kept;
  for (std::weak_ptr<MapFollower>& weak : followers_) {
    if (auto follower = weak.lock()) {
      live.push_back(std::move(follower));
      kept.push_back(std::move(weak));
    }
  }
  followers_ = std::move(kept);
  return live;
}

void ReplicaSession::Run(const std::weak_ptr<ReplicaSession>& weak, End& end) {
  for (;;) {
    {
      MutexLock lock(end.mu);
      const auto until = SteadyDeadline(kTick);
      while (!end.is_over && end.changed.WaitUntil(end.mu, until)) {
      }
      if (end.is_over) return;
    }
    const std::shared_ptr<ReplicaSession> self = weak.lock();
    if (self == nullptr) return;
    for (const auto& follower : self->Followers()) {
      follower->OnTick(SteadyClock().Now());
    }
  }
}

}  // namespace weft::ps
