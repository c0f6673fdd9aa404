// The nccl backend on a GPU: each operation of a group of one rank, and of two
// processes, gives what the CPU gives. Skipped without a GPU or libnccl.so.2.
// The simulated NCCL runs the same here.
//
// NCCL refuses two ranks of one host on one GPU. Where there is one only, each
// process takes a host of its own in NCCL_HOSTID, so that they meet as ranks of
// two hosts do: over sockets of the loopback interface.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/process_group.h"
#include "weft/device/open.h"
#include "weft/tests/gpu/compare_calls.h"
#include "weft/tests/gpu/rank_processes.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::Each;

// Before NCCL is loaded. What is set already stays.
void SetEnvironmentOfNccl(int rank, bool shares_a_gpu) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MNNVL_ENABLE", "0", 0);
  setenv("NCCL_DEBUG", "WARN", 0);
  if (shares_a_gpu) {
    setenv("NCCL_HOSTID", absl::StrCat("weft-host-", rank).c_str(), 1);
  }
}

absl::Status RunRank(int rank, int size, const device::OpenedDevice& opened,
                     RankProcesses& processes,
                     collectives::NcclFunctions functions) {
  int version = 0;
  WEFT_RETURN_IF_ERROR(collectives::NcclStatus(
      functions, functions.GetVersion(&version), "ncclGetVersion", nullptr));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Backend> backend,
                        processes.Connect(rank, size));
  collectives::NcclOptions options;
  options.store = &processes.store();
  options.rank = rank;
  options.size = size;
  options.context = opened.context;
  options.device = opened.index;
  options.host_bytes = 0;
  options.functions =
      std::make_shared<const collectives::NcclFunctions>(std::move(functions));
  WEFT_ASSIGN_OR_RETURN(backend,
                        collectives::ConnectNccl(options, std::move(backend)));
  const auto group = collectives::ProcessGroup::Create(std::move(backend));
  const int devices = opened.context->device_count();
  return CompareWithCpu(
      absl::StrCat("NCCL ", version, ", ", size, " process(es), ",
                   devices < size ? "one GPU" : "a GPU each"),
      *group, *opened.context, opened.index);
}

void RunOnCuda(int size) {
  RankProcesses processes;
  processes.Run(size, [&](int rank) -> RankEnd {
    const auto opened = device::OpenDevice("cuda", rank);
    if (!opened.ok()) return AbsentOrFailed(opened.status());
    SetEnvironmentOfNccl(rank, opened->context->device_count() < size);
    auto functions = collectives::LoadNccl();
    if (!functions.ok()) return AbsentOrFailed(functions.status());
    return {RunRank(rank, size, *opened, processes, *std::move(functions))};
  });
}

TEST(NcclOnCuda, OneRankGivesWhatTheCpuGives) { RunOnCuda(1); }

TEST(NcclOnCuda, TwoProcessesGiveWhatTheCpuGives) { RunOnCuda(2); }

// In a process of its own, since it starts threads.
TEST(NcclSimulated, RanksGiveWhatTheCpuGives) {
  RankProcesses processes;
  processes.Run(1, [&](int) -> RankEnd {
    for (const int size : {1, 2}) {
      collectives::NcclWorld world(size, /*seed=*/size);
      world.host_bytes = 0;
      const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Backend> backend,
                              world.Connect(rank));
        const auto group =
            collectives::ProcessGroup::Create(std::move(backend));
        return CompareWithCpu("simulated NCCL", *group,
                              world.devices(rank).context(), 0);
      });
      EXPECT_THAT(statuses, Each(IsOk()));
      EXPECT_TRUE(world.HasLaunched());
      world.ExpectSound();
    }
    return {};
  });
}

}  // namespace
}  // namespace weft::testing
