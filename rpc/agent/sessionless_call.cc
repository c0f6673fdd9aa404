#include "weft/rpc/agent/sessionless_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"

namespace weft::rpc {
namespace {

Bytes Copy(const Slices& slices) {
  std::string bytes;
  for (const Bytes& slice : slices) absl::StrAppend(&bytes, slice.view());
  return Bytes::Own(std::move(bytes));
}

}  // namespace

uint64_t SessionlessCalls::Add(SessionlessCall* call) {
  MutexLock lock(mu_);
  calls_.emplace_hint(calls_.end(), ++last_, call);
  return last_;
}

void SessionlessCalls::Remove(uint64_t number) {
  MutexLock lock(mu_);
  calls_.erase(number);
}

void SessionlessCalls::ForEach(
    absl::FunctionRef<void(SessionlessCall&)> fn) const {
  std::vector<std::shared_ptr<ServedCall>> all;
  {
    MutexLock lock(mu_);
    for (const auto& [number, call] : calls_) {
      // Null of one that is about to remove itself.
      auto live = call->weak_from_this().lock();
      if (live != nullptr) all.push_back(std::move(live));
    }
  }
  for (const auto& call : all) fn(static_cast<SessionlessCall&>(*call));
}

void SessionlessCalls::AddPending(std::vector<PendingCall>* calls) {
  ForEach([calls](SessionlessCall& call) { call.AddPending(calls); });
}

void SessionlessCalls::AddActive(ActiveCalls* active) {
  ForEach([active](SessionlessCall& call) {
    active->made += call.is_awaited();
    active->served += call.is_running();
    active->served_async += call.is_running() && call.is_async();
  });
}

std::shared_ptr<SessionlessCall> SessionlessCall::Create(Options options) {
  CancelSource cancel;
  auto span = options.dispatcher->StartSpan(options.caller, *options.request);
  Lineage inherited = LineageOf(*options.request, cancel.token(), span.get());
  auto call = std::make_shared<SessionlessCall>(
      std::move(options), std::move(inherited), std::move(cancel));
  call->SetSpan(std::move(span));
  call->number_ = call->calls_.Add(call.get());
  return call;
}

SessionlessCall::SessionlessCall(Options options, Lineage inherited,
                                 CancelSource cancel)
    : ServedCall(
          options.dispatcher, options.dispatcher->agent(), caller_,
          std::move(inherited),
          Incoming{options.request->id,
                   Received{options.request->body, /*is_private=*/false,
                            CodecContext{
                                CodecContext::Message::kRequest,
                                options.dispatcher->agent(), options.caller.key,
                                options.is_own ? options.request->id : 0,
                                options.is_own ? options.dispatcher->devices()
                                               : nullptr,
                                options.dispatcher->self()},
                            std::move(options.attachments)},
                   options.request->keeps_result, options.request->alias,
                   options.request->ordered_queue, options.function->name,
                   options.transport->clock().Now(),
                   /*has_attachments=*/options.is_own}),
      dispatcher_(std::move(options.dispatcher)),
      transport_(*options.transport),
      calls_(*options.calls),
      caller_(std::move(options.caller)),
      is_own_(options.is_own),
      function_(*options.function),
      for_peer_(options.request->for_peer),
      for_id_(options.request->for_id),
      traffic_(*options.traffic),
      cancel_(std::move(cancel)),
      done_(std::move(options.done)) {}

SessionlessCall::~SessionlessCall() {
  calls_.Remove(number_);
  Finish(absl::CancelledError("the call was dropped unserved"));
}

void SessionlessCall::Follow(const CancelToken& agent,
                             const CancelToken& caller) {
  const auto abandon = [this,
                        weak = weak_from_this()](const absl::Status& why) {
    if (const auto self = weak.lock()) AbandonCall(0, why).IgnoreError();
  };
  if (!deadline().is_infinite()) {
    timer_ = transport_.RunAt(deadline(), [this, weak = weak_from_this()] {
      if (const auto self = weak.lock())
        AbandonCall(0, Expired()).IgnoreError();
    });
  }
  with_agent_ = agent.OnCancel(abandon);
  with_caller_ = caller.OnCancel(abandon);
}

// The function is notified before the caller, which may then release what the
// call made: see ServedCall::Keep.
absl::Status SessionlessCall::AbandonCall(uint64_t, const absl::Status& why) {
  if (ended_.exchange(true)) return absl::OkStatus();
  const absl::Status end =
      internal::MarkFailure(WithOutcomeUnknown(why), phase());
  cancel_.Cancel(why);
  Tell(end, nullptr);
  return end;
}

void SessionlessCall::Finish(absl::StatusOr<Slices> result) {
  if (finished_.exchange(true)) return;
  EndSpan();
  auto reply = std::make_shared<Reply>();
  reply->id = id();
  auto staged = TakeStaged();
  if (result.ok() && staged != nullptr) {
    auto frozen = staged->Freeze();
    if (frozen.ok()) {
      reply->attachments = *std::move(frozen);
    } else {
      result = internal::EncodeError(frozen.status());
    }
  }
  if (!result.ok() && staged != nullptr) {
    staged->Tell(id(), AttachmentOutcome::kRefused);  // before the end is known
  }
  reply->status = FunctionFailure(result.status(), dispatcher_->self(),
                                  function_.name, phase());
  if (result.ok()) reply->body = *std::move(result);
  traffic_.CountReply(reply->status.ok());
  dispatcher_->histograms().Served(&function_, began(),
                                   transport_.clock().Now());
  if (!reply->attachments.empty() && !ended_) {
    return FinishWhenSettled(std::move(reply), std::move(staged));
  }
  End(std::move(reply));
}

void SessionlessCall::FinishWhenSettled(
    std::shared_ptr<Reply> reply, std::shared_ptr<StagedAttachments> staged) {
  const CodecContext context{CodecContext::Message::kReply,
                             dispatcher_->agent(), peer().key, id()};
  auto taken = dispatcher_->receivers().Take(context, reply->attachments);
  if (!taken.ok()) {
    staged->Tell(id(), AttachmentOutcome::kRefused);
    reply->status = internal::ResultError(dispatcher_->self(), function_.name,
                                          taken.status());
    return End(std::move(reply));
  }
  reply->received = *taken;
  reply->from = peer().key;
  (*taken)->WhenSettled([this, self = shared_from_this(), reply,
                         staged](const absl::Status& settled) {
    staged->Tell(id(), AttachmentOutcome::kDelivered);
    if (!settled.ok()) {
      reply->status =
          internal::ResultError(dispatcher_->self(), function_.name, settled);
    }
    End(reply);
  });
}

void SessionlessCall::End(ReplyPtr reply) {
  if (ended_.exchange(true)) return;
  if (transport_.clock().Now() < deadline()) return Tell(reply->status, reply);
  // Its timer is late. The function may have stopped at the deadline and
  // returned what it had: that is no result.
  Tell(internal::MarkFailure(WithOutcomeUnknown(Expired()), phase()), nullptr);
}

absl::Status SessionlessCall::Expired() const {
  return absl::DeadlineExceededError(absl::StrCat(
      function_.name, ": the deadline passed in phase ", NameOf(phase())));
}

void SessionlessCall::Tell(absl::Status status, ReplyPtr reply) {
  transport_.CancelTimer(timer_);
  const size_t bytes = reply == nullptr ? 0 : TotalSize(reply->body);
  traffic_.CountSent(bytes);
  dispatcher_->histograms().ReplySent(bytes);
  if (is_own_) traffic_.CountEnd(status.ok(), bytes);
  std::move(done_)(std::move(status), std::move(reply));
}

void SessionlessCall::AddPending(std::vector<PendingCall>* calls) const {
  const Instant now = transport_.clock().Now();
  PendingCall call;
  call.peer = peer().name;
  call.id = id() == 0 ? number_ : id();  // a client's has none
  call.function = function_.name;
  call.phase = phase();
  call.age = now - began();
  call.remaining = deadline() - now;
  if (is_running()) {
    call.is_served = true;
    calls->push_back(call);
  }
  if (is_awaited()) {
    call.is_served = false;
    call.for_peer = for_peer_;
    call.for_id = for_id_;
    calls->push_back(call);
  }
}

internal::Caller::Abandon SelfCaller::Start(std::shared_ptr<Request> request,
                                            Done done) {
  request->id = ++last_id_;
  // Elements that are only lent are read later, by the handler.
  if (!request->borrowed.empty()) request->body = {Copy(request->body)};
  if (const auto server = server_.lock()) {
    return server->ServeSessionless(self_, std::move(request), CancelToken(),
                                    std::move(done));
  }
  if (request->staged != nullptr) {
    request->staged->Tell(request->id, AttachmentOutcome::kRefused);
  }
  std::move(done)(absl::UnavailableError("the agent has ended"), nullptr);
  return Abandon();
}

}  // namespace weft::rpc
