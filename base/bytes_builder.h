// BytesBuilder: bytes written one after another, which become a Bytes without a
// copy.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_BASE_BYTES_BUILDER_H_
#define WEFT_BASE_BYTES_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"

namespace weft {

class BytesBuilder {
 public:
  // So many bytes cost one allocation.
  static constexpr size_t kFirstBytes = 224;
  // A varint has at most so many.
  static constexpr size_t kMaxVarint = 10;

  BytesBuilder() = default;
  BytesBuilder(const BytesBuilder&) = delete;
  BytesBuilder& operator=(const BytesBuilder&) = delete;

  size_t size() const { return at_ - begin_; }
  bool empty() const { return at_ == begin_; }

  void Append(const void* bytes, size_t size) {
    if (size > 0) std::memcpy(Extend(size), bytes, size);
  }
  void Append(absl::string_view text) { Append(text.data(), text.size()); }

  // A number as protobuf writes it: seven bits to a byte, the lowest first.
  void Varint(uint64_t value) {
    MakeRoom(kMaxVarint);
    at_ = PutVarint(at_, value);
  }

  // `size` more bytes, for the caller to write before anything else is.
  char* Extend(size_t size) {
    MakeRoom(size);
    return std::exchange(at_, at_ + size);
  }

  // Leaves room for the length of what is written from now on, where that
  // begins: for EndSized().
  size_t BeginSized() {
    MakeRoom(1);
    *at_++ = 0;
    return size();
  }
  // Writes the length of what was written since BeginSized() returned `start`.
  // `more`: what will follow of the same.
  void EndSized(size_t start, size_t more = 0) {
    const size_t total = size() - start + more;
    if (total >= 0x80) return EndSizedSlowly(start, total);
    begin_[start - 1] = static_cast<char>(total);
  }

  // What was written; empty after that.
  Bytes Take();

 private:
  // Returns where it ends.
  static char* PutVarint(char* to, uint64_t value) {
    while (value >= 0x80) {
      *to++ = static_cast<char>(value | 0x80);
      value >>= 7;
    }
    *to++ = static_cast<char>(value);
    return to;
  }
  void MakeRoom(size_t size) {
    if (static_cast<size_t>(end_ - at_) < size) Grow(size);
  }
  void Grow(size_t size);
  void EndSizedSlowly(size_t start,
                      size_t total);  // more than a byte of length

  std::shared_ptr<void> owner_;
  char* begin_ = nullptr;
  char* at_ = nullptr;
  char* end_ = nullptr;
};

}  // namespace weft

#endif  // WEFT_BASE_BYTES_BUILDER_H_
