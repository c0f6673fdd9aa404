#include "weft/ddp/sync_batch_norm.h"

#include <utility>

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/norm.h"
#include "weft/autograd/record.h"
#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/norm.h"

namespace weft::ddp {
namespace {

// Not among the operations that op_test checks: it needs a group.
const Op kSyncBatchNorm("SyncBatchNorm", {});

// [channels] as a view that spreads over x [n, channels, ...].
Tensor AlongChannels(const Tensor& values, const Tensor& x) {
  Shape shape(x.dim(), 1);
  shape[1] = x.size(1);
  return values.View(shape);
}

void CheckShape(const Tensor& x, int64_t channels) {
  if (x.dim() >= 2 && x.size(1) == channels) return;
  ThrowInvalidArgument("SyncBatchNorm: x is ", x.Describe(), "; wanted [n, ",
                       channels, ", ...]");
}

// What the backward pass needs of the forward pass.
struct Saved {
  SavedTensor x, weight;
  BatchNormResult forward;
  bool has_bias;
  double count;    // elements of a channel on all ranks
  double samples;  // what this rank weighs; 0: no data
  collectives::ProcessGroup* group;
};

// dx = scale * (grad - mean(grad) - z * mean(grad * z)), with the means over
// all ranks. A rank's gradients are those of its own loss, which counts for all
// by the rank's weight.
void Backward(const Saved& saved, BackwardCall& call) {
  const Tensor& x = saved.x.Get();
  const Tensor& weight = saved.weight.Get();
  const Tensor ones = Tensor::Ones({x.size(1)}, x.dtype(), x.device());
  const bool is_empty = x.numel() == 0;
  // With constant moments: scale * grad, and the sums over this rank's batch.
  NormGradients own;
  if (is_empty) {
    own.x = Tensor::ZerosLike(x);
    own.weight = Tensor::Zeros({x.size(1)}, x.dtype(), x.device());
    own.bias = Tensor::ZerosLike(own.weight);
  } else {
    own = BatchNormBackward(call.output(), x, saved.forward,
                            weight.defined() ? weight : ones,
                            /*has_bias=*/true, /*of_batch=*/false);
  }
  const int64_t channels = x.size(1);
  const Tensor sums = Tensor::Empty({2, channels}, DType::kF64, x.device());
  sums.Slice(0, 0, 1).View({channels}).CopyFrom(own.bias);
  sums.Slice(0, 1, 2).View({channels}).CopyFrom(own.weight);
  ThrowIfError(saved.group->AllReduce(
      sums,
      collectives::Reduction(collectives::ReduceOp::kSum, saved.samples)));
  if (call.needs(0)) {
    if (!is_empty) {
      Mul_(sums, 1 / (saved.count * saved.samples));
      const Tensor means = sums.To(x.dtype());
      const Tensor z = Sub(x, AlongChannels(saved.forward.mean, x));
      Mul_(z, AlongChannels(saved.forward.inverse, x));
      Mul_(z, AlongChannels(means.Slice(0, 1, 2).View({channels}), x));
      Add_(z, AlongChannels(means.Slice(0, 0, 1).View({channels}), x));
      const Tensor scale = weight.defined() ? Mul(saved.forward.inverse, weight)
                                            : saved.forward.inverse;
      Mul_(z, AlongChannels(scale, x));
      own.x = Sub(own.x, z);
    }
    call.inputs[0] = own.x;
  }
  if (call.needs(1)) call.Put(1, own.weight);
  if (saved.has_bias && call.needs(2)) call.Put(2, own.bias);
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(int64_t channels, collectives::ProcessGroup& group,
                             const SyncBatchNormOptions& options)
    : group_(group), channels_(channels), options_(options) {
  if (channels <= 0) {
    ThrowInvalidArgument("SyncBatchNorm: wanted 1 channel or more, found ",
                         channels);
  }
  const DType dtype = options.layer.norm.dtype;
  if (options.layer.norm.affine) {
    weight_ = AddParameter("weight", Tensor::Ones({channels}, dtype));
    bias_ = AddParameter("bias", Tensor::Zeros({channels}, dtype));
  }
  if (options.layer.track_running_statistics) {
    running_mean_ = AddBuffer("running_mean", Tensor::Zeros({channels}, dtype));
    running_variance_ =
        AddBuffer("running_var", Tensor::Ones({channels}, dtype));
    batches_ = AddBuffer("num_batches_tracked", Tensor::Zeros({}, DType::kI64));
  }
}

SyncBatchNorm::Moments SyncBatchNorm::MomentsOfAll(const Tensor& x) const {
  // Each rank gives its count, means and variances, on the CPU, which puts them
  // together.
  const int64_t entries = 1 + 2 * channels_;
  // Once: another rank may be elsewhere when this one computes it again.
  const Tensor all = OnceInCheckpoint([&] {
    const Tensor own = Tensor::Zeros({entries}, DType::kF64);
    if (x.numel() > 0) {
      const ChannelMoments moments = weft::MomentsOf(x);
      own.data<double>()[0] = static_cast<double>(moments.count);
      own.Slice(0, 1, 1 + channels_).CopyFrom(moments.mean);
      own.Slice(0, 1 + channels_, entries).CopyFrom(moments.variance);
    }
    Tensor gathered = Tensor::Empty({group_.size(), entries}, DType::kF64);
    ThrowIfError(group_.AllGather(own, gathered));
    return gathered;
  });
  const double* ranks = all.data<double>();
  Moments result;
  for (int r = 0; r < group_.size(); ++r) result.count += ranks[r * entries];
  if (result.count <= 1) {
    ThrowInvalidArgument("SyncBatchNorm: x is ", x.Describe(), ", and ",
                         result.count,
                         " elements in each channel of all ranks together have "
                         "no variance; wanted 2 or more");
  }
  const Tensor mean = Tensor::Zeros({channels_}, DType::kF64);
  const Tensor variance = Tensor::Zeros({channels_}, DType::kF64);
  for (int64_t c = 0; c < channels_; ++c) {
    double& m = mean.data<double>()[c];
    double& v = variance.data<double>()[c];
    for (int r = 0; r < group_.size(); ++r) {
      m += ranks[r * entries] / result.count * ranks[r * entries + 1 + c];
    }
    for (int r = 0; r < group_.size(); ++r) {
      const double apart = ranks[r * entries + 1 + c] - m;
      v += ranks[r * entries] / result.count *
           (ranks[r * entries + 1 + channels_ + c] + apart * apart);
    }
  }
  result.mean = mean.To(x.dtype()).To(x.device());
  result.variance = variance.To(x.dtype()).To(x.device());
  return result;
}

void SyncBatchNorm::MoveRunning(const Moments& moments) const {
  if (!running_mean_.defined()) return;
  const double momentum = options_.layer.momentum;
  Mul_(running_mean_.tensor(), 1 - momentum);
  Axpy_(running_mean_.tensor(), momentum, moments.mean);
  Mul_(running_variance_.tensor(), 1 - momentum);
  Axpy_(running_variance_.tensor(),
        momentum * moments.count / (moments.count - 1), moments.variance);
  Add_(batches_.tensor(), 1);
}

Variable SyncBatchNorm::Compute(const Variable& x) {
  CheckShape(x.value(), channels_);
  const double epsilon = options_.layer.norm.epsilon;
  if (!is_training() && running_mean_.defined()) {
    BatchNormOptions evaluating;
    evaluating.is_training = false;
    evaluating.epsilon = epsilon;
    return BatchNorm(x, weight_, bias_, running_mean_.tensor(),
                     running_variance_.tensor(), evaluating);
  }
  const Moments moments = MomentsOfAll(x.value());
  BatchNormResult forward = BatchNorm(x.value(), moments.mean, moments.variance,
                                      weight_.value(), bias_.value(), epsilon);
  if (is_training() && !IsRecomputing()) MoveRunning(moments);
  Tensor y = std::move(forward.y);
  const bool is_weighted = options_.divisor == Divisor::kTotalWeight;
  Saved saved{SavedTensor(x),
              SavedTensor(weight_),
              std::move(forward),
              bias_.defined(),
              moments.count,
              is_weighted ? static_cast<double>(x.value().size(0)) : 1.0,
              &group_};
  return Record(kSyncBatchNorm, std::move(y), {&x, &weight_, &bias_},
                [saved = std::move(saved)](BackwardCall& call) {
                  Backward(saved, call);
                });
}

}  // namespace weft::ddp
