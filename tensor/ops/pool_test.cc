#include "weft/tensor/ops/pool.h"

#include <algorithm>
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The places of a plane [h, w] that output (y, x) sees, in order.
std::vector<int64_t> WindowOf(const Shape& shape, const Pool2dOptions& o,
                              int64_t y, int64_t x) {
  std::vector<int64_t> places;
  ForEachIndex({o.kernel[0], o.kernel[1]}, [&](const Shape& k) {
    const int64_t h =
        y * (o.stride[0] ? o.stride[0] : o.kernel[0]) + k[0] - o.padding[0];
    const int64_t w =
        x * (o.stride[1] ? o.stride[1] : o.kernel[1]) + k[1] - o.padding[1];
    if (h < 0 || w < 0 || h >= shape[2] || w >= shape[3]) return;
    places.push_back(h * shape[3] + w);
  });
  return places;
}

// Few different numbers, with NaN and both infinities among them, so that
// equals and the order of special values count.
Tensor Mixed(const Shape& shape, DType dtype, Generator& generator, Lie lie) {
  const double numbers[] = {-kInfinity, -kInfinity, -1, -1, 0, kInfinity, kNan};
  std::vector<double> values(static_cast<size_t>(NumElements(shape, "test")));
  const uint64_t most = 1 + generator.NextBelow(std::size(numbers));
  for (double& value : values) value = numbers[generator.NextBelow(most)];
  const Tensor x = EmptyThatLies(lie, shape, dtype);
  x.CopyFrom(Tensor::FromVector(values, shape));
  return x;
}

TEST(MaxPool2d, TakesTheFirstLargestAndTheFirstNanBeforeAll) {
  Generator generator(1);
  const auto any = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(generator.NextBelow(
                       static_cast<uint64_t>(most - least + 1)));
  };
  for (int i = 0; i < 600; ++i) {
    Pool2dOptions o;
    if (i % 3 != 0) {  // Else 2 x 2 side by side, which has a way of its own.
      for (size_t d = 0; d < 2; ++d) {
        o.kernel[d] = any(1, 4);
        o.stride[d] = any(0, 4);
        o.padding[d] = any(0, o.kernel[d] / 2);
      }
    }
    const Shape shape = {any(1, 2), any(1, 2), any(4, 9), any(4, 9)};
    const DType dtype = i % 2 == 0 ? DType::kF32 : DType::kF64;
    const Lie lie = kLies[generator.NextBelow(std::size(kLies))];
    const Tensor x = Mixed(shape, dtype, generator, lie);
    const MaxPool2dResult found = MaxPool2d(x, o);
    ForEachIndex(found.values.shape(), [&](const Shape& at) {
      const std::vector<int64_t> window = WindowOf(shape, o, at[2], at[3]);
      const auto value = [&](int64_t place) {
        return At(x, {at[0], at[1], place / shape[3], place % shape[3]});
      };
      int64_t best = window[0];
      for (const int64_t place : window) {
        if (std::isnan(value(best))) break;
        if (std::isnan(value(place)) || value(place) > value(best)) {
          best = place;
        }
      }
      ASSERT_EQ(At(found.indices, at), best);
      const double wanted = value(best), is = At(found.values, at);
      ASSERT_TRUE(wanted == is || (std::isnan(wanted) && std::isnan(is)));
    });
    if (HasFailure()) {
      FAIL() << x.Describe() << " kernel " << ShapeText(o.kernel) << " stride "
             << ShapeText(o.stride) << " padding " << ShapeText(o.padding);
    }
  }
}

// The gradient of a mean is the mean's adjoint: (pool x, g) = (x, back g).
TEST(AvgPool2d, AndItsGradientAreAdjoint) {
  Generator generator(2);
  for (const Pool2dOptions& o : {Pool2dOptions{{2, 4}, {1, 2}, {1, 2}},
                                 Pool2dOptions{{4, 2}, {3, 5}, {0, 1}},
                                 Pool2dOptions{{1, 1}, {3, 2}, {0, 0}},
                                 Pool2dOptions{{6, 8}, {0, 0}, {0, 0}}}) {
    const Shape shape = {2, 3, 6, 8};
    const Tensor x = Integers(shape, DType::kF64, -8, 8, generator);
    const Tensor y = AvgPool2d(x, o);
    const Tensor g = Integers(y.shape(), DType::kF64, -8, 8, generator);
    const Tensor back = AvgPool2dBackward(g, shape, o);
    double forward_product = 0, backward_product = 0;
    ForEachIndex(y.shape(), [&](const Shape& at) {
      forward_product += At(y, at) * At(g, at);
      double sum = 0;
      for (const int64_t place : WindowOf(shape, o, at[2], at[3])) {
        sum += At(x, {at[0], at[1], place / 8, place % 8});
      }
      EXPECT_NEAR(At(y, at),
                  sum / static_cast<double>(o.kernel[0] * o.kernel[1]), 1e-12);
    });
    ForEachIndex(shape, [&](const Shape& at) {
      backward_product += At(x, at) * At(back, at);
    });
    EXPECT_NEAR(forward_product, backward_product, 1e-9);
  }
}

TEST(Pool2d, RefusesWhatDoesNotFit) {
  const Tensor x = Tensor::Ones({1, 1, 4, 4});
  const int64_t huge = int64_t{1} << 62;
  const Pool2dOptions bad_options[] = {
      {{0, 2}, {1, 1}, {0, 0}},          {{-1, 2}, {1, 1}, {0, 0}},
      {{2, 2}, {-1, 1}, {0, 0}},         {{2, 2}, {0, 0}, {-1, 0}},
      {{2, 2}, {0, 0}, {2, 0}},          {{3, 3}, {0, 0}, {0, 2}},
      {{5, 2}, {0, 0}, {0, 0}},          {{huge, 2}, {0, 0}, {0, 0}},
      {{huge, 2}, {1, 1}, {huge / 2, 0}}};
  for (size_t i = 0; i < std::size(bad_options); ++i) {
    const Pool2dOptions& o = bad_options[i];
    const std::function<void()> uses[] = {
        [&] { MaxPool2d(x, o); }, [&] { AvgPool2d(x, o); },
        [&] {
          AvgPool2dBackward(x, {1, 1, 4, 4}, o);
        }};
    for (const auto& use : uses) {
      EXPECT_EQ(CodeOf(use), absl::StatusCode::kInvalidArgument) << i;
    }
  }
  const Tensor indices = Tensor::Zeros({1, 1, 2, 2}, DType::kI64);
  const Tensor grad = Tensor::Ones({1, 1, 2, 2});
  const std::function<void()> bad[] = {
      [&] { MaxPool2d(x.To(DType::kI64)); },
      [&] { AvgPool2d(x.To(DType::kI32)); },
      [&] {
        MaxPool2dBackward(grad, indices.To(DType::kI32), {1, 1, 4, 4});
      },
      [&] {
        MaxPool2dBackward(grad, indices, {1, 2, 4, 4});
      },
      [&] {
        MaxPool2dBackward(grad, indices, {1, 1, 16});
      },
      [&] {
        MaxPool2dBackward(grad, indices.Slice(3, 0, 1), {1, 1, 4, 4});
      },
      [&] {
        MaxPool2dBackward(grad, Tensor::Full({1, 1, 2, 2}, -1, DType::kI64),
                          {1, 1, 4, 4});
      },
      [&] {
        MaxPool2dBackward(grad, indices, {1, 1, 0, 4});
      },
      [&] {
        AvgPool2dBackward(grad, {1, 1, 4, 5}, {{2, 1}, {}, {}});
      },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

// Padding makes room for a window, but there is no element in it to take.
TEST(MaxPool2d, OfPlanesWithoutElementsIsRefused) {
  const Pool2dOptions o = {{2, 2}, {0, 0}, {1, 1}};
  for (const Shape& shape : {Shape{1, 1, 0, 4}, Shape{1, 1, 4, 0}}) {
    EXPECT_EQ(CodeOf([&] { MaxPool2d(Tensor::Zeros(shape), o); }),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MaxPool2d(Tensor::Zeros({0, 3, 4, 4}), o).values.shape(),
            (Shape{0, 3, 3, 3}));
}

TEST(Pool2d, IsTheSameOnADevice) {
  Generator generator(33);
  Pool2dOptions overlapping;
  overlapping.kernel = {3, 2};
  overlapping.stride = {2, 1};
  overlapping.padding = {1, 1};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Reals({2, 3, 7, 6}, dtype, generator);
    for (const Pool2dOptions& options : {Pool2dOptions(), overlapping}) {
      const Tensor grad =
          Reals(AvgPool2d(x, options).shape(), dtype, generator);
      for (const Lie lie : kLies) {
        ExpectSameOnDevice("Pool2d", {x, grad}, [&](auto in) {
          const Tensor x = ThatLies(lie, in[0]), grad = ThatLies(lie, in[1]);
          const MaxPool2dResult y = MaxPool2d(x, options);
          return std::vector<Tensor>{
              y.values, y.indices,
              MaxPool2dBackward(grad, ThatLies(lie, y.indices), x.shape()),
              AvgPool2d(x, options),
              AvgPool2dBackward(grad, x.shape(), options)};
        });
      }
    }
  }
}

// The host does not wait for the indices.
TEST(MaxPool2dBackward, AnIndexOutsideMakesADeviceFail) {
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Tensor grad = Tensor::Ones({1, 1, 1, 1});
  const Tensor indices = Tensor::Full({1, 1, 1, 1}, 4, DType::kI64);
  EXPECT_THAT(Complaint([&] {
                MaxPool2dBackward(grad, indices.To(device), {1, 1, 2, 2});
              }),
              AllOf(HasSubstr("on simulated:0"), HasSubstr("on cpu")));
  const Tensor made =
      MaxPool2dBackward(grad.To(device), indices.To(device), {1, 1, 2, 2});
  try {
    made.To(Device::Cpu());
    ADD_FAILURE() << "the device did not fail";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.status().message()),
                HasSubstr("index 4 is outside of a plane of 4"));
  }
}

}  // namespace
}  // namespace weft
