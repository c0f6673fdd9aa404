#include "weft/memory/arena.h"

#include <algorithm>
#include <utility>

#include "weft/base/check.h"

namespace weft::memory {

Arena::Arena(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {
  WEFT_CHECK_GT(chunk_bytes, 0);
}

Arena::Arena(absl::Span<std::byte> piece)
    : chunk_bytes_(0),
      begin_(piece.data()),
      next_(piece.data()),
      end_(piece.data() + piece.size()) {}

void* Arena::Allocate(int64_t bytes, int64_t alignment) {
  WEFT_CHECK_GE(bytes, 0);
  WEFT_CHECK(alignment > 0 && (alignment & (alignment - 1)) == 0) << alignment;
  void* memory = AllocateHere(bytes, alignment);
  if (memory != nullptr || chunk_bytes_ == 0) return memory;
  AddChunk(bytes + alignment);
  return AllocateHere(bytes, alignment);
}

void* Arena::AllocateHere(int64_t bytes, int64_t alignment) {
  const auto address = reinterpret_cast<uintptr_t>(next_);
  const int64_t padding = -address & (alignment - 1);
  const int64_t room = end_ - next_;
  if (next_ == nullptr || padding > room || bytes > room - padding) {
    return nullptr;
  }
  std::byte* const memory = next_ + padding;
  next_ = memory + bytes;
  return memory;
}

void Arena::AddChunk(int64_t bytes) {
  const int64_t size_bytes = std::max(bytes, chunk_bytes_);
  used_before_ += next_ - begin_;
  chunks_.push_back(
      {std::unique_ptr<std::byte[]>(new std::byte[size_bytes]), size_bytes});
  begin_ = next_ = chunks_.back().memory.get();
  end_ = begin_ + size_bytes;
}

void Arena::Reset() {
  used_before_ = 0;
  next_ = begin_;
  if (chunks_.empty()) return;
  auto largest = std::max_element(chunks_.begin(), chunks_.end(),
                                  [](const Chunk& a, const Chunk& b) {
                                    return a.size_bytes < b.size_bytes;
                                  });
  std::swap(chunks_.front(), *largest);
  chunks_.erase(chunks_.begin() + 1, chunks_.end());
  begin_ = next_ = chunks_.front().memory.get();
  end_ = begin_ + chunks_.front().size_bytes;
}

}  // namespace weft::memory
