// What ConnectMpi asks of its ranks.

#ifndef WEFT_COLLECTIVES_BACKENDS_MPI_MPI_RANKS_H_
#define WEFT_COLLECTIVES_BACKENDS_MPI_MPI_RANKS_H_

#include <vector>

#include "absl/status/status.h"
#include "weft/collectives/backends/mpi/mpi_backend.h"

namespace weft::collectives {

// Whether rank `own` of MPI may be in a group of options.ranks. hosts[r] is
// equal for ranks of one host. Errors as ConnectMpi; the same on all ranks of
// the group.
absl::Status CheckMpiRanks(const MpiOptions& options, int own,
                           const std::vector<int>& hosts);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_MPI_MPI_RANKS_H_
