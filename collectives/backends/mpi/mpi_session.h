// MpiSession: this process's use of MPI.

#ifndef WEFT_COLLECTIVES_BACKENDS_MPI_MPI_SESSION_H_
#define WEFT_COLLECTIVES_BACKENDS_MPI_MPI_SESSION_H_

#include <memory>

#include "absl/status/statusor.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class MpiSession {
 public:
  // Initialises MPI for several threads, where the program has not. Called once
  // by each process that mpirun has started; waits for all of them, as MPI_Init
  // does, without a deadline. kFailedPrecondition: the program has initialised
  // MPI with less than MPI_THREAD_MULTIPLE, or has finalised it; kInternal:
  // MPI's reason.
  static absl::StatusOr<std::unique_ptr<MpiSession>> Start();
  // Finalises MPI if Start initialised it. REQUIRES: its groups have ended.
  ~MpiSession();

  // The rank and size in MPI_COMM_WORLD.
  int rank() const;
  int size() const;

  // --- For the backend. ---

  class State;
  State& state() { return *state_; }

 private:
  explicit MpiSession(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_MPI_MPI_SESSION_H_
