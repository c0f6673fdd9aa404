// Embedding lookups, sums of them by bag, and their gradients, which are
// sparse: rows and where they belong. f32, f64, f16 and bf16.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, dtypes, indices or offsets
// that do not fit and for tensors of two devices. Indices and offsets of a
// device, which looks at them late, make it fail if they do not fit.

#ifndef WEFT_TENSOR_OPS_EMBEDDING_H_
#define WEFT_TENSOR_OPS_EMBEDDING_H_

#include "weft/tensor/tensor.h"

namespace weft {

// The gradient of a table of which few rows were used.
struct SparseRows {
  Tensor indices;    // i64 [n]: row numbers; coalesced: ascending, each once.
  Tensor values;     // [n, dim]
  int64_t rows = 0;  // The table's rows.
};

// Sums the values of equal indices. Sorts; O(n log n + n * dim). Throws for an
// index outside of [0, rows). Rows on a device are summed on the CPU: waits for
// them, and copies the sums back.
SparseRows Coalesce(const SparseRows& sparse);

// [rows, dim], the values of equal indices summed.
Tensor ToDense(const SparseRows& sparse);

// y[indices[i]] += alpha * values[i]; `y` [rows, dim]. Bumps y's version.
void AddRows_(const Tensor& y, double alpha, const SparseRows& sparse);

// weight [rows, dim], indices [...] -> [..., dim].
Tensor Embedding(const Tensor& weight, const Tensor& indices);
// From grad [..., dim]; not coalesced.
SparseRows EmbeddingBackward(const Tensor& grad, const Tensor& indices,
                             int64_t rows);

enum class BagMode { kSum, kMean };

// weight [rows, dim], indices [n], offsets [bags]: bag i holds the indices from
// offsets[i] to the next offset (the last: to n). offsets[0] is 0, they do not
// fall. `scales` [n] or undefined: what each row is multiplied by, only with
// kSum. An empty bag gives 0. -> [bags, dim].
Tensor EmbeddingBag(const Tensor& weight, const Tensor& indices,
                    const Tensor& offsets, BagMode mode,
                    const Tensor& scales = {});
// From grad [bags, dim]; one row for each of `indices`, not coalesced.
SparseRows EmbeddingBagBackward(const Tensor& grad, const Tensor& indices,
                                const Tensor& offsets, BagMode mode,
                                int64_t rows, const Tensor& scales = {});
// dL/dscales [n].
Tensor EmbeddingBagBackwardScales(const Tensor& grad, const Tensor& weight,
                                  const Tensor& indices, const Tensor& offsets);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_EMBEDDING_H_
