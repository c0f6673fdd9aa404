#include "weft/autograd/ops/norm.h"

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;

const Op kLayerNorm("LayerNorm",
                    {{"affine",
                      {{{2, 3, 5}}, {{5}}, {{5}}},
                      [](Inputs in) {
                        return LayerNorm(in[0], {5}, in[1], in[2]);
                      }},
                     {"two_dims",
                      {{{3, 2, 4}}, {{2, 4}}, {{2, 4}}},
                      [](Inputs in) {
                        return LayerNorm(in[0], {2, 4}, in[1], in[2], 1e-3);
                      }},
                     {"plain", {{{4, 3}}}, [](Inputs in) {
                        return LayerNorm(in[0], {3}, Variable(), Variable());
                      }}});

const Op kRmsNorm("RmsNorm",
                  {{"weight",
                    {{{2, 3, 5}}, {{5}}},
                    [](Inputs in) { return RmsNorm(in[0], {5}, in[1]); }},
                   {"plain", {{{4, 3}}}, [](Inputs in) {
                      return RmsNorm(in[0], {3}, Variable());
                    }}});

BatchNormOptions Evaluating() {
  BatchNormOptions options;
  options.is_training = false;
  return options;
}

SampleInput Positive(Shape shape) {
  return {std::move(shape), 0.5, 2.0, SampleInput::Kind::kTarget};
}
SampleInput Constant(Shape shape) {
  return {std::move(shape), -1.5, 1.5, SampleInput::Kind::kTarget};
}

const Op kBatchNorm(
    "BatchNorm",
    {{"training",
      {{{4, 3, 2, 2}}, {{3}}, {{3}}},
      [](Inputs in) { return BatchNorm(in[0], in[1], in[2], {}, {}); }},
     {"rows",
      {{{5, 3}}, {{3}}, {{3}}},
      [](Inputs in) { return BatchNorm(in[0], in[1], in[2], {}, {}); }},
     {"plain",
      {{{5, 3}}},
      [](Inputs in) {
        return BatchNorm(in[0], Variable(), Variable(), {}, {});
      }},
     {"evaluating",
      {{{4, 3, 2}}, {{3}}, {{3}}, Constant({3}), Positive({3})},
      [](Inputs in) {
        return BatchNorm(in[0], in[1], in[2], in[3].value(), in[4].value(),
                         Evaluating());
      }}});

// Records LayerNorm or RmsNorm.
Variable RecordRows(const Op& op, RowNormResult forward, const Variable& x,
                    const Shape& normalized, const Variable& weight,
                    const Variable& bias) {
  Tensor y = forward.y;
  // Their gradient needs the moments, not the result.
  forward.y = Tensor();
  return Record(op, std::move(y), {&x, &weight, &bias},
                [x = SavedTensor(x), weight = SavedTensor(weight),
                 has_bias = bias.defined(), forward = std::move(forward),
                 normalized](BackwardCall& call) {
                  NormGradients grads = RowNormBackward(
                      call.output(), x.Get(), forward, normalized, weight.Get(),
                      has_bias && call.needs(2));
                  if (call.needs(0)) call.inputs[0] = std::move(grads.x);
                  if (call.needs(1)) call.Put(1, grads.weight);
                  if (call.needs(2)) call.Put(2, grads.bias);
                });
}

// running += momentum * (now - running).
void MoveTowards(const Tensor& running, const Tensor& now, double momentum) {
  Mul_(running, 1 - momentum);
  // Moments of f16 and bf16 are f32.
  Axpy_(running, momentum, now.To(running.dtype()));
}

ChannelMoments BatchMoments(const Tensor& x) {
  ChannelMoments moments = MomentsOf(x);
  if (moments.count <= 1) {
    ThrowInvalidArgument("BatchNorm: x is ", x.Describe(), ": ", moments.count,
                         " elements in each channel have no variance; wanted "
                         "2 or more");
  }
  return moments;
}

}  // namespace

Variable LayerNorm(const Variable& x, const Shape& normalized,
                   const Variable& weight, const Variable& bias,
                   double epsilon) {
  if (internal::IsAutocasting() && internal::HasHalf(x, weight, bias)) {
    return internal::ComputeInF32(
        [&](const Variable& in, const Variable& w, const Variable& b) {
          return LayerNorm(in, normalized, w, b, epsilon);
        },
        x, weight, bias);
  }
  return RecordRows(
      kLayerNorm,
      LayerNorm(x.value(), normalized, weight.value(), bias.value(), epsilon),
      x, normalized, weight, bias);
}

Variable RmsNorm(const Variable& x, const Shape& normalized,
                 const Variable& weight, double epsilon) {
  if (internal::IsAutocasting() && internal::HasHalf(x, weight)) {
    return internal::ComputeInF32(
        [&](const Variable& in, const Variable& w) {
          return RmsNorm(in, normalized, w, epsilon);
        },
        x, weight);
  }
  return RecordRows(kRmsNorm,
                    RmsNorm(x.value(), normalized, weight.value(), epsilon), x,
                    normalized, weight, Variable());
}

Variable BatchNorm(const Variable& x, const Variable& weight,
                   const Variable& bias, const Tensor& running_mean,
                   const Tensor& running_variance,
                   const BatchNormOptions& options) {
  if (internal::IsAutocasting() && internal::HasHalf(x, weight, bias)) {
    return internal::ComputeInF32(
        [&](const Variable& in, const Variable& w, const Variable& b) {
          return BatchNorm(in, w, b, running_mean, running_variance, options);
        },
        x, weight, bias);
  }
  if (running_mean.defined() != running_variance.defined()) {
    ThrowInvalidArgument(
        "BatchNorm: a running mean without a running variance, or the other "
        "way round; wanted both or none");
  }
  const bool of_batch = options.is_training || !running_mean.defined();
  const ChannelMoments moments =
      of_batch ? BatchMoments(x.value())
               : ChannelMoments{running_mean, running_variance, 0};
  BatchNormResult forward =
      BatchNorm(x.value(), moments.mean, moments.variance, weight.value(),
                bias.value(), options.epsilon);
  if (options.is_training && running_mean.defined()) {
    const double count = static_cast<double>(moments.count);
    MoveTowards(running_mean, moments.mean, options.momentum);
    MoveTowards(running_variance, Mul(moments.variance, count / (count - 1)),
                options.momentum);
  }
  Tensor y = std::move(forward.y);
  return Record(kBatchNorm, std::move(y), {&x, &weight, &bias},
                [x = SavedTensor(x), weight = SavedTensor(weight),
                 forward = std::move(forward), has_bias = bias.defined(),
                 of_batch](BackwardCall& call) {
                  NormGradients grads = BatchNormBackward(
                      call.output(), x.Get(), forward, weight.Get(),
                      has_bias && call.needs(2), of_batch);
                  if (call.needs(0)) call.inputs[0] = std::move(grads.x);
                  if (call.needs(1)) call.Put(1, grads.weight);
                  if (call.needs(2)) call.Put(2, grads.bias);
                });
}

}  // namespace weft
