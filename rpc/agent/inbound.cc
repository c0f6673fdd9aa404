#include "weft/rpc/agent/inbound.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/failpoint.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/rpc/session/outcome.h"

namespace weft::rpc {
Lineage LineageOf(const Request& request, CancelToken cancel,
                  const telemetry::Span* span) {
  Lineage lineage;
  lineage.deadline = request.deadline;
  lineage.depth = request.depth;
  lineage.chain = request.chain;
  lineage.cancel = std::move(cancel);
  lineage.trace = span == nullptr ? request.trace : span->context();
  return lineage;
}

absl::Status FunctionFailure(absl::Status status, const std::string& self,
                             const std::string& function, Phase phase) {
  if (status.ok()) return status;
  const absl::Status named = WithOutcomeKnown(
      internal::NameFailure(std::move(status), self, function, phase));
  if (phase < Phase::kDecode) return named;
  return Reworded(named, SaidBy(function, named.message()));
}

void DispatchWhenSettled(std::shared_ptr<Dispatcher> dispatcher,
                         const Function& function,
                         std::shared_ptr<ServedCall> call,
                         const ReceivedAttachments& attachments,
                         std::function<void()> settled) {
  // The one that takes the call out ends it or runs it; none holds it after.
  struct Waiting {
    std::shared_ptr<ServedCall> Take() {
      MutexLock lock(mu);
      return std::move(call);
    }
    Mutex mu;
    std::shared_ptr<ServedCall> call ABSL_GUARDED_BY(mu);
    CancelToken::Registration registration;
  };
  auto waiting = std::make_shared<Waiting>();
  const CancelToken cancel = call->cancel();
  {
    MutexLock lock(waiting->mu);
    waiting->call = std::move(call);
  }
  waiting->registration = cancel.OnCancel(
      [weak = std::weak_ptr<Waiting>(waiting)](const absl::Status& why) {
        const auto waiting = weak.lock();
        if (waiting == nullptr) return;
        if (const auto call = waiting->Take()) call->Finish(why);
      });
  attachments.WhenSettled(
      [dispatcher = std::move(dispatcher), &function, waiting,
       settled = std::move(settled)](const absl::Status& status) {
        settled();
        auto call = waiting->Take();
        if (call == nullptr) return;
        if (!status.ok()) return call->Finish(status);
        dispatcher->Dispatch(function, std::move(call));
      });
}

// Keeps the Inbound alive while its handler runs.
class Inbound::Call final : public ServedCall {
 public:
  // The dispatcher got CallBegan.
  Call(std::shared_ptr<Inbound> inbound, const Function& function,
       const Request& request,
       std::shared_ptr<const ReceivedAttachments> attachments,
       Lineage&& inherited, CancelSource cancel)
      : ServedCall(
            inbound->dispatcher_, inbound->dispatcher_->agent(), inbound->peer_,
            std::move(inherited),
            Incoming{request.id,
                     Received{request.body, request.is_private,
                              CodecContext{CodecContext::Message::kRequest,
                                           inbound->dispatcher_->agent(),
                                           inbound->peer_.key, request.id,
                                           inbound->dispatcher_->devices(),
                                           inbound->peer_.name},
                              std::move(attachments)},
                     request.keeps_result, nullptr, request.ordered_queue,
                     function.name, request.began, /*has_attachments=*/true}),
        inbound_(std::move(inbound)),
        function_(function),
        cancel_(std::move(cancel)) {}

  ~Call() override {
    if (!finished_.load()) {
      Finish(absl::CancelledError(
          "the worker dropped the call: it is shutting down"));
    }
  }

  bool is_part_of_stream() const { return function_.is_part_of_stream; }
  void Cancel(absl::Status why) { cancel_.Cancel(std::move(why)); }

  void Finish(absl::StatusOr<Slices> result) override {
    if (finished_.exchange(true)) return;
    EndSpan();
    auto reply = std::make_shared<Reply>();
    reply->id = id();
    if (result.ok()) {
      const absl::Status frozen = FreezeInto(reply.get());
      if (!frozen.ok()) result = frozen;
    }
    reply->status =
        FunctionFailure(result.status(), inbound_->dispatcher_->self(),
                        function_.name, phase());
    if (result.ok()) reply->body = *std::move(result);
    inbound_->dispatcher_->histograms().Served(
        &function_, began(), inbound_->transport_.clock().Now());
    inbound_->Finish(function_.name, std::move(reply));
  }

 private:
  // Sets the attachments that the result has staged.
  absl::Status FreezeInto(Reply* reply) {
    auto staged = TakeStaged();
    if (staged == nullptr) return absl::OkStatus();
    absl::StatusOr<FrozenAttachments> frozen = staged->Freeze();
    if (!frozen.ok()) return internal::EncodeError(frozen.status());
    reply->attachments = *std::move(frozen);
    reply->staged = std::move(staged);
    return absl::OkStatus();
  }

  const std::shared_ptr<Inbound> inbound_;
  const Function& function_;
  CancelSource cancel_;
  std::atomic<bool> finished_{false};
};

Inbound::Inbound(Worker peer, uint64_t number, uint64_t generation,
                 Limits limits, transport::Transport& transport,
                 std::shared_ptr<Dispatcher> dispatcher, Traffic& traffic)
    : peer_(std::move(peer)),
      number_(number),
      generation_(generation),
      transport_(transport),
      dispatcher_(std::move(dispatcher)),
      traffic_(traffic),
      session_(limits, peer_.key.id == kClientId ? kClientPatience
                                                 : absl::InfiniteDuration()),
      timer_(transport) {}

void Inbound::Attach(Link& link) {
  auto old = link.shared_from_this();
  bool gone = false;
  Due due;
  {
    MutexLock lock(mu_);
    gone = gone_;
    if (!gone) old.swap(link_);
    // Together with the link, so that the end of one connection is not taken
    // for the end of the next.
    if (!gone) due = TellLocked(CalleeSession::Connected{});
  }
  Do(due);
  if (!gone) dispatcher_->recorder().Record("rpc.caller", peer_.name);
  if (old == nullptr) return;
  old->End(gone ? absl::UnavailableError("the session has ended")
                : absl::AbortedError("replaced by a newer connection"));
}

absl::Status Inbound::OnFrame(Link& link, Frame&& frame) {
  if (auto* request = std::get_if<RequestFrame>(&frame)) {
    Tell(CalleeSession::Arrived{std::move(request->request)}, &link);
    return absl::OkStatus();
  }
  if (auto* ack = std::get_if<Ack>(&frame)) {
    Tell(CalleeSession::Acked{std::move(*ack)}, &link);
    return absl::OkStatus();
  }
  if (auto* cancel = std::get_if<Cancel>(&frame)) {
    Tell(CalleeSession::GivenUp{std::move(*cancel)}, &link);
    return absl::OkStatus();
  }
  {
    MutexLock lock(mu_);
    if (link_.get() != &link) return absl::OkStatus();  // replaced
  }
  return absl::InvalidArgumentError(
      absl::StrCat(peer_.name, " sent what only a callee sends"));
}

void Inbound::OnLinkClosed(Link& link) {
  Due due;
  {
    MutexLock lock(mu_);
    if (link_.get() != &link) return;
    link_ = nullptr;
    dispatcher_->recorder().Record("rpc.caller_lost", peer_.name,
                                   session_.running_calls());
    due = TellLocked(CalleeSession::Event(CalleeSession::Disconnected{}));
  }
  Do(due);
}

void Inbound::EndWhenAcknowledged() {
  Tell(CalleeSession::Event(CalleeSession::Ending{}));
}

void Inbound::PeerGone(const absl::Status& why) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mu_);
    link = std::exchange(link_, nullptr);
    gone_ = true;
  }
  timer_.Stop();
  Tell(CalleeSession::PeerGone{why});
  if (link != nullptr) link->End(why);
}

size_t Inbound::unacknowledged() {
  MutexLock lock(mu_);
  return session_.unacknowledged();
}

bool Inbound::has_open_attachments() {
  MutexLock lock(mu_);
  return session_.has_open_attachments();
}

bool Inbound::is_idle() {
  MutexLock lock(mu_);
  return link_ == nullptr && session_.running_calls() == 0;
}

void Inbound::ForEachCall(absl::FunctionRef<void(Call&)> fn) {
  std::vector<std::shared_ptr<ServedCall>> calls;
  {
    MutexLock lock(mu_);
    for (const auto& [id, running] : running_) {
      // Null of one that is about to take itself out.
      auto call = running->weak_from_this().lock();
      if (call != nullptr) calls.push_back(std::move(call));
    }
  }
  for (const auto& call : calls) fn(static_cast<Call&>(*call));
}

void Inbound::AddPending(std::vector<PendingCall>* calls) {
  const Instant now = transport_.clock().Now();
  ForEachCall([&](Call& live) {
    PendingCall& call = calls->emplace_back();
    call.peer = peer_.name;
    call.is_served = true;
    call.id = live.id();
    call.function = std::string(live.function());
    call.phase = live.phase();
    call.age = now - live.began();
    call.remaining = live.deadline() - now;
  });
}

void Inbound::AddOpen(std::vector<std::string>* open) {
  size_t calls = 0;
  {
    MutexLock lock(mu_);
    calls = session_.running_calls();
  }
  if (calls == 0) return;
  size_t parts_of_streams = 0;
  ForEachCall([&](Call& call) {
    if (!call.is_part_of_stream() || calls == 0) return;
    --calls;
    ++parts_of_streams;
  });
  AddOpenCalls(calls, parts_of_streams, "of", peer_.name, open);
}

void Inbound::ForEachWithoutThread(absl::FunctionRef<void(ServedCall&)> fn) {
  ForEachCall([fn](Call& call) {
    if (call.awaits_thread()) fn(call);
  });
}

void Inbound::AddActive(ActiveCalls* active) {
  {
    MutexLock lock(mu_);
    active->served += session_.running_calls();
  }
  ForEachCall([&](Call& call) { active->served_async += call.is_async(); });
}

void Inbound::Tell(const CalleeSession::Event& event, const Link* from) {
  Due due;
  {
    MutexLock lock(mu_);
    if (from != nullptr && link_.get() != from) return;  // replaced
    if (const auto* finished = std::get_if<CalleeSession::Finished>(&event)) {
      const auto it = running_.find(finished->reply->id);
      if (it != running_.end()) running_.erase(it);
    }
    due = TellLocked(event);
  }
  Do(due);
}

void Inbound::Do(const Due& due) {
  if (due.has_actions) {
    actions_.Do(mu_, [this](CalleeSession::Action& action) { Run(action); });
  }
  if (due.link == nullptr) return;
  if (!due.must_close) return due.link->Drain();
  due.link->End(absl::UnavailableError("the worker is shutting down"),
                /*after_writing=*/true);
}

Inbound::Due Inbound::TellLocked(const CalleeSession::Event& event) {
  const bool needs_time =
      std::holds_alternative<CalleeSession::Tick>(event) ||
      std::holds_alternative<CalleeSession::Connected>(event) ||
      std::holds_alternative<CalleeSession::Disconnected>(event);
  const Instant now = needs_time ? transport_.clock().Now() : Instant();
  if (SessionHook* const hook = dispatcher_->hook()) {
    hook->OnEvent(session_, event, now, &emitted_);
  } else {
    session_.OnEvent(event, now, &emitted_);
  }
  bool must_drain = false;
  Due due;
  for (CalleeSession::Action& action : emitted_) {
    if (auto* send = std::get_if<CalleeSession::SendReply>(&action)) {
      // Kept, to be noted without the lock.
      if (send->reply->refusal == Refusal::kOverLimit) actions_.Add(mu_, *send);
      if (link_ == nullptr) continue;
      if (!send->again) {
        const size_t bytes = TotalSize(send->reply->body);
        traffic_.CountSent(bytes);
        dispatcher_->histograms().ReplySent(bytes);
      }
      must_drain |= link_->Append(std::move(send->reply));
    } else if (std::holds_alternative<CalleeSession::CloseConnection>(action)) {
      due.must_close = true;
    } else if (auto* closed = std::get_if<CalleeSession::SendClosed>(&action)) {
      must_drain |=
          link_ != nullptr && link_->Append(std::move(closed->closed));
    } else if (auto* run = std::get_if<CalleeSession::Run>(&action)) {
      actions_.Add(mu_, std::move(*run));  // moved by itself, it takes less
    } else {
      actions_.Add(mu_, std::move(action));
    }
  }
  emitted_.clear();
  if (link_ != nullptr && link_->is_heavy() &&
      (std::holds_alternative<CalleeSession::Acked>(event) ||
       std::holds_alternative<CalleeSession::GivenUp>(event))) {
    // The quota counts a reply until it is closed: no further may it wait.
    must_drain |=
        link_->Sweep([this](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return session_.StateOf(id) != CalleeSession::State::kAnswered;
        });
  }
  if (must_drain || due.must_close) due.link = link_;
  due.has_actions = actions_.Claim(mu_);
  return due;
}

void Inbound::Run(CalleeSession::Action& action) {
  if (auto* run = std::get_if<CalleeSession::Run>(&action)) {
    return Serve(std::move(run->request));
  }
  if (auto* cancel = std::get_if<CalleeSession::Cancel>(&action)) {
    std::shared_ptr<ServedCall> call;
    {
      MutexLock lock(mu_);
      const auto it = running_.find(cancel->id);
      if (it != running_.end()) call = it->second->weak_from_this().lock();
    }
    if (call == nullptr) return;
    return static_cast<Call&>(*call).Cancel(std::move(cancel->why));
  }
  if (const auto* wake = std::get_if<CalleeSession::WakeAt>(&action)) {
    return SetTimer(wake->when);
  }
  if (const auto* tell = std::get_if<CalleeSession::TellAttachments>(&action)) {
    return tell->staged->Tell(tell->id, tell->outcome);
  }
  if (const auto* refused = std::get_if<CalleeSession::SendReply>(&action)) {
    return dispatcher_->OverLimit(peer_, refused->reply->status);
  }
  if (std::holds_alternative<CalleeSession::Vanished>(action)) {
    return dispatcher_->ClientVanished(*this);
  }
  const absl::Status& why = std::get<CalleeSession::Violation>(action).why;
  dispatcher_->OverLimit(peer_, why);
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mu_);
    link = link_;
  }
  if (link != nullptr) link->End(why);
}

void Inbound::Serve(RequestPtr request) {
  const size_t bytes = TotalSize(request->body);
  traffic_.CountServed(bytes);
  dispatcher_->histograms().RequestReceived(bytes);
  dispatcher_->recorder().RecordFor("rpc.serve", peer_.name, request->function,
                                    request->id);
  Refusal refusal = Refusal::kNone;
  absl::StatusOr<const Function*> function =
      dispatcher_->Find(*request, &refusal);
  if (!function.ok()) return Refuse(*request, function.status(), refusal);
  const auto attachments = dispatcher_->receivers().Take(
      {CodecContext::Message::kRequest, dispatcher_->agent(), peer_.key,
       request->id},
      request->attachments);
  if (!attachments.ok()) {
    return Refuse(*request, attachments.status(), Refusal::kAttachments);
  }
  WEFT_FAILPOINT("rpc/serve").IgnoreError();  // found, and not counted yet
  CancelSource cancel;
  auto span = dispatcher_->StartSpan(peer_, *request);
  dispatcher_->CallBegan();
  auto call = std::make_shared<Call>(
      shared_from_this(), **function, *request, *attachments,
      LineageOf(*request, cancel.token(), span.get()), std::move(cancel));
  call->SetSpan(std::move(span));
  {
    MutexLock lock(mu_);
    running_.try_emplace(request->id, call.get());
  }
  if (*attachments == nullptr) {
    return dispatcher_->Dispatch(**function, std::move(call));
  }
  DispatchWhenSettled(dispatcher_, **function, std::move(call), **attachments,
                      // Before the reply, which must not leave earlier.
                      [self = shared_from_this(), id = request->id] {
                        self->Tell(CalleeSession::Settled{id});
                      });
}

void Inbound::Refuse(const Request& request, absl::Status why,
                     Refusal refusal) {
  auto reply = std::make_shared<Reply>();
  reply->id = request.id;
  reply->status = std::move(why);
  // For any reason, its attachments were not taken, and their sender must be
  // notified.
  if (refusal == Refusal::kNone && !request.attachments.empty()) {
    refusal = Refusal::kAttachments;
  }
  reply->refusal = refusal;
  Finish(request.function, std::move(reply));
}

void Inbound::Finish(absl::string_view function, ReplyPtr reply) {
  dispatcher_->recorder().RecordFor("rpc.reply", peer_.name, function,
                                    reply->id, reply->status.raw_code());
  traffic_.CountReply(reply->status.ok());
  Tell(CalleeSession::Finished{std::move(reply)});
}

void Inbound::SetTimer(Instant when) {
  timer_.Set(when, [weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      self->Tell(CalleeSession::Event(CalleeSession::Tick{}));
    }
  });
}

}  // namespace weft::rpc
