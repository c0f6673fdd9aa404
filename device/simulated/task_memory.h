// TaskMemory: device memory as tasks of a simulated device reach it.

#ifndef WEFT_DEVICE_SIMULATED_TASK_MEMORY_H_
#define WEFT_DEVICE_SIMULATED_TASK_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace weft::device {

class TaskMemory {
 public:
  virtual ~TaskMemory() = default;

  // Whether it is an address of this memory, allocated or not.
  virtual bool Contains(const void* address) const = 0;
  // The address in the mapping of tasks of `bytes` at `address`. kInternal if
  // they do not lie in one living allocation.
  virtual absl::StatusOr<void*> Reach(const void* address,
                                      int64_t bytes) const = 0;
  // Which allocation of all that were made holds `address`; 0 if none does.
  virtual int64_t AllocationOf(const void* address) const = 0;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_TASK_MEMORY_H_
