#include "weft/tensor/cuda/operation_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "weft/tensor/ops/attention.h"
#include "weft/tensor/ops/conv.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/norm.h"
#include "weft/tensor/ops/pool.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/scan.h"
#include "weft/tensor/random.h"

namespace weft::internal::cuda {
namespace {

using Tensors = std::vector<Tensor>;
using Cases = std::vector<OperationCase>;

const DType kReals[] = {DType::kF32, DType::kF64};
const DType kNumbers[] = {DType::kF32, DType::kF64, DType::kI64, DType::kU8};

Tensor Numbers(const Shape& shape, DType dtype, uint64_t seed) {
  Generator generator(seed);
  return Normal(shape, 0, 3, generator, DType::kF64).To(dtype);
}

// [0, limit) of `shape`, many of them more than once.
Tensor Indices(const Shape& shape, int64_t limit, uint64_t seed) {
  Generator generator(seed);
  const Tensor indices = Tensor::Empty(shape, DType::kI64);
  for (int64_t& index : indices.span<int64_t>()) {
    index =
        static_cast<int64_t>(generator.NextBelow(static_cast<uint64_t>(limit)));
  }
  return indices;
}

std::string Named(const char* name, DType dtype) {
  return name + (" " + std::string(Name(dtype)));
}

void AddIndexing(Cases* cases) {
  for (const DType dtype : kAllDTypes) {
    cases->push_back({Named("IndexSelect, Gather, OneHot, triangles", dtype),
                      0,
                      {Numbers({5, 7, 3}, dtype, 1), Indices({11}, 7, 2),
                       Indices({3, 4, 6}, 5, 3)},
                      [dtype](const Tensors& in) -> Tensors {
                        const Tensor turned = in[0].Transpose(0, 2);
                        return {IndexSelect(in[0], 1, in[1]),
                                IndexSelect(turned, 1, in[1]),
                                Gather(in[0], 0, in[2].Slice(2, 0, 3)),
                                Gather(turned, 2, in[2]),
                                OneHot(in[2], 5, dtype),
                                Tril(in[0]),
                                Tril(turned, 1),
                                Triu(in[0], -2),
                                Triu(turned)};
                      }});
  }
  for (const DType dtype : kNumbers) {
    // In the CPU's order, and so without a tolerance.
    cases->push_back(
        {Named("IndexAdd_, ScatterAdd_", dtype),
         0,
         {Numbers({5, 7, 3}, dtype, 4), Indices({131}, 7, 5),
          Numbers({5, 131, 3}, dtype, 6), Indices({3, 4, 60}, 5, 7),
          Numbers({60, 4, 3}, dtype, 8), Numbers({9}, dtype, 9),
          Indices({1000}, 9, 10), Numbers({1000}, dtype, 11)},
         [](const Tensors& in) -> Tensors {
           IndexAdd_(in[0], 1, in[1], in[2]);
           const Tensor turned = in[0].Transpose(0, 2);
           ScatterAdd_(turned, 2, in[3], in[4].Transpose(0, 2));
           ScatterAdd_(in[5], 0, in[6], in[7]);
           ScatterAdd_(in[5], 0, in[6].Slice(0, 0, 0), in[7].Slice(0, 0, 0));
           return {in[0], in[5]};
         }});
  }
}

void AddEmbeddings(Cases* cases) {
  for (const DType dtype : kReals) {
    const Tensor offsets = Tensor::FromVector<int64_t>({0, 3, 3, 20, 40});
    cases->push_back(
        {Named("Embedding and bags", dtype),
         4,
         {Numbers({13, 5}, dtype, 12), Indices({40}, 13, 13), offsets,
          Numbers({40}, dtype, 14), Numbers({5, 5}, dtype, 15),
          Numbers({40, 5}, dtype, 16), Numbers({13, 5}, dtype, 17)},
         [](const Tensors& in) -> Tensors {
           Tensors results = {Embedding(in[0], in[1].View({5, 8}))};
           for (const BagMode mode : {BagMode::kSum, BagMode::kMean}) {
             results.push_back(EmbeddingBag(in[0], in[1], in[2], mode));
             results.push_back(
                 EmbeddingBagBackward(in[4], in[1], in[2], mode, 13).values);
           }
           results.push_back(
               EmbeddingBag(in[0], in[1], in[2], BagMode::kSum, in[3]));
           results.push_back(EmbeddingBagBackward(in[4], in[1], in[2],
                                                  BagMode::kSum, 13, in[3])
                                 .values);
           AddRows_(in[6], 1, {in[1], in[5], 13});
           results.push_back(in[6]);
           results.push_back(ToDense({in[1], in[5], 13}));
           return results;
         }});
    // Products of 5 terms, which may cancel.
    cases->push_back(
        {Named("gradients of scales", dtype),
         32,
         {Numbers({5, 5}, dtype, 15), Numbers({13, 5}, dtype, 12),
          Indices({40}, 13, 13), offsets},
         [](const Tensors& in) -> Tensors {
           return {EmbeddingBagBackwardScales(in[0], in[1], in[2], in[3])};
         }});
  }
}

void AddScans(Cases* cases) {
  for (const DType dtype : kNumbers) {
    const bool is_real = IsFloating(dtype);
    // Terms of one sign: a sum is as large as any part of it.
    const Tensor x = is_real ? Square(Numbers({37, 67}, dtype, 18))
                             : Numbers({37, 67}, dtype, 18);
    cases->push_back({Named("Cumsum", dtype),
                      is_real ? 16.0 : 0.0,
                      {x},
                      [dtype](const Tensors& in) -> Tensors {
                        Tensors results;
                        const Tensor turned = in[0].Transpose(0, 1);
                        for (const Tensor& x : {in[0], turned}) {
                          for (const int64_t dim : {0, 1}) {
                            results.push_back(Cumsum(x, dim));
                            if (dtype == DType::kU8) continue;
                            results.push_back(CumsumBackward(x, dim));
                          }
                        }
                        return results;
                      }});
    Tensor y = Numbers({7, 67}, dtype, 19).Clone();  // many equal integers
    if (is_real) y.Select(0, 2).Slice(0, 3, 5).Fill(std::nan(""));
    cases->push_back(
        {Named("TopK", dtype), 0, {y}, [](const Tensors& in) -> Tensors {
           Tensors results;
           for (const int64_t dim : {0, 1}) {
             for (const bool is_largest : {true, false}) {
               const TopKResult best = TopK(in[0], 5, dim, is_largest);
               results.push_back(best.values);
               results.push_back(best.indices);
             }
           }
           return results;
         }});
  }
}

void AddLogic(Cases* cases) {
  for (const DType dtype : kAllDTypes) {
    cases->push_back({Named("Equal", dtype),
                      0,
                      {Numbers({31, 67}, dtype, 20), Numbers({67}, dtype, 21)},
                      [](const Tensors& in) -> Tensors {
                        return {Equal(in[0], in[1]), NotEqual(in[0], in[1])};
                      }});
  }
  cases->push_back({"logic",
                    0,
                    {Numbers({31, 67}, DType::kI64, 22).To(DType::kBool),
                     Numbers({67}, DType::kI64, 23).To(DType::kBool)},
                    [](const Tensors& in) -> Tensors {
                      const Tensor turned = in[0].Transpose(0, 1);
                      return {LogicalAnd(in[0], in[1]), LogicalOr(in[0], in[1]),
                              LogicalNot(turned), Sum(turned, {0}),
                              MaskedFill(in[0].To(DType::kF32), in[1], 3)};
                    }});
  cases->push_back(
      {"u8",
       0,
       {Abs(Numbers({31, 67}, DType::kI64, 24)).To(DType::kU8),
        Add(Abs(Numbers({67}, DType::kI64, 25)), 1).To(DType::kU8)},
       [](const Tensors& in) -> Tensors {
         const Tensor& a = in[0];
         const Tensor& b = in[1];
         const Tensor c = a.Clone();
         Add_(c, b);
         Mul_(c, 3);
         return {Add(a, b),       Sub(a, b),
                 Mul(a, b),       Div(a, b),
                 Maximum(a, b),   Minimum(a, b),
                 Less(a, b),      Neg(a),
                 Abs(a),          Sign(a),
                 Square(a),       Relu(a),
                 Clamp(a, 1, 2),  Add(a, 3),
                 Sub(9, a),       Sum(a, {0}),
                 Max(a, {1}),     Min(a, {0}),
                 ArgMax(a, 1),    ArgMin(a, 0),
                 Greater(a, 2.0), c};
       }});
}

Tensors OfRows(const RowNormResult& y, const NormGradients& gradients) {
  Tensors results = {y.y, y.inverse, gradients.x};
  for (const Tensor& x : {y.mean, gradients.weight, gradients.bias}) {
    if (x.defined()) results.push_back(x);
  }
  return results;
}

void AddNorms(Cases* cases) {
  for (const DType dtype : kReals) {
    cases->push_back(
        {Named("LayerNorm, RmsNorm", dtype),
         256,
         {Numbers({6, 7, 35}, dtype, 26), Numbers({7, 35}, dtype, 27),
          Numbers({7, 35}, dtype, 28), Numbers({6, 7, 35}, dtype, 29)},
         [](const Tensors& in) -> Tensors {
           Tensors results;
           const auto add = [&](const Tensors& more) {
             results.insert(results.end(), more.begin(), more.end());
           };
           const Shape whole = {7, 35}, last = {35};
           const Tensor w = in[1].Select(0, 2), b = in[2].Select(0, 3);
           const RowNormResult all = LayerNorm(in[0], whole, in[1], in[2]);
           add(OfRows(all,
                      RowNormBackward(in[3], in[0], all, whole, in[1], true)));
           const RowNormResult bare = LayerNorm(in[0], last, {}, {});
           add(OfRows(bare,
                      RowNormBackward(in[3], in[0], bare, last, {}, false)));
           const RowNormResult rms = RmsNorm(in[0], last, w);
           add(OfRows(rms, RowNormBackward(in[3], in[0], rms, last, w, false)));
           const RowNormResult biased = LayerNorm(in[0], last, {}, b);
           add(OfRows(biased,
                      RowNormBackward(in[3], in[0], biased, last, {}, true)));
           return results;
         }});
    cases->push_back(
        {Named("BatchNorm", dtype),
         256,
         {Numbers({6, 5, 4, 9}, dtype, 30), Numbers({5}, dtype, 31),
          Numbers({5}, dtype, 32), Numbers({6, 5, 4, 9}, dtype, 33),
          Numbers({5, 2}, dtype, 34)},
         [](const Tensors& in) -> Tensors {
           Tensors results;
           const auto add = [&](const Tensor& x, const Tensor& grad,
                                const Tensor& weight, const Tensor& bias,
                                bool of_batch) {
             const ChannelMoments moments =
                 of_batch ? MomentsOf(x)
                          : ChannelMoments{in[4].Select(1, 0),
                                           Square(in[4]).Select(1, 1), 1};
             const BatchNormResult y = BatchNorm(
                 x, moments.mean, moments.variance, weight, bias, 1e-2);
             const NormGradients g = BatchNormBackward(
                 grad, x, y, weight, bias.defined(), of_batch);
             for (const Tensor& made : {moments.mean, moments.variance, y.y,
                                        y.inverse, g.x, g.weight, g.bias}) {
               if (made.defined()) results.push_back(made);
             }
           };
           // Channels beside each other, too.
           const Tensor x = in[0].Transpose(1, 3).Transpose(1, 2);
           const Tensor last = x.Contiguous().Transpose(1, 2).Transpose(1, 3);
           for (const bool of_batch : {true, false}) {
             add(in[0], in[3], in[1], in[2], of_batch);
             add(in[0], in[3], {}, {}, of_batch);
             add(last, in[3], in[1], {}, of_batch);
             add(in[0].Select(3, 2), in[3].Select(3, 0), {}, in[2], of_batch);
           }
           return results;
         }});
  }
}

void AddLosses(Cases* cases) {
  for (const DType dtype : kReals) {
    for (const Reduction reduction :
         {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      cases->push_back(
          {Named("losses", dtype),
           64,
           {Numbers({31, 13}, dtype, 35), Sigmoid(Numbers({31, 13}, dtype, 36)),
            Indices({31}, 13, 37), Numbers({31, 13}, dtype, 38)},
           [reduction](const Tensors& in) -> Tensors {
             const Tensor x = in[0], t = in[1];
             const Tensor grad = reduction == Reduction::kNone
                                     ? in[3]
                                     : in[3].Select(0, 0).Select(0, 0);
             const Tensor of_row =
                 reduction == Reduction::kNone ? in[3].Select(1, 2) : grad;
             return {BceWithLogits(x, t, reduction),
                     BceWithLogitsBackward(grad, x, t, reduction),
                     MseLoss(x, t, reduction),
                     MseLossBackward(grad, x, t, reduction),
                     HuberLoss(x, t, 0.7, reduction),
                     HuberLossBackward(grad, x, t, 0.7, reduction),
                     KlDivLoss(x, t, reduction),
                     KlDivLossBackward(grad, t, reduction),
                     NllLoss(x, in[2], reduction),
                     NllLoss(in[3].Transpose(0, 1).Contiguous().Transpose(0, 1),
                             in[2], reduction),
                     NllLossBackward(of_row, in[2], x.shape(), reduction)};
           }});
    }
  }
}

void AddRandom(Cases* cases) {
  for (const DType dtype : kReals) {
    cases->push_back(
        {Named("random numbers", dtype),
         0,
         {Tensor::Zeros({3})},
         [dtype](const Tensors& in) -> Tensors {
           const Device device = in[0].device();
           Generator generator(uint64_t{0x8000000000000007}, 0xFFFFFFFFFFFFF);
           (void)generator.NextU32();  // from within a block on
           const Tensor a = Uniform({31, 7}, -1, 3, generator, dtype, device);
           const Tensor b = Bernoulli({1001}, 0.3, generator, device);
           const Tensor c = Uniform({0}, 0, 1, generator, dtype, device);
           const Tensor place =
               Tensor::Full({}, static_cast<double>(generator.position()),
                            DType::kI64, device);
           return {a, b, c, place,
                   Uniform({5}, 2, 2, generator, dtype, device)};
         }});
    cases->push_back(
        {Named("normal numbers", dtype),
         8,
         {Tensor::Zeros({3})},
         [dtype](const Tensors& in) -> Tensors {
           Generator generator(3);
           const Tensor a =
               Normal({1001}, 1, 2, generator, dtype, in[0].device());
           return {a, Uniform({3}, 0, 1, generator, dtype, in[0].device())};
         }});
  }
}

void AddPools(Cases* cases) {
  Pool2dOptions wide;
  wide.kernel = {3, 2};
  wide.stride = {2, 1};
  wide.padding = {1, 1};
  for (const DType dtype : kReals) {
    for (const Pool2dOptions& options : {Pool2dOptions(), wide}) {
      Tensor x = Numbers({2, 3, 8, 7}, dtype, 40).Clone();
      x.Select(0, 1).Select(0, 2).Select(0, 3).Fill(std::nan(""));
      const Shape pooled = MaxPool2d(x, options).values.shape();
      cases->push_back(
          {Named("pooling", dtype),
           0,
           {x, Numbers({2, 3, 8, 7}, dtype, 41), Numbers(pooled, dtype, 42)},
           [options](const Tensors& in) -> Tensors {
             const MaxPool2dResult max = MaxPool2d(in[0], options);
             return {max.values, max.indices,
                     MaxPool2dBackward(in[2], max.indices, in[0].shape()),
                     AvgPool2d(in[1], options),
                     AvgPool2dBackward(in[2], in[1].shape(), options)};
           }});
    }
  }
}

void AddConvolutions(Cases* cases) {
  for (const DType dtype : kReals) {
    cases->push_back(
        {Named("Conv2d", dtype),
         4096,
         {Numbers({2, 3, 9, 8}, dtype, 43), Numbers({4, 3, 3, 2}, dtype, 44),
          Numbers({4}, dtype, 45), Numbers({2, 4, 5, 8}, dtype, 46)},
         [](const Tensors& in) -> Tensors {
           Conv2dOptions options;
           options.stride = {2, 1};
           options.padding = {1, 1};
           options.dilation = {1, 2};
           Conv2dGradients to;
           to.x = Tensor::EmptyLike(in[0]);
           to.weight = Tensor::EmptyLike(in[1]);
           to.bias = Tensor::EmptyLike(in[2]);
           Conv2dBackwardInto(to, in[3], in[0], in[1], options);
           Conv2dGradients alone;
           alone.weight = Tensor::EmptyLike(in[1]);
           Conv2dBackwardInto(alone, in[3], in[0], in[1], options);
           return {Conv2d(in[0], in[1], in[2], options),
                   Conv2d(in[0], in[1], {}, options),
                   to.x,
                   to.weight,
                   to.bias,
                   alone.weight};
         }});
  }
}

Tensors Attend(const Tensors& in, const AttentionScores& options) {
  // Heads lie as a model has them: [batch, tokens, heads, d] turned.
  const Tensor q = in[0].Transpose(1, 2), k = in[1].Transpose(1, 2);
  const Tensor v = in[2].Transpose(1, 2), grad = in[3].Transpose(1, 2);
  const Tensor out = Tensor::EmptyLike(in[3]).Transpose(1, 2);
  const Tensor weights = AttentionInto(out, q, k, v, options);
  AttentionGradients to = {Tensor::EmptyLike(in[0]).Transpose(1, 2),
                           Tensor::EmptyLike(in[1]).Transpose(1, 2),
                           Tensor::EmptyLike(in[2]).Transpose(1, 2)};
  AttentionBackwardInto(to, grad, q, k, v, weights, options);
  AttentionGradients key_alone = {{}, Tensor::EmptyLike(k), {}};
  AttentionBackwardInto(key_alone, grad, q, k, v, weights, options);
  return {out, weights, to.q, to.k, to.v, key_alone.k};
}

void AddAttention(Cases* cases) {
  for (const DType dtype : kReals) {
    const Tensors inputs = {
        Numbers({2, 7, 3, 5}, dtype, 47), Numbers({2, 9, 3, 5}, dtype, 48),
        Numbers({2, 9, 3, 4}, dtype, 49), Numbers({2, 7, 3, 4}, dtype, 50),
        Greater(Numbers({2, 1, 7, 9}, DType::kF64, 51), 0)};
    for (const bool is_causal : {false, true}) {
      for (const bool has_mask : {false, true}) {
        cases->push_back({Named("attention", dtype), 4096, inputs,
                          [is_causal, has_mask](const Tensors& in) {
                            AttentionScores options;
                            options.scale = 0.4;
                            options.is_causal = is_causal;
                            if (has_mask) options.mask = in[4];
                            return Attend(in, options);
                          }});
      }
    }
  }
}

}  // namespace

double UlpsBetween(double found, double wanted, DType dtype) {
  if (std::isnan(found) && std::isnan(wanted)) return 0;
  if (found == wanted) return 0;
  const double size = std::max(1.0, std::fabs(wanted));
  const double ulp = std::ldexp(std::exp2(std::floor(std::log2(size))),
                                dtype == DType::kF32 ? -23 : -52);
  const double ulps = std::fabs(found - wanted) / ulp;
  return std::isnan(ulps) ? std::numeric_limits<double>::infinity() : ulps;
}

std::vector<OperationCase> OperationCases() {
  Cases cases;
  AddIndexing(&cases);
  AddEmbeddings(&cases);
  AddScans(&cases);
  AddLogic(&cases);
  AddNorms(&cases);
  AddLosses(&cases);
  AddRandom(&cases);
  AddPools(&cases);
  AddConvolutions(&cases);
  AddAttention(&cases);
  return cases;
}

}  // namespace weft::internal::cuda
