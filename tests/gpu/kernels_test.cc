// Each operation that has a kernel gives on CUDA what it gives on the CPU,
// within a number of units in the last place. Skipped without a GPU.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/autograd/variable.h"
#include "weft/device/open.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/cuda/operation_cases.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/random.h"

namespace weft {
namespace {

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<device::OpenedDevice> opened = device::OpenDevice("cuda:0");
    if (!opened.ok()) GTEST_SKIP() << "no GPU: " << opened.status();
    context_ = opened->context;
  }

  Device cuda() const { return Device(*context_, 0); }

  // `function` of clones of `inputs` on the CPU, and of copies of them there.
  void ExpectSame(const std::string& name, double ulps,
                  const std::vector<Tensor>& inputs,
                  const Function& function) const {
    SCOPED_TRACE(name + " of " + inputs[0].Describe());
    std::vector<Tensor> here;
    std::vector<Tensor> there;
    for (const Tensor& input : inputs) {
      here.push_back(input.Clone());
      there.push_back(input.To(cuda()));
    }
    const std::vector<Tensor> wanted = function(here);
    std::vector<Tensor> found;
    try {
      found = function(there);
    } catch (const Error& error) {
      // The libraries that a machine with a GPU may lack.
      const std::string text(error.status().message());
      if (text.find("libcublasLt.so.13 of") != std::string::npos ||
          text.find("libcudnn.so.9 of") != std::string::npos) {
        GTEST_SKIP() << error.status();
      }
      FAIL() << error.status();
    }
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].shape(), wanted[i].shape());
      ASSERT_EQ(found[i].dtype(), wanted[i].dtype());
      EXPECT_EQ(found[i].device(), cuda());
      const auto f =
          found[i].To(Device::Cpu()).To(DType::kF64).ToVector<double>();
      const auto w = wanted[i].To(DType::kF64).ToVector<double>();
      for (size_t k = 0; k < f.size(); ++k) {
        ASSERT_LE(internal::cuda::UlpsBetween(f[k], w[k], wanted[i].dtype()),
                  ulps)
            << "result " << i << ", element " << k << ": found " << f[k]
            << ", wanted " << w[k];
      }
    }
  }

  std::shared_ptr<device::Context> context_;
};

// What lies otherwise than row by row, after it has come to a device.
std::vector<Tensor> Views(const Tensor& x) {
  return {x, x.Transpose(0, 1), x.Slice(1, 1, x.size(1) - 1)};
}

Function OfViews(std::function<Tensor(const Tensor&)> function) {
  return [function](const std::vector<Tensor>& in) {
    std::vector<Tensor> results;
    for (const Tensor& x : Views(in[0])) results.push_back(function(x));
    return results;
  };
}

Function OfPairs(std::function<Tensor(const Tensor&, const Tensor&)> function) {
  return [function](const std::vector<Tensor>& in) {
    std::vector<Tensor> results = {function(in[0], in[0].Select(0, 0))};
    const std::vector<Tensor> a = Views(in[0]);
    const std::vector<Tensor> b = Views(in[1]);
    for (size_t i = 0; i < a.size(); ++i) {
      results.push_back(function(a[i], b[i]));
    }
    return results;
  };
}

Tensor Numbers(const Shape& shape, DType dtype, uint64_t seed) {
  Generator generator(seed);
  return Normal(shape, 0, 3, generator, DType::kF64).To(dtype);
}

// Sums and products of small ones are exact.
Tensor Integers(const Shape& shape, DType dtype, uint64_t seed) {
  return Numbers(shape, DType::kI64, seed).To(dtype);
}

const DType kReals[] = {DType::kF32, DType::kF64};
const DType kNumbers[] = {DType::kF32, DType::kF64, DType::kI64};

struct Unary {
  const char* name;
  double ulps_f32;
  double ulps_f64;  // Below 0: not of reals only, but of i64, too, exact.
  std::function<Tensor(const Tensor&)> function;
};

// 0: what is rounded once. Others are as far apart as both are from the truth
// (tensor/ops/scalar_math.h, and for f64 and functions of the C library, CUDA's
// and glibc's manuals), times the size of x where it multiplies them; the CPU's
// may be fused multiply-adds, which CUDA's are not.
std::vector<Unary> Functions() {
  using T = const Tensor&;
  return {
      {"Neg", 0, -1, [](T x) { return Neg(x); }},
      {"Abs", 0, -1, [](T x) { return Abs(x); }},
      {"Sign", 0, -1, [](T x) { return Sign(x); }},
      {"Square", 0, -1, [](T x) { return Square(x); }},
      {"Relu", 0, -1, [](T x) { return Relu(x); }},
      {"Clamp", 0, -1, [](T x) { return Clamp(x, -1, 2); }},
      {"AddNumber", 0, -1, [](T x) { return Add(x, 3); }},
      {"SubNumber", 0, -1, [](T x) { return Sub(x, 3); }},
      {"NumberSub", 0, -1, [](T x) { return Sub(3, x); }},
      {"MulNumber", 0, -1, [](T x) { return Mul(x, 3); }},
      {"DivNumber", 0, -1, [](T x) { return Div(x, 3); }},
      {"NumberDiv", 0, 0, [](T x) { return Div(3, x); }},
      {"EqualNumber", 0, -1, [](T x) { return Equal(x, 1); }},
      {"LessNumber", 0, -1, [](T x) { return Less(x, 1); }},
      {"GreaterNumber", 0, -1, [](T x) { return Greater(x, 1); }},
      {"GreaterEqualNumber", 0, -1, [](T x) { return GreaterEqual(x, 1); }},
      {"Exp", 4, 2, [](T x) { return Exp(x); }},
      {"Log", 2, 2, [](T x) { return Log(x); }},
      {"Log1p", 2, 2, [](T x) { return Log1p(x); }},
      {"Sqrt", 0, 0, [](T x) { return Sqrt(x); }},
      {"Sigmoid", 6, 4, [](T x) { return Sigmoid(x); }},
      {"Tanh", 4, 3, [](T x) { return Tanh(x); }},
      {"Softplus", 8, 4, [](T x) { return Softplus(x); }},
      {"Sin", 3, 3, [](T x) { return Sin(x); }},
      {"Cos", 3, 3, [](T x) { return Cos(x); }},
      {"Pow", 8, 4, [](T x) { return Pow(x, 2.5); }},
      {"Silu", 8, 4, [](T x) { return Silu(x); }},
      {"Gelu", 16, 16, [](T x) { return Gelu(x, GeluKind::kExact); }},
      {"GeluTanh", 16, 16, [](T x) { return Gelu(x, GeluKind::kTanh); }},
  };
}

TEST_F(OnCuda, FunctionsOfOneTensor) {
  for (const Unary& unary : Functions()) {
    for (const DType dtype : kReals) {
      const double ulps =
          dtype == DType::kF32 ? unary.ulps_f32 : std::max(0.0, unary.ulps_f64);
      ExpectSame(unary.name, ulps, {Numbers({31, 67}, dtype, 1)},
                 OfViews(unary.function));
    }
    if (unary.ulps_f64 < 0) {
      ExpectSame(unary.name, 0, {Numbers({31, 67}, DType::kI64, 1)},
                 OfViews(unary.function));
    }
  }
}

TEST_F(OnCuda, FunctionsOfTwoTensors) {
  using T = const Tensor&;
  struct Binary {
    const char* name;
    bool has_integers;
    double ulps;
    std::function<Tensor(const Tensor&, const Tensor&)> function;
  };
  const std::vector<Binary> functions = {
      {"Add", true, 0, [](T a, T b) { return Add(a, b); }},
      {"Sub", true, 0, [](T a, T b) { return Sub(a, b); }},
      {"Mul", true, 0, [](T a, T b) { return Mul(a, b); }},
      {"Div", false, 0, [](T a, T b) { return Div(a, b); }},
      {"Maximum", true, 0, [](T a, T b) { return Maximum(a, b); }},
      {"Minimum", true, 0, [](T a, T b) { return Minimum(a, b); }},
      {"Equal", true, 0, [](T a, T b) { return Equal(a, b); }},
      {"NotEqual", true, 0, [](T a, T b) { return NotEqual(a, b); }},
      {"Less", true, 0, [](T a, T b) { return Less(a, b); }},
      {"LessEqual", true, 0, [](T a, T b) { return LessEqual(a, b); }},
      {"Greater", true, 0, [](T a, T b) { return Greater(a, b); }},
      {"GreaterEqual", true, 0, [](T a, T b) { return GreaterEqual(a, b); }},
      {"Where", true, 0, [](T a, T b) { return Where(Less(a, b), a, b); }},
      {"ReluBackward", false, 0, [](T a, T b) { return ReluBackward(a, b); }},
      {"SigmoidBackward", false, 1,
       [](T a, T b) { return SigmoidBackward(a, b); }},
      {"TanhBackward", false, 16, [](T a, T b) { return TanhBackward(a, b); }},
      {"SiluBackward", false, 128, [](T a, T b) { return SiluBackward(a, b); }},
      {"GeluBackward", false, 128,
       [](T a, T b) { return GeluBackward(a, b, GeluKind::kExact); }},
      {"GeluTanhBackward", false, 128,
       [](T a, T b) { return GeluBackward(a, b, GeluKind::kTanh); }},
  };
  for (const Binary& binary : functions) {
    for (const DType dtype : kNumbers) {
      if (dtype == DType::kI64 && !binary.has_integers) continue;
      ExpectSame(binary.name, binary.ulps,
                 {Numbers({31, 67}, dtype, 2), Numbers({31, 67}, dtype, 3)},
                 OfPairs(binary.function));
    }
  }
}

TEST_F(OnCuda, WritesInPlace) {
  for (const DType dtype : kNumbers) {
    ExpectSame("in place", 0,
               {Integers({31, 67}, dtype, 4), Integers({31}, dtype, 5)},
               [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                 const Tensor y = in[0].Transpose(0, 1);
                 Add_(y, in[1]);
                 Mul_(y, in[1]);
                 Sub_(y, in[1]);
                 Axpy_(y, 3, in[1]);
                 Add_(y, 2.0);
                 Mul_(y, 5.0);
                 Relu_(y);
                 y.Slice(0, 3, 9).Fill(4);
                 y.Select(1, 2).CopyFrom(in[1].Slice(0, 0, 1));
                 return {in[0]};
               });
  }
}

TEST_F(OnCuda, CopiesAndCasts) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      ExpectSame("Copy", 0, {Numbers({31, 67}, from, 6)},
                 [to](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                   return {in[0].To(to), in[0].Transpose(0, 1).To(to),
                           in[0].Transpose(0, 1).Contiguous()};
                 });
    }
  }
}

TEST_F(OnCuda, FoldsRows) {
  const std::vector<std::vector<int64_t>> all_dims = {{0}, {1}, {0, 1}};
  for (const DType dtype : kNumbers) {
    for (const auto& dims : all_dims) {
      // Added up in another order, but nothing cancels: the result is as large
      // as any part of it.
      ExpectSame("Sum", dtype == DType::kI64 ? 0 : 64,
                 {Square(Numbers({1031, 517}, dtype, 7))},
                 OfViews([&](const Tensor& x) { return Sum(x, dims); }));
      ExpectSame("Max", 0, {Numbers({1031, 517}, dtype, 7)},
                 OfViews([&](const Tensor& x) { return Max(x, dims); }));
      ExpectSame("Min", 0, {Numbers({1031, 517}, dtype, 7)},
                 OfViews([&](const Tensor& x) { return Min(x, dims); }));
    }
    for (const int64_t dim : {0, 1}) {
      ExpectSame("ArgMax", 0, {Numbers({1031, 517}, dtype, 7)},
                 OfViews([&](const Tensor& x) { return ArgMax(x, dim); }));
      ExpectSame("ArgMin", 0, {Numbers({1031, 517}, dtype, 7)},
                 OfViews([&](const Tensor& x) { return ArgMin(x, dim); }));
    }
  }
  for (const DType dtype : kReals) {
    ExpectSame("Mean", 64, {Square(Numbers({1031, 517}, dtype, 7))},
               OfViews([](const Tensor& x) { return Mean(x, {0}); }));
  }
}

TEST_F(OnCuda, Softmaxes) {
  for (const DType dtype : kReals) {
    for (const int64_t dim : {0, 1}) {
      ExpectSame("Softmax", 128,
                 {Numbers({67, 131}, dtype, 8), Numbers({67, 131}, dtype, 9)},
                 [dim](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                   const Tensor y = Softmax(in[0], dim);
                   const Tensor log_y = LogSoftmax(in[0], dim);
                   return {y, log_y, SoftmaxBackward(in[1], y, dim),
                           LogSoftmaxBackward(in[1], log_y, dim)};
                 });
    }
  }
}

TEST_F(OnCuda, CrossEntropies) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 67; ++i) labels.push_back(i % 7 == 0 ? -1 : i % 13);
  for (const DType dtype : kReals) {
    for (const Reduction reduction :
         {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      CrossEntropyOptions options;
      options.reduction = reduction;
      options.ignore_index = -1;
      options.label_smoothing = 0.1;
      ExpectSame(
          "CrossEntropy", 32,
          {Numbers({67, 13}, dtype, 10), Tensor::FromVector<int64_t>(labels)},
          [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
            const CrossEntropyResult result =
                CrossEntropy(in[0], in[1], options);
            return {result.loss, result.log_probs,
                    CrossEntropyBackward(result.loss, result.log_probs, in[1],
                                         options)};
          });
    }
  }
}

// Small integers, whose products are exact.
TEST_F(OnCuda, Products) {
  for (const DType dtype : kReals) {
    ExpectSame(
        "MatMul", 0,
        {Integers({33, 65}, dtype, 11), Integers({65, 17}, dtype, 12),
         Integers({5, 33, 65}, dtype, 13), Integers({5, 65, 17}, dtype, 14),
         Integers({33, 17}, dtype, 15), Integers({17}, dtype, 16)},
        [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
          const Tensor& out = in[4];
          MatMulAdd_(out, in[0], in[1]);
          const Tensor into = Tensor::EmptyLike(out);
          MatMulInto(into, in[0], in[1]);
          const Tensor weight = in[1].Transpose(0, 1);
          return {out,
                  into,
                  MatMul(in[0], in[1]),
                  MatMul(in[0].Transpose(0, 1), in[0]),
                  MatMul(in[1].Transpose(0, 1), in[0].Transpose(0, 1)),
                  MatMul(in[2], in[1]),
                  MatMul(in[2], in[3]),
                  MatMul(in[0], in[3]),
                  MatMul(in[0].Slice(1, 1, 40), in[1].Slice(0, 1, 40)),
                  Linear(in[0], weight, {}),
                  Linear(in[0], weight, in[5]),
                  Linear(in[2], weight, in[5].Contiguous())};
        });
  }
}

// Sums in f32, which are exact here, are rounded once.
TEST_F(OnCuda, ProductsOfHalves) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    ExpectSame("MatMul", 0,
               {Integers({33, 65}, dtype, 11), Integers({65, 17}, dtype, 12),
                Integers({5, 33, 65}, dtype, 13), Integers({33, 17}, dtype, 15),
                Integers({17}, dtype, 16)},
               [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                 MatMulAdd_(in[3], in[0], in[1]);
                 const Tensor turned =
                     in[2].Transpose(0, 2);  // no stride of rows is 1
                 return {in[3],
                         MatMul(in[0], in[1]),
                         MatMul(in[2], in[1]),
                         MatMul(turned, turned.Transpose(1, 2)),
                         Linear(in[0], in[1].Transpose(0, 1), {}),
                         Linear(in[0], in[1].Transpose(0, 1), in[4]),
                         Linear(in[2], in[1].Transpose(0, 1), in[4])};
               });
  }
}

// What the bodies of kernels give on the CPU in tensor/cuda:operations_test.
TEST_F(OnCuda, OperationCases) {
  for (const auto& one : internal::cuda::OperationCases()) {
    // nvcc's functions of the C library, and sums of other widths.
    ExpectSame(one.name, one.ulps == 0 ? 0 : 2 * one.ulps, one.inputs, one.run);
  }
}

struct Training {
  optimizer::RuleOptions rule;
  optimizer::ClipOptions clip;
  bool is_sparse;
};

std::vector<Training> Trainings() {
  optimizer::RmspropOptions centered;
  centered.centered = true;
  centered.momentum = 0.9;
  const std::vector<optimizer::RuleOptions> rules = {
      optimizer::SgdOptions{0.1},   optimizer::SgdOptions{0.1, 0.9, 0, 0.01},
      optimizer::AdamOptions{},     optimizer::AdamWOptions{},
      optimizer::AdagradOptions{},  optimizer::FtrlOptions{},
      optimizer::RmspropOptions{},  centered,
      optimizer::AdadeltaOptions{}, optimizer::LionOptions{},
      optimizer::LambOptions{},     optimizer::RowwiseAdagradOptions{}};
  std::vector<Training> trainings;
  for (const optimizer::RuleOptions& rule : rules) {
    for (const bool is_sparse : {false, true}) {
      if (is_sparse && RuleName(rule) == "lamb") continue;
      for (const optimizer::ClipOptions& clip :
           {optimizer::ClipOptions{}, optimizer::ClipOptions{0.5, 0},
            optimizer::ClipOptions{0, 2}}) {
        trainings.push_back({rule, clip, is_sparse});
      }
    }
  }
  return trainings;
}

Tensor Trained(const Training& training, const std::vector<Tensor>& in) {
  const Variable weights = Variable(in[0], true);
  optimizer::ParameterGroup group;
  group.rule = training.rule;
  group.clip = training.clip;
  group.lazy = training.is_sparse;
  group.parameters = {{"w", weights}};
  auto made = optimizer::Optimizer::Create({group});
  ThrowIfError(made.status());
  for (int step = 0; step < 3; ++step) {
    ThrowIfError((*made)->Apply([&](const nn::NamedParameter&) {
      return training.is_sparse
                 ? Gradient(SparseRows{in[2], in[1], in[0].size(0)})
                 : Gradient(in[1]);
    }));
  }
  return weights.value();
}

TEST_F(OnCuda, Optimizers) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 31; ++i) rows.push_back(i * i % 31);
  for (const Training& training : Trainings()) {
    for (const DType dtype : kReals) {
      const std::string name(RuleName(training.rule));
      const bool has_norm = training.clip.norm != 0 || name == "lamb" ||
                            name == "rowwise_adagrad";
      ExpectSame(name, has_norm ? 64 : 0,
                 {Numbers({31, 67}, dtype, 17), Numbers({31, 67}, dtype, 18),
                  Tensor::FromVector<int64_t>(rows)},
                 [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                   return {Trained(training, in)};
                 });
    }
  }
}

}  // namespace
}  // namespace weft
