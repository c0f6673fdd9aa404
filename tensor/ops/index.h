// Choosing, scattering and joining parts of tensors. Any dtype, where not said
// otherwise. Indices are i64 and are checked: one outside throws; of a device,
// which looks at them late, it makes the device fail.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, dtypes or indices that do
// not fit and for tensors of two devices.

#ifndef WEFT_TENSOR_OPS_INDEX_H_
#define WEFT_TENSOR_OPS_INDEX_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/tensor/tensor.h"

namespace weft {

// index [n]: the slices index[0], index[1], ... of `dim`, joined along it.
Tensor IndexSelect(const Tensor& x, int64_t dim, const Tensor& index);

// y[..., index[i], ...] += src[..., i, ...]. Numbers. An index may repeat.
// Bumps y's version.
void IndexAdd_(const Tensor& y, int64_t dim, const Tensor& index,
               const Tensor& src);

// result[i, j] = x[i, index[i, j]] for dim 1, and likewise; `index` has x's
// dimensions, none larger but along `dim`.
Tensor Gather(const Tensor& x, int64_t dim, const Tensor& index);

// y[i, index[i, j]] += src[i, j] for dim 1, and likewise. Numbers. `src` has
// index's shape. Bumps y's version.
void ScatterAdd_(const Tensor& y, int64_t dim, const Tensor& index,
                 const Tensor& src);

// Joined along `dim`; all other sizes equal; at least one.
Tensor Concat(absl::Span<const Tensor> parts, int64_t dim);

// Along a new dimension `dim`; all shapes equal; at least one.
Tensor Stack(absl::Span<const Tensor> parts, int64_t dim);

// Views of x along `dim`: of `size` each, the last of what remains; of these
// sizes, whose sum is the dimension's; `chunks` parts of one size (rounded up),
// fewer if the dimension ends before.
std::vector<Tensor> Split(const Tensor& x, int64_t size, int64_t dim);
std::vector<Tensor> Split(const Tensor& x, absl::Span<const int64_t> sizes,
                          int64_t dim);
std::vector<Tensor> Chunk(const Tensor& x, int64_t chunks, int64_t dim);

// The sizes of those parts of a dimension of `n`.
Shape SplitSizes(int64_t n, int64_t size, absl::string_view where);
Shape ChunkSizes(int64_t n, int64_t chunks);

// x [..., rows, columns] where column - row <= diagonal (Tril) or >= diagonal
// (Triu), else 0.
Tensor Tril(const Tensor& x, int64_t diagonal = 0);
Tensor Triu(const Tensor& x, int64_t diagonal = 0);

// index [...] in [0, classes) -> [..., classes], 1 at the index, else 0.
Tensor OneHot(const Tensor& index, int64_t classes, DType dtype = DType::kF32);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_INDEX_H_
