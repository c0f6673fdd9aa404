#include "weft/autograd/ops/loss.h"

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/record.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;
using Loss = Variable (*)(const Variable&, const Tensor&, Reduction);

std::vector<OpCase> LossCases(Loss loss, const SampleInput& target) {
  const auto one = [&](const char* name, Reduction reduction) {
    return OpCase{name, {{{4, 3}}, target}, [=](Inputs in) {
                    return loss(in[0], in[1].value(), reduction);
                  }};
  };
  return {one("mean", Reduction::kMean), one("sum", Reduction::kSum),
          one("none", Reduction::kNone)};
}

const SampleInput kClasses{{4}, 0, 3, SampleInput::Kind::kIndex};
const SampleInput kProbabilities{{4, 3}, 0, 1, SampleInput::Kind::kTarget};
const SampleInput kValues{{4, 3}, -1.5, 1.5, SampleInput::Kind::kTarget};

const Op kSoftmax("Softmax", {{"", {{{3, 4}}}, [](Inputs in) {
                                 return Softmax(in[0], 1);
                               }}});
const Op kLogSoftmax("LogSoftmax", {{"", {{{3, 4}}}, [](Inputs in) {
                                       return LogSoftmax(in[0], 1);
                                     }}});
const Op kNllLoss("NllLoss", LossCases(NllLoss, kClasses));
const Op kCrossEntropy("CrossEntropy", LossCases(CrossEntropy, kClasses));
const Op kBceWithLogits("BceWithLogits",
                        LossCases(BceWithLogits, kProbabilities));
const Op kMseLoss("MseLoss", LossCases(MseLoss, kValues));

}  // namespace

Variable Softmax(const Variable& x, int64_t dim) {
  const Tensor y = Softmax(x.value(), dim);
  return Record(kSoftmax, y, {&x},
                [y = SavedTensor(y), dim](BackwardCall& call) {
                  call.inputs[0] = SoftmaxBackward(call.output(), y.Get(), dim);
                });
}

Variable LogSoftmax(const Variable& x, int64_t dim) {
  const Tensor y = LogSoftmax(x.value(), dim);
  return Record(
      kLogSoftmax, y, {&x}, [y = SavedTensor(y), dim](BackwardCall& call) {
        call.inputs[0] = LogSoftmaxBackward(call.output(), y.Get(), dim);
      });
}

Variable NllLoss(const Variable& log_probs, const Tensor& targets,
                 Reduction reduction) {
  return Record(
      kNllLoss, NllLoss(log_probs.value(), targets, reduction), {&log_probs},
      [targets = SavedTensor(targets), shape = log_probs.shape(),
       reduction](BackwardCall& call) {
        call.inputs[0] =
            NllLossBackward(call.output(), targets.Get(), shape, reduction);
      });
}

Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      Reduction reduction) {
  CrossEntropyResult result = CrossEntropy(logits.value(), targets, reduction);
  return Record(
      kCrossEntropy, std::move(result.loss), {&logits},
      [log_probs = SavedTensor(result.log_probs),
       targets = SavedTensor(targets), reduction](BackwardCall& call) {
        call.inputs[0] = CrossEntropyBackward(call.output(), log_probs.Get(),
                                              targets.Get(), reduction);
      });
}

Variable BceWithLogits(const Variable& logits, const Tensor& targets,
                       Reduction reduction) {
  return Record(
      kBceWithLogits, BceWithLogits(logits.value(), targets, reduction),
      {&logits},
      [logits = SavedTensor(logits.value()), targets = SavedTensor(targets),
       reduction](BackwardCall& call) {
        call.inputs[0] = BceWithLogitsBackward(call.output(), logits.Get(),
                                               targets.Get(), reduction);
      });
}

Variable MseLoss(const Variable& x, const Tensor& targets,
                 Reduction reduction) {
  return Record(kMseLoss, MseLoss(x.value(), targets, reduction), {&x},
                [x = SavedTensor(x.value()), targets = SavedTensor(targets),
                 reduction](BackwardCall& call) {
                  call.inputs[0] = MseLossBackward(call.output(), x.Get(),
                                                   targets.Get(), reduction);
                });
}

}  // namespace weft
