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
  const int64_t n = x.size(0), t = x.size(1), dim = x.size(2);
  // [3, n, heads, T, dim / heads]
  const Variable all = Permute(Reshape(weft::Linear(x, in_weight_, in_bias_),
                                       {n, t, 3, heads_, dim / heads_}),
                               {2, 0, 3, 1, 4});
  const Variable mixed = ScaledDotProductAttention(
      Select(all, 0, 0), Select(all, 0, 1), Select(all, 0, 2), attention);
  return out_.Forward(Reshape(Permute(mixed, {0, 2, 1, 3}), {n, t, dim}));
}

}  // namespace weft::nn
