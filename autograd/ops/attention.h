// Attention, and products named by letters.

#ifndef WEFT_AUTOGRAD_OPS_ATTENTION_H_
#define WEFT_AUTOGRAD_OPS_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/ops/einsum.h"

namespace weft {

struct AttentionOptions {
  // Query i sees keys 0 ... i only.
  bool is_causal = false;
  // bool, broadcasts to [..., queries, keys]: true where the query may see the
  // key. A query that sees none gives 0. Undefined: all.
  Tensor mask;
  // Scores are multiplied by it; 1 / sqrt(d) if none.
  std::optional<double> scale;
};

// softmax(query key^T * scale) value: query [..., queries, d], key [..., keys,
// d], value [..., keys, e], leading sizes equal -> [..., queries, e]. Keeps the
// weights [..., queries, keys] for the gradient.
//
// Throws Error kInvalidArgument for shapes that do not fit.
// Source: Vaswani et al., "Attention is all you need", 2017, (1).
Variable ScaledDotProductAttention(const Variable& query, const Variable& key,
                                   const Variable& value,
                                   const AttentionOptions& options = {});

// The same for each head, where one product has made all operands: each row of
// `projected` [n, T, 3 * heads * d] holds its query, its key and its value, of
// all heads one after another -> [n, T, heads * d], the heads side by side. The
// mask broadcasts to [n, heads, T, T]. Nothing is copied to bring the heads
// apart.
//
// Throws Error kInvalidArgument for shapes that do not fit.
Variable SelfAttention(const Variable& projected, int64_t heads,
                       const AttentionOptions& options = {});

// As that of tensors (weft/tensor/ops/einsum.h).
Variable Einsum(absl::string_view equation, const Variable& a);
Variable Einsum(absl::string_view equation, const Variable& a,
                const Variable& b);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_ATTENTION_H_
