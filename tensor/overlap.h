// Whether tensors share elements: what an operation that writes must know.
//
// Thread-safety: thread-safe.

#ifndef WEFT_TENSOR_OVERLAP_H_
#define WEFT_TENSOR_OVERLAP_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

// Where the first and the last element in memory lie, in elements from
// x.address(). REQUIRES: x has elements.
struct ElementReach {
  int64_t low = 0;
  int64_t high = 0;
};
ElementReach ReachOf(const Tensor& x);

// Whether the memory from a's first to its last element meets that of b. If
// false, they share no element; they need not if true. Compares addresses, so
// that two tensors on one blob are found too.
bool MayOverlap(const Tensor& a, const Tensor& b);

// Whether two elements of x lie in one place, as in an expanded tensor. Exact.
// O(d log d) for d dimensions; for views by FromStorage whose dimensions
// interleave, O(numel).
bool OverlapsItself(const Tensor& x);

// Throws INVALID_ARGUMENT if `y`, which `where` writes to, overlaps itself.
void CheckWritable(const Tensor& y, absl::string_view where);

// `x`, or a copy if writing to `y` could change an element of x not yet read,
// where the element at an index is written only after that index of x is read.
Tensor Unaliased(const Tensor& x, const Tensor& y);

// `x`, or a copy if it may overlap `y`.
Tensor Apart(const Tensor& x, const Tensor& y);

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OVERLAP_H_
