// SimulatedNccl: NCCL for ranks that are threads of one process, on simulated
// devices. It fails on demand.
//
//   SimulatedNccl nccl(seed);
//   options.functions = nccl.Library(rank);   // of NcclOptions
//
// An operation is two tasks on its stream: one reads this rank's elements and
// meets those of the others; one writes the results. Between them the stream
// hangs until all ranks' first tasks have run: as kernels of NCCL do, ranks
// that call different operations, or do not come, wait for ever, and only
// CommAbort frees the stream, which leaves the results as they were.
//
// As of a communicator with blocking=0, calls return kInProgress when the seed
// says so: what they do is on the stream only once CommGetAsyncError has said
// kSuccess, and a call before that is kInvalidUsage. A communicator that has
// ended is no communicator: kInvalidArgument, and misuses() counts it.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_SIMULATED_NCCL_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_SIMULATED_NCCL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "weft/collectives/backends/nccl/nccl_functions.h"

namespace weft::collectives {

// Thread-safety: thread-safe. Its communicators may outlive it.
class SimulatedNccl {
 public:
  explicit SimulatedNccl(uint64_t seed = 0);
  ~SimulatedNccl();

  // That of process `process`, whose number the faults below name.
  std::shared_ptr<const NcclFunctions> Library(int process);

  // --- Failures on demand. ---

  // The next call of the function `name` ("ncclAllReduce") there.
  void FailCall(int process, std::string name, nccl::Result result);
  // What its communicators say from now on; kSuccess: nothing.
  void SetAsyncError(int process, nccl::Result result);
  // Its kernels do not meet the others': a rank that never comes.
  void SetSilent(int process, bool is_silent);

  // --- What happened. ---

  int communicators() const;  // that have not ended
  int aborts() const;
  int64_t launches() const;  // of all ranks
  // Operations in which ranks met that did not call the same.
  int mismatches() const;
  int misuses() const;

  class State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_SIMULATED_NCCL_H_
