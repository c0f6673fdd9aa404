// CallerSession: see session.h.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/session/raise_by.h"
#include "weft/rpc/session/session.h"

namespace weft::rpc {
namespace {

// The outcome of the attachments of a request that was answered by `reply`.
AttachmentOutcome OutcomeBy(const Reply& reply) {
  return reply.refusal == Refusal::kNone ? AttachmentOutcome::kDelivered
                                         : AttachmentOutcome::kRefused;
}

}  // namespace

void CallerSession::OnEvent(const Event& event, Instant now,
                            std::vector<Action>* actions) {
  std::visit([&](const auto& e) { On(e, now, actions); }, event);
  if (!ending_.ok()) CloseConnectionIfDone(actions);
}

void CallerSession::On(const Ending& event, Instant, std::vector<Action>*) {
  ending_ = event.why;
}

// The callee then waits for nothing from here: what it kept is acknowledged,
// and what became of each attachment is known.
void CallerSession::CloseConnectionIfDone(std::vector<Action>* actions) {
  if (is_gone() || pending_.size() > 0) return;
  if (!settling_.empty() || awaits_outcomes()) return;
  if (connected_) FlushAcks(actions);
  gone_ = ending_;
  actions->push_back(CloseConnection{});
}

void CallerSession::On(const Start& event, Instant now,
                       std::vector<Action>* actions) {
  // The id is pending from the moment that it exists: no question and no event
  // can name it before.
  const uint64_t id = event.request->id = next_id_++;
  const auto it = pending_.try_emplace(id, Pending{event.request, false}).first;
  if (is_gone()) {
    End(it, Unanswered(it->second, gone_), nullptr, actions);
    return;
  }
  if (event.request->deadline <= now) {
    End(it, Expired(it->second), nullptr, actions);
    return;
  }
  Wake(event.request->deadline, actions);
  if (!connected_) {
    if (event.request->depth == 0) Enqueue(*event.request);
    return;
  }
  if (ReplyPtr refused = Refuse(*event.request)) {
    End(it, Unanswered(it->second, refused->status), refused, actions);
  } else if (event.request->depth > 0 ||
             (IsNext(*event.request) && HasCredit(*event.request))) {
    Send(it, actions);
  } else if (event.request->waits_for_credit) {
    Enqueue(*event.request);
  } else {
    End(it, Unanswered(it->second, NoCredit(*event.request)), nullptr, actions);
  }
}

void CallerSession::On(const Abandon& event, Instant now,
                       std::vector<Action>* actions) {
  const auto it = pending_.find(event.id);
  if (it == pending_.end()) return;  // it has ended already
  const bool sent = it->second.sent;
  End(it, Unanswered(it->second, event.why), nullptr, actions);
  // A function whose caller has gone should be cancelled at once.
  if (sent && connected_) FlushAcks(actions);
  SendWaiting(now, actions);
}

void CallerSession::On(const Connected& event, Instant now,
                       std::vector<Action>* actions) {
  if (is_gone()) return;  // a welcome that was on its way
  limits_ = event.limits;
  functions_ = event.functions;
  served_.clear();
  build_ = event.build;
  connected_ = true;
  resumes_ = true;
  // Before any request, so that what these close makes room for them.
  unacked_ = closed_;
  unasked_acks_.Clear();
  unasked_cancels_.Clear();
  for (const auto& [id, closing] : closing_) Unasked(closing).Add(id);
  FlushAcks(actions);
  for (auto it = pending_.begin(); it != pending_.end();) {
    const Pending& call = it->second;
    if (call.sent) {
      it = Send(it, actions);
    } else if (ReplyPtr refused = Refuse(*call.request)) {
      it = End(it, Unanswered(call, refused->status), refused, actions);
    } else if (call.request->depth > 0) {
      it = Send(it, actions);
    } else {
      ++it;
    }
  }
  SendWaiting(now, actions);
}

void CallerSession::On(const Disconnected&, Instant, std::vector<Action>*) {
  connected_ = false;
  ack_due_ = Instant::Infinite();  // the next connection sends all
  if (!resumes_) ++generation_;
}

void CallerSession::On(const Forgotten&, Instant now,
                       std::vector<Action>* actions) {
  connected_ = false;
  ack_due_ = Instant::Infinite();
  resumes_ = false;
  ++generation_;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (it->second.sent) {
      const absl::Status why = absl::UnavailableError(absl::StrCat(
          it->second.request->function,
          ": the worker has forgotten this session; the call was out, and may "
          "have run"));
      it =
          End(it,
              Unanswered(it->second, internal::MarkFailure(why, Phase::kNone,
                                                           Reason::kForgotten)),
              nullptr, actions, /*is_lost=*/true);
    } else {
      ++it;
    }
  }
  LoseClosing(actions);
  (void)now;
}

void CallerSession::On(const Arrived& event, Instant now,
                       std::vector<Action>* actions) {
  const auto it = pending_.find(event.reply->id);
  if (it == pending_.end() || !it->second.sent) return;  // ended, or nonsense
  unacked_bytes_ += event.reply->bytes();
  if (it->second.request->deadline <= now) {
    // The function may have stopped at the deadline and returned what it had:
    // that is no result.
    End(it, Expired(it->second), nullptr, actions);
  } else {
    End(it, event.reply->status, event.reply, actions);
  }
  AckSoon(now, actions);
  SendWaiting(now, actions);
}

void CallerSession::On(const Settled& event, Instant now,
                       std::vector<Action>* actions) {
  const auto it = settling_.find(event.id);
  if (it == settling_.end()) return;  // the callee knows it no more
  Free(it->second);
  settling_.erase(it);
  Closing closing;
  closing.is_cancel = !event.taken;
  AskToClose(event.id, std::move(closing));
  AckSoon(now, actions);
  SendWaiting(now, actions);
}

void CallerSession::On(const Answered& event, Instant now,
                       std::vector<Action>* actions) {
  const auto take = [&](const std::vector<Interval>& ids,
                        AttachmentOutcome outcome) {
    for (const Interval interval : ids) {
      for (auto it = closing_.lower_bound(interval.first);
           it != closing_.end() && it->first <= interval.last;) {
        Closing& closing = it->second;
        if (closing.is_attached()) --attached_closing_;
        if (closing.staged != nullptr) {
          actions->push_back(
              TellAttachments{it->first, std::move(closing.staged), outcome});
        }
        // The callee need not remember what it has answered.
        if (closing.is_cancel) {
          Acknowledge(it->first);
        } else {
          closed_.Add(it->first);
        }
        it = closing_.erase(it);
      }
    }
  };
  take(event.closed.seen, AttachmentOutcome::kDelivered);
  take(event.closed.never, AttachmentOutcome::kRefused);
  AckSoon(now, actions);
}

void CallerSession::On(const Unreachable& event, Instant,
                       std::vector<Action>* actions) {
  EndAll(event.why, actions, /*is_lost=*/false);
  if (!resumes_) ++generation_;
}

void CallerSession::On(const PeerGone& event, Instant,
                       std::vector<Action>* actions) {
  if (is_gone()) return;
  connected_ = false;
  ack_due_ = Instant::Infinite();
  gone_ = event.why;
  EndAll(event.why, actions, /*is_lost=*/true);
  LoseClosing(actions);
}

void CallerSession::On(const Tick&, Instant now, std::vector<Action>* actions) {
  wake_ = Instant::Infinite();
  Instant next = Instant::Infinite();
  bool expired_sent = false;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const Instant deadline = it->second.request->deadline;
    if (deadline <= now) {
      expired_sent |= it->second.sent;
      it = End(it, Expired(it->second), nullptr, actions);
    } else {
      next = std::min(next, deadline);
      ++it;
    }
  }
  if (connected_ && (expired_sent || ack_due_ <= now)) FlushAcks(actions);
  SendWaiting(now, actions);
  Wake(std::min(next, ack_due_), actions);
}

ReplyPtr CallerSession::Refuse(const Request& request) {
  Refusal refusal = Refusal::kNone;
  absl::Status status = CheckLimits(request);
  if (status.ok()) status = CheckServed(request, &refusal);
  if (status.ok()) return nullptr;
  auto reply = std::make_shared<Reply>();
  reply->id = request.id;
  reply->refusal = refusal;
  reply->status = std::move(status);
  return reply;
}

absl::Status CallerSession::CheckServed(const Request& request,
                                        Refusal* refusal) {
  if (!functions_.has_value()) return absl::OkStatus();
  const size_t index = request.function_index;
  if (index < served_.size() && served_[index]) return absl::OkStatus();
  const auto known = functions_->find(request.function);
  if (known == functions_->end()) {
    *refusal = Refusal::kUnknownFunction;
    return absl::UnimplementedError(
        absl::StrCat(peer_, " (build ", build_, ") has no function ",
                     request.function, " for this caller"));
  }
  if (known->second.digest != request.signature) {
    *refusal = Refusal::kSignatureDiffers;
    return absl::FailedPreconditionError(known->second.signature);
  }
  if (index == 0) return absl::OkStatus();
  if (index >= served_.size()) served_.resize(index + 1);
  served_[index] = true;
  return absl::OkStatus();
}

absl::Status CallerSession::CheckLimits(const Request& request) const {
  if (request.bytes() > limits_.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        request.function, ": the arguments take ", request.bytes(),
        " bytes, and the worker admits ", limits_.bytes,
        " from one peer at a time; send them in parts", RaiseBy("rpc_bytes")));
  }
  if (request.depth > 0 && nested_out_ >= limits_.nested_calls) {
    return absl::ResourceExhaustedError(absl::StrCat(
        request.function, ": ", nested_out_,
        " nested calls to this worker are out, which is the limit; this one "
        "came by ",
        request.chain, "; let fewer wait for one another",
        RaiseBy("rpc_nested_calls")));
  }
  if (request.depth > 0 &&
      nested_bytes_out_ + request.bytes() > limits_.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        request.function, ": nested calls to this worker hold ",
        nested_bytes_out_, " bytes, this one needs ", request.bytes(), "; ",
        limits_.bytes, " are admitted; it came by ", request.chain,
        "; let fewer wait for one another", RaiseBy("rpc_bytes")));
  }
  return absl::OkStatus();
}

bool CallerSession::HasCredit(const Request& request) const {
  return calls_out_ < limits_.calls &&
         bytes_out_ + request.bytes() <= limits_.bytes &&
         (!request.is_stream || StreamsHaveCredit());
}

bool CallerSession::IsNext(const Request& request) const {
  if (!waiting_.empty()) return false;
  return waiting_streams_.empty() ||
         (!request.is_stream && !StreamsHaveCredit());
}

void CallerSession::Enqueue(const Request& request) {
  (request.is_stream ? waiting_streams_ : waiting_).push_back(request.id);
}

std::deque<uint64_t>* CallerSession::NextQueue() {
  for (auto* queue : {&waiting_, &waiting_streams_}) {
    while (!queue->empty() && StateOf(queue->front()) != State::kWaiting) {
      queue->pop_front();
    }
  }
  if (waiting_.empty() || waiting_streams_.empty()) {
    std::deque<uint64_t>* one =
        waiting_.empty() ? &waiting_streams_ : &waiting_;
    return one->empty() ? nullptr : one;
  }
  const bool stream_came_first = waiting_streams_.front() < waiting_.front();
  return stream_came_first && StreamsHaveCredit() ? &waiting_streams_
                                                  : &waiting_;
}

CallerSession::Credit CallerSession::credit() const {
  Credit credit;
  credit.limits = limits_;
  credit.calls = calls_out_;
  credit.streams = streams_out_;
  credit.bytes = bytes_out_;
  if (!connected_) return credit;
  for (const auto* queue : {&waiting_, &waiting_streams_}) {
    for (const uint64_t id : *queue) {
      if (StateOf(id) != State::kWaiting) continue;
      if (credit.first_waiting == 0 || id < credit.first_waiting) {
        credit.first_waiting = id;
      }
      break;
    }
  }
  return credit;
}

int64_t CallerSession::CountWaiting() const {
  const auto waits = [this](uint64_t id) {
    return StateOf(id) == State::kWaiting;
  };
  return std::count_if(waiting_.begin(), waiting_.end(), waits) +
         std::count_if(waiting_streams_.begin(), waiting_streams_.end(), waits);
}

absl::Status CallerSession::NoCredit(const Request& request) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      request.function, ": no credit is left: ", calls_out_, " calls of ",
      limits_.calls, ", ", streams_out_, " streams of ", limits_.most_streams(),
      " and ", bytes_out_, " bytes of ", limits_.bytes,
      " are out, and the call was not to wait; let it wait",
      RaiseBy(bytes_out_ + request.bytes() > limits_.bytes ? "rpc_bytes"
                                                           : "rpc_calls")));
}

CallerSession::PendingMap::iterator CallerSession::Send(
    PendingMap::iterator it, std::vector<Action>* actions) {
  Pending& call = it->second;
  const Request& request = *call.request;
  for (const Payload& borrowed : request.borrowed) {
    absl::Status lost = borrowed.Elements().status();
    if (lost.ok()) continue;
    return End(it, Unanswered(call, std::move(lost)), nullptr, actions);
  }
  const bool again = std::exchange(call.sent, true);
  if (!again) {
    if (request.depth > 0) {
      ++nested_out_;
      nested_bytes_out_ += request.bytes();
    } else {
      ++calls_out_;
      streams_out_ += request.is_stream;
      bytes_out_ += request.bytes();
    }
    FlushAcks(actions);  // they travel along
  }
  actions->push_back(SendRequest{call.request, again});
  return std::next(it);
}

void CallerSession::SendWaiting(Instant, std::vector<Action>* actions) {
  while (may_wait_for_credit()) {
    std::deque<uint64_t>* const queue = NextQueue();
    if (queue == nullptr) return;
    const auto it = pending_.find(queue->front());
    const Request& request = *it->second.request;
    if (!HasCredit(request) && request.waits_for_credit) return;
    queue->pop_front();
    if (HasCredit(request)) {
      Send(it, actions);
    } else {
      End(it, Unanswered(it->second, NoCredit(request)), nullptr, actions);
    }
  }
}

CallerSession::PendingMap::iterator CallerSession::End(
    PendingMap::iterator it, absl::Status status, ReplyPtr reply,
    std::vector<Action>* actions, bool is_lost) {
  const uint64_t id = it->first;
  const Pending& call = it->second;
  const bool settles =
      call.sent && reply != nullptr && !reply->attachments.empty();
  const CallCredit credit{call.request->depth, call.request->bytes(),
                          call.request->is_stream};
  // The callee counts the call until it is acknowledged.
  if (call.sent && !settles) Free(credit);
  const std::shared_ptr<StagedAttachments>& staged = call.request->staged;
  const auto tell = [&](AttachmentOutcome outcome) {
    if (staged == nullptr) return;
    actions->push_back(TellAttachments{id, staged, outcome});
  };
  if (!call.sent) {
    tell(AttachmentOutcome::kRefused);
    Acknowledge(id);
  } else if (reply != nullptr) {
    tell(OutcomeBy(*reply));
    if (settles) {
      settling_.emplace(id, credit);
    } else {
      Acknowledge(id);
    }
  } else if (is_lost) {
    tell(AttachmentOutcome::kAbandoned);
    Acknowledge(id);
  } else {
    Closing closing;
    closing.is_cancel = true;
    closing.staged = staged;
    AskToClose(id, std::move(closing));
  }
  actions->push_back(Complete{id, std::move(status), std::move(reply),
                              std::move(it->second.request)});
  return pending_.erase(it);
}

void CallerSession::EndAll(const absl::Status& why,
                           std::vector<Action>* actions, bool is_lost) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    it = End(it, Unanswered(it->second, why), nullptr, actions, is_lost);
  }
  waiting_.clear();
  waiting_streams_.clear();
}

void CallerSession::Free(const CallCredit& credit) {
  if (credit.depth > 0) {
    --nested_out_;
    nested_bytes_out_ -= credit.bytes;
  } else {
    --calls_out_;
    streams_out_ -= credit.is_stream;
    bytes_out_ -= credit.bytes;
  }
}

void CallerSession::Acknowledge(uint64_t id) {
  closed_.Add(id);
  unacked_.Add(id);
  ++unacked_calls_;
}

void CallerSession::AskToClose(uint64_t id, Closing closing) {
  if (closing.is_attached()) ++attached_closing_;
  Unasked(closing).Add(id);
  closing_.emplace(id, std::move(closing));
}

void CallerSession::LoseClosing(std::vector<Action>* actions) {
  for (const auto& [id, credit] : settling_) {
    Free(credit);
    Acknowledge(id);
  }
  settling_.clear();
  for (auto& [id, closing] : closing_) {
    if (closing.staged != nullptr) {
      actions->push_back(TellAttachments{id, std::move(closing.staged),
                                         AttachmentOutcome::kAbandoned});
    }
    Acknowledge(id);
  }
  closing_.clear();
  attached_closing_ = 0;
  unasked_acks_.Clear();
  unasked_cancels_.Clear();
}

void CallerSession::FlushAcks(std::vector<Action>* actions) {
  if (!unacked_.empty() || !unasked_acks_.empty()) {
    // Made in its place, since to move the lists costs more than to fill them.
    Action& action = actions->emplace_back(std::in_place_type<SendAck>);
    Ack& ack = std::get<SendAck>(action).ack;
    unacked_.AppendTo(&ack.ids);
    unasked_acks_.AppendTo(&ack.confirm);
  }
  unacked_.Clear();
  unacked_calls_ = 0;
  unacked_bytes_ = 0;
  ack_due_ = Instant::Infinite();
  if (!unasked_cancels_.empty()) {
    actions->push_back(SendCancel{rpc::Cancel{unasked_cancels_.Intervals()}});
  }
  unasked_acks_.Clear();
  unasked_cancels_.Clear();
}

void CallerSession::AckSoon(Instant now, std::vector<Action>* actions) {
  if (!connected_ ||
      (unacked_.empty() && unasked_acks_.empty() && unasked_cancels_.empty())) {
    return;
  }
  if (unacked_calls_ >= kAckCalls || unacked_bytes_ >= kAckBytes) {
    FlushAcks(actions);
    return;
  }
  if (ack_due_.is_infinite()) ack_due_ = now + kAckDelay;
  Wake(ack_due_, actions);
}

void CallerSession::Wake(Instant when, std::vector<Action>* actions) {
  if (when >= wake_) return;
  wake_ = when;
  actions->push_back(WakeAt{when});
}

absl::Status CallerSession::Expired(const Pending& call) const {
  const char* what = call.sent && connected_ ? "was out, unanswered"
                     : call.sent             ? "was out, the connection lost"
                     : connected_            ? "waited for credit"
                                             : "waited for a connection";
  return Unanswered(
      call, absl::DeadlineExceededError(absl::StrCat(
                call.request->function, ": the deadline passed in phase ",
                NameOf(PhaseOf(call)), ": the call to ", peer_, " ", what)));
}

Phase CallerSession::PhaseOf(const Pending& call) const {
  if (!call.sent) return Phase::kQueue;
  return connected_ ? Phase::kHandler : Phase::kWire;
}

absl::Status CallerSession::Unanswered(const Pending& call,
                                       absl::Status why) const {
  return internal::MarkFailure(
      call.sent ? WithOutcomeUnknown(std::move(why)) : std::move(why),
      PhaseOf(call));
}

CallerSession::State CallerSession::StateOf(uint64_t id) const {
  const auto it = pending_.find(id);
  if (it != pending_.end()) {
    return it->second.sent ? State::kSent : State::kWaiting;
  }
  if (settling_.contains(id)) return State::kSettling;
  if (const auto closing = closing_.find(id); closing != closing_.end()) {
    return closing->second.is_cancel ? State::kCancelling : State::kConfirming;
  }
  return id < next_id_ ? State::kEnded : State::kUnknown;
}

std::string CallerSession::Fingerprint() const {
  std::string text = absl::StrCat(
      "caller generation=", generation_, resumes_ ? "r" : "f",
      connected_ ? "c" : "d", is_gone() ? "g" : "", ending_.ok() ? "" : "e",
      " next=", next_id_, " out=", calls_out_, ",", bytes_out_, ",",
      streams_out_, ",", nested_out_, " closed=", closed_.ToString(),
      " unclosed=", unacked_.ToString(), ",", unacked_bytes_,
      " due=", ack_due_.nanoseconds(), " wake=", wake_.nanoseconds());
  for (const auto& [id, call] : pending_) {
    absl::StrAppend(&text, " ", id, call.sent ? "s" : "w",
                    call.request->deadline.nanoseconds());
  }
  for (const auto& [id, credit] : settling_) absl::StrAppend(&text, " t", id);
  for (const auto& [id, closing] : closing_) {
    absl::StrAppend(&text, closing.is_cancel ? " x" : " a", id,
                    closing.staged != nullptr ? "+" : "");
  }
  absl::StrAppend(&text, " unasked=", unasked_acks_.ToString(), "/",
                  unasked_cancels_.ToString(), " queue");
  for (const uint64_t id : waiting_) absl::StrAppend(&text, " ", id);
  absl::StrAppend(&text, " streams");
  for (const uint64_t id : waiting_streams_) absl::StrAppend(&text, " ", id);
  return text;
}

}  // namespace weft::rpc
