// Processes that share a device: each operation of a group gives what the CPU
// gives, on a GPU where there is one, and on the simulated device. In a program
// of its own: CUDA must not have been used before a fork.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/device/open.h"
#include "weft/tests/gpu/compare_calls.h"
#include "weft/tests/gpu/rank_processes.h"

namespace weft::testing {
namespace {

constexpr int kRanks = 2;

absl::Status RunRank(int rank, const device::OpenedDevice& opened,
                     RankProcesses& processes) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Backend> backend,
                        processes.Connect(rank, kRanks));
  collectives::SameDeviceOptions options;
  options.host_bytes = 0;
  WEFT_ASSIGN_OR_RETURN(options.device, collectives::SharedDevice::Create(
                                            opened.context, opened.index));
  WEFT_ASSIGN_OR_RETURN(
      backend, collectives::ConnectSameDevice(options, std::move(backend)));
  const auto group = collectives::ProcessGroup::Create(std::move(backend));
  return CompareWithCpu(
      absl::StrCat("same_device, processes on ",
                   Name(opened.context->device(opened.index))),
      *group, *opened.context, opened.index);
}

class ProcessesOn : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Devices, ProcessesOn,
                         ::testing::Values("simulated", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(ProcessesOn, EachOperationGivesWhatTheCpuGives) {
  RankProcesses processes;
  processes.Run(kRanks, [&](int rank) -> RankEnd {
    const auto opened = device::OpenDevice(GetParam());
    if (!opened.ok()) return AbsentOrFailed(opened.status());
    return {RunRank(rank, *opened, processes)};
  });
}

}  // namespace
}  // namespace weft::testing
