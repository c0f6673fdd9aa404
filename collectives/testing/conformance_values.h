// What the tests of the conformance suite have in common.

#ifndef WEFT_COLLECTIVES_TESTING_CONFORMANCE_VALUES_H_
#define WEFT_COLLECTIVES_TESTING_CONFORMANCE_VALUES_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"

// In a body that runs on a rank: ends it with what was wrong.
#define WANT_EQ(found, wanted)                                              \
  do {                                                                      \
    const auto weft_found = (found);                                        \
    const auto weft_wanted = (wanted);                                      \
    if (!(weft_found == weft_wanted)) {                                     \
      return absl::InternalError(absl::StrCat(                              \
          "line ", __LINE__, ", rank ", group.rank(), " of ", group.size(), \
          ": found ", ::testing::PrintToString(weft_found), ", wanted ",    \
          ::testing::PrintToString(weft_wanted)));                          \
    }                                                                       \
  } while (false)

namespace weft::collectives {

inline constexpr char kOtherProcesses[] =
    "this test paces ranks by variables, and they are other processes";

// Small whole numbers, different for each rank and element: sums are exact.
inline Tensor Numbers(int rank, int64_t count, DType dtype = DType::kF32) {
  const Tensor result = Tensor::Empty({count}, DType::kI64);
  for (int64_t i = 0; i < count; ++i) {
    result.data<int64_t>()[i] = (rank * 3 + i * 7) % 5 + 1;
  }
  return result.To(dtype);
}

// What a reduction gives on one rank.
inline Tensor Expected(ReduceOp op, const std::vector<Tensor>& inputs) {
  std::vector<Contribution> contributions;
  for (const Tensor& input : inputs) {
    contributions.push_back({static_cast<std::byte*>(input.raw()), 1});
  }
  const Tensor result = Tensor::EmptyLike(inputs[0]);
  std::byte* const out = static_cast<std::byte*>(result.raw());
  ReduceContributions(result.dtype(), op, contributions, {&out, 1},
                      result.numel());
  return result;
}

inline std::vector<Tensor> NumbersOfAll(int size, int64_t count,
                                        DType dtype = DType::kF32) {
  std::vector<Tensor> result;
  for (int r = 0; r < size; ++r) result.push_back(Numbers(r, count, dtype));
  return result;
}

inline std::string BytesOf(const Tensor& tensor) {
  const Tensor flat = tensor.Contiguous();
  return std::string(static_cast<const char*>(flat.raw()), flat.bytes());
}

// Whether elements differ by no more than roundings of their dtype: one of a
// factor, of each product and each sum of at most 4 ranks, all of one sign.
inline bool AreNear(const Tensor& found, const Tensor& wanted) {
  const double epsilon = found.dtype() == DType::kBF16  ? 0x1p-8
                         : found.dtype() == DType::kF16 ? 0x1p-11
                         : found.dtype() == DType::kF32 ? 0x1p-24
                                                        : 0x1p-53;
  const auto a = found.To(DType::kF64).ToVector<double>();
  const auto b = wanted.To(DType::kF64).ToVector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 6 * epsilon * std::abs(b[i]))) return false;
  }
  return a.size() == b.size();
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TESTING_CONFORMANCE_VALUES_H_
