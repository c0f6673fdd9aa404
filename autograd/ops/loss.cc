#include "weft/autograd/ops/loss.h"

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
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
std::vector<OpCase> CrossEntropyCases() {
  std::vector<OpCase> cases = LossCases(CrossEntropy, kClasses);
  const SampleInput targets{{2, 3}, 0, 4, SampleInput::Kind::kIndex};
  const auto add = [&](const char* name, CrossEntropyOptions options) {
    cases.push_back({name, {{{2, 3, 4}}, targets}, [options](Inputs in) {
                       return CrossEntropy(in[0], in[1].value(), options);
                     }});
  };
  add("sequences", {});
  add("ignore", {Reduction::kMean, 1, 0});
  add("ignore_none", {Reduction::kNone, 1, 0});
  add("smoothed", {Reduction::kMean, std::nullopt, 0.1});
  add("smoothed_ignore", {Reduction::kMean, 2, 0.3});
  return cases;
}
const Op kCrossEntropy("CrossEntropy", CrossEntropyCases());
const Op kBceWithLogits("BceWithLogits",
                        LossCases(BceWithLogits, kProbabilities));
const Op kMseLoss("MseLoss", LossCases(MseLoss, kValues));
const Op kKlDivLoss("KlDivLoss", LossCases(KlDivLoss, kProbabilities));
const Op kHuberLoss("HuberLoss", {{"mean",
                                   {{{4, 3}}, kValues},
                                   [](Inputs in) {
                                     return HuberLoss(in[0], in[1].value());
                                   }},
                                  {"delta", {{{4, 3}}, kValues}, [](Inputs in) {
                                     return HuberLoss(in[0], in[1].value(), 0.4,
                                                      Reduction::kSum);
                                   }}});

}  // namespace

Variable Softmax(const Variable& x, int64_t dim) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [dim](const Variable& in) { return Softmax(in, dim); }, x);
  }
  const Tensor y = Softmax(x.value(), dim);
  return Record(kSoftmax, y, {&x},
                [y = SavedTensor(y), dim](BackwardCall& call) {
                  call.inputs[0] = SoftmaxBackward(call.output(), y.Get(), dim);
                });
}

Variable LogSoftmax(const Variable& x, int64_t dim) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [dim](const Variable& in) { return LogSoftmax(in, dim); }, x);
  }
  const Tensor y = LogSoftmax(x.value(), dim);
  return Record(
      kLogSoftmax, y, {&x}, [y = SavedTensor(y), dim](BackwardCall& call) {
        call.inputs[0] = LogSoftmaxBackward(call.output(), y.Get(), dim);
      });
}

Variable NllLoss(const Variable& log_probs, const Tensor& targets,
                 Reduction reduction) {
  if (internal::IsAutocasting() && internal::HasHalf(log_probs)) {
    return internal::ComputeInF32(
        [&](const Variable& in) { return NllLoss(in, targets, reduction); },
        log_probs);
  }
  return Record(
      kNllLoss, NllLoss(log_probs.value(), targets, reduction), {&log_probs},
      [targets = SavedTensor(targets), shape = log_probs.shape(),
       reduction](BackwardCall& call) {
        call.inputs[0] =
            NllLossBackward(call.output(), targets.Get(), shape, reduction);
      });
}

Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      const CrossEntropyOptions& options) {
  if (internal::IsAutocasting() && internal::HasHalf(logits)) {
    return internal::ComputeInF32(
        [&](const Variable& in) { return CrossEntropy(in, targets, options); },
        logits);
  }
  CrossEntropyResult result = CrossEntropy(logits.value(), targets, options);
  return Record(kCrossEntropy, std::move(result.loss), {&logits},
                [log_probs = SavedTensor(result.log_probs),
                 targets = SavedTensor(targets), options](BackwardCall& call) {
                  call.inputs[0] = CrossEntropyBackward(
                      call.output(), log_probs.Get(), targets.Get(), options);
                });
}

Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      Reduction reduction) {
  CrossEntropyOptions options;
  options.reduction = reduction;
  return CrossEntropy(logits, targets, options);
}

Variable BceWithLogits(const Variable& logits, const Tensor& targets,
                       Reduction reduction) {
  if (internal::IsAutocasting() && internal::HasHalf(logits, targets)) {
    return internal::ComputeInF32(
        [reduction](const Variable& in, const Tensor& t) {
          return BceWithLogits(in, t, reduction);
        },
        logits, targets);
  }
  return Record(kBceWithLogits,
                BceWithLogits(logits.value(), targets, reduction), {&logits},
                [logits = SavedTensor(logits), targets = SavedTensor(targets),
                 reduction](BackwardCall& call) {
                  call.inputs[0] = BceWithLogitsBackward(
                      call.output(), logits.Get(), targets.Get(), reduction);
                });
}

Variable MseLoss(const Variable& x, const Tensor& targets,
                 Reduction reduction) {
  if (internal::IsAutocasting() && internal::HasHalf(x, targets)) {
    return internal::ComputeInF32(
        [reduction](const Variable& in, const Tensor& t) {
          return MseLoss(in, t, reduction);
        },
        x, targets);
  }
  return Record(kMseLoss, MseLoss(x.value(), targets, reduction), {&x},
                [x = SavedTensor(x), targets = SavedTensor(targets),
                 reduction](BackwardCall& call) {
                  call.inputs[0] = MseLossBackward(call.output(), x.Get(),
                                                   targets.Get(), reduction);
                });
}

Variable HuberLoss(const Variable& x, const Tensor& targets, double delta,
                   Reduction reduction) {
  if (internal::IsAutocasting() && internal::HasHalf(x, targets)) {
    return internal::ComputeInF32(
        [=](const Variable& in, const Tensor& t) {
          return HuberLoss(in, t, delta, reduction);
        },
        x, targets);
  }
  return Record(kHuberLoss, HuberLoss(x.value(), targets, delta, reduction),
                {&x},
                [x = SavedTensor(x), targets = SavedTensor(targets), delta,
                 reduction](BackwardCall& call) {
                  call.inputs[0] = HuberLossBackward(
                      call.output(), x.Get(), targets.Get(), delta, reduction);
                });
}

Variable KlDivLoss(const Variable& log_probs, const Tensor& targets,
                   Reduction reduction) {
  if (internal::IsAutocasting() && internal::HasHalf(log_probs, targets)) {
    return internal::ComputeInF32(
        [reduction](const Variable& in, const Tensor& t) {
          return KlDivLoss(in, t, reduction);
        },
        log_probs, targets);
  }
  return Record(
      kKlDivLoss, KlDivLoss(log_probs.value(), targets, reduction),
      {&log_probs},
      [targets = SavedTensor(targets), reduction](BackwardCall& call) {
        call.inputs[0] =
            KlDivLossBackward(call.output(), targets.Get(), reduction);
      });
}

}  // namespace weft
