#include "weft/collectives/reduction.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/dtype.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr ReduceOp kAllOps[] = {
    ReduceOp::kSum,     ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
    ReduceOp::kAverage, ReduceOp::kAnd,     ReduceOp::kOr,  ReduceOp::kXor};

// The table in the header.
TEST(Reduction, OperationsTakeTheDtypesOfTheTable) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      const bool is_bitwise =
          op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
      const bool is_taken = op == ReduceOp::kAverage
                                ? dtype != DType::kBool
                                : !(is_bitwise && IsFloating(dtype));
      const absl::Status status = CheckReduction(op, dtype);
      EXPECT_EQ(status.ok(), is_taken) << Name(op) << " " << Name(dtype);
      if (is_taken) continue;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   std::string(Name(dtype))));
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   std::string(Name(op))));
    }
  }
}

TEST(Reduction, FactorsAreOfFloatingElements) {
  for (const DType dtype : kAllDTypes) {
    const absl::Status status = CheckReduction({ReduceOp::kSum, 0.5}, dtype);
    EXPECT_EQ(status.ok(), IsFloating(dtype)) << Name(dtype);
    EXPECT_THAT(CheckReduction({ReduceOp::kSum, 1}, dtype), IsOk());
    if (!IsFloating(dtype)) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   "a factor (0.5) wants floating elements"));
    }
  }
}

TEST(Reduction, UnknownOperationsAreRefused) {
  const auto unknown = static_cast<ReduceOp>(99);
  EXPECT_THAT(CheckReduction(unknown, DType::kF32),
              StatusIs(absl::StatusCode::kInvalidArgument, "99 is unknown"));
  std::set<std::string> names;
  for (const ReduceOp op : kAllOps) names.emplace(Name(op));
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(names.count(std::string(Name(unknown))), 0u);
}

}  // namespace
}  // namespace weft::collectives
