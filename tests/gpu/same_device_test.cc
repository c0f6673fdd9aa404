// Ranks that share a device: each operation of a group gives what the CPU
// gives, on a GPU where there is one, and on the simulated device.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/device/open.h"
#include "weft/tests/gpu/compare_calls.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::Each;

class SameDeviceOn : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Devices, SameDeviceOn,
                         ::testing::Values("simulated", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(SameDeviceOn, EachOperationGivesWhatTheCpuGives) {
  constexpr int kRanks = 3;
  const auto opened = device::OpenDevice(GetParam());
  if (GetParam() == "cuda" && (absl::IsUnavailable(opened.status()) ||
                               absl::IsUnimplemented(opened.status()))) {
    GTEST_SKIP() << opened.status();
  }
  WEFT_ASSERT_OK(opened);
  collectives::SameDeviceOptions options;
  options.host_bytes = 0;
  auto shared =
      collectives::SharedDevice::Create(opened->context, opened->index);
  WEFT_ASSERT_OK(shared);
  options.device = *shared;
  collectives::LocalWorld host(kRanks);
  const auto rank_body = [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        std::unique_ptr<collectives::Backend> backend,
        collectives::ConnectSameDevice(options, host.Connect(rank)));
    const auto group = collectives::ProcessGroup::Create(std::move(backend));
    return CompareWithCpu(
        absl::StrCat("same_device, threads on ",
                     Name(opened->context->device(opened->index))),
        *group, *opened->context, opened->index);
  };
  EXPECT_THAT(RunRanks(kRanks, rank_body), Each(IsOk()));
}

}  // namespace
}  // namespace weft::testing
