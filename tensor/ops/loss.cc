#include "weft/tensor/ops/loss.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/tensor/cuda/losses.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/softmax_row.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::CheckFloating;
using internal::CheckSameDevice;
using internal::IsHalf;
using internal::OnDevice;
using internal::Operation;
using internal::Wide;
using internal::cuda::BceOfLogits;
using internal::cuda::Huber;
using internal::cuda::KlDivergence;
using internal::cuda::SquaredError;

// Rows of `n` elements, `stride` apart, of contiguous tensors: the lines along
// one dimension.
struct Lines {
  int64_t outer;   // Lines begin at (i * n * stride + j), i < outer,
  int64_t n;       //
  int64_t stride;  // j < stride.
};

Lines LinesAlong(const Shape& shape, int64_t dim, const char* where) {
  const int d = WrapDim(dim, static_cast<int64_t>(shape.size()), where);
  Lines lines = {1, shape[d], 1};
  for (int i = 0; i < d; ++i) lines.outer *= shape[i];
  for (size_t i = d + 1; i < shape.size(); ++i) lines.stride *= shape[i];
  return lines;
}

// Calls visit(first element) for each line.
template <typename Visit>
void ForEachLine(const Lines& lines, Visit&& visit) {
  if (lines.n == 0 || lines.stride == 0) return;
  for (int64_t i = 0; i < lines.outer; ++i) {
    for (int64_t j = 0; j < lines.stride; ++j) {
      visit(i * lines.n * lines.stride + j);
    }
  }
}

template <typename T>
struct LineStatistics {
  T largest;
  T sum;  // The sum of exp(x - largest).
};

template <typename T, typename Term>
WEFT_INLINE LineStatistics<T> StatisticsOfTerms(int64_t n, Term term) {
  const T largest =
      internal::FoldTerms(n, term(0), internal::MaximumOp(), term);
  const T sum = internal::SumTerms<T>(n, [term, largest](int64_t i) {
    return internal::Exp(term(i) - largest);
  });
  return {largest, sum};
}

template <typename T>
WEFT_VECTORIZE LineStatistics<T> StatisticsOf(const T* in, int64_t n,
                                              int64_t stride) {
  if (stride == 1) {  // Only so the loops vectorise.
    return StatisticsOfTerms<T>(n, [in](int64_t i) { return in[i]; });
  }
  return StatisticsOfTerms<T>(
      n, [in, stride](int64_t i) { return in[i * stride]; });
}

// out = exp(x - largest) / sum, or its logarithm.
template <typename T>
WEFT_VECTORIZE void SoftmaxLine(const T* in, T* out, int64_t n, int64_t stride,
                                bool is_log) {
  if (!is_log && stride == 1) return internal::SoftmaxRow(in, out, n);
  const LineStatistics<T> line = StatisticsOf(in, n, stride);
  if (is_log) {
    // In this order: next to a large score the logarithm would be lost.
    const T shift = std::log(line.sum);
    for (int64_t i = 0; i < n; ++i) {
      out[i * stride] = (in[i * stride] - line.largest) - shift;
    }
    return;
  }
  const T scale = T(1) / line.sum;
  for (int64_t i = 0; i < n; ++i) {
    out[i * stride] = internal::Exp(in[i * stride] - line.largest) * scale;
  }
}

// out = softmax of each line of x, or its logarithm; both contiguous and on the
// CPU.
void SoftmaxLines(const Lines& lines, bool is_log, const Tensor& x,
                  const Tensor& out) {
  VisitFloating(x.dtype(), "Softmax", [&](auto type) {
    using T = typename decltype(type)::Type;
    ForEachLine(lines, [&](int64_t first) {
      SoftmaxLine(x.data<T>() + first, out.data<T>() + first, lines.n,
                  lines.stride, is_log);
    });
  });
}

Operation AlongLines(const char* name, const Lines& lines) {
  return {name,
          {static_cast<double>(lines.outer), static_cast<double>(lines.n),
           static_cast<double>(lines.stride)}};
}

Tensor SoftmaxOf(const Tensor& x, int64_t dim, bool is_log, const char* where) {
  const Lines lines = LinesAlong(x.shape(), dim, where);
  CheckFloating(x, where);
  if (IsHalf(x)) return SoftmaxOf(Wide(x), dim, is_log, where).To(x.dtype());
  Tensor result = Tensor::EmptyLike(x);
  OnDevice(
      AlongLines(where, lines),
      [lines, is_log](const Tensor& x, const Tensor& out) {
        SoftmaxLines(lines, is_log, x, out);
      },
      x.Contiguous(), result);
  return result;
}

void CheckAlike(const Tensor& a, const Tensor& b, const char* where) {
  CheckSameDevice(a, b, where);
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    ThrowInvalidArgument(where, ": operands are ", a.Describe(), " and ",
                         b.Describe(), "; wanted the same shape and dtype");
  }
}

template <typename T>
WEFT_INLINE T SumOfLine(const T* x, int64_t n, int64_t stride) {
  if (stride == 1) {
    return internal::SumTerms<T>(n, [x](int64_t i) { return x[i]; });
  }
  return internal::SumTerms<T>(
      n, [x, stride](int64_t i) { return x[i * stride]; });
}

template <typename T>
WEFT_INLINE T SumOfProducts(const T* x, const T* y, int64_t n, int64_t stride) {
  if (stride == 1) {
    return internal::SumTerms<T>(n, [x, y](int64_t i) { return x[i] * y[i]; });
  }
  return internal::SumTerms<T>(
      n, [x, y, stride](int64_t i) { return x[i * stride] * y[i * stride]; });
}

// From grad and y of softmax or log-softmax.
template <typename T>
WEFT_VECTORIZE void SoftmaxLineBackward(const T* grad, const T* y, T* out,
                                        int64_t n, int64_t stride,
                                        bool is_log) {
  const T sum =
      is_log ? SumOfLine(grad, n, stride) : SumOfProducts(grad, y, n, stride);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * stride;
    out[at] = is_log ? grad[at] - internal::Exp(y[at]) * sum
                     : y[at] * (grad[at] - sum);
  }
}

Tensor SoftmaxBackwardOf(const Tensor& grad, const Tensor& y, int64_t dim,
                         bool is_log, const char* where) {
  CheckAlike(grad, y, where);
  const Lines lines = LinesAlong(y.shape(), dim, where);
  CheckFloating(y, where);
  if (IsHalf(y)) {
    return SoftmaxBackwardOf(Wide(grad), Wide(y), dim, is_log, where)
        .To(y.dtype());
  }
  Tensor result = Tensor::EmptyLike(y);
  OnDevice(
      AlongLines(where, lines),
      [lines, is_log](const Tensor& grad, const Tensor& y, const Tensor& out) {
        VisitFloating(y.dtype(), "SoftmaxBackward", [&](auto type) {
          using T = typename decltype(type)::Type;
          ForEachLine(lines, [&](int64_t first) {
            SoftmaxLineBackward(grad.data<T>() + first, y.data<T>() + first,
                                out.data<T>() + first, lines.n, lines.stride,
                                is_log);
          });
        });
      },
      grad.Contiguous(), y.Contiguous(), result);
  return result;
}

// out = (exp(log_probs) - part) * scale.
template <typename T>
WEFT_VECTORIZE void SoftmaxLessPart(const T* log_probs, T part, T scale, T* out,
                                    int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = (internal::Exp(log_probs[i]) - part) * scale;
  }
}

// Where the loss is to be: in `losses`, one for each element, or in a number.
Tensor ResultFor(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return losses;
    case Reduction::kMean:
    case Reduction::kSum:
      return Tensor::Empty({}, losses.dtype(), losses.device());
  }
  ThrowInvalidArgument("Reduction ", static_cast<int>(reduction),
                       " is unknown");
}

template <typename T>
WEFT_VECTORIZE T SumOf(const T* x, int64_t n) {
  return SumOfLine(x, n, 1);
}

// Writes the `result` that ResultFor made. `losses` are contiguous.
template <typename T>
void Reduce(const Tensor& losses, Reduction reduction, const Tensor& result) {
  if (reduction == Reduction::kNone) return;
  const int64_t n = losses.numel();
  const T sum = SumOf(losses.data<T>(), n);
  const T share = static_cast<T>(1 / static_cast<double>(n));
  *result.data<T>() = reduction == Reduction::kMean ? sum * share : sum;
}

// Checks a gradient to the losses of shape `losses`, reduced.
void CheckGradOfLosses(const Tensor& grad, const Shape& losses, DType dtype,
                       Reduction reduction, const char* where) {
  const Shape wanted = reduction == Reduction::kNone ? losses : Shape();
  if (grad.shape() != wanted || grad.dtype() != dtype) {
    ThrowInvalidArgument(where, ": grad is ", grad.Describe(), "; wanted ",
                         Name(dtype), ShapeText(wanted));
  }
}

// dL/dloss of each of the losses, from a checked gradient on the CPU.
Tensor GradOfEach(const Tensor& grad, const Shape& losses,
                  Reduction reduction) {
  const int64_t n = NumElements(losses, "GradOfEach");
  if (reduction != Reduction::kMean || n == 0) return grad.Expand(losses);
  return Div(grad, static_cast<double>(n)).Expand(losses);
}

void CheckTargets(const Shape& log_probs, const Tensor& targets,
                  const char* where) {
  if (log_probs.size() != 2 || targets.dtype() != DType::kI64 ||
      targets.shape() != Shape{log_probs[0]}) {
    ThrowInvalidArgument(where, ": scores are ", ShapeText(log_probs),
                         ", targets are ", targets.Describe(),
                         "; wanted [n, classes] and i64[n]");
  }
}

void CheckClass(int64_t target, int64_t classes, const char* where) {
  if (target < 0 || target >= classes) {
    ThrowInvalidArgument(where, ": target ", target, " is not one of ", classes,
                         " classes");
  }
}

// `labels` are contiguous and on the CPU.
void CheckClasses(const Tensor& labels, int64_t classes, const char* where) {
  for (const int64_t target : labels.span<int64_t>()) {
    CheckClass(target, classes, where);
  }
}

// `scores` [..., classes], `targets` i64 [...]; not which classes these are.
void CheckClassTargets(const Tensor& scores, const Tensor& targets,
                       const CrossEntropyOptions& options, const char* where) {
  CheckSameDevice(scores, targets, where);
  Shape wanted = scores.shape();
  if (!wanted.empty()) wanted.pop_back();
  if (scores.dim() < 1 || targets.dtype() != DType::kI64 ||
      targets.shape() != wanted) {
    ThrowInvalidArgument(where, ": scores are ", scores.Describe(),
                         ", targets are ", targets.Describe(),
                         "; wanted [..., classes] and i64 [...]");
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    ThrowInvalidArgument(where, ": label_smoothing is ",
                         options.label_smoothing, "; wanted one in [0, 1]");
  }
  CheckFloating(scores, where);
}

Operation WithOptions(const char* name, const CrossEntropyOptions& options) {
  return {name,
          {static_cast<double>(options.reduction), options.label_smoothing,
           options.ignore_index.has_value() ? 1.0 : 0.0,
           static_cast<double>(options.ignore_index.value_or(0))}};
}

// The classes that CrossEntropy is to find, each checked.
class ClassTargets {
 public:
  // `labels` are contiguous and on the CPU.
  ClassTargets(const Tensor& labels, int64_t classes,
               std::optional<int64_t> ignore_index, const char* where)
      : ignored_(ignore_index),
        labels_(labels.span<int64_t>()),
        classes_(classes) {
    for (int64_t i = 0; i < count(); ++i) {
      if (is_ignored(i)) continue;
      ++kept_;
      CheckClass((*this)[i], classes, where);
    }
  }

  int64_t count() const { return static_cast<int64_t>(labels_.size()); }
  int64_t classes() const { return classes_; }
  int64_t kept() const { return kept_; }  // Those that are not ignored.
  int64_t operator[](int64_t i) const {
    return labels_[static_cast<size_t>(i)];
  }
  bool is_ignored(int64_t i) const { return ignored_ == (*this)[i]; }

 private:
  const std::optional<int64_t> ignored_;
  const absl::Span<const int64_t> labels_;
  const int64_t classes_;
  int64_t kept_ = 0;
};

// The loss of each row of `log_probs`, [count, classes].
template <typename T>
void LossOfRows(const T* log_probs, const ClassTargets& labels,
                double smoothing, T* losses) {
  const T* row = log_probs;
  for (int64_t i = 0; i < labels.count(); ++i, row += labels.classes()) {
    T& loss = losses[i];
    loss = T(0);
    if (labels.is_ignored(i)) continue;
    loss = -row[labels[i]];
    if (smoothing == 0) continue;
    const T mean =
        SumOfLine(row, labels.classes(), 1) / static_cast<T>(labels.classes());
    loss =
        static_cast<T>(1 - smoothing) * loss - static_cast<T>(smoothing) * mean;
  }
}

// CrossEntropy of contiguous tensors on the CPU.
void CrossEntropyOnHost(const CrossEntropyOptions& options,
                        const Tensor& logits, const Tensor& targets,
                        const Tensor& log_probs, const Tensor& losses,
                        const Tensor& result) {
  const int64_t classes = logits.size(-1);
  const ClassTargets labels(targets, classes, options.ignore_index,
                            "CrossEntropy");
  SoftmaxLines({labels.count(), classes, 1}, true, logits, log_probs);
  VisitFloating(logits.dtype(), "CrossEntropy", [&](auto type) {
    using T = typename decltype(type)::Type;
    T* const each = losses.data<T>();
    LossOfRows(log_probs.data<T>(), labels, options.label_smoothing, each);
    if (options.reduction != Reduction::kMean) {
      return Reduce<T>(losses, options.reduction, result);
    }
    *result.data<T>() =
        SumOf(each, labels.count()) / static_cast<T>(labels.kept());
  });
}

// CrossEntropyBackward; all but `grad` are contiguous, all on the CPU.
void CrossEntropyBackwardOnHost(const CrossEntropyOptions& options,
                                const Tensor& grad, const Tensor& log_probs,
                                const Tensor& targets, const Tensor& result) {
  const int64_t classes = log_probs.size(-1);
  const ClassTargets labels(targets, classes, options.ignore_index,
                            "CrossEntropyBackward");
  const Tensor each = grad.Expand(targets.shape()).Contiguous();
  const double share = options.reduction == Reduction::kMean
                           ? 1 / static_cast<double>(labels.kept())
                           : 1.0;
  const double spread = options.label_smoothing / static_cast<double>(classes);
  VisitFloating(grad.dtype(), "CrossEntropyBackward", [&](auto type) {
    using T = typename decltype(type)::Type;
    for (int64_t i = 0; i < labels.count(); ++i) {
      T* const row = result.data<T>() + i * classes;
      if (labels.is_ignored(i)) {
        std::fill_n(row, classes, T(0));
        continue;
      }
      const T scale = each.data<T>()[i] * static_cast<T>(share);
      // (softmax - what is wanted) * scale.
      const T* const from = log_probs.data<T>() + i * classes;
      SoftmaxLessPart(from, static_cast<T>(spread), scale, row, classes);
      row[labels[i]] = (internal::Exp(from[labels[i]]) -
                        static_cast<T>(1 - options.label_smoothing) -
                        static_cast<T>(spread)) *
                       scale;
    }
  });
}

// out = op(x, t) of each.
template <typename T, typename Op>
void MapPair(const Tensor& x, const Tensor& t, const Tensor& out, Op op) {
  const T* const in = x.data<T>();
  const T* const target = t.data<T>();
  T* const result = out.data<T>();
  for (int64_t i = 0; i < x.numel(); ++i) result[i] = op(in[i], target[i]);
}

// The loss Fn of each, one of cuda/losses.h, which kernels compute too.
template <typename Fn>
Tensor PairLoss(const char* where, const Tensor& x, const Tensor& t,
                Reduction reduction, double parameter = 0) {
  CheckAlike(x, t, where);
  CheckFloating(x, where);
  if (IsHalf(x)) {
    return PairLoss<Fn>(where, Wide(x), Wide(t), reduction, parameter)
        .To(x.dtype());
  }
  const Tensor losses = Tensor::EmptyLike(x);
  Tensor result = ResultFor(losses, reduction);
  OnDevice(
      {where, {static_cast<double>(reduction), parameter}},
      [=](const Tensor& x, const Tensor& t, const Tensor& losses,
          const Tensor& result) {
        VisitFloating(x.dtype(), "PairLoss", [&](auto type) {
          using T = typename decltype(type)::Type;
          MapPair<T>(x, t, losses, [p = static_cast<T>(parameter)](T a, T b) {
            return Fn::Loss(a, b, p);
          });
          Reduce<T>(losses, reduction, result);
        });
      },
      x.Contiguous(), t.Contiguous(), losses, result);
  return result;
}

// From `grad` = dL/dloss: dL/dx.
template <typename Fn>
Tensor PairBackward(const char* where, const Tensor& grad, const Tensor& x,
                    const Tensor& t, Reduction reduction,
                    double parameter = 0) {
  CheckAlike(x, t, where);
  CheckFloating(x, where);
  CheckSameDevice(grad, x, where);
  CheckGradOfLosses(grad, x.shape(), x.dtype(), reduction, where);
  if (IsHalf(x)) {
    return PairBackward<Fn>(where, Wide(grad), Wide(x), Wide(t), reduction,
                            parameter)
        .To(x.dtype());
  }
  Tensor result = Tensor::EmptyLike(x);
  OnDevice(
      {where, {static_cast<double>(reduction), parameter}},
      [=](const Tensor& grad, const Tensor& x, const Tensor& t,
          const Tensor& result) {
        VisitFloating(x.dtype(), "PairBackward", [&](auto type) {
          using T = typename decltype(type)::Type;
          MapPair<T>(x, t, result, [p = static_cast<T>(parameter)](T a, T b) {
            return Fn::Slope(a, b, p);
          });
        });
        Mul_(result, GradOfEach(grad, result.shape(), reduction));
      },
      grad, x.Contiguous(), t.Contiguous(), result);
  return result;
}

void CheckDelta(double delta, const char* where) {
  if (!(delta > 0)) {
    ThrowInvalidArgument(where, ": delta is ", delta, "; wanted more than 0");
  }
}

}  // namespace

Tensor Softmax(const Tensor& x, int64_t dim) {
  return SoftmaxOf(x, dim, false, "Softmax");
}
Tensor LogSoftmax(const Tensor& x, int64_t dim) {
  return SoftmaxOf(x, dim, true, "LogSoftmax");
}
Tensor SoftmaxBackward(const Tensor& grad, const Tensor& y, int64_t dim) {
  return SoftmaxBackwardOf(grad, y, dim, false, "SoftmaxBackward");
}
Tensor LogSoftmaxBackward(const Tensor& grad, const Tensor& y, int64_t dim) {
  return SoftmaxBackwardOf(grad, y, dim, true, "LogSoftmaxBackward");
}

Tensor NllLoss(const Tensor& log_probs, const Tensor& targets,
               Reduction reduction) {
  CheckSameDevice(log_probs, targets, "NllLoss");
  CheckTargets(log_probs.shape(), targets, "NllLoss");
  CheckFloating(log_probs, "NllLoss");
  if (IsHalf(log_probs)) {
    return NllLoss(Wide(log_probs), targets, reduction).To(log_probs.dtype());
  }
  const Tensor losses =
      Tensor::Empty(targets.shape(), log_probs.dtype(), log_probs.device());
  Tensor result = ResultFor(losses, reduction);
  OnDevice(
      {"NllLoss", {static_cast<double>(reduction)}},
      [reduction](const Tensor& log_probs, const Tensor& labels,
                  const Tensor& losses, const Tensor& result) {
        CheckClasses(labels, log_probs.size(1), "NllLoss");
        VisitFloating(log_probs.dtype(), "NllLoss", [&](auto type) {
          using T = typename decltype(type)::Type;
          const T* const in = log_probs.data<T>();
          const int64_t* const label = labels.data<int64_t>();
          for (int64_t i = 0; i < losses.numel(); ++i) {
            losses.data<T>()[i] = -in[i * log_probs.strides()[0] +
                                      label[i] * log_probs.strides()[1]];
          }
          Reduce<T>(losses, reduction, result);
        });
      },
      log_probs, targets.Contiguous(), losses, result);
  return result;
}

Tensor NllLossBackward(const Tensor& grad, const Tensor& targets,
                       const Shape& log_probs_shape, Reduction reduction) {
  constexpr const char* kWhere = "NllLossBackward";
  CheckSameDevice(grad, targets, kWhere);
  CheckTargets(log_probs_shape, targets, kWhere);
  CheckFloating(grad, kWhere);
  CheckGradOfLosses(grad, targets.shape(), grad.dtype(), reduction, kWhere);
  if (IsHalf(grad)) {
    return NllLossBackward(Wide(grad), targets, log_probs_shape, reduction)
        .To(grad.dtype());
  }
  Tensor result = Tensor::Zeros(log_probs_shape, grad.dtype(), grad.device());
  OnDevice(
      {kWhere, {static_cast<double>(reduction)}},
      [reduction](const Tensor& grad, const Tensor& labels,
                  const Tensor& result) {
        const int64_t classes = result.size(1);
        CheckClasses(labels, classes, "NllLossBackward");
        const Tensor each = GradOfEach(grad, labels.shape(), reduction);
        VisitFloating(grad.dtype(), "NllLossBackward", [&](auto type) {
          using T = typename decltype(type)::Type;
          const int64_t* const label = labels.data<int64_t>();
          for (int64_t i = 0; i < labels.numel(); ++i) {
            result.data<T>()[i * classes + label[i]] =
                -each.data<T>()[i * each.strides()[0]];
          }
        });
      },
      grad, targets.Contiguous(), result);
  return result;
}

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                const CrossEntropyOptions& options) {
  CheckClassTargets(logits, targets, options, "CrossEntropy");
  if (IsHalf(logits)) {
    CrossEntropyResult wide = CrossEntropy(Wide(logits), targets, options);
    return {wide.loss.To(logits.dtype()), wide.log_probs};
  }
  const Tensor losses =
      Tensor::Empty(targets.shape(), logits.dtype(), logits.device());
  CrossEntropyResult result = {ResultFor(losses, options.reduction),
                               Tensor::EmptyLike(logits)};
  OnDevice(
      WithOptions("CrossEntropy", options),
      [options](const Tensor& logits, const Tensor& targets,
                const Tensor& log_probs, const Tensor& losses,
                const Tensor& loss) {
        CrossEntropyOnHost(options, logits, targets, log_probs, losses, loss);
      },
      logits.Contiguous(), targets.Contiguous(), result.log_probs, losses,
      result.loss);
  return result;
}

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                Reduction reduction) {
  CrossEntropyOptions options;
  options.reduction = reduction;
  return CrossEntropy(logits, targets, options);
}

Tensor CrossEntropyBackward(const Tensor& grad, const Tensor& log_probs,
                            const Tensor& targets,
                            const CrossEntropyOptions& options) {
  constexpr const char* kWhere = "CrossEntropyBackward";
  CheckClassTargets(log_probs, targets, options, kWhere);
  CheckSameDevice(grad, log_probs, kWhere);
  if (IsHalf(grad)) {
    return CrossEntropyBackward(Wide(grad), Wide(log_probs), targets, options)
        .To(grad.dtype());
  }
  CheckGradOfLosses(grad, targets.shape(), log_probs.dtype(), options.reduction,
                    kWhere);
  Tensor result = Tensor::EmptyLike(log_probs);
  OnDevice(
      WithOptions(kWhere, options),
      [options](const Tensor& grad, const Tensor& log_probs,
                const Tensor& targets, const Tensor& result) {
        CrossEntropyBackwardOnHost(options, grad, log_probs, targets, result);
      },
      grad, log_probs.Contiguous(), targets.Contiguous(), result);
  return result;
}

Tensor BceWithLogits(const Tensor& logits, const Tensor& targets,
                     Reduction reduction) {
  return PairLoss<BceOfLogits>("BceWithLogits", logits, targets, reduction);
}

Tensor BceWithLogitsBackward(const Tensor& grad, const Tensor& logits,
                             const Tensor& targets, Reduction reduction) {
  return PairBackward<BceOfLogits>("BceWithLogitsBackward", grad, logits,
                                   targets, reduction);
}

Tensor MseLoss(const Tensor& x, const Tensor& targets, Reduction reduction) {
  return PairLoss<SquaredError>("MseLoss", x, targets, reduction);
}

Tensor MseLossBackward(const Tensor& grad, const Tensor& x,
                       const Tensor& targets, Reduction reduction) {
  return PairBackward<SquaredError>("MseLossBackward", grad, x, targets,
                                    reduction);
}

Tensor HuberLoss(const Tensor& x, const Tensor& targets, double delta,
                 Reduction reduction) {
  CheckDelta(delta, "HuberLoss");
  return PairLoss<Huber>("HuberLoss", x, targets, reduction, delta);
}

Tensor HuberLossBackward(const Tensor& grad, const Tensor& x,
                         const Tensor& targets, double delta,
                         Reduction reduction) {
  CheckDelta(delta, "HuberLossBackward");
  return PairBackward<Huber>("HuberLossBackward", grad, x, targets, reduction,
                             delta);
}

Tensor KlDivLoss(const Tensor& log_probs, const Tensor& targets,
                 Reduction reduction) {
  return PairLoss<KlDivergence>("KlDivLoss", log_probs, targets, reduction);
}

Tensor KlDivLossBackward(const Tensor& grad, const Tensor& targets,
                         Reduction reduction) {
  // It does not depend on log_probs.
  return PairBackward<KlDivergence>("KlDivLossBackward", grad, targets, targets,
                                    reduction);
}

}  // namespace weft
