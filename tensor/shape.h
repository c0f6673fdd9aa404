// Shape: the sizes of a tensor's dimensions, and the arithmetic on them.
//
// All arithmetic is checked: a shape that cannot be is an Error with
// INVALID_ARGUMENT that begins with `where`, the operation's name.

#ifndef WEFT_TENSOR_SHAPE_H_
#define WEFT_TENSOR_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// [] is a scalar: one element. Also used for strides, in elements.
using Shape = absl::InlinedVector<int64_t, 6>;

// The most dimensions that a tensor may have.
inline constexpr int kMaxDims = 32;

// The most bytes that a tensor may have: 2^47 - 1.
inline constexpr int64_t kMaxTensorBytes = (int64_t{1} << 47) - 1;

// "[2, 3]".
std::string ShapeText(absl::Span<const int64_t> shape);

// The product of the sizes; 1 for []. Throws for a negative size, more than
// kMaxDims dimensions or a product that does not fit kMaxTensorBytes.
int64_t NumElements(absl::Span<const int64_t> shape, absl::string_view where);

// Row-major strides: the last is 1.
Shape ContiguousStrides(absl::Span<const int64_t> shape);

// Whether elements lie in row-major order without gaps. Strides of dimensions
// of size 1 do not matter, and nothing matters if there are no elements.
bool IsContiguous(absl::Span<const int64_t> shape,
                  absl::Span<const int64_t> strides);

// The shape to which both can be expanded: aligned at the last dimension, a
// size of 1 stretches. TryBroadcast: false if there is none.
bool TryBroadcast(absl::Span<const int64_t> a, absl::Span<const int64_t> b,
                  Shape* result);
Shape BroadcastShape(absl::Span<const int64_t> a, absl::Span<const int64_t> b,
                     absl::string_view where);

// `dim` in [-rank, rank) as one in [0, rank).
int WrapDim(int64_t dim, int64_t rank, absl::string_view where);

}  // namespace weft

#endif  // WEFT_TENSOR_SHAPE_H_
