#include "weft/collectives/backends/mpi/mpi_ranks.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::collectives {

absl::Status CheckMpiRanks(const MpiOptions& options, int own,
                           const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ConnectMpi, group ", options.name, ": ", why, "; found ranks [",
        absl::StrJoin(options.ranks, ", "), "] of ", size, " on rank ", own));
  };
  std::set<int> seen;
  for (const int rank : options.ranks) {
    if (rank < 0 || rank >= size) {
      return refuse("wants ranks that MPI has");
    }
    if (!seen.insert(rank).second) return refuse("wants each rank once");
  }
  if (seen.count(own) == 0) return refuse("wants this rank, too");
  for (const int rank : options.ranks) {
    if (options.insecure || hosts[rank] == hosts[options.ranks[0]]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ConnectMpi, group ", options.name, ": MPI's ranks ", options.ranks[0],
        " and ", rank, " are on different hosts, and MPI neither encrypts nor ",
        "authenticates; set MpiOptions::insecure if the network is trusted, ",
        "or take the host backend, which has TLS"));
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
