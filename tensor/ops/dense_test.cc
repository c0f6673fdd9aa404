// Products, convolutions, pooling and reductions against loops over doubles.

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/conv.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/norm.h"
#include "weft/tensor/ops/pool.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/reference.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF64};

// --- Products.

// [m, k] x [k, n] of matrices.
std::vector<double> Product(const Tensor& a, const Tensor& b) {
  std::vector<double> wanted;
  ForEachIndex({a.size(0), b.size(1)}, [&](const Shape& index) {
    double sum = 0;
    for (int64_t p = 0; p < a.size(1); ++p) {
      sum += At(a, {index[0], p}) * At(b, {p, index[1]});
    }
    wanted.push_back(sum);
  });
  return wanted;
}

TEST(MatMul, AgreesWithLoopsInEverySizeAndLayout) {
  Generator generator(1);
  const int64_t sizes[][3] = {{1, 1, 1},    {2, 3, 4},   {5, 1, 7},
                              {1, 9, 1},    {8, 8, 8},   {13, 17, 31},
                              {40, 33, 65}, {1, 70, 90}, {90, 70, 1},
                              {3, 0, 4},    {0, 3, 4},   {3, 4, 0}};
  for (const DType dtype : kFloats) {
    for (const auto& [m, k, n] : sizes) {
      for (const Lie lie : kLies) {
        for (const Lie other : kLies) {
          // Small integers: every product is exact.
          const Tensor a = Integers({m, k}, dtype, -4, 4, generator, lie);
          const Tensor b = Integers({k, n}, dtype, -4, 4, generator, other);
          ExpectValues(MatMul(a, b), {m, n}, Product(a, b), 0);
        }
      }
    }
  }
}

std::atomic<int> handled{0};

// See SignalStack.
TEST(MatMul, IsRightUnderSignalsThatHaveAStackOfTheirOwn) {
  Generator generator(1);
  struct Case {
    Tensor a, b;
    std::vector<float> wanted;
  };
  std::vector<Case> cases;
  const int64_t sizes[][3] = {{16, 128, 10}, {10, 16, 128}, {40, 33, 65},
                              {64, 64, 60},  {16, 16, 9},   {80, 70, 90}};
  for (const auto& [m, k, n] : sizes) {
    for (const Lie lie : kLies) {
      for (const Lie other : kLies) {
        Case& c = cases.emplace_back();
        c.a = Integers({m, k}, DType::kF32, -4, 4, generator, lie);
        c.b = Integers({k, n}, DType::kF32, -4, 4, generator, other);
        c.wanted = MatMul(c.a, c.b).ToVector<float>();
      }
    }
  }
  handled = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { ++handled; };
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &usr1,
                  nullptr);  // as whoever began this left it
  std::atomic<bool> is_over{false};
  std::thread sender([&is_over, to = pthread_self()] {
    while (!is_over) {
      const int seen = handled;
      pthread_kill(to, SIGUSR1);
      while (handled == seen && !is_over) std::this_thread::yield();
    }
  });
  // On a busy machine a signal takes a turn of the scheduler.
  const absl::Time enough = absl::Now() + absl::Seconds(5);
  while ((handled < 100 || (handled < 2000 && absl::Now() < enough)) &&
         !HasFailure()) {
    for (const Case& c : cases) {
      EXPECT_EQ(MatMul(c.a, c.b).ToVector<float>(), c.wanted);
    }
  }
  is_over = true;
  sender.join();
  signal(SIGUSR1, SIG_IGN);  // one may be on its way
}

TEST(MatMul, BroadcastsBatches) {
  Generator generator(2);
  for (const DType dtype : kFloats) {
    const Tensor a = Integers({3, 1, 4, 5}, dtype, -4, 4, generator);
    const Tensor b = Integers({2, 5, 6}, dtype, -4, 4, generator);
    const Tensor found = MatMul(a, b);
    ASSERT_EQ(found.shape(), (Shape{3, 2, 4, 6}));
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 2; ++j) {
        ExpectValues(found.Select(0, i).Select(0, j), {4, 6},
                     Product(a.Select(0, i).Select(0, 0), b.Select(0, j)), 0);
      }
    }
    const Tensor shared = Integers({5, 6}, dtype, -4, 4, generator);
    ExpectSame(MatMul(a, shared).Select(0, 2).Select(0, 0),
               MatMul(a.Select(0, 2).Select(0, 0), shared));
    EXPECT_EQ(MatMul(Tensor::Zeros({0, 2, 3}), Tensor::Zeros({3, 4})).shape(),
              (Shape{0, 2, 4}));
  }
}

TEST(MatMul, ErrorNamesTheMismatch) {
  EXPECT_EQ(Complaint([] {
              MatMul(Tensor::Zeros({2, 3}), Tensor::Zeros({4, 5}));
            }),
            "MatMul: lhs is [2, 3], rhs is [4, 5]; inner sizes 3 and 4 differ");
  EXPECT_THAT(Complaint([] {
                MatMul(Tensor::Zeros({3}), Tensor::Zeros({3, 4}));
              }),
              HasSubstr("two dimensions"));
  EXPECT_THAT(
      Complaint([] {
        MatMul(Tensor::Zeros({1, 1}), Tensor::Zeros({1, 1}, DType::kF64));
      }),
      HasSubstr("dtypes differ"));
}

// Enough for oneDNN's primitive; exact in f32.
TEST(Linear, OfManyRowsIsAProductPlusBias) {
  Generator generator(5);
  const Tensor x = Integers({70, 64}, DType::kF32, -4, 4, generator);
  const Tensor weight = Integers({80, 64}, DType::kF32, -4, 4, generator);
  const Tensor bias = Integers({80}, DType::kF32, -4, 4, generator);
  const Tensor wanted =
      Add(MatMul(x.To(DType::kF64), weight.To(DType::kF64).Transpose(0, 1)),
          bias.To(DType::kF64));
  ExpectSame(Linear(x, weight, bias), wanted.To(DType::kF32));
}

TEST(MatMulInto, OverwritesTheOutput) {
  Generator generator(3);
  for (const int64_t size : {3, 30, 90}) {  // Own loops, sgemm, primitive.
    for (const DType dtype : kFloats) {
      const Tensor a = Integers({size, 40}, dtype, -4, 4, generator);
      const Tensor b = Integers({40, 80}, dtype, -4, 4, generator);
      const Tensor out = Tensor::Full({size, 80}, kNan, dtype);
      MatMulInto(out, a, b);
      ExpectSame(out, MatMul(a, b));
      EXPECT_GT(out.version(), 0u);
    }
  }
}

TEST(MatMulAdd, AccumulatesIntoTheOutput) {
  Generator generator(3);
  for (const DType dtype : kFloats) {
    const Tensor a = Integers({30, 20}, dtype, -4, 4, generator);
    const Tensor b = Integers({20, 10}, dtype, -4, 4, generator);
    const Tensor out = Tensor::Ones({30, 10}, dtype);
    MatMulAdd_(out, a, b);
    ExpectSame(out, Add(MatMul(a, b), 1));
    EXPECT_GT(out.version(), 0u);
  }
}

TEST(Linear, IsAProductWithTheTransposePlusBias) {
  Generator generator(4);
  for (const DType dtype : kFloats) {
    const Tensor x = Integers({2, 3, 20}, dtype, -4, 4, generator);
    const Tensor weight = Integers({30, 20}, dtype, -4, 4, generator);
    const Tensor bias = Integers({30}, dtype, -4, 4, generator);
    const Tensor product = MatMul(x, weight.Transpose(0, 1));
    ExpectSame(Linear(x, weight, {}), product);
    ExpectSame(Linear(x, weight, bias), Add(product, bias));
    EXPECT_EQ(Linear(Tensor::Zeros({0, 20}, dtype), weight, bias).shape(),
              (Shape{0, 30}));
    EXPECT_THAT(Complaint([&] { Linear(x, weight, bias.Slice(0, 0, 3)); }),
                HasSubstr("bias"));
  }
}

// --- Convolution.

struct ConvCase {
  Shape x, weight;
  Conv2dOptions options;
};

const ConvCase kConvs[] = {
    {{1, 1, 5, 5}, {1, 1, 3, 3}, {}},
    {{2, 3, 9, 8}, {4, 3, 3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
    {{2, 16, 7, 7}, {32, 16, 5, 5}, {{1, 1}, {2, 2}, {1, 1}}},
    {{3, 2, 10, 11}, {5, 2, 3, 2}, {{2, 3}, {1, 0}, {1, 1}}},
    {{1, 2, 12, 12}, {3, 2, 3, 3}, {{1, 2}, {2, 1}, {2, 3}}},
    {{2, 8, 6, 6}, {16, 8, 1, 1}, {}},
    {{1, 1, 4, 4}, {1, 1, 4, 4}, {}},
    {{0, 2, 5, 5}, {3, 2, 3, 3}, {}},
    {{2, 0, 5, 5}, {3, 0, 3, 3}, {}},
    {{2, 2, 5, 5}, {0, 2, 3, 3}, {}},
};

// Calls visit(index of output, of x, of weight) for each product.
template <typename Visit>
void ForEachProduct(const ConvCase& c, const Shape& out, Visit&& visit) {
  ForEachIndex(out, [&](const Shape& o) {
    ForEachIndex({c.weight[1], c.weight[2], c.weight[3]}, [&](const Shape& k) {
      const int64_t h = o[2] * c.options.stride[0] - c.options.padding[0] +
                        k[1] * c.options.dilation[0];
      const int64_t w = o[3] * c.options.stride[1] - c.options.padding[1] +
                        k[2] * c.options.dilation[1];
      if (h < 0 || h >= c.x[2] || w < 0 || w >= c.x[3]) return;
      visit(o, Shape{o[0], k[0], h, w}, Shape{o[1], k[0], k[1], k[2]});
    });
  });
}

double* Element(const Tensor& x, const Shape& index) {
  double* element = x.data<double>();
  for (size_t d = 0; d < index.size(); ++d) {
    element += index[d] * x.strides()[d];
  }
  return element;
}

TEST(Conv2d, AgreesWithLoopsForwardAndBackward) {
  Generator generator(5);
  for (const DType dtype : kFloats) {
    for (const ConvCase& c : kConvs) {
      for (const Lie lie : {Lie::kContiguous, Lie::kTransposed}) {
        const Tensor x = Integers(c.x, dtype, -3, 3, generator, lie);
        const Tensor weight = Integers(c.weight, dtype, -3, 3, generator, lie);
        const Tensor bias = Integers({c.weight[0]}, dtype, -3, 3, generator);
        const Tensor y = Conv2d(x, weight, bias, c.options);
        const Tensor grad = Integers(y.shape(), dtype, -3, 3, generator, lie);

        const Tensor wanted = Tensor::Zeros(y.shape(), DType::kF64);
        const Tensor grad_x = Tensor::Zeros(c.x, DType::kF64);
        const Tensor grad_weight = Tensor::Zeros(c.weight, DType::kF64);
        ForEachProduct(c, y.shape(),
                       [&](const Shape& o, const Shape& i, const Shape& k) {
                         *Element(wanted, o) += At(x, i) * At(weight, k);
                         *Element(grad_x, i) += At(grad, o) * At(weight, k);
                         *Element(grad_weight, k) += At(grad, o) * At(x, i);
                       });
        ExpectSame(Conv2d(x, weight, {}, c.options), wanted.To(dtype));
        Add_(wanted, bias.To(DType::kF64).View({c.weight[0], 1, 1}));
        ExpectSame(y, wanted.To(dtype));
        const Tensor to_x = Tensor::Full(c.x, kNan, dtype);
        const Tensor to_weight = Tensor::Full(c.weight, kNan, dtype);
        const Tensor to_bias = Tensor::Full({c.weight[0]}, kNan, dtype);
        Conv2dBackwardInto({to_x, to_weight, to_bias}, grad, x, weight,
                           c.options);
        ExpectSame(to_x, grad_x.To(dtype));
        ExpectSame(to_weight, grad_weight.To(dtype));
        const Tensor alone = Tensor::Full(c.weight, kNan, dtype);
        Conv2dBackwardInto({{}, alone, {}}, grad, x, weight, c.options);
        ExpectSame(alone, to_weight);
        ExpectSame(to_bias, Sum(grad, {0, 2, 3}));
        to_bias.Fill(kNan);
        Conv2dBackwardInto({{}, {}, to_bias}, grad, x, weight, c.options);
        ExpectSame(to_bias, Sum(grad, {0, 2, 3}));
      }
    }
  }
}

TEST(Conv2d, ErrorNamesTheMismatch) {
  const Tensor x = Tensor::Zeros({1, 2, 4, 4});
  EXPECT_THAT(Complaint([&] {
                Conv2d(x, Tensor::Zeros({3, 1, 3, 3}), {});
              }),
              HasSubstr("[filters, channels, kh, kw]"));
  EXPECT_THAT(Complaint([&] {
                Conv2d(x, Tensor::Zeros({3, 2, 5, 5}), {});
              }),
              HasSubstr("smaller than the kernel"));
  Conv2dOptions bad;
  bad.stride = {0, 1};
  EXPECT_THAT(Complaint([&] {
                Conv2d(x, Tensor::Zeros({3, 2, 3, 3}), {}, bad);
              }),
              HasSubstr("stride [0, 1]"));
}

// --- Pooling.

struct PoolCase {
  Shape x;
  Pool2dOptions options;
};

const PoolCase kPools[] = {
    {{2, 3, 6, 6}, {}},
    {{2, 2, 7, 9}, {}},
    {{1, 1, 8, 2100}, {}},
    {{1, 1, 3, 2101}, {}},
    {{1, 2, 70, 32}, {}},
    {{1, 2, 7, 9}, {{3, 2}, {2, 1}, {1, 1}}},
    {{2, 1, 5, 5}, {{2, 2}, {3, 3}, {0, 0}}},
    {{1, 1, 4, 4}, {{4, 4}, {0, 0}, {2, 2}}},
    {{0, 3, 4, 4}, {}},
};

// The indices of x in the window of output `o`; `o` of x's planes.
std::vector<Shape> WindowOf(const PoolCase& c, const Shape& o) {
  std::vector<Shape> window;
  ForEachIndex({c.options.kernel[0], c.options.kernel[1]}, [&](const Shape& k) {
    int64_t at[2];
    for (int d = 0; d < 2; ++d) {
      const int64_t stride =
          c.options.stride[d] == 0 ? c.options.kernel[d] : c.options.stride[d];
      at[d] = o[2 + d] * stride - c.options.padding[d] + k[d];
      if (at[d] < 0 || at[d] >= c.x[2 + d]) return;
    }
    window.push_back({o[0], o[1], at[0], at[1]});
  });
  return window;
}

TEST(Pool2d, AgreesWithLoopsForwardAndBackward) {
  Generator generator(6);
  for (const DType dtype : kFloats) {
    for (const PoolCase& c : kPools) {
      for (const Lie lie : kLies) {
        const Tensor x = Integers(c.x, dtype, -3, 3, generator, lie);
        const MaxPool2dResult max = MaxPool2d(x, c.options);
        const Tensor average = AvgPool2d(x, c.options);
        const Shape shape = max.values.shape();
        const Tensor grad = Integers(shape, dtype, -3, 3, generator, lie);

        std::vector<double> largest;
        std::vector<double> mean;
        const Tensor grad_max = Tensor::Zeros(c.x, DType::kF64);
        const Tensor grad_mean = Tensor::Zeros(c.x, DType::kF64);
        const double count =
            static_cast<double>(c.options.kernel[0] * c.options.kernel[1]);
        ForEachIndex(shape, [&](const Shape& o) {
          const std::vector<Shape> window = WindowOf(c, o);
          Shape best = window[0];
          double sum = 0;
          for (const Shape& i : window) {
            if (At(x, i) > At(x, best)) best = i;
            sum += At(x, i);
            *Element(grad_mean, i) += At(grad, o) / count;
          }
          largest.push_back(At(x, best));
          mean.push_back(sum / count);
          *Element(grad_max, best) += At(grad, o);
        });
        ExpectValues(max.values, shape, largest, 0);
        ExpectValues(average, shape, mean, 1e-6);
        ExpectSame(MaxPool2dBackward(grad, max.indices, c.x),
                   grad_max.To(dtype));
        ExpectSame(AvgPool2dBackward(grad, c.x, c.options), grad_mean.To(dtype),
                   1e-6);
      }
    }
  }
}

TEST(MaxPool2d, KeepsNanAndTakesMinusInfinity) {
  const auto x = Tensor::FromVector<double>({-kInfinity, -kInfinity, kNan, 1},
                                            {1, 2, 1, 2});
  ExpectValues(MaxPool2d(x, {{1, 2}, {0, 0}, {0, 0}}).values, {1, 2, 1, 1},
               {-kInfinity, kNan}, 0);
}

TEST(Pool2d, ErrorNamesTheMismatch) {
  EXPECT_THAT(Complaint([] {
                MaxPool2d(Tensor::Zeros({2, 2}));
              }),
              HasSubstr("wanted [n, channels, h, w]"));
  EXPECT_THAT(Complaint([] {
                AvgPool2d(Tensor::Zeros({1, 1, 1, 1}));
              }),
              HasSubstr("smaller than the kernel"));
  EXPECT_THAT(Complaint([] {
                MaxPool2dBackward(Tensor::Zeros({1, 1, 1, 1}),
                                  Tensor::Full({1, 1, 1, 1}, 4, DType::kI64),
                                  {1, 1, 2, 2});
              }),
              HasSubstr("index 4"));
}

// --- Reductions.

struct ReduceCase {
  Shape shape;
  std::vector<int64_t> dims;
  Shape result;
  Shape kept;
};

const ReduceCase kReductions[] = {
    {{}, {}, {}, {}},
    {{100}, {}, {}, {1}},
    {{20000}, {0}, {}, {1}},
    {{3, 4, 50}, {}, {}, {1, 1, 1}},
    {{3, 4, 50}, {2}, {3, 4}, {3, 4, 1}},
    {{3, 4, 50}, {0}, {4, 50}, {1, 4, 50}},
    {{3, 4, 50}, {1}, {3, 50}, {3, 1, 50}},
    {{3, 4, 50}, {-1, 0}, {4}, {1, 4, 1}},
    {{2, 3, 4, 5}, {0, 2, 3}, {3}, {1, 3, 1, 1}},
};

// Folds doubles into the place that each has in `kept`.
template <typename Op>
std::vector<double> Folded(const Tensor& x, const Shape& kept, double start,
                           Op op) {
  const Tensor out = Tensor::Full(kept, start, DType::kF64);
  ForEachIndex(x.shape(), [&](const Shape& index) {
    Shape place = index;
    for (size_t d = 0; d < kept.size(); ++d) {
      if (kept[d] == 1) place[d] = 0;
    }
    double& total = *Element(out, place);
    total = op(total, At(x, index));
  });
  return Values(out);
}

TEST(Reductions, AgreeWithLoopsInEveryLayout) {
  Generator generator(7);
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kI64, DType::kU8}) {
    for (const ReduceCase& c : kReductions) {
      for (const Lie lie : kLies) {
        const Tensor x = Integers(c.shape, dtype, 0, 9, generator, lie);
        const auto sum =
            Folded(x, c.kept, 0, [](double a, double b) { return a + b; });
        ExpectValues(Sum(x, c.dims), c.result, sum, 0);
        ExpectValues(Sum(x, c.dims, true), c.kept, sum, 0);
        ExpectValues(Max(x, c.dims), c.result,
                     Folded(x, c.kept, -kInfinity,
                            [](double a, double b) { return std::fmax(a, b); }),
                     0);
        ExpectValues(Min(x, c.dims), c.result,
                     Folded(x, c.kept, kInfinity,
                            [](double a, double b) { return std::fmin(a, b); }),
                     0);
        if (!IsFloating(dtype)) continue;
        const double count =
            static_cast<double>(x.numel()) / static_cast<double>(sum.size());
        std::vector<double> mean = sum;
        for (double& value : mean) value /= count;
        ExpectValues(Mean(x, c.dims, true), c.kept, mean, 1e-6);
      }
    }
  }
}

TEST(Sum, OfNothingIsZeroAndOfBoolCounts) {
  ExpectValues(Sum(Tensor::Zeros({0})), {}, {0}, 0);
  ExpectValues(Sum(Tensor::Zeros({0, 3}), {0}), {3}, {0, 0, 0}, 0);
  ExpectValues(Sum(Tensor::Zeros({0, 3}), {1}), {0}, {}, 0);
  ExpectValues(Mean(Tensor::Zeros({0})), {}, {kNan}, 0);
  EXPECT_EQ(Sum(Tensor::Ones({300}, DType::kBool)).item<int64_t>(), 300);
}

TEST(Sum, OfManyFloatsLosesLittle) {
  const int64_t n = 1 << 22;
  const Tensor x = Tensor::Full({n}, 0.1);
  // One chain of f32 additions would be off by more than a per cent.
  EXPECT_NEAR(Sum(x).item<float>() / (0.1 * static_cast<double>(n)), 1, 1e-5);
}

TEST(Extremes, KeepNanAndRefuseNothing) {
  const auto x = Tensor::FromVector<float>({1, std::nanf(""), 3});
  ExpectValues(Max(x), {}, {kNan}, 0);
  ExpectValues(Min(x), {}, {kNan}, 0);
  EXPECT_EQ(ArgMax(x, 0).item<int64_t>(), 1);
  EXPECT_THAT(Complaint([] { Max(Tensor::Zeros({0})); }),
              HasSubstr("nothing to choose from"));
  EXPECT_THAT(Complaint([] {
                ArgMax(Tensor::Zeros({2, 0}), 1);
              }),
              HasSubstr("nothing to choose from"));
  EXPECT_EQ(ArgMax(Tensor::Zeros({0, 2}), 1).shape(), (Shape{0}));
}

TEST(ArgMax, FindsTheFirstLargestAlongADim) {
  Generator generator(8);
  for (const Lie lie : kLies) {
    const Tensor x = Integers({4, 5, 6}, DType::kF32, -9, 9, generator, lie);
    for (const int64_t dim : {0, 1, 2, -1}) {
      const Tensor found = ArgMax(x, dim, true);
      const int d = WrapDim(dim, 3, "test");
      ForEachIndex(found.shape(), [&](const Shape& index) {
        Shape at = index;
        int64_t best = 0;
        for (int64_t i = 0; i < x.size(d); ++i) {
          Shape other = index;
          other[d] = i;
          at[d] = best;
          if (At(x, other) > At(x, at)) best = i;
        }
        ASSERT_EQ(At(found, index), best);
      });
      EXPECT_EQ(ArgMax(x, dim).dim(), 2);
    }
  }
}

TEST(SumTo, UndoesBroadcasting) {
  const Tensor x = Tensor::Ones({2, 3, 4});
  ExpectValues(SumTo(x, {3, 1}), {3, 1}, {8, 8, 8}, 0);
  ExpectValues(SumTo(x, {}), {}, {24}, 0);
  ExpectValues(SumTo(x, {4}), {4}, {6, 6, 6, 6}, 0);
  EXPECT_TRUE(SumTo(x, x.shape()).IsSameAs(x));
  EXPECT_THAT(Complaint([&] { SumTo(x, {2}); }), HasSubstr("does not expand"));
}

TEST(ExtremumBackward, SharesAmongEquals) {
  const auto x = Tensor::FromVector<double>({1, 5, 5, 7, 2, 3}, {2, 3});
  const Tensor y = Max(x, {1}, true);
  const auto grad = Tensor::FromVector<double>({4, 6});
  ExpectValues(ExtremumBackward(grad, x, y, {1}), {2, 3}, {0, 2, 2, 6, 0, 0},
               0);
}

// Planes that lie side by side have loops of their own.
TEST(BatchNorm, PlanesAgreeWithOperationsOnWholeTensors) {
  Generator generator(9);
  for (const DType dtype : kFloats) {
    for (const Tensor& weight :
         {Tensor(), Reals({3}, dtype, generator, Lie::kStrided)}) {
      const Tensor x = Reals({40, 3, 6, 7}, dtype, generator);
      const Tensor other = Reals(x.shape(), dtype, generator, Lie::kTransposed);
      other.CopyFrom(x);
      const Tensor grad = Reals(x.shape(), dtype, generator, Lie::kSliced);
      const ChannelMoments moments = MomentsOf(x), wanted = MomentsOf(other);
      ExpectSame(moments.mean, wanted.mean, Tolerance(dtype));
      ExpectSame(moments.variance, wanted.variance, Tolerance(dtype));
      const BatchNormResult y =
          BatchNorm(x, wanted.mean, wanted.variance, weight, weight);
      const BatchNormResult z =
          BatchNorm(other, wanted.mean, wanted.variance, weight, weight);
      ExpectSame(y.y, z.y, Tolerance(dtype));
      for (const bool of_batch : {false, true}) {
        const NormGradients a =
            BatchNormBackward(grad, x, y, weight, true, of_batch);
        const NormGradients b =
            BatchNormBackward(grad, other, z, weight, true, of_batch);
        ExpectSame(a.x, b.x, Tolerance(dtype));
        ExpectSame(a.bias, b.bias, 10 * Tolerance(dtype));
        EXPECT_EQ(a.weight.defined(), weight.defined());
        if (weight.defined()) {
          ExpectSame(a.weight, b.weight, 10 * Tolerance(dtype));
        }
      }
    }
  }
}

TEST(Norms, SeeAllElements) {
  EXPECT_EQ(SquaredNorm(Tensor::FromVector<float>({3, 4})), 25);
  EXPECT_TRUE(AllFinite(Tensor::Ones({1000})));
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    const Tensor x = Tensor::Ones({1000});
    x.Slice(0, 777, 778).Fill(bad);
    EXPECT_FALSE(AllFinite(x));
  }
}

TEST(Reductions, ErrorNamesTheMismatch) {
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_THAT(Complaint([&] { Sum(x, {2}); }),
              HasSubstr("dim 2 is not one of a tensor of 2"));
  EXPECT_THAT(Complaint([&] { Sum(x, {0, -2}); }), HasSubstr("named twice"));
  EXPECT_THAT(Complaint([] { Mean(Tensor::Zeros({1}, DType::kI64)); }),
              HasSubstr("wanted f32, f64, f16 or bf16"));
}

}  // namespace
}  // namespace weft
