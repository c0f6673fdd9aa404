// SyncBatchNorm: batch normalisation over the batches of all ranks of a group.
//
//   auto own = group->Split(0);  // for its operations only
//   SyncBatchNorm norm(channels, **own);
//
// As nn::BatchNorm, whose parameters and buffers it has by the same names, but
// that in training mean and variance are those of all ranks' batches together,
// forward and backward: N ranks compute what one process would with the whole
// batch, but for the order of sums. Batches may differ in size, and one may be
// empty.
//
// Its operations are collective: in training all ranks call Forward, and run
// the backward pass through it, equally often and in the same order. They may
// come between a reducer's, so give it a group of its own; all SyncBatchNorms
// of a model may share one. In evaluation (Eval) there is no communication.
//
// Source: the backward of batch normalisation, with sums over all ranks; two
// operations of 2 * channels numbers, one forward and one backward.

#ifndef WEFT_DDP_SYNC_BATCH_NORM_H_
#define WEFT_DDP_SYNC_BATCH_NORM_H_

#include <cstdint>

#include "weft/autograd/variable.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/reducer.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/tensor/tensor.h"

namespace weft::ddp {

struct SyncBatchNormOptions {
  nn::BatchNormLayerOptions layer;
  // The divisor of the reducer. With kTotalWeight a rank's weight is the number
  // of samples of its batch; give the same number to SetWeight.
  Divisor divisor = Divisor::kWorldSize;
};

class SyncBatchNorm final : public nn::Layer {
 public:
  // `group` must outlive the layer and the graphs that it recorded.
  SyncBatchNorm(int64_t channels, collectives::ProcessGroup& group,
                const SyncBatchNormOptions& options = {});

  // Forward: x [n, channels, ...] -> the same; f32 or f64. Throws Error:
  // kInvalidArgument for a shape that does not fit or a channel of one element
  // on all ranks together; else as ProcessGroup::AllGather. The backward pass
  // throws Errors of ProcessGroup::AllReduce.
  //
  // Within Checkpoint the moments are agreed on once.

 private:
  Variable Compute(const Variable& x) override;

  struct Moments {
    Tensor mean, variance;  // [channels] of all ranks
    double count = 0;       // elements of a channel on all ranks
  };
  Moments MomentsOfAll(const Tensor& x) const;
  void MoveRunning(const Moments& moments) const;

  collectives::ProcessGroup& group_;
  const int64_t channels_;
  const SyncBatchNormOptions options_;
  Variable weight_;
  Variable bias_;
  nn::Buffer running_mean_;  // none if none are kept, like the next two
  nn::Buffer running_variance_;
  nn::Buffer batches_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_SYNC_BATCH_NORM_H_
