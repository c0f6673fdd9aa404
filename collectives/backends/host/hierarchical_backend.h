// The hierarchical backend: shared memory within each host, streams between
// them. ConnectHost makes it where ranks are on several hosts.
//
// Each operation begins among the ranks of the host, where a call that does not
// fit is found at once; then:
//   AllReduce   small, or hosts with different numbers of ranks: the host's
//               ranks reduce to their first, these reduce among each other, and
//               broadcast. Else: each rank of a host reduces a slice of all of
//               them, then all ranks of that slice reduce among each other,
//               then the host's ranks gather the slices. Between hosts each
//               byte travels as often as with one rank a host, by as many
//               streams as a host has ranks. Partial sums of 16-bit elements
//               are f32.
//   Broadcast   from the root to one rank of each host, then in the host
//   all others  over streams between all ranks

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_HIERARCHICAL_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_HIERARCHICAL_BACKEND_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/stream/stream_backend.h"

namespace weft::collectives {

// Backend::Subgroup of the whole.
using SubgroupMaker = std::function<absl::StatusOr<std::unique_ptr<Backend>>(
    const SubgroupSpec& spec)>;

// `host` connects the ranks of this host, in rising order; `between`, all
// ranks; hosts[h] are the ranks of host h.
std::unique_ptr<Backend> MakeHierarchical(
    std::unique_ptr<Backend> host, std::unique_ptr<StreamBackend> between,
    const std::vector<std::vector<int>>& hosts, SubgroupMaker make_subgroup);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_HIERARCHICAL_BACKEND_H_
