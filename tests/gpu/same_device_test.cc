// Ranks that share a device: each operation of a group gives what the CPU
// gives, on a GPU where there is one, and on the simulated device.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/device/current.h"
#include "weft/device/open.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;

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
  device::Context& context = *opened->context;
  const Device place(context, opened->index);
  SameDeviceOptions options;
  options.host_bytes = 0;
  auto shared = SharedDevice::Create(opened->context, opened->index);
  WEFT_ASSERT_OK(shared);
  options.device = *shared;
  LocalWorld host(kRanks);
  const auto wanted = WantedOf(kRanks);
  const auto rank_body = [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          ConnectSameDevice(options, host.Connect(rank)));
    const auto made = ProcessGroup::Create(std::move(backend));
    ProcessGroup& group = *made;
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        context.runtime().CreateStream(context.device(opened->index)));
    const device::StreamScope scope(stream);
    const auto to_device = [&](const Tensor& x) { return x.To(place); };
    for (const bool is_async : {false, true}) {
      WEFT_ASSIGN_OR_RETURN(const auto found,
                            CallAll(group, to_device, is_async));
      WANT_EQ(found == wanted[rank], true);
    }
    // Around the ring, from device to device.
    const Tensor in = to_device(Tensor::Zeros({1000}));
    const int left = (rank + kRanks - 1) % kRanks;
    WEFT_RETURN_IF_ERROR(
        group.Exchange({{PointToPoint::kReceive, in, left, 5},
                        {PointToPoint::kSend, to_device(Numbers(rank, 1000)),
                         (rank + 1) % kRanks, 5}}));
    WANT_EQ(BytesOf(in.To(Device::Cpu())), BytesOf(Numbers(left, 1000)));
    return absl::OkStatus();
  };
  EXPECT_THAT(testing::RunRanks(kRanks, rank_body), Each(IsOk()));
}

}  // namespace
}  // namespace weft::collectives
