// VirtualShards: data-parallel training with the same bits for any number of
// ranks.
//
//   WEFT_ASSIGN_OR_RETURN(auto shards,
//                         VirtualShards::Create(model, *group, {8}));
//   for (...) {
//     for (int s = shards->own().begin; s < shards->own().end; ++s) {
//       WEFT_RETURN_IF_ERROR(shards->Begin(s));
//       generator = random.Fork(step).Fork(s);       // what Dropout draws from
//       CrossEntropy(model.Forward(x[s]), y[s]).Backward();
//       WEFT_RETURN_IF_ERROR(shards->End());
//     }
//     WEFT_RETURN_IF_ERROR(shards->Finish());        // gradients are means
//     WEFT_RETURN_IF_ERROR(optimizer->Step());
//     optimizer->ZeroGrad();
//   }
//
// The data, the random numbers and the batch statistics belong to virtual
// shards, of which a job has a fixed number, a power of two; a rank runs the
// shards that it owns (OwnShards) one after the other. Their gradients are kept
// apart and added up over one balanced tree (shard_tree.h), within ranks and
// between them, and divided by the number of shards. So with the same batches
// in the same shards, 1, 2, 3 or 8 ranks get the same bits.
//
// A shard without a gradient of a parameter counts as zeros; where no shard has
// one, the gradient stays undefined. A parameter has rows from all shards or
// whole gradients from all: rows stay rows, of all shards, coalesced.
//
// Gradients on a device are added up on the CPU, and so have its bits.
//
// Each shard begins with the buffers of the step's begin. Floating buffers
// (running statistics) become the mean over the shards of what their passes
// left; the others become those of shard 0.
//
// Memory: of the gradients, one copy for each complete subtree of the own
// shards, 1 + log2(own shards) while they run, and with several ranks 3 more in
// Finish. Time: see bench/RESULTS.md.
//
// A rank that fails ends its group; the others fail in Finish with the reason.
// Not for models whose forward or backward pass communicates (SyncBatchNorm):
// ranks run different numbers of passes.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DDP_VIRTUAL_SHARDS_H_
#define WEFT_DDP_VIRTUAL_SHARDS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/autograd/gradient.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/model_replicas.h"
#include "weft/ddp/shard_tree.h"
#include "weft/nn/module.h"
#include "weft/tensor/tensor.h"

namespace weft::ddp {

class VirtualShards {
 public:
  static constexpr int kNoRoot = std::numeric_limits<int>::min();
  struct Options {
    int shards = 8;
    // The timeout of each operation; none: the group's.
    absl::optional<absl::Duration> timeout = absl::nullopt;
    // The rank with whose parameters and buffers all begin; kNoRoot: all have
    // the same, or will before the first Begin, and have found that they agree:
    // the ranks tell each other nothing.
    int root = 0;
  };

  // Called by all ranks with the same model and options. Checks that they
  // agree, and gives all ranks the root's parameters and buffers. Both must
  // outlive it.
  //   kInvalidArgument   on every rank: the models or options differ; the
  //                      number of shards is not allowed (CheckVirtualShards);
  //                      there is nothing to train
  //   kUnimplemented     a trained parameter is not of f32 or f64
  // and those of ProcessGroup.
  static absl::StatusOr<std::unique_ptr<VirtualShards>> Create(
      nn::Module& module, collectives::ProcessGroup& group, Options options);
  VirtualShards(const VirtualShards&) = delete;
  VirtualShards& operator=(const VirtualShards&) = delete;

  int shards() const { return options_.shards; }
  // The shards that this rank runs.
  const ShardRange& own() const { return own_; }

  // To be called before the pass of `shard`; in a step once for each own shard,
  // in ascending order. kFailedPrecondition: it is another shard's turn, or a
  // parameter has a gradient already (ZeroGrad comes first).
  absl::Status Begin(int shard);
  // To be called after the pass: takes the gradients of the shard, which are
  // undefined then, and its buffers. kFailedPrecondition without a Begin.
  absl::Status End();

  // To be called by all ranks, after the last own shard. The gradients of the
  // model become the means over all shards; they are valid until the next
  // Finish.
  //   kFailedPrecondition   not all own shards have run; or, on every rank,
  //                         some shards gave rows of a parameter and others a
  //                         whole gradient, which names it
  // and those of ProcessGroup, after which the group is broken. After an error
  // gradients are undefined and the buffers are those of the step's begin.
  absl::Status Finish();
  // Ends a step that is not to be taken, also after its Finish: gradients are
  // undefined then, and the buffers are those of the step's begin. Does nothing
  // before the first Begin.
  void Abandon();

  // Whether all ranks have bitwise the same parameters: kDataLoss, on every
  // rank, names those that differ. Called by all ranks.
  absl::Status CheckInSync() { return replicas_.CheckInSync(); }

 private:
  // What a subtree has: the gradient of each parameter, undefined where it has
  // none, then each floating buffer.
  using Values = std::vector<Gradient>;
  // Where dense values lie in a flat tensor of their dtype.
  struct Place {
    int value = 0;  // index in Values
    Shape shape;
    int64_t begin = 0;  // element
    int64_t size = 0;
  };

  VirtualShards(nn::Module& module, collectives::ProcessGroup& group,
                Options options);

  absl::Status CheckAllAgree() const;
  absl::Status CheckDTypes() const;
  void SaveBuffers();
  void RestoreBuffers();
  absl::Status EndPass();
  void EndStep();
  absl::Status FinishAll();
  // How many shards have whole gradients and rows of each parameter.
  absl::Status Count();
  std::vector<Place> PlacesOf(DType dtype) const;
  absl::Status ReduceWhole(DType dtype);
  absl::StatusOr<Tensor> ReduceFlat(const std::vector<Place>& places,
                                    int64_t size, DType dtype);
  absl::Status ReduceRows(size_t parameter);
  absl::Status GiveIntegerBuffers();
  Tensor Allocate(int64_t size, DType dtype);
  collectives::CallOptions CallOptionsOf() const;

  collectives::ProcessGroup& group_;
  const Options options_;
  const ModelReplicas replicas_;
  const std::vector<nn::NamedParameter> parameters_;
  std::vector<Tensor> floating_;  // buffers
  std::vector<Tensor> others_;
  ShardRange own_;

  // The step.
  int next_ = 0;  // shard
  bool is_open_ = false;
  std::vector<Tensor> begin_;        // floating_ and others_, when it began
  std::vector<Tensor> others_of_0_;  // others_, as shard 0 left them
  ShardTree<Values> tree_;
  std::vector<int64_t> whole_;  // by parameter
  std::vector<int64_t> rows_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_VIRTUAL_SHARDS_H_
