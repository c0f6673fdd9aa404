// Allocator: memory for tensors and messages; the caching one keeps what is
// given back for the next of the same size.

#ifndef WEFT_MEMORY_ALLOCATOR_H_
#define WEFT_MEMORY_ALLOCATOR_H_

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft::memory {

// Thread-safety: thread-safe.
class Allocator {
 public:
  struct Stats {
    int64_t used_bytes = 0;    // handed out, as rounded up
    int64_t cached_bytes = 0;  // given back and kept
    int64_t peak_bytes = 0;    // the most that used_bytes has been
    int64_t allocations = 0;
    int64_t cache_hits = 0;  // of them, served without the system
  };

  virtual ~Allocator() = default;

  // At least `bytes`, aligned to 64; not initialised. Null if there is not as
  // much, or if it would pass the allocator's limit. For 0 bytes, a pointer to
  // give back as any other. REQUIRES: bytes >= 0.
  virtual void* Allocate(int64_t bytes) = 0;

  // Gives back what Allocate(bytes) returned; null is let pass.
  virtual void Deallocate(void* memory, int64_t bytes) = 0;

  virtual Stats stats() const = 0;
};

// Rounds each request up to a size class, four to each power of two (so at most
// a quarter is lost), and keeps what is given back in a list for its class.
// Blocks of 2 MiB and more are mapped on their own and may use huge pages.
//
// Source: the segregated free lists of Wilson et al., "Dynamic Storage
// Allocation", 1995, 3.6. Both operations are O(1).
class CachingAllocator final : public Allocator {
 public:
  struct Options {
    // The most that may be handed out and cached together. The cache is
    // released before a request is refused.
    int64_t limit_bytes = std::numeric_limits<int64_t>::max();
    // The most that is kept; more goes back to the system at once.
    int64_t cache_limit_bytes = int64_t{1} << 30;
  };

  CachingAllocator() : CachingAllocator(Options()) {}
  explicit CachingAllocator(Options options) : options_(options) {}
  // What is handed out must have been given back.
  ~CachingAllocator() override;

  void* Allocate(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  void Deallocate(void* memory, int64_t bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  Stats stats() const override ABSL_LOCKS_EXCLUDED(mu_);

  // Gives all that is cached back to the system.
  void ReleaseCached() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Enough for any int64_t: four for each power of two.
  static constexpr int kClasses = 4 * 64;

  using Cache = std::array<std::vector<void*>, kClasses>;  // by size class

  void* TakeCached(int index, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts it as used, or returns false if that would pass the limit.
  bool Reserve(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountUsed(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  Cache cache_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
};

// The one for ordinary memory. Process-wide: a cache carries no meaning.
Allocator& HostAllocator();

}  // namespace weft::memory

#endif  // WEFT_MEMORY_ALLOCATOR_H_
