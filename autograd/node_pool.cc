#include "weft/autograd/node_pool.h"

#include <cstdint>
#include <new>

namespace weft {
namespace {

constexpr std::size_t kGranule = 32;
constexpr std::size_t kClasses = 16;  // up to 512 bytes; larger ones are rare

// Blocks of one size and thread. None under AddressSanitizer, so that it sees a
// use after the end. (By #if, since no BUILD file can know the sanitizer.)
#if defined(__SANITIZE_ADDRESS__)
constexpr int32_t kMostKept = 0;
#else
constexpr int32_t kMostKept = 4096;
#endif

struct Block {
  Block* next;
};

struct FreeList {
  Block* head = nullptr;
  int32_t length = 0;
};

// Plain memory, so that reaching it costs no check for initialisation; the
// Reaper, made once, empties it when the thread ends.
struct Cache {
  FreeList lists[kClasses];
  enum : uint8_t { kNew, kOpen, kClosed } state = kNew;
};
thread_local Cache cache;

struct Reaper {
  ~Reaper() {
    cache.state = Cache::kClosed;
    for (FreeList& list : cache.lists) {
      while (list.head != nullptr) {
        Block* block = list.head;
        list.head = block->next;
        ::operator delete(block);
      }
    }
  }
};

// Whether this thread keeps blocks: not once it has begun to end.
bool Open() {
  if (cache.state == Cache::kNew) {
    static thread_local Reaper reaper;
    (void)reaper;
    cache.state = Cache::kOpen;
  }
  return cache.state == Cache::kOpen;
}

std::size_t ClassOf(std::size_t bytes) { return (bytes - 1) / kGranule; }

}  // namespace

void* AllocateNode(std::size_t bytes) {
  const std::size_t size_class = ClassOf(bytes);
  if (size_class >= kClasses) return ::operator new(bytes);
  FreeList& list = cache.lists[size_class];
  if (list.head == nullptr) {
    return ::operator new((size_class + 1) * kGranule);
  }
  Block* block = list.head;
  list.head = block->next;
  --list.length;
  return block;
}

void FreeNode(void* block, std::size_t bytes) noexcept {
  const std::size_t size_class = ClassOf(bytes);
  if (size_class < kClasses) {
    FreeList& list = cache.lists[size_class];
    if (list.length < kMostKept && Open()) {
      list.head = new (block) Block{list.head};
      ++list.length;
      return;
    }
  }
  ::operator delete(block);
}

}  // namespace weft
