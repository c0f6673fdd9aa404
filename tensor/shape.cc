#include "weft/tensor/shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/error.h"

namespace weft {

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t NumElements(absl::Span<const int64_t> shape, absl::string_view where) {
  if (shape.size() > static_cast<size_t>(kMaxDims)) {
    ThrowInvalidArgument(where, ": shape has ", shape.size(),
                         " dimensions; at most ", kMaxDims, " are possible");
  }
  // The product is bounded without its zeros, so that no view of a tensor
  // without elements overflows in turn.
  int64_t product = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      ThrowInvalidArgument(where, ": shape ", ShapeText(shape),
                           " has a negative size");
    }
    is_empty |= size == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product) ||
        product > kMaxTensorBytes) {
      ThrowInvalidArgument(where, ": shape ", ShapeText(shape),
                           " has more than ", kMaxTensorBytes, " elements");
    }
  }
  return is_empty ? 0 : product;
}

Shape ContiguousStrides(absl::Span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

bool IsContiguous(absl::Span<const int64_t> shape,
                  absl::Span<const int64_t> strides) {
  int64_t expected = 1;
  bool is_contiguous = true;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] == 1) continue;
    is_contiguous &= strides[i] == expected;
    expected *= shape[i];
  }
  return is_contiguous;
}

bool TryBroadcast(absl::Span<const int64_t> a, absl::Span<const int64_t> b,
                  Shape* result) {
  if (a.size() < b.size()) std::swap(a, b);
  result->assign(a.begin(), a.end());
  const size_t lead = a.size() - b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    int64_t& size = (*result)[lead + i];
    if (size == b[i] || b[i] == 1) continue;
    if (size != 1) return false;
    size = b[i];
  }
  return true;
}

Shape BroadcastShape(absl::Span<const int64_t> a, absl::Span<const int64_t> b,
                     absl::string_view where) {
  Shape result;
  if (TryBroadcast(a, b, &result)) return result;
  for (size_t i = 1;; ++i) {  // One dimension, from the end, does not fit.
    const int64_t x = a[a.size() - i];
    const int64_t y = b[b.size() - i];
    if (x == y || x == 1 || y == 1) continue;
    ThrowInvalidArgument(where, ": shapes ", ShapeText(a), " and ",
                         ShapeText(b), " do not broadcast; sizes ", x, " and ",
                         y, " differ and neither is 1");
  }
}

int WrapDim(int64_t dim, int64_t rank, absl::string_view where) {
  const int64_t wrapped = dim < 0 ? dim + rank : dim;
  if (wrapped < 0 || wrapped >= rank) {
    ThrowInvalidArgument(where, ": dim ", dim, " is not one of a tensor of ",
                         rank, " dimensions");
  }
  return static_cast<int>(wrapped);
}

}  // namespace weft
