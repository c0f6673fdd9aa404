#include "weft/rpc/agent/agent_state.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/driver.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent/retry.h"
#include "weft/rpc/session/failure.h"

namespace weft::rpc {
namespace {

// How often Shutdown looks whether all has ended.
constexpr absl::Duration kDrainCheck = absl::Milliseconds(2);

// How long Shutdown waits for callers to acknowledge their last replies. They
// do so within CallerSession::kAckDelay unless they are stopped.
constexpr absl::Duration kAcknowledgeTime = absl::Seconds(2);

// How long a call waits for its directory to catch up.
constexpr absl::Duration kLookupTime = absl::Seconds(1);

// Takes those of `key` and of earlier incarnations out of `from`.
template <typename Map>
auto TakeUpTo(WorkerKey key, Map* from) {
  std::vector<typename Map::mapped_type> taken;
  for (auto it = from->begin(); it != from->end();) {
    const auto current = it++;
    if (current->first.id != key.id || current->first.epoch > key.epoch) {
      continue;
    }
    taken.push_back(std::move(current->second));
    from->erase(current);
  }
  SortByPeer(&taken);
  return taken;
}

// The error of calls to the incarnation `of`, which is gone because `gone`,
// itself or a later one, is.
absl::Status Gone(WorkerKey of, WorkerKey gone, absl::string_view why) {
  return internal::MarkFailure(
      absl::UnavailableError(absl::StrCat(
          "the incarnation ", of.ToString(), " is gone: ",
          of == gone ? "" : absl::StrCat("so is ", gone.ToString(), ": "),
          why)),
      Phase::kNone, Reason::kPeerGone);
}

// One that is gone ends a call as if it had gone during the call.
absl::StatusOr<Worker> AsOfACall(absl::StatusOr<Worker> found,
                                 const std::string& worker) {
  if (!absl::IsUnavailable(found.status())) return found;
  return internal::NameFailure(
      internal::MarkFailure(found.status(), Phase::kQueue, Reason::kPeerGone),
      worker, "", Phase::kQueue);
}

}  // namespace

namespace internal {

absl::Status NotThere(const absl::Status& why, const std::string& worker) {
  // One that is gone ends a call as if it had gone during the call.
  return ReceiveFailure(
      why, worker, "", absl::IsUnavailable(why) ? Phase::kQueue : Phase::kNone);
}

}  // namespace internal

// ------------------------------------------------------------------ its life

absl::Status AgentState::Start(Agent* agent) {
  agent_ = agent;
  HandlerThreads::Options threads;
  threads.worker = options_.name;
  threads.executor = options_.executor;
  threads.pool = options_.pool;
  threads.threads = options_.threads;
  threads.max_threads = options_.max_threads;
  threads.transport = options_.transport;
  threads.logger = &telemetry_.logger();
  threads.for_each_waiting =
      [weak = weak_from_this()](absl::FunctionRef<void(ServedCall&)> fn) {
        if (const auto state = weak.lock()) state->ForEachWithoutThread(fn);
      };
  threads_ = std::make_shared<HandlerThreads>(std::move(threads));
  WEFT_RETURN_IF_ERROR(threads_->Start());
  {
    MutexLock lock(mu_);
    self_caller_ = std::make_shared<SelfCaller>(weak_from_this(), worker());
  }
  std::weak_ptr<AgentState> weak = weak_from_this();
  status_page_ = telemetry_.status().Register("rpc", [weak] {
    const auto state = weak.lock();
    return state == nullptr ? telemetry::Fields() : state->Describe();
  });
  if (options_.telemetry != nullptr) {
    metrics_ = telemetry_.metrics().BeforeReading([weak] {
      if (const auto state = weak.lock()) state->Export();
    });
  }
  transport().Register(ConnectionPurpose());
  transport().Accept(ConnectionPurpose(),
                     // The transport drops this function in Stop.
                     [this](std::unique_ptr<transport::Connection> connection) {
                       return AcceptConnection(std::move(connection));
                     });
  return absl::OkStatus();
}

void AgentState::Stop() {
  const absl::Status why = absl::CancelledError(
      absl::StrCat("the agent of ", options_.name, " has ended"));
  // A call that comes now has not run, and may be retried elsewhere.
  Refuse(internal::MarkFailure(absl::UnavailableError(why.message()),
                               Phase::kQueue, Reason::kShuttingDown));
  status_page_.Release();
  metrics_ = nullptr;
  transport().Accept(ConnectionPurpose(), nullptr);
  EndCalls(why);
  has_stopped_ = true;
  WEFT_FAILPOINT("rpc/stopped").IgnoreError();
  threads_->Stop();
  transport().AwaitTimers();  // one may look at the pool
  threads_->EndPool();
  transport().AwaitTimers();  // one may have begun, and hold a session
  parts_.objects.Clear();
  parts_.streams.Clear();
  shared_->receivers.Clear();
  // Sessions share this core as the one that runs their calls; release them, or
  // neither ends.
  OutboundMap outbounds;
  InboundMap inbounds;
  MutexLock lock(mu_);
  outbounds.swap(outbounds_);
  inbounds.swap(inbounds_);
}

void AgentState::EndCalls(const absl::Status& why) {
  is_draining_ = false;
  for (const auto& outbound : Outbounds()) outbound->Shutdown(why);
  for (const auto& inbound : Inbounds()) inbound->PeerGone(why);
  device_waits_->EndAll(why);
  ending_.Cancel(why);
  // Calls that wait for a batch to fill were cancelled; they end in it.
  decltype(batchers_) batchers;
  {
    MutexLock lock(mu_);
    batchers = batchers_;
  }
  for (const auto& [function, batcher] : batchers) batcher->Flush();
}

void AgentState::Refuse(absl::Status why) {
  {
    MutexLock lock(mu_);
    if (ended_.ok()) ended_ = std::move(why);
    has_ended_ = true;
  }
  refuses_ = true;
}

void AgentState::OutOfJob(const absl::Status& why) {
  Refuse(internal::MarkFailure(absl::UnavailableError(why.message()),
                               Phase::kQueue, Reason::kPeerGone));
  EndCalls(absl::AbortedError(why.message()));
}

absl::Status AgentState::Drain(absl::Duration timeout) {
  Refuse(internal::MarkFailure(
      absl::UnavailableError(absl::StrCat(options_.name, " is shutting down")),
      Phase::kQueue, Reason::kShuttingDown));
  const Instant deadline = transport().clock().Now() + timeout;
  is_draining_ = true;
  const absl::Status idle = AwaitIdle(timeout);
  if (idle.ok()) {
    EndConnections(deadline - transport().clock().Now());
  } else {
    NoteCut();
    EndCalls(
        absl::CancelledError(absl::StrCat(options_.name, " has shut down")));
  }
  return idle;
}

// Each end of a connection closes it by itself. If an end closed it only when
// notified that the peer has left, it could wait without an end: two peers that
// leave at the same time would wait for each other.
void AgentState::EndConnections(absl::Duration timeout) {
  const absl::Status why = CanCall();
  {
    MutexLock lock(mu_);
    connections_end_ = why;
  }
  for (const auto& outbound : Outbounds()) outbound->EndWhenIdle(why);
  for (const auto& inbound : Inbounds()) inbound->EndWhenAcknowledged();
  // A peer that sees the departure before it has read its last reply would
  // take the call for lost.
  const Instant deadline =
      transport().clock().Now() + std::min(timeout, kAcknowledgeTime);
  const auto is_owed = [this] {
    const auto inbounds = Inbounds();
    return std::any_of(inbounds.begin(), inbounds.end(),
                       [](const auto& in) { return in->unacknowledged() > 0; });
  };
  while (is_owed() && transport().clock().Now() < deadline) PauseToCheck();
}

void AgentState::PauseToCheck() {
  // Waits by this transport's driver, so that it makes progress.
  Promise<void> pause(transport().driver());
  (void)pause.future().Wait(kDrainCheck);
}

absl::Status AgentState::AwaitIdle(absl::Duration timeout) {
  const Instant deadline = transport().clock().Now() + timeout;
  while (!StillOpen().empty()) {
    if (transport().clock().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("after ", absl::FormatDuration(timeout),
                       " there are still ", absl::StrJoin(StillOpen(), ", ")));
    }
    PauseToCheck();
  }
  return absl::OkStatus();
}

std::vector<std::string> AgentState::StillOpen() {
  std::vector<std::string> open;
  ForEachSource([&](PendingSource& source) { source.AddOpen(&open); });
  return open;
}

void AgentState::ForEachSource(absl::FunctionRef<void(PendingSource&)> fn) {
  for (const auto& outbound : Outbounds()) fn(*outbound);
  for (const auto& inbound : Inbounds()) fn(*inbound);
  // These know of calls that have no session, or none at the moment.
  fn(sessionless_calls_);
  decltype(own_queues_) queues;
  {
    MutexLock lock(mu_);
    queues = own_queues_;
  }
  for (const auto& queue : queues) {
    if (const auto live = queue.lock()) fn(*live);
  }
  fn(*device_waits_);
  // These name what nobody before them has named.
  fn(*threads_);
  fn(*retried_);
}

std::vector<AgentState::OutboundMap::mapped_type> AgentState::Outbounds() {
  std::vector<OutboundMap::mapped_type> all;
  MutexLock lock(mu_);
  for (const auto& [key, outbound] : outbounds_) all.push_back(outbound);
  SortByPeer(&all);
  return all;
}

std::vector<AgentState::InboundMap::mapped_type> AgentState::Inbounds() {
  std::vector<InboundMap::mapped_type> all;
  MutexLock lock(mu_);
  for (const auto& [key, inbound] : inbounds_) all.push_back(inbound);
  SortByPeer(&all);
  return all;
}

// ------------------------------------------------------------------- calling

absl::Status AgentState::SetDevices(DeviceOptions options) {
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<DeviceTensors> made,
      DeviceTensors::Create(options_.name, std::move(options)));
  MutexLock lock(mu_);
  if (owned_devices_ != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Agent::SetDevices: the devices of ", options_.name, " are set"));
  }
  owned_devices_ = std::move(made);
  devices_.store(owned_devices_.get(), std::memory_order_release);
  return absl::OkStatus();
}

absl::Status AgentState::CanCall() {
  if (!has_ended_.load()) return absl::OkStatus();
  MutexLock lock(mu_);
  const std::string why =
      absl::StrCat("no more calls are made: ", ended_.message());
  // It is out of its job.
  if (ReasonOf(ended_) == Reason::kPeerGone) return absl::AbortedError(why);
  // To peers it is kUnavailable; who calls by an agent that it has shut down is
  // wrong about its own.
  return internal::MarkFailure(absl::FailedPreconditionError(why), Phase::kNone,
                               Reason::kShuttingDown);
}

absl::StatusOr<Worker> AgentState::Find(absl::string_view name) const {
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(name));
  return AsOfACall(options_.directory->Find(name), std::string(name));
}

absl::StatusOr<Worker> AgentState::Find(WorkerKey key) const {
  return AsOfACall(options_.directory->Find(key), key.ToString());
}

// The news of a worker that has just joined may be on its way to this one,
// while somebody who has heard it already tells this one of the worker.
template <typename NameOrKey>
absl::StatusOr<Worker> AgentState::FindNow(NameOrKey worker,
                                           absl::Duration timeout) const {
  absl::StatusOr<Worker> found = Find(worker);
  // A name may have a later incarnation; a key that is gone stays so.
  const bool may_come = absl::IsNotFound(found.status()) ||
                        (absl::IsUnavailable(found.status()) &&
                         std::is_same_v<NameOrKey, absl::string_view>);
  if (!may_come || has_ended_.load() || InlineScope::IsActive()) return found;
  if (!options_.directory->Refresh(std::min(timeout, kLookupTime))) {
    return found;
  }
  return Find(worker);
}

template absl::StatusOr<Worker> AgentState::FindNow(absl::string_view,
                                                    absl::Duration) const;
template absl::StatusOr<Worker> AgentState::FindNow(WorkerKey,
                                                    absl::Duration) const;

absl::Status AgentState::NotThere(const absl::Status& why,
                                  const std::string& worker) {
  const absl::Status ended = CanCall();
  return internal::NotThere(ended.ok() ? why : ended, worker);
}

Hello AgentState::MakeHello(const Worker& peer) const {
  Hello hello;
  hello.job = options_.job;
  hello.build = options_.build;
  hello.name = options_.name;
  hello.from = options_.key;
  hello.to = peer.key;
  hello.registry = registry_.Digest();
  return hello;
}

absl::StatusOr<std::shared_ptr<internal::Caller>> AgentState::CallerFor(
    absl::StatusOr<Worker> worker) {
  if (!worker.ok()) return worker.status();
  MutexLock lock(mu_);
  if (worker->key == options_.key) return self_caller_;
  WEFT_RETURN_IF_ERROR(CheckNotGone(worker->name, worker->key));
  const auto it = outbounds_.find(worker->key);
  if (it != outbounds_.end()) return it->second;
  // A call that was about to begin: nobody would close its connection.
  WEFT_RETURN_IF_ERROR(connections_end_);
  Outbound::Options options;
  options.hello = MakeHello(*worker);
  options.peer = *std::move(worker);
  options.transport = options_.transport;
  options.give_up_after = options_.give_up_after;
  options.shared = shared_;
  options.result_bytes = options_.result_bytes;
  options.recorder = &telemetry_.recorder();
  options.logger = &telemetry_.logger();
  options.hook = options_.hook;
  options.agent = agent_;
  const WorkerKey key = options.peer.key;
  const auto made = std::make_shared<Outbound>(std::move(options));
  outbounds_[key] = made;
  return made;
}

absl::StatusOr<std::shared_ptr<internal::Caller>> AgentState::CallerOf(
    internal::NamedWorker& worker,
    absl::FunctionRef<absl::Duration()> timeout) {
  // Before it is asked: what changes meanwhile is asked for the next time.
  const internal::NamedWorker::Version version(options_.directory->version(),
                                               times_gone_.load());
  if (version.first != 0) {
    if (auto known = worker.FoundAt(version)) return known;
  }
  WEFT_ASSIGN_OR_RETURN(auto caller, CallerFor(FindNow<absl::string_view>(
                                         worker.name(), timeout())));
  if (version.first != 0) worker.SetFound(version, caller);
  return caller;
}

std::shared_ptr<internal::Caller> AgentState::Retrying(
    Worker peer, const RetryPolicy& policy) {
  internal::RetryingCaller::Options options;
  options.policy = policy;
  options.may_come_back = peer.key.epoch == 0;
  options.transport = options_.transport;
  options.agent = ending_.token();
  options.calls = retried_;
  options.find = [weak = weak_from_this(),
                  peer]() -> absl::StatusOr<std::shared_ptr<internal::Caller>> {
    const auto state = weak.lock();
    if (state == nullptr) return absl::CancelledError("the agent has ended");
    if (peer.key.epoch == 0) return state->CallerFor(state->Find(peer.name));
    {
      // The directory need not know it any more.
      MutexLock lock(state->mu_);
      WEFT_RETURN_IF_ERROR(state->CheckNotGone(peer.name, peer.key));
    }
    return state->CallerFor(state->Find(peer.key));
  };
  options.is_idempotent = [&registry = registry_](absl::string_view name) {
    const Function* function = registry.FindName(name);
    return function != nullptr && function->is_idempotent;
  };
  return std::make_shared<internal::RetryingCaller>(std::move(peer),
                                                    std::move(options));
}

std::shared_ptr<internal::OrderedQueue> AgentState::NewQueue(
    const std::string& peer) {
  MutexLock lock(mu_);
  auto queue = std::make_shared<internal::OrderedQueue>(++last_queue_, peer,
                                                        options_.transport);
  own_queues_.erase(std::remove_if(own_queues_.begin(), own_queues_.end(),
                                   [](const auto& l) { return l.expired(); }),
                    own_queues_.end());
  own_queues_.push_back(queue);
  return queue;
}

void AgentState::PeerGone(WorkerKey key, absl::string_view why, bool left) {
  std::vector<OutboundMap::mapped_type> outbounds;
  std::vector<InboundMap::mapped_type> inbounds;
  {
    MutexLock lock(mu_);
    gone_.Add(key);
    // Earlier ones, too: their end may not have been reported. The outbounds
    // stay, so that Targets that hold them learn why.
    outbounds = TakeUpTo(key, &outbounds_);
    inbounds = TakeUpTo(key, &inbounds_);
  }
  times_gone_.fetch_add(1);
  for (const auto& outbound : outbounds) {
    outbound->Shutdown(Gone(outbound->peer().key, key, why));
  }
  for (const auto& inbound : inbounds) {
    const WorkerKey peer = inbound->peer().key;
    inbound->PeerGone(Gone(peer, key, why));
    parts_.streams.RemoveAll(peer);
  }
  parts_.handles->KeeperGone(key, left);
  parts_.objects.HolderGone(key, left);  // what is held later is refused
  decltype(on_peer_gone_) told;
  {
    MutexLock lock(mu_);
    told = on_peer_gone_;
  }
  const Agent::GonePeer gone{key, std::string(why), left};
  for (const auto& registered : told) {
    if (const auto callback = registered.lock()) (*callback)(gone);
  }
}

Agent::PeerGoneRegistration AgentState::OnPeerGone(
    Agent::PeerGoneCallback callback) {
  auto registration =
      std::make_shared<Agent::PeerGoneCallback>(std::move(callback));
  MutexLock lock(mu_);
  on_peer_gone_.erase(std::remove_if(on_peer_gone_.begin(), on_peer_gone_.end(),
                                     [](const auto& c) { return c.expired(); }),
                      on_peer_gone_.end());
  on_peer_gone_.push_back(registration);
  return registration;
}

void AgentState::ClientVanished(Inbound& caller) {
  const WorkerKey key = caller.peer().key;
  const auto kept = caller.shared_from_this();
  {
    MutexLock lock(mu_);
    const auto it = inbounds_.find(key);
    // It may have begun another session meanwhile.
    if (it == inbounds_.end() || it->second != kept) return;
    inbounds_.erase(it);
  }
  telemetry_.recorder().Record("rpc.client_vanished", caller.peer().name);
  caller.PeerGone(absl::CancelledError(absl::StrCat(
      "the client ", caller.peer().name, " is gone: it was not connected for ",
      absl::FormatDuration(kClientPatience))));
  parts_.objects.SessionEnded(key);
  parts_.streams.RemoveAll(key);
}

void AgentState::SetLocal(const void* type_key, std::shared_ptr<void> object) {
  MutexLock lock(mu_);
  locals_[type_key].swap(object);  // the former one ends without the lock
}

std::shared_ptr<void> AgentState::FindLocal(const void* type_key) {
  MutexLock lock(mu_);
  const auto it = locals_.find(type_key);
  return it == locals_.end() ? nullptr : it->second;
}

}  // namespace weft::rpc
