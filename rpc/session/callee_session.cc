// CalleeSession: see session.h.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/session/raise_by.h"
#include "weft/rpc/session/session.h"

namespace weft::rpc {

void CalleeSession::OnEvent(const Event& event, Instant now,
                            std::vector<Action>* actions) {
  const size_t known_before = ending_ ? calls_.size() : 0;
  std::visit([&](const auto& e) { On(e, now, actions); }, event);
  // Not where it is idle from the start: a caller that has just connected again
  // first says what is closed, and then repeats its calls.
  if (ending_ && calls_.size() < known_before) CloseConnectionIfDone(actions);
}

void CalleeSession::On(const Ending&, Instant, std::vector<Action>* actions) {
  ending_ = true;
  CloseConnectionIfDone(actions);
}

void CalleeSession::CloseConnectionIfDone(std::vector<Action>* actions) {
  if (connected_ && calls_.size() == 0) actions->push_back(CloseConnection{});
}

void CalleeSession::On(const Arrived& event, Instant,
                       std::vector<Action>* actions) {
  const Request& request = *event.request;
  if (gone_ || closed_.Contains(request.id)) return;  // it never runs
  const int64_t most =
      kMaxKnownCalls * (1 + limits_.calls + limits_.nested_calls);
  if (static_cast<int64_t>(calls_.size()) >= most &&
      !calls_.contains(request.id)) {
    actions->push_back(Violation{absl::ResourceExhaustedError(
        absl::StrCat(calls_.size(),
                     " calls are open that the caller neither closed nor was "
                     "granted, more than the ",
                     most, " that are kept"))});
    return;
  }
  const auto [it, is_new] = calls_.try_emplace(request.id);
  Call& call = it->second;
  if (!is_new) return SendReplyOf(call, actions);
  call.deadline = request.deadline;
  call.depth = request.depth;
  call.bytes = request.bytes();
  call.is_attached = call.unsettled = !request.attachments.empty();
  absl::Status admitted = Admit(request);
  ++running_;
  bytes_ += call.bytes;
  if (call.depth == 0) ++open_calls_;
  if (!admitted.ok()) {
    auto reply = std::make_shared<Reply>();
    reply->id = request.id;
    reply->status = std::move(admitted);
    reply->refusal = Refusal::kOverLimit;
    call.unsettled = call.taken = false;
    SetReply(it, std::move(reply), actions);
    return;
  }
  Wake(call.deadline, actions);
  actions->push_back(Run{event.request});
}

void CalleeSession::On(const Acked& event, Instant,
                       std::vector<Action>* actions) {
  for (const Interval interval : event.ack.ids) {
    if (!Acknowledge(interval, actions)) return;
  }
  for (const Interval interval : event.ack.confirm) {
    if (!Acknowledge(interval, actions)) return;
  }
  if (event.ack.confirm.empty() || !connected_) return;
  actions->push_back(SendClosed{rpc::Closed{event.ack.confirm, {}}});
}

bool CalleeSession::Acknowledge(Interval interval,
                                std::vector<Action>* actions) {
  if (HasTooManyGaps(actions)) return false;
  closed_.Add(interval);
  never_.Remove(interval);
  for (auto it = calls_.lower_bound(interval.first);
       it != calls_.end() && it->first <= interval.last;) {
    it = CloseCall(it, AttachmentOutcome::kDelivered, actions);
  }
  return true;
}

void CalleeSession::On(const GivenUp& event, Instant,
                       std::vector<Action>* actions) {
  rpc::Closed answer;
  for (const Interval interval : event.cancel.ids) {
    if (HasTooManyGaps(actions)) return;
    uint64_t next = interval.first;  // those before it are answered
    for (auto it = calls_.lower_bound(interval.first);
         it != calls_.end() && it->first <= interval.last;) {
      const uint64_t id = it->first;
      if (next < id) AnswerUnknown(Interval{next, id - 1}, &answer);
      next = id + 1;
      Call& call = it->second;
      call.is_asked = call.unsettled;
      if (!call.unsettled) {
        (call.taken ? answer.seen : answer.never).push_back(Interval{id, id});
        if (!call.taken) never_.Add(id);
      }
      it = CloseCall(it, AttachmentOutcome::kRefused, actions);
    }
    if (next <= interval.last) {
      AnswerUnknown(Interval{next, interval.last}, &answer);
    }
    closed_.Add(interval);
  }
  if (answer.empty() || !connected_) return;  // else asked again
  actions->push_back(SendClosed{std::move(answer)});
}

void CalleeSession::AnswerUnknown(Interval interval, rpc::Closed* answer) {
  IntervalSet fenced;
  closed_.ForEachPart(interval, [&](Interval part, bool is_closed) {
    if (!is_closed) {
      fenced.Add(part);
      return answer->never.push_back(part);
    }
    never_.ForEachPart(part, [&](Interval one, bool is_never) {
      (is_never ? answer->never : answer->seen).push_back(one);
    });
  });
  for (const Interval part : fenced.Intervals()) never_.Add(part);
}

bool CalleeSession::HasTooManyGaps(std::vector<Action>* actions) const {
  const size_t gaps = std::max(closed_.size(), never_.size());
  if (gaps < kMaxIntervals) return false;
  actions->push_back(Violation{absl::ResourceExhaustedError(absl::StrCat(
      "the closed calls have ", gaps, " gaps, which is as many as are kept"))});
  return true;
}

void CalleeSession::On(const Settled& event, Instant,
                       std::vector<Action>* actions) {
  const auto it = calls_.find(event.id);
  if (it == calls_.end() || !it->second.unsettled) return;
  it->second.unsettled = false;
  if (!it->second.closed) return SendReplyOf(it->second, actions);
  ForgetIfOver(it, actions);
}

void CalleeSession::On(const Finished& event, Instant,
                       std::vector<Action>* actions) {
  const auto it = calls_.find(event.reply->id);
  if (it == calls_.end() || !it->second.running) return;
  Call& call = it->second;
  if (event.reply->refusal != Refusal::kNone) {
    call.unsettled = call.taken = false;
  }
  if (!call.closed) return SetReply(it, event.reply, actions);
  // Nobody is interested any more.
  Tell(it->first, *event.reply, AttachmentOutcome::kRefused, actions);
  bytes_ -= std::exchange(call.bytes, 0);
  call.running = false;
  --running_;
  ForgetIfOver(it, actions);
}

void CalleeSession::On(const Connected&, Instant now,
                       std::vector<Action>* actions) {
  connected_ = true;
  vanishes_at_ = Instant::Infinite();
  if (!ending_) return;
  repeats_until_ = now + kRepeatTime;
  Wake(repeats_until_, actions);
}

void CalleeSession::On(const Disconnected&, Instant now,
                       std::vector<Action>* actions) {
  connected_ = false;
  repeats_until_ = Instant::Infinite();
  if (gone_ || patience_ == absl::InfiniteDuration()) return;
  vanishes_at_ = now + patience_;
  Wake(vanishes_at_, actions);
}

void CalleeSession::On(const PeerGone& event, Instant,
                       std::vector<Action>* actions) {
  gone_ = true;
  connected_ = false;
  vanishes_at_ = repeats_until_ = Instant::Infinite();
  for (auto it = calls_.begin(); it != calls_.end();) {
    CancelCall(it, event.why, actions);
    it->second.unsettled = false;
    it = CloseCall(it, AttachmentOutcome::kAbandoned, actions);
  }
}

void CalleeSession::On(const Tick&, Instant now, std::vector<Action>* actions) {
  wake_ = Instant::Infinite();
  Instant next = Instant::Infinite();
  for (auto it = calls_.begin(); it != calls_.end(); ++it) {
    if (!it->second.running || it->second.cancelled) continue;
    if (it->second.deadline <= now) {
      CancelCall(
          it, absl::DeadlineExceededError("the caller's deadline has passed"),
          actions);
    } else {
      next = std::min(next, it->second.deadline);
    }
  }
  if (vanishes_at_ <= now) {
    vanishes_at_ = Instant::Infinite();
    actions->push_back(Vanished{});
  }
  if (repeats_until_ <= now) {
    repeats_until_ = Instant::Infinite();
    CloseConnectionIfDone(actions);
  }
  Wake(std::min({next, vanishes_at_, repeats_until_}), actions);
}

absl::Status CalleeSession::Admit(const Request& request) const {
  const int64_t most = 2 * (limits_.calls + limits_.nested_calls);
  if (static_cast<int64_t>(running_) >= most) {
    return absl::ResourceExhaustedError(absl::StrCat(
        running_, " calls of this peer are running, given-up ones included; ",
        most, " are admitted; wait for their ends",
        RaiseBy("rpc_nested_calls")));
  }
  if (request.depth == 0 && open_calls_ >= limits_.calls) {
    return absl::ResourceExhaustedError(absl::StrCat(
        open_calls_, " calls of this peer are open; ", limits_.calls,
        " are admitted; wait for their ends", RaiseBy("rpc_calls")));
  }
  // Twice what was granted: replies count too, and their caller cannot know
  // their size.
  if (bytes_ + request.bytes() > 2 * limits_.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "requests and unacknowledged replies of this peer hold ", bytes_,
        " bytes, this request needs ", request.bytes(), "; ", 2 * limits_.bytes,
        " are admitted; wait for their ends", RaiseBy("rpc_bytes")));
  }
  return absl::OkStatus();
}

void CalleeSession::CancelCall(CallMap::iterator it, absl::Status why,
                               std::vector<Action>* actions) {
  Call& call = it->second;
  if (!call.running || call.cancelled) return;
  call.cancelled = true;
  actions->push_back(Cancel{it->first, std::move(why)});
}

CalleeSession::CallMap::iterator CalleeSession::CloseCall(
    CallMap::iterator it, AttachmentOutcome outcome,
    std::vector<Action>* actions) {
  Call& call = it->second;
  if (!call.closed) {
    call.closed = true;
    if (call.depth == 0) --open_calls_;
    if (call.running) {  // else no Status is made, which allocates
      CancelCall(it, absl::CancelledError("the caller gave the call up"),
                 actions);
    }
    if (call.reply != nullptr) {
      Tell(it->first, *call.reply, outcome, actions);
      bytes_ -= std::exchange(call.bytes, 0);
      call.reply = nullptr;
    }
  }
  return ForgetIfOver(it, actions);
}

CalleeSession::CallMap::iterator CalleeSession::ForgetIfOver(
    CallMap::iterator it, std::vector<Action>* actions) {
  Call& call = it->second;
  if (!call.closed || call.unsettled) return std::next(it);
  if (std::exchange(call.is_asked, false)) {
    const std::vector<Interval> one{Interval{it->first, it->first}};
    if (!call.taken) never_.Add(it->first);
    if (connected_) {
      actions->push_back(
          SendClosed{call.taken ? rpc::Closed{one, {}} : rpc::Closed{{}, one}});
    }
  }
  return call.running ? std::next(it) : calls_.erase(it);
}

void CalleeSession::Tell(uint64_t id, const Reply& reply,
                         AttachmentOutcome outcome,
                         std::vector<Action>* actions) {
  if (reply.staged == nullptr) return;
  actions->push_back(TellAttachments{id, reply.staged, outcome});
}

void CalleeSession::SendReplyOf(Call& call, std::vector<Action>* actions) {
  if (call.reply == nullptr || call.unsettled || !connected_) return;
  actions->push_back(SendReply{call.reply, std::exchange(call.was_sent, true)});
}

void CalleeSession::SetReply(CallMap::iterator it, ReplyPtr reply,
                             std::vector<Action>* actions) {
  Call& call = it->second;
  call.running = false;
  --running_;
  bytes_ += reply->bytes() - call.bytes;
  call.bytes = reply->bytes();
  call.reply = std::move(reply);
  call.was_sent = false;
  SendReplyOf(call, actions);
}

bool CalleeSession::has_open_attachments() const {
  return std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
    const Call& call = entry.second;
    return call.is_attached ||
           (call.reply != nullptr && call.reply->staged != nullptr);
  });
}

void CalleeSession::Wake(Instant when, std::vector<Action>* actions) {
  if (when >= wake_) return;
  wake_ = when;
  actions->push_back(WakeAt{when});
}

CalleeSession::State CalleeSession::StateOf(uint64_t id) const {
  const auto it = calls_.find(id);
  if (it == calls_.end()) {
    if (never_.Contains(id)) return State::kNever;
    return closed_.Contains(id) ? State::kClosed : State::kUnknown;
  }
  const Call& call = it->second;
  if (call.closed) return State::kGivenUp;
  if (call.unsettled) return State::kSettling;
  if (call.reply != nullptr) return State::kAnswered;
  return call.cancelled ? State::kCancelled : State::kRunning;
}

std::string CalleeSession::Fingerprint() const {
  std::string text = absl::StrCat(
      "callee ", connected_ ? "c" : "d", gone_ ? "g" : "", ending_ ? "e" : "",
      vanishes_at_.nanoseconds(), ",", repeats_until_.nanoseconds(),
      " running=", running_, " open=", open_calls_, " bytes=", bytes_,
      " closed=", closed_.ToString(), " never=", never_.ToString(),
      " wake=", wake_.nanoseconds());
  for (const auto& [id, call] : calls_) {
    absl::StrAppend(&text, " ", id, call.running ? "r" : "d",
                    call.closed ? "c" : "", call.cancelled ? "x" : "",
                    call.unsettled ? "u" : "", call.taken ? "" : "n",
                    call.is_asked ? "?" : "", call.deadline.nanoseconds());
  }
  return text;
}

}  // namespace weft::rpc
