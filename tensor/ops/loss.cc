#include "weft/tensor/ops/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/softmax_row.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::LayoutOf;

// Rows of `n` elements, `stride` apart, of contiguous tensors: the lines along
// one dimension.
struct Lines {
  int64_t outer;   // Lines begin at (i * n * stride + j), i < outer,
  int64_t n;       //
  int64_t stride;  // j < stride.
};

Lines LinesAlong(const Shape& shape, int64_t dim, absl::string_view where) {
  const int d = WrapDim(dim, static_cast<int64_t>(shape.size()), where);
  Lines lines = {1, shape[d], 1};
  for (int i = 0; i < d; ++i) lines.outer *= shape[i];
  for (size_t i = d + 1; i < shape.size(); ++i) lines.stride *= shape[i];
  return lines;
}

// Calls visit(first element) for each line.
template <typename Visit>
void ForEachLine(const Lines& lines, Visit&& visit) {
  if (lines.n == 0) return;
  for (int64_t i = 0; i < lines.outer; ++i) {
    for (int64_t j = 0; j < lines.stride; ++j) {
      visit(i * lines.n * lines.stride + j);
    }
  }
}

template <typename T>
struct LineStatistics {
  T largest;
  T sum;  // Of exp(x - largest).
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

Tensor SoftmaxOf(const Tensor& x, int64_t dim, bool is_log,
                 absl::string_view where) {
  const Lines lines = LinesAlong(x.shape(), dim, where);
  const Tensor input = x.Contiguous();
  Tensor result = Tensor::Empty(x.shape(), x.dtype());
  VisitFloating(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    ForEachLine(lines, [&](int64_t first) {
      SoftmaxLine(input.data<T>() + first, result.data<T>() + first, lines.n,
                  lines.stride, is_log);
    });
  });
  return result;
}

void CheckAlike(const Tensor& a, const Tensor& b, absl::string_view where) {
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
                         bool is_log, absl::string_view where) {
  CheckAlike(grad, y, where);
  const Lines lines = LinesAlong(y.shape(), dim, where);
  const Tensor g = grad.Contiguous();
  const Tensor output = y.Contiguous();
  Tensor result = Tensor::Empty(y.shape(), y.dtype());
  VisitFloating(y.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    ForEachLine(lines, [&](int64_t first) {
      SoftmaxLineBackward(g.data<T>() + first, output.data<T>() + first,
                          result.data<T>() + first, lines.n, lines.stride,
                          is_log);
    });
  });
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

Tensor Reduced(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return losses;
    case Reduction::kMean:
      return Mean(losses);
    case Reduction::kSum:
      return Sum(losses);
  }
  ThrowInvalidArgument("Reduction ", static_cast<int>(reduction),
                       " is unknown");
}

// What each of `n` losses contributes, [n...] or []: dL/dloss of each.
Tensor GradOfEach(const Tensor& grad, const Shape& losses, Reduction reduction,
                  absl::string_view where) {
  const Shape wanted = reduction == Reduction::kNone ? losses : Shape();
  if (grad.shape() != wanted) {
    ThrowInvalidArgument(where, ": grad is ", grad.Describe(), "; wanted ",
                         ShapeText(wanted));
  }
  const int64_t n = NumElements(losses, where);
  if (reduction != Reduction::kMean || n == 0) return grad.Expand(losses);
  return Div(grad, static_cast<double>(n)).Expand(losses);
}

void CheckTargets(const Shape& log_probs, const Tensor& targets,
                  absl::string_view where) {
  if (log_probs.size() != 2 || targets.dtype() != DType::kI64 ||
      targets.shape() != Shape{log_probs[0]}) {
    ThrowInvalidArgument(where, ": scores are ", ShapeText(log_probs),
                         ", targets are ", targets.Describe(),
                         "; wanted [n, classes] and i64[n]");
  }
  const Tensor flat = targets.Contiguous();
  for (const int64_t target : flat.span<int64_t>()) {
    if (target < 0 || target >= log_probs[1]) {
      ThrowInvalidArgument(where, ": target ", target, " is not one of ",
                           log_probs[1], " classes");
    }
  }
}

// The classes that CrossEntropy is to find, checked.
class ClassTargets {
 public:
  // `scores` [..., classes], `targets` i64 [...].
  ClassTargets(const Tensor& scores, const Tensor& targets,
               const CrossEntropyOptions& options, absl::string_view where)
      : ignored_(options.ignore_index) {
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
    labels_ = targets.Contiguous();
    classes_ = scores.size(-1);
    for (int64_t i = 0; i < count(); ++i) CheckLabel(i, where);
  }

  int64_t count() const { return labels_.numel(); }
  int64_t classes() const { return classes_; }
  int64_t kept() const { return kept_; }  // Those that are not ignored.
  int64_t operator[](int64_t i) const { return labels_.data<int64_t>()[i]; }
  bool is_ignored(int64_t i) const { return ignored_ == (*this)[i]; }

 private:
  void CheckLabel(int64_t i, absl::string_view where) {
    if (is_ignored(i)) return;
    ++kept_;
    const int64_t target = (*this)[i];
    if (target < 0 || target >= classes_) {
      ThrowInvalidArgument(where, ": target ", target, " is not one of ",
                           classes_, " classes");
    }
  }

  const std::optional<int64_t> ignored_;
  Tensor labels_;
  int64_t classes_ = 0;
  int64_t kept_ = 0;
};

// Of one logit x for target t, without overflow.
template <typename T>
inline T BceLoss(T x, T t) {
  return (x < T(0) ? T(0) : x) - x * t +
         std::log1p(internal::Exp(-std::fabs(x)));
}

// op(x, t) of each.
template <typename Op>
Tensor MapPair(const Tensor& x, const Tensor& t, absl::string_view where,
               Op op) {
  CheckAlike(x, t, where);
  const Tensor a = x.Contiguous();
  const Tensor b = t.Contiguous();
  Tensor result = Tensor::Empty(x.shape(), x.dtype());
  VisitFloating(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    const T* const in = a.data<T>();
    const T* const target = b.data<T>();
    T* const out = result.data<T>();
    for (int64_t i = 0; i < a.numel(); ++i) out[i] = op(in[i], target[i]);
  });
  return result;
}

void CheckDelta(double delta, absl::string_view where) {
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
  CheckTargets(log_probs.shape(), targets, "NllLoss");
  const Tensor labels = targets.Contiguous();
  const Tensor losses = Tensor::Empty(labels.shape(), log_probs.dtype());
  VisitFloating(log_probs.dtype(), "NllLoss", [&](auto type) {
    using T = typename decltype(type)::Type;
    const T* const in = log_probs.data<T>();
    const int64_t* const label = labels.data<int64_t>();
    for (int64_t i = 0; i < losses.numel(); ++i) {
      losses.data<T>()[i] =
          -in[i * log_probs.strides()[0] + label[i] * log_probs.strides()[1]];
    }
  });
  return Reduced(losses, reduction);
}

Tensor NllLossBackward(const Tensor& grad, const Tensor& targets,
                       const Shape& log_probs_shape, Reduction reduction) {
  CheckTargets(log_probs_shape, targets, "NllLossBackward");
  const Tensor labels = targets.Contiguous();
  const Tensor each =
      GradOfEach(grad, labels.shape(), reduction, "NllLossBackward");
  Tensor result = Tensor::Zeros(log_probs_shape, grad.dtype());
  VisitFloating(grad.dtype(), "NllLossBackward", [&](auto type) {
    using T = typename decltype(type)::Type;
    const int64_t* const label = labels.data<int64_t>();
    for (int64_t i = 0; i < labels.numel(); ++i) {
      result.data<T>()[i * log_probs_shape[1] + label[i]] =
          -each.data<T>()[i * each.strides()[0]];
    }
  });
  return result;
}

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                const CrossEntropyOptions& options) {
  constexpr absl::string_view kWhere = "CrossEntropy";
  const ClassTargets labels(logits, targets, options, kWhere);
  const Tensor log_probs = SoftmaxOf(logits, -1, true, kWhere);
  const Tensor losses = Tensor::Empty(targets.shape(), logits.dtype());
  const double smoothing = options.label_smoothing;
  VisitFloating(logits.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    const T* row = log_probs.data<T>();
    for (int64_t i = 0; i < labels.count(); ++i, row += labels.classes()) {
      T& loss = losses.data<T>()[i];
      loss = T(0);
      if (labels.is_ignored(i)) continue;
      loss = -row[labels[i]];
      if (smoothing == 0) continue;
      const T mean = SumOfLine(row, labels.classes(), 1) /
                     static_cast<T>(labels.classes());
      loss = static_cast<T>(1 - smoothing) * loss -
             static_cast<T>(smoothing) * mean;
    }
  });
  if (options.reduction != Reduction::kMean) {
    return {Reduced(losses, options.reduction), log_probs};
  }
  return {Div(Sum(losses), static_cast<double>(labels.kept())), log_probs};
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
  constexpr absl::string_view kWhere = "CrossEntropyBackward";
  const ClassTargets labels(log_probs, targets, options, kWhere);
  const bool is_mean = options.reduction == Reduction::kMean;
  const Tensor each =
      GradOfEach(grad, targets.shape(),
                 is_mean ? Reduction::kSum : options.reduction, kWhere)
          .Contiguous();
  const double share = is_mean ? 1 / static_cast<double>(labels.kept()) : 1.0;
  const double spread =
      options.label_smoothing / static_cast<double>(labels.classes());
  const Tensor scores = log_probs.Contiguous();
  Tensor result = Tensor::Empty(log_probs.shape(), log_probs.dtype());
  VisitFloating(grad.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    const int64_t classes = labels.classes();
    for (int64_t i = 0; i < labels.count(); ++i) {
      T* const row = result.data<T>() + i * classes;
      if (labels.is_ignored(i)) {
        std::fill_n(row, classes, T(0));
        continue;
      }
      const T scale = each.data<T>()[i] * static_cast<T>(share);
      // (softmax - what is wanted) * scale.
      const T* const from = scores.data<T>() + i * classes;
      SoftmaxLessPart(from, static_cast<T>(spread), scale, row, classes);
      row[labels[i]] = (internal::Exp(from[labels[i]]) -
                        static_cast<T>(1 - options.label_smoothing) -
                        static_cast<T>(spread)) *
                       scale;
    }
  });
  return result;
}

Tensor BceWithLogits(const Tensor& logits, const Tensor& targets,
                     Reduction reduction) {
  return Reduced(MapPair(logits, targets, "BceWithLogits",
                         [](auto x, auto t) { return BceLoss(x, t); }),
                 reduction);
}

Tensor BceWithLogitsBackward(const Tensor& grad, const Tensor& logits,
                             const Tensor& targets, Reduction reduction) {
  constexpr absl::string_view kWhere = "BceWithLogitsBackward";
  const Tensor each = GradOfEach(grad, logits.shape(), reduction, kWhere);
  Tensor result = MapPair(logits, targets, kWhere, [](auto x, auto t) {
    return internal::Sigmoid(x) - t;
  });
  Mul_(result, each);
  return result;
}

Tensor MseLoss(const Tensor& x, const Tensor& targets, Reduction reduction) {
  return Reduced(MapPair(x, targets, "MseLoss",
                         [](auto a, auto b) { return (a - b) * (a - b); }),
                 reduction);
}

Tensor MseLossBackward(const Tensor& grad, const Tensor& x,
                       const Tensor& targets, Reduction reduction) {
  constexpr absl::string_view kWhere = "MseLossBackward";
  const Tensor each = GradOfEach(grad, x.shape(), reduction, kWhere);
  Tensor result = MapPair(x, targets, kWhere,
                          [](auto a, auto b) { return (a - b) + (a - b); });
  Mul_(result, each);
  return result;
}

Tensor HuberLoss(const Tensor& x, const Tensor& targets, double delta,
                 Reduction reduction) {
  CheckDelta(delta, "HuberLoss");
  return Reduced(MapPair(x, targets, "HuberLoss",
                         [delta](auto a, auto b) {
                           using T = decltype(a);
                           const T d = static_cast<T>(delta);
                           const T distance = std::fabs(a - b);
                           return distance <= d ? T(0.5) * distance * distance
                                                : d * (distance - T(0.5) * d);
                         }),
                 reduction);
}

Tensor HuberLossBackward(const Tensor& grad, const Tensor& x,
                         const Tensor& targets, double delta,
                         Reduction reduction) {
  constexpr absl::string_view kWhere = "HuberLossBackward";
  CheckDelta(delta, kWhere);
  const Tensor each = GradOfEach(grad, x.shape(), reduction, kWhere);
  Tensor result = MapPair(x, targets, kWhere, [delta](auto a, auto b) {
    const auto d = static_cast<decltype(a)>(delta);
    const auto distance = a - b;
    return distance < -d ? -d : (distance > d ? d : distance);
  });
  Mul_(result, each);
  return result;
}

Tensor KlDivLoss(const Tensor& log_probs, const Tensor& targets,
                 Reduction reduction) {
  return Reduced(MapPair(log_probs, targets, "KlDivLoss",
                         [](auto a, auto t) {
                           using T = decltype(a);
                           return t > T(0) ? t * (std::log(t) - a) : T(0);
                         }),
                 reduction);
}

Tensor KlDivLossBackward(const Tensor& grad, const Tensor& targets,
                         Reduction reduction) {
  const Tensor each =
      GradOfEach(grad, targets.shape(), reduction, "KlDivLossBackward");
  return Neg(Mul(Relu(targets), each));
}

}  // namespace weft
