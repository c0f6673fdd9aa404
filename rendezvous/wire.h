// Wire: members, views and worlds to and from their messages, and what a
// coordinator may say.

#ifndef WEFT_RENDEZVOUS_WIRE_H_
#define WEFT_RENDEZVOUS_WIRE_H_

#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {

v1::WorkerKey ToWire(WorkerKey key);
v1::Member ToWire(const Member& member);
v1::World ToWire(const World& world);
v1::Phase ToWire(Phase phase);

WorkerKey FromWire(const v1::WorkerKey& key);
Member FromWire(const v1::Member& member);
Departed FromWire(const v1::Departed& departed);
World FromWire(const v1::World& world);
View FromWire(const v1::View& view);  // of a view that CheckView takes

// The most names of a view: members and departed together.
inline constexpr int kMaxNames = 2 * kMaxWorkers;

// Digests who is in and in which state, and who is gone: the sum over all
// members and departed, so that it can be kept up to date change by change.
uint64_t DigestOf(const v1::Member& member);
uint64_t DigestOf(const v1::Departed& departed);
uint64_t DigestOf(const v1::View& view);

// `view` with `changes`, see v1::View.since. kDataLoss: they do not lead to
// the view of which they are, so `view` was none of that coordinator's.
absl::StatusOr<v1::View> Merge(const v1::View& view, const v1::View& changes);

// What each coordinator keeps to: a world that Validate() takes, or none yet;
// up to kMaxNames names that ValidateName() takes; no two members of one name
// or id; in a fixed world each but an admin at its place, <role><rank>.
// kInvalidArgument says what is wrong.
absl::Status CheckView(const v1::View& view);
// Checks that `view`, which CheckView takes, has `name` under the key that the
// coordinator gave to it.
absl::Status CheckHas(const v1::View& view, absl::string_view name,
                      const v1::WorkerKey& key);

// The View of one that may come from anybody; as CheckView.
absl::StatusOr<View> ReadView(const v1::View& view);

// The method of the coordinator that takes a Request: "Join" a v1::JoinRequest.
template <typename Request>
absl::string_view MethodOf() {
  return absl::StripSuffix(Request::descriptor()->name(), "Request");
}
// The methods of the alternatives of a std::variant of requests, in their
// order.
template <typename Variant>
struct MethodsOf;
template <typename... Requests>
struct MethodsOf<std::variant<Requests...>> {
  static std::vector<absl::string_view> Names() {
    return {MethodOf<Requests>()...};
  }
};

// kInternal: whoever answers at `coordinator` said to `method` what no
// coordinator says; `why`.
absl::Status BadAnswer(absl::string_view coordinator, absl::string_view method,
                       absl::string_view why);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_WIRE_H_
