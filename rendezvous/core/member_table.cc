// MemberTable: see the header.

#include "weft/rendezvous/core/member_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {
namespace {

// So many incarnations of each name that are gone are known by the number that
// they drew; a copy of a Join is not so late that it would be of an older one.
constexpr int kIncarnations = 256;

// The changes since so many versions are kept for others that ask.
constexpr size_t kMostTold = 16;

}  // namespace

// What was recorded.

void MemberTable::ReplayWorld(const v1::World& world, Epoch version) {
  world_ = world;
  has_world_ = true;
  world_at_ = version;
}

void MemberTable::ReplayJoined(const v1::Member& member, Epoch version) {
  Slot& slot = slots_[member.name()];
  slot.member = member;
  slot.member.set_suspect(false);
  slot.is_in = true;
  slot.changed_at = version;
}

const MemberTable::Slot& MemberTable::ReplayDeparted(
    const v1::Departed& departed, Epoch version) {
  Slot& slot = slots_[departed.name()];
  slot.departed = departed;
  slot.changed_at = version;
  slot.is_in =
      slot.is_in && slot.member.key().epoch() > slot.departed.key().epoch();
  return slot;
}

void MemberTable::Index() {
  ForgetMisnumbered();
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
  if (IsComplete()) complete_at_ = version_;
}

// Logs of earlier versions may hold an admin that joined before any worker and
// was given the id of one. It is refused, and has to be started again.
void MemberTable::ForgetMisnumbered() {
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
    const uint32_t id = slot->second.id();
    const auto place = places.find(slot->first);
    const bool is_its_own = place != places.end() && place->second == id;
    if (id >= end || is_its_own) continue;
    slots_.erase(slot);
    changes_from_ = 1;  // which Index() makes a version
  }
}

void MemberTable::Snapshot(std::vector<v1::LogRecord>* records) const {
  if (has_world_) {
    *records->emplace_back().mutable_world() = world_;
    records->back().set_version(world_at_);
  }
  for (const auto& [name, slot] : slots_) {
    if (slot.departed.has_key()) {
      *records->emplace_back().mutable_departed() = slot.departed;
      records->back().set_version(slot.changed_at);
    }
    if (!slot.is_in) continue;
    *records->emplace_back().mutable_joined() = slot.member;
    records->back().set_version(slot.changed_at);
  }
}

// --- Members. ---

MemberTable::Slot* MemberTable::Find(const std::string& name) {
  const auto slot = slots_.find(name);
  return slot == slots_.end() ? nullptr : &slot->second;
}

const MemberTable::Slot* MemberTable::Find(const std::string& name) const {
  const auto slot = slots_.find(name);
  return slot == slots_.end() ? nullptr : &slot->second;
}

bool MemberTable::IsComplete() const {
  return has_world_ && present_ >= FromWire(world_).size();
}

MemberTable::Slot* MemberTable::FindById(uint32_t id) {
  const auto name = names_.find(id);
  return name == names_.end() ? nullptr : &slots_.at(name->second);
}

const std::string* MemberTable::NameOf(uint64_t incarnation) const {
  const auto found = incarnations_.lower_bound({incarnation, ""});
  const bool is_in =
      found != incarnations_.end() && found->first == incarnation;
  return is_in ? &found->second : nullptr;
}

uint32_t MemberTable::IdFor(const v1::Member& member) const {
  const auto slot = slots_.find(member.name());
  if (slot != slots_.end()) return slot->second.id();
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

MemberTable::Slot& MemberTable::Admit(v1::Member member, const v1::World* world,
                                      absl::Duration now) {
  if (world != nullptr) {
    world_ = *world;
    has_world_ = true;
  }
  member.set_suspect(false);
  member.set_phase(v1::ACTIVE);
  member.mutable_key()->set_id(IdFor(member));
  member.mutable_key()->set_epoch(NextEpoch());
  Slot& slot = slots_[member.name()];
  slot.member = std::move(member);
  slot.is_in = true;
  slot.heard_at = slot.silent_from = now;
  Touch(slot);
  Enter(slot);
  if (world != nullptr) world_at_ = version_;
  if (IsComplete()) complete_at_ = version_;
  return slot;
}

void MemberTable::Remove(Slot& slot, const std::string& reason, bool left) {
  Exit(slot);
  slot.is_in = false;
  slot.departed.set_name(slot.member.name());
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
}

void MemberTable::SetPhase(Slot& slot, v1::Phase phase) {
  slot.member.set_phase(phase);
  Touch(slot);
}

void MemberTable::SetSuspect(Slot& slot, bool is_suspect) {
  StopListening(slot);
  slot.member.set_suspect(is_suspect);
  Listen(slot);
  Touch(slot);
}

void MemberTable::Enter(const Slot& slot) {
  names_[slot.id()] = slot.name();
  gone_.erase(slot.name());
  incarnations_.emplace(slot.member.incarnation(), slot.name());
  if (slot.member.role() != kAdminRole) ++present_;
  Listen(slot);
}

void MemberTable::Exit(const Slot& slot) {
  gone_.insert(slot.name());
  incarnations_.erase({slot.member.incarnation(), slot.name()});
  if (slot.member.role() != kAdminRole) --present_;
  StopListening(slot);
}

// --- Silence. ---

bool MemberTable::Hear(Slot& slot, absl::Duration now) {
  StopListening(slot);
  slot.heard_at = slot.silent_from = now;
  const bool was_suspect = slot.member.suspect();
  if (was_suspect) {
    slot.member.set_suspect(false);
    Touch(slot);
  }
  Listen(slot);
  return was_suspect;
}

void MemberTable::SetSilentFrom(Slot& slot, absl::Duration silent_from) {
  StopListening(slot);
  slot.silent_from = silent_from;
  Listen(slot);
}

std::vector<MemberTable::Slot*> MemberTable::SilentSince(bool is_suspect,
                                                         absl::Duration from) {
  std::vector<Slot*> silent;
  for (const auto& [silent_from, id] : is_suspect ? suspects_ : heard_) {
    if (silent_from > from) break;
    silent.push_back(FindById(id));
  }
  return silent;
}

std::optional<absl::Duration> MemberTable::LongestSilence(
    bool is_suspect) const {
  const Hearing& hearing = is_suspect ? suspects_ : heard_;
  if (hearing.empty()) return std::nullopt;
  return hearing.begin()->first;
}

void MemberTable::Listen(const Slot& slot) {
  (slot.member.suspect() ? suspects_ : heard_)
      .emplace(slot.silent_from, slot.id());
}

void MemberTable::StopListening(const Slot& slot) {
  (slot.member.suspect() ? suspects_ : heard_)
      .erase({slot.silent_from, slot.id()});
}

// The view.

void MemberTable::Touch(Slot& slot) {
  changes_.erase(slot.changed_at);
  slot.changed_at = version_ = NextEpoch();
  changes_[slot.changed_at] = slot.name();
  digest_ -= slot.digest;
  slot.digest = DigestOf(slot);
  digest_ += slot.digest;
  whole_ = nullptr;
  told_.clear();
}

uint64_t MemberTable::DigestOf(const Slot& slot) {
  return (slot.is_in ? rendezvous::DigestOf(slot.member) : 0) +
         (slot.departed.has_key() ? rendezvous::DigestOf(slot.departed) : 0);
}

std::shared_ptr<const MemberTable::Told> MemberTable::Whole() const {
  if (whole_ != nullptr) return whole_;
  v1::View view;
  view.set_version(version_);
  view.set_digest(digest_);
  view.set_complete_at(complete_at_);
  *view.mutable_world() = world_;
  for (const auto& [name, slot] : slots_) AddTo(view, slot);
  whole_ = std::make_shared<const Told>(std::move(view));
  return whole_;
}

void MemberTable::AddTo(v1::View& view, const Slot& slot) {
  if (slot.is_in) *view.add_members() = slot.member;
  if (!slot.departed.has_key()) return;
  v1::Departed& departed = *view.add_departed();
  departed.set_name(slot.departed.name());
  *departed.mutable_key() = slot.departed.key();
  departed.set_reason(slot.departed.reason());
  departed.set_left(slot.departed.left());
}

v1::View MemberTable::ChangesSince(Epoch version) const {
  v1::View view;
  view.set_version(version_);
  view.set_digest(digest_);
  view.set_since(version);
  view.set_complete_at(complete_at_);
  if (world_at_ > version) *view.mutable_world() = world_;
  for (auto it = changes_.upper_bound(version); it != changes_.end(); ++it) {
    AddTo(view, slots_.at(it->second));
  }
  return view;
}

std::shared_ptr<const MemberTable::Told> MemberTable::TellTo(
    Epoch known, bool takes_changes) {
  const bool is_new = known != version_;  // else nothing has changed
  if (is_new && (!takes_changes || known == 0 || known < changes_from_ ||
                 known > version_)) {
    return Whole();
  }
  const auto made = told_.find(known);
  if (made != told_.end()) return made->second;
  if (told_.size() >= kMostTold) told_.clear();
  auto told = std::make_shared<const Told>(ChangesSince(known));
  told_.emplace(known, told);
  return told;
}

}  // namespace weft::rendezvous
