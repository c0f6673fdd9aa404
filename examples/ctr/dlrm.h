// Dlrm: a recommender's network. Source: Naumov and others, "Deep Learning
// Recommendation Model for Personalization and Recommendation Systems", 2019.
//
// A bottom MLP makes a vector of the dense inputs; the products of each two of
// that vector and the embeddings, and the vector, go through a top MLP. Beside
// that the first number of each embedding counts as a weight of its category,
// as in a logistic regression: what one category says by itself need not be
// learned through products (Cheng and others, "Wide & Deep Learning", 2016).

#ifndef WEFT_EXAMPLES_CTR_DLRM_H_
#define WEFT_EXAMPLES_CTR_DLRM_H_

#include <cstdint>
#include <vector>

#include "weft/weft.h"

namespace example {

class Dlrm : public weft::nn::Module {
 public:
  static constexpr int64_t kDense = 13;
  static constexpr int64_t kFields = 26;
  static constexpr int64_t kDim = 16;  // of an embedding

  explicit Dlrm(weft::Generator& random) {
    bottom_.Add<weft::nn::Linear>(kDense, 32, random);
    bottom_.Add<weft::nn::Relu>();
    bottom_.Add<weft::nn::Linear>(32, kDim, random);
    bottom_.Add<weft::nn::Relu>();
    top_.Add<weft::nn::Linear>(kDim + kPairs, 64, random);
    top_.Add<weft::nn::Relu>();
    top_.Add<weft::nn::Linear>(64, 1, random);
    AddModule("bottom", bottom_);
    AddModule("top", top_);
    std::vector<int64_t> pairs;
    for (int64_t i = 0; i < kVectors; ++i) {
      for (int64_t j = i + 1; j < kVectors; ++j) {
        pairs.push_back(i * kVectors + j);
      }
    }
    pairs_ = weft::Tensor::FromVector<int64_t>(pairs);
  }

  // dense [n, 13] and embeddings [n, 26, 16] -> logits [n].
  weft::Variable Forward(const weft::Tensor& dense,
                         const weft::Variable& embeddings) {
    const int64_t n = dense.size(0);
    const weft::Variable x = bottom_.Forward(weft::Variable(dense));
    const weft::Variable all =
        weft::Concat({Unsqueeze(x, 1), embeddings}, 1);  // [n, 27, 16]
    const weft::Variable products = MatMul(all, Transpose(all, 1, 2));
    const weft::Variable pairs =
        IndexSelect(Reshape(products, {n, kVectors * kVectors}), 1, pairs_);
    const weft::Variable deep =
        Reshape(top_.Forward(weft::Concat({x, pairs}, 1)), {n});
    const weft::Variable wide = Sum(Select(embeddings, 2, 0), {1});
    return deep + wide;
  }

 private:
  static constexpr int64_t kVectors = 1 + kFields;
  static constexpr int64_t kPairs = kVectors * (kVectors - 1) / 2;

  weft::nn::Sequential bottom_, top_;
  weft::Tensor pairs_;
};

}  // namespace example

#endif  // WEFT_EXAMPLES_CTR_DLRM_H_
