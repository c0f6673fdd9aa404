// SimulatedMemory: the memory of one simulated device, which the host cannot
// touch.
//
// It is one memfd, mapped twice. The addresses that a program holds are those
// of the first mapping, which has no access rights: a load or store of the host
// ends in SIGSEGV, at that address. The device's tasks use the second mapping.
// Behind it lies what other processes read that open it (shared_state.h).
//
// New memory is filled with 0xFF, which is NaN in each floating-point type, and
// -1: who reads what nobody wrote computes NaN. Addresses that were given back
// are used again as late as possible, so that a stale one finds nothing.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DEVICE_SIMULATED_MEMORY_H_
#define WEFT_DEVICE_SIMULATED_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/device/simulated/peer_memory.h"
#include "weft/device/simulated/shared_state.h"
#include "weft/device/simulated/task_memory.h"

namespace weft::device {

class SimulatedMemory final : public TaskMemory {
 public:
  // `bytes`, rounded up to pages. Takes memory of the host as it is allocated.
  // kResourceExhausted if the host has no such address space.
  static absl::StatusOr<std::unique_ptr<SimulatedMemory>> Create(int64_t bytes);
  ~SimulatedMemory() override;
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;

  // Whole pages. kResourceExhausted if no range is that long. REQUIRES: bytes
  // > 0.
  absl::StatusOr<void*> Allocate(int64_t bytes);
  // kInvalidArgument if Allocate did not give it, or it was given back.
  absl::Status Free(const void* memory);

  bool Contains(const void* address) const override;
  absl::StatusOr<void*> Reach(const void* address,
                              int64_t bytes) const override;
  int64_t AllocationOf(const void* address) const override;

  // For another process: of the allocation that holds `address`, which begins
  // at the handle's offset. kInvalidArgument if none does.
  absl::StatusOr<SimulatedHandle> HandleOf(const void* address) const;
  int64_t OffsetOf(const void* address) const;

  // A slot for an event, and its handle. kResourceExhausted: all are taken.
  absl::StatusOr<SimulatedHandle> TakeEvent();
  // One whose records are not over stays taken.
  void GiveBackEvent(int slot);
  SharedEventSlot& EventAt(int slot) const { return state_->EventAt(slot); }
  // Nothing that was put on its streams runs any more.
  void CompleteAllEvents() const;

  int64_t total_bytes() const { return total_bytes_; }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  struct Range {
    int64_t bytes = 0;         // as asked for
    int64_t mapped_bytes = 0;  // whole pages
    int64_t number = 0;        // counts the allocations
  };
  using Ranges = std::map<int64_t, Range>;  // by offset

  SimulatedMemory(int fd, std::unique_ptr<SharedState> state, char* visible,
                  char* backing, int64_t bytes);
  // What the fields of all its handles are.
  SimulatedHandle OwnHandle(SimulatedHandle::Kind kind) const;
  // Tells other processes whose the pages are.
  void Publish(int64_t offset, const Range& range, int64_t number) const;
  Ranges::const_iterator Find(const void* address) const;
  // The first offset >= `from` where `bytes` are free, or -1.
  int64_t FindFree(int64_t from, int64_t bytes) const;

  const int fd_;
  const std::unique_ptr<SharedState> state_;
  char* const visible_;
  char* const backing_;
  const int64_t total_bytes_;
  int64_t used_bytes_ = 0;
  int64_t next_ = 0;  // where the next search begins
  int64_t allocations_ = 0;
  Ranges ranges_;
  int next_event_ = 0;
  std::vector<int> free_events_;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_MEMORY_H_
