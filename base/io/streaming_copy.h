// StreamingCopy: a copy of what is too large for the caches.

#ifndef WEFT_BASE_IO_STREAMING_COPY_H_
#define WEFT_BASE_IO_STREAMING_COPY_H_

#include <cstddef>

namespace weft {

// memcpy, but `to` goes to memory and not into the caches: it is not read there
// first, and what they hold stays. Slower where `to` would have fitted and is
// read next. Where the processor has no such stores it is memcpy.
void StreamingCopy(void* to, const void* from, size_t bytes);

}  // namespace weft

#endif  // WEFT_BASE_IO_STREAMING_COPY_H_
