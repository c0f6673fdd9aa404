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
// Gradients are views into buckets: one that is kept across the next pass
// changes with it. A parameter whose gradient is sparse on all ranks that have
// one, in the first pass in which any has one, has sparse gradients from that
// pass on, of the rows that any rank has; the ranks agree on that before they
// reduce it. Other sparse gradients are made dense.
//
// Buffers (running statistics) of rank 0 are given to all ranks at the end of
// each reduced pass, that is before the next forward pass; of the lowest rank
// with data, where rank 0 has none. So they also agree in a checkpoint.
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
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/leaf.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/model_replicas.h"
#include "weft/ddp/reducer.h"
#include "weft/nn/module.h"

namespace weft::ddp {

struct DistributedDataParallelOptions {
  DistributedDataParallelOptions() = default;
  DistributedDataParallelOptions(  // NOLINT: the usual case
      ReducerOptions reducer_options)
      : reducer(std::move(reducer_options)) {}

  ReducerOptions reducer;
  // Parameters and buffers, by name, that each rank keeps for itself: not
  // compared, not broadcast, not reduced.
  std::vector<std::string> ignored;
  // Give all ranks the buffers after each reduced pass. If false, call
  // BroadcastBuffers where they have to agree.
  bool broadcasts_buffers = true;
};

class DistributedDataParallel {
 public:
  // Called by all ranks with the same model. Checks that names, shapes and
  // dtypes agree, then gives all ranks rank 0's parameters and buffers, frozen
  // parameters and buffers that are not saved too. A parameter that two modules
  // share is reduced once. One that is frozen now is not reduced: a pass that
  // reaches it after it was unfrozen fails with kFailedPrecondition. One that
  // is frozen later counts as unused. Parameters added to the module later are
  // not known here. `module` and `group` must outlive it. No
  // other code may set the gradient sink of a parameter meanwhile.
  //
  // kInvalidArgument, on every rank: the models differ (the parameter or buffer
  // is named, with both shapes), a rank's model has no parameter, or
  // `options.ignored` has a name that the model has not. Other errors as
  // ProcessGroup.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(
      nn::Module& module, collectives::ProcessGroup& group,
      DistributedDataParallelOptions options = {});
  // Gradients stay in the buckets, which live as long as a gradient refers to
  // them.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Passes that run while one lives add to this rank's gradients only; the next
  // pass after that reduces all of it, also where that pass has no data on this
  // rank (ContributeNothing, a weight of 0): then this rank has the weight that
  // the last such pass had. A pass of weight 0 adds nothing.
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
  // Divisor::kTotalWeight. What has accumulated since the last reduction counts
  // with the weight of the pass that reduces it. kInvalidArgument as
  // Reducer::Begin.
  absl::Status SetWeight(double weight);

  // Called in place of a backward pass on a rank that has no data for it: it
  // contributes zeros to the reduction, with a weight of 0 whatever SetWeight
  // said (but see NoSyncScope), and has the other ranks' result afterwards.
  // With Divisor::kWorldSize the sum is divided by the number of all ranks; to
  // keep a mean over those that have data, use Divisor::kTotalWeight.
  absl::Status ContributeNothing();

  // After a reduced pass: the sum of all ranks' weights, with
  // Divisor::kWorldSize the number of ranks that had data. 0: no rank had data.
  double total_weight() const { return reducer_->total_weight(); }

  // For a loop whose ranks have different numbers of batches, on a rank that
  // has no more: takes part in the others' passes with zeros until no rank has
  // data. `after_pass` is called after each pass for which some rank had data.
  // It does what the other ranks do after a pass (here Step and ZeroGrad), so
  // that weights and optimizer state stay the same on all ranks. Every rank
  // calls it once at the end of its data.
  //
  //   for (each batch) { ... Backward ... Step }
  //   ddp->Join([&] { auto s = opt->Step(); opt->ZeroGrad(); return s; });
  //
  // What the sum of the gradients is divided by in those passes:
  //
  //   Divisor::kWorldSize                   the number of all ranks: PyTorch's
  //                                         join(divide_by_initial_world_size)
  //   Divisor::kTotalWeight, SetWeight(1)   the number of ranks with data: the
  //                                         same with False
  //   Divisor::kTotalWeight, SetWeight(n)   the number of samples: the gradient
  //                                         of the mean over all of them
  //
  // kFailedPrecondition with ReducerOptions::is_static_graph; else as
  // ContributeNothing, or what `after_pass` returns. Not for models with
  // SyncBatchNorm.
  absl::Status Join(absl::FunctionRef<absl::Status()> after_pass);

  // Gives all ranks rank 0's buffers. Called by all ranks.
  absl::Status BroadcastBuffers();

  // kFailedPrecondition names the parameters that have had no gradient on any
  // rank since Create, and what can be done. After some passes; the same on all
  // ranks, without communication.
  absl::Status CheckAllUsed() const;

  struct BucketLog {
    int64_t bytes = 0;
    std::vector<std::string> parameters;
  };
  // A summary for logs and progress.
  struct Log {
    int world_size = 0;
    std::string hook;
    int64_t steps = 0;  // reduced passes
    bool is_rebuilt = false;
    std::vector<BucketLog> buckets;   // in the order of their reduction
    std::vector<std::string> sparse;  // parameters reduced as rows
    std::vector<std::string> never_used;
    StepTimes last, total;  // this rank's
  };
  Log GetLog() const;

  // Whether all ranks have bitwise the same parameters: kDataLoss, on every
  // rank, names those that differ. Called by all ranks.
  absl::Status CheckInSync();

  const Reducer& reducer() const { return *reducer_; }

 private:
  // The interface that autograd uses.
  class Sink;
  friend class Sink;

  DistributedDataParallel(nn::Module& module, collectives::ProcessGroup& group,
                          DistributedDataParallelOptions options);

  collectives::ProcessGroup& group_;
  const DistributedDataParallelOptions options_;
  const ModelReplicas replicas_;
  const std::vector<nn::NamedParameter> parameters_;  // that are reduced
  const std::vector<nn::NamedParameter> frozen_;      // leaves that are not
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Sink> sink_;
  bool syncs_ = true;
  double weight_ = 1;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_DISTRIBUTED_DATA_PARALLEL_H_
