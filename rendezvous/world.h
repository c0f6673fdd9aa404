// World: how many workers a job is to have.

#ifndef WEFT_RENDEZVOUS_WORLD_H_
#define WEFT_RENDEZVOUS_WORLD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::rendezvous {

// Fixed: ranks 0..n-1 of each role, named <role><rank>. Elastic: any names,
// complete from `min` members on, full at `max`. Members of role admin are
// never counted.
struct World {
  std::map<std::string, int> roles;  // empty: elastic
  int min = 1;
  int max = 1;
  // What these numbers follow from, for messages; not part of a comparison:
  // "weft run --nnodes=2 on node 0". Empty: their own flags.
  std::string origin;

  static World Fixed(std::map<std::string, int> roles);
  static World Fixed(int servers, int trainers);
  static World Elastic(int min, int max);

  bool is_fixed() const { return !roles.empty(); }
  int size() const;  // fixed: all roles together; elastic: `min`
  int max_size() const { return is_fixed() ? size() : max; }

  // Fixed: the place of (role, rank) in 0..size()-1, roles in alphabetical
  // order; none if there is no such place.
  std::optional<uint32_t> Place(absl::string_view role, int rank) const;

  // Also that <role><rank> is a name. kInvalidArgument says what is wrong.
  absl::Status Validate() const;

  // "ps=2 trainer=2", "elastic 1 to 8".
  std::string ToString() const;
  // What a worker of this world is told of one of world `found` in its job:
  // "expects the world ..., the job has ...", and what makes them the same.
  std::string DifferenceFrom(const World& found) const;

  friend bool operator==(const World& a, const World& b);
  friend bool operator!=(const World& a, const World& b) { return !(a == b); }
};

// The most workers of a job; Validate() sees to it.
inline constexpr int kMaxWorkers = 1 << 16;

// The role of tools that watch a job without being counted in it.
inline constexpr absl::string_view kAdminRole = "admin";

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_WORLD_H_
