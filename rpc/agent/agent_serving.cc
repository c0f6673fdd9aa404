#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/rpc/agent/agent_state.h"

namespace weft::rpc {
namespace {

// How often the pool is looked at while calls wait for its threads.
constexpr absl::Duration kPoolCheck = absl::Milliseconds(250);
// How long none of its threads may go on before the log says so.
constexpr absl::Duration kWarnAfter = absl::Seconds(1);
// How long a call waits then, at most.
constexpr absl::Duration kMostPatience = absl::Seconds(10);

bool Matches(const AccessRule& rule, absl::string_view function) {
  absl::string_view wanted = rule.functions;
  return absl::ConsumeSuffix(&wanted, "*") ? absl::StartsWith(function, wanted)
                                           : function == wanted;
}

// Why a call whose turn has come need not run any more. Its timer may be late.
absl::Status TooLate(const ServedCall& call, const Clock& clock) {
  if (call.cancel().IsCancelled()) return call.cancel().status();
  if (clock.Now() < call.deadline()) return absl::OkStatus();
  return absl::DeadlineExceededError("the caller's deadline has passed");
}

}  // namespace

absl::StatusOr<const Function*> AgentState::Find(const Request& request,
                                                 Refusal* refusal) const {
  if (refuses_) {
    MutexLock lock(mu_);
    return ended_;
  }
  const Function* function = registry_.FindName(request.function);
  if (function == nullptr) {
    *refusal = Refusal::kUnknownFunction;
    return absl::UnimplementedError(
        absl::StrCat(options_.name, " (build ", options_.build,
                     ") has no function ", request.function));
  }
  if (function->digest != request.signature) {
    *refusal = Refusal::kSignatureDiffers;
    return absl::FailedPreconditionError(function->signature);
  }
  return function;
}

net::Roles AgentState::RolesOf(const Function& function) const {
  if (function.is_of_maker) return net::Roles::Any();
  for (const AccessRule& rule : options_.access) {
    if (Matches(rule, function.name)) return rule.roles;
  }
  if (function.roles.has_value()) return *function.roles;
  const Function* constructor = registry_.FindName(function.constructor);
  return constructor == nullptr ? net::Roles::Members() : RolesOf(*constructor);
}

bool AgentState::MayCall(const Function& function, const Worker& caller) const {
  return caller.role.empty() || RolesOf(function).Allow(caller.role);
}

std::shared_ptr<const FunctionTable> AgentState::TableFor(
    const Worker& caller) const {
  auto table = std::make_shared<FunctionTable>();
  for (const std::string& name : registry_.Names()) {
    const Function& function = *registry_.FindName(name);
    if (!MayCall(function, caller)) continue;
    (*table)[name] = {function.signature, function.digest};
  }
  return table->size() <= kMaxFunctions ? table : nullptr;
}

absl::Status AgentState::CheckRole(const Function& function,
                                   const Worker& caller) {
  if (caller.role.empty()) return absl::OkStatus();
  absl::Status allowed =
      RolesOf(function).Check(caller.name, caller.role, function.name);
  if (!allowed.ok())
    refusal_log_.Refused("function", caller.name, function.name,
                         allowed.message());
  return allowed;
}

void AgentState::Dispatch(const Function& function,
                          std::shared_ptr<ServedCall> call) {
  // It counts as a handler by now: either Stop waits for it, or this sees that
  // Stop does not. Its session has ended then, and nobody hears of the drop.
  if (has_stopped_.load()) return;
  absl::Status allowed = CheckRole(function, call->peer());
  if (!allowed.ok()) return call->Finish(std::move(allowed));
  const uint64_t queue = call->ordered_queue();
  if (queue == 0) return Run(function, std::move(call));
  const WorkerKey caller = call->peer().key;
  // The call keeps this state.
  queues_->Enter(caller, queue,
                 [this, &function, call = std::move(call)](auto turn) mutable {
                   call->SetTurn(std::move(turn));
                   if (call->cancel().IsCancelled()) {
                     return call->Finish(call->cancel().status());
                   }
                   Run(function, std::move(call));
                 });
}

void AgentState::Run(const Function& function,
                     std::shared_ptr<ServedCall> call) {
  if (function.serve_batch != nullptr) {
    return BatcherOf(function)->Add(std::move(call));
  }
  if (function.runs_on == RunsOn::kTransport) {
    InlineScope scope;
    return function.serve(std::move(call));
  }
  call->AwaitThread();
  const Clock& clock = transport().clock();
  executor_->Schedule([&function, &clock, call = std::move(call)]() mutable {
    if (!call->BeginOnThread()) return;  // it has ended: no thread came in time
    absl::Status late = TooLate(*call, clock);
    if (!late.ok()) return call->Finish(std::move(late));
    function.serve(std::move(call));
  });
  if (pool_ != nullptr) WatchPool();
}

// ------------------------------------------------- calls that get no thread

void AgentState::WatchPool() {
  if (watches_pool_.load() || watches_pool_.exchange(true)) return;
  transport().RunAt(transport().clock().Now() + kPoolCheck,
                    [weak = weak_from_this()] {
                      if (auto state = weak.lock()) state->CheckPool();
                    });
}

void AgentState::CheckPool() {
  if (has_stopped_.load()) return;
  const ThreadPool::Stats stats = pool_->stats();
  const Instant now = transport().clock().Now();
  const bool is_stuck = stats.queued > 0 && stats.blocked == stats.threads &&
                        stats.started == pool_started_;
  pool_started_ = stats.started;
  if (!is_stuck) {
    stuck_since_ = Instant::Infinite();
    has_warned_ = false;
  } else if (stuck_since_.is_infinite()) {
    stuck_since_ = now;
  } else {
    EndStarvedCalls(stats, now);
  }
  watches_pool_ = false;
  // What was scheduled before that has not armed the timer.
  if (pool_->stats().queued > 0) WatchPool();
}

void AgentState::EndStarvedCalls(const ThreadPool::Stats& stats, Instant now) {
  const ThreadPool::Options& pool = pool_->options();
  const std::string why = absl::StrCat(
      "no thread was free: all ", stats.threads, " threads of the pool '",
      pool.name, "' of ", options_.name,
      " are blocked in functions that wait, and ", stats.queued,
      " calls wait for one; allow more than ", pool.max_threads, " by ",
      pool.max_threads_option,
      ", or let fewer functions wait for calls (one that returns a Future "
      "holds no thread)");
  if (!has_warned_ && now - stuck_since_ >= kWarnAfter) {
    has_warned_ = true;
    WEFT_LOG(telemetry_.logger(), Warning, why);
  }
  std::vector<std::shared_ptr<ServedCall>> waiting;
  for (const auto& inbound : Inbounds()) {
    for (auto& call : inbound->CallsWithoutThread()) {
      waiting.push_back(std::move(call));
    }
  }
  for (const auto& call : sessionless_calls_.All()) {
    if (call->awaits_thread()) waiting.push_back(call);
  }
  for (const auto& call : waiting) {
    const absl::Duration patience =
        std::min(kMostPatience, (call->deadline() - call->began()) / 2);
    // Before its deadline, which would say nothing of threads.
    const Instant end =
        std::min(std::max(call->began(), stuck_since_) + patience,
                 call->deadline() - 2 * kPoolCheck);
    if (now < end || !call->DropUnrun()) continue;
    call->Finish(absl::ResourceExhaustedError(
        absl::StrCat(call->function(), ": ", why)));
  }
}

internal::Caller::Abandon AgentState::ServeSessionless(
    Worker caller, std::shared_ptr<const Request> request, CancelToken gone,
    internal::Caller::Done done) {
  const bool is_own = caller == worker();
  const std::shared_ptr<Traffic> traffic = traffic_.Of(caller.name);
  if (is_own) traffic->CountCall();
  traffic->CountServed(TotalSize(request->body));
  Refusal refusal;
  absl::StatusOr<const Function*> function = Find(*request, &refusal);
  absl::Status status = function.status();
  if (status.ok() && request->deadline <= transport().clock().Now()) {
    status = internal::MarkFailure(
        absl::DeadlineExceededError(
            absl::StrCat(request->function, ": the deadline passed in phase ",
                         NameOf(Phase::kQueue), ": before the call began")),
        Phase::kQueue);
  }
  if (status.ok()) {
    // In one with the look at it: Stop waits for those that have begun.
    MutexLock lock(mu_);
    status = ended_;
    if (status.ok()) CallBegan();
  }
  if (!status.ok()) {
    traffic->CountReply(false);
    if (is_own) traffic->CountEnd(false, 0);
    std::move(done)(std::move(status), nullptr);
    return internal::Abandon();
  }
  if (is_own) traffic->CountSent(TotalSize(request->body));
  SessionlessCall::Options options;
  options.dispatcher = shared_from_this();
  options.transport = &transport();
  options.calls = &sessionless_calls_;
  options.caller = std::move(caller);
  options.is_own = is_own;
  options.function = *function;
  options.request = std::move(request);
  options.traffic = traffic;
  options.done = std::move(done);
  const auto call = SessionlessCall::Create(std::move(options));
  call->Follow(ending_.token(), gone);
  Dispatch(**function, call);
  return internal::Abandon(call, 0);
}

std::shared_ptr<Batcher> AgentState::BatcherOf(const Function& function) {
  MutexLock lock(mu_);
  std::shared_ptr<Batcher>& batcher = batchers_[&function];
  if (batcher == nullptr) {
    batcher = std::make_shared<Batcher>(function, transport(), *executor_);
  }
  return batcher;
}

void AgentState::OverLimit(const Worker& peer, const absl::Status& why) {
  refusal_log_.Refused("rpc_limits", peer.name, "to call", why.message());
}

void AgentState::CallBegan() { handlers_.fetch_add(1); }

void AgentState::CallEnded() {
  // Who has ended and still saw one waits by then, or will see none.
  if (handlers_.fetch_sub(1) > 1 || !has_ended_.load()) return;
  MutexLock lock(handlers_mu_);
  no_handlers_.NotifyAll();
}

}  // namespace weft::rpc
