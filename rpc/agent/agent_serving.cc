#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/agent/agent_state.h"

namespace weft::rpc {
absl::StatusOr<const Function*> AgentState::Find(const Request& request,
                                                 Refusal* refusal) const {
  if (refuses_) {
    MutexLock lock(mu_);
    return ended_;
  }
  return access_.Find(request, refusal);
}

bool AgentState::MayCall(const Function& function, const Worker& caller) const {
  return access_.MayCall(function, caller);
}

void AgentState::Dispatch(const Function& function,
                          std::shared_ptr<ServedCall> call) {
  // It counts as a handler by now: either Stop waits for it, or this sees that
  // Stop does not. Its session has ended then, so the drop is not reported.
  if (has_stopped_.load()) return;
  absl::Status allowed = access_.Check(function, call->peer());
  if (!allowed.ok()) return call->Finish(std::move(allowed));
  const uint64_t queue = call->ordered_queue();
  if (queue == 0) return Run(function, std::move(call));
  const WorkerKey caller = call->peer().key;
  // The call, and its turn within, keeps this state.
  queues_.Enter(caller, queue,
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
    return BatcherOf(function).Add(std::move(call));
  }
  if (function.runs_on == RunsOn::kTransport) {
    InlineScope scope;
    const auto running = std::move(call);  // its end is in the scope
    return function.serve(*running);
  }
  threads_->Run(function, std::move(call));
}

void AgentState::ForEachWithoutThread(absl::FunctionRef<void(ServedCall&)> fn) {
  for (const auto& inbound : Inbounds()) inbound->ForEachWithoutThread(fn);
  sessionless_calls_.ForEach([fn](SessionlessCall& call) {
    if (call.awaits_thread()) fn(call);
  });
}

internal::Caller::Abandon AgentState::ServeSessionless(
    Worker caller, RequestPtr request, CancelToken gone,
    internal::Caller::Done done) {
  const bool is_own = caller == worker();
  Traffic& traffic = shared_->traffic.Of(caller.name);
  if (is_own) traffic.CountCall();
  const size_t bytes = TotalSize(request->body);
  traffic.CountServed(bytes);
  shared_->histograms.RequestReceived(bytes);
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
  SessionlessCall::Options options;
  if (status.ok()) {
    const CodecContext context{CodecContext::Message::kRequest, agent(),
                               caller.key, request->id};
    auto taken = receivers().Take(context, request->attachments);
    status = taken.status();
    if (taken.ok()) {
      options.attachments = *std::move(taken);
    } else {
      CallEnded();
    }
  }
  if (!status.ok()) {
    if (request->staged != nullptr) {
      request->staged->Tell(request->id, AttachmentOutcome::kRefused);
    }
    traffic.CountReply(false);
    if (is_own) traffic.CountEnd(false, 0);
    std::move(done)(std::move(status), nullptr);
    return internal::Abandon();
  }
  if (is_own) traffic.CountSent(TotalSize(request->body));
  options.dispatcher = shared_from_this();
  options.transport = &transport();
  options.calls = &sessionless_calls_;
  options.caller = std::move(caller);
  options.is_own = is_own;
  options.function = *function;
  options.request = request;
  options.traffic = &traffic;
  options.done = std::move(done);
  const auto attachments = options.attachments;
  const auto call = SessionlessCall::Create(std::move(options));
  call->Follow(ending_.token(), gone);
  if (attachments == nullptr) {
    Dispatch(**function, call);
  } else {
    DispatchWhenSettled(shared_from_this(), **function, call, *attachments,
                        [staged = request->staged, id = request->id] {
                          staged->Tell(id, AttachmentOutcome::kDelivered);
                        });
  }
  return internal::Abandon(call, 0);
}

Batcher& AgentState::BatcherOf(const Function& function) {
  MutexLock lock(mu_);
  auto& batcher = batchers_[&function];
  if (batcher == nullptr) {
    batcher =
        std::make_shared<Batcher>(function, transport(), threads_->executor());
  }
  return *batcher;
}

void AgentState::OverLimit(const Worker& peer, const absl::Status& why) {
  refusal_log_.Refused("rpc_limits", peer.name, "to call", why.message());
}

void AgentState::CallBegan() { threads_->CallBegan(); }

void AgentState::CallEnded() { threads_->CallEnded(); }

}  // namespace weft::rpc
