// Wire: see the header.

#include "weft/rendezvous/wire.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

// Whether the world is not set yet: a job has none before its first worker.
bool IsUnset(const World& world) {
  return !world.is_fixed() && world.min == 0 && world.max == 0;
}

absl::Status CheckPlace(const v1::Member& member, const World& world) {
  if (member.role() == kAdminRole || !world.is_fixed()) {
    return absl::OkStatus();
  }
  if (world.Place(member.role(), member.rank()).has_value() &&
      member.name() == absl::StrCat(member.role(), member.rank())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      member.name(), " is role \"", absl::CHexEscape(member.role()),
      "\", rank ", member.rank(), ", which has no place in the world \"",
      world.ToString(), "\""));
}

// Source: the finalizer of SplitMix64, see sim/random.h.
uint64_t Mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

uint64_t DigestOf(const v1::WorkerKey& key, uint64_t state) {
  return Mixed(Mixed(Mixed(key.id() + 1) + key.epoch()) + state);
}

}  // namespace

uint64_t DigestOf(const v1::Member& member) {
  return DigestOf(member.key(),
                  uint64_t{4} * member.phase() + (member.suspect() ? 2 : 0));
}

uint64_t DigestOf(const v1::Departed& departed) {
  return DigestOf(departed.key(), 1);
}

uint64_t DigestOf(const v1::View& view) {
  uint64_t digest = 0;
  for (const v1::Member& member : view.members()) digest += DigestOf(member);
  for (const v1::Departed& gone : view.departed()) digest += DigestOf(gone);
  return digest;
}

absl::StatusOr<v1::View> Merge(const v1::View& view, const v1::View& changes) {
  std::set<uint32_t> changed;
  for (const v1::Member& m : changes.members()) changed.insert(m.key().id());
  for (const v1::Departed& d : changes.departed()) changed.insert(d.key().id());
  const bool is_new_term = TermOf(changes.version()) > TermOf(view.version());
  v1::View merged;
  merged.set_version(changes.version());
  merged.set_digest(changes.digest());
  // A coordinator that was started again may not know the former one's.
  merged.set_complete_at(std::max(view.complete_at(), changes.complete_at()));
  *merged.mutable_world() =
      changes.has_world() ? changes.world() : view.world();
  for (const v1::Member& member : view.members()) {
    if (changed.count(member.key().id()) > 0) continue;
    v1::Member& kept = *merged.add_members() = member;
    if (is_new_term) kept.set_suspect(false);
  }
  for (const v1::Departed& departed : view.departed()) {
    if (changed.count(departed.key().id()) > 0) continue;
    *merged.add_departed() = departed;
  }
  merged.mutable_members()->MergeFrom(changes.members());
  merged.mutable_departed()->MergeFrom(changes.departed());
  const bool is_whole = changes.since() <= view.version() &&
                        view.version() <= changes.version() &&
                        DigestOf(merged) == changes.digest();
  if (is_whole) return merged;
  return absl::DataLossError(absl::StrCat(
      "the changes from version ", changes.since(), " to ", changes.version(),
      " do not fit the view of version ", view.version()));
}

v1::WorkerKey ToWire(WorkerKey key) {
  v1::WorkerKey wire;
  wire.set_id(key.id);
  wire.set_epoch(key.epoch);
  return wire;
}

WorkerKey FromWire(const v1::WorkerKey& key) { return {key.id(), key.epoch()}; }

v1::Member ToWire(const Member& member) {
  v1::Member wire;
  wire.set_name(member.name);
  *wire.mutable_key() = ToWire(member.key);
  wire.set_role(member.role);
  wire.set_rank(member.rank);
  wire.set_address(member.address);
  wire.set_incarnation(member.incarnation);
  wire.mutable_labels()->insert(member.labels.begin(), member.labels.end());
  wire.set_suspect(member.suspect);
  wire.set_phase(ToWire(member.phase));
  return wire;
}

v1::Phase ToWire(Phase phase) {
  return static_cast<v1::Phase>(static_cast<int>(phase));
}

Member FromWire(const v1::Member& member) {
  Member m;
  m.name = member.name();
  m.key = FromWire(member.key());
  m.role = member.role();
  m.rank = member.rank();
  m.address = member.address();
  m.incarnation = member.incarnation();
  m.labels.insert(member.labels().begin(), member.labels().end());
  m.suspect = member.suspect();
  // A phase that this build does not know is beyond those that it does.
  m.phase = static_cast<Phase>(std::clamp(static_cast<int>(member.phase()),
                                          static_cast<int>(Phase::kActive),
                                          static_cast<int>(Phase::kDrained)));
  return m;
}

Departed FromWire(const v1::Departed& departed) {
  return {departed.name(), FromWire(departed.key()), departed.reason(),
          departed.left()};
}

v1::World ToWire(const World& world) {
  v1::World wire;
  wire.mutable_roles()->insert(world.roles.begin(), world.roles.end());
  wire.set_min(world.min);
  wire.set_max(world.max);
  wire.set_origin(world.origin);
  return wire;
}

World FromWire(const v1::World& world) {
  World w;
  w.roles.insert(world.roles().begin(), world.roles().end());
  w.min = world.min();
  w.max = world.max();
  w.origin = world.origin();
  return w;
}

View FromWire(const v1::View& view) {
  std::vector<Member> members;
  for (const v1::Member& member : view.members()) {
    members.push_back(FromWire(member));
  }
  std::vector<Departed> departed;
  for (const v1::Departed& gone : view.departed()) {
    departed.push_back(FromWire(gone));
  }
  return View(view.version(), FromWire(view.world()), std::move(members),
              std::move(departed), view.complete_at());
}

absl::Status CheckView(const v1::View& view) {
  const World world = FromWire(view.world());
  if (!IsUnset(world)) WEFT_RETURN_IF_ERROR(world.Validate());
  const int names = view.members_size() + view.departed_size();
  if (names > kMaxNames) {
    return absl::InvalidArgumentError(
        absl::StrCat("a view of ", names, " names: at most ", kMaxNames));
  }
  std::set<absl::string_view> seen;
  std::set<uint32_t> ids;
  for (const v1::Member& member : view.members()) {
    WEFT_RETURN_IF_ERROR(ValidateName(member.name()));
    WEFT_RETURN_IF_ERROR(CheckPlace(member, world));
    const bool is_new = seen.insert(member.name()).second;
    if (is_new && ids.insert(member.key().id()).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "two members of the ", is_new ? absl::StrCat("id ", member.key().id())
                                      : absl::StrCat("name ", member.name())));
  }
  for (const v1::Departed& departed : view.departed()) {
    WEFT_RETURN_IF_ERROR(ValidateName(departed.name()));
  }
  return absl::OkStatus();
}

absl::Status CheckHas(const v1::View& view, absl::string_view name,
                      const v1::WorkerKey& key) {
  for (const v1::Member& member : view.members()) {
    const bool is_it = member.key().epoch() == key.epoch() &&
                       member.key().id() == key.id() && member.name() == name;
    if (is_it && key.epoch() != 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("let ", name, " in as ", FromWire(key).ToString(),
                   " with a view that does not have it"));
}

absl::StatusOr<View> ReadView(const v1::View& view) {
  WEFT_RETURN_IF_ERROR(CheckView(view));
  return FromWire(view);
}

absl::Status BadAnswer(absl::string_view coordinator, absl::string_view method,
                       absl::string_view why) {
  return absl::InternalError(absl::StrCat(
      "the coordinator at ", coordinator, " answered ", method,
      " with what none says: ", why,
      "; is it one of this job's, and of the same version of Weft?"));
}

}  // namespace weft::rendezvous
