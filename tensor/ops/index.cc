#include "weft/tensor/ops/index.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/strided_loop.h"

namespace weft {
namespace {

using internal::AddOp;
using internal::CheckSameDevice;
using internal::IsHalf;
using internal::LayoutOf;
using internal::OnDevice;
using internal::Operation;
using internal::StridedLoop;
using internal::Wide;

// The operation `where` along dimension d.
Operation Along(const char* where, int d) {
  return {where, {static_cast<double>(d)}};
}

void CheckIndexDType(const Tensor& index, absl::string_view where) {
  if (index.dtype() != DType::kI64) {
    ThrowInvalidArgument(where, ": index is ", index.Describe(),
                         "; wanted i64");
  }
}

// The values, of a tensor on the CPU: a device looks at them as it runs.
void CheckIndices(const Tensor& index, int64_t limit, absl::string_view where) {
  const Tensor flat = index.Contiguous();
  for (const int64_t i : flat.span<int64_t>()) {
    if (i < 0 || i >= limit) {
      ThrowInvalidArgument(where, ": index ", i, " is outside of [0, ", limit,
                           ")");
    }
  }
}

void CheckIndexVector(const Tensor& index, absl::string_view where) {
  if (index.dim() != 1) {
    ThrowInvalidArgument(where, ": index is ", index.Describe(),
                         "; wanted i64[n]");
  }
  CheckIndexDType(index, where);
}

// How a contiguous tensor looks along `dim`: [outer, size, inner].
struct Around {
  int64_t outer = 1;
  int64_t inner = 1;
};

Around AroundDim(const Shape& shape, int d) {
  Around around;
  for (int i = 0; i < d; ++i) around.outer *= shape[i];
  for (size_t i = d + 1; i < shape.size(); ++i) around.inner *= shape[i];
  return around;
}

void CheckPart(const Tensor& part, const Tensor& first, int d,
               const char* where) {
  bool fits = part.dtype() == first.dtype() && part.dim() == first.dim();
  for (int i = 0; fits && i < first.dim(); ++i) {
    fits = i == d || part.shape()[i] == first.shape()[i];
  }
  if (!fits) {
    ThrowInvalidArgument(where, ": parts are ", first.Describe(), " and ",
                         part.Describe(), "; only dimension ", d,
                         " may differ");
  }
  CheckSameDevice(first, part, where);
}

// Gather and ScatterAdd_: checks x against index; returns the dim.
int CheckGather(const Tensor& x, int64_t dim, const Tensor& index,
                const char* where) {
  const int d = WrapDim(dim, x.dim(), where);
  bool fits = index.dim() == x.dim();
  for (int i = 0; fits && i < x.dim(); ++i) {
    fits = i == d || index.shape()[i] <= x.shape()[i];
  }
  if (!fits) {
    ThrowInvalidArgument(where, ": x is ", x.Describe(), ", index is ",
                         index.Describe(),
                         "; wanted no larger sizes but in dimension ", d);
  }
  CheckIndexDType(index, where);
  CheckSameDevice(x, index, where);
  return d;
}

// Calls visit(place in a, place in b) for each element of `index`: that of `a`
// has index's value in dimension d, that of `b` is the element's own.
template <typename Visit>
void ForEachIndexed(const Tensor& index, int d, const Tensor& a,
                    const Tensor& b, Visit&& visit) {
  // In dimension d, a's place is given by the index, not by the walk.
  Shape strides = a.strides();
  strides[d] = 0;
  const int64_t step = a.strides()[d];
  const StridedLoop<3> loop(
      index.shape(),
      {LayoutOf(index), internal::Layout{index.shape(), strides}, LayoutOf(b)});
  const int64_t* const chosen = index.data<int64_t>();
  loop.ForEachRun([&](const auto& at, const auto& by, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      visit(at[1] + i * by[1] + chosen[at[0] + i * by[0]] * step,
            at[2] + i * by[2]);
    }
  });
}

// Adds src's part i of dimension d to y's part index[i]. REQUIRES: contiguous
// tensors.
template <typename T>
void AddParts(const Tensor& y, int d, const Tensor& index, const Tensor& src) {
  const Around around = AroundDim(y.shape(), d);
  const T* in = src.data<T>();
  T* out = y.data<T>();
  for (int64_t i = 0; i < around.outer; ++i) {
    for (const int64_t j : index.span<int64_t>()) {
      T* const row = out + j * around.inner;
      for (int64_t k = 0; k < around.inner; ++k) {
        row[k] = AddOp()(row[k], in[k]);
      }
      in += around.inner;
    }
    out += y.shape()[d] * around.inner;
  }
}

// A copy of x [..., rows, columns] in which, of each row, only columns
// [begin, end) = kept(row, columns) are not 0.
template <typename Kept>
Tensor Triangle(const Tensor& x, const Operation& operation, Kept kept) {
  if (x.dim() < 2) {
    ThrowInvalidArgument(operation.name, ": x is ", x.Describe(),
                         "; wanted [..., rows, columns]");
  }
  const Tensor result = x.Clone();
  if (x.numel() == 0) return result;
  OnDevice(
      operation,
      [kept](const Tensor& y) {
        const int64_t rows = y.size(-2);
        const int64_t columns = y.size(-1);
        const int64_t item = ItemSize(y.dtype());
        char* line = static_cast<char*>(y.raw());
        for (int64_t i = 0; i < y.numel() / columns; ++i) {
          const auto [begin, end] = kept(i % rows, columns);
          // 0 is all bits 0 in each dtype.
          std::memset(line, 0, begin * item);
          std::memset(line + end * item, 0, (columns - end) * item);
          line += columns * item;
        }
      },
      result);
  return result;
}

// A diagonal beyond all elements is as one at the edge of what a tensor can
// have, to which a row can be added.
int64_t Bounded(int64_t diagonal) {
  return std::clamp(diagonal, -kMaxTensorBytes, kMaxTensorBytes);
}

}  // namespace

Tensor IndexSelect(const Tensor& x, int64_t dim, const Tensor& index) {
  const int d = WrapDim(dim, x.dim(), "IndexSelect");
  CheckIndexVector(index, "IndexSelect");
  CheckSameDevice(x, index, "IndexSelect");
  Shape shape = x.shape();
  shape[d] = index.numel();
  Tensor result = Tensor::Empty(shape, x.dtype(), x.device());
  OnDevice(
      Along("IndexSelect", d),
      [d](const Tensor& x, const Tensor& index, const Tensor& y) {
        const int64_t size = x.shape()[d];
        CheckIndices(index, size, "IndexSelect");
        if (y.numel() == 0) return;
        const Around around = AroundDim(y.shape(), d);
        const int64_t bytes = around.inner * ItemSize(x.dtype());
        const char* in = static_cast<const char*>(x.raw());
        char* out = static_cast<char*>(y.raw());
        for (int64_t i = 0; i < around.outer; ++i, in += size * bytes) {
          for (const int64_t j : index.span<int64_t>()) {
            std::memcpy(out, in + j * bytes, bytes);
            out += bytes;
          }
        }
      },
      x.Contiguous(), index.Contiguous(), result);
  return result;
}

void IndexAdd_(const Tensor& y, int64_t dim, const Tensor& index,
               const Tensor& src) {
  const int d = WrapDim(dim, y.dim(), "IndexAdd_");
  CheckIndexVector(index, "IndexAdd_");
  Shape wanted = y.shape();
  wanted[d] = index.numel();
  if (src.shape() != wanted || src.dtype() != y.dtype()) {
    ThrowInvalidArgument("IndexAdd_: y is ", y.Describe(), ", src is ",
                         src.Describe(), "; wanted src ", ShapeText(wanted));
  }
  CheckSameDevice(y, index, "IndexAdd_");
  CheckSameDevice(y, src, "IndexAdd_");
  if (IsHalf(y)) {
    return internal::UpdateInF32(y, "IndexAdd_", [&](const Tensor& wide) {
      IndexAdd_(wide, dim, index, Wide(src));
    });
  }
  internal::CheckWritable(y, "IndexAdd_");
  const Tensor target = y.Contiguous();
  const Tensor source = internal::Apart(src, y).Contiguous();
  const Tensor chosen = internal::Apart(index, y).Contiguous();
  VisitNumber(y.dtype(), "IndexAdd_", [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        Along("IndexAdd_", d),
        [d](const Tensor& y, const Tensor& index, const Tensor& src) {
          CheckIndices(index, y.shape()[d], "IndexAdd_");
          AddParts<T>(y, d, index, src);
        },
        target, chosen, source);
  });
  if (!target.IsSameAs(y)) y.CopyFrom(target);
  y.BumpVersion();
}

Tensor Gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const int d = CheckGather(x, dim, index, "Gather");
  Tensor result = Tensor::Empty(index.shape(), x.dtype(), x.device());
  VisitDType(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        Along("Gather", d),
        [d](const Tensor& x, const Tensor& index, const Tensor& y) {
          CheckIndices(index, x.shape()[d], "Gather");
          const T* const in = x.data<T>();
          T* const out = y.data<T>();
          ForEachIndexed(index, d, x, y,
                         [&](int64_t from, int64_t to) { out[to] = in[from]; });
        },
        x, index, result);
  });
  return result;
}

void ScatterAdd_(const Tensor& y, int64_t dim, const Tensor& index,
                 const Tensor& src) {
  const int d = CheckGather(y, dim, index, "ScatterAdd_");
  if (src.shape() != index.shape() || src.dtype() != y.dtype()) {
    ThrowInvalidArgument("ScatterAdd_: y is ", y.Describe(), ", src is ",
                         src.Describe(), "; wanted src ",
                         ShapeText(index.shape()));
  }
  CheckSameDevice(y, src, "ScatterAdd_");
  if (IsHalf(y)) {
    return internal::UpdateInF32(y, "ScatterAdd_", [&](const Tensor& wide) {
      ScatterAdd_(wide, dim, index, Wide(src));
    });
  }
  internal::CheckWritable(y, "ScatterAdd_");
  const Tensor source = internal::Apart(src, y);
  const Tensor chosen = internal::Apart(index, y);
  VisitNumber(y.dtype(), "ScatterAdd_", [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        Along("ScatterAdd_", d),
        [d](const Tensor& y, const Tensor& index, const Tensor& src) {
          CheckIndices(index, y.shape()[d], "ScatterAdd_");
          T* const out = y.data<T>();
          const T* const in = src.data<T>();
          ForEachIndexed(index, d, y, src, [&](int64_t to, int64_t from) {
            out[to] = AddOp()(out[to], in[from]);
          });
        },
        y, chosen, source);
  });
  y.BumpVersion();
}

Tensor Concat(absl::Span<const Tensor> parts, int64_t dim) {
  if (parts.empty()) ThrowInvalidArgument("Concat: no parts");
  const int d = WrapDim(dim, parts[0].dim(), "Concat");
  Shape shape = parts[0].shape();
  shape[d] = 0;
  for (const Tensor& part : parts) {
    CheckPart(part, parts[0], d, "Concat");
    shape[d] += part.shape()[d];
  }
  Tensor result = Tensor::Empty(shape, parts[0].dtype(), parts[0].device());
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    const int64_t end = begin + part.shape()[d];
    result.Slice(d, begin, end).CopyFrom(part);
    begin = end;
  }
  return result;
}

Tensor Stack(absl::Span<const Tensor> parts, int64_t dim) {
  std::vector<Tensor> rows;
  rows.reserve(parts.size());
  for (const Tensor& part : parts) {
    if (part.shape() != parts[0].shape()) {
      ThrowInvalidArgument("Stack: parts are ", parts[0].Describe(), " and ",
                           part.Describe(), "; shapes differ");
    }
    rows.push_back(part.Unsqueeze(dim));
  }
  return Concat(rows, dim);
}

Tensor OneHot(const Tensor& index, int64_t classes, DType dtype) {
  CheckIndexDType(index, "OneHot");
  Shape shape = index.shape();
  shape.push_back(classes);
  Tensor result = Tensor::Zeros(shape, dtype, index.device());
  VisitDType(dtype, [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        {"OneHot", {static_cast<double>(classes)}},
        [classes](const Tensor& index, const Tensor& y) {
          CheckIndices(index, classes, "OneHot");
          T* row = y.data<T>();
          for (const int64_t i : index.span<int64_t>()) {
            row[i] = T{1};
            row += classes;
          }
        },
        index.Contiguous(), result);
  });
  return result;
}

Shape SplitSizes(int64_t n, int64_t size, absl::string_view where) {
  if (size <= 0) {
    ThrowInvalidArgument(where, ": parts of size ", size,
                         "; wanted at least 1");
  }
  Shape sizes;
  // Nothing has one part without elements, as for PyTorch.
  for (int64_t begin = 0; begin == 0 || begin < n; begin += size) {
    sizes.push_back(std::min(size, n - begin));
  }
  return sizes;
}

Shape ChunkSizes(int64_t n, int64_t chunks) {
  if (chunks <= 0) {
    ThrowInvalidArgument("Chunk: ", chunks, " chunks; wanted at least 1");
  }
  const int64_t size = n / chunks + (n % chunks > 0 ? 1 : 0);
  return SplitSizes(n, std::max<int64_t>(size, 1), "Chunk");
}

std::vector<Tensor> Split(const Tensor& x, absl::Span<const int64_t> sizes,
                          int64_t dim) {
  const int d = WrapDim(dim, x.dim(), "Split");
  int64_t sum = 0;
  bool fits = true;
  for (const int64_t size : sizes) {
    fits &= size >= 0 && size <= x.shape()[d] - sum;
    if (fits) sum += size;
  }
  if (!fits || sum != x.shape()[d]) {
    ThrowInvalidArgument("Split: sizes ", ShapeText(sizes),
                         " do not make up dimension ", d, " of ", x.Describe());
  }
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(x.Slice(d, begin, begin + size));
    begin += size;
  }
  return parts;
}

std::vector<Tensor> Split(const Tensor& x, int64_t size, int64_t dim) {
  return Split(x, SplitSizes(x.size(dim), size, "Split"), dim);
}

std::vector<Tensor> Chunk(const Tensor& x, int64_t chunks, int64_t dim) {
  return Split(x, ChunkSizes(x.size(dim), chunks), dim);
}

Tensor Tril(const Tensor& x, int64_t diagonal) {
  const int64_t d = Bounded(diagonal);
  return Triangle(x, {"Tril", {static_cast<double>(d)}},
                  [d](int64_t row, int64_t n) {
                    return std::make_pair(
                        int64_t{0}, std::clamp<int64_t>(row + d + 1, 0, n));
                  });
}

Tensor Triu(const Tensor& x, int64_t diagonal) {
  const int64_t d = Bounded(diagonal);
  return Triangle(
      x, {"Triu", {static_cast<double>(d)}}, [d](int64_t row, int64_t n) {
        return std::make_pair(std::clamp<int64_t>(row + d, 0, n), n);
      });
}

}  // namespace weft
