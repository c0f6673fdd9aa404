#include "weft/base/bytes_builder.h"

#include <algorithm>

namespace weft {
namespace {

// Its constructor leaves it as it is.
struct Block {
  Block() {}
  char bytes[BytesBuilder::kFirstBytes];
};

}  // namespace

void BytesBuilder::EndSizedSlowly(size_t start, size_t total) {
  const size_t written = size() - start;
  char number[kMaxVarint];
  const size_t moved = PutVarint(number, total) - number - 1;
  Extend(moved);
  std::memmove(begin_ + start + moved, begin_ + start, written);
  std::memcpy(begin_ + start - 1, number, moved + 1);
}

Bytes BytesBuilder::Take() {
  const char* const begin = std::exchange(begin_, nullptr);
  const size_t size = at_ - begin;
  at_ = end_ = nullptr;
  if (size == 0) return Bytes();
  return Bytes::Wrap(begin, size, std::move(owner_));
}

void BytesBuilder::Grow(size_t size) {
  const size_t used = this->size();
  if (used == 0 && size <= kFirstBytes) {
    auto block = std::make_shared<Block>();
    begin_ = at_ = block->bytes;
    end_ = begin_ + kFirstBytes;
    owner_ = std::move(block);
    return;
  }
  const size_t capacity = std::max(used + size, 2 * used);
  const std::shared_ptr<char[]> larger(new char[capacity]);
  if (used > 0) std::memcpy(larger.get(), begin_, used);
  begin_ = larger.get();
  at_ = begin_ + used;
  end_ = begin_ + capacity;
  owner_ = larger;
}

}  // namespace weft
