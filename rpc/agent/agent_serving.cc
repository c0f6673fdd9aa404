#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/rpc/agent/agent_state.h"

namespace weft::rpc {
namespace {

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
  const Clock& clock = transport().clock();
  executor_->Schedule([&function, &clock, call = std::move(call)]() mutable {
    absl::Status late = TooLate(*call, clock);
    if (!late.ok()) return call->Finish(std::move(late));
    function.serve(std::move(call));
  });
}

internal::Caller::Abandon AgentState::ServeSessionless(
    Worker caller, std::shared_ptr<const Request> request, CancelToken gone,
    internal::Caller::Done done) {
  const bool is_own = caller == worker();
  const std::shared_ptr<Traffic> traffic = traffic_.Of(caller.name);
  if (is_own) traffic->CountCall(TotalSize(request->body));
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
    traffic->CountReply(false, 0);
    if (is_own) traffic->CountEnd(false, 0);
    std::move(done)(std::move(status), nullptr);
    return internal::Abandon();
  }
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
