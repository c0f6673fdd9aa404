#include "weft/memory/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "weft/base/check.h"

namespace weft::memory {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and an AVX-512 register
constexpr int64_t kMappedFromBytes = int64_t{2} << 20;  // a huge page
// More than any address space; also keeps the arithmetic from overflowing.
constexpr int64_t kMaxBytes = int64_t{1} << 48;

// The classes are 64, 128, 192, 256 (all multiples of the alignment), 320, 384,
// 448, 512, 640, 768, ...: four steps to each doubling.
struct SizeClass {
  int index;
  int64_t bytes;
};

SizeClass ClassOf(int64_t bytes) {
  const int64_t units =
      (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  if (units <= 4) return {static_cast<int>(units - 1), units * kAlignment};
  // units is in (2^power, 2^(power+1)]; round it up to a quarter of 2^power.
  const int power = 63 - __builtin_clzll(static_cast<uint64_t>(units - 1));
  const int64_t step = int64_t{1} << (power - 2);
  const int64_t quarters = (units + step - 1) / step;  // in 5..8
  return {4 * (power - 1) + static_cast<int>(quarters - 5),
          quarters * step * kAlignment};
}

void* SystemAllocate(int64_t bytes) {
  if (bytes < kMappedFromBytes) return std::aligned_alloc(kAlignment, bytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // A wish: without huge pages it is merely slower.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void SystemDeallocate(void* memory, int64_t bytes) {
  if (bytes < kMappedFromBytes) {
    std::free(memory);
  } else {
    munmap(memory, bytes);
  }
}

// The size of the blocks of a class.
int64_t BytesOf(int index) {
  if (index < 4) return (index + 1) * kAlignment;
  const int power = index / 4 + 1;
  return (index % 4 + 5) * (int64_t{1} << (power - 2)) * kAlignment;
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  ReleaseCached();
  MutexLock lock(mu_);
  WEFT_CHECK_EQ(stats_.used_bytes, 0) << "bytes were not given back";
}

void* CachingAllocator::Allocate(int64_t bytes) {
  WEFT_CHECK_GE(bytes, 0);
  if (bytes > kMaxBytes) return nullptr;
  const SizeClass size = ClassOf(bytes);
  bool is_granted;
  {
    MutexLock lock(mu_);
    if (void* memory = TakeCached(size.index, size.bytes)) return memory;
    is_granted = Reserve(size.bytes);
  }
  if (!is_granted) {
    ReleaseCached();
    MutexLock lock(mu_);
    if (!Reserve(size.bytes)) return nullptr;
  }
  void* memory = SystemAllocate(size.bytes);
  if (memory == nullptr) {
    ReleaseCached();
    memory = SystemAllocate(size.bytes);
  }
  if (memory == nullptr) {
    MutexLock lock(mu_);
    stats_.used_bytes -= size.bytes;
  }
  return memory;
}

void CachingAllocator::Deallocate(void* memory, int64_t bytes) {
  if (memory == nullptr) return;
  const SizeClass size = ClassOf(bytes);
  {
    MutexLock lock(mu_);
    stats_.used_bytes -= size.bytes;
    WEFT_CHECK_GE(stats_.used_bytes, 0) << "given back twice, or another size";
    if (size.bytes <= options_.cache_limit_bytes - stats_.cached_bytes) {
      stats_.cached_bytes += size.bytes;
      cache_[size.index].push_back(memory);
      return;
    }
  }
  SystemDeallocate(memory, size.bytes);
}

Allocator::Stats CachingAllocator::stats() const {
  MutexLock lock(mu_);
  return stats_;
}

void CachingAllocator::ReleaseCached() {
  Cache released;  // to the system without the lock
  {
    MutexLock lock(mu_);
    released.swap(cache_);
    stats_.cached_bytes = 0;
  }
  for (int index = 0; index < kClasses; ++index) {
    for (void* memory : released[index]) {
      SystemDeallocate(memory, BytesOf(index));
    }
  }
}

// The most recently used, as it may be in the processor's caches.
void* CachingAllocator::TakeCached(int index, int64_t bytes) {
  std::vector<void*>& cached = cache_[index];
  if (cached.empty()) return nullptr;
  void* const memory = cached.back();
  cached.pop_back();
  stats_.cached_bytes -= bytes;
  ++stats_.cache_hits;
  CountUsed(bytes);
  return memory;
}

bool CachingAllocator::Reserve(int64_t bytes) {
  const int64_t held_bytes = stats_.used_bytes + stats_.cached_bytes;
  if (bytes > options_.limit_bytes - held_bytes) return false;
  CountUsed(bytes);
  return true;
}

void CachingAllocator::CountUsed(int64_t bytes) {
  ++stats_.allocations;
  stats_.used_bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.used_bytes);
}

Allocator& HostAllocator() {
  static Allocator& allocator = *new CachingAllocator;  // outlives its users
  return allocator;
}

}  // namespace weft::memory
