// World: see the header.

#include "weft/rendezvous/world.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {

World World::Fixed(std::map<std::string, int> roles) {
  World world;
  world.roles = std::move(roles);
  world.min = world.max = 0;
  return world;
}

World World::Fixed(int servers, int trainers) {
  std::map<std::string, int> roles;
  if (servers > 0) roles["ps"] = servers;
  if (trainers > 0) roles["trainer"] = trainers;
  return Fixed(std::move(roles));
}

World World::Elastic(int min, int max) {
  World world;
  world.min = min;
  world.max = max;
  return world;
}

int World::size() const {
  if (!is_fixed()) return min;
  int size = 0;
  for (const auto& [role, count] : roles) size += count;
  return size;
}

std::optional<uint32_t> World::Place(absl::string_view role, int rank) const {
  uint32_t before = 0;
  for (const auto& [name, count] : roles) {
    if (name != role) {
      before += count;
      continue;
    }
    if (rank < 0 || rank >= count) return std::nullopt;
    return before + rank;
  }
  return std::nullopt;
}

absl::Status World::Validate() const {
  int64_t total = 0;
  for (const auto& [role, count] : roles) {
    if (role == kAdminRole || role.empty() || count < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "world: role \"", role, "\" = ", count,
          ": wanted a role other than admin with at least one member"));
    }
    WEFT_RETURN_IF_ERROR(ValidateName(absl::StrCat(role, count - 1)));
    total += count;
  }
  if (total > kMaxWorkers || max > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("world: ", ToString(),
                                                   ": at most ", kMaxWorkers,
                                                   " workers can be in a job"));
  }
  if (is_fixed()) return absl::OkStatus();
  if (min < 1 || max < min) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world: ", ToString(), ": wanted at least 1 worker and min <= max"));
  }
  return absl::OkStatus();
}

std::string World::ToString() const {
  if (!is_fixed()) return absl::StrCat("elastic ", min, " to ", max);
  return absl::StrJoin(roles, " ", absl::PairFormatter("="));
}

std::string World::DifferenceFrom(const World& found) const {
  const auto quoted = [](const World& world) {
    return absl::StrCat(
        "\"", world.ToString(), "\"",
        world.origin.empty() ? "" : absl::StrCat(" by ", world.origin));
  };
  const bool is_by_nodes = !origin.empty() && !found.origin.empty();
  return absl::StrCat("expects the world ", quoted(*this), ", the job has ",
                      quoted(found), ": start all workers with the same ",
                      is_by_nodes        ? "--nnodes and roles on all nodes"
                      : found.is_fixed() ? "--servers and --trainers"
                                         : "--workers");
}

bool operator==(const World& a, const World& b) {
  if (a.is_fixed() != b.is_fixed()) return false;
  return a.is_fixed() ? a.roles == b.roles : a.min == b.min && a.max == b.max;
}

}  // namespace weft::rendezvous
