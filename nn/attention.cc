#include "weft/nn/attention.h"

#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/nn/init.h"

namespace weft::nn {

MultiheadAttention::MultiheadAttention(int64_t dim, int64_t heads,
                                       Generator& random,
                                       const LayerOptions& options)
    : heads_(heads), out_(dim, dim, random, options) {
  if (heads < 1 || dim % heads != 0) {
    ThrowInvalidArgument("MultiheadAttention: ", heads,
                         " heads do not divide a dimension of ", dim);
  }
  in_weight_ =
      AddParameter("in_proj_weight",
                   XavierUniform({3 * dim, dim}, random, 1, options.dtype));
  if (options.bias) {
    in_bias_ =
        AddParameter("in_proj_bias", Tensor::Zeros({3 * dim}, options.dtype));
    out_.StateDict().at("bias").Fill(0);  // as PyTorch's
  }
  AddModule("out_proj", out_);
}

Variable MultiheadAttention::Forward(const Variable& x,
                                     const AttentionOptions& attention) {
  if (x.dim() != 3) {
    ThrowInvalidArgument("MultiheadAttention: x is ", x.value().Describe(),
                         "; wanted [n, T, dim]");
  }
  return Call({x}, [&](absl::Span<const Variable> inputs) {
    const Variable all = weft::Linear(inputs[0], in_weight_, in_bias_);
    return out_.Forward(SelfAttention(all, heads_, attention));
  });
}

}  // namespace weft::nn
