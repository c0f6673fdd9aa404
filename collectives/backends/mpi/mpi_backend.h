// The MPI backend: the processes that `mpirun` has started, over MPI's
// messages. MPI all-reduces, reduces, broadcasts and all-gathers; see
// library_backend.h for the rest.
//
//   auto session = weft::collectives::MpiSession::Start();   // mpi_session.h
//   weft::ExitIfError(session.status());
//   auto backend = weft::collectives::ConnectMpi(**session);
//   auto group = ProcessGroup::Create(*std::move(backend));
//
//   mpirun -np 4 my_program
//
// For those who start their jobs by mpirun: ranks need no store and no address.
// MPI neither encrypts nor proves who speaks, so ranks on several hosts want
// MpiOptions::insecure. Where a process ends, mpirun ends all others: nobody is
// left to name it. What MPI moves passes through memory of the backend, since
// MPI cannot take back an operation that has begun.
//
// Cost of a rank: a thread, which looks for messages every 20 us while there
// are some and every millisecond when there have been none for a second; and a
// communicator of MPI's until the session ends.

#ifndef WEFT_COLLECTIVES_BACKENDS_MPI_MPI_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_MPI_MPI_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/mpi/mpi_session.h"
#include "weft/collectives/group_endpoint.h"

namespace weft::collectives {

struct MpiOptions : GroupTerms {
  // MPI's ranks of the group's ranks 0, 1, ...; empty: all of the session.
  std::vector<int> ranks;
  // Allows ranks on several hosts: nothing is encrypted and nobody is
  // authenticated.
  bool insecure = false;
};

// Called by the ranks of the group; waits for all of them. `session` must
// outlive the group and the groups made from it. Errors:
//   kInvalidArgument     ranks that make no sense; a name that was used already
//   kFailedPrecondition  on every rank: several hosts, and not insecure
//   kDeadlineExceeded    names the ranks that did not come
//   kInternal            MPI's reason
absl::StatusOr<std::unique_ptr<Backend>> ConnectMpi(MpiSession& session,
                                                    MpiOptions options = {});

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_MPI_MPI_BACKEND_H_
