// PeerMemory: the memory of a simulated device of another process, mapped
// twice, as that process has it: the host cannot touch it, tasks can.
//
// What the other has freed, tasks cannot reach either; unlike its own tasks
// they reach the rest of an allocation's last page.
//
// Thread-safety: thread-safe.

#ifndef WEFT_DEVICE_SIMULATED_PEER_MEMORY_H_
#define WEFT_DEVICE_SIMULATED_PEER_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/device/peer_process.h"
#include "weft/device/sharing.h"
#include "weft/device/simulated/shared_state.h"
#include "weft/device/simulated/task_memory.h"

namespace weft::device {

// What an IpcHandle of a simulated device is.
struct SimulatedHandle {
  enum class Kind : uint32_t { kMemory = 0x57534d31, kEvent = 0x57534531 };

  Kind kind = Kind::kMemory;
  int32_t pid = 0;
  int32_t fd = -1;          // the memfd, there
  int32_t slot = 0;         // kEvent
  Nonce nonce = {};         // of the memory
  int64_t total_bytes = 0;  // the same
  int64_t offset = 0;       // kMemory: of the allocation
  int64_t allocation = 0;   // kMemory: its number

  IpcHandle Encode() const;
  // kInvalidArgument: it is none of this kind.
  static absl::StatusOr<SimulatedHandle> Decode(const IpcHandle& handle,
                                                Kind wanted);
};

class PeerMemory final : public TaskMemory {
 public:
  // kUnavailable: the process has ended, or has no such memory.
  static absl::StatusOr<std::shared_ptr<PeerMemory>> Open(
      const SimulatedHandle& handle);
  ~PeerMemory() override;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const Nonce& nonce() const { return nonce_; }
  void* AddressOf(int64_t offset) const { return visible_ + offset; }
  SharedEventSlot& EventAt(int slot) const { return state_->EventAt(slot); }
  bool has_ended() const { return process_->has_ended(); }

  bool Contains(const void* address) const override;
  absl::StatusOr<void*> Reach(const void* address,
                              int64_t bytes) const override;
  int64_t AllocationOf(const void* address) const override;

 private:
  PeerMemory(std::shared_ptr<PeerProcess> process,
             std::unique_ptr<SharedState> state, char* visible, char* backing,
             int64_t bytes);

  const std::shared_ptr<PeerProcess> process_;
  const std::unique_ptr<SharedState> state_;
  char* const visible_;
  char* const backing_;
  const int64_t total_bytes_;
  const Nonce nonce_;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_PEER_MEMORY_H_
