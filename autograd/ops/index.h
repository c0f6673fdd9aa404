// Choosing elements and rows of variables, and embeddings.
//
// Indices are i64 tensors, and are checked.

#ifndef WEFT_AUTOGRAD_OPS_INDEX_H_
#define WEFT_AUTOGRAD_OPS_INDEX_H_

#include <cstdint>
#include <optional>

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/embedding.h"

namespace weft {

// index [n]: the slices index[0], index[1], ... of `dim`.
Variable IndexSelect(const Variable& x, int64_t dim, const Tensor& index);

// result[i, j] = x[i, index[i, j]] for dim 1, and likewise.
Variable Gather(const Variable& x, int64_t dim, const Tensor& index);

// x with src added: result[i, index[i, j]] += src[i, j] for dim 1, and
// likewise.
Variable ScatterAdd(const Variable& x, int64_t dim, const Tensor& index,
                    const Variable& src);

// x with src added: result[..., index[i], ...] += src[..., i, ...].
Variable IndexAdd(const Variable& x, int64_t dim, const Tensor& index,
                  const Variable& src);

// The form of the gradient of an embedding table: all rows, or only those used.
enum class TableGradient { kDense, kSparse };

// weight [rows, dim], indices [...] -> [..., dim]. Row `padding`, if given,
// gets no gradient.
Variable Embedding(const Variable& weight, const Tensor& indices,
                   TableGradient gradient = TableGradient::kDense,
                   std::optional<int64_t> padding = std::nullopt);

// weight [rows, dim], indices [n], offsets [bags] -> [bags, dim]: the sum or
// mean of the rows that the indices from one offset to the next name.
Variable EmbeddingBag(const Variable& weight, const Tensor& indices,
                      const Tensor& offsets, BagMode mode,
                      TableGradient gradient = TableGradient::kDense);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_INDEX_H_
