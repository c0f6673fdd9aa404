// SliceReader: walks over the bytes of Slices, which may come from anybody:
// what is not there cannot be read.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_BASE_SLICE_READER_H_
#define WEFT_BASE_SLICE_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "weft/base/bytes.h"

namespace weft {

class SliceReader {
 public:
  // Borrows `slices`.
  explicit SliceReader(const Slices& slices);

  size_t remaining() const { return (end_ - at_) + later_; }
  size_t position() const { return total_ - remaining(); }

  // Each is false where fewer bytes remain; what is read then is nothing.
  bool Copy(void* to, size_t size) {
    if (size > static_cast<size_t>(end_ - at_)) return CopySlowly(to, size);
    if (size > 0) std::memcpy(to, at_, size);
    at_ += size;
    return true;
  }
  bool Skip(size_t size) {
    if (size > remaining()) return false;
    Advance(size);
    return true;
  }
  // Appends the next bytes as they lie, shared.
  bool Share(size_t size, Slices* to);
  // The next bytes in one piece: shared if they lie in one, else copied.
  bool Take(size_t size, Bytes* to);

  // A number as protobuf writes it. False also where it has more than 64 bits;
  // then some of its bytes have been read.
  bool Varint(uint64_t* value) {
    if (at_ == end_ || *at_ >= 0x80) return VarintSlowly(value);
    *value = *at_++;
    return true;
  }

  // The next `size` bytes if they lie in one piece, else null; not read yet.
  const uint8_t* Peek(size_t size) {
    if (at_ == end_) NextSlice();
    return size <= static_cast<size_t>(end_ - at_) ? at_ : nullptr;
  }

 private:
  bool CopySlowly(void* to, size_t size);
  bool VarintSlowly(uint64_t* value);
  void Advance(size_t size);  // REQUIRES: so many remain
  void NextSlice();           // to one with bytes, if there is one

  const Slices& slices_;
  size_t next_ = 0;  // index of the slice after this one
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;  // of this slice
  size_t later_;                  // bytes in those after it
  const size_t total_;
};

}  // namespace weft

#endif  // WEFT_BASE_SLICE_READER_H_
