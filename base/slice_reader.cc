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

bool SliceReader::VarintSlowly(uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte;
    if (!Copy(&byte, 1) || (shift == 63 && byte > 1)) return false;
    *value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace weft
