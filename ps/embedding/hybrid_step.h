// HybridStep: one step of a training whose dense parameters are averaged over
// the ranks by DDP and updated on each, and whose rows lie in tables.
//
//   auto ddp = *ddp::DistributedDataParallel::Create(model, *group);
//   ps::Lookups lookups;
//   ps::HybridStep hybrid({ddp.get(), group, optimizer.get(), &lookups});
//   for (each batch) {
//     const auto rows = lookups.Embedding(*users, batch.users);
//     WEFT_RETURN_IF_ERROR(hybrid.Step(Loss(model.Forward(*rows), batch)));
//   }
//
// A step runs the backward pass, in which DDP averages the dense gradients;
// checks both halves on each rank, and agrees with the other ranks that each
// can step; pushes the look-ups' gradients; agrees that all pushes were taken;
// and then updates the dense parameters. It costs two gathers of some bytes
// beside what DDP does. With an error:
//
//   before the pushes   nothing has changed on any rank, nor in any table: a
//                       gradient that is not finite, a backward pass that
//                       failed, a table that must be opened again
//   in the pushes       no dense parameter has changed on any rank. Tables keep
//                       what other ranks have pushed, or other servers have
//                       taken. A round of a SYNC table that lacks a part is not
//                       closed, so nobody sees it
//   in the gather       the group is broken (process_group.h): a rank that the
//   after them          gather reached may have updated its parameters, and the
//                       others have not. Form the group again from one rank's
//                       parameters, or go on from a checkpoint
//
// In each case the pass is over: its look-ups are aborted, and the gradients of
// the optimizer's parameters are cleared.
//
// DDP's mean is over ranks; so a table that is to have the same has the
// reduction MEAN (SYNC), with as many shards as there are ranks.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_EMBEDDING_HYBRID_STEP_H_
#define WEFT_PS_EMBEDDING_HYBRID_STEP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/autograd/variable.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/optimizer/optimizer.h"
#include "weft/ps/embedding/lookups.h"

namespace weft::ps {

// All of it must outlive the HybridStep.
struct HybridParts {
  // The wrapper of the model whose parameters `optimizer` has. Null with one
  // rank.
  ddp::DistributedDataParallel* ddp = nullptr;
  // The group of `ddp`, or another one of the same ranks. Null: there is one
  // rank, which asks nobody.
  collectives::ProcessGroup* group = nullptr;
  optimizer::Optimizer* optimizer = nullptr;
  Lookups* lookups = nullptr;
};

class HybridStep {
 public:
  // REQUIRES: an optimizer and lookups.
  explicit HybridStep(const HybridParts& parts);

  // Called by all ranks. `loss` has one element. Another rank's error names it
  // and has its code.
  absl::Status Step(const Variable& loss);
  // In place of Step, on a rank that has no data for it. kFailedPrecondition
  // without `ddp`.
  absl::Status StepWithoutData();

 private:
  absl::Status Run(const absl::Status& backward, bool has_data);
  absl::Status CheckDense() const;
  // OK if it is on all ranks.
  absl::Status Agree(const absl::Status& own) const;

  const HybridParts parts_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_HYBRID_STEP_H_
