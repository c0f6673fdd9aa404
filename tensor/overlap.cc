#include "weft/tensor/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "weft/base/error.h"
#include "weft/tensor/strided_loop.h"

namespace weft::internal {
namespace {

// REQUIRES: x has elements.
bool RepeatsAPlace(const Tensor& x) {
  const ElementReach reach = ReachOf(x);
  std::vector<bool> seen(static_cast<size_t>(reach.high - reach.low + 1));
  bool repeats = false;
  const StridedLoop<1> loop(x.shape(), {LayoutOf(x)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const auto place =
          static_cast<size_t>(at[0] + i * strides[0] - reach.low);
      repeats |= seen[place];
      seen[place] = true;
    }
  });
  return repeats;
}

}  // namespace

ElementReach ReachOf(const Tensor& x) {
  ElementReach reach;
  for (int d = 0; d < x.dim(); ++d) {
    const int64_t span = (x.shape()[d] - 1) * x.strides()[d];
    (span < 0 ? reach.low : reach.high) += span;
  }
  return reach;
}

bool MayOverlap(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto ends = [](const Tensor& x) {
    const ElementReach reach = ReachOf(x);
    const int64_t item = ItemSize(x.dtype());
    // As numbers: pointers into different blocks have no order.
    const auto first = reinterpret_cast<uintptr_t>(x.address());
    return std::make_pair(
        first + static_cast<uintptr_t>(reach.low * item),
        first + static_cast<uintptr_t>((reach.high + 1) * item));
  };
  const auto [a_begin, a_end] = ends(a);
  const auto [b_begin, b_end] = ends(b);
  return a_begin < b_end && b_begin < a_end;
}

bool OverlapsItself(const Tensor& x) {
  if (x.is_contiguous() || x.numel() == 0) return false;
  absl::InlinedVector<std::pair<int64_t, int64_t>, 6> dims;  // Stride, size.
  for (int d = 0; d < x.dim(); ++d) {
    if (x.shape()[d] == 1) continue;
    if (x.strides()[d] == 0) return true;
    dims.emplace_back(std::abs(x.strides()[d]), x.shape()[d]);
  }
  std::sort(dims.begin(), dims.end());
  // Nothing is shared if each dimension steps over all that the denser ones
  // reach.
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return RepeatsAPlace(x);
    reach += stride * (size - 1);
  }
  return false;
}

void CheckWritable(const Tensor& y, absl::string_view where) {
  if (!OverlapsItself(y)) return;
  ThrowInvalidArgument(where, ": ", y.Describe(), " with strides ",
                       ShapeText(y.strides()),
                       " has several elements in one place (it is expanded, or "
                       "a view that overlaps itself) and cannot be written to; "
                       "take Clone()");
}

Tensor Unaliased(const Tensor& x, const Tensor& y) {
  const bool is_same = x.address() == y.address() && x.shape() == y.shape() &&
                       x.strides() == y.strides() && x.dtype() == y.dtype();
  return is_same ? x : Apart(x, y);
}

Tensor Apart(const Tensor& x, const Tensor& y) {
  return MayOverlap(x, y) ? x.Clone() : x;
}

}  // namespace weft::internal
