// Tensors as text: ToString and operator<<.

#include <algorithm>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

// Tensors with more elements are shown by the first and last kEdge of each
// dimension.
constexpr int64_t kMostElements = 1000;
constexpr int64_t kEdge = 3;

template <typename T>
std::string ElementText(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (IsFloating(DTypeOf<T>)) {
    return absl::StrCat(static_cast<double>(value));  // Six digits.
  } else {
    return absl::StrCat(static_cast<int64_t>(value));
  }
}

// Appends the part of x from dimension d on that begins at `offset`.
template <typename T>
void AppendValues(const Tensor& x, int d, int64_t offset, bool is_cut,
                  std::string* text) {
  if (d == x.dim()) {
    absl::StrAppend(text, ElementText(x.data<T>()[offset]));
    return;
  }
  const int64_t n = x.shape()[d];
  const bool is_last = d + 1 == x.dim();
  const std::string separator =
      is_last ? ", " : ",\n" + std::string(static_cast<size_t>(d + 1), ' ');
  text->push_back('[');
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0) text->append(separator);
    if (is_cut && n > 2 * kEdge && i == kEdge) {
      absl::StrAppend(text, "...", separator);
      i = n - kEdge;
    }
    AppendValues<T>(x, d + 1, offset + i * x.strides()[d], is_cut, text);
  }
  text->push_back(']');
}

}  // namespace

std::string ToString(const Tensor& x) {
  if (!x.defined()) return "undefined";
  std::string text = x.Describe();
  text.push_back(x.dim() > 1 ? '\n' : ' ');
  // Not a pair of brackets for each row: a shape without elements may be huge.
  if (x.numel() == 0) return text + "[]";
  const Tensor here = x.To(Device::Cpu());
  VisitDType(x.dtype(), [&](auto type) {
    AppendValues<typename decltype(type)::Type>(
        here, 0, 0, x.numel() > kMostElements, &text);
  });
  return text;
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  return out << ToString(x);
}

}  // namespace weft
