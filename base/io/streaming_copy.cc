#include "weft/base/io/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// A processor, not a platform that BUILD knows.
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace weft {

void StreamingCopy(void* to, const void* from, size_t bytes) {
#ifdef __SSE2__
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  // The stores want whole lines at their place.
  constexpr size_t kLine = 64;
  const size_t before = std::min<size_t>(
      bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(out, in, before);
  const size_t end = before + (bytes - before) / kLine * kLine;
  for (size_t at = before; at < end; at += kLine) {
    const auto* line = reinterpret_cast<const __m128i*>(in + at);
    auto* place = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(place, a);
    _mm_stream_si128(place + 1, b);
    _mm_stream_si128(place + 2, c);
    _mm_stream_si128(place + 3, d);
  }
  std::memcpy(out + end, in + end, bytes - end);
  _mm_sfence();  // other threads see them in order
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace weft
