// Participant: changes that a context has in store beside the gradients of
// leaves, such as pushes to tables: made by the step of the context, or
// dropped.
//
// It belongs to one worker's part of a context (Context::AddParticipant). A
// DistributedOptimizer prepares all participants of the context, at all workers
// that its passes came to, before any of them commits. The end of the context
// at this worker aborts those that have not committed.

#ifndef WEFT_DIST_AUTOGRAD_PARTICIPANT_H_
#define WEFT_DIST_AUTOGRAD_PARTICIPANT_H_

#include "absl/status/statusor.h"
#include "weft/base/future.h"

namespace weft::dist_autograd {

// Thread-safety: an implementation is thread-safe.
class Participant {
 public:
  virtual ~Participant() = default;

  // Whether Commit can be made, and has anything to change. Changes nothing,
  // and may be called any number of times; false once committed.
  virtual absl::StatusOr<bool> Prepare() = 0;

  // Makes the changes, once: a further call has the result of the first. Ends
  // by a deadline of its own. kFailedPrecondition after Abort.
  virtual Future<void> Commit() = 0;

  // Drops the changes. Does nothing after Commit.
  virtual void Abort() = 0;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PARTICIPANT_H_
