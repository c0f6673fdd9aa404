// FutexWait, FutexWake: sleeping on a word of memory that processes share.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_FUTEX_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "absl/time/time.h"

namespace weft::collectives {

// Sleeps while `word` holds `seen`, at most `longest`; may end without cause.
// Not the private kind, whose waiters only the same process can wake.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t seen,
                      absl::Duration longest) {
  if (longest <= absl::ZeroDuration()) return;
  const timespec relative = absl::ToTimespec(longest);
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

inline void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_FUTEX_H_
