// CoordinatorCore: see the header.

#include "weft/rendezvous/core/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
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

// Of how many versions the changes since are kept for others that ask.
constexpr size_t kMostTold = 16;

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
      store_(options_.store),
      barriers_(options_.barriers),
      now_(now) {
  for (const v1::LogRecord& record : history) Replay(record);
  ForgetMisnumbered();
  Index();
  BuryEarlierHosts();
}

void CoordinatorCore::Index() {
  version_ = NextEpoch();
  // What members of earlier terms were told is in the history, with its
  // version; of another history they know nothing.
  if (slots_.empty() || changes_from_ != 0) changes_from_ = version_;
  if (has_world_ && world_at_ == 0) world_at_ = version_;
  for (auto& [name, slot] : slots_) {
    names_[slot.id()] = name;
    // Logs of earlier versions do not say when.
    const bool is_known =
        slot.changed_at != 0 && changes_.count(slot.changed_at) == 0;
    if (!is_known) slot.changed_at = version_ = NextEpoch();
    changes_[slot.changed_at] = name;
    slot.digest = DigestOf(slot);
    digest_ += slot.digest;
    if (slot.is_in) {
      Enter(slot);
    } else {
      gone_.insert(name);
    }
  }
  published_ = version_;
}

void CoordinatorCore::Enter(const Slot& slot) {
  names_[slot.id()] = slot.name();
  gone_.erase(slot.name());
  incarnations_.emplace(slot.member.incarnation(), slot.name());
  if (slot.member.role() != kAdminRole) ++present_;
  Listen(slot);
}

void CoordinatorCore::Exit(const Slot& slot) {
  gone_.insert(slot.name());
  incarnations_.erase({slot.member.incarnation(), slot.name()});
  if (slot.member.role() != kAdminRole) --present_;
  StopListening(slot);
}

uint64_t CoordinatorCore::DigestOf(const Slot& slot) {
  return (slot.is_in ? rendezvous::DigestOf(slot.member) : 0) +
         (slot.departed.has_key() ? rendezvous::DigestOf(slot.departed) : 0);
}

void CoordinatorCore::Touch(Slot& slot) {
  changes_.erase(slot.changed_at);
  slot.changed_at = version_ = NextEpoch();
  changes_[slot.changed_at] = slot.name();
  digest_ -= slot.digest;
  slot.digest = DigestOf(slot);
  digest_ += slot.digest;
  whole_ = nullptr;
  told_.clear();
}

void CoordinatorCore::Listen(const Slot& slot) {
  (slot.member.suspect() ? suspects_ : heard_)
      .emplace(slot.silent_from, slot.id());
}

void CoordinatorCore::StopListening(const Slot& slot) {
  (slot.member.suspect() ? suspects_ : heard_)
      .erase({slot.silent_from, slot.id()});
}

void CoordinatorCore::Hear(Slot& slot) {
  StopListening(slot);
  slot.heard_at = slot.silent_from = attended_;
  if (slot.member.suspect()) {
    slot.member.set_suspect(false);
    Touch(slot);
    Say(absl::StrCat(slot.name(), " is heard again"));
  }
  Listen(slot);
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
    if (id >= end || is_its_own) continue;
    slots_.erase(slot);
    changes_from_ = 1;  // which Index() makes a version
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
  if (wanted.size() > options_.max_names) {
    return absl::InvalidArgumentError(absl::StrCat(
        member.name(), " expects the world \"", wanted.ToString(), "\" of ",
        wanted.size(), " workers; a coordinator takes at most ",
        options_.max_names));
  }
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
    if (present_ >= wanted.max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(member.name(), ": the job is full, it has ", present_,
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
    Hear(slot->second);
    admitted_.emplace(ticket, slot->second.member);
    return;
  }
  if (held() >= options_.max_held_calls) {
    return Fail(ticket, absl::ResourceExhaustedError(
                            "coordinator: too many calls are waiting"));
  }
  // The holder may be dead without our knowing: its next heartbeat, or the lack
  // of one, decides.
  held_joins_.Hold(ticket, request.member().name(), Until(request.wait_ms()),
                   request);
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
  const uint32_t id = !has_world_        ? kMaxWorkers
                      : world.is_fixed() ? world.size()
                                         : 0;
  return names_.empty() ? id : std::max(id, names_.rbegin()->first + 1);
}

void CoordinatorCore::Admit(Ticket ticket, const v1::JoinRequest& request) {
  if (options_.job.empty()) {
    options_.job = request.job();
    v1::LogRecord record;
    record.mutable_opened()->set_job(options_.job);
    record.mutable_opened()->set_term(term_);
    actions_.push_back(Persist{std::move(record)});
  }
  v1::Member member = request.member();
  member.set_suspect(false);
  member.set_phase(v1::ACTIVE);
  const bool sets_world = !has_world_ && member.role() != kAdminRole;
  if (sets_world) {
    world_ = request.world();
    has_world_ = true;
  }
  member.mutable_key()->set_id(IdFor(request));
  member.mutable_key()->set_epoch(NextEpoch());

  Slot& slot = slots_[member.name()];
  slot.member = std::move(member);
  slot.is_in = true;
  slot.heard_at = slot.silent_from = attended_;
  Touch(slot);
  Enter(slot);
  if (sets_world) {
    world_at_ = version_;
    v1::LogRecord record;
    *record.mutable_world() = world_;
    record.set_version(version_);
    actions_.push_back(Persist{std::move(record)});
  }
  PersistJoined(slot);
  Say(absl::StrCat(slot.member.name(), " joined from ", slot.member.address(),
                   " as ", FromWire(slot.member.key()).ToString()));
  admitted_.emplace(ticket, slot.member);
}

void CoordinatorCore::PersistJoined(const Slot& slot) {
  v1::LogRecord record;
  *record.mutable_joined() = slot.member;
  record.set_version(slot.changed_at);
  actions_.push_back(Persist{std::move(record)});
}

void CoordinatorCore::AnswerJoin(Ticket ticket, const v1::Member& admitted) {
  const Slot& slot = slots_.at(admitted.name());
  if (!slot.is_in || slot.member.key().epoch() != admitted.key().epoch()) {
    return Fail(ticket,
                absl::AbortedError(absl::StrCat("this incarnation is gone: ",
                                                slot.departed.reason())));
  }
  v1::JoinReply reply;
  *reply.mutable_key() = admitted.key();
  reply.set_is_durable(options_.is_durable);
  reply.set_knows_everyone(true);
  actions_.push_back(
      Answer{ticket, absl::OkStatus(), std::move(reply), Whole()});
}

void CoordinatorCore::SettleHeldJoins(const std::string& name,
                                      bool holder_lives) {
  for (const auto& [ticket, request] : held_joins_.TakeFor(name)) {
    if (holder_lives) {
      Fail(ticket, absl::AlreadyExistsError(absl::StrCat(
                       "worker ", name, " is in job \"", options_.job,
                       "\" already, at ", slots_.at(name).member.address(),
                       ": give the one at ", request.member().address(),
                       " another --rank, or end that one first")));
    } else {
      On(ticket, request);
    }
  }
}

// Staying and going.

CoordinatorCore::Slot* CoordinatorCore::FindSlot(uint32_t id) {
  const auto name = names_.find(id);
  return name == names_.end() ? nullptr : &slots_.at(name->second);
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
  Hear(**slot);
  for (const v1::Departed& departed : request.departed()) Adopt(departed, name);
  if (!(*slot)->is_in) {
    return Fail(ticket,
                FindLive(request.key(), request.incarnation()).status());
  }
  SettleHeldJoins(name, /*holder_lives=*/true);
  v1::HeartbeatReply reply;
  reply.set_view_version(version_);
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
    Touch(**slot);
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
  const auto slot = slots_.find(request.name());
  if (slot != slots_.end() && slot->second.is_in &&
      IsOf(request, slot->second.member)) {
    Remove(slot->second, Shortened(request.reason()), /*left=*/false);
  }
  Ok(ticket, v1::ReportExitReply());
}

void CoordinatorCore::Remove(Slot& slot, const std::string& reason, bool left) {
  const std::string name = slot.member.name();
  Exit(slot);
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
  Touch(slot);
  v1::LogRecord record;
  *record.mutable_departed() = slot.departed;
  record.set_version(slot.changed_at);
  actions_.push_back(Persist{std::move(record)});
  last_changes_.erase(slot.member.incarnation());
  Say(absl::StrCat(name, left ? " left" : " is gone: ", left ? "" : reason));
  Publish();  // before its barriers fail: it learns first that it is out
  Report(barriers_.Gone(name, FromWire(slot.departed.key()), reason));
  SettleHeldJoins(name, /*holder_lives=*/false);
}

// The view.

std::shared_ptr<const CoordinatorCore::Told> CoordinatorCore::Whole() const {
  if (whole_ != nullptr) return whole_;
  v1::View view;
  view.set_version(version_);
  view.set_digest(digest_);
  *view.mutable_world() = world_;
  for (const auto& [name, slot] : slots_) AddTo(view, slot);
  whole_ = std::make_shared<const Told>(std::move(view));
  return whole_;
}

void CoordinatorCore::AddTo(v1::View& view, const Slot& slot) {
  if (slot.is_in) *view.add_members() = slot.member;
  if (!slot.departed.has_key()) return;
  v1::Departed& departed = *view.add_departed();
  departed.set_name(slot.departed.name());
  *departed.mutable_key() = slot.departed.key();
  departed.set_reason(slot.departed.reason());
  departed.set_left(slot.departed.left());
}

v1::View CoordinatorCore::ChangesSince(Epoch version) const {
  v1::View view;
  view.set_version(version_);
  view.set_digest(digest_);
  view.set_since(version);
  if (world_at_ > version) *view.mutable_world() = world_;
  for (auto it = changes_.upper_bound(version); it != changes_.end(); ++it) {
    AddTo(view, slots_.at(it->second));
  }
  return view;
}

std::shared_ptr<const CoordinatorCore::Told> CoordinatorCore::TellTo(
    const Watcher& watcher) {
  const Epoch known = watcher.known_version;
  const bool is_new = known != version_;  // else nothing has changed
  if (is_new && (!watcher.takes_changes || known == 0 ||
                 known < changes_from_ || known > version_)) {
    return Whole();
  }
  const auto made = told_.find(known);
  if (made != told_.end()) return made->second;
  if (told_.size() >= kMostTold) told_.clear();
  auto told = std::make_shared<const Told>(ChangesSince(known));
  told_.emplace(known, told);
  return told;
}

void CoordinatorCore::AnswerWatch(Ticket ticket, const Watcher& watcher) {
  actions_.push_back(
      Answer{ticket, absl::OkStatus(), v1::WatchReply(), TellTo(watcher)});
}

void CoordinatorCore::Publish() {
  const bool has_news = version_ != published_ || is_behind_;
  if (now_ < next_publishing_ || (!has_news && admitted_.empty())) return;
  auto answers = static_cast<int64_t>(admitted_.size());
  for (const auto& [ticket, member] : std::exchange(admitted_, {})) {
    AnswerJoin(ticket, member);
  }
  if (has_news) {
    const auto watches = held_watches_.TakeFor("");
    for (const auto& [ticket, watcher] : watches) AnswerWatch(ticket, watcher);
    answers += static_cast<int64_t>(watches.size());
    published_ = version_;
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
  // In a pause all wait for its end, so that they get the same.
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

void CoordinatorCore::JudgeSilence() {
  const auto silent_for = [&](const Hearing& hearing, absl::Duration limit) {
    std::vector<std::string> silent;
    for (const auto& [silent_from, id] : hearing) {
      if (attended_ - silent_from < limit) break;
      silent.push_back(names_.at(id));
    }
    return silent;
  };
  std::vector<std::string> dead = silent_for(suspects_, options_.dead_after);
  for (const std::string& name : silent_for(heard_, options_.suspect_after)) {
    Slot& slot = slots_.at(name);
    const absl::Duration silence = attended_ - slot.silent_from;
    if (silence >= options_.dead_after) {
      dead.push_back(name);
      continue;
    }
    StopListening(slot);
    slot.member.set_suspect(true);
    Listen(slot);
    Touch(slot);
    Say(absl::StrCat(name, " has been silent for ",
                     absl::FormatDuration(silence)));
  }
  for (const std::string& name : dead) {
    Slot& slot = slots_.at(name);
    const absl::Duration silence =
        absl::Trunc(attended_ - slot.heard_at, absl::Seconds(1));
    Remove(slot,
           absl::StrCat("silent for ", absl::FormatDuration(std::max(
                                           silence, options_.dead_after))),
           /*left=*/false);
  }
}

// As if it had been heard just long enough ago to be suspect.
void CoordinatorCore::OnRan(const Ran& ran) {
  const auto found = slots_.find(ran.name);
  if (found == slots_.end()) return;
  Slot& slot = found->second;
  const bool is_silent = slot.is_in && slot.member.suspect() &&
                         slot.member.incarnation() == ran.incarnation;
  if (!is_silent || attended_ - slot.heard_at >= options_.busy_dead_after) {
    return;
  }
  StopListening(slot);
  slot.silent_from =
      std::max(slot.silent_from, attended_ - options_.suspect_after);
  Listen(slot);
}

bool CoordinatorCore::is_suspect(const std::string& name) const {
  const auto found = slots_.find(name);
  return found != slots_.end() && found->second.is_in &&
         found->second.member.suspect();
}

void CoordinatorCore::OnTick() {
  JudgeSilence();
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
  for (const auto& [ticket, wait] : held_waits_.TakeExpired(now_)) {
    Ok(ticket, store_.Look(wait.key));
  }
}

Instant CoordinatorCore::NextTick() const {
  Instant next =
      std::min({barriers_.NextExpiry(), held_joins_.NextDeadline(),
                std::max(held_watches_.NextDeadline(), next_publishing_),
                held_waits_.NextDeadline()});
  if (version_ != published_ || is_behind_ || !admitted_.empty()) {
    next = std::min(next, next_publishing_);
  }
  const auto listen = [&](const Hearing& hearing, absl::Duration limit) {
    if (hearing.empty()) return;
    const absl::Duration left = hearing.begin()->first + limit - attended_;
    // Attention lapses if nothing happens for long.
    next = std::min(next, now_ + std::min(left, kLongestAttention));
  };
  listen(heard_, options_.suspect_after);
  listen(suspects_, options_.dead_after);
  return next;
}

void CoordinatorCore::OnCallerGone(Ticket ticket) {
  admitted_.erase(ticket);
  held_joins_.Drop(ticket);
  held_watches_.Drop(ticket);
  held_waits_.Drop(ticket);
  barriers_.CallerGone(ticket);
}

// Barriers and the store.

void CoordinatorCore::On(Ticket ticket, const v1::BarrierRequest& request) {
  const Slot* slot = FindSlot(request.key().id());
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
  const bool few_are_gone = gone_.size() < all.size();
  for (const std::string& name : few_are_gone ? gone_ : all) {
    if ((few_are_gone ? all : gone_).count(name) == 0) continue;
    const v1::Departed& departed = slots_.at(name).departed;
    // One is enough: nobody waits any more.
    return Report(
        barriers_.Gone(name, FromWire(departed.key()), departed.reason()));
  }
}

absl::StatusOr<BarrierTable::Names> CoordinatorCore::CheckBarrier(
    const v1::BarrierRequest& request, const std::string& caller) {
  BarrierTable::Names members;
  if (request.everyone()) {
    const World world = FromWire(world_);
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
      held_waits_.Hold(ticket, request.key(), Until(request.wait_ms()),
                       {request.key(), request.version()});
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
    const auto caller = incarnations_.lower_bound({client, ""});
    if (caller == incarnations_.end() || caller->first != client) {
      return Fail(ticket, absl::FailedPreconditionError(absl::StrCat(
                              "store: key \"", request.key(),
                              "\": the caller is not in the job any more")));
    }
    if (owner.empty()) owner = caller->second;
    if (owner != caller->second) {
      return Fail(ticket, absl::PermissionDeniedError(absl::StrCat(
                              "store: key \"", request.key(),
                              "\": the caller has the certificate of ", owner,
                              " and speaks as ", caller->second)));
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
  const v1::StoreReply now = store_.Look(request.key());
  for (const auto& [woken, wait] :
       held_waits_.TakeIf(request.key(), [&](const StoreWait& held) {
         return now.version() > held.version;
       })) {
    Ok(woken, now);
  }
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
      world_at_ = record.version();
      break;
    case v1::LogRecord::kJoined: {
      Slot& slot = slots_[record.joined().name()];
      slot.member = record.joined();
      slot.member.set_suspect(false);
      slot.is_in = true;
      slot.heard_at = slot.silent_from = attended_;
      slot.changed_at = record.version();
      break;
    }
    case v1::LogRecord::kDeparted: {
      Slot& slot = slots_[record.departed().name()];
      slot.departed = record.departed();
      slot.changed_at = record.version();
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
  if (has_world_) {
    *records.emplace_back().mutable_world() = world_;
    records.back().set_version(world_at_);
  }
  for (const auto& [name, slot] : slots_) {
    if (slot.departed.has_key()) {
      *records.emplace_back().mutable_departed() = slot.departed;
      records.back().set_version(slot.changed_at);
    }
    if (!slot.is_in) continue;
    *records.emplace_back().mutable_joined() = slot.member;
    records.back().set_version(slot.changed_at);
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

int64_t CoordinatorCore::held() const {
  return held_joins_.size() + held_watches_.size() + held_waits_.size() +
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
