// CoordinatorCore: see the header.

#include "weft/rendezvous/core/coordinator_core.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {
namespace {

// A longer pause between two events is the coordinator's own absence, and not
// counted as silence of the others.
constexpr absl::Duration kLongestAttention = absl::Seconds(1);

// A reason is in every view.
constexpr size_t kMaxReasonBytes = 256;

// `text`, or its beginning, which ends where a character does.
std::string Shortened(const std::string& text) {
  if (text.size() <= kMaxReasonBytes) return text;
  size_t end = kMaxReasonBytes;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

// Whether `member` is the one that has ended, and not another of its name, as
// that of a second `weft run` is which was refused. Where that is unclear
// silence decides.
bool IsOf(const v1::ReportExitRequest& report, const v1::Member& member) {
  if (report.incarnation() != 0) {
    return report.incarnation() == member.incarnation();
  }
  return report.process().pid() != 0 &&
         report.process().pid() == member.process().group() &&
         report.process().space() == member.process().space();
}

absl::StatusCode LostCode() { return absl::StatusCode::kFailedPrecondition; }

BarrierTable::Names EveryoneIn(const World& world) {
  auto everyone = std::make_shared<BarrierTable::NameSet>();
  for (const auto& [role, count] : world.roles) {
    for (int rank = 0; rank < count; ++rank) {
      everyone->all.insert(absl::StrCat(role, rank));
    }
  }
  return everyone;
}

// `bytes` as field `number` of a message.
std::string AsField(int number, const std::string& bytes) {
  std::string field;
  {
    google::protobuf::io::StringOutputStream stream(&field);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteTag(static_cast<uint32_t>(number) << 3 | 2);
    out.WriteVarint32(static_cast<uint32_t>(bytes.size()));
  }
  return field + bytes;
}

}  // namespace

std::string CoordinatorCore::Answer::Encode() const {
  std::string bytes =
      std::visit([](const auto& m) { return m.SerializeAsString(); }, reply);
  if (told == nullptr) return bytes;
  // In the bytes of a message its fields may come in any order.
  int number = v1::WatchReply::kViewFieldNumber;
  if (std::holds_alternative<v1::JoinReply>(reply)) {
    number = v1::JoinReply::kViewFieldNumber;
  }
  return bytes + AsField(number, told->bytes);
}

CoordinatorCore::CoordinatorCore(Options options, uint32_t term,
                                 const std::vector<v1::LogRecord>& history,
                                 Instant now)
    : options_(std::move(options)),
      term_(term),
      members_(term),
      store_(options_.store),
      barriers_(options_.barriers),
      now_(now) {
  for (const v1::LogRecord& record : history) Replay(record);
  members_.Index();
  published_ = members_.version();
  RemoveEarlierHosts();
}

void CoordinatorCore::Hear(Slot& slot) {
  if (!members_.Hear(slot, attended_)) return;
  Say(absl::StrCat(slot.name(), " is heard again"));
}

void CoordinatorCore::RemoveEarlierHosts() {
  for (auto& [name, slot] : members_.slots()) {
    if (!slot.is_in || !slot.member.hosts_coordinator()) continue;
    Remove(slot, "its process, which hosted the coordinator, has ended",
           /*left=*/false);
  }
}

CoordinatorCore::Actions CoordinatorCore::OnEvent(Instant now, Event event) {
  attended_ += std::min(now - now_, kLongestAttention);
  now_ = now;
  if (auto* call = std::get_if<Call>(&event)) {
    absl::Status status = CheckSize(options_, call->request);
    std::visit(
        [&](const auto& request) {
          if (status.ok()) status = CheckJob(request.job());
          if (!status.ok()) return Fail(call->ticket, status);
          On(call->ticket, request);
        },
        call->request);
  } else if (auto* gone = std::get_if<CallerGone>(&event)) {
    OnCallerGone(gone->ticket);
  } else if (auto* ran = std::get_if<Ran>(&event)) {
    OnRan(*ran);
  } else {
    OnTick();
  }
  Publish();
  return std::exchange(actions_, {});
}

absl::Status CoordinatorCore::CheckJob(const std::string& job) const {
  if (job.empty()) {
    return absl::InvalidArgumentError("coordinator: the request names no job");
  }
  if (options_.job.empty() || job == options_.job) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this coordinator serves job \"", options_.job,
                   "\", not job \"", job, "\": give --job=", options_.job,
                   " if that one is meant; if two jobs use "
                   "one address, give each its own --coordinator"));
}

// Staying and going.

absl::StatusOr<CoordinatorCore::Slot*> CoordinatorCore::FindLive(
    const v1::WorkerKey& key, uint64_t incarnation) {
  Slot* slot = members_.FindById(key.id());
  if (slot != nullptr && slot->is_in &&
      slot->member.key().epoch() == key.epoch() &&
      slot->member.incarnation() == incarnation) {
    return slot;
  }
  const std::string text = FromWire(key).ToString();
  if (slot != nullptr && key.epoch() <= slot->departed.key().epoch()) {
    return absl::Status(
        LostCode(),
        absl::StrCat("incarnation ", text, " of ", slot->departed.name(),
                     " is gone: ", slot->departed.reason()));
  }
  return absl::Status(
      LostCode(),
      absl::StrCat("this coordinator (term ", term_, ") does not know worker ",
                   text, ": it was restarted without its log"));
}

void CoordinatorCore::On(Ticket ticket, const v1::HeartbeatRequest& request) {
  const absl::StatusOr<Slot*> slot =
      FindLive(request.key(), request.incarnation());
  if (!slot.ok()) return Fail(ticket, slot.status());
  const std::string name = (*slot)->member.name();
  Hear(**slot);
  for (const v1::Departed& departed : request.departed()) Adopt(departed, name);
  if (!(*slot)->is_in) {
    return Fail(ticket,
                FindLive(request.key(), request.incarnation()).status());
  }
  SettleHeldJoins(name, /*holder_lives=*/true);
  v1::HeartbeatReply reply;
  reply.set_view_version(members_.version());
  Ok(ticket, std::move(reply));
}

void CoordinatorCore::Adopt(const v1::Departed& departed,
                            const std::string& reporter) {
  // This coordinator knows all that happened to keys of its own term.
  if (TermOf(departed.key().epoch()) >= term_) return;
  Slot* slot = members_.Find(departed.name());
  if (slot == nullptr || !slot->is_in ||
      slot->member.key().id() != departed.key().id() ||
      slot->member.key().epoch() > departed.key().epoch()) {
    return;
  }
  Remove(*slot,
         absl::StrCat(Shortened(departed.reason()), " (remembered by ",
                      reporter, ")"),
         departed.left());
}

void CoordinatorCore::On(Ticket ticket, const v1::AnnounceRequest& request) {
  const absl::StatusOr<Slot*> slot =
      FindLive(request.key(), request.incarnation());
  if (!slot.ok()) return Fail(ticket, slot.status());
  const v1::Member& member = (*slot)->member;
  if (!v1::Phase_IsValid(request.phase())) {
    return Fail(ticket, absl::InvalidArgumentError(absl::StrCat(
                            member.name(), " announces phase ", request.phase(),
                            ", which does not exist")));
  }
  if (request.phase() > member.phase()) {
    members_.SetPhase(**slot, request.phase());
    PersistJoined(**slot);
  }
  Ok(ticket, v1::AnnounceReply());
}

void CoordinatorCore::On(Ticket ticket, const v1::LeaveRequest& request) {
  const absl::StatusOr<Slot*> slot =
      FindLive(request.key(), request.incarnation());
  if (slot.ok()) Remove(**slot, "left", /*left=*/true);
  Ok(ticket, v1::LeaveReply());
}

void CoordinatorCore::On(Ticket ticket, const v1::ReportExitRequest& request) {
  Slot* slot = members_.Find(request.name());
  if (slot != nullptr && slot->is_in && IsOf(request, slot->member)) {
    Remove(*slot, Shortened(request.reason()), /*left=*/false);
  }
  Ok(ticket, v1::ReportExitReply());
}

void CoordinatorCore::Remove(Slot& slot, const std::string& reason, bool left) {
  const std::string name = slot.member.name();
  members_.Remove(slot, reason, left);
  v1::LogRecord record;
  *record.mutable_departed() = slot.departed;
  record.set_version(slot.changed_at);
  actions_.push_back(Persist{std::move(record)});
  store_.ClientGone(slot.member.incarnation());
  Say(absl::StrCat(name, left ? " left" : " is gone: ", left ? "" : reason),
      /*is_warning=*/!left);
  Publish();  // before its barriers fail: it learns first that it is out
  Report(barriers_.Gone(name, FromWire(slot.departed.key()), reason));
  SettleHeldJoins(name, /*holder_lives=*/false);
}

// The view.

void CoordinatorCore::AnswerWatch(Ticket ticket, const Watcher& watcher) {
  actions_.push_back(
      Answer{ticket, absl::OkStatus(), v1::WatchReply(),
             members_.TellTo(watcher.known_version, watcher.takes_changes)});
}

void CoordinatorCore::Publish() {
  const bool has_news = members_.version() != published_ || is_behind_;
  if (now_ < next_publishing_ || (!has_news && admitted_.empty())) return;
  auto answers = static_cast<int64_t>(admitted_.size());
  for (const auto& [ticket, member] : std::exchange(admitted_, {})) {
    AnswerJoin(ticket, member);
  }
  if (has_news) {
    const auto watches = held_watches_.TakeFor("");
    for (const auto& [ticket, watcher] : watches) AnswerWatch(ticket, watcher);
    answers += static_cast<int64_t>(watches.size());
    published_ = members_.version();
    is_behind_ = false;
  }
  if (answers <= options_.unpaced_answers) return;
  next_publishing_ = now_ + std::max(options_.publish_interval,
                                     answers * options_.answer_time);
}

// Many who ask one by one, as after a restart, are told together, too.
void CoordinatorCore::CountAnswer() {
  if (now_ - counted_since_ >= options_.publish_interval) {
    counted_since_ = now_;
    counted_ = 0;
  }
  if (++counted_ <= options_.unpaced_answers) return;
  counted_ = 0;
  Publish();  // what waits is not put off again and again
  next_publishing_ =
      std::max(next_publishing_, now_ + options_.publish_interval);
}

void CoordinatorCore::On(Ticket ticket, const v1::WatchRequest& request) {
  const Watcher watcher = {request.known_version(), request.takes_changes()};
  const bool is_behind = watcher.known_version < published_;
  const bool is_pause = now_ < next_publishing_;
  // In a pause all watchers wait for its end, so that they get the same view.
  if (request.wait_ms() == 0) return AnswerWatch(ticket, watcher);
  if (is_behind && !is_pause) {
    AnswerWatch(ticket, watcher);
    return CountAnswer();
  }
  if (held() >= options_.max_held_calls) {
    return Fail(ticket, absl::ResourceExhaustedError(
                            "coordinator: too many calls are waiting"));
  }
  held_watches_.Hold(ticket, "", Until(request.wait_ms()), watcher);
  is_behind_ = is_behind_ || is_behind;
}

// Time.

void CoordinatorCore::CheckSilentMembers() {
  const auto silent_for = [&](bool is_suspect, absl::Duration limit) {
    return members_.SilentSince(is_suspect, attended_ - limit);
  };
  std::vector<Slot*> dead = silent_for(true, options_.dead_after);
  for (Slot* slot : silent_for(false, options_.suspect_after)) {
    const absl::Duration silence = attended_ - slot->silent_from;
    if (silence >= options_.dead_after) {
      dead.push_back(slot);
      continue;
    }
    members_.SetSuspect(*slot, true);
    Say(absl::StrCat(slot->name(), " has been silent for ",
                     absl::FormatDuration(silence)),
        /*is_warning=*/true);
  }
  for (Slot* slot : dead) {
    const absl::Duration silence =
        absl::Trunc(attended_ - slot->heard_at, absl::Seconds(1));
    Remove(*slot,
           absl::StrCat("silent for ", absl::FormatDuration(std::max(
                                           silence, options_.dead_after))),
           /*left=*/false);
  }
}

// The member counts as if it was heard just long enough ago to be suspect.
void CoordinatorCore::OnRan(const Ran& ran) {
  Slot* slot = members_.Find(ran.name);
  const bool is_silent = slot != nullptr && slot->is_in &&
                         slot->member.suspect() &&
                         slot->member.incarnation() == ran.incarnation;
  if (!is_silent || attended_ - slot->heard_at >= options_.busy_dead_after) {
    return;
  }
  members_.SetSilentFrom(
      *slot, std::max(slot->silent_from, attended_ - options_.suspect_after));
}

bool CoordinatorCore::is_suspect(const std::string& name) const {
  const Slot* slot = members_.Find(name);
  return slot != nullptr && slot->is_in && slot->member.suspect();
}

void CoordinatorCore::OnTick() {
  CheckSilentMembers();
  AnswerExpired();
  Report(barriers_.Expire(now_));
}

void CoordinatorCore::AnswerExpired() {
  for (const auto& [ticket, join] : held_joins_.TakeExpired(now_)) {
    Fail(ticket, absl::UnavailableError(absl::StrCat(
                     join.member().name(),
                     ": its name is held by a worker that is silent; ask again "
                     "until that one is declared gone")));
  }
  if (now_ >= next_publishing_) {
    for (const auto& [ticket, watcher] : held_watches_.TakeExpired(now_)) {
      AnswerWatch(ticket, watcher);
    }
  }
  for (StoreTable::Outcome& outcome : store_.Expire(now_)) {
    Ok(outcome.ticket, *std::move(outcome.reply));
  }
}

Instant CoordinatorCore::NextTick() const {
  Instant next =
      std::min({barriers_.NextExpiry(), held_joins_.NextDeadline(),
                std::max(held_watches_.NextDeadline(), next_publishing_),
                store_.NextExpiry()});
  if (members_.version() != published_ || is_behind_ || !admitted_.empty()) {
    next = std::min(next, next_publishing_);
  }
  const auto listen = [&](bool is_suspect, absl::Duration limit) {
    const auto silent_from = members_.LongestSilence(is_suspect);
    if (!silent_from.has_value()) return;
    const absl::Duration left = *silent_from + limit - attended_;
    // Attention lapses if nothing happens for long.
    next = std::min(next, now_ + std::min(left, kLongestAttention));
  };
  listen(false, options_.suspect_after);
  listen(true, options_.dead_after);
  return next;
}

void CoordinatorCore::OnCallerGone(Ticket ticket) {
  admitted_.erase(ticket);
  held_joins_.Drop(ticket);
  held_watches_.Drop(ticket);
  store_.CallerGone(ticket);
  barriers_.CallerGone(ticket);
}

// Barriers and the store.

void CoordinatorCore::On(Ticket ticket, const v1::BarrierRequest& request) {
  const Slot* slot = members_.FindById(request.key().id());
  if (slot == nullptr || !slot->is_in ||
      slot->member.key().epoch() != request.key().epoch()) {
    return Fail(ticket,
                absl::FailedPreconditionError(absl::StrCat(
                    "Barrier ", request.tag(), ": worker ",
                    FromWire(request.key()).ToString(), " is not in the job")));
  }
  absl::StatusOr<BarrierTable::Names> members =
      CheckBarrier(request, slot->name());
  if (!members.ok()) return Fail(ticket, members.status());
  BarrierTable::Arrival arrival;
  arrival.key = FromWire(request.key());
  arrival.name = slot->name();
  arrival.tag = request.tag();
  arrival.members = *members;
  arrival.payload = request.payload();
  arrival.number = request.arrival();
  arrival.settled_below = request.settled_below();
  arrival.arrivals = request.arrivals();
  arrival.unsettled = {request.unsettled().begin(), request.unsettled().end()};
  arrival.ticket = ticket;
  arrival.answer_by = Until(request.wait_ms());
  arrival.stands_until = now_ + absl::Milliseconds(request.remaining_ms());
  if (held() >= options_.max_held_calls) {
    return Fail(ticket, absl::ResourceExhaustedError(
                            "coordinator: too many calls are waiting"));
  }
  BarrierTable::Result result = barriers_.Arrive(std::move(arrival));
  const bool is_first = result.is_first;
  Report(std::move(result));
  // One of the others may be gone already; it will not arrive. The barriers
  // that there are when it goes are failed then.
  if (is_first) FailIfGone(*members);
}

void CoordinatorCore::FailIfGone(const BarrierTable::Names& members) {
  const std::set<std::string>& all = members->all;
  const std::set<std::string>& gone = members_.gone();
  const bool few_are_gone = gone.size() < all.size();
  for (const std::string& name : few_are_gone ? gone : all) {
    if ((few_are_gone ? all : gone).count(name) == 0) continue;
    const v1::Departed& departed = members_.Find(name)->departed;
    // One is enough: nobody waits any more.
    return Report(
        barriers_.Gone(name, FromWire(departed.key()), departed.reason()));
  }
}

absl::StatusOr<BarrierTable::Names> CoordinatorCore::CheckBarrier(
    const v1::BarrierRequest& request, const std::string& caller) {
  BarrierTable::Names members;
  if (request.everyone()) {
    const World world = FromWire(members_.world());
    if (!world.is_fixed()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Barrier ", request.tag(),
                       ": an elastic world wants the members named"));
    }
    if (everyone_ == nullptr) everyone_ = EveryoneIn(world);
    members = everyone_;
  } else {
    members = BarrierTable::NamesOf(
        {request.members().begin(), request.members().end()});
  }
  if (members->all.count(caller) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Barrier ", request.tag(), ": ", caller,
                     " is not among the members it names"));
  }
  const auto count = static_cast<int64_t>(members->all.size());
  const int64_t bytes = request.payload().size();
  const int64_t room =
      std::min(options_.max_payload_bytes, options_.max_gathered_bytes / count);
  if (bytes <= room) return members;
  return absl::ResourceExhaustedError(
      absl::StrCat("Barrier ", request.tag(), ": ", caller, " brings ", bytes,
                   " bytes; each of ", count, " members may bring ", room));
}

void CoordinatorCore::Report(BarrierTable::Result result) {
  if (result.released.arrivals_size() > 0) {
    v1::LogRecord record;
    *record.mutable_released() = std::move(result.released);
    actions_.push_back(Persist{std::move(record)});
  }
  for (BarrierTable::Outcome& outcome : result.outcomes) {
    if (outcome.status.ok()) {
      Ok(outcome.ticket, std::move(outcome.reply));
    } else {
      Fail(outcome.ticket, std::move(outcome.status));
    }
  }
}

void CoordinatorCore::On(Ticket ticket, const v1::StoreRequest& request) {
  const absl::Status status = store_.Check(request);
  if (!status.ok()) return Fail(ticket, status);
  switch (request.operation()) {
    case v1::StoreRequest::GET:
      return Ok(ticket, store_.Look(request.key()));
    case v1::StoreRequest::COUNT:
      return Ok(ticket, store_.Count(request.key()));
    case v1::StoreRequest::WAIT: {
      v1::StoreReply now = store_.Look(request.key());
      if (now.version() > request.version()) return Ok(ticket, std::move(now));
      if (held() >= options_.max_held_calls) {
        return Fail(ticket, absl::ResourceExhaustedError(
                                "coordinator: too many calls are waiting"));
      }
      return store_.Hold(ticket, request, Until(request.wait_ms()));
    }
    default:
      return Change(ticket, request);
  }
}

void CoordinatorCore::Change(Ticket ticket, const v1::StoreRequest& request) {
  std::string owner = request.owner();
  if (request.client() != 0) {
    const std::string* caller = members_.NameOf(request.client());
    if (caller == nullptr) {
      return Fail(ticket, absl::FailedPreconditionError(absl::StrCat(
                              "store: key \"", request.key(),
                              "\": the caller is not in the job any more")));
    }
    if (owner.empty()) owner = *caller;
    if (owner != *caller) {
      return Fail(ticket, absl::PermissionDeniedError(absl::StrCat(
                              "store: key \"", request.key(),
                              "\": the caller has the certificate of ", owner,
                              " and speaks as ", *caller)));
    }
  }
  StoreTable::Result result = store_.Change(ticket, request, owner);
  if (result.stored.has_value()) {
    v1::LogRecord record;
    *record.mutable_stored() = *std::move(result.stored);
    actions_.push_back(Persist{std::move(record)});
  }
  for (StoreTable::Outcome& outcome : result.outcomes) {
    if (outcome.reply.ok()) {
      Ok(outcome.ticket, *std::move(outcome.reply));
    } else {
      Fail(outcome.ticket, outcome.reply.status());
    }
  }
}

// The log.

void CoordinatorCore::Replay(const v1::LogRecord& record) {
  switch (record.body_case()) {
    case v1::LogRecord::kOpened:
      if (options_.job.empty()) options_.job = record.opened().job();
      break;
    case v1::LogRecord::kWorld:
      members_.ReplayWorld(record.world(), record.version());
      TakeSilenceLimits(record.world());
      break;
    case v1::LogRecord::kJoined:
      members_.ReplayJoined(record.joined(), record.version());
      break;
    case v1::LogRecord::kDeparted: {
      const Slot& slot =
          members_.ReplayDeparted(record.departed(), record.version());
      if (slot.is_in) break;
      store_.ClientGone(slot.member.incarnation());
      barriers_.Gone(slot.departed.name(), FromWire(slot.departed.key()), "");
      break;
    }
    case v1::LogRecord::kStored:
      store_.Replay(record.stored());
      break;
    case v1::LogRecord::kReleased:
      barriers_.Replay(record.released());
      break;
    case v1::LogRecord::BODY_NOT_SET:
      break;
  }
}

std::vector<v1::LogRecord> CoordinatorCore::Snapshot() const {
  std::vector<v1::LogRecord> records(1);
  records.back().mutable_opened()->set_job(options_.job);
  records.back().mutable_opened()->set_term(term_);
  members_.Snapshot(&records);
  store_.Snapshot(&records);
  for (v1::LogRecord::Released& released : barriers_.Snapshot()) {
    *records.emplace_back().mutable_released() = std::move(released);
  }
  return records;
}

// Small words.

Instant CoordinatorCore::Until(uint32_t wait_ms) const {
  return now_ + std::min(absl::Milliseconds(wait_ms), options_.max_wait);
}

int64_t CoordinatorCore::held() const {
  return held_joins_.size() + held_watches_.size() + store_.held() +
         barriers_.held();
}

void CoordinatorCore::Ok(Ticket ticket, Reply reply) {
  actions_.push_back(Answer{ticket, absl::OkStatus(), std::move(reply)});
}

void CoordinatorCore::Fail(Ticket ticket, absl::Status status) {
  actions_.push_back(Answer{ticket, std::move(status), Reply()});
}

void CoordinatorCore::Say(std::string text, bool is_warning) {
  actions_.push_back(Note{std::move(text), is_warning});
}

}  // namespace weft::rendezvous
