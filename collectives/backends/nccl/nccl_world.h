// NcclWorld: the ranks of tests of the nccl backend: threads of one process,
// over a simulated NCCL and the local backend, with two simulated devices each.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"
#include "weft/collectives/backends/nccl/simulated_nccl.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/device/context.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::collectives {

using NcclRank = DeviceRank;  // the first device is NCCL's

class NcclWorld : public TestWorld {
 public:
  // `seed`: of the order in which tasks of devices run.
  NcclWorld(int size, uint64_t seed, const DiagnosisOptions& diagnosis = {})
      : size_(size), host_(size, HostOptionsOf(diagnosis)), nccl_(seed) {
    for (int r = 0; r < size; ++r) {
      devices_.push_back(std::make_unique<device::testing::SimulatedDevices>(
          seed * 8 + r, /*devices=*/2));
    }
  }

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    return ConnectNccl(OptionsOf(rank), host_.Connect(rank));
  }
  NcclOptions OptionsOf(int rank) {
    NcclOptions options;
    options.store = &store_;
    options.rank = rank;
    options.size = size_;
    options.context = devices_[rank]->context().shared_from_this();
    options.functions = nccl_.Library(rank);
    options.moves_host_tensors = moves_host_tensors;
    options.connect_timeout = connect_timeout;
    options.host_bytes = host_bytes;
    return options;
  }

  // Runs `body` as each rank; their statuses.
  std::vector<absl::Status> Run(
      const std::function<absl::Status(const NcclRank&)>& body) {
    return testing::RunRanks(size_, [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Connect(rank));
      GroupOptions options;
      options.timeout = absl::Seconds(30);
      const auto group = ProcessGroup::Create(std::move(backend), options);
      return body({*group, *devices_[rank]});
    });
  }

  int size() const { return size_; }
  SimulatedNccl& nccl() { return nccl_; }
  LocalWorld& host() { return host_; }
  device::testing::SimulatedDevices& devices(int rank) {
    return *devices_[rank];
  }

  bool moves_host_tensors = false;
  int64_t host_bytes = NcclOptions().host_bytes;
  absl::Duration connect_timeout = absl::Minutes(1);

 private:
  static LocalWorld::Options HostOptionsOf(const DiagnosisOptions& diagnosis) {
    LocalWorld::Options options;
    options.diagnosis = diagnosis;
    options.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    return options;
  }

  const int size_;
  LocalWorld host_;
  SimulatedNccl nccl_;
  rendezvous::MemoryStore store_;
  std::vector<std::unique_ptr<device::testing::SimulatedDevices>> devices_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_WORLD_H_
