// Arena: memory handed out by moving a pointer, and given back all at once.

#ifndef WEFT_MEMORY_ARENA_H_
#define WEFT_MEMORY_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"

namespace weft::memory {

// Takes its memory from the heap in chunks, or from one given piece, such as a
// Segment, which it does not exceed. Runs no destructors.
//
// Thread-safety: one thread at a time.
class Arena {
 public:
  // Grows by chunks of at least `chunk_bytes`.
  explicit Arena(int64_t chunk_bytes = 64 * 1024);
  // Hands out parts of `piece`, which must outlive it and what it hands out.
  explicit Arena(absl::Span<std::byte> piece);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Null if a given piece is used up. REQUIRES: bytes >= 0 and `alignment` is a
  // power of two.
  void* Allocate(int64_t bytes, int64_t alignment = alignof(std::max_align_t));

  // `count` elements, not initialised.
  template <typename T>
  T* AllocateArray(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    if (count > INT64_MAX / static_cast<int64_t>(sizeof(T))) return nullptr;
    return static_cast<T*>(Allocate(count * sizeof(T), alignof(T)));
  }

  // All that was handed out becomes invalid. Keeps the largest chunk, so that
  // a loop that resets it soon takes nothing from the heap.
  void Reset();

  // Handed out since the last Reset, padding included.
  int64_t used_bytes() const { return used_before_ + (next_ - begin_); }

 private:
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    int64_t size_bytes;
  };

  void* AllocateHere(int64_t bytes, int64_t alignment);
  void AddChunk(int64_t bytes);

  const int64_t chunk_bytes_;  // 0: a given piece
  std::vector<Chunk> chunks_;
  std::byte* begin_ = nullptr;  // of the current chunk or piece
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
  int64_t used_before_ = 0;  // in the chunks before the current one
};

}  // namespace weft::memory

#endif  // WEFT_MEMORY_ARENA_H_
