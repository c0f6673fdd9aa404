// What tests of modules share: a small language model, and names of parameters.

#ifndef WEFT_NN_NN_TEST_MODELS_H_
#define WEFT_NN_NN_TEST_MODELS_H_

#include <string>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/random.h"

namespace weft::nn {

inline constexpr uint64_t kSeed = 20;

class LanguageModel : public Module {
 public:
  explicit LanguageModel(Generator& random)
      : embedding_(11, 8, random, Padded(0)),
        norm1_({8}),
        attention_(8, 2, random),
        norm2_({8}),
        head_(embedding_.weight(), random, /*bias=*/false) {
    AddModule("embedding", embedding_);
    AddModule("norm1", norm1_);
    AddModule("attention", attention_);
    AddModule("norm2", norm2_);
    AddModule("head", head_);
  }
  Variable Forward(const Tensor& x) {
    const Variable h = embedding_.Forward(x);
    AttentionOptions causal;
    causal.is_causal = true;
    const Variable mixed = h + attention_.Forward(norm1_.Forward(h), causal);
    return Reshape(head_.Forward(norm2_.Forward(mixed)), {-1, 11});
  }

  static EmbeddingOptions Padded(int64_t row) {
    EmbeddingOptions options;
    options.padding = row;
    return options;
  }

 private:
  Embedding embedding_;
  LayerNorm norm1_;
  MultiheadAttention attention_;
  RmsNorm norm2_;
  Linear head_;
};

inline std::vector<std::string> Names(const Module& module) {
  std::vector<std::string> names;
  for (const NamedParameter& named : module.NamedParameters()) {
    names.push_back(named.name);
  }
  return names;
}

}  // namespace weft::nn

#endif  // WEFT_NN_NN_TEST_MODELS_H_
