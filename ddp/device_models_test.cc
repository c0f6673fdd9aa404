// A CNN and a transformer on 2 and 4 ranks give on simulated devices the CPU's
// numbers, under 20 orders of what is not ordered: losses, gradients,
// parameters and buffers.

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/device_groups.h"
#include "weft/ddp/small_training.h"
#include "weft/nn/small_models.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp::testing {
namespace {

using ::testing::Combine;
using ::testing::Each;
using ::testing::Values;
using ::weft::testing::IsOk;

// The simulated device computes by the CPU's functions: with sums of two, or by
// way of the host, the bits are the same. Sums of four gradients have another
// order over NCCL and on one device than around the CPU's ring, which changes
// one by some units of 6e-8; two steps make a few of that.
double ToleranceOf(By by, int size) {
  return by == By::kHost || size == 2 ? 0 : 2e-6;
}

class DeviceModels : public ::testing::TestWithParam<std::tuple<By, int>> {
 protected:
  template <typename Model>
  void ExpectNumbersOfTheCpu() {
    const auto [by, size] = GetParam();
    const double tolerance = ToleranceOf(by, size);
    const nn::testing::MakeSmallModel make = nn::testing::MakeSmall<Model>();
    const auto wanted = TrainSmallModelOnCpu(size, make);
    const auto body = [&](const Rank& rank) -> absl::Status {
      const auto& own = wanted[rank.group.rank()];
      WEFT_RETURN_IF_ERROR(own.status());
      WEFT_ASSIGN_OR_RETURN(const Numbers found,
                            TrainSmallModel(rank.group, rank.device(), make));
      return LargestDifference(found, *own, tolerance).status();
    };
    for (int seed = 0; seed < 20; ++seed) {
      EXPECT_THAT(RunGroups(size, {seed, by}, body), Each(IsOk()))
          << "seed " << seed;
    }
  }
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<By, int>>& info) {
  const By by = std::get<0>(info.param);
  return absl::StrCat(by == By::kHost   ? "ByTheHost"
                      : by == By::kNccl ? "OverNccl"
                                        : "OnOneDevice",
                      std::get<1>(info.param), "Ranks");
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceModels,
                         Combine(Values(By::kHost, By::kNccl, By::kSameDevice),
                                 Values(2, 4)),
                         NameOf);

TEST_P(DeviceModels, CnnHasTheNumbersOfTheCpu) {
  ExpectNumbersOfTheCpu<nn::testing::SmallCnn>();
}

TEST_P(DeviceModels, TransformerHasTheNumbersOfTheCpu) {
  ExpectNumbersOfTheCpu<nn::testing::Transformer>();
}

}  // namespace
}  // namespace weft::ddp::testing
