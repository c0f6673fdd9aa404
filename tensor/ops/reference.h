// What tests of operations need: tensors that lie in memory in all ways, and
// their elements as plain doubles to compute the same by hand.

#ifndef WEFT_TENSOR_OPS_REFERENCE_H_
#define WEFT_TENSOR_OPS_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"

namespace weft {

// How the elements of a test's operand lie.
enum class Lie { kContiguous, kTransposed, kSliced, kStrided };

inline constexpr Lie kLies[] = {Lie::kContiguous, Lie::kTransposed,
                                Lie::kSliced, Lie::kStrided};

// A tensor of `shape` that lies as said; not initialised.
inline Tensor EmptyThatLies(Lie lie, const Shape& shape, DType dtype,
                            Device device = Device::Cpu()) {
  const int last = static_cast<int>(shape.size()) - 1;
  Shape outer = shape;
  if (lie == Lie::kTransposed && last >= 1) {
    std::swap(outer[0], outer[last]);
    return Tensor::Empty(outer, dtype, device).Transpose(0, last);
  }
  if (lie == Lie::kSliced && last >= 0) {
    outer[last] += 3;
    return Tensor::Empty(outer, dtype, device).Slice(last, 2, 2 + shape[last]);
  }
  if (lie == Lie::kStrided) {
    outer.push_back(2);
    return Tensor::Empty(outer, dtype, device).Select(last + 1, 1);
  }
  return Tensor::Empty(shape, dtype, device);
}

// The elements of x on its device, but lying as said; undefined as x.
inline Tensor ThatLies(Lie lie, const Tensor& x) {
  if (!x.defined() || lie == Lie::kContiguous) return x;
  const Tensor result = EmptyThatLies(lie, x.shape(), x.dtype(), x.device());
  result.CopyFrom(x);
  return result;
}

// Small whole numbers in [low, high], so that most arithmetic is exact.
inline Tensor Integers(const Shape& shape, DType dtype, int64_t low,
                       int64_t high, Generator& generator,
                       Lie lie = Lie::kContiguous) {
  std::vector<double> values(NumElements(shape, "Integers"));
  for (double& value : values) {
    value = static_cast<double>(
        low + static_cast<int64_t>(generator.NextBelow(high - low + 1)));
  }
  const Tensor result = EmptyThatLies(lie, shape, dtype);
  result.CopyFrom(Tensor::FromVector<double>(values, shape));
  return result;
}

// Normally distributed.
inline Tensor Reals(const Shape& shape, DType dtype, Generator& generator,
                    Lie lie = Lie::kContiguous) {
  const Tensor result = EmptyThatLies(lie, shape, dtype);
  result.CopyFrom(Normal(shape, 0, 1, generator, DType::kF64));
  return result;
}

// The elements in row-major order.
inline std::vector<double> Values(const Tensor& x) {
  return x.To(DType::kF64).ToVector<double>();
}

// Element (i, j, ...) read by strides alone, as a double.
inline double At(const Tensor& x, const Shape& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * x.strides()[d];
  return VisitDType(x.dtype(), [&](auto type) {
    return static_cast<double>(x.data<typename decltype(type)::Type>()[offset]);
  });
}

// A view of `shape` somewhere in `base`, 1-D and contiguous, by strides in
// [-reach, reach], so that elements may share places. REQUIRES: it can fit.
inline Tensor AnyView(const Tensor& base, const Shape& shape, int64_t reach,
                      Generator& generator) {
  for (;;) {
    Shape strides;
    int64_t low = 0, high = 0;
    for (const int64_t size : shape) {
      strides.push_back(static_cast<int64_t>(generator.NextBelow(
                            static_cast<uint64_t>(2 * reach + 1))) -
                        reach);
      const int64_t span = (size - 1) * strides.back();
      (span < 0 ? low : high) += span;
    }
    const int64_t room = base.numel() - (high - low);
    if (room < 1) continue;
    const auto offset =
        static_cast<int64_t>(generator.NextBelow(static_cast<uint64_t>(room)));
    return Tensor::FromStorage(base.storage(), offset - low, shape, strides,
                               base.dtype());
  }
}

// A random shape of up to `most_dims` dimensions, each of up to `most`
// elements.
inline Shape AnyShape(uint64_t most_dims, uint64_t most, Generator& generator,
                      int64_t least = 0) {
  Shape shape(generator.NextBelow(most_dims + 1));
  for (int64_t& size : shape) {
    size = least + static_cast<int64_t>(generator.NextBelow(
                       most + 1 - static_cast<uint64_t>(least)));
  }
  return shape;
}

// Calls visit(index) for each element of `shape`, in row-major order.
template <typename Visit>
void ForEachIndex(const Shape& shape, Visit&& visit) {
  const int64_t n = NumElements(shape, "ForEachIndex");
  for (int64_t i = 0; i < n; ++i) {
    Shape index(shape.size());
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    visit(index);
  }
}

// `tolerance` is relative to the larger of 1 and the value.
inline void ExpectValues(const Tensor& found, const Shape& shape,
                         const std::vector<double>& wanted, double tolerance) {
  ASSERT_EQ(found.shape(), shape);
  const std::vector<double> values = Values(found);
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::isnan(wanted[i]) && std::isnan(values[i])) continue;
    if (values[i] == wanted[i]) continue;
    ASSERT_NEAR(values[i], wanted[i],
                tolerance * std::max(1.0, std::fabs(wanted[i])))
        << "element " << i << " of " << found.Describe();
  }
}

inline void ExpectSame(const Tensor& found, const Tensor& wanted,
                       double tolerance = 0) {
  EXPECT_EQ(found.dtype(), wanted.dtype());
  ExpectValues(found, wanted.shape(), Values(wanted), tolerance);
}

// That of sums of some hundred products of numbers near 1.
inline double Tolerance(DType dtype) {
  return dtype == DType::kF32 ? 2e-5 : 1e-12;
}

// The code of the Error that `run` throws; OK if it throws none.
template <typename Run>
absl::StatusCode CodeOf(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.status().code();
  }
  return absl::StatusCode::kOk;
}

// The message of the INVALID_ARGUMENT that `run` throws.
template <typename Run>
std::string Complaint(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(error.status().message());
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_REFERENCE_H_
