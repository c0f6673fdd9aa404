// WriteAll: writes all of some bytes to a descriptor.

#ifndef WEFT_BASE_IO_WRITE_ALL_H_
#define WEFT_BASE_IO_WRITE_ALL_H_

#include "absl/strings/string_view.h"

namespace weft {

// Returns 0, or the error (an errno) after which a part of `bytes` may have
// been written. Goes on after signals and short writes; waits for room as long
// as a blocking descriptor does. EAGAIN where `fd` does not block.
//
// Thread-safety: a pure function of `fd`.
int WriteAll(int fd, absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_BASE_IO_WRITE_ALL_H_
