// SharedState: what a simulated device tells other processes: which pages of
// its memory are allocated, and how far its shared events are. It lies behind
// the memory, in the same memfd.

#ifndef WEFT_DEVICE_SIMULATED_SHARED_STATE_H_
#define WEFT_DEVICE_SIMULATED_SHARED_STATE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace weft::device {

// Says that what was found is what was meant.
using Nonce = std::array<uint64_t, 2>;

// How often an event was recorded, and how many of these records are over.
struct SharedEventSlot {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> completed{0};

  // Record `number` is over, and those before it.
  void Complete(uint64_t number) {
    uint64_t known = completed.load();
    while (known < number && !completed.compare_exchange_weak(known, number)) {
    }
  }
};

// Thread-safety: thread-safe, and between processes.
class SharedState {
 public:
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int kEvents = 4096;

  // What it takes behind `memory_bytes`, which are whole pages.
  static int64_t BytesFor(int64_t memory_bytes);
  // Maps that of the memfd. kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SharedState>> Map(int fd,
                                                          int64_t memory_bytes);
  ~SharedState();
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;

  struct Head {
    Nonce nonce = {};
    int64_t memory_bytes = 0;
  };
  Head& head() const { return layout_->head; }
  SharedEventSlot& EventAt(int slot) const { return layout_->events[slot]; }
  // The number of the allocation that has this page; 0: none.
  std::atomic<uint32_t>& AllocationAt(int64_t page) const {
    return allocations_[page];
  }

 private:
  struct Layout {
    Head head;
    std::array<SharedEventSlot, kEvents> events;
  };
  SharedState(void* mapped, int64_t mapped_bytes);

  void* const mapped_;
  const int64_t mapped_bytes_;
  Layout* const layout_;
  std::atomic<uint32_t>* const allocations_;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_SHARED_STATE_H_
