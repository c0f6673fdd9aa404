// The small transformer of split_transformer and whole_transformer, and the
// text that it learns.

#ifndef WEFT_EXAMPLES_DIST_AUTOGRAD_TRANSFORMER_H_
#define WEFT_EXAMPLES_DIST_AUTOGRAD_TRANSFORMER_H_

#include <cstdint>
#include <vector>

#include "weft/weft.h"

namespace transformer {

inline constexpr char kText[] =
    "this is the malt that lay in the house that jack built. this is the rat "
    "that ate the malt that lay in the house that jack built. ";
inline constexpr int64_t kLength = sizeof(kText) - 1, kWindow = 32, kDim = 32;
inline const weft::optimizer::AdamOptions kOptimizer{0.005};
inline constexpr int64_t kCharacters = 128, kBatch = 4, kParts = 4,
                         kTexts = 400;

// [n, kWindow, kDim] to the same: attention, then a layer of 4 times the width.
class Block : public weft::nn::Module {
 public:
  explicit Block(uint64_t seed) : random_(seed) {
    AddModule("norm1", norm1_);
    AddModule("attention", attention_);
    AddModule("norm2", norm2_);
    AddModule("wide", wide_);
    AddModule("narrow", narrow_);
  }
  weft::Variable Forward(const weft::Variable& in) {
    weft::AttentionOptions causal;
    causal.is_causal = true;
    const weft::Variable x =
        in + attention_.Forward(norm1_.Forward(in), causal);
    return x + narrow_.Forward(weft::Gelu(wide_.Forward(norm2_.Forward(x))));
  }

 private:
  weft::Generator random_;
  weft::nn::LayerNorm norm1_{{kDim}}, norm2_{{kDim}};
  weft::nn::MultiheadAttention attention_{kDim, /*heads=*/4, random_};
  weft::nn::Linear wide_{kDim, 4 * kDim, random_};
  weft::nn::Linear narrow_{4 * kDim, kDim, random_};
};
// What the trainer has of the model.
class Ends : public weft::nn::Module {
 public:
  Ends() {
    AddModule("characters", characters_);
    AddModule("places", places_);
    AddModule("output", output_);
  }
  weft::Variable Embed(const weft::Tensor& text) {
    return characters_.Forward(text) +
           places_.Forward(weft::Tensor::Arange(kWindow));
  }
  // The share of a micro-batch in the loss, from what the blocks have made of
  // it.
  weft::Variable Loss(const weft::Variable& x, const weft::Tensor& next) {
    const weft::Variable scores =
        Reshape(output_.Forward(x), {-1, kCharacters});
    return weft::CrossEntropy(scores, next.Reshape({-1})) * (1.0 / kParts);
  }

 private:
  weft::Generator random_{1};
  weft::nn::Embedding characters_{kCharacters, kDim, random_};
  weft::nn::Embedding places_{kWindow, kDim, random_};
  weft::nn::Linear output_{kDim, kCharacters, random_};
};

// Windows from the `number`th on, each character so much `further`.
inline weft::Tensor TextOf(int64_t number, int64_t further) {
  std::vector<int64_t> text;
  for (int64_t i = 0; i < kBatch * kWindow; ++i) {
    const int64_t at = (number * kBatch + i / kWindow) * 37 + i % kWindow;
    text.push_back(kText[(at + further) % kLength]);
  }
  return weft::Tensor::FromVector(text).Reshape({kBatch, kWindow});
}

}  // namespace transformer

#endif  // WEFT_EXAMPLES_DIST_AUTOGRAD_TRANSFORMER_H_
