// Attention: softmax(q k^T * scale) v for many heads, and its gradients. f32,
// f64, f16 and bf16; of the last two the weights are f32.
//
// Operands may be views, such as a head's part of each row: where the elements
// of a row lie side by side they are read and written as they lie.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, dtypes or devices that do
// not fit.

#ifndef WEFT_TENSOR_OPS_ATTENTION_H_
#define WEFT_TENSOR_OPS_ATTENTION_H_

#include "weft/tensor/tensor.h"

namespace weft {

// Which keys a query sees, and what scores are multiplied by.
struct AttentionScores {
  double scale = 1;
  // Query i sees keys 0 ... i only.
  bool is_causal = false;
  // bool, broadcasts to [..., queries, keys]: true where the query may see the
  // key. A query that sees none gives 0. Undefined: all.
  Tensor mask;
};

// q [..., queries, d], k [..., keys, d], v [..., keys, e], leading sizes equal.
// Writes the result into `out` [..., queries, e], which may be a view but
// overlaps none of them, and returns the weights [..., queries, keys], which
// the gradients need.
Tensor AttentionInto(const Tensor& out, const Tensor& q, const Tensor& k,
                     const Tensor& v, const AttentionScores& scores);

// Where the gradients of q, k and v are written, each of the shape of its
// operand; undefined: not wanted. They may be views, and overlap nothing.
struct AttentionGradients {
  Tensor q;
  Tensor k;
  Tensor v;
};

// From grad = dL/dout and what AttentionInto was given and returned.
void AttentionBackwardInto(const AttentionGradients& out, const Tensor& grad,
                           const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& weights,
                           const AttentionScores& scores);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_ATTENTION_H_
