// CoordinatorCore: see the header.

#include "weft/rendezvous/core/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {
namespace {

// A longer pause between two events is the coordinator's own absence, and not
// counted as silence of the others.
constexpr absl::Duration kLongestAttention = absl::Seconds(1);

// Of each name so many incarnations that are gone are known by the number that
// they drew; a copy of a Join is not so late that it would be of an older one.
constexpr int kIncarnations = 256;

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

// Whether `incarnation` is one of those that had the name.
bool HasBorne(const v1::Departed& departed, uint64_t incarnation) {
  return absl::c_linear_search(departed.incarnations(), incarnation);
}

bool IsSame(const v1::World& a, const v1::World& b) {
  return FromWire(a) == FromWire(b);
}

absl::Status CheckSizeOf(const CoordinatorCore::Options& options,
                         const v1::JoinRequest& request) {
  const v1::Member& member = request.member();
  WEFT_RETURN_IF_ERROR(ValidateName(member.name()));
  const auto limit = static_cast<size_t>(options.max_member_bytes);
  if (member.ByteSizeLong() > limit) {
    size_t labels = 0;
    for (const auto& [name, value] : member.labels()) {
      labels += name.size() + value.size();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        member.name(), " joins with ", member.ByteSizeLong(),
        " bytes, which all others would be sent, and may with ", limit,
        ": its labels have ", labels, ", its address ", member.address().size(),
        ", its role ", member.role().size(), "; give it shorter ones"));
  }
  const size_t world = request.world().ByteSizeLong();
  if (world <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(member.name(), " expects a world of ", world,
                   " bytes, which may have ", limit, ": have fewer roles"));
}

absl::Status CheckSizeOf(const CoordinatorCore::Options& options,
                         const v1::HeartbeatRequest& request) {
  if (request.departed_size() <= options.max_names) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a heartbeat tells of ", request.departed_size(),
      " workers that are gone; a job has at most ", options.max_names));
}

absl::Status CheckSizeOf(const CoordinatorCore::Options& options,
                         const v1::BarrierRequest& request) {
  const auto tag_bytes = static_cast<int64_t>(request.tag().size());
  if (tag_bytes > options.max_tag_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Barrier ", request.tag().substr(0, 64), "...: the tag has ", tag_bytes,
        " bytes, at most ", options.max_tag_bytes));
  }
  if (request.members_size() > options.max_names) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Barrier ", request.tag(), " names ", request.members_size(),
        " members; a job has at most ", options.max_names));
  }
  if (request.unsettled_size() > options.barriers.arrivals) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Barrier ", request.tag(), ": its caller is at ",
                     request.unsettled_size(), " barriers, at most ",
                     options.barriers.arrivals, ": wait for some first"));
  }
  for (const std::string& name : request.members()) {
    const absl::Status valid = ValidateName(name);
    if (valid.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Barrier ", request.tag(), ": ", valid.message()));
  }
  return absl::OkStatus();
}

// Others are as long as what bounds a request.
template <typename T>
absl::Status CheckSizeOf(const CoordinatorCore::Options&, const T&) {
  return absl::OkStatus();
}

}  // namespace

absl::Status CoordinatorCore::CheckSize(const Options& options,
                                        const Request& request) {
  return std::visit([&](const auto& r) { return CheckSizeOf(options, r); },
                    request);
}

CoordinatorCore::CoordinatorCore(Options options, uint32_t term,
                                 const std::vector<v1::LogRecord>& history,
                                 Instant now)
    : options_(std::move(options)),
      term_(term),
      store_(options_.store),
      barriers_(options_.barriers),
      now_(now) {
  for (const v1::LogRecord& record : history) Replay(record);
  ForgetMisnumbered();
  ViewChanged();
  BuryEarlierHosts();
}

void CoordinatorCore::BuryEarlierHosts() {
  for (auto& [name, slot] : slots_) {
    if (!slot.is_in || !slot.member.hosts_coordinator()) continue;
    Remove(slot, "its process, which hosted the coordinator, has ended",
           /*left=*/false);
  }
}

// Logs of earlier versions may hold an admin that joined before any worker and
// was given the id of one. It is refused, and has to be started again.
void CoordinatorCore::ForgetMisnumbered() {
  const World world = FromWire(world_);
  if (has_world_ && !world.is_fixed()) return;
  std::map<std::string, uint32_t> places;
  for (const auto& [role, count] : world.roles) {
    for (int rank = 0; rank < count; ++rank) {
      places[absl::StrCat(role, rank)] = *world.Place(role, rank);
    }
  }
  const uint32_t end = has_world_ ? places.size() : kMaxWorkers;
  for (auto it = slots_.begin(); it != slots_.end();) {
    const auto slot = it++;
    const uint32_t id = slot->second.is_in ? slot->second.member.key().id()
                                           : slot->second.departed.key().id();
    const auto place = places.find(slot->first);
    const bool is_its_own = place != places.end() && place->second == id;
    if (id < end && !is_its_own) slots_.erase(slot);
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
  } else {
    OnTick();
  }
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

// Joining.

absl::Status CoordinatorCore::CheckJoin(const v1::JoinRequest& request) const {
  const v1::Member& member = request.member();
  WEFT_RETURN_IF_ERROR(ValidateName(request.job()));
  const World wanted = FromWire(request.world());
  const bool is_admin = member.role() == kAdminRole;
  if (!is_admin || wanted.is_fixed()) WEFT_RETURN_IF_ERROR(wanted.Validate());
  if (member.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(member.name(), ": its incarnation is 0"));
  }
  if (has_world_ && !is_admin && !IsSame(world_, request.world())) {
    return absl::FailedPreconditionError(absl::StrCat(
        member.name(), " ", wanted.DifferenceFrom(FromWire(world_))));
  }
  if (is_admin) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(CheckStart(request));
  if (wanted.is_fixed()) {
    if (!wanted.Place(member.role(), member.rank()).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          member.role(), " ", member.rank(), " has no place in the world \"",
          wanted.ToString(), "\": ranks count from 0"));
    }
    if (member.name() != absl::StrCat(member.role(), member.rank())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker name \"", member.name(), "\": a fixed world wants \"",
          member.role(), member.rank(), "\""));
    }
  } else if (slots_.count(member.name()) == 0 ||
             !slots_.at(member.name()).is_in) {
    const int present =
        std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) {
          return slot.second.is_in && slot.second.member.role() != kAdminRole;
        });
    if (present >= wanted.max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(member.name(), ": the job is full, it has ", present,
                       " of at most ", wanted.max, " workers"));
    }
  }
  return absl::OkStatus();
}

absl::Status CoordinatorCore::CheckStart(const v1::JoinRequest& request) const {
  const uint32_t own = options_.start;
  if (own == 0 || request.start() == 0 || request.start() == own) {
    return absl::OkStatus();
  }
  if (request.start() > own) {  // who asks again finds its successor
    return absl::UnavailableError(absl::StrCat(
        "the ranks of the job are started again (start ", request.start(),
        "), and this coordinator of start ", own, " is about to end"));
  }
  return absl::AbortedError(absl::StrCat(
      request.member().name(), " is of start ", request.start(),
      " of the job's ranks; meanwhile they were started again (start ", own,
      ")"));
}

void CoordinatorCore::On(Ticket ticket, const v1::JoinRequest& request) {
  const absl::Status status = CheckJoin(request);
  if (!status.ok()) return Fail(ticket, status);
  const auto slot = slots_.find(request.member().name());
  if (slot == slots_.end()) {
    if (static_cast<int>(slots_.size()) >= options_.max_names) {
      return Fail(ticket, absl::ResourceExhaustedError(absl::StrCat(
                              request.member().name(), ": the job has had ",
                              slots_.size(), " names, the most it may have")));
    }
    return Admit(ticket, request);
  }
  if (!slot->second.is_in) {
    // A copy of an old request must not bring a dead incarnation back.
    if (HasBorne(slot->second.departed, request.member().incarnation())) {
      return Fail(ticket, absl::AbortedError(
                              absl::StrCat("this incarnation is gone: ",
                                           slot->second.departed.reason())));
    }
    return Admit(ticket, request);
  }
  if (slot->second.member.incarnation() == request.member().incarnation()) {
    slot->second.heard_at = attended_;
    v1::JoinReply reply;
    *reply.mutable_key() = slot->second.member.key();
    *reply.mutable_view() = view_;
    reply.set_is_durable(options_.is_durable);
    return Ok(ticket, std::move(reply));
  }
  if (held() >= options_.max_held_calls) {
    return Fail(ticket, absl::ResourceExhaustedError(
                            "coordinator: too many calls are waiting"));
  }
  // The holder may be dead without our knowing: its next heartbeat, or the lack
  // of one, decides.
  held_joins_.push_back({ticket, request, Until(request.wait_ms())});
}

uint32_t CoordinatorCore::IdFor(const v1::JoinRequest& request) const {
  const v1::Member& member = request.member();
  const auto slot = slots_.find(member.name());
  if (slot != slots_.end()) {
    return slot->second.is_in ? slot->second.member.key().id()
                              : slot->second.departed.key().id();
  }
  const World world = FromWire(world_);
  if (const auto place = world.Place(member.role(), member.rank())) {
    return *place;
  }
  // Before the world is known, only admins come here: places are not for them.
  uint32_t id = !has_world_ ? kMaxWorkers : world.is_fixed() ? world.size() : 0;
  for (const auto& [name, other] : slots_) {
    id = std::max(
        {id, other.member.key().id() + 1, other.departed.key().id() + 1});
  }
  return id;
}

void CoordinatorCore::Admit(Ticket ticket, const v1::JoinRequest& request) {
  if (options_.job.empty()) {
    options_.job = request.job();
    v1::LogRecord record;
    record.mutable_opened()->set_job(options_.job);
    record.mutable_opened()->set_term(term_);
    actions_.push_back(Persist{std::move(record)});
  }
  if (!has_world_ && request.member().role() != kAdminRole) {
    world_ = request.world();
    has_world_ = true;
    v1::LogRecord record;
    *record.mutable_world() = world_;
    actions_.push_back(Persist{std::move(record)});
  }
  v1::Member member = request.member();
  member.set_suspect(false);
  member.set_phase(v1::ACTIVE);
  member.mutable_key()->set_id(IdFor(request));
  member.mutable_key()->set_epoch(NextEpoch());
  v1::LogRecord record;
  *record.mutable_joined() = member;
  actions_.push_back(Persist{std::move(record)});

  Slot& slot = slots_[member.name()];
  slot.member = std::move(member);
  slot.is_in = true;
  slot.heard_at = attended_;
  ViewChanged();
  Say(absl::StrCat(slot.member.name(), " joined from ", slot.member.address(),
                   " as ", FromWire(slot.member.key()).ToString()));
  v1::JoinReply reply;
  *reply.mutable_key() = slot.member.key();
  *reply.mutable_view() = view_;
  reply.set_is_durable(options_.is_durable);
  Ok(ticket, std::move(reply));
}

void CoordinatorCore::SettleHeldJoins(const std::string& name,
                                      bool holder_lives) {
  std::vector<HeldJoin> settled;
  for (auto it = held_joins_.begin(); it != held_joins_.end();) {
    if (it->request.member().name() != name) {
      ++it;
      continue;
    }
    settled.push_back(std::move(*it));
    it = held_joins_.erase(it);
  }
  for (const HeldJoin& join : settled) {
    if (holder_lives) {
      Fail(join.ticket,
           absl::AlreadyExistsError(absl::StrCat(
               "worker ", name, " is in job \"", options_.job,
               "\" already, at ", slots_.at(name).member.address(),
               ": give the one at ", join.request.member().address(),
               " another --rank, or end that one first")));
    } else {
      On(join.ticket, join.request);
    }
  }
}

// Staying and going.

CoordinatorCore::Slot* CoordinatorCore::FindSlot(uint32_t id) {
  for (auto& [name, slot] : slots_) {
    const bool has_id = slot.is_in ? slot.member.key().id() == id
                                   : slot.departed.key().id() == id;
    if (has_id) return &slot;
  }
  return nullptr;
}

absl::StatusOr<CoordinatorCore::Slot*> CoordinatorCore::FindLive(
    const v1::WorkerKey& key, uint64_t incarnation) {
  Slot* slot = FindSlot(key.id());
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
  (*slot)->heard_at = attended_;
  for (const v1::Departed& departed : request.departed()) Adopt(departed, name);
  if (!(*slot)->is_in) {
    return Fail(ticket,
                FindLive(request.key(), request.incarnation()).status());
  }
  if ((*slot)->member.suspect()) {
    (*slot)->member.set_suspect(false);
    ViewChanged();
    Say(absl::StrCat(name, " is heard again"));
  }
  SettleHeldJoins(name, /*holder_lives=*/true);
  v1::HeartbeatReply reply;
  reply.set_view_version(view_.version());
  Ok(ticket, std::move(reply));
}

void CoordinatorCore::Adopt(const v1::Departed& departed,
                            const std::string& reporter) {
  // Of keys of its own term this coordinator has no news to learn.
  if (TermOf(departed.key().epoch()) >= term_) return;
  const auto found = slots_.find(departed.name());
  if (found == slots_.end()) return;
  Slot& slot = found->second;
  if (!slot.is_in || slot.member.key().id() != departed.key().id() ||
      slot.member.key().epoch() > departed.key().epoch()) {
    return;
  }
  Remove(slot,
         absl::StrCat(Shortened(departed.reason()), " (remembered by ",
                      reporter, ")"),
         departed.left());
}

void CoordinatorCore::On(Ticket ticket, const v1::AnnounceRequest& request) {
  const absl::StatusOr<Slot*> slot =
      FindLive(request.key(), request.incarnation());
  if (!slot.ok()) return Fail(ticket, slot.status());
  v1::Member& member = (*slot)->member;
  if (!v1::Phase_IsValid(request.phase())) {
    return Fail(ticket, absl::InvalidArgumentError(absl::StrCat(
                            member.name(), " announces phase ", request.phase(),
                            ", which does not exist")));
  }
  if (request.phase() > member.phase()) {
    member.set_phase(request.phase());
    v1::LogRecord record;
    *record.mutable_joined() = member;
    actions_.push_back(Persist{std::move(record)});
    ViewChanged();
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
  const auto slot = slots_.find(request.name());
  if (slot != slots_.end() && slot->second.is_in &&
      IsOf(request, slot->second.member)) {
    Remove(slot->second, Shortened(request.reason()), /*left=*/false);
  }
  Ok(ticket, v1::ReportExitReply());
}

void CoordinatorCore::Remove(Slot& slot, const std::string& reason, bool left) {
  const std::string name = slot.member.name();
  slot.is_in = false;
  slot.departed.set_name(name);
  *slot.departed.mutable_key() = slot.member.key();
  slot.departed.set_reason(reason);
  slot.departed.set_left(left);
  auto& incarnations = *slot.departed.mutable_incarnations();
  incarnations.Add(slot.member.incarnation());
  if (incarnations.size() > kIncarnations) {
    incarnations.erase(incarnations.begin(),
                       incarnations.end() - kIncarnations);
  }
  v1::LogRecord record;
  *record.mutable_departed() = slot.departed;
  actions_.push_back(Persist{std::move(record)});
  last_changes_.erase(slot.member.incarnation());
  ViewChanged();
  Say(absl::StrCat(name, left ? " left" : " is gone: ", left ? "" : reason));
  Report(barriers_.Gone(name, FromWire(slot.departed.key()), reason));
  SettleHeldJoins(name, /*holder_lives=*/false);
}

void CoordinatorCore::ViewChanged() {
  view_.Clear();
  view_.set_version(NextEpoch());
  *view_.mutable_world() = world_;
  for (const auto& [name, slot] : slots_) {
    if (slot.is_in) *view_.add_members() = slot.member;
    if (!slot.departed.has_key()) continue;
    *view_.add_departed() = slot.departed;
    view_.mutable_departed()->rbegin()->clear_incarnations();
  }
  for (const HeldWatch& watch : std::exchange(held_watches_, {})) {
    v1::WatchReply reply;
    *reply.mutable_view() = view_;
    Ok(watch.ticket, std::move(reply));
  }
}

void CoordinatorCore::On(Ticket ticket, const v1::WatchRequest& request) {
  if (request.known_version() < view_.version()) {
    v1::WatchReply reply;
    *reply.mutable_view() = view_;
    return Ok(ticket, std::move(reply));
  }
  if (held() >= options_.max_held_calls) {
    return Fail(ticket, absl::ResourceExhaustedError(
                            "coordinator: too many calls are waiting"));
  }
  held_watches_.push_back({ticket, Until(request.wait_ms())});
}

// Time.

void CoordinatorCore::JudgeSilence() {
  std::vector<std::string> dead;
  bool changed = false;
  for (auto& [name, slot] : slots_) {
    if (!slot.is_in) continue;
    const absl::Duration silence = attended_ - slot.heard_at;
    if (silence >= options_.dead_after) {
      dead.push_back(name);
    } else if (silence >= options_.suspect_after && !slot.member.suspect()) {
      slot.member.set_suspect(true);
      changed = true;
      Say(absl::StrCat(name, " has been silent for ",
                       absl::FormatDuration(silence)));
    }
  }
  if (changed) ViewChanged();
  for (const std::string& name : dead) {
    Remove(
        slots_.at(name),
        absl::StrCat("silent for ", absl::FormatDuration(options_.dead_after)),
        /*left=*/false);
  }
}

void CoordinatorCore::OnTick() {
  JudgeSilence();
  AnswerExpired();
  Report(barriers_.Expire(now_));
}

void CoordinatorCore::AnswerExpired() {
  const auto take = [&](auto& held) {
    const auto late = std::stable_partition(
        held.begin(), held.end(),
        [&](const auto& call) { return call.deadline > now_; });
    std::decay_t<decltype(held)> expired(std::make_move_iterator(late),
                                         std::make_move_iterator(held.end()));
    held.erase(late, held.end());
    return expired;
  };
  for (const HeldJoin& join : take(held_joins_)) {
    const std::string& name = join.request.member().name();
    Fail(join.ticket,
         absl::UnavailableError(absl::StrCat(
             name,
             ": its name is held by a worker that is silent; ask again "
             "until that one is declared gone")));
  }
  for (const HeldWatch& watch : take(held_watches_)) {
    v1::WatchReply reply;
    *reply.mutable_view() = view_;
    Ok(watch.ticket, std::move(reply));
  }
  for (const HeldWait& wait : take(held_waits_)) {
    Ok(wait.ticket, store_.Look(wait.key));
  }
}

Instant CoordinatorCore::NextTick() const {
  Instant next = barriers_.NextExpiry();
  for (const HeldJoin& join : held_joins_) next = std::min(next, join.deadline);
  for (const HeldWatch& w : held_watches_) next = std::min(next, w.deadline);
  for (const HeldWait& wait : held_waits_) next = std::min(next, wait.deadline);
  for (const auto& [name, slot] : slots_) {
    if (!slot.is_in) continue;
    const absl::Duration limit =
        slot.member.suspect() ? options_.dead_after : options_.suspect_after;
    const absl::Duration left = slot.heard_at + limit - attended_;
    // Attention lapses if nothing happens for long.
    next = std::min(next, now_ + std::min(left, kLongestAttention));
  }
  return next;
}

void CoordinatorCore::OnCallerGone(Ticket ticket) {
  const auto drop = [&](auto& held) {
    held.erase(
        std::remove_if(held.begin(), held.end(),
                       [&](const auto& call) { return call.ticket == ticket; }),
        held.end());
  };
  drop(held_joins_);
  drop(held_watches_);
  drop(held_waits_);
  barriers_.CallerGone(ticket);
}

// Barriers and the store.

void CoordinatorCore::On(Ticket ticket, const v1::BarrierRequest& request) {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) {
        return slot.second.is_in &&
               slot.second.member.key().id() == request.key().id() &&
               slot.second.member.key().epoch() == request.key().epoch();
      });
  if (found == slots_.end()) {
    return Fail(ticket,
                absl::FailedPreconditionError(absl::StrCat(
                    "Barrier ", request.tag(), ": worker ",
                    FromWire(request.key()).ToString(), " is not in the job")));
  }
  if (absl::Status status = CheckBarrier(request, found->first); !status.ok()) {
    return Fail(ticket, std::move(status));
  }
  BarrierTable::Arrival arrival;
  arrival.key = FromWire(request.key());
  arrival.name = found->first;
  arrival.tag = request.tag();
  arrival.members = {request.members().begin(), request.members().end()};
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
  const bool waits =
      result.outcomes.empty() || result.outcomes.front().ticket != ticket;
  Report(std::move(result));
  if (!waits) return;
  // One of the others may be gone already; it will not arrive.
  for (const std::string& name : request.members()) {
    const auto slot = slots_.find(name);
    if (slot == slots_.end() || slot->second.is_in) continue;
    Report(barriers_.Gone(name, FromWire(slot->second.departed.key()),
                          slot->second.departed.reason()));
  }
}

absl::Status CoordinatorCore::CheckBarrier(const v1::BarrierRequest& request,
                                           const std::string& caller) const {
  if (!absl::c_linear_search(request.members(), caller)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Barrier ", request.tag(), ": ", caller,
                     " is not among the members it names"));
  }
  const int64_t bytes = request.payload().size();
  const int64_t room =
      std::min(options_.max_payload_bytes,
               options_.max_gathered_bytes / request.members_size());
  if (bytes <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "Barrier ", request.tag(), ": ", caller, " brings ", bytes,
      " bytes; each of ", request.members_size(), " members may bring ", room));
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

absl::Status CoordinatorCore::CheckStore(
    const v1::StoreRequest& request) const {
  const int64_t key_bytes = static_cast<int64_t>(request.key().size());
  const bool may_be_empty =
      request.operation() == v1::StoreRequest::COUNT;  // of all keys
  if ((key_bytes == 0 && !may_be_empty) ||
      key_bytes > options_.store.max_key_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: the key has ", key_bytes, " bytes, wanted 1 to ",
                     options_.store.max_key_bytes));
  }
  if (!v1::StoreRequest::Operation_IsValid(request.operation())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store: operation ", request.operation(), " does not exist"));
  }
  return absl::OkStatus();
}

void CoordinatorCore::On(Ticket ticket, const v1::StoreRequest& request) {
  const absl::Status status = CheckStore(request);
  if (!status.ok()) return Fail(ticket, status);
  switch (request.operation()) {
    case v1::StoreRequest::GET:
      return Ok(ticket, store_.Look(request.key()));
    case v1::StoreRequest::COUNT: {
      v1::StoreReply counted;
      counted.set_count(store_.CountKeys(request.key()));
      return Ok(ticket, std::move(counted));
    }
    case v1::StoreRequest::WAIT: {
      v1::StoreReply now = store_.Look(request.key());
      if (now.version() > request.version()) return Ok(ticket, std::move(now));
      if (held() >= options_.max_held_calls) {
        return Fail(ticket, absl::ResourceExhaustedError(
                                "coordinator: too many calls are waiting"));
      }
      held_waits_.push_back(
          {ticket, request.key(), request.version(), Until(request.wait_ms())});
      return;
    }
    default:
      return Change(ticket, request);
  }
}

void CoordinatorCore::Change(Ticket ticket, const v1::StoreRequest& request) {
  const uint64_t client = request.client();
  std::string owner = request.owner();
  if (client != 0) {
    const auto caller =
        std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) {
          return slot.second.is_in &&
                 slot.second.member.incarnation() == client;
        });
    if (caller == slots_.end()) {
      return Fail(ticket, absl::FailedPreconditionError(absl::StrCat(
                              "store: key \"", request.key(),
                              "\": the caller is not in the job any more")));
    }
    if (owner.empty()) owner = caller->first;
    if (owner != caller->first) {
      return Fail(ticket, absl::PermissionDeniedError(absl::StrCat(
                              "store: key \"", request.key(),
                              "\": the caller has the certificate of ", owner,
                              " and speaks as ", caller->first)));
    }
    const auto last = last_changes_.find(client);
    if (last != last_changes_.end() &&
        request.sequence() <= last->second.sequence) {
      if (request.sequence() == last->second.sequence) {
        return AnswerChange(ticket, last->second.reply);
      }
      return Fail(ticket, absl::CancelledError(
                              "store: a copy of a change that was answered"));
    }
  }
  absl::StatusOr<VersionedMap::Plan> plan = store_.Prepare(request, owner);
  // One that was not applied may be copied too, and be applied by then.
  if (client != 0) {
    LastChange& last = last_changes_[client];
    last.sequence = request.sequence();
    if (plan.ok()) {
      last.reply = plan->reply;
    } else {
      last.reply = plan.status();
    }
  }
  if (!plan.ok()) return Fail(ticket, plan.status());
  if (plan->reply.applied()) {
    v1::LogRecord record;
    *record.mutable_stored()->mutable_change() = plan->change;
    if (client != 0) {
      auto* answer = record.mutable_stored()->mutable_answer();
      answer->set_client(client);
      answer->set_sequence(request.sequence());
      *answer->mutable_reply() = plan->reply;
    }
    actions_.push_back(Persist{std::move(record)});
    store_.Apply(plan->change);
  }
  Ok(ticket, std::move(plan->reply));
  if (plan->change.key().empty()) return;
  const auto woken = std::stable_partition(
      held_waits_.begin(), held_waits_.end(), [&](const HeldWait& wait) {
        return wait.key != request.key() ||
               store_.Look(wait.key).version() <= wait.version;
      });
  for (auto wait = woken; wait != held_waits_.end(); ++wait) {
    Ok(wait->ticket, store_.Look(wait->key));
  }
  held_waits_.erase(woken, held_waits_.end());
}

void CoordinatorCore::AnswerChange(Ticket ticket,
                                   absl::StatusOr<v1::StoreReply> reply) {
  if (!reply.ok()) return Fail(ticket, reply.status());
  Ok(ticket, *std::move(reply));
}

// The log.

void CoordinatorCore::Replay(const v1::LogRecord& record) {
  switch (record.body_case()) {
    case v1::LogRecord::kOpened:
      if (options_.job.empty()) options_.job = record.opened().job();
      break;
    case v1::LogRecord::kWorld:
      world_ = record.world();
      has_world_ = true;
      break;
    case v1::LogRecord::kJoined: {
      Slot& slot = slots_[record.joined().name()];
      slot.member = record.joined();
      slot.is_in = true;
      slot.heard_at = attended_;
      break;
    }
    case v1::LogRecord::kDeparted: {
      Slot& slot = slots_[record.departed().name()];
      slot.departed = record.departed();
      slot.is_in =
          slot.is_in && slot.member.key().epoch() > slot.departed.key().epoch();
      if (slot.is_in) break;
      last_changes_.erase(slot.member.incarnation());
      barriers_.Gone(slot.departed.name(), FromWire(slot.departed.key()), "");
      break;
    }
    case v1::LogRecord::kStored: {
      store_.Apply(record.stored().change());
      if (!record.stored().has_answer()) break;
      const auto& answer = record.stored().answer();
      last_changes_[answer.client()] = {answer.sequence(), answer.reply()};
      break;
    }
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
  if (has_world_) *records.emplace_back().mutable_world() = world_;
  for (const auto& [name, slot] : slots_) {
    if (slot.departed.has_key()) {
      *records.emplace_back().mutable_departed() = slot.departed;
    }
    if (slot.is_in) *records.emplace_back().mutable_joined() = slot.member;
  }
  for (const auto& [key, entry] : store_.entries()) {
    auto* change = records.emplace_back().mutable_stored()->mutable_change();
    change->set_key(key);
    change->set_value(entry.value);
    change->set_version(entry.version);
    change->set_owner(entry.owner);
  }
  // Versions do not go back, even if the last change was a deletion.
  for (const auto& [client, last] : last_changes_) {
    auto* stored = records.emplace_back().mutable_stored();
    stored->mutable_change()->set_deleted(true);
    stored->mutable_change()->set_version(store_.last_version());
    stored->mutable_answer()->set_client(client);
    stored->mutable_answer()->set_sequence(last.sequence);
    if (last.reply.ok()) {
      *stored->mutable_answer()->mutable_reply() = *last.reply;
    } else {  // it may fail again; what came before it is not asked any more
      stored->mutable_answer()->set_sequence(
          std::max<uint64_t>(last.sequence, 1) - 1);
    }
  }
  auto* last = records.emplace_back().mutable_stored()->mutable_change();
  last->set_deleted(true);
  last->set_version(store_.last_version());
  for (v1::LogRecord::Released& released : barriers_.Snapshot()) {
    *records.emplace_back().mutable_released() = std::move(released);
  }
  return records;
}

// Small words.

Instant CoordinatorCore::Until(uint32_t wait_ms) const {
  return now_ + std::min(absl::Milliseconds(wait_ms), options_.max_wait);
}

int CoordinatorCore::held() const {
  return static_cast<int>(held_joins_.size() + held_watches_.size() +
                          held_waits_.size()) +
         barriers_.held();
}

void CoordinatorCore::Ok(Ticket ticket, Reply reply) {
  actions_.push_back(Answer{ticket, absl::OkStatus(), std::move(reply)});
}

void CoordinatorCore::Fail(Ticket ticket, absl::Status status) {
  actions_.push_back(Answer{ticket, std::move(status), Reply()});
}

void CoordinatorCore::Say(std::string text) {
  actions_.push_back(Note{std::move(text)});
}

}  // namespace weft::rendezvous
