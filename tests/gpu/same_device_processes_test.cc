// Processes that share a device: each operation of a group gives what the CPU
// gives, on a GPU where there is one, and on the simulated device. In a program
// of its own: CUDA must not have been used before a fork.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/children.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/device/current.h"
#include "weft/device/open.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

constexpr int kRanks = 2;
constexpr int kNoDevice = 77;

struct Directories {
  testing::TempDir sockets, keys;
};

absl::Status RunRank(int rank, const device::OpenedDevice& opened,
                     const Directories& directories) {
  device::Context& context = *opened.context;
  const Device place(context, opened.index);
  DirectoryStore store(directories.keys.path());
  HostOptions host;
  host.store = &store;
  host.rank = rank;
  host.size = kRanks;
  host.directory = directories.sockets.path();
  host.arena_bytes = 1 << 20;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, ConnectHost(host));
  SameDeviceOptions options;
  options.host_bytes = 0;
  WEFT_ASSIGN_OR_RETURN(options.device,
                        SharedDevice::Create(opened.context, opened.index));
  WEFT_ASSIGN_OR_RETURN(backend,
                        ConnectSameDevice(options, std::move(backend)));
  const auto made = ProcessGroup::Create(std::move(backend));
  ProcessGroup& group = *made;
  WEFT_ASSIGN_OR_RETURN(
      const device::Stream stream,
      context.runtime().CreateStream(context.device(opened.index)));
  const device::StreamScope scope(stream);
  const auto wanted = WantedOf(kRanks);
  const auto to_device = [&](const Tensor& x) { return x.To(place); };
  for (const bool is_async : {false, true}) {
    WEFT_ASSIGN_OR_RETURN(const auto found,
                          CallAll(group, to_device, is_async));
    WANT_EQ(found == wanted[rank], true);
  }
  const Tensor in = to_device(Tensor::Zeros({1000}));
  WEFT_RETURN_IF_ERROR(group.Exchange(
      {{PointToPoint::kReceive, in, 1 - rank, 5},
       {PointToPoint::kSend, to_device(Numbers(rank, 1000)), 1 - rank, 5}}));
  WANT_EQ(BytesOf(in.To(Device::Cpu())), BytesOf(Numbers(1 - rank, 1000)));
  return group.Barrier();
}

class ProcessesOn : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Devices, ProcessesOn,
                         ::testing::Values("simulated", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(ProcessesOn, EachOperationGivesWhatTheCpuGives) {
  Directories directories;
  Children children(kRanks, [&](int rank) {
    const auto opened = device::OpenDevice(GetParam());
    if (absl::IsUnavailable(opened.status()) ||
        absl::IsUnimplemented(opened.status())) {
      return kNoDevice;
    }
    const absl::Status status =
        opened.ok() ? RunRank(rank, *opened, directories) : opened.status();
    if (!status.ok()) {
      fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
    }
    return status.ok() ? 0 : 1;
  });
  bool is_absent = false;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int end = children.Wait(rank);
    is_absent |= end == kNoDevice && GetParam() == "cuda";
    EXPECT_TRUE(end == 0 || is_absent) << "rank " << rank << ": " << end;
  }
  if (is_absent) GTEST_SKIP() << "no CUDA device";
}

}  // namespace
}  // namespace weft::collectives
