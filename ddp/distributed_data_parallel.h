// DistributedDataParallel: trains one model on all ranks of a group, each on
// its part of the data.
//
//   WEFT_ASSIGN_OR_RETURN(auto ddp,
//                         DistributedDataParallel::Create(model, *group));
//   for (...) {
//     optimizer->ZeroGrad();
//     CrossEntropy(model.Forward(x), y).Backward();  // reduces gradients too
//     WEFT_RETURN_IF_ERROR(optimizer->Step());
//   }
//
// The model is used as before. From Create on, each backward pass that reaches
// a parameter adds to the gradient of each parameter the mean of what that pass
// gave on all ranks. Reductions run while the pass goes on (reducer.h), and the
// pass returns when they are done. All ranks do the same number of such passes.
//
// Gradients are views into buckets: what holds one across the next pass sees it
// change. A sparse gradient is reduced as a dense one.
//
// Parameters that a pass does not reach, or for which it has no gradient: this
// rank contributes zeros. If no rank has one, the gradient stays as it was,
// undefined or not.
//
// A pass that fails on one rank fails on all ranks, with the reason; a rank
// that does not come is named at the deadline, one that has ended at once.
// Backward throws Error with that Status. The group is broken then, and the
// gradients of the model are undefined, so that no optimizer takes half of
// them.
//
// In a pass with a store (a distributed pass) the means go to the store, and
// the parameters' own gradients stay as they are.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DDP_DISTRIBUTED_DATA_PARALLEL_H_
#define WEFT_DDP_DISTRIBUTED_DATA_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/leaf.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/reducer.h"
#include "weft/nn/module.h"

namespace weft::ddp {

class DistributedDataParallel {
 public:
  // Called by all ranks with the same model. Checks that names, shapes and
  // dtypes agree, then gives all ranks rank 0's parameters and buffers. A
  // parameter that two modules share is reduced once. Parameters added to the
  // module later are not known here. `module` and `group` must outlive it; so
  // must nobody else set the gradient sink of a parameter.
  //
  // kInvalidArgument, on every rank: the models differ (the parameter or buffer
  // is named, with both shapes), or a rank's model has no parameter. Other
  // errors as ProcessGroup.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(
      nn::Module& module, collectives::ProcessGroup& group,
      ReducerOptions options = {});
  // Gradients stay in the buckets, which live as long as they are held.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Passes that run while one lives add to this rank's gradients only; the next
  // pass after that reduces all of it. On all ranks alike.
  class NoSyncScope {
   public:
    // `ddp` must outlive it.
    explicit NoSyncScope(DistributedDataParallel& ddp)
        : ddp_(ddp), before_(ddp.syncs_) {
      ddp_.syncs_ = false;
    }
    ~NoSyncScope() { ddp_.syncs_ = before_; }
    NoSyncScope(const NoSyncScope&) = delete;
    NoSyncScope& operator=(const NoSyncScope&) = delete;

   private:
    DistributedDataParallel& ddp_;
    const bool before_;
  };

  // The number of samples behind the gradients of the passes from now on, with
  // Divisor::kTotalWeight. kInvalidArgument as Reducer::Begin.
  absl::Status SetWeight(double weight);

  // In place of a backward pass, on a rank that has no data for it: takes part
  // in the reduction with zeros, and has the other ranks' result afterwards. To
  // keep a mean over those that have data, use Divisor::kTotalWeight, where
  // this rank's weight is 0 in this pass.
  absl::Status ContributeNothing();

  // After a reduced pass: the sum of all ranks' weights. 0: no rank had data.
  double total_weight() const { return reducer_->total_weight(); }

  // Gives all ranks rank 0's buffers: running statistics, before a forward pass
  // or a checkpoint. Called by all ranks.
  absl::Status BroadcastBuffers();

  // Whether all ranks have bitwise the same parameters: kDataLoss, on every
  // rank, names those that differ. Called by all ranks.
  absl::Status CheckInSync();

  const Reducer& reducer() const { return *reducer_; }

 private:
  // What this class shows to autograd only.
  class Sink;
  friend class Sink;

  DistributedDataParallel(nn::Module& module, collectives::ProcessGroup& group,
                          ReducerOptions options);

  absl::Status CheckBuffersAgree();
  absl::Status BroadcastAll(const std::vector<Tensor>& tensors);

  nn::Module& module_;
  collectives::ProcessGroup& group_;
  const ReducerOptions options_;
  const std::vector<nn::NamedParameter> parameters_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Sink> sink_;
  bool syncs_ = true;
  double weight_ = 1;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_DISTRIBUTED_DATA_PARALLEL_H_
