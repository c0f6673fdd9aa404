#include "weft/autograd/ops/conv.h"

#include <utility>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;

const Op kConv2d(
    "Conv2d",
    {{"bias",
      {{{2, 3, 6, 5}}, {{4, 3, 3, 3}}, {{4}}},
      [](Inputs in) { return Conv2d(in[0], in[1], in[2]); }},
     {"strided", {{{2, 2, 7, 7}}, {{3, 2, 3, 3}}}, [](Inputs in) {
        return Conv2d(in[0], in[1], Variable(), {{2, 2}, {1, 1}, {1, 1}});
      }}});

const Op kMaxPool2d(
    "MaxPool2d",
    {{"", {{{2, 2, 6, 6}}}, [](Inputs in) { return MaxPool2d(in[0]); }},
     {"padded", {{{1, 2, 6, 6}}}, [](Inputs in) {
        return MaxPool2d(in[0], {{3, 3}, {2, 2}, {1, 1}});
      }}});

const Op kAvgPool2d(
    "AvgPool2d",
    {{"", {{{2, 2, 6, 6}}}, [](Inputs in) { return AvgPool2d(in[0]); }},
     {"padded", {{{1, 2, 6, 6}}}, [](Inputs in) {
        return AvgPool2d(in[0], {{3, 3}, {2, 2}, {1, 1}});
      }}});

// Makes the gradients of x, `weight` and the bias, inputs 0 to 2; the weight's
// in its destination if that can be overwritten.
void PutGradients(BackwardCall& call, const Tensor& grad, const Tensor& x,
                  const Tensor& weight, const Conv2dOptions& options) {
  const GradientDestination to =
      call.needs(1) ? call.destination(1) : GradientDestination();
  const bool is_there =
      to.tensor.defined() && !to.add && to.tensor.is_contiguous();
  Conv2dGradients out;
  if (call.needs(0)) out.x = Tensor::EmptyLike(x);
  if (is_there) {
    out.weight = to.tensor;
  } else if (call.needs(1)) {
    out.weight = Tensor::EmptyLike(weight);
  }
  if (call.needs(2))
    out.bias = Tensor::Empty({weight.size(0)}, x.dtype(), x.device());
  Conv2dBackwardInto(out, grad, x, weight, options);
  call.inputs[0] = std::move(out.x);
  if (is_there) {
    call.inputs[1] = std::move(out.weight);
  } else if (call.needs(1)) {
    call.PutInto(to, 1, out.weight);
  }
  if (call.needs(2)) call.Put(2, out.bias);
}

}  // namespace

Variable Conv2d(const Variable& x, const Variable& weight, const Variable& bias,
                const Conv2dOptions& options) {
  if (internal::IsAutocasting()) {
    return internal::ComputeInLow(
        [&options](const Variable& in, const Variable& w, const Variable& b) {
          return Conv2d(in, w, b, options);
        },
        x, weight, bias);
  }
  return Record(
      kConv2d, Conv2d(x.value(), weight.value(), bias.value(), options),
      {&x, &weight, &bias},
      [x = SavedTensor(x), weight = SavedTensor(weight),
       options](BackwardCall& call) {
        PutGradients(call, call.output(), x.Get(), weight.Get(), options);
      });
}

Variable MaxPool2d(const Variable& x, const Pool2dOptions& options) {
  MaxPool2dResult pooled = MaxPool2d(x.value(), options);
  return Record(kMaxPool2d, std::move(pooled.values), {&x},
                [indices = SavedTensor(pooled.indices),
                 shape = x.shape()](BackwardCall& call) {
                  call.inputs[0] =
                      MaxPool2dBackward(call.output(), indices.Get(), shape);
                });
}

Variable AvgPool2d(const Variable& x, const Pool2dOptions& options) {
  return Record(kAvgPool2d, AvgPool2d(x.value(), options), {&x},
                [shape = x.shape(), options](BackwardCall& call) {
                  call.inputs[0] =
                      AvgPool2dBackward(call.output(), shape, options);
                });
}

}  // namespace weft
