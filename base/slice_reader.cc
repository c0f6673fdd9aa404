#include "weft/base/slice_reader.h"

#include <algorithm>

namespace weft {
SliceReader::SliceReader(const Slices& slices)
    : slices_(slices), later_(TotalSize(slices)), total_(later_) {
  NextSlice();
}

void SliceReader::NextSlice() {
  while (at_ == end_ && next_ < slices_.size()) {
    const Bytes& slice = slices_[next_++];
    at_ = slice.begin();
    end_ = slice.end();
    later_ -= slice.size();
  }
}

void SliceReader::Advance(size_t size) {
  while (size > 0) {
    NextSlice();
    const size_t n = std::min<size_t>(size, end_ - at_);
    at_ += n;
    size -= n;
  }
}

bool SliceReader::CopySlowly(void* to, size_t size) {
  if (size > remaining()) return false;
  auto* out = static_cast<uint8_t*>(to);
  while (size > 0) {
    NextSlice();
    const size_t n = std::min<size_t>(size, end_ - at_);
    std::memcpy(out, at_, n);
    at_ += n;
    out += n;
    size -= n;
  }
  return true;
}

bool SliceReader::Share(size_t size, Slices* to) {
  if (size > remaining()) return false;
  while (size > 0) {
    NextSlice();
    const Bytes& slice = slices_[next_ - 1];
    const size_t n = std::min<size_t>(size, end_ - at_);
    to->push_back(slice.subspan(at_ - slice.begin(), n));
    at_ += n;
    size -= n;
  }
  return true;
}

bool SliceReader::Take(size_t size, Bytes* to) {
  if (size > 0 && Peek(size) != nullptr) {
    const Bytes& slice = slices_[next_ - 1];
    *to = slice.subspan(at_ - slice.begin(), size);
    at_ += size;
    return true;
  }
  Slices pieces;
  if (!Share(size, &pieces)) return false;
  *to = Flatten(pieces);
  return true;
}

bool SliceReader::VarintSlowly(uint64_t* value) {
  uint64_t read = 0;
  // Nearly all have at most nine bytes and end within the slice, as each does
  // whose last byte could end a number.
  if (at_ != end_ && end_[-1] < 0x80) {
    const uint8_t* at = at_;
    for (int shift = 0; shift < 63; shift += 7) {
      const uint8_t byte = *at++;
      read |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) {
        *value = read;
        at_ = at;
        return true;
      }
    }
    read = 0;
  }
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ == end_) NextSlice();
    if (at_ == end_) return false;
    const uint8_t byte = *at_++;
    if (shift == 63 && byte > 1) return false;
    read |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) {
      *value = read;
      return true;
    }
  }
  return false;
}

}  // namespace weft
