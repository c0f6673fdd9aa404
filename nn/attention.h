// MultiheadAttention: self-attention with several heads.
//
// Source: Vaswani et al., "Attention is all you need", 2017, section 3.2.2.

#ifndef WEFT_NN_ATTENTION_H_
#define WEFT_NN_ATTENTION_H_

#include <cstdint>

#include "weft/autograd/ops/attention.h"
#include "weft/autograd/variable.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/tensor/random.h"

namespace weft::nn {

// Parameters have the names and shapes of PyTorch's MultiheadAttention with
// batch_first: in_proj_weight [3 * dim, dim], in_proj_bias [3 * dim],
// out_proj.weight [dim, dim], out_proj.bias [dim].
class MultiheadAttention final : public Module {
 public:
  // Throws Error kInvalidArgument unless `heads` divides `dim`.
  MultiheadAttention(int64_t dim, int64_t heads, Generator& random,
                     const LayerOptions& options = {});

  // x [n, T, dim] -> the same. `attention` as that of
  // ScaledDotProductAttention, its mask broadcasting to [n, heads, T, T].
  Variable Forward(const Variable& x, const AttentionOptions& attention = {});

 private:
  const int64_t heads_;
  Variable in_weight_;
  Variable in_bias_;
  Linear out_;
};

}  // namespace weft::nn

#endif  // WEFT_NN_ATTENTION_H_
