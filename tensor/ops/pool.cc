#include "weft/tensor/ops/pool.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::CheckFloating;
using internal::IsHalf;
using internal::OnDevice;
using internal::Wide;

// The sizes of one pooling. Planes are [h, w], one for each n and channel.
struct Geometry {
  int64_t planes, height, width, out_h, out_w;
  std::array<int64_t, 2> kernel, stride, padding;
};

// What a window covers of a plane: [top, bottom) x [left, right).
struct Window {
  int64_t top, bottom, left, right;
};

Geometry CheckedGeometry(const Shape& x, const Pool2dOptions& options,
                         const char* where) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (x.size() != 4) {
    ThrowInvalidArgument(where, ": x is ", ShapeText(x),
                         "; wanted [n, channels, h, w]");
  }
  Geometry g = {x[0] * x[1], x[2],           x[3],           0,
                0,           options.kernel, options.stride, options.padding};
  for (int d = 0; d < 2; ++d) {
    if (g.stride[d] == 0) g.stride[d] = g.kernel[d];
    if (g.kernel[d] < 1 || g.kernel[d] >= kLimit || g.stride[d] < 1 ||
        g.padding[d] < 0 || g.padding[d] > g.kernel[d] / 2) {
      ThrowInvalidArgument(where, ": kernel ", ShapeText(options.kernel),
                           ", stride ", ShapeText(options.stride), ", padding ",
                           ShapeText(options.padding),
                           "; wanted at least 1, at least 0 and at most half "
                           "the kernel");
    }
    const int64_t room = x[2 + d] + 2 * g.padding[d] - g.kernel[d];
    // Padding may have room for a window that no element is in.
    if (room < 0 || x[2 + d] == 0) {
      ThrowInvalidArgument(where, ": x ", ShapeText(x),
                           " is smaller than the kernel ",
                           ShapeText(options.kernel));
    }
    (d == 0 ? g.out_h : g.out_w) = room / g.stride[d] + 1;
  }
  return g;
}

Window WindowAt(const Geometry& g, int64_t y, int64_t x) {
  const int64_t top = y * g.stride[0] - g.padding[0];
  const int64_t left = x * g.stride[1] - g.padding[1];
  return {std::max<int64_t>(top, 0), std::min(top + g.kernel[0], g.height),
          std::max<int64_t>(left, 0), std::min(left + g.kernel[1], g.width)};
}

// Calls visit(place in the output plane, window) for each output of a plane.
template <typename Visit>
void ForEachWindow(const Geometry& g, Visit&& visit) {
  for (int64_t y = 0; y < g.out_h; ++y) {
    for (int64_t x = 0; x < g.out_w; ++x) {
      visit(y * g.out_w + x, WindowAt(g, y, x));
    }
  }
}

// Whether `next` is taken in place of `value`: the first NaN is, and stays.
template <typename T>
inline bool IsBetter(T next, T value) {
  return (next > value) | ((next != next) & (value == value));
}

template <typename T>
void MaxOfPlane(const Geometry& g, const T* in, T* values, int64_t* indices) {
  ForEachWindow(g, [&](int64_t place, const Window& window) {
    int64_t best = window.top * g.width + window.left;
    T value = in[best];
    for (int64_t h = window.top; h < window.bottom; ++h) {
      for (int64_t w = window.left; w < window.right; ++w) {
        const int64_t i = h * g.width + w;
        const bool is_better = IsBetter(in[i], value);
        best = is_better ? i : best;
        value = is_better ? in[i] : value;
      }
    }
    values[place] = value;
    indices[place] = best;
  });
}

// The common case, 2 x 2 side by side: first the larger of each two neighbours
// in a row, then the larger of two such one below the other. Choices in two
// loops that vectorise; a branch would be mispredicted half of the time.

// Finds the larger of each of n pairs from `in`, whose first element has the
// index `first`.
template <typename T>
WEFT_VECTORIZE void LargerOfPairs(const T* in, int32_t first, T* larger,
                                  int32_t* indices, int64_t n) {
  for (int64_t x = 0; x < n; ++x) {
    const bool is_second = IsBetter(in[2 * x + 1], in[2 * x]);
    larger[x] = is_second ? in[2 * x + 1] : in[2 * x];
    indices[x] = first + static_cast<int32_t>(2 * x) + (is_second ? 1 : 0);
  }
}

template <typename T>
WEFT_VECTORIZE void LargerOfRows(const T* upper, const T* lower,
                                 const int32_t* upper_indices,
                                 const int32_t* lower_indices, int64_t first,
                                 T* values, int64_t* indices, int64_t n) {
  for (int64_t x = 0; x < n; ++x) {
    const bool is_lower = IsBetter(lower[x], upper[x]);
    values[x] = is_lower ? lower[x] : upper[x];
    const int32_t index = is_lower ? lower_indices[x] : upper_indices[x];
    indices[x] = first + index;
  }
}

// REQUIRES: out_h and out_w are at least 1.
template <typename T>
class LargestOf2x2 {
 public:
  explicit LargestOf2x2(const Geometry& g)
      : g_(g),
        rows_(2 * std::clamp<int64_t>(kPairs / 2 / g.out_w, 1, g.out_h)),
        larger_(rows_ * g.out_w),
        indices_(rows_ * g.out_w) {}

  // Pools one plane.
  void Run(const T* in, T* values, int64_t* indices) {
    for (int64_t y = 0; y < 2 * g_.out_h; y += rows_) {
      const int64_t rows = std::min(rows_, 2 * g_.out_h - y);
      const int64_t first = y * g_.width;
      FindPairs(in + first, rows);
      for (int64_t i = 0; i < rows; i += 2) {
        const int64_t upper = i * g_.out_w;
        const int64_t lower = upper + g_.out_w;
        LargerOfRows(&larger_[upper], &larger_[lower], &indices_[upper],
                     &indices_[lower], first, values, indices, g_.out_w);
        values += g_.out_w;
        indices += g_.out_w;
      }
    }
  }

 private:
  static constexpr int64_t kPairs = 1024;  // at once, so that they stay near

  // Rows without gaps between are one row.
  void FindPairs(const T* in, int64_t rows) {
    if (g_.width == 2 * g_.out_w) {
      LargerOfPairs(in, 0, larger_.data(), indices_.data(), rows * g_.out_w);
      return;
    }
    for (int64_t i = 0; i < rows; ++i) {
      LargerOfPairs(in + i * g_.width, static_cast<int32_t>(i * g_.width),
                    &larger_[i * g_.out_w], &indices_[i * g_.out_w], g_.out_w);
    }
  }

  const Geometry g_;
  const int64_t rows_;
  std::vector<T> larger_;
  std::vector<int32_t> indices_;
};

bool IsPairedBy2x2(const Geometry& g) {
  constexpr int64_t kMaxWidth = int64_t{1} << 29;  // indices of rows are int32
  return g.width < kMaxWidth && g.kernel == std::array<int64_t, 2>{2, 2} &&
         g.stride == g.kernel && g.padding[0] == 0 && g.padding[1] == 0;
}

Shape OutputShape(const Shape& x, const Geometry& g) {
  return {x[0], x[1], g.out_h, g.out_w};
}

internal::Operation WithWindows(const char* name, const Geometry& g) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  return {name,
          {number(g.kernel[0]), number(g.kernel[1]), number(g.stride[0]),
           number(g.stride[1]), number(g.padding[0]), number(g.padding[1])}};
}

// The functions below run on the CPU, on contiguous tensors.

template <typename T>
void MaxOfPlanes(const Geometry& g, const Tensor& x, const Tensor& largest,
                 const Tensor& places) {
  const int64_t out_size = g.out_h * g.out_w;
  std::optional<LargestOf2x2<T>> paired;
  if (IsPairedBy2x2(g)) paired.emplace(g);
  for (int64_t p = 0; p < g.planes; ++p) {
    const T* const in = x.data<T>() + p * g.height * g.width;
    T* const values = largest.data<T>() + p * out_size;
    int64_t* const indices = places.data<int64_t>() + p * out_size;
    if (paired.has_value()) {
      paired->Run(in, values, indices);
    } else {
      MaxOfPlane(g, in, values, indices);
    }
  }
}

// result[index] += grad, in planes of `result`, which is 0 before.
template <typename T>
void AddAtIndices(const Tensor& grad, const Tensor& indices,
                  const Tensor& result) {
  const int64_t size = result.size(2) * result.size(3);
  const int64_t out_size = grad.size(2) * grad.size(3);
  const int64_t planes = result.size(0) * result.size(1);
  const T* in = grad.data<T>();
  const int64_t* place = indices.data<int64_t>();
  T* out = result.data<T>();
  for (int64_t p = 0; p < planes; ++p, out += size) {
    for (int64_t i = 0; i < out_size; ++i, ++in, ++place) {
      if (*place < 0 || *place >= size) {
        ThrowInvalidArgument("MaxPool2dBackward: index ", *place,
                             " is outside of a plane of ", size);
      }
      out[*place] += *in;
    }
  }
}

template <typename T>
void MeanOfPlanes(const Geometry& g, const Tensor& x, const Tensor& result) {
  const T scale = T(1) / static_cast<T>(g.kernel[0] * g.kernel[1]);
  const T* in = x.data<T>();
  T* out = result.data<T>();
  for (int64_t p = 0; p < g.planes; ++p) {
    ForEachWindow(g, [&](int64_t place, const Window& window) {
      T sum = 0;
      for (int64_t h = window.top; h < window.bottom; ++h) {
        for (int64_t w = window.left; w < window.right; ++w) {
          sum += in[h * g.width + w];
        }
      }
      out[place] = sum * scale;
    });
    in += g.height * g.width;
    out += g.out_h * g.out_w;
  }
}

// `result` is 0 before.
template <typename T>
void SpreadOverPlanes(const Geometry& g, const Tensor& grad,
                      const Tensor& result) {
  const T scale = T(1) / static_cast<T>(g.kernel[0] * g.kernel[1]);
  const T* in = grad.data<T>();
  T* out = result.data<T>();
  for (int64_t p = 0; p < g.planes; ++p) {
    ForEachWindow(g, [&](int64_t place, const Window& window) {
      for (int64_t h = window.top; h < window.bottom; ++h) {
        for (int64_t w = window.left; w < window.right; ++w) {
          out[h * g.width + w] += in[place] * scale;
        }
      }
    });
    in += g.out_h * g.out_w;
    out += g.height * g.width;
  }
}

}  // namespace

MaxPool2dResult MaxPool2d(const Tensor& x, const Pool2dOptions& options) {
  const Geometry g = CheckedGeometry(x.shape(), options, "MaxPool2d");
  CheckFloating(x, "MaxPool2d");
  if (IsHalf(x)) {
    MaxPool2dResult wide = MaxPool2d(Wide(x), options);
    return {wide.values.To(x.dtype()), wide.indices};
  }
  const Shape shape = OutputShape(x.shape(), g);
  MaxPool2dResult result = {Tensor::Empty(shape, x.dtype(), x.device()),
                            Tensor::Empty(shape, DType::kI64, x.device())};
  OnDevice(
      WithWindows("MaxPool2d", g),
      [g](const Tensor& x, const Tensor& values, const Tensor& indices) {
        VisitFloating(x.dtype(), "MaxPool2d", [&](auto type) {
          MaxOfPlanes<typename decltype(type)::Type>(g, x, values, indices);
        });
      },
      x.Contiguous(), result.values, result.indices);
  return result;
}

Tensor MaxPool2dBackward(const Tensor& grad, const Tensor& indices,
                         const Shape& x_shape) {
  constexpr const char* kWhere = "MaxPool2dBackward";
  internal::CheckSameDevice(grad, indices, kWhere);
  const bool fits =
      x_shape.size() == 4 && grad.dim() == 4 &&
      grad.shape() == indices.shape() && indices.dtype() == DType::kI64 &&
      grad.shape()[0] == x_shape[0] && grad.shape()[1] == x_shape[1];
  if (!fits) {
    ThrowInvalidArgument(kWhere, ": grad is ", grad.Describe(),
                         ", indices are ", indices.Describe(), ", x is ",
                         ShapeText(x_shape));
  }
  CheckFloating(grad, kWhere);
  if (IsHalf(grad)) {
    return MaxPool2dBackward(Wide(grad), indices, x_shape).To(grad.dtype());
  }
  Tensor result = Tensor::Zeros(x_shape, grad.dtype(), grad.device());
  OnDevice(
      kWhere,
      [](const Tensor& grad, const Tensor& indices, const Tensor& result) {
        VisitFloating(grad.dtype(), kWhere, [&](auto type) {
          AddAtIndices<typename decltype(type)::Type>(grad, indices, result);
        });
      },
      grad.Contiguous(), indices.Contiguous(), result);
  return result;
}

Tensor AvgPool2d(const Tensor& x, const Pool2dOptions& options) {
  const Geometry g = CheckedGeometry(x.shape(), options, "AvgPool2d");
  CheckFloating(x, "AvgPool2d");
  if (IsHalf(x)) return AvgPool2d(Wide(x), options).To(x.dtype());
  Tensor result =
      Tensor::Empty(OutputShape(x.shape(), g), x.dtype(), x.device());
  OnDevice(
      WithWindows("AvgPool2d", g),
      [g](const Tensor& x, const Tensor& result) {
        VisitFloating(x.dtype(), "AvgPool2d", [&](auto type) {
          MeanOfPlanes<typename decltype(type)::Type>(g, x, result);
        });
      },
      x.Contiguous(), result);
  return result;
}

Tensor AvgPool2dBackward(const Tensor& grad, const Shape& x_shape,
                         const Pool2dOptions& options) {
  constexpr const char* kWhere = "AvgPool2dBackward";
  const Geometry g = CheckedGeometry(x_shape, options, kWhere);
  if (grad.shape() != OutputShape(x_shape, g)) {
    ThrowInvalidArgument(kWhere, ": grad is ", grad.Describe(), "; wanted ",
                         ShapeText(OutputShape(x_shape, g)));
  }
  CheckFloating(grad, kWhere);
  if (IsHalf(grad)) {
    return AvgPool2dBackward(Wide(grad), x_shape, options).To(grad.dtype());
  }
  Tensor result = Tensor::Zeros(x_shape, grad.dtype(), grad.device());
  OnDevice(
      WithWindows(kWhere, g),
      [g](const Tensor& grad, const Tensor& result) {
        VisitFloating(grad.dtype(), kWhere, [&](auto type) {
          SpreadOverPlanes<typename decltype(type)::Type>(g, grad, result);
        });
      },
      grad.Contiguous(), result);
  return result;
}

}  // namespace weft
