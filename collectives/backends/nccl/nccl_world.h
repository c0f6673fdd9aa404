// NcclWorld: the ranks of tests of the nccl backend: threads of one process,
// over a simulated NCCL and the local backend, with two simulated devices each.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_WORLD_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/device/device_world.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"
#include "weft/collectives/backends/nccl/simulated_nccl.h"
#include "weft/device/context.h"
#include "weft/rendezvous/memory_store.h"

namespace weft::collectives {

// The first device of each rank is NCCL's.
class NcclWorld : public DeviceWorld {
 public:
  NcclWorld(int size, uint64_t seed, const DiagnosisOptions& diagnosis = {})
      : DeviceWorld(size, seed, Devices::kOfEachRank, diagnosis), nccl_(seed) {}

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    return ConnectNccl(OptionsOf(rank), host().Connect(rank));
  }
  NcclOptions OptionsOf(int rank) {
    NcclOptions options;
    options.store = &store_;
    options.rank = rank;
    options.size = size();
    options.context = devices(rank).context().shared_from_this();
    options.functions = nccl_.Library(rank);
    options.moves_host_tensors = moves_host_tensors;
    options.connect_timeout = connect_timeout;
    options.host_bytes = host_bytes;
    return options;
  }

  bool HasLaunched() override { return nccl_.launches() > 0; }
  // Whether NCCL was used as it is to be.
  void ExpectSound() override {
    EXPECT_EQ(nccl_.communicators(), 0);
    EXPECT_EQ(nccl_.mismatches(), 0);
    EXPECT_EQ(nccl_.misuses(), 0);
  }

  SimulatedNccl& nccl() { return nccl_; }

 private:
  SimulatedNccl nccl_;
  rendezvous::MemoryStore store_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_WORLD_H_
