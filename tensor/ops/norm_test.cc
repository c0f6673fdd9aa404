#include "weft/tensor/ops/norm.h"

#include <cmath>
#include <functional>
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

double& Element(const Tensor& x, int64_t i) { return x.data<double>()[i]; }

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over groups of
// equal `group(place)`; weight and bias by `parameter(place)`. f64, contiguous.
struct Normalised {
  Tensor y;
  std::vector<double> mean, inverse;  // One for each group.
};

template <typename Group, typename Parameter>
Normalised ByDefinition(const Tensor& x, int64_t groups, Group group,
                        Parameter parameter, const Tensor& weight,
                        const Tensor& bias, double epsilon, bool is_centered) {
  const auto n = static_cast<size_t>(groups);
  std::vector<double> sum(n), squares(n), count(n);
  for (int64_t i = 0; i < x.numel(); ++i) {
    sum[group(i)] += Element(x, i);
    count[group(i)] += 1;
  }
  Normalised result = {Tensor::EmptyLike(x), std::vector<double>(n),
                       std::vector<double>(n)};
  for (size_t g = 0; is_centered && g < n; ++g) {
    result.mean[g] = sum[g] / count[g];
  }
  for (int64_t i = 0; i < x.numel(); ++i) {
    squares[group(i)] += std::pow(Element(x, i) - result.mean[group(i)], 2);
  }
  for (size_t g = 0; g < n; ++g) {
    result.inverse[g] = 1 / std::sqrt(squares[g] / count[g] + epsilon);
  }
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t p = parameter(i);
    Element(result.y, i) = (Element(x, i) - result.mean[group(i)]) *
                               result.inverse[group(i)] *
                               (weight.defined() ? Element(weight, p) : 1) +
                           (bias.defined() ? Element(bias, p) : 0);
  }
  return result;
}

// d sum(grad * f(x)) / dx.
template <typename F>
Tensor Differences(const Tensor& x, const Tensor& grad, F&& f) {
  constexpr double kStep = 1e-5;
  const Tensor result = Tensor::Empty(x.shape(), DType::kF64);
  const auto total = [&] {
    const std::vector<double> y = Values(f()), g = Values(grad);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * g[i];
    return sum;
  };
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = Element(x, i);
    Element(x, i) = value + kStep;
    const double above = total();
    Element(x, i) = value - kStep;
    Element(result, i) = (above - total()) / (2 * kStep);
    Element(x, i) = value;
  }
  return result;
}

Tensor Lying(const Tensor& x, DType dtype, Lie lie) {
  if (!x.defined()) return x;
  const Tensor y = EmptyThatLies(lie, x.shape(), dtype);
  y.CopyFrom(x);
  return y;
}

// The four choices of weight and bias.
template <typename Visit>
void ForEachChoice(const Shape& shape, Generator& generator, Visit&& visit) {
  for (const bool has_weight : {false, true}) {
    for (const bool has_bias : {false, true}) {
      const Tensor weight =
          has_weight ? Reals(shape, DType::kF64, generator) : Tensor();
      visit(weight, has_bias ? Reals(shape, DType::kF64, generator) : Tensor());
    }
  }
}

TEST(RowNorms, AgreeWithTheirDefinitionAndItsDifferences) {
  Generator generator(1);
  const struct {
    Shape x, normalized;
  } kCases[] = {{{4, 7}, {7}},        {{2, 3, 5}, {5}}, {{2, 3, 5}, {3, 5}},
                {{6}, {6}},           {{40, 3}, {3}},  // More rows than 32.
                {{2, 1, 33}, {1, 33}}};
  for (const auto& test : kCases) {
    const int64_t n = NumElements(test.normalized, "test");
    const Tensor x = Reals(test.x, DType::kF64, generator);
    const Tensor grad = Reals(test.x, DType::kF64, generator);
    const int64_t rows = x.numel() / n;
    ForEachChoice(
        test.normalized, generator,
        [&](const Tensor& weight, const Tensor& bias) {
          for (const bool is_centered : {false, true}) {
            if (!is_centered && bias.defined()) continue;
            const auto run = [&](const Tensor& at, const Tensor& w,
                                 const Tensor& b) {
              return is_centered ? LayerNorm(at, test.normalized, w, b, 0.01)
                                 : RmsNorm(at, test.normalized, w, 0.01);
            };
            const Normalised wanted = ByDefinition(
                x, rows, [n](int64_t i) { return static_cast<size_t>(i / n); },
                [n](int64_t i) { return i % n; }, weight, bias, 0.01,
                is_centered);
            for (const DType dtype : kFloats) {
              const double tolerance = dtype == DType::kF32 ? 1e-5 : 1e-12;
              for (const Lie lie : kLies) {
                const RowNormResult y =
                    run(Lying(x, dtype, lie), Lying(weight, dtype, lie),
                        Lying(bias, dtype, lie));
                ExpectValues(y.y, test.x, Values(wanted.y), tolerance);
                ExpectValues(y.inverse, {rows}, wanted.inverse, tolerance);
                EXPECT_EQ(y.mean.defined(), is_centered);
                if (is_centered) {
                  ExpectValues(y.mean, {rows}, wanted.mean, tolerance);
                }
              }
            }
            const NormGradients back =
                RowNormBackward(grad, x, run(x, weight, bias), test.normalized,
                                weight, bias.defined());
            const auto forward = [&] { return run(x, weight, bias).y; };
            ExpectSame(back.x, Differences(x, grad, forward), 1e-7);
            EXPECT_EQ(back.weight.defined(), weight.defined());
            EXPECT_EQ(back.bias.defined(), bias.defined());
            if (weight.defined()) {
              ExpectSame(back.weight, Differences(weight, grad, forward), 1e-7);
            }
            if (bias.defined()) {
              ExpectSame(back.bias, Differences(bias, grad, forward), 1e-7);
            }
          }
        });
  }
}

// Planes of fewer and of more than 32 elements, which have loops of their own.
TEST(BatchNorm, AgreesWithItsDefinitionAndItsDifferences) {
  Generator generator(2);
  for (const Shape& shape : {Shape{5, 3}, Shape{2, 3, 4}, Shape{3, 2, 6, 6}}) {
    const int64_t channels = shape[1],
                  inner = NumElements(shape, "test") / (shape[0] * shape[1]);
    const Tensor x = Reals(shape, DType::kF64, generator);
    const Tensor grad = Reals(shape, DType::kF64, generator);
    const auto channel = [=](int64_t i) { return i / inner % channels; };
    ForEachChoice(
        {channels}, generator, [&](const Tensor& weight, const Tensor& bias) {
          const Normalised wanted = ByDefinition(
              x, channels,
              [&](int64_t i) { return static_cast<size_t>(channel(i)); },
              channel, weight, bias, 1e-5, true);
          const ChannelMoments moments = MomentsOf(x);
          EXPECT_EQ(moments.count, x.numel() / channels);
          ExpectValues(moments.mean, {channels}, wanted.mean, 1e-12);
          for (const DType dtype : kFloats) {
            for (const Lie lie : kLies) {
              const BatchNormResult y = BatchNorm(
                  Lying(x, dtype, lie), Lying(moments.mean, dtype, lie),
                  Lying(moments.variance, dtype, lie),
                  Lying(weight, dtype, lie), Lying(bias, dtype, lie));
              const double tolerance = dtype == DType::kF32 ? 1e-5 : 1e-12;
              ExpectValues(y.y, shape, Values(wanted.y), tolerance);
              ExpectValues(y.inverse, {channels}, wanted.inverse, tolerance);
            }
          }
          for (const bool of_batch : {false, true}) {
            const auto run = [&] {
              const ChannelMoments now = of_batch ? MomentsOf(x) : moments;
              return BatchNorm(x, now.mean, now.variance, weight, bias);
            };
            const BatchNormResult forward = run();
            const NormGradients back = BatchNormBackward(
                grad, x, forward, weight, bias.defined(), of_batch);
            const auto y = [&] { return run().y; };
            ExpectSame(back.x, Differences(x, grad, y), 1e-7);
            if (weight.defined()) {
              ExpectSame(back.weight, Differences(weight, grad, y), 1e-7);
            }
            if (bias.defined()) {
              ExpectSame(back.bias, Differences(bias, grad, y), 1e-7);
            }
            // What forward returned may lie anyhow by now.
            const BatchNormResult turned = {
                forward.y, Lying(forward.mean, DType::kF64, Lie::kStrided),
                Lying(forward.inverse, DType::kF64, Lie::kStrided)};
            ExpectSame(BatchNormBackward(grad, x, turned, weight,
                                         bias.defined(), of_batch)
                           .x,
                       back.x);
          }
        });
  }
}

TEST(Norms, OfNothingAreNothing) {
  EXPECT_EQ(LayerNorm(Tensor::Zeros({0, 3}), {3}, {}, {}).y.shape(),
            (Shape{0, 3}));
  const RowNormResult none =
      RmsNorm(Tensor::Zeros({0, 3}), {3}, Tensor::Ones({3}));
  const NormGradients back =
      RowNormBackward(Tensor::Zeros({0, 3}), Tensor::Zeros({0, 3}), none, {3},
                      Tensor::Ones({3}), false);
  ExpectValues(back.weight, {3}, {0, 0, 0}, 0);
  EXPECT_EQ(MomentsOf(Tensor::Zeros({0, 2, 40})).count, 0);
}

// Parameters and moments of another size would be read beyond their end.
TEST(Norms, RefuseWhatDoesNotFit) {
  const Tensor x = Tensor::Ones({2, 4}), four = Tensor::Ones({4});
  const Tensor two = Tensor::Ones({2});
  const RowNormResult rows = LayerNorm(x, {4}, {}, {});
  const auto row_back = [&](const Tensor& grad, const RowNormResult& forward,
                            const Tensor& weight) {
    return [=] { RowNormBackward(grad, x, forward, {4}, weight, true); };
  };
  const Tensor images = Tensor::Ones({2, 3, 5, 7}), few = Tensor::Ones({2, 3});
  const Tensor three = Tensor::Ones({3});
  const auto batch_back = [&](const Tensor& at, const Tensor& grad,
                              const Tensor& mean, const Tensor& inverse,
                              const Tensor& weight) {
    return [=] {
      BatchNormBackward(grad, at, {at, mean, inverse}, weight, true, true);
    };
  };
  const std::function<void()> bad[] = {
      [&] { LayerNorm(x, {3}, {}, {}); },
      [&] { LayerNorm(x, {}, {}, {}); },
      [&] {
        LayerNorm(x, {1, 2, 4}, {}, {});
      },
      [&] {
        LayerNorm(Tensor::Zeros({2, 0}), {0}, {}, {});
      },
      [&] { LayerNorm(x, {4}, two, {}); },
      [&] { LayerNorm(x, {4}, {}, four.To(DType::kF64)); },
      [&] { LayerNorm(x.To(DType::kI64), {4}, {}, {}); },
      [&] {
        RmsNorm(x, {2, 4}, four);
      },
      row_back(x.View({4, 2}), rows, {}),
      row_back(x.To(DType::kF64), rows, {}),
      row_back(x, rows, two),
      row_back(x, rows, four.To(DType::kF64)),
      row_back(x, {x, four, rows.inverse}, {}),
      row_back(x, {x, rows.mean, Tensor::Ones({1})}, {}),
      [&] { MomentsOf(four); },
      [&] { MomentsOf(x.To(DType::kI64)); },
      [&] { BatchNorm(x, two, four, {}, {}); },
      [&] { BatchNorm(x, four, four, two, {}); },
      [&] { BatchNorm(x, four, four.To(DType::kF64), {}, {}); },
      batch_back(images, images, two, three, {}),
      batch_back(images, images, three, two, {}),
      batch_back(images, images, three, three, two),
      batch_back(images, images.Slice(0, 0, 1), three, three, {}),
      batch_back(images, images.To(DType::kF64), three, three, {}),
      batch_back(few, few, two, three, {}),
      batch_back(few, few, three, Tensor::Ones({1}), {}),
      batch_back(few, few.Slice(0, 0, 1), three, three, {}),
      batch_back(few, few, three, three, three.To(DType::kF64)),
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

// With and without each tensor that may be missing.
TEST(Norms, OfRowsAreTheSameOnADevice) {
  Generator generator(31);
  for (const DType dtype : kFloats) {
    const Tensor x = Reals({37, 2, 5}, dtype, generator);
    const Tensor grad = Reals({37, 2, 5}, dtype, generator);
    const Tensor weight = Reals({2, 5}, dtype, generator);
    const Tensor bias = Reals({2, 5}, dtype, generator);
    for (const Lie lie : kLies) {
      for (const bool has_weight : {false, true}) {
        for (const bool has_bias : {false, true}) {
          const std::vector<Tensor> inputs = {x, grad,
                                              has_weight ? weight : Tensor(),
                                              has_bias ? bias : Tensor()};
          ExpectSameOnDevice("Rows", inputs, [&](auto in) {
            const Tensor x = ThatLies(lie, in[0]), grad = ThatLies(lie, in[1]);
            const Tensor w = ThatLies(lie, in[2]), b = ThatLies(lie, in[3]);
            const RowNormResult y = LayerNorm(x, {2, 5}, w, b, 1e-3);
            const RowNormResult z = RmsNorm(x, {2, 5}, w, 1e-3);
            const NormGradients dy =
                RowNormBackward(grad, x, y, {2, 5}, w, has_bias);
            const NormGradients dz =
                RowNormBackward(grad, x, z, {2, 5}, w, false);
            return std::vector<Tensor>{y.y,     y.mean,    y.inverse, z.y,
                                       z.mean,  z.inverse, dy.x,      dy.weight,
                                       dy.bias, dz.x,      dz.weight, dz.bias};
          });
        }
      }
    }
    ExpectSameOnDevice("No rows", {x, weight}, [&](auto in) {
      const Tensor x = in[0].Slice(0, 0, 0);
      const RowNormResult y = LayerNorm(x, {2, 5}, in[1], in[1]);
      const NormGradients dy = RowNormBackward(x, x, y, {2, 5}, in[1], true);
      return std::vector<Tensor>{y.y, dy.x, dy.weight, dy.bias};
    });
  }
}

// Planes that are long enough for loops of their own, and others.
TEST(Norms, OfBatchesAreTheSameOnADevice) {
  Generator generator(32);
  for (const DType dtype : kFloats) {
    for (const Shape& shape :
         {Shape{4, 3}, Shape{4, 3, 2, 2}, Shape{4, 3, 6, 7}}) {
      const Tensor x = Reals(shape, dtype, generator);
      const Tensor grad = Reals(shape, dtype, generator);
      const Tensor weight = Reals({3}, dtype, generator);
      const Tensor bias = Reals({3}, dtype, generator);
      for (const Lie lie : kLies) {
        for (const bool is_whole : {false, true}) {
          const std::vector<Tensor> inputs = {x, grad,
                                              is_whole ? weight : Tensor(),
                                              is_whole ? bias : Tensor()};
          ExpectSameOnDevice("Batches", inputs, [&](auto in) {
            const Tensor x = ThatLies(lie, in[0]), grad = ThatLies(lie, in[1]);
            const Tensor w = ThatLies(lie, in[2]), b = ThatLies(lie, in[3]);
            const ChannelMoments moments = MomentsOf(x);
            EXPECT_EQ(moments.count, x.numel() / 3);
            const Tensor mean = ThatLies(lie, moments.mean);
            const Tensor variance = ThatLies(lie, moments.variance);
            BatchNormResult y = BatchNorm(x, mean, variance, w, b, 1e-3);
            // A running mean that is written to later.
            mean.Fill(7);
            const BatchNormResult kept = {y.y, ThatLies(lie, y.mean),
                                          ThatLies(lie, y.inverse)};
            std::vector<Tensor> found = {moments.mean, moments.variance, y.y,
                                         y.mean, y.inverse};
            for (const bool of_batch : {false, true}) {
              const NormGradients dy =
                  BatchNormBackward(grad, x, kept, w, is_whole, of_batch);
              found.insert(found.end(), {dy.x, dy.weight, dy.bias});
            }
            return found;
          });
        }
      }
    }
  }
}

TEST(Norms, OfTwoDevicesNameBoth) {
  device::testing::SimulatedDevices devices(1);
  const Tensor x = Tensor::Ones({2, 3}), w = Tensor::Ones({3});
  const Device device(devices.context(), 0);
  const RowNormResult y = LayerNorm(x, {3}, w, w);
  const std::function<void()> bad[] = {
      [&] { LayerNorm(x.To(device), {3}, w, {}); },
      [&] { LayerNorm(x, {3}, {}, w.To(device)); },
      [&] { RmsNorm(x.To(device), {3}, w); },
      [&] { RowNormBackward(x.To(device), x, y, {3}, w, true); },
      [&] { RowNormBackward(x.To(device), x.To(device), y, {3}, {}, true); },
      [&] { BatchNorm(x.To(device), w, w, {}, {}); },
      [&] { BatchNormBackward(x, x.To(device), {}, {}, true, true); },
  };
  for (const auto& call : bad) {
    EXPECT_THAT(Complaint(call),
                AllOf(HasSubstr("on simulated:0"), HasSubstr("on cpu")));
  }
}

}  // namespace
}  // namespace weft
