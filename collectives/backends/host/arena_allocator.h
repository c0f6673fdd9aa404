// ArenaAllocator: gives out one rank's part of a segment, and takes it back.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_ARENA_ALLOCATOR_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_ARENA_ALLOCATOR_H_

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft::collectives {

// Hands out offsets, aligned to 64; the first hole that is large enough.
//
// Thread-safety: thread-safe.
class ArenaAllocator {
 public:
  explicit ArenaAllocator(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) holes_[0] = bytes;
  }

  // -1 if there is no hole of `bytes`.
  int64_t Allocate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // What Allocate(bytes) returned.
  void Free(int64_t offset, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t bytes() const { return bytes_; }
  int64_t free_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static int64_t Rounded(int64_t bytes) {
    return (bytes < 1 ? 64 : bytes + 63) / 64 * 64;
  }

  const int64_t bytes_;
  mutable Mutex mu_;
  std::map<int64_t, int64_t> holes_ ABSL_GUARDED_BY(mu_);  // offset, size
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_ARENA_ALLOCATOR_H_
