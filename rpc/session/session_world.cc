#include "weft/rpc/session/session_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"

namespace weft::rpc {
namespace {

// Long against every delay of the cores, and different for each call.
Instant DeadlineOf(uint64_t id) {
  return Instant() + absl::Seconds(10 * static_cast<int64_t>(id));
}

constexpr char kGone[] = "the callee was replaced";

// What sessions need to see of attachments; the world receives their outcomes.
template <typename Message>
void Attach(Message* message) {
  static const auto* const staged =
      new std::shared_ptr<StagedAttachments>(new StagedAttachments());
  message->attachments.push_back({"test", Bytes()});
  message->staged = *staged;
}

template <typename Intervals>
std::string TextOf(const Intervals& intervals) {
  IntervalSet set;
  for (const Interval interval : intervals) set.Add(interval);
  return set.ToString();
}

}  // namespace

SessionWorld::SessionWorld(WorldOptions options)
    : options_(options), caller_("callee"), callee_(options.limits) {}

void SessionWorld::Fail(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

bool SessionWorld::CanDeliver(size_t index) const {
  if (!options_.fifo) return true;
  const bool is_of_callee = network_[index].is_of_callee();
  for (size_t i = 0; i < index; ++i) {
    if (network_[i].is_of_callee() == is_of_callee) return false;
  }
  return true;
}

std::vector<std::string> SessionWorld::Moves() const {
  std::vector<std::string> moves;
  if (static_cast<int>(fates_.size()) < options_.calls) {
    moves.push_back("start");
  }
  if (!connected_ && !caller_.is_gone()) moves.push_back("connect");
  if (connected_ && options_.disconnects > 0) moves.push_back("disconnect");
  if (!crashed_ && options_.crashes > 0) moves.push_back("crash");
  if (options_.forgets > 0 && !connected_ && running_.empty() &&
      !callee_.has_open_attachments()) {
    moves.push_back("forget");
  }
  if (!connected_ && !fates_.empty() && options_.unreachables > 0) {
    moves.push_back("unreachable");
  }
  for (size_t i = 0; i < network_.size(); ++i) {
    if (CanDeliver(i)) moves.push_back(absl::StrCat("deliver ", i));
    if (!options_.fifo && options_.duplicates > 0) {
      moves.push_back(absl::StrCat("duplicate ", i));
    }
    if (!options_.fifo && options_.drops > 0) {
      moves.push_back(absl::StrCat("drop ", i));
    }
  }
  for (const auto& [id, served] : running_) {
    if (!served.waits || served.is_cancelled) {
      moves.push_back(absl::StrCat("finish ", id));
    }
  }
  for (const uint64_t id : unsettled_requests_) {
    moves.push_back(absl::StrCat("settle_request ", id));
  }
  for (const uint64_t id : unsettled_replies_) {
    moves.push_back(absl::StrCat("settle_reply ", id));
    if (options_.reply_refusals > 0) {
      moves.push_back(absl::StrCat("refuse_reply ", id));
    }
  }
  for (const auto& [id, fate] : fates_) {
    if (fate.ended > 0) continue;
    if (options_.abandons > 0) moves.push_back(absl::StrCat("abandon ", id));
    if (options_.expiries > 0 && now_ < DeadlineOf(id)) {
      moves.push_back(absl::StrCat("expire ", id));
    }
  }
  // Ticks of the near future: a flush of closes. Deadlines are "expire".
  if (caller_wake_.has_value() && *caller_wake_ < now_ + absl::Seconds(1)) {
    moves.push_back("tick");
  }
  return moves;
}

void SessionWorld::Apply(const std::string& move) {
  const std::vector<std::string> words = absl::StrSplit(move, ' ');
  uint64_t n = 0;
  if (words.size() > 1) WEFT_CHECK(absl::SimpleAtoi(words[1], &n));
  if (words[0] == "start") {
    StartCall();
  } else if (words[0] == "connect") {
    Connect();
  } else if (words[0] == "disconnect") {
    --options_.disconnects;
    Disconnect();
  } else if (words[0] == "crash") {
    --options_.crashes;
    Crash();
  } else if (words[0] == "forget") {
    --options_.forgets;
    callee_ = CalleeSession(options_.limits);
    callee_is_fresh_ = true;
    forgot_ = true;
    // With the table go the connections: what they still hold is not heard.
    network_.erase(
        std::remove_if(network_.begin(), network_.end(),
                       [](const Wire& wire) { return !wire.is_of_callee(); }),
        network_.end());
  } else if (words[0] == "unreachable") {
    --options_.unreachables;
    for (auto& [id, fate] : fates_) {
      if (fate.ended == 0) fate.given_up = true;
    }
    Tell(CallerSession::Unreachable{absl::UnavailableError("tried for long")});
  } else if (words[0] == "deliver") {
    Deliver(n, /*keep=*/false);
  } else if (words[0] == "duplicate") {
    --options_.duplicates;
    Deliver(n, /*keep=*/true);
  } else if (words[0] == "drop") {
    --options_.drops;
    network_.erase(network_.begin() + n);
  } else if (words[0] == "finish") {
    Finish(n);
  } else if (words[0] == "settle_request") {
    SettleRequest(n);
  } else if (words[0] == "settle_reply") {
    SettleReply(n, /*taken=*/true);
  } else if (words[0] == "refuse_reply") {
    --options_.reply_refusals;
    SettleReply(n, /*taken=*/false);
  } else if (words[0] == "abandon") {
    --options_.abandons;
    fates_[n].given_up = true;
    Tell(CallerSession::Abandon{n, absl::CancelledError("given up")});
  } else if (words[0] == "expire") {
    --options_.expiries;
    now_ = std::max(now_, DeadlineOf(n));
    for (auto& [id, fate] : fates_) {
      if (fate.ended == 0 && DeadlineOf(id) <= now_) fate.given_up = true;
    }
    Tell(CallerSession::Event(CallerSession::Tick{}));
    Tell(CalleeSession::Event(CalleeSession::Tick{}));
  } else if (words[0] == "tick") {
    now_ = std::max(now_, *caller_wake_);
    caller_wake_.reset();
    Tell(CallerSession::Event(CallerSession::Tick{}));
  } else {
    WEFT_CHECK(false) << move;
  }
}

void SessionWorld::Tell(const CallerSession::Event& event) {
  std::vector<CallerSession::Action> actions;
  Give(caller_, event, &actions);
  std::vector<Wire> sends;
  std::vector<uint64_t> early;  // to be acknowledged although unsettled
  for (CallerSession::Action& action : actions) {
    if (auto* send = std::get_if<CallerSession::SendRequest>(&action)) {
      Wire& wire = sends.emplace_back();
      wire.kind = Wire::Kind::kRequest;
      wire.request = send->request;
      wire.text = absl::StrCat("request ", send->request->id);
    } else if (auto* ack = std::get_if<CallerSession::SendAck>(&action)) {
      Wire& wire = sends.emplace_back();
      wire.kind = Wire::Kind::kAck;
      wire.ack = ack->ack;
      wire.text = absl::StrCat("ack ", TextOf(ack->ack.ids), " / ",
                               TextOf(ack->ack.confirm));
    } else if (auto* cancel = std::get_if<CallerSession::SendCancel>(&action)) {
      Wire& wire = sends.emplace_back();
      wire.kind = Wire::Kind::kCancel;
      wire.cancel = cancel->cancel;
      wire.text = absl::StrCat("cancel ", TextOf(cancel->cancel.ids));
    } else if (auto* tell =
                   std::get_if<CallerSession::TellAttachments>(&action)) {
      TellOutcome("request", tell->id, tell->outcome,
                  &fates_[tell->id].request);
    } else if (auto* done = std::get_if<CallerSession::Complete>(&action)) {
      Ended(*done);
      if (options_.fault == Fault::kAckBeforeSettled &&
          unsettled_replies_.count(done->id) > 0) {
        early.push_back(done->id);
      }
    } else {
      caller_wake_ = std::get<CallerSession::WakeAt>(action).when;
      if (std::holds_alternative<CallerSession::Tick>(event) &&
          *caller_wake_ <= now_) {
        Fail("a tick asks for another at once, for ever");
      }
    }
  }
  if (!sends.empty() && !connected_) Fail("sent without a connection");
  if (options_.fault == Fault::kSendOrderLost) {
    std::reverse(sends.begin(), sends.end());
  }
  for (Wire& send : sends) network_.push_back(std::move(send));
  for (const uint64_t id : early) Tell(CallerSession::Settled{id, true});
}

void SessionWorld::Tell(const CalleeSession::Event& event) {
  std::vector<CalleeSession::Action> actions;
  Give(callee_, event, &actions);
  for (CalleeSession::Action& action : actions) {
    if (auto* run = std::get_if<CalleeSession::Run>(&action)) {
      Begin(*run->request);
    } else if (auto* cancel = std::get_if<CalleeSession::Cancel>(&action)) {
      const auto it = running_.find(cancel->id);
      if (it != running_.end()) it->second.is_cancelled = true;
    } else if (auto* tell =
                   std::get_if<CalleeSession::TellAttachments>(&action)) {
      if (options_.fault == Fault::kNoRollback &&
          tell->outcome == AttachmentOutcome::kRefused) {
        continue;
      }
      TellOutcome("reply", tell->id, tell->outcome, &fates_[tell->id].reply);
    } else if (auto* closed = std::get_if<CalleeSession::SendClosed>(&action)) {
      Wire& wire = network_.emplace_back();
      wire.kind = Wire::Kind::kClosed;
      wire.closed = closed->closed;
      if (options_.fault == Fault::kNeverAfterStart) {
        for (const Interval seen : wire.closed.seen) {
          wire.closed.never.push_back(seen);
        }
        wire.closed.seen.clear();
      }
      wire.text = absl::StrCat("closed ", TextOf(wire.closed.seen), " / ",
                               TextOf(wire.closed.never));
    } else if (auto* send = std::get_if<CalleeSession::SendReply>(&action)) {
      Wire& wire = network_.emplace_back();
      wire.kind = Wire::Kind::kReply;
      wire.reply = send->reply;
      wire.text = absl::StrCat("reply ", send->reply->id);
      if (send->reply->refusal == Refusal::kOverLimit && options_.fifo) {
        Fail("an honest caller was refused");
      }
      if (options_.fault == Fault::kAckBeforeDelivery) {
        const uint64_t id = send->reply->id;
        std::vector<CalleeSession::Action> ignored;
        callee_.OnEvent(CalleeSession::Acked{Ack{{{id, id}}, {}}}, now_,
                        &ignored);
      }
    } else if (auto* wake = std::get_if<CalleeSession::WakeAt>(&action)) {
      callee_wake_ = wake->when;
    } else if (auto* broken = std::get_if<CalleeSession::Violation>(&action)) {
      Fail(broken->why.ToString());
    }
  }
}

void SessionWorld::StartCall() {
  auto request = std::make_shared<Request>();
  const uint64_t id = fates_.size() + 1;
  request->function = "F";
  request->deadline = std::max(DeadlineOf(id), now_ + absl::Seconds(5));
  fates_[id] = Fate();
  if (options_.attached) {
    Attach(request.get());
    fates_[id].request.staged = true;
  }
  Tell(CallerSession::Start{request});
  if (request->id != id) Fail("ids are not 1, 2, 3, ...");
}

void SessionWorld::Connect() {
  const bool forgotten = callee_is_fresh_ && caller_.resumes();
  if (forgotten && options_.fault != Fault::kNoFence) {
    Tell(CallerSession::Event(CallerSession::Forgotten{}));
    return;
  }
  callee_is_fresh_ = false;
  connected_ = true;
  Tell(CalleeSession::Event(CalleeSession::Connected{}));
  Tell(CallerSession::Connected{options_.limits, std::nullopt, ""});
}

void SessionWorld::Disconnect() {
  connected_ = false;
  if (options_.fifo) network_.clear();
  Tell(CallerSession::Event(CallerSession::Disconnected{}));
  Tell(CalleeSession::Event(CalleeSession::Disconnected{}));
}

void SessionWorld::Deliver(size_t index, bool keep) {
  const Wire wire = network_[index];
  if (!keep) network_.erase(network_.begin() + index);
  switch (wire.kind) {
    case Wire::Kind::kRequest:
      if (options_.fault == Fault::kNoDedupe &&
          fates_[wire.request->id].started > 0) {
        RunOnce(wire.request->id);
      }
      return Tell(CalleeSession::Arrived{wire.request});
    case Wire::Kind::kAck:
      return Tell(CalleeSession::Acked{wire.ack});
    case Wire::Kind::kCancel:
      return Tell(CalleeSession::GivenUp{wire.cancel});
    case Wire::Kind::kReply:
      return Tell(CallerSession::Arrived{wire.reply});
    case Wire::Kind::kClosed:
      return Tell(CallerSession::Answered{wire.closed});
  }
}

// As an agent does: what comes with a request is taken before its function
// runs, which waits until that is settled.
void SessionWorld::Begin(const Request& request) {
  const uint64_t id = request.id;
  if (request.attachments.empty()) {
    RunOnce(id);
    return;
  }
  if (options_.request_refusals > 0) {
    --options_.request_refusals;
    return Refuse(id);
  }
  Attached& attached = fates_[id].request;
  if (attached.told > 0 && attached.outcome == AttachmentOutcome::kRefused) {
    Fail(absl::StrCat("A3: request ", id, " was refused, and taken later"));
  }
  attached.taken = true;
  running_[id].waits = true;
  unsettled_requests_.insert(id);
}

void SessionWorld::Refuse(uint64_t id) {
  auto reply = std::make_shared<Reply>();
  reply->id = id;
  reply->status = absl::UnimplementedError("nothing takes its attachments");
  reply->refusal = Refusal::kAttachments;
  Tell(CalleeSession::Finished{std::move(reply)});
}

void SessionWorld::SettleRequest(uint64_t id) {
  unsettled_requests_.erase(id);
  fates_[id].request.settled = true;
  const auto it = running_.find(id);
  if (it != running_.end() && !it->second.is_cancelled) RunOnce(id);
  Tell(CalleeSession::Settled{id});
}

void SessionWorld::SettleReply(uint64_t id, bool taken) {
  unsettled_replies_.erase(id);
  Attached& attached = fates_[id].reply;
  if (attached.told > 0 && attached.outcome == AttachmentOutcome::kRefused) {
    Fail(absl::StrCat("A3: reply ", id, " was refused, and taken later"));
  }
  attached.taken = attached.settled = taken;
  Tell(CallerSession::Settled{id, taken});
}

void SessionWorld::Finish(uint64_t id) {
  const bool has_run = !running_[id].waits;
  running_.erase(id);
  auto reply = std::make_shared<Reply>();
  reply->id = id;
  if (!has_run) {
    reply->status = absl::CancelledError("cancelled before it ran");
  } else if (options_.attached) {
    Attach(reply.get());
    fates_[id].reply.staged = true;
  }
  Tell(CalleeSession::Finished{std::move(reply)});
}

void SessionWorld::TellOutcome(const char* of, uint64_t id,
                               AttachmentOutcome outcome, Attached* attached) {
  attached->outcome = outcome;
  const std::string what =
      absl::StrCat(of, " ", id, " received ", NameOf(outcome));
  if (++attached->told > 1) Fail(absl::StrCat("A1: ", what, " after another"));
  if (!attached->staged) Fail(absl::StrCat("A1: ", what, " but has none"));
  switch (outcome) {
    case AttachmentOutcome::kDelivered:
      if (!attached->settled) Fail(absl::StrCat("A2: ", what, ", unsettled"));
      break;
    case AttachmentOutcome::kRefused:
      if (attached->taken) Fail(absl::StrCat("A3: ", what, " but was taken"));
      break;
    case AttachmentOutcome::kAbandoned:
      if (!crashed_ && !forgot_) {
        Fail(absl::StrCat("A4: ", what, " while the other side lives"));
      }
  }
}

void SessionWorld::Crash() {
  crashed_ = true;
  network_.clear();
  running_.clear();
  unsettled_requests_.clear();
  for (auto& [id, fate] : fates_) fate.reply.staged = false;  // it is no more
  callee_ = CalleeSession(options_.limits);
  callee_is_fresh_ = true;
  if (connected_) Disconnect();
  // Membership tells the caller, which then never calls that incarnation.
  if (options_.fault == Fault::kNoFence) return;
  Tell(CallerSession::PeerGone{absl::UnavailableError(kGone)});
}

void SessionWorld::RunOnce(uint64_t id) {
  if (++fates_[id].started > 1) {
    Fail(absl::StrCat("G1: call ", id, " started twice"));
  }
  running_[id].waits = false;
}

void SessionWorld::Ended(const CallerSession::Complete& complete) {
  Fate& fate = fates_[complete.id];
  if (complete.reply != nullptr && !complete.reply->attachments.empty()) {
    unsettled_replies_.insert(complete.id);
  }
  fate.status = complete.status;
  if (++fate.ended > 1) {
    Fail(absl::StrCat("G2: call ", complete.id, " ended twice"));
  }
  if (complete.status.ok() && fate.started == 0) {
    Fail(absl::StrCat("G2: call ", complete.id, " has a reply but never ran"));
  }
  if (fate.started > 0 && !complete.status.ok() && complete.reply == nullptr &&
      !OutcomeUnknown(complete.status)) {
    Fail(absl::StrCat("G5: call ", complete.id, " ran but ended as if not: ",
                      complete.status.ToString()));
  }
}

void SessionWorld::Settle() {
  options_.disconnects = options_.drops = options_.duplicates = 0;
  if (connected_) Disconnect();
  for (int round = 0; round < 3 && !caller_.is_gone(); ++round) {
    if (!connected_) Connect();
  }
  for (int step = 0; step < 1000 && violation_.empty(); ++step) {
    if (!network_.empty()) {
      Deliver(0, /*keep=*/false);
    } else if (!unsettled_requests_.empty()) {
      SettleRequest(*unsettled_requests_.begin());
    } else if (!unsettled_replies_.empty()) {
      SettleReply(*unsettled_replies_.begin(), /*taken=*/true);
    } else if (!running_.empty()) {
      Finish(running_.begin()->first);
    } else if (caller_wake_.has_value() &&
               *caller_wake_ < now_ + absl::Seconds(1)) {
      Apply("tick");
    } else {
      break;
    }
  }
  for (const auto& [id, fate] : fates_) {
    // Out of order, a request may overtake the close that makes room for it.
    const bool refused =
        (!options_.fifo && absl::IsResourceExhausted(fate.status)) ||
        absl::IsUnimplemented(fate.status);  // see Refuse()
    const bool excused = fate.given_up || crashed_ || forgot_ || refused;
    if (fate.ended != 1) {
      Fail(absl::StrCat("G2: call ", id, " ended ", fate.ended, " times"));
    } else if (!fate.status.ok() && !excused) {
      Fail(absl::StrCat("G2: call ", id,
                        " lost its reply: ", fate.status.ToString()));
    }
    const Attached* const all[] = {&fate.request, &fate.reply};
    for (const Attached* attached : all) {
      if (!attached->staged || attached->told == 1) continue;
      Fail(absl::StrCat("A1: a ", attached == all[0] ? "request" : "reply",
                        " of call ", id, " received ", attached->told,
                        " outcomes"));
    }
  }
  if (caller_.is_gone()) return;
  if (callee_.known_calls() != 0) Fail("G4: the callee remembers ended calls");
  if (caller_.pending_calls() != 0 || caller_.settling_calls() != 0 ||
      caller_.awaits_answers()) {
    Fail("G4: the caller remembers ended calls");
  }
  if (callee_.never_intervals() != 0) {
    Fail("G4: the callee remembers what it has answered");
  }
}

std::string SessionWorld::Fingerprint() const {
  std::vector<std::string> wires;
  for (const Wire& wire : network_) wires.push_back(wire.text);
  if (!options_.fifo) std::sort(wires.begin(), wires.end());
  std::string text =
      absl::StrCat(caller_.Fingerprint(), "|", callee_.Fingerprint(), "|",
                   now_.nanoseconds(), connected_, crashed_, callee_is_fresh_,
                   "|", options_.drops, options_.duplicates,
                   options_.disconnects, options_.abandons, options_.expiries,
                   options_.unreachables, options_.forgets, options_.crashes,
                   options_.request_refusals, options_.reply_refusals);
  for (const std::string& wire : wires) absl::StrAppend(&text, "|", wire);
  for (const auto& [id, served] : running_) {
    absl::StrAppend(&text, "|r", id, served.waits ? "w" : "",
                    served.is_cancelled ? "x" : "");
  }
  for (const uint64_t id : unsettled_requests_) {
    absl::StrAppend(&text, "|q", id);
  }
  for (const uint64_t id : unsettled_replies_) absl::StrAppend(&text, "|p", id);
  for (const auto& [id, fate] : fates_) {
    absl::StrAppend(&text, "|f", id, ",", fate.started, ",", fate.ended,
                    fate.given_up);
    for (const Attached* attached : {&fate.request, &fate.reply}) {
      absl::StrAppend(&text, ",", attached->staged, attached->taken,
                      attached->settled, attached->told,
                      static_cast<int>(attached->outcome));
    }
  }
  return text;
}

}  // namespace weft::rpc
