#include "weft/tensor/ops/matmul.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/onednn.h"
#include "weft/tensor/ops/product.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/ops/threads.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsNan;
using ::weft::testing::ExpectSameOnDevice;

constexpr DType kFloats[] = {DType::kF32, DType::kF64};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A matrix [rows, columns] as Multiply can read it: by rows or by columns,
// whose elements begin `gap` further apart than they must.
Tensor ReadableMatrix(int64_t rows, int64_t columns, bool by_columns,
                      int64_t gap, DType dtype, Generator& generator) {
  const Tensor x =
      by_columns
          ? Tensor::Empty({columns, rows + gap}, dtype)
                .Slice(1, 0, rows)
                .Transpose(0, 1)
          : Tensor::Empty({rows, columns + gap}, dtype).Slice(1, 0, columns);
  x.CopyFrom(Integers({rows, columns}, dtype, -4, 4, generator));
  return x;
}

template <typename T>
internal::Matrix<T> MatrixOf(const Tensor& x) {
  return {x.data<T>(), x.strides()[0], x.strides()[1]};
}

enum class Start { kNothing, kAccumulates, kBias };

// Whole numbers, so that the sum is exact in any order.
template <typename T>
void ExpectMultiplies(int64_t m, int64_t n, int64_t k, Generator& generator) {
  constexpr DType kDType = DTypeOf<T>;
  for (const int layout : {0, 1, 2, 3}) {
    for (const Start start :
         {Start::kNothing, Start::kAccumulates, Start::kBias}) {
      const int64_t gap = layout == 1 ? 0 : 3;
      const Tensor a =
          ReadableMatrix(m, k, layout % 2 == 1, gap, kDType, generator);
      const Tensor b =
          ReadableMatrix(k, n, layout / 2 == 1, gap, kDType, generator);
      const Tensor bias = Integers({n}, kDType, -4, 4, generator);
      const Tensor before = Integers({m, n}, kDType, -4, 4, generator);
      // What lies between the rows is someone else's.
      const Tensor wide = Tensor::Full({m, n + gap}, kNan, kDType);
      const Tensor out = wide.Slice(1, 0, n);
      if (start == Start::kAccumulates) out.CopyFrom(before);
      internal::Product<T> product;
      product.m = m;
      product.n = n;
      product.k = k;
      product.a = MatrixOf<T>(a);
      product.b = MatrixOf<T>(b);
      product.out = out.data<T>();
      product.out_row = n + gap;
      product.accumulates = start == Start::kAccumulates;
      if (start == Start::kBias) product.bias = bias.data<T>();
      internal::Multiply(product);
      std::vector<double> wanted;
      ForEachIndex({m, n}, [&](const Shape& at) {
        double sum = start == Start::kNothing       ? 0
                     : start == Start::kAccumulates ? At(before, at)
                                                    : At(bias, {at[1]});
        for (int64_t q = 0; q < k; ++q) {
          sum += At(a, {at[0], q}) * At(b, {q, at[1]});
        }
        wanted.push_back(sum);
      });
      ExpectValues(out, {m, n}, wanted, 0);
      EXPECT_THAT(Values(wide.Slice(1, n, n + gap)), Each(IsNan()));
      if (::testing::Test::HasFailure()) {
        FAIL() << m << " x " << k << " x " << n << ", layout " << layout
               << ", start " << static_cast<int>(start);
      }
    }
  }
}

// Own loops up to 2048 multiplications, sgemm and oneDNN's primitive above, in
// as many threads as are asked for.
TEST(Multiply, AgreesWithLoopsForEachWayAndNumberOfThreads) {
  Generator generator(1);
  const int64_t sizes[][3] = {
      {1, 1, 1},    {1, 5, 3},    {3, 1, 5},    {5, 7, 0},    {8, 16, 16},
      {8, 16, 17},  {1, 1, 4097}, {1, 700, 3},  {129, 1, 67}, {33, 31, 32},
      {33, 31, 65}, {65, 63, 67}, {17, 130, 70}};
  for (const int threads : {1, 2, 3}) {
    SetIntraOpThreads(threads);
    for (const auto& [m, n, k] : sizes) {
      ExpectMultiplies<float>(m, n, k, generator);
      if (threads == 1) ExpectMultiplies<double>(m, n, k, generator);
      if (HasFailure()) break;
    }
  }
  SetIntraOpThreads(1);
}

TEST(Multiply, GivesTheSameBitsEachTime) {
  Generator generator(2);
  for (const int threads : {1, 2}) {
    SetIntraOpThreads(threads);
    const Tensor a = Reals({70, 90}, DType::kF32, generator);
    const Tensor b = Reals({90, 50}, DType::kF32, generator);
    const Tensor first = MatMul(a, b);
    for (int i = 0; i < 5; ++i) ExpectSame(MatMul(a, b), first);
    // Views of the same numbers that are read as they lie.
    ExpectSame(MatMul(a.Clone(), b.Clone()), first);
  }
  SetIntraOpThreads(1);
}

TEST(MatMul, ReadsViewsThatBlasCannot) {
  Generator generator(3);
  const Tensor base = Integers({60}, DType::kF32, -4, 4, generator);
  for (int i = 0; i < 300; ++i) {
    // Strides of 0, negative ones, rows that overlap.
    const Tensor a = AnyView(base, {3, 4}, 5, generator);
    const Tensor b = AnyView(base, {4, 2}, 5, generator);
    ExpectSame(MatMul(a, b), MatMul(a.Clone(), b.Clone()));
    const Tensor batched = AnyView(base, {2, 1, 3, 4}, 4, generator);
    const Tensor other = AnyView(base, {3, 4, 2}, 4, generator);
    ExpectSame(MatMul(batched, other), MatMul(batched.Clone(), other.Clone()));
    const Tensor bias = AnyView(base, {3}, 5, generator);
    ExpectSame(Linear(b.Transpose(0, 1), a, bias),
               Linear(b.Transpose(0, 1).Clone(), a.Clone(), bias.Clone()));
  }
}

TEST(MatMul, SumsNothingTo0) {
  for (const DType dtype : kFloats) {
    const Tensor a = Tensor::Zeros({2, 0}, dtype);
    const Tensor b = Tensor::Zeros({0, 3}, dtype);
    ExpectSame(MatMul(a, b), Tensor::Zeros({2, 3}, dtype));
    ExpectSame(MatMul(a.View({1, 2, 0}).Expand({4, 2, 0}), b),
               Tensor::Zeros({4, 2, 3}, dtype));
    const Tensor out = Tensor::Full({2, 3}, 7, dtype);
    MatMulAdd_(out, a, b);
    ExpectSame(out, Tensor::Full({2, 3}, 7, dtype));
    MatMulInto(out, a, b);
    ExpectSame(out, Tensor::Zeros({2, 3}, dtype));
    const Tensor bias = Tensor::Arange(3, dtype);
    ExpectSame(Linear(a, b.Transpose(0, 1), bias), bias.Expand({2, 3}));
  }
}

// As many batches as there could be, and nothing in them.
TEST(MatMul, OfNothingTakesNoTime) {
  const Tensor a = Tensor::Zeros({int64_t{1} << 40, 0, 3});
  EXPECT_EQ(MatMul(a, Tensor::Zeros({3, 4})).shape(),
            (Shape{int64_t{1} << 40, 0, 4}));
}

TEST(MatMul, PassesNanAndInfinityOn) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {2, 40}) {  // Own loops, oneDNN.
      const Tensor a = Tensor::Zeros({n, n}, dtype);
      const Tensor b = Tensor::Ones({n, n}, dtype);
      b.Select(0, n - 1).Select(0, n - 1).Fill(kNan);
      const Tensor y = MatMul(a, b);  // 0 * NaN is NaN.
      EXPECT_TRUE(std::isnan(At(y, {0, n - 1})));
      EXPECT_EQ(At(y, {0, 0}), 0);
    }
  }
}

TEST(MatMulInto, UsesOperandsInItsOutputFromBefore) {
  const Tensor base = Tensor::Arange(8, DType::kF64);
  const auto at = [&](const Tensor& x, int64_t offset) {
    return x.Slice(0, offset, offset + 4).View({2, 2});
  };
  for (int64_t offset = 0; offset <= 4; ++offset) {
    for (const bool is_turned : {false, true}) {
      const Tensor memory = base.Clone();
      Tensor a = at(memory, offset);
      if (is_turned) a = a.Transpose(0, 1);
      const Tensor wanted = MatMul(a, at(base, 2));
      MatMulInto(at(memory, 2), a, at(memory, 2));
      ExpectSame(at(memory, 2), wanted);
    }
  }
}

TEST(Linear, TakesOneRowAndNone) {
  const auto weight = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const auto x = Tensor::FromVector<float>({1, -1});
  ExpectValues(Linear(x, weight, {}), {3}, {-1, -1, -1}, 0);
  ExpectValues(Linear(x, weight, Tensor::Ones({3})), {3}, {0, 0, 0}, 0);
  EXPECT_EQ(Linear(Tensor::Zeros({4, 0, 2}), weight, {}).shape(),
            (Shape{4, 0, 3}));
  EXPECT_EQ(Linear(x, Tensor::Zeros({0, 2}), Tensor::Zeros({0})).shape(),
            Shape{0});
}

TEST(Products, RefuseWhatDoesNotFitAndChangeNothing) {
  const Tensor a = Tensor::Ones({2, 3}), b = Tensor::Ones({3, 4});
  const Tensor out = Tensor::Zeros({2, 4});
  const Tensor i64 = Tensor::Ones({3, 3}, DType::kI64);
  const Tensor i32 = Tensor::Ones({3, 3}, DType::kI32);
  const std::function<void()> bad[] = {
      [&] { MatMul(i64, i64); },
      [&] { MatMul(i32, i32); },
      [&] { MatMul(i64.Slice(0, 0, 0), i64); },  // Without elements too.
      [&] {
        MatMul(a.View({1, 2, 3}), Tensor::Ones({0, 4}));
      },
      [&] {
        MatMul(Tensor::Ones({2, 2, 3}), Tensor::Ones({3, 3, 4}));
      },
      [&] { MatMul(Tensor::Ones({}), b); },
      [&] { MatMulInto(out.Transpose(0, 1), a, b); },
      [&] {
        MatMulInto(Tensor::Zeros({4, 2}), a, b);
      },
      [&] {
        MatMulInto(Tensor::Zeros({2, 4}, DType::kF64), a, b);
      },
      [&] {
        MatMulInto(Tensor::Zeros({2, 5}).Slice(1, 0, 4), a, b);
      },
      [&] {
        MatMulAdd_(Tensor::Zeros({1, 4}).Expand({2, 4}), a, b);
      },
      [&] {
        MatMulAdd_(out.View({1, 2, 4}), a.View({1, 2, 3}), b);
      },
      [&] { Linear(Tensor::Ones({}), b, {}); },
      [&] { Linear(a, b, {}); },
      [&] { Linear(b.Transpose(0, 1), a, Tensor::Ones({4})); },
      [&] {
        Linear(b.Transpose(0, 1), a, Tensor::Ones({1, 2}));
      },
      [&] { Linear(b.Transpose(0, 1), a, Tensor::Ones({2}, DType::kF64)); },
      [&] { Linear(i64, i64, {}); },
      [&] { Linear(i64.Slice(0, 0, 0), i64, {}); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  ExpectSame(out, Tensor::Zeros({2, 4}));
  EXPECT_EQ(out.version(), 0u);
}

// Own loops and oneDNN, of all that can be read and of what must be copied.
TEST(Products, AreTheSameOnADevice) {
  Generator generator(4);
  for (const DType dtype : kFloats) {
    for (const int64_t n : {3, 40}) {
      const Tensor a = Reals({n, 5 * n}, dtype, generator);
      const Tensor b = Reals({5 * n, n + 1}, dtype, generator);
      const Tensor batches = Reals({2, 1, n, 5 * n}, dtype, generator);
      const Tensor others = Reals({3, 5 * n, 2}, dtype, generator);
      const Tensor out = Reals({n, n + 1}, dtype, generator);
      const Tensor bias = Reals({n + 1}, dtype, generator);
      for (const Lie lie : kLies) {
        ExpectSameOnDevice("MatMul", {a, b, batches, others}, [&](auto in) {
          const Tensor x = ThatLies(lie, in[0]), y = ThatLies(lie, in[1]);
          const Tensor tall = ThatLies(lie, in[2]);
          return std::vector<Tensor>{MatMul(x, y), MatMul(tall, y),
                                     MatMul(tall, ThatLies(lie, in[3])),
                                     MatMul(x.Slice(1, 0, 0), y.Slice(0, 0, 0)),
                                     MatMul(x.Slice(0, 0, 0), y)};
        });
        ExpectSameOnDevice("Into and Add_", {a, b, out}, [&](auto in) {
          const Tensor x = ThatLies(lie, in[0]), y = ThatLies(lie, in[1]);
          const Tensor into = Tensor::EmptyLike(in[2]);
          MatMulInto(into, x, y);
          MatMulAdd_(in[2], x, y);
          return std::vector<Tensor>{into, in[2]};
        });
        ExpectSameOnDevice("Linear", {batches, b, bias}, [&](auto in) {
          const Tensor x = ThatLies(lie, in[0]);
          const Tensor weight = ThatLies(lie, in[1]).Transpose(0, 1);
          return std::vector<Tensor>{Linear(x, weight, {}),
                                     Linear(x, weight, ThatLies(lie, in[2])),
                                     Linear(x.Slice(2, 0, 0), weight, {})};
        });
      }
    }
  }
}

TEST(Products, OnADeviceUseOperandsInTheirOutputFromBefore) {
  const Tensor base = Tensor::Arange(8, DType::kF64);
  ExpectSameOnDevice("MatMulInto", {base}, [](auto in) {
    const Tensor out = in[0].Slice(0, 2, 6).View({2, 2});
    const uint64_t before = out.version();
    MatMulInto(out, in[0].Slice(0, 1, 5).View({2, 2}), out);
    EXPECT_GT(out.version(), before);
    return std::vector<Tensor>{in[0]};
  });
}

TEST(Products, OfTwoDevicesNameBoth) {
  device::testing::SimulatedDevices devices(1);
  const Tensor x = Tensor::Ones({2, 2});
  const Tensor there = x.To(Device(devices.context(), 0));
  const std::function<void()> bad[] = {
      [&] { MatMul(x, there); },
      [&] { MatMul(there, x); },
      [&] { MatMulInto(x, there, there); },
      [&] { MatMulInto(there, x, x); },
      [&] { MatMulAdd_(there, there, x); },
      [&] { Linear(there, x, {}); },
      [&] { Linear(x, there, {}); },
      [&] { Linear(there, there, Tensor::Ones({2})); },
  };
  for (const auto& call : bad) {
    EXPECT_THAT(Complaint(call), AllOf(HasSubstr("f32[2, 2] on simulated:0"),
                                       HasSubstr("on cpu")));
  }
}

TEST(PrimitiveCache, KeepsWhatWasMadeAndNothingThatFailed) {
  internal::PrimitiveCache<int> cache;
  int made = 0;
  const auto find = [&](int64_t key) {
    return cache.FindOrMake({key, 7}, [&] { return ++made; });
  };
  EXPECT_EQ(find(1), 1);
  EXPECT_EQ(find(2), 2);
  EXPECT_EQ(find(1), 1);
  EXPECT_ANY_THROW(cache.FindOrMake({3}, []() -> int { throw 1; }));
  EXPECT_EQ(cache.FindOrMake({3}, [] { return 33; }), 33);
  // Ever new keys do not grow it without end, and what was dropped is made
  // again.
  for (int64_t key = 10; key < 1000; ++key) find(key);
  const int before = made;
  find(1);
  EXPECT_EQ(made, before + 1);
}

// More shapes than are kept, twice.
TEST(MatMul, IsRightWhenPrimitivesAreMadeAgain) {
  for (int round = 0; round < 2; ++round) {
    for (int64_t n = 0; n < 300; ++n) {
      const Tensor a = Tensor::Ones({33, 70});
      const Tensor b = Tensor::Ones({n + 15, 70}).Transpose(0, 1);
      ASSERT_EQ(At(MatMul(a, b), {32, n + 14}), 70) << n;
    }
  }
}

}  // namespace
}  // namespace weft
