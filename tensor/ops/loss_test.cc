#include "weft/tensor/ops/loss.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::ExpectSameOnDevice;

constexpr DType kFloats[] = {DType::kF32, DType::kF64};
constexpr Reduction kReductions[] = {Reduction::kNone, Reduction::kMean,
                                     Reduction::kSum};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor Doubles(const std::vector<double>& values, const Shape& shape) {
  return Tensor::FromVector<double>(values, shape);
}

// d f / dx by central differences, times `grad` and summed. f64.
template <typename F>
Tensor Differences(const Tensor& x, const Tensor& grad, F&& f) {
  constexpr double kStep = 1e-5;
  const Tensor at = x.Clone(), result = Tensor::Zeros(x.shape(), DType::kF64);
  const auto total = [&] {
    const std::vector<double> y = Values(f(at)), g = Values(grad);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * g[i];
    return sum;
  };
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& element = at.data<double>()[i];
    const double value = element;
    element = value + kStep;
    const double above = total();
    element = value - kStep;
    result.data<double>()[i] = (above - total()) / (2 * kStep);
    element = value;
  }
  return result;
}

// log softmax of one row, with the largest taken off, in long double.
std::vector<double> LogSoftmaxOf(const std::vector<double>& row) {
  long double largest = row[0], sum = 0;
  for (const double x : row) largest = std::fmax(largest, x);
  for (const double x : row) sum += std::exp(x - largest);
  std::vector<double> result;
  for (const double x : row) {
    result.push_back(static_cast<double>(x - largest - std::log(sum)));
  }
  return result;
}

// Row lengths around the lanes and blocks of a fold, and offsets up to where
// exp overflows many times over.
TEST(LogSoftmax, IsStableAtEachLengthAndOffset) {
  Generator generator(1);
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 2, 31, 32, 33, 64, 100, 4097}) {
      for (const double offset : {0.0, 1e4, -1e4}) {
        const Tensor x = Integers({2, n}, dtype, -20, 20, generator);
        for (int64_t i = 0; i < 2; ++i) {
          std::vector<double> row = Values(x.Select(0, i));
          const std::vector<double> wanted = LogSoftmaxOf(row);
          for (double& value : row) value += offset;  // Exact.
          const Tensor shifted = Doubles(row, {n}).To(dtype);
          ExpectValues(LogSoftmax(shifted, 0), {n}, wanted,
                       dtype == DType::kF32 ? 1e-5 : 1e-13);
          std::vector<double> shares;
          for (const double w : wanted) shares.push_back(std::exp(w));
          ExpectValues(Softmax(shifted, 0), {n}, shares,
                       dtype == DType::kF32 ? 1e-6 : 1e-14);
        }
      }
    }
  }
}

TEST(Softmax, GivesMinusInfinityNoShare) {
  for (const DType dtype : kFloats) {
    const Tensor x = Doubles({-kInfinity, 0, -kInfinity, 0}, {4}).To(dtype);
    ExpectValues(Softmax(x, 0), {4}, {0, 0.5, 0, 0.5}, 0);
    ExpectValues(LogSoftmax(x, 0), {4},
                 {-kInfinity, -std::log(2), -kInfinity, -std::log(2)}, 1e-7);
    for (const double bad : {kNan, kInfinity}) {  // Seen, not hidden.
      const Tensor y = Softmax(Doubles({0, bad}, {2}).To(dtype), 0);
      EXPECT_TRUE(std::isnan(At(y, {1}))) << bad;
    }
  }
}

TEST(Softmax, OfNothingTakesNoTime) {
  const Shape shape = {int64_t{1} << 44, 3, 0};
  const Tensor x = Tensor::Zeros(shape);
  EXPECT_EQ(Softmax(x, 1).shape(), shape);
  EXPECT_EQ(LogSoftmax(x, -2).shape(), shape);
  EXPECT_EQ(SoftmaxBackward(x, x, 1).shape(), shape);
  EXPECT_EQ(LogSoftmaxBackward(x, x, 1).shape(), shape);
}

// From the definition: targets that are not ignored, each with `smoothing`
// spread over all classes.
std::vector<double> EachCrossEntropy(const Tensor& logits,
                                     const std::vector<int64_t>& labels,
                                     const CrossEntropyOptions& options) {
  std::vector<double> losses;
  const int64_t classes = logits.size(-1);
  const Tensor rows = logits.Reshape({-1, classes});
  for (size_t i = 0; i < labels.size(); ++i) {
    double loss = 0;
    if (labels[i] != options.ignore_index) {
      const std::vector<double> log_probs =
          LogSoftmaxOf(Values(rows.Select(0, static_cast<int64_t>(i))));
      for (int64_t c = 0; c < classes; ++c) {
        const double wanted =
            (c == labels[i] ? 1 - options.label_smoothing : 0) +
            options.label_smoothing / static_cast<double>(classes);
        loss -= wanted * log_probs[static_cast<size_t>(c)];
      }
    }
    losses.push_back(loss);
  }
  return losses;
}

TEST(CrossEntropy, AgreesWithItsDefinitionForEachOption) {
  Generator generator(2);
  const std::vector<int64_t> labels = {0, 3, -100, 1, 2, -100};
  for (const DType dtype : kFloats) {
    for (const Lie lie : kLies) {
      const Tensor x = Reals({2, 3, 4}, dtype, generator, lie);
      const Tensor targets = EmptyThatLies(lie, {2, 3}, DType::kI64);
      targets.CopyFrom(Tensor::FromVector(labels, {2, 3}));
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        CrossEntropyOptions options;
        options.ignore_index = -100;
        options.label_smoothing = smoothing;
        const std::vector<double> each = EachCrossEntropy(x, labels, options);
        double sum = 0;
        for (const double loss : each) sum += loss;
        const double tolerance = dtype == DType::kF32 ? 1e-5 : 1e-12;
        for (const Reduction reduction : kReductions) {
          options.reduction = reduction;
          const CrossEntropyResult found = CrossEntropy(x, targets, options);
          if (reduction == Reduction::kNone) {
            ExpectValues(found.loss, {2, 3}, each, tolerance);
          } else {
            ExpectValues(found.loss, {},
                         {reduction == Reduction::kSum ? sum : sum / 4},
                         tolerance);
          }
          if (dtype != DType::kF64) continue;
          const Tensor grad = Reals(found.loss.shape(), dtype, generator);
          ExpectSame(
              CrossEntropyBackward(grad, found.log_probs, targets, options),
              Differences(x, grad,
                          [&](const Tensor& at) {
                            return CrossEntropy(at, targets, options).loss;
                          }),
              1e-8);
        }
      }
    }
  }
}

// Neither its loss nor its gradient, whatever its scores are.
TEST(CrossEntropy, DoesNotSeeIgnoredRows) {
  CrossEntropyOptions options;
  options.ignore_index = 1;  // A class, but one that does not count.
  const Tensor x = Doubles({kNan, kInfinity, 0, 0}, {2, 2});
  const Tensor targets = Tensor::FromVector<int64_t>({1, 0});
  for (const double smoothing : {0.0, 0.5}) {
    options.label_smoothing = smoothing;
    const CrossEntropyResult found = CrossEntropy(x, targets, options);
    ExpectValues(found.loss, {}, {std::log(2)}, 1e-12);
    const Tensor back = CrossEntropyBackward(Tensor::Scalar(1.0),
                                             found.log_probs, targets, options);
    ExpectValues(back.Select(0, 0), {2}, {0, 0}, 0);
    EXPECT_TRUE(std::isfinite(At(back, {1, 0})));
  }
  // All ignored: the mean of nothing, but no gradient.
  const Tensor all = Tensor::FromVector<int64_t>({1, 1});
  const CrossEntropyResult none = CrossEntropy(x, all, options);
  EXPECT_TRUE(std::isnan(none.loss.item<double>()));
  ExpectValues(
      CrossEntropyBackward(Tensor::Scalar(1.0), none.log_probs, all, options),
      {2, 2}, {0, 0, 0, 0}, 0);
}

TEST(KlDivLoss, CountsNothingWhereTheTargetIs0) {
  const Tensor log_probs = Doubles({-kInfinity, kNan, -1, -2}, {4});
  const Tensor targets = Doubles({0, 0, 0.25, 0.75}, {4});
  const double sum = 0.25 * (std::log(0.25) + 1) + 0.75 * (std::log(0.75) + 2);
  ExpectValues(KlDivLoss(log_probs, targets, Reduction::kSum), {}, {sum},
               1e-15);
  ExpectValues(KlDivLoss(log_probs, targets), {}, {sum / 4}, 1e-15);
  ExpectValues(KlDivLossBackward(Tensor::Scalar(2.0), targets, Reduction::kSum),
               {4}, {0, 0, -0.5, -1.5}, 0);
}

TEST(HuberLoss, TurnsFromSquareToLineAtDelta) {
  const Tensor x = Doubles({0, 0.5, 2, -2, 5, -5}, {6});
  const Tensor t = Tensor::Zeros({6}, DType::kF64);
  ExpectValues(HuberLoss(x, t, 2, Reduction::kNone), {6},
               {0, 0.125, 2, 2, 8, 8}, 0);
  ExpectValues(HuberLossBackward(Tensor::Ones({6}, DType::kF64), x, t, 2,
                                 Reduction::kNone),
               {6}, {0, 0.5, 2, -2, 2, -2}, 0);
  for (const Reduction reduction : kReductions) {
    const Tensor at = Doubles({0.3, -1.7, 4, -6}, {2, 2});
    const Tensor wanted = Doubles({0, 0.1, 0.2, 0.3}, {2, 2});
    Generator generator(3);
    const Tensor grad =
        Reals(reduction == Reduction::kNone ? Shape{2, 2} : Shape{},
              DType::kF64, generator);
    ExpectSame(HuberLossBackward(grad, at, wanted, 1.5, reduction),
               Differences(at, grad,
                           [&](const Tensor& p) {
                             return HuberLoss(p, wanted, 1.5, reduction);
                           }),
               1e-8);
    ExpectSame(KlDivLossBackward(grad, wanted, reduction),
               Differences(at, grad,
                           [&](const Tensor& p) {
                             return KlDivLoss(p, wanted, reduction);
                           }),
               1e-8);
  }
}

TEST(Losses, RefuseWhatDoesNotFit) {
  const Tensor x = Tensor::Zeros({2, 3}), f64 = x.To(DType::kF64);
  const Tensor labels = Tensor::Zeros({2}, DType::kI64), one = Tensor::Ones({});
  const auto cross = [&](const Tensor& logits, const Tensor& targets,
                         double smoothing = 0) {
    CrossEntropyOptions options;
    options.label_smoothing = smoothing;
    return [=] { CrossEntropy(logits, targets, options); };
  };
  const std::function<void()> bad[] = {
      cross(one, Tensor::Scalar<int64_t>(0)),
      cross(x, labels.To(DType::kI32)),
      cross(x, labels.View({2, 1})),
      cross(x.To(DType::kI64), labels),
      cross(x, Tensor::Full({2}, -100, DType::kI64)),
      cross(x.Slice(1, 0, 0), labels),
      cross(x, labels, -0.1),
      cross(x, labels, 1.1),
      cross(x, labels, kNan),
      [&] { CrossEntropyBackward(Tensor::Ones({2}), x, labels, {}); },
      [&] {
        CrossEntropyBackward(Tensor::Ones({}, DType::kF64), x, labels, {});
      },
      [&] { NllLoss(x.View({6}), labels); },
      [&] { NllLoss(x, Tensor::Full({2}, 3, DType::kI64)); },
      [&] {
        NllLossBackward(Tensor::Ones({2}), labels, {2, 3});
      },
      [&] {
        NllLossBackward(one, labels, {3, 3});
      },
      [&] { MseLoss(x, f64); },
      [&] {
        BceWithLogits(x, x.View({3, 2}));
      },
      [&] { BceWithLogitsBackward(x, x, x, Reduction::kMean); },
      [&] { MseLossBackward(one, x, x, Reduction::kNone); },
      [&] { HuberLoss(x, x, 0); },
      [&] { HuberLoss(x, x, -1); },
      [&] { HuberLoss(x, x, kNan); },
      [&] { HuberLossBackward(one, x, x, 0); },
      [&] { KlDivLoss(x, f64); },
      [&] { KlDivLossBackward(x, x, Reduction::kSum); },
      [&] { Softmax(x, 2); },
      [&] { Softmax(one, 0); },
      [&] { Softmax(x.To(DType::kI32), 0); },
      [&] { SoftmaxBackward(x, f64, 0); },
      [&] { LogSoftmaxBackward(x, x.Slice(0, 0, 1), 0); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(Losses, SoftmaxIsTheSameOnADevice) {
  Generator generator(21);
  for (const DType dtype : kFloats) {
    const Tensor x = Reals({3, 37, 4}, dtype, generator);
    const Tensor grad = Reals({3, 37, 4}, dtype, generator);
    for (const Lie lie : kLies) {
      ExpectSameOnDevice("Softmax", {x, grad}, [&](auto in) {
        const Tensor x = ThatLies(lie, in[0]), grad = ThatLies(lie, in[1]);
        std::vector<Tensor> found;
        for (const int64_t dim : {0, 1, -1}) {
          const Tensor y = Softmax(x, dim), log_y = LogSoftmax(x, dim);
          for (const Tensor& made : {y, log_y, SoftmaxBackward(grad, y, dim),
                                     LogSoftmaxBackward(grad, log_y, dim)}) {
            found.push_back(made);
          }
        }
        return found;
      });
    }
  }
}

TEST(Losses, OfClassesAreTheSameOnADevice) {
  Generator generator(22);
  for (const DType dtype : kFloats) {
    const Tensor logits = Reals({5, 3, 9}, dtype, generator);
    const Tensor targets = Integers({5, 3}, DType::kI64, 0, 8, generator);
    for (const Lie lie : kLies) {
      for (const Reduction reduction : kReductions) {
        const Tensor grad = reduction == Reduction::kNone
                                ? Reals({5, 3}, dtype, generator)
                                : Reals({}, dtype, generator);
        CrossEntropyOptions options;
        options.reduction = reduction;
        CrossEntropyOptions unlike = options;
        unlike.ignore_index = 4;
        unlike.label_smoothing = 0.125;
        ExpectSameOnDevice(
            "CrossEntropy", {logits, targets, grad}, [&](auto in) {
              const Tensor x = ThatLies(lie, in[0]), t = ThatLies(lie, in[1]);
              const Tensor g = ThatLies(lie, in[2]);
              std::vector<Tensor> found = {CrossEntropy(x, t, reduction).loss};
              for (const auto& o : {options, unlike}) {
                const CrossEntropyResult y = CrossEntropy(x, t, o);
                found.push_back(y.loss);
                found.push_back(y.log_probs);
                found.push_back(
                    CrossEntropyBackward(g, ThatLies(lie, y.log_probs), t, o));
              }
              return found;
            });
        ExpectSameOnDevice("NllLoss", {logits, targets, grad}, [&](auto in) {
          const Tensor t = ThatLies(lie, in[1].Select(1, 0));
          const Tensor g = reduction == Reduction::kNone
                               ? ThatLies(lie, in[2].Select(1, 0))
                               : in[2];
          return std::vector<Tensor>{
              NllLoss(ThatLies(lie, in[0].Select(1, 0)), t, reduction),
              NllLossBackward(g, t, {5, 9}, reduction)};
        });
      }
    }
  }
}

TEST(Losses, OfPairsAreTheSameOnADevice) {
  Generator generator(23);
  for (const DType dtype : kFloats) {
    const Tensor x = Reals({5, 7}, dtype, generator);
    const Tensor targets = Softmax(Reals({5, 7}, dtype, generator), 1);
    for (const Lie lie : kLies) {
      for (const Reduction reduction : kReductions) {
        const Tensor grad = reduction == Reduction::kNone
                                ? Reals({5, 7}, dtype, generator)
                                : Reals({}, dtype, generator);
        ExpectSameOnDevice("Losses", {x, targets, grad}, [&](auto in) {
          const Tensor x = ThatLies(lie, in[0]), t = ThatLies(lie, in[1]);
          const Tensor g = ThatLies(lie, in[2]);
          return std::vector<Tensor>{BceWithLogits(x, t, reduction),
                                     BceWithLogitsBackward(g, x, t, reduction),
                                     MseLoss(x, t, reduction),
                                     MseLossBackward(g, x, t, reduction),
                                     HuberLoss(x, t, 0.5, reduction),
                                     HuberLossBackward(g, x, t, 0.5, reduction),
                                     KlDivLoss(x, t, reduction),
                                     KlDivLossBackward(g, t, reduction)};
        });
      }
    }
    ExpectSameOnDevice("Losses of nothing", {x, x}, [&](auto in) {
      const Tensor x = in[0].Slice(0, 0, 0), t = in[1].Slice(0, 0, 0);
      return std::vector<Tensor>{MseLoss(x, t), MseLoss(x, t, Reduction::kSum),
                                 Softmax(x, 1)};
    });
  }
}

TEST(Losses, OfTwoDevicesNameBoth) {
  device::testing::SimulatedDevices devices(1);
  const Tensor x = Tensor::Ones({2, 3}), t = Tensor::Zeros({2}, DType::kI64);
  const Device device(devices.context(), 0);
  const std::function<void()> bad[] = {
      [&] { CrossEntropy(x.To(device), t); },
      [&] { CrossEntropy(x, t.To(device)); },
      [&] { NllLoss(x.To(device), t); },
      [&] { MseLoss(x, x.To(device)); },
      [&] { KlDivLossBackward(Tensor::Ones({}), x.To(device)); },
  };
  for (const auto& call : bad) {
    EXPECT_THAT(Complaint(call),
                AllOf(HasSubstr("on simulated:0"), HasSubstr("on cpu")));
  }
}

// The host does not wait for the targets.
TEST(Losses, ATargetThatIsNoClassMakesADeviceFail) {
  const Tensor x = Tensor::Ones({2, 3});
  const auto t = Tensor::FromVector<int64_t>({0, 3});
  const std::function<Tensor(const Tensor&, const Tensor&)> bad[] = {
      [](const Tensor& x, const Tensor& t) { return CrossEntropy(x, t).loss; },
      [](const Tensor& x, const Tensor& t) { return NllLoss(x, t); },
      [](const Tensor& x, const Tensor& t) {
        return CrossEntropyBackward(Tensor::Ones({}, DType::kF32, x.device()),
                                    x, t, {});
      },
      [](const Tensor& x, const Tensor& t) {
        return NllLossBackward(Tensor::Ones({}, DType::kF32, x.device()), t,
                               {2, 3});
      }};
  for (const auto& call : bad) {
    EXPECT_EQ(CodeOf([&] { call(x, t); }), absl::StatusCode::kInvalidArgument);
    device::testing::SimulatedDevices devices(1);
    const Device device(devices.context(), 0);
    const Tensor made = call(x.To(device), t.To(device));
    try {
      made.To(Device::Cpu());
      ADD_FAILURE() << "the device did not fail";
    } catch (const Error& error) {
      EXPECT_THAT(std::string(error.status().message()),
                  HasSubstr("target 3 is not one of 3 classes"));
    }
  }
}

}  // namespace
}  // namespace weft
