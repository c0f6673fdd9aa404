// CopyRow: copies a row of a few floats without the call that a copy of unknown
// length is otherwise compiled to.
//
// Thread-safety: as memcpy.

#ifndef WEFT_PS_CORE_COPY_ROW_H_
#define WEFT_PS_CORE_COPY_ROW_H_

#include <cstdint>
#include <cstring>

namespace weft::ps {

// Returns the end of what was written. REQUIRES: the ranges do not overlap.
inline float* CopyRow(const float* from, int64_t n, float* to) {
  constexpr int64_t kLong = 64;
  if (n == 1) {
    *to = *from;
    return to + 1;
  }
  if (n >= kLong) {
    std::memcpy(to, from, n * sizeof(float));
    return to + n;
  }
  for (; n >= 4; n -= 4, from += 4, to += 4) {
    std::memcpy(to, from, 4 * sizeof(float));
  }
  if (n >= 2) {
    std::memcpy(to, from, 2 * sizeof(float));
    from += 2;
    to += 2;
    n -= 2;
  }
  if (n == 1) *to++ = *from;
  return to;
}

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_COPY_ROW_H_
