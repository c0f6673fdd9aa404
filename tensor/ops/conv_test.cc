#include "weft/tensor/ops/conv.h"

#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/ops/threads.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::ExpectSameOnDevice;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t OutputSize(int64_t size, int64_t kernel, const Conv2dOptions& o,
                   size_t d) {
  return (size + 2 * o.padding[d] - o.dilation[d] * (kernel - 1) - 1) /
             o.stride[d] +
         1;
}

struct Results {
  Tensor y, x, weight, bias;  // f64: the result and the gradients.
};

double& Element(const Tensor& x, const Shape& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset += at[d] * x.strides()[d];
  return x.data<double>()[offset];
}

// By six loops, from the definition. `grad_of` makes the gradient of y's shape.
Results ByLoops(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Conv2dOptions& o, const Tensor& grad) {
  Results r = {Tensor::Zeros(grad.shape(), DType::kF64),
               Tensor::Zeros(x.shape(), DType::kF64),
               Tensor::Zeros(weight.shape(), DType::kF64),
               Tensor::Zeros({weight.size(0)}, DType::kF64)};
  ForEachIndex(grad.shape(), [&](const Shape& at) {
    Element(r.y, at) += At(bias, {at[1]});
    Element(r.bias, {at[1]}) += At(grad, at);
    ForEachIndex(
        {weight.size(1), weight.size(2), weight.size(3)}, [&](const Shape& k) {
          const int64_t h =
              at[2] * o.stride[0] + k[1] * o.dilation[0] - o.padding[0];
          const int64_t w =
              at[3] * o.stride[1] + k[2] * o.dilation[1] - o.padding[1];
          if (h < 0 || w < 0 || h >= x.size(2) || w >= x.size(3)) return;
          const Shape from = {at[0], k[0], h, w};
          const Shape tap = {at[1], k[0], k[1], k[2]};
          Element(r.y, at) += At(x, from) * At(weight, tap);
          Element(r.x, from) += At(grad, at) * At(weight, tap);
          Element(r.weight, tap) += At(grad, at) * At(x, from);
        });
  });
  return r;
}

// Options at random: windows wholly in the padding, strides beyond the kernel,
// images of one row.
TEST(Conv2d, AgreesWithLoopsForOptionsOfAllKinds) {
  Generator generator(1);
  const auto any = [&](uint64_t most, int64_t least) {
    return least + static_cast<int64_t>(generator.NextBelow(
                       most + 1 - static_cast<uint64_t>(least)));
  };
  int tried = 0;
  for (int i = 0; i < 120; ++i) {
    SetIntraOpThreads(i % 3 + 1);
    const DType dtype = i % 2 == 0 ? DType::kF32 : DType::kF64;
    Conv2dOptions o;
    for (size_t d = 0; d < 2; ++d) {
      o.stride[d] = any(4, 1);
      o.padding[d] = any(4, 0);
      o.dilation[d] = any(3, 1);
    }
    const int64_t channels = any(3, 1), filters = any(4, 1);
    const Shape x_shape = {any(3, 1), channels, any(7, 1), any(7, 1)};
    const Shape w_shape = {filters, channels, any(4, 1), any(4, 1)};
    if (x_shape[2] + 2 * o.padding[0] < o.dilation[0] * (w_shape[2] - 1) + 1 ||
        x_shape[3] + 2 * o.padding[1] < o.dilation[1] * (w_shape[3] - 1) + 1) {
      continue;
    }
    ++tried;
    const Lie lie = kLies[generator.NextBelow(std::size(kLies))];
    const Tensor x = Integers(x_shape, dtype, -3, 3, generator, lie);
    const Tensor weight = Integers(w_shape, dtype, -3, 3, generator, lie);
    const Tensor bias = Integers({filters}, dtype, -3, 3, generator, lie);
    const Shape shape = {x_shape[0], filters,
                         OutputSize(x_shape[2], w_shape[2], o, 0),
                         OutputSize(x_shape[3], w_shape[3], o, 1)};
    const Tensor grad = Integers(shape, dtype, -3, 3, generator, lie);
    const Results wanted = ByLoops(x, weight, bias, o, grad);
    ExpectSame(Conv2d(x, weight, bias, o), wanted.y.To(dtype));
    const Conv2dGradients out = {Tensor::Full(x_shape, kNan, dtype),
                                 Tensor::Full(w_shape, kNan, dtype),
                                 Tensor::Full({filters}, kNan, dtype)};
    const uint64_t version = out.x.version();
    Conv2dBackwardInto(out, grad, x, weight, o);
    ExpectSame(out.x, wanted.x.To(dtype));
    ExpectSame(out.weight, wanted.weight.To(dtype));
    ExpectSame(out.bias, wanted.bias.To(dtype));
    EXPECT_GT(out.x.version(), version);
    if (HasFailure()) {
      FAIL() << x.Describe() << " " << ShapeText(w_shape) << " stride "
             << ShapeText(o.stride) << " padding " << ShapeText(o.padding)
             << " dilation " << ShapeText(o.dilation);
    }
  }
  SetIntraOpThreads(1);
  EXPECT_GT(tried, 50);
}

TEST(Conv2d, OfNothingGivesZerosWhereThereAreOutputs) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor bias = Tensor::Arange(2, dtype);
    // Without channels each output is its filter's bias.
    const Tensor y = Conv2d(Tensor::Zeros({1, 0, 3, 3}, dtype),
                            Tensor::Zeros({2, 0, 3, 3}, dtype), bias);
    ExpectValues(y, {1, 2, 1, 1}, {0, 1}, 0);
    // Padding alone: rows of x are none.
    const Tensor padded = Conv2d(Tensor::Zeros({1, 1, 0, 2}, dtype),
                                 Tensor::Ones({2, 1, 2, 2}, dtype), bias,
                                 {{1, 1}, {1, 0}, {1, 1}});
    ExpectValues(padded, {1, 2, 1, 1}, {0, 1}, 0);
  }
}

TEST(Conv2d, RefusesWhatDoesNotFit) {
  const Tensor x = Tensor::Ones({1, 2, 5, 5}),
               weight = Tensor::Ones({3, 2, 2, 2});
  const Tensor grad = Tensor::Ones({1, 3, 4, 4});
  const Tensor f64 = Tensor::Ones({3, 2, 2, 2}, DType::kF64);
  const int64_t huge = int64_t{1} << 62;
  const auto with = [&](std::array<int64_t, 2> stride,
                        std::array<int64_t, 2> padding,
                        std::array<int64_t, 2> dilation) {
    return [&, o = Conv2dOptions{stride, padding, dilation}] {
      Conv2d(x, weight, {}, o);
    };
  };
  const auto into = [&](const Conv2dGradients& out) {
    return [&, out] { Conv2dBackwardInto(out, grad, x, weight); };
  };
  const std::function<void()> bad[] = {
      with({0, 1}, {0, 0}, {1, 1}),
      with({1, -1}, {0, 0}, {1, 1}),
      with({1, 1}, {-1, 0}, {1, 1}),
      with({1, 1}, {0, 0}, {0, 1}),
      with({1, 1}, {0, 0}, {1, 5}),
      // Each would overflow where output sizes are computed.
      with({1, huge}, {0, 0}, {1, 1}),
      with({1, 1}, {huge, 0}, {1, 1}),
      with({1, 1}, {0, 0}, {huge, 1}),
      [&] { Conv2d(x.Select(0, 0), weight, {}); },
      [&] { Conv2d(x, weight.Select(0, 0), {}); },
      [&] { Conv2d(x, f64, {}); },
      [&] {
        Conv2d(x, Tensor::Ones({3, 2, 0, 2}), {});
      },
      [&] { Conv2d(x, weight, Tensor::Ones({2})); },
      [&] {
        Conv2d(x, weight, Tensor::Ones({3, 1}));
      },
      [&] { Conv2d(x, weight, Tensor::Ones({3}, DType::kF64)); },
      [&] { Conv2d(x.To(DType::kI64), weight.To(DType::kI64), {}); },
      into({Tensor::Ones({1, 2, 5, 4}), {}, {}}),
      into({Tensor::Ones({1, 2, 5, 5}, DType::kF64), {}, {}}),
      into({Tensor::Ones({1, 2, 5, 6}).Slice(3, 0, 5), {}, {}}),
      into({{}, Tensor::Ones({3, 2, 2, 3}), {}}),
      into({{}, {}, Tensor::Ones({2})}),
      into({{}, {}, Tensor::Ones({3, 2}).Select(1, 0)}),
      [&] { Conv2dBackwardInto({}, grad.Slice(0, 0, 0), x, weight); },
      [&] { Conv2dBackwardInto({}, grad.To(DType::kF64), x, weight); },
      [&] { Conv2dBackwardInto({}, grad, x, f64); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

// Each set of gradients that may be wanted.
TEST(Conv2d, IsTheSameOnADevice) {
  Generator generator(34);
  Conv2dOptions strided;
  strided.stride = {2, 1};
  strided.padding = {1, 2};
  strided.dilation = {1, 2};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const int64_t channels : {0, 3}) {
      const Tensor x = Reals({2, channels, 7, 8}, dtype, generator);
      const Tensor weight = Reals({5, channels, 3, 2}, dtype, generator);
      const Tensor bias = Reals({5}, dtype, generator);
      for (const Conv2dOptions& options : {Conv2dOptions(), strided}) {
        const Tensor grad =
            Reals(Conv2d(x, weight, {}, options).shape(), dtype, generator);
        for (const Lie lie : kLies) {
          ExpectSameOnDevice("Conv2d", {x, weight, bias, grad}, [&](auto in) {
            const Tensor x = ThatLies(lie, in[0]), w = ThatLies(lie, in[1]);
            const Tensor g = ThatLies(lie, in[3]);
            std::vector<Tensor> found = {
                Conv2d(x, w, {}, options),
                Conv2d(x, w, ThatLies(lie, in[2]), options),
                Conv2d(x.Slice(0, 0, 0), w, {}, options)};
            for (int wanted = 0; wanted < 8; ++wanted) {
              Conv2dGradients out;
              if ((wanted & 1) != 0) out.x = Tensor::EmptyLike(in[0]);
              if ((wanted & 2) != 0) out.weight = Tensor::EmptyLike(in[1]);
              if ((wanted & 4) != 0) out.bias = Tensor::EmptyLike(in[2]);
              Conv2dBackwardInto(out, g, x, w, options);
              for (const Tensor& made : {out.x, out.weight, out.bias}) {
                EXPECT_TRUE(!made.defined() || made.version() > 0);
                found.push_back(made);
              }
            }
            return found;
          });
        }
      }
    }
  }
}

TEST(Conv2d, OfTwoDevicesNamesBoth) {
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Ones({1, 1, 2, 2}), b = Tensor::Ones({1});
  const Tensor there = x.To(device);
  const Tensor out = Tensor::Ones({1, 1, 2, 2});
  const std::function<void()> bad[] = {
      [&] { Conv2d(there, x, {}); },
      [&] { Conv2d(x, there, {}); },
      [&] { Conv2d(x, x, b.To(device)); },
      [&] {
        Conv2dBackwardInto({}, there.Slice(2, 0, 1).Slice(3, 0, 1), x, x);
      },
      [&] {
        Conv2dBackwardInto({out, {}, {}}, there.Slice(2, 0, 1).Slice(3, 0, 1),
                           there, there);
      },
  };
  for (const auto& call : bad) {
    EXPECT_THAT(Complaint(call),
                AllOf(HasSubstr("on simulated:0"), HasSubstr("on cpu")));
  }
}

}  // namespace
}  // namespace weft
