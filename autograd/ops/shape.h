// Rearranging variables: views where the tensor operation is one, and Concat.

#ifndef WEFT_AUTOGRAD_OPS_SHAPE_H_
#define WEFT_AUTOGRAD_OPS_SHAPE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/tensor_index.h"

namespace weft {

// One size may be -1: what remains.
Variable Reshape(const Variable& x, const Shape& shape);
// Joins dimensions [begin, dim()) into one.
Variable FlattenFrom(const Variable& x, int64_t begin);
Variable Transpose(const Variable& x, int64_t a, int64_t b);
Variable Permute(const Variable& x, absl::Span<const int64_t> dims);
// Elements [begin, end) of `dim`.
Variable Slice(const Variable& x, int64_t dim, int64_t begin, int64_t end);
Variable Select(const Variable& x, int64_t dim, int64_t index);
Variable Expand(const Variable& x, const Shape& shape);
Variable Squeeze(const Variable& x, int64_t dim);
Variable Unsqueeze(const Variable& x, int64_t dim);

// Joined along `dim`; all other sizes equal; at least one.
Variable Concat(absl::Span<const Variable> parts, int64_t dim);

// Along a new dimension `dim`; all shapes equal; at least one.
Variable Stack(absl::Span<const Variable> parts, int64_t dim);

// Index(x, {Slice(0, 2), 3}): see weft/tensor/tensor_index.h.
Variable Index(const Variable& x, absl::Span<const TensorIndex> parts);

// As those of tensors (weft/tensor/ops/index.h).
std::vector<Variable> Split(const Variable& x, int64_t size, int64_t dim);
std::vector<Variable> Split(const Variable& x, absl::Span<const int64_t> sizes,
                            int64_t dim);
std::vector<Variable> Chunk(const Variable& x, int64_t chunks, int64_t dim);
Variable Tril(const Variable& x, int64_t diagonal = 0);
Variable Triu(const Variable& x, int64_t diagonal = 0);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_SHAPE_H_
