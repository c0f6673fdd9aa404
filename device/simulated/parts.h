// What a SimulatedRuntime is made of.

#ifndef WEFT_DEVICE_SIMULATED_PARTS_H_
#define WEFT_DEVICE_SIMULATED_PARTS_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "weft/device/first_failure.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/memory.h"
#include "weft/device/simulated/peer_memory.h"
#include "weft/device/simulated/runtime.h"

namespace weft::device {

struct SimulatedRuntime::PinnedBlock {
  static constexpr int64_t kAlignment = 4096;

  explicit PinnedBlock(int64_t size)
      : bytes(size),
        memory(static_cast<char*>(std::aligned_alloc(
            kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment))) {}
  ~PinnedBlock() { std::free(memory); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  const int64_t bytes;
  char* const memory;
};

struct SimulatedRuntime::Simulated {
  std::unique_ptr<SimulatedMemory> memory;
  FirstFailure failure;
  Stream default_stream;
  int failing_allocations = 0;
  std::vector<std::string> failing_kernels;
};

// Where a copy reads or writes. It is found when the copy is asked for, and
// once more when it runs: what was given back in between is no memory then.
struct SimulatedRuntime::End {
  char* address = nullptr;
  Location location;
  int64_t allocation = 0;               // of kDevice
  std::shared_ptr<PinnedBlock> pinned;  // of kPinned
  std::shared_ptr<PeerMemory> peer;     // of another process
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_PARTS_H_
