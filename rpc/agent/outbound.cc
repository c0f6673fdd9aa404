#include "weft/rpc/agent/outbound.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/connection/purpose.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/failure.h"

namespace weft::rpc {

Outbound::Outbound(Options options)
    : options_(std::move(options)),
      traffic_(options_.shared->traffic.Of(options_.peer.name)),
      clock_(options_.transport->clock()),
      session_(options_.peer.name),
      timer_(*options_.transport) {}

Outbound::Abandon Outbound::Start(std::shared_ptr<Request> request, Done done) {
  uint64_t id = 0;
  bool connected = false;
  Due due;
  traffic_.CountCall();
  {
    MutexLock lock(mu_);
    GiveToSession(CallerSession::Start{request});
    id = request->id;
    options_.recorder->RecordFor("rpc.call", options_.peer.name,
                                 request->function, id);
    done_.try_emplace(id, std::move(done));  // what was emitted may end it
    TakeEmitted();
    due = TakeDue();
    connected = session_.is_connected();
  }
  Do(due);
  if (!connected) ConnectIfNeeded();
  return Abandon(weak_from_this(), id);
}

absl::Status Outbound::AbandonCall(uint64_t id, const absl::Status& why) {
  absl::Status end;
  Due due;
  {
    MutexLock lock(mu_);
    GiveToSession(CallerSession::Abandon{id, why});
    for (const CallerSession::Action& action : emitted_) {
      const auto* complete = std::get_if<CallerSession::Complete>(&action);
      if (complete != nullptr && complete->id == id) end = complete->status;
    }
    TakeEmitted();
    due = TakeDue();
  }
  Do(due);
  return end;
}

void Outbound::PeerGone(const absl::Status& why) {
  std::shared_ptr<Link> link;
  ConnectQueue::Place place;
  Due due;
  {
    MutexLock lock(mu_);
    place = std::move(place_);
    options_.recorder->RecordFor("rpc.gone", options_.peer.name, why.message(),
                                 session_.pending_calls());
    TellLocked(CallerSession::PeerGone{why});
    due = TakeDue();
    link = std::move(link_);
    connecting_ = false;
  }
  Do(due);
  if (link != nullptr) link->End(why);
}

void Outbound::EndWhenIdle(const absl::Status& why) {
  Tell(CallerSession::Ending{why});
}

void Outbound::Shutdown(const absl::Status& why) {
  {
    MutexLock lock(mu_);
    shut_down_ = true;
  }
  timer_.Stop();
  PeerGone(why);
}

void Outbound::AddActive(ActiveCalls* active) {
  MutexLock lock(mu_);
  active->made += session_.pending_calls() + session_.settling_calls();
}

void Outbound::AddOpen(std::vector<std::string>* open) {
  size_t parts_of_streams = 0;
  size_t calls = 0;
  {
    MutexLock lock(mu_);
    session_.ForEachPending([&](const Request& request, bool) {
      ++(request.is_part_of_stream ? parts_of_streams : calls);
    });
    calls += session_.settling_calls();
  }
  AddOpenCalls(calls, parts_of_streams, "to", options_.peer.name, open);
}

void Outbound::AddPending(std::vector<PendingCall>* calls) {
  MutexLock lock(mu_);
  const Instant now = clock_.Now();
  const Phase out = session_.is_connected() ? Phase::kHandler : Phase::kWire;
  session_.ForEachPending([&](const Request& request, bool sent) {
    PendingCall& call = calls->emplace_back();
    call.peer = options_.peer.name;
    call.id = request.id;
    call.function = std::string(request.function);
    call.phase = sent ? out : Phase::kQueue;
    call.age = now - request.began;
    call.remaining = request.deadline - now;
    call.for_peer = request.for_peer;
    call.for_id = request.for_id;
  });
}

// ------------------------------------------------------------------- the core

void Outbound::Tell(const CallerSession::Event& event) {
  Due due;
  {
    MutexLock lock(mu_);
    TellLocked(event);
    due = TakeDue();
  }
  Do(due);
}

void Outbound::TellLocked(const CallerSession::Event& event) {
  GiveToSession(event);
  TakeEmitted();
}

void Outbound::GiveToSession(const CallerSession::Event& event) {
  if (options_.hook != nullptr) {
    options_.hook->OnEvent(session_, event, clock_.Now(), &emitted_);
  } else {
    session_.OnEvent(event, clock_.Now(), &emitted_);
  }
}

void Outbound::TakeEmitted() {
  bool must_sweep = false;
  for (CallerSession::Action& action : emitted_) {
    if (auto* send = std::get_if<CallerSession::SendRequest>(&action)) {
      if (!send->again) {
        const size_t bytes = TotalSize(send->request->body);
        traffic_.CountSent(bytes);
        options_.shared->histograms.RequestSent(bytes);
      }
      must_drain_ |= link_->Append(std::move(send->request));
    } else if (auto* ack = std::get_if<CallerSession::SendAck>(&action)) {
      must_drain_ |= link_->Append(std::move(ack->ack));
    } else if (auto* cancel = std::get_if<CallerSession::SendCancel>(&action)) {
      must_drain_ |= link_->Append(std::move(cancel->cancel));
    } else if (auto* end = std::get_if<CallerSession::Complete>(&action)) {
      const auto it = done_.find(end->id);
      if (it == done_.end()) continue;
      must_sweep |= end->reply == nullptr && link_ != nullptr &&
                    (end->request->bytes() >= int64_t{Link::kInChunks} ||
                     link_->is_heavy());
      tasks_.Add(mu_, Ended{std::move(it->second), std::move(end->status),
                            std::move(end->reply), std::move(end->request)});
      done_.erase(it);
    } else if (std::holds_alternative<CallerSession::CloseConnection>(action)) {
      must_close_ = true;
      connecting_ = false;
    } else if (auto* tell =
                   std::get_if<CallerSession::TellAttachments>(&action)) {
      tasks_.Add(mu_, std::move(*tell));
    } else {
      tasks_.Add(mu_, std::get<CallerSession::WakeAt>(action));
    }
  }
  emitted_.clear();
  if (must_sweep) {
    // Credit is free again for what was given up. The callee takes in no more
    // than that: what is announced to it must not be more either.
    must_drain_ |=
        link_->Sweep([this](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return session_.StateOf(id) != CallerSession::State::kSent;
        });
  }
}

Outbound::Due Outbound::TakeDue() {
  Due due;
  due.has_tasks = tasks_.Claim(mu_);
  due.must_close = std::exchange(must_close_, false);
  if (std::exchange(must_drain_, false) || due.must_close) due.link = link_;
  due.must_watch_credit = session_.may_wait_for_credit() && MustWatchCredit();
  return due;
}

void Outbound::Do(const Due& due) {
  if (due.has_tasks) {
    tasks_.Do(mu_, [this](Task& task) {
      if (const auto* wake = std::get_if<CallerSession::WakeAt>(&task)) {
        SetTimer(wake->when);
      } else if (const auto* tell =
                     std::get_if<CallerSession::TellAttachments>(&task)) {
        tell->staged->Tell(tell->id, tell->outcome);
      } else {
        TellDone(std::get<Ended>(task));
      }
    });
  }
  if (due.link != nullptr && due.must_close) {
    due.link->End(absl::CancelledError("the caller has shut down"),
                  /*after_writing=*/true);
  } else if (due.link != nullptr) {
    due.link->Drain();
  }
  if (due.must_watch_credit) WatchCreditLater();
}

// ----------------------------------------------------------- lack of credit

bool Outbound::MustWatchCredit() {
  if (watches_credit_ || shut_down_ || !session_.may_wait_for_credit()) {
    return false;
  }
  watched_call_ = session_.credit().first_waiting;
  return watches_credit_ = watched_call_ != 0;
}

void Outbound::WatchCreditLater() {
  options_.transport->RunAt(clock_.Now() + kWarnAfter,
                            [weak = weak_from_this()] {
                              if (auto self = weak.lock()) self->CheckCredit();
                            });
}

void Outbound::CheckCredit() {
  CallerSession::Credit credit;
  bool must_warn = false;
  bool must_watch = false;
  {
    MutexLock lock(mu_);
    watches_credit_ = false;
    credit = session_.credit();
    const Instant now = clock_.Now();
    if (watched_call_ != 0 && credit.first_waiting == watched_call_ &&
        now >= may_warn_at_) {
      must_warn = true;
      may_warn_at_ = now + kWarnAgain;
      credit.waiting = session_.CountWaiting();
    }
    must_watch = MustWatchCredit();
  }
  if (must_watch) WatchCreditLater();
  if (!must_warn) return;
  WEFT_LOG(*options_.logger, Warning, "calls to ")
      << options_.peer.name << " have waited for credit for "
      << absl::FormatDuration(kWarnAfter) << ": " << credit.waiting << " wait; "
      << credit.calls << " calls of " << credit.limits.calls << " are out, "
      << credit.streams << " of them streams of "
      << credit.limits.most_streams() << ", with " << credit.bytes
      << " bytes of " << credit.limits.bytes
      << "; if those that are out wait for those that wait, only their "
         "deadlines end them: make the calls that end others from a function, "
         "or raise the limit at "
      << options_.peer.name
      << (credit.bytes >= credit.limits.bytes / 2
              ? " by --limits=rpc_bytes=VALUE"
              : " by --limits=rpc_calls=VALUE");
}

void Outbound::TellDone(Ended& ended) {
  const size_t bytes =
      ended.reply == nullptr ? 0 : TotalSize(ended.reply->body);
  traffic_.CountEnd(ended.status.ok(), bytes);
  options_.shared->histograms.CallEnded(ended.request->began, clock_.Now());
  if (ended.reply != nullptr) options_.shared->histograms.ReplyReceived(bytes);
  options_.recorder->RecordFor("rpc.end", options_.peer.name,
                               ended.request->function, ended.request->id,
                               ended.status.raw_code());
  if (ended.reply != nullptr && !ended.reply->attachments.empty()) {
    return TellDoneWhenSettled(ended);
  }
  ended.request = nullptr;  // the memory of its arguments may be needed
  std::move(ended.done)(std::move(ended.status), std::move(ended.reply));
}

void Outbound::TellDoneWhenSettled(Ended& ended) {
  const CodecContext context{CodecContext::Message::kReply, options_.agent,
                             options_.peer.key, ended.reply->id};
  auto taken =
      options_.shared->receivers.Take(context, ended.reply->attachments);
  if (!taken.ok()) {
    std::move(ended.done)(
        internal::ResultError(options_.peer.name,
                              std::string(ended.request->function),
                              taken.status()),
        nullptr);
    return Settled(ended.reply->id, /*taken=*/false);
  }
  auto reply = std::make_shared<Reply>(*ended.reply);
  reply->received = *taken;
  reply->from = options_.peer.key;
  // The first of the two ends the call.
  struct Waiting {
    explicit Waiting(Done told) : done(std::move(told)) {}
    void End(absl::Status status, ReplyPtr reply) {
      if (has_ended.exchange(true)) return;
      std::move(done)(std::move(status), std::move(reply));
      done = nullptr;
    }
    std::atomic<bool> has_ended{false};
    Done done;
  };
  auto waiting = std::make_shared<Waiting>(std::move(ended.done));
  const Instant deadline = ended.request->deadline;
  transport::Transport::TimerId timer = 0;
  if (!deadline.is_infinite()) {
    timer = options_.transport->RunAt(
        deadline, [waiting, peer = options_.peer.name,
                   function = std::string(ended.request->function)] {
          waiting->End(internal::MarkFailure(
                           absl::DeadlineExceededError(absl::StrCat(
                               function,
                               ": the deadline passed while what came with "
                               "the reply of ",
                               peer, " waited to be settled here")),
                           Phase::kDecode),
                       nullptr);
        });
  }
  ended.request = nullptr;
  (*taken)->WhenSettled(
      [weak = weak_from_this(), waiting, reply, timer, deadline,
       transport = options_.transport](const absl::Status& settled) {
        if (!deadline.is_infinite()) transport->CancelTimer(timer);
        if (auto self = weak.lock()) self->Settled(reply->id, /*taken=*/true);
        if (settled.ok()) return waiting->End(absl::OkStatus(), reply);
        waiting->End(settled, nullptr);
      });
}

// Sends the callee what it must know, by a new connection if need be.
void Outbound::Settled(uint64_t id, bool taken) {
  Tell(CallerSession::Settled{id, taken});
  ConnectIfNeeded();
}

void Outbound::SetTimer(Instant when) {
  timer_.Set(when, [weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      self->Tell(CallerSession::Event(CallerSession::Tick{}));
    }
  });
}

// ------------------------------------------------------------- the connection

void Outbound::ConnectIfNeeded() {
  bool is_first = false;
  {
    MutexLock lock(mu_);
    if (connecting_ || link_ != nullptr || shut_down_ || session_.is_gone() ||
        (session_.pending_calls() == 0 && !session_.awaits_outcomes())) {
      return;
    }
    connecting_ = true;
    pause_ = kFirstPause;
    last_failure_ = absl::UnavailableError("no answer yet");
    is_first = !was_welcomed_;
  }
  if (!is_first) return BeginToConnect(nullptr);
  options_.shared->connects->Enter(
      options_.peer.key.id,
      [weak = weak_from_this()](ConnectQueue::Place place) {
        if (auto self = weak.lock()) self->BeginToConnect(std::move(place));
      });
}

void Outbound::BeginToConnect(ConnectQueue::Place place) {
  Instant since;
  {
    MutexLock lock(mu_);
    // While it waited for its turn its calls may have ended, and others begun.
    if (!connecting_ || shut_down_ || link_ != nullptr) return;
    since = failing_since_ = clock_.Now();
    std::swap(place_, place);
  }
  GiveUpLater(since);
  Connect();
}

void Outbound::Connect() {
  Hello hello = options_.hello;
  auto link =
      std::make_shared<Link>(shared_from_this(), clock_, options_.result_bytes);
  {
    MutexLock lock(mu_);
    // The pause of an earlier failure may end when another link is tried.
    if (!connecting_ || shut_down_ || link_ != nullptr) return;
    hello.generation = session_.generation();
    hello.resumes = session_.resumes();
    link_ = link;
  }
  link->Append(std::make_unique<Hello>(std::move(hello)));
  link->Attach(options_.transport->Connect(
      ConnectionPurpose(),
      {options_.peer.name, options_.peer.address, options_.peer.memory_socket},
      link));
}

absl::Status Outbound::OnFrame(Link& link, Frame&& frame) {
  if (const auto* welcome = std::get_if<Welcome>(&frame)) {
    return OnWelcome(link, *welcome);
  }
  if (auto* closed = std::get_if<Closed>(&frame)) {
    Tell(CallerSession::Answered{std::move(*closed)});
    return absl::OkStatus();
  }
  auto* reply = std::get_if<ReplyFrame>(&frame);
  if (reply == nullptr) return OnlyCallersSend();
  has_replied_.store(true, std::memory_order_relaxed);
  Tell(CallerSession::Arrived{std::move(reply->reply)});
  return absl::OkStatus();
}

absl::Status Outbound::OnlyCallersSend() const {
  return absl::InvalidArgumentError(
      absl::StrCat(options_.peer.name, " sent what only a caller sends"));
}

// The reply to a call that was given up may still be on its way; to one that
// was never sent there is none.
absl::StatusOr<bool> Outbound::WantsBody(Link& link, const Frame& frame) {
  const auto* reply = std::get_if<ReplyFrame>(&frame);
  const auto* chunk = std::get_if<Chunk>(&frame);
  if (reply == nullptr && chunk == nullptr) return OnlyCallersSend();
  const uint64_t id = reply != nullptr ? reply->reply->id : chunk->id;
  MutexLock lock(mu_);
  if (link_.get() != &link) return false;  // given up since
  if (!session_.is_connected()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted a Welcome of ", options_.peer.name,
                     " first, found a body for call ", id));
  }
  const CallerSession::State state = session_.StateOf(id);
  if (state == CallerSession::State::kSent) return true;
  if (state > CallerSession::State::kSent) return false;
  return absl::InvalidArgumentError(absl::StrCat(options_.peer.name,
                                                 " replies to call ", id,
                                                 ", which was not sent to it"));
}

// It is only this result that cannot be had; if the connection ended, all would
// be sent again, and again be too much.
absl::Status Outbound::OnNoRoom(Link&, const Frame& frame, absl::Status why) {
  has_replied_.store(true, std::memory_order_relaxed);
  auto lost = std::make_shared<Reply>();
  lost->id = std::get<ReplyFrame>(frame).reply->id;
  std::string function;
  {
    MutexLock lock(mu_);
    session_.ForEachPending([&](const Request& request, bool) {
      if (request.id == lost->id) function = std::string(request.function);
    });
  }
  lost->status = internal::ResultError(options_.peer.name, function, why);
  Tell(CallerSession::Arrived{std::move(lost)});
  return absl::OkStatus();
}

absl::Status Outbound::OnWelcome(Link& link, const Welcome& welcome) {
  {
    MutexLock lock(mu_);
    if (link_.get() != &link) return absl::OkStatus();  // given up since
    if (session_.is_connected()) {  // all would be sent again
      return absl::InvalidArgumentError(
          absl::StrCat(options_.peer.name, " sent a second Welcome"));
    }
  }
  if (welcome.replaced) {
    PeerGone(
        internal::MarkFailure(absl::UnavailableError(welcome.status.message()),
                              Phase::kNone, Reason::kPeerGone));
    return absl::OkStatus();
  }
  if (welcome.forgotten) {
    options_.recorder->Record("rpc.forgotten", options_.peer.name);
    Tell(CallerSession::Event(CallerSession::Forgotten{}));
    return absl::UnavailableError("the session was forgotten");
  }
  if (!welcome.status.ok()) {  // nothing will be different next time
    const Reason reason = absl::IsUnavailable(welcome.status)
                              ? Reason::kShuttingDown
                              : Reason::kNone;
    Tell(CallerSession::Unreachable{
        internal::MarkFailure(welcome.status, Phase::kNone, reason)});
    return welcome.status;
  }
  ConnectQueue::Place place;
  Due due;
  {
    MutexLock lock(mu_);
    if (link_.get() != &link) return absl::OkStatus();
    place = std::move(place_);
    if (place != nullptr) place->Succeeded();
    connecting_ = false;
    welcomed_at_ = clock_.Now();
    if (!was_welcomed_) {
      options_.shared->progress.Note(welcomed_at_,
                                     welcomed_at_ - failing_since_);
    }
    was_welcomed_ = true;
    has_replied_.store(false, std::memory_order_relaxed);
    TellLocked(CallerSession::Connected{welcome.limits, welcome.functions,
                                        welcome.build});
    due = TakeDue();
  }
  options_.recorder->Record("rpc.connected", options_.peer.name);
  Do(due);
  return absl::OkStatus();
}

void Outbound::OnLinkClosed(Link& link, absl::Status status) {
  Instant since = Instant::Infinite();
  absl::Duration pause;
  ConnectQueue::Place place;
  {
    MutexLock lock(mu_);
    if (link_.get() != &link) return;
    place = std::move(place_);
    link_ = nullptr;
    options_.recorder->RecordFor("rpc.lost", options_.peer.name,
                                 status.message(), session_.pending_calls(),
                                 status.raw_code());
    TellLocked(CallerSession::Event(CallerSession::Disconnected{}));
    last_failure_ = std::move(status);
    const bool was_open = !connecting_;
    connecting_ = !shut_down_ && !session_.is_gone() &&
                  (session_.pending_calls() > 0 || session_.awaits_answers());
    if (!connecting_) return;
    // One that ends at once, before any reply, time after time, is no better
    // than one that does not come about.
    if (was_open) {
      const bool is_barren = !has_replied_.load(std::memory_order_relaxed) &&
                             clock_.Now() - welcomed_at_ < kLongestPause;
      if (!is_barren) {
        failing_since_ = clock_.Now();
        pause_ = absl::ZeroDuration();
      }
      since = failing_since_;
    }
    pause = pause_;
    pause_ = std::min(std::max(2 * pause_, kFirstPause), kLongestPause);
  }
  if (!since.is_infinite()) GiveUpLater(since);
  options_.transport->RunAt(clock_.Now() + pause, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Connect();
  });
}

void Outbound::GiveUpLater(Instant since) {
  options_.transport->RunAt(
      options_.shared->progress.Until(since, options_.give_up_after),
      [weak = weak_from_this(), since] {
        if (auto self = weak.lock()) self->GiveUp(since);
      });
}

absl::Status Outbound::WhyUnreachable(Instant since) const {
  const std::string peer =
      absl::StrCat(options_.peer.name, " at ", options_.peer.address);
  const std::string tried = absl::FormatDuration(
      std::max(options_.give_up_after,
               absl::Trunc(clock_.Now() - since, absl::Seconds(1))));
  // The peer is not to blame for what this process lacks.
  const absl::Status own = options_.transport->CheckResources();
  const absl::Status status =
      own.ok() ? absl::UnavailableError(absl::StrCat(
                     options_.peer.name, " could not be reached at ",
                     options_.peer.address, " for ", tried, ": ",
                     last_failure_.message()))
               : absl::Status(
                     own.code(),
                     absl::StrCat("this process could not connect to ", peer,
                                  " for ", tried, ": ", own.message()));
  return internal::MarkFailure(status, Phase::kNone, Reason::kUnreachable);
}

void Outbound::GiveUp(Instant since) {
  std::shared_ptr<Link> link;
  ConnectQueue::Place place;
  Due due;
  absl::Status why;
  Instant again = Instant::Infinite();
  if (options_.shared->progress.Until(since, options_.give_up_after) >
      clock_.Now()) {
    return GiveUpLater(since);
  }
  {
    MutexLock lock(mu_);
    // It has connected meanwhile, or fails for a later reason.
    if (!connecting_ || failing_since_ != since) return;
    connecting_ = false;
    place = std::move(place_);
    link = std::move(link_);
    why = WhyUnreachable(since);
    TellLocked(CallerSession::Unreachable{why});
    due = TakeDue();
    // The callee must be notified of abandoned calls as long as membership says
    // that it lives: libraries at both ends wait for the outcome of their
    // attachments, and only the callee knows those of its replies.
    if (session_.awaits_answers()) {
      connecting_ = true;
      pause_ = kLongestPause;
      // From the next attempt on, which would otherwise have no time where
      // give_up_after is not longer than the pause.
      again = failing_since_ = clock_.Now() + kLongestPause;
    }
  }
  Do(due);
  if (link != nullptr) link->End(why);
  if (again.is_infinite()) return;
  GiveUpLater(again);
  options_.transport->RunAt(again, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Connect();
  });
}

}  // namespace weft::rpc
