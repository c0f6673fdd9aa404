// MpiSession::State: what the groups of a process share of MPI.

#ifndef WEFT_COLLECTIVES_BACKENDS_MPI_MPI_STATE_H_
#define WEFT_COLLECTIVES_BACKENDS_MPI_MPI_STATE_H_

#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI has given up
#include <mpi/mpi.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/mpi/mpi_session.h"
#include "weft/collectives/reduction.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

// kInternal with MPI's words for `code`; OK for MPI_SUCCESS.
absl::Status MpiStatus(int code, absl::string_view what);

// Thread-safety: thread-safe.
class MpiSession::State {
 public:
  State() = default;
  ~State();

  absl::Status Start();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The communicator of messages; each group has a tag.
  MPI_Comm messages() const { return messages_; }
  // The communicator from which others are made. It is not messages(): Open MPI
  // makes them by messages with tags, which a receive of any tag would take.
  MPI_Comm parent() const { return parent_; }
  // By rank: the lowest of the ranks that share memory with it.
  const std::vector<int>& hosts() const { return hosts_; }

  // A tag that only `name` has, but for collisions of its hash: who connects
  // compares names besides. kInvalidArgument: the name was used already.
  absl::StatusOr<int> TagOf(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);

  // Reduces accumulators of elements of `dtype`.
  absl::StatusOr<MPI_Op> ReductionOf(DType dtype, ReduceOp op)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Memory that MPI may still read or write: kept until the process ends.
  void Keep(std::shared_ptr<const void> memory) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  int rank_ = 0;
  int size_ = 1;
  bool must_finalize_ = false;
  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm parent_ = MPI_COMM_NULL;
  std::vector<int> hosts_;
  Mutex mu_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::vector<MPI_Op> operations_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<const void>> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_MPI_MPI_STATE_H_
