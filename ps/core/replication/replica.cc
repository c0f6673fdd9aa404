#include "weft/ps/core/replication/replica.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::ps {
namespace {

// The highest number of a log entry that is accepted from others: so counting
// on from it cannot overflow.
constexpr uint64_t kGreatestNumber = uint64_t{1} << 62;

// What was proposed may not have been made.
constexpr absl::Duration kProposeAgainAfter = absl::Milliseconds(100);

// Besides its payload.
constexpr int64_t kEntryBytes = 64;

int64_t BytesOf(const LogEntry& entry) {
  return kEntryBytes + static_cast<int64_t>(entry.payload.size());
}

uint64_t Through(const Marks& marks, ClientId client) {
  const auto window = marks.find(client);
  return window == marks.end() ? 0 : window->second.through();
}

}  // namespace

Replica::Replica(WorkerKey self, int entry, ReplicaOptions options, Marks marks)
    : self_(self),
      number_(entry),
      options_(options),
      applied_(std::move(marks)),
      answers_from_(Leases::Never()) {}

void Replica::Recover(uint64_t n, Marks marks,
                      const std::vector<LogEntry>& entries) {
  WEFT_CHECK_EQ(map_epoch_, uint64_t{0});
  end_ = n;
  applied_ = std::move(marks);
  TakeEntries(entries);
  durable_ = end_;
  is_recovered_ = true;
}

Replica::Action& Replica::Add(Action::Kind kind) {
  actions_.emplace_back();
  actions_.back().kind = kind;
  return actions_.back();
}

void Replica::Propose(MapChange::Kind kind, const Now& now) {
  if (proposed_ == entry_.changed &&
      now.time - proposed_at_ <
          std::min(options_.resend_after, kProposeAgainAfter)) {
    return;
  }
  proposed_ = entry_.changed;
  proposed_at_ = now.time;
  Add(Action::Kind::kPropose).change = {kind, number_, entry_.changed};
}

void Replica::Send(WorkerKey to, ReplicaMessage message) {
  message.entry = number_;
  message.map_epoch = map_epoch_;
  Action& action = Add(Action::Kind::kSend);
  action.to = to;
  action.message = std::move(message);
}

// --- The map -----------------------------------------------------------------

void Replica::OnMap(const PartitionMap& map, const Now& now) {
  // Another job's map may lack this partition.
  if (map.epoch() <= map_epoch_ || number_ >= map.entries()) return;
  map_epoch_ = map.epoch();
  const PartitionMap::Entry before = entry_;
  entry_ = map.entry(number_);
  if (entry_.changed != before.changed) ChangeRole(before, now);
  if (role_ == Role::kPrimary &&
      map.StateOf(former_) == PartitionMap::State::kExited) {
    answers_from_ = std::min(answers_from_, now.time);
  }
  if (role_ == Role::kPrimary) {
    AdvanceStable(now);
    HandOverIfReady(now);
  }
}

void Replica::ChangeRole(const PartitionMap::Entry& before, const Now& now) {
  const bool is_backup = entry_.backup == self_;
  bool has_handed_over = false;
  if (role_ == Role::kPrimary &&
      (entry_.primary != self_ || entry_.epoch != before.epoch)) {
    // This server has taken nothing since it began to hand over, and would know
    // if the other one had filled it anew. So it keeps its rows, although the
    // other may have had the role and lost it.
    const bool keeps =
        before.is_handing_over &&
        (entry_.primary == self_ || (is_backup && entry_.in_sync));
    LoseRole(keeps);
    has_handed_over = keeps && is_backup;
  }
  const bool was_recovered = is_recovered_;
  if (!MayRevive()) is_recovered_ = false;
  if (entry_.primary == self_) {
    if (role_ != Role::kPrimary) {
      TakeRole(before.primary == self_ ? before.backup : before.primary, now);
    }
    SetPeers(now);
    hands_over_at_ = now.time;
  } else if (is_backup || entry_.next == self_) {
    role_ = Role::kBackup;
    // Where the table is made, all have the same: nothing.
    if (has_handed_over ||
        (before.changed == 0 && is_backup && entry_.in_sync)) {
      content_epoch_ = entry_.epoch;
      content_fill_ = 0;
    }
    // The new primary need not wait for the end of leases any more.
    if (has_handed_over) Acknowledge();
  } else {
    if (role_ != Role::kNone || content_epoch_ != 0 ||
        was_recovered != is_recovered_) {
      Add(Action::Kind::kDrop);
    }
    role_ = Role::kNone;
    content_epoch_ = content_fill_ = 0;
    receiving_ = Receiving();
  }
}

bool Replica::MayRevive() const {
  const auto is_earlier = [&](WorkerKey key) {
    return key.id == self_.id && key != self_;
  };
  return IsNone(entry_.primary) || is_earlier(entry_.primary) ||
         (entry_.in_sync && is_earlier(entry_.backup));
}

void Replica::TakeRole(WorkerKey former, const Now& now) {
  role_ = Role::kPrimary;
  former_ = former;
  answers_from_ =
      IsNone(former) ? Leases::Never() : now.leases.GrantedUntil(former);
  content_epoch_ = content_fill_ = 0;
  receiving_ = Receiving();
  fills_ = 0;
  log_.clear();
  log_bytes_ = 0;
  base_ = taken_at_ = end_;
  stable_ = 0;
  unrepeatable_ = 0;
  taken_marks_ = applied_;
  stable_marks_ = end_ == 0 ? applied_ : Marks();
  Add(Action::Kind::kServe);
}

void Replica::LoseRole(bool keeps) {
  for (const Held& held : held_) Reply(held, Code::kStale);
  held_.clear();
  log_.clear();
  log_bytes_ = 0;
  backup_ = next_ = Peer();
  role_ = Role::kNone;
  if (!keeps) Add(Action::Kind::kDrop);
}

void Replica::SetPeers(const Now& now) {
  Peer next = std::exchange(next_, Peer());
  if (entry_.in_sync && entry_.backup == backup_.key) {
    backup_.counts = true;
  } else if (entry_.in_sync && entry_.backup == next.key) {
    backup_ = std::move(next);
    backup_.counts = true;
  } else {
    SetPeer(backup_, entry_.backup, entry_.in_sync, now);
  }
  SetPeer(next_, entry_.next, /*in_sync=*/false, now);
}

void Replica::SetPeer(Peer& peer, WorkerKey key, bool in_sync, const Now& now) {
  // Whoever it is stands by since now, also if it did before: in between it may
  // have dropped what it had.
  peer = Peer();
  peer.key = key;
  if (IsNone(key)) return;
  if (in_sync) {  // where the table is made, or roles were changed
    peer.is_filled = peer.counts = true;
    peer.acked = end_;
    peer.moved = now.time;
    return;
  }
  // What the server may have had before does not count: it acknowledges nothing
  // until it is filled.
  peer.fill = ++fills_;
  peer.waits_to_fill = true;
  peer.moved = now.time;
  if (!options_.fills_when_told) BeginFill(now);
}

// --- From primary to backup --------------------------------------------------

void Replica::BeginFill(const Now& now) {
  if (!waits_to_fill()) return;
  StartFill(backup_.waits_to_fill ? backup_ : next_, now);
}

void Replica::StartFill(Peer& peer, const Now& now) {
  peer.fill = ++fills_;
  peer.is_filled = peer.waits_to_fill = false;
  peer.acked = end_;
  peer.moved = peer.resent = now.time;
  peer.pieces = peer.sent = peer.taken = 0;
  peer.marks = applied_;
  Add(Action::Kind::kCopy);
}

void Replica::OnCopied(uint32_t pieces) {
  WEFT_CHECK_GT(pieces, uint32_t{0});
  if (!is_filling()) return;
  Peer& peer = backup_.is_filling() ? backup_ : next_;
  if (peer.pieces != 0) return;
  peer.pieces = pieces;
  SendPieces(peer);
}

void Replica::SendPieces(Peer& peer) {
  while (peer.sent < peer.pieces &&
         peer.sent - peer.taken < options_.most_pieces) {
    ReplicaMessage copy;
    copy.kind = ReplicaMessage::Kind::kFill;
    copy.epoch = entry_.epoch;
    copy.fill = peer.fill;
    copy.n = peer.acked;
    copy.piece = peer.sent++;
    copy.pieces = peer.pieces;
    if (peer.sent == peer.pieces) copy.marks = peer.marks;
    Send(peer.key, std::move(copy));
  }
}

bool Replica::OnPieceAck(Peer& peer, const ReplicaMessage& message,
                         const Now& now) {
  if (message.pieces == 0) return false;
  if (!peer.is_filled && message.piece > peer.taken &&
      message.piece <= peer.sent) {
    peer.taken = message.piece;
    peer.moved = peer.resent = now.time;
    SendPieces(peer);
  }
  return true;
}

void Replica::SendEntries(const Peer& peer, uint64_t after) {
  while (after < end_) {
    ReplicaMessage message;
    message.kind = ReplicaMessage::Kind::kAppend;
    message.epoch = entry_.epoch;
    message.fill = peer.fill;
    const uint64_t last =
        std::min<uint64_t>(end_, after + options_.most_of_a_message);
    message.entries.reserve(last - after);
    for (; after < last; ++after) {
      message.entries.push_back(log_[after - base_]);
    }
    Send(peer.key, std::move(message));
  }
}

void Replica::OnMessage(WorkerKey from, const ReplicaMessage& message,
                        const Now& now) {
  if (message.map_epoch > map_epoch_) Add(Action::Kind::kLearnMap);
  switch (message.kind) {
    case ReplicaMessage::Kind::kAck:
      return OnAck(from, message, now);
    case ReplicaMessage::Kind::kStale:
      return;
    case ReplicaMessage::Kind::kFill:
    case ReplicaMessage::Kind::kAppend:
      return OnFromPrimary(from, message);
  }
}

void Replica::OnFromPrimary(WorkerKey from, const ReplicaMessage& message) {
  if (entry_.primary != from ||
      (entry_.backup != self_ && entry_.next != self_) ||
      entry_.epoch != message.epoch) {
    // If it knows a newer map, it sends this again until this server does too.
    if (message.map_epoch > map_epoch_) return;
    ReplicaMessage stale;
    stale.kind = ReplicaMessage::Kind::kStale;
    Send(from, std::move(stale));
    return;
  }
  // By a map between this server's and the sender's it may have no part: then
  // it would drop what it had acknowledged. The sender sends this again.
  if (message.kind == ReplicaMessage::Kind::kFill &&
      message.map_epoch > map_epoch_) {
    return;
  }
  if (message.kind == ReplicaMessage::Kind::kFill &&
      message.n <= kGreatestNumber && message.piece < message.pieces &&
      (content_epoch_ != message.epoch || content_fill_ < message.fill)) {
    TakePiece(message);
  }
  if (content_epoch_ != message.epoch || content_fill_ != message.fill) return;
  TakeEntries(message.entries);
  Acknowledge();
}

void Replica::TakePiece(const ReplicaMessage& message) {
  const bool is_other =
      receiving_.epoch != message.epoch || receiving_.fill < message.fill;
  if (is_other && message.piece == 0) {
    // What was there goes with the first piece.
    content_epoch_ = content_fill_ = 0;
    receiving_ = {message.epoch, message.fill, message.pieces, 0};
  }
  if (receiving_.epoch != message.epoch || receiving_.fill != message.fill ||
      receiving_.pieces != message.pieces) {
    return;
  }
  if (message.piece == receiving_.has) {
    ++receiving_.has;
    Add(Action::Kind::kLoad).message = message;
  }
  if (receiving_.has < receiving_.pieces) {
    ReplicaMessage ack;
    ack.kind = ReplicaMessage::Kind::kAck;
    ack.epoch = receiving_.epoch;
    ack.fill = receiving_.fill;
    ack.piece = receiving_.has;
    ack.pieces = receiving_.pieces;
    Send(entry_.primary, std::move(ack));
    return;
  }
  content_epoch_ = message.epoch;
  content_fill_ = message.fill;
  end_ = message.n;
  durable_ = 0;
  applied_ = message.marks;
  receiving_ = Receiving();
}

void Replica::TakeEntries(const std::vector<LogEntry>& entries) {
  for (const LogEntry& entry : entries) {
    if (entry.lsn.n <= end_) continue;
    if (entry.lsn.n != end_ + 1) return;  // one before it is missing
    end_ = entry.lsn.n;
    Apply(entry.mark, applied_);
    Add(Action::Kind::kApply).log_entry = entry;
  }
}

void Replica::Acknowledge() {
  ReplicaMessage ack;
  ack.kind = ReplicaMessage::Kind::kAck;
  ack.epoch = content_epoch_;
  ack.fill = content_fill_;
  ack.n = options_.level == Durability::kD3 ? std::min(end_, durable_) : end_;
  Send(entry_.primary, std::move(ack));
}

void Replica::OnAck(WorkerKey from, const ReplicaMessage& message,
                    const Now& now) {
  if (role_ != Role::kPrimary || IsNone(from) ||
      (from != backup_.key && from != next_.key)) {
    return;
  }
  Peer& peer = from == backup_.key ? backup_ : next_;
  if (message.epoch != entry_.epoch || message.fill != peer.fill) return;
  // The former primary knows that it no longer has the role.
  if (from == former_) answers_from_ = std::min(answers_from_, now.time);
  if (peer.waits_to_fill || OnPieceAck(peer, message, now) ||
      message.n > end_ || message.n < base_) {
    return;
  }
  const bool was_filled = std::exchange(peer.is_filled, true);
  if (!was_filled) peer.marks.clear();
  if (!was_filled || message.n > peer.acked) peer.moved = now.time;
  peer.acked = std::max(peer.acked, message.n);
  if (!was_filled) SendEntries(peer, peer.acked);
  if (!options_.fills_when_told) BeginFill(now);
  CountPeerIfClose(peer, now);
  AdvanceStable(now);
  HandOverIfReady(now);
}

void Replica::CountPeerIfClose(Peer& peer, const Now& now) {
  if (!peer.is_filled) return;
  // Only who may answer by itself takes somebody else in: then no lease of an
  // earlier primary is left that the new backup knows nothing of.
  if (!peer.counts && end_ - peer.acked <= options_.most_lag &&
      MayAnswer(now) && now.time < now.leases.HeldUntil(peer.key)) {
    peer.counts = true;
  }
  if (is_backup_ready() && !entry_.in_sync) {
    Propose(MapChange::Kind::kMarkInSync, now);
  }
  if (is_next_ready()) Propose(MapChange::Kind::kTakeNext, now);
}

bool Replica::IsReadyToHandOver(const Now& now) const {
  // The backup knows the roles as they are: if it takes the role and gives it
  // back, each of the two has seen each change.
  return is_handing_over() && backup_.is_filled && backup_.counts &&
         backup_.acked == end_ && stable_ == end_ &&
         now.leases.EpochOf(backup_.key) >= entry_.epoch;
}

void Replica::HandOverIfReady(const Now& now) {
  if (!is_handing_over()) return;
  if (IsReadyToHandOver(now)) {
    Propose(MapChange::Kind::kHandOver, now);
  } else if (now.time - hands_over_at_ > options_.silence) {
    // Clients have waited for long enough.
    Propose(MapChange::Kind::kKeepRole, now);
  }
}

void Replica::OnDurable(uint64_t n, const Now& now) {
  durable_ = std::max(durable_, std::min(n, end_));
  if (role_ == Role::kPrimary) AdvanceStable(now);
  if (role_ == Role::kBackup && content_epoch_ == entry_.epoch) {
    Acknowledge();
  }
}

void Replica::OnTick(const Now& now) {
  if (role_ == Role::kPrimary) TickAsPrimary(now);
  if (role_ == Role::kBackup && entry_.in_sync && entry_.backup == self_ &&
      now.time - now.leases.HeardAt(entry_.primary) > options_.silence) {
    Propose(MapChange::Kind::kPromote, now);
  }
}

void Replica::TickPeer(Peer& peer, const Now& now) {
  if (IsNone(peer.key)) return;
  const absl::Duration waits = now.time - peer.moved;
  const bool lacks = peer.is_filled && peer.acked < end_;
  if (now.time - now.leases.HeardAt(peer.key) > options_.silence ||
      (lacks && waits > options_.stall)) {
    Propose(&peer == &next_ ? MapChange::Kind::kDropNext
                            : MapChange::Kind::kDropBackup,
            now);
  }
  const bool has_copy = peer.is_filling();
  if (has_copy && waits >= options_.fill_again_after) StartFill(peer, now);
  if (has_copy && now.time - peer.resent >= options_.resend_pieces_after) {
    peer.resent = now.time;
    peer.sent = peer.taken;
    SendPieces(peer);
  }
  if (lacks && waits >= options_.resend_after) SendEntries(peer, peer.acked);
  CountPeerIfClose(peer, now);
}

void Replica::TickAsPrimary(const Now& now) {
  TickPeer(backup_, now);
  TickPeer(next_, now);
  AdvanceStable(now);
  HandOverIfReady(now);
}

// --- The log -----------------------------------------------------------------

bool Replica::Apply(const Mark& mark, Marks& to) {
  SequenceWindow& window = to[mark.client];
  if (mark.first > 0) window.SkipTo(mark.first - 1);
  if (window.Ask(mark.sequence) != SequenceWindow::Answer::kNew) return false;
  window.Mark(mark.sequence);
  return true;
}

void Replica::Append(const Mark& mark, const Bytes& payload, const Now& now) {
  WEFT_CHECK(role_ == Role::kPrimary);
  WEFT_CHECK(Apply(mark, applied_));
  for (Peer* peer : {&backup_, &next_}) {
    if (peer->acked == end_) peer->moved = now.time;
  }
  log_.push_back({{entry_.epoch, ++end_}, mark, payload});
  log_bytes_ += BytesOf(log_.back());
  Add(Action::Kind::kApply).log_entry = log_.back();
  for (const Peer* peer : {&backup_, &next_}) {
    if (peer->is_filled) SendEntries(*peer, end_ - 1);
  }
  AdvanceStable(now);
}

void Replica::AdvanceStable(const Now& now) {
  uint64_t stable = stable_;
  if (backup_.counts || next_.counts) {
    uint64_t all = end_;
    for (const Peer* peer : {&backup_, &next_}) {
      if (peer->counts) all = std::min(all, peer->acked);
    }
    stable = std::max(stable, all);
  } else if (!options_.stalls_alone) {
    stable = end_;
  }
  if (options_.level == Durability::kD3) stable = std::min(stable, durable_);
  if (stable > stable_) {
    if (stable_ < taken_at_ && stable >= taken_at_) {
      stable_marks_ = std::exchange(taken_marks_, Marks());
    }
    for (const LogEntry& entry : log_) {
      if (entry.lsn.n > stable) break;
      if (entry.lsn.n > stable_) Apply(entry.mark, stable_marks_);
    }
    stable_ = stable;
  }
  TrimLog();
  ReleaseHeld(now);
}

void Replica::TrimLog() {
  uint64_t keep = stable_;
  for (const Peer* peer : {&backup_, &next_}) {
    if (!IsNone(peer->key) && !peer->waits_to_fill) {
      keep = std::min(keep, peer->acked);
    }
  }
  for (; base_ < keep && !log_.empty(); ++base_) {
    log_bytes_ -= BytesOf(log_.front());
    log_.pop_front();
  }
}

uint64_t Replica::AppliedThrough(ClientId client) const {
  return Through(applied_, client);
}

uint64_t Replica::StableThrough(ClientId client) const {
  return role_ == Role::kPrimary ? Through(stable_marks_, client) : 0;
}

void Replica::Forget(ClientId client) {
  applied_.erase(client);
  stable_marks_.erase(client);
  taken_marks_.erase(client);
}

// --- Requests ----------------------------------------------------------------

bool Replica::MayAnswer(const Now& now) const {
  return role_ == Role::kPrimary && now.time >= answers_from_ &&
         now.time < now.leases.HeldUntil(Leases::kCoordinator) &&
         (!backup_.counts || now.time < now.leases.HeldUntil(backup_.key)) &&
         (!next_.counts || now.time < now.leases.HeldUntil(next_.key));
}

bool Replica::Accepts(int entry, WorkerKey to, uint64_t epoch,
                      const Now& now) const {
  return entry == number_ && to == self_ && epoch == entry_.epoch &&
         MayAnswer(now);
}

Replica::Held Replica::HeldOf(const PushRequest& request) {
  Held held;
  held.client = request.mark.client;
  held.until_stable = request.until_stable;
  held.answer.token = request.token;
  held.answer.entry = request.entry;
  held.answer.epoch = request.epoch;
  held.answer.sequence = request.mark.sequence;
  return held;
}

void Replica::Reply(const Held& held, Code code) {
  Action& action =
      Add(held.is_read ? Action::Kind::kAnswerRead : Action::Kind::kAnswerPush);
  action.answer = held.answer;
  action.answer.code = code;
  action.answer.map_epoch = map_epoch_;
  if (!held.is_read) {
    action.answer.stable_through = StableThrough(held.client);
  }
}

bool Replica::Refuse(int entry, WorkerKey to, uint64_t epoch, Held held,
                     const Now& now) {
  if (role_ != Role::kPrimary || entry != number_ || to != self_ ||
      epoch != entry_.epoch) {
    if (epoch > entry_.epoch) Add(Action::Kind::kLearnMap);
    Reply(held, Code::kStale);
    return true;
  }
  if (MayAnswer(now)) return false;
  Reply(held, Code::kFenced);
  return true;
}

void Replica::OnPush(const PushRequest& request, const Bytes& payload,
                     const Now& now) {
  const Held held = HeldOf(request);
  const Mark& mark = request.mark;
  if (Refuse(request.entry, request.to, request.epoch, held, now)) return;
  if (mark.sequence == 0) return Reply(held, Code::kOk);
  SequenceWindow window = applied_[mark.client];
  if (mark.first > 0) window.SkipTo(mark.first - 1);
  switch (window.Ask(mark.sequence)) {
    case SequenceWindow::Answer::kTooFar:
      return Reply(held, Code::kTooFar);
    case SequenceWindow::Answer::kNew:
      if (!HasRoom()) return Reply(held, Code::kBusy);
      Append(mark, payload, now);
      break;
    case SequenceWindow::Answer::kDuplicate:
      break;
  }
  held_.push_back(held);
  ReleaseHeld(now);
}

bool Replica::OnPart(const PushRequest& request, const Now& now) {
  return !Refuse(request.entry, request.to, request.epoch, HeldOf(request),
                 now);
}

void Replica::AnswerPart(const PushRequest& request, const Now& now) {
  held_.push_back(HeldOf(request));
  ReleaseHeld(now);
}

void Replica::AppendRound(const Bytes& sum, bool is_repeatable,
                          const Now& now) {
  if (!is_repeatable) unrepeatable_ = end_ + 1;
  Append({kRounds, AppliedThrough(kRounds) + 1, 0}, sum, now);
}

void Replica::OnRead(const ReadRequest& request, const Now& now,
                     bool is_behind) {
  Held held;
  held.is_read = true;
  held.answer.token = request.token;
  held.answer.entry = request.entry;
  held.answer.epoch = request.epoch;
  if (Refuse(request.entry, request.to, request.epoch, held, now)) return;
  if (is_behind || AppliedThrough(request.client) < request.through) {
    return Reply(held, Code::kBehind);
  }
  held.n = options_.level >= Durability::kD2 ? end_ : unrepeatable_;
  Add(Action::Kind::kRead).answer = held.answer;
  held_.push_back(held);
  ReleaseHeld(now);
}

bool Replica::IsDue(const Held& held) const {
  if (held.is_read) return stable_ >= held.n;
  if (options_.level < Durability::kD2 && !held.until_stable) return true;
  const auto window = stable_marks_.find(held.client);
  return window != stable_marks_.end() &&
         window->second.Ask(held.answer.sequence) ==
             SequenceWindow::Answer::kDuplicate;
}

void Replica::ReleaseHeld(const Now& now) {
  if (held_.empty() || !MayAnswer(now)) return;
  size_t kept = 0;
  for (const Held& held : held_) {
    if (IsDue(held)) {
      Reply(held, Code::kOk);
    } else {
      held_[kept++] = held;
    }
  }
  held_.resize(kept);
}

std::string Replica::Snapshot(Instant now) const {
  std::string out = absl::StrCat(
      static_cast<int>(role_), ",", map_epoch_, ",", end_, ",", durable_, ",",
      content_epoch_, ",", content_fill_, ",",
      answers_from_ <= now ? 0 : absl::ToInt64Milliseconds(answers_from_ - now),
      is_recovered_ ? ",r," : ",", base_, ",", stable_, ",", taken_at_, ",",
      unrepeatable_, ",", proposed_, ",", held_.size(), ",", receiving_.epoch,
      ",", receiving_.fill, ",", receiving_.has, ",",
      is_handing_over() ? absl::ToInt64Milliseconds(now - hands_over_at_) : 0);
  for (const Peer* peer : {&backup_, &next_}) {
    absl::StrAppend(&out, ";", peer->key.ToString(), ",", peer->fill, ",",
                    peer->is_filled, ",", peer->acked, ",", peer->counts, ",",
                    absl::ToInt64Milliseconds(now - peer->moved), ",",
                    peer->pieces, ",", peer->sent, ",", peer->taken, ",",
                    peer->waits_to_fill);
  }
  for (const Marks* marks : {&applied_, &stable_marks_}) {
    for (const auto& [client, window] : *marks) {
      absl::StrAppend(&out, ";", client, ":", window.high(), "/",
                      window.through());
    }
    absl::StrAppend(&out, "|");
  }
  return out;
}

}  // namespace weft::ps
