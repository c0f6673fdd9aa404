// The launchers of rows.h and cross_entropy.h, run on the CPU by teams of
// threads, against the operations of the CPU.

#include "weft/tensor/cuda/rows.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/cuda/cross_entropy.h"
#include "weft/tensor/cuda/on_host.h"
#include "weft/tensor/cuda_operands.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/random.h"

namespace weft::internal::cuda {
namespace {

using HostLauncher = const char* (*)(const Call& call, OnHost& executor);

void RunOnHost(HostLauncher launch, const Operation& operation,
               const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(&tensor);
  OnHost executor;
  const char* const lack = launch(CallOf(operation, pointers), executor);
  ASSERT_EQ(lack, nullptr) << operation.name << ": " << lack;
}

// The two add up in other orders, and f32 in f64: they agree to some rounding
// errors of sums, which are below 32 here.
void ExpectNear(const Tensor& found, const Tensor& wanted) {
  ASSERT_EQ(found.shape(), wanted.shape());
  ASSERT_EQ(found.dtype(), wanted.dtype());
  const double tolerance =
      found.dtype() == DType::kF32 ? 32 * 0x1p-22 : 32 * 0x1p-50;
  const auto f = found.To(DType::kF64).ToVector<double>();
  const auto w = wanted.To(DType::kF64).ToVector<double>();
  for (size_t i = 0; i < f.size(); ++i) {
    if (std::isnan(w[i]) || std::isinf(w[i])) {
      EXPECT_EQ(std::isnan(f[i]), std::isnan(w[i])) << i;
      EXPECT_EQ(std::isinf(f[i]), std::isinf(w[i])) << i;
      continue;
    }
    EXPECT_NEAR(f[i], w[i], tolerance) << i;
  }
}

// [3, 4, 7] that lie in several ways.
std::vector<Tensor> Views(DType dtype, Generator& generator) {
  const auto draw = [&](const Shape& shape) {
    return Normal(shape, 0, 2, generator, DType::kF64).To(dtype);
  };
  return {draw({3, 4, 7}), draw({7, 4, 3}).Transpose(0, 2),
          draw({3, 9, 7}).Slice(1, 2, 6), draw({3, 1, 7}).Expand({3, 4, 7})};
}

const std::vector<std::vector<int64_t>> kDims = {{0},    {1},    {2}, {0, 1},
                                                 {1, 2}, {0, 2}, {}};

TEST(Rows, FoldsAnyDimensionsAsTheCpu) {
  Generator generator(1);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
    for (const Tensor& x : Views(dtype, generator)) {
      for (const auto& dims : kDims) {
        const Tensor sum = weft::Sum(x, dims, true);
        const Tensor found = Tensor::EmptyLike(sum);
        RunOnHost(&FoldDims<SumFold>, "Sum", {x, found});
        ExpectNear(found, sum);
        RunOnHost(&FoldDims<MaxFold>, "Max", {x, found});
        ExpectNear(found, weft::Max(x, dims, true));
        RunOnHost(&FoldDims<MinFold>, "Min", {x, found});
        ExpectNear(found, weft::Min(x, dims, true));
      }
    }
  }
}

TEST(Rows, FoldsNothingToTheStart) {
  const Tensor x = Tensor::Empty({0, 3});
  const Tensor found = Tensor::Full({1, 3}, 7);
  RunOnHost(&FoldDims<SumFold>, "Sum", {x, found});
  ExpectNear(found, Tensor::Zeros({1, 3}));
}

TEST(Rows, SumsOfF32AreRoundedOnce) {
  const Tensor x = Tensor::Full({100001}, 0.1);
  const Tensor found = Tensor::Empty({1});
  RunOnHost(&FoldDims<SumFold>, "Sum", {x, found});
  EXPECT_EQ(*found.data<float>(),
            static_cast<float>(static_cast<double>(0.1f) * 100001));
}

TEST(Rows, AddsUpSquaresInF64) {
  Generator generator(5);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Normal({3001}, 0, 2, generator, dtype);
    const Tensor found = Tensor::Empty({}, DType::kF64);
    RunOnHost(&cuda::SquaredNorm, "SquaredNorm", {x, found});
    EXPECT_NEAR(found.item<double>() / weft::SquaredNorm(x), 1, 1e-13);
  }
}

TEST(Rows, ChoosesAsTheCpuAlsoAmongEqualsAndNan) {
  Generator generator(2);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
    for (Tensor x : Views(dtype, generator)) {
      x = x.Clone();
      x.CopyFrom(Clamp(x, -2, 2));  // Many are equal.
      if (dtype != DType::kI64) {
        x.Select(0, 1).Select(0, 2).Slice(0, 3, 5).Fill(std::nan(""));
      }
      for (int64_t dim = 0; dim < 3; ++dim) {
        const Tensor most = weft::ArgMax(x, dim, true);
        const Tensor found = Tensor::EmptyLike(most);
        RunOnHost(&ArgBest<IsGreater>, "ArgMax", {x, found});
        EXPECT_EQ(found.ToVector<int64_t>(), most.ToVector<int64_t>());
        RunOnHost(&ArgBest<IsLess>, "ArgMin", {x, found});
        EXPECT_EQ(found.ToVector<int64_t>(),
                  weft::ArgMin(x, dim, true).ToVector<int64_t>());
      }
    }
  }
}

TEST(Rows, SoftmaxAlongAnyDimensionIsThatOfTheCpu) {
  Generator generator(3);
  const double lines[3][3] = {{1, 3, 28}, {3, 4, 7}, {12, 7, 1}};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Normal({3, 4, 7}, 0, 2, generator, dtype);
    const Tensor grad = Normal({3, 4, 7}, 0, 2, generator, dtype);
    for (int64_t dim = 0; dim < 3; ++dim) {
      const auto named = [&](const char* name) {
        return Operation(name, {lines[dim][0], lines[dim][1], lines[dim][2]});
      };
      const Tensor y = weft::Softmax(x, dim);
      const Tensor log_y = weft::LogSoftmax(x, dim);
      const Tensor found = Tensor::EmptyLike(x);
      RunOnHost(&cuda::Softmax<false>, named("Softmax"), {x, found});
      ExpectNear(found, y);
      RunOnHost(&cuda::Softmax<true>, named("LogSoftmax"), {x, found});
      ExpectNear(found, log_y);
      RunOnHost(&cuda::SoftmaxBackward<false>, named("SoftmaxBackward"),
                {grad, y, found});
      ExpectNear(found, weft::SoftmaxBackward(grad, y, dim));
      RunOnHost(&cuda::SoftmaxBackward<true>, named("LogSoftmaxBackward"),
                {grad, log_y, found});
      ExpectNear(found, weft::LogSoftmaxBackward(grad, log_y, dim));
    }
  }
}

Operation WithOptions(const char* name, const CrossEntropyOptions& options) {
  return {name,
          {static_cast<double>(options.reduction), options.label_smoothing,
           options.ignore_index.has_value() ? 1.0 : 0.0,
           static_cast<double>(options.ignore_index.value_or(0))}};
}

void CompareCrossEntropy(const Tensor& logits, const Tensor& targets,
                         const CrossEntropyOptions& options,
                         Generator& generator) {
  const CrossEntropyResult wanted =
      weft::CrossEntropy(logits, targets, options);
  const Tensor log_probs = Tensor::EmptyLike(logits);
  const Tensor losses = Tensor::Empty(targets.shape(), logits.dtype());
  const Tensor loss = options.reduction == Reduction::kNone
                          ? losses
                          : Tensor::Empty({}, logits.dtype());
  RunOnHost(&cuda::CrossEntropy, WithOptions("CrossEntropy", options),
            {logits, targets, log_probs, losses, loss});
  ExpectNear(log_probs, wanted.log_probs);
  ExpectNear(loss, wanted.loss);
  const Tensor grad =
      Normal(wanted.loss.shape(), 0, 2, generator, logits.dtype());
  const Tensor found = Tensor::EmptyLike(logits);
  RunOnHost(&cuda::CrossEntropyBackward,
            WithOptions("CrossEntropyBackward", options),
            {grad, wanted.log_probs, targets, found});
  ExpectNear(found, weft::CrossEntropyBackward(grad, wanted.log_probs, targets,
                                               options));
}

TEST(Rows, CrossEntropyIsThatOfTheCpu) {
  Generator generator(4);
  const Tensor targets =
      Tensor::FromVector<int64_t>({4, 0, 2, -100, 2, 1}, {2, 3});
  const Tensor classes =
      Tensor::FromVector<int64_t>({4, 0, 2, 3, 2, 1}, {2, 3});
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor logits = Normal({2, 3, 5}, 0, 3, generator, dtype);
    for (const Reduction reduction :
         {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      for (const double smoothing : {0.0, 0.1}) {
        CrossEntropyOptions options;
        options.reduction = reduction;
        options.label_smoothing = smoothing;
        CompareCrossEntropy(logits, classes, options, generator);
        options.ignore_index = -100;
        CompareCrossEntropy(logits, targets, options, generator);
      }
    }
  }
}

}  // namespace
}  // namespace weft::internal::cuda
