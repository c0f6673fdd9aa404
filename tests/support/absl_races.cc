// AbslRaces: keeps ThreadSanitizer from reports that are about Abseil's own
// library, which is not built for it, and LeakSanitizer from one about c-ares.
// For every test.

#if defined(__SANITIZE_THREAD__)

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

// In the library a Status counts its references down unseen, so that its
// deletion looks like a race with its copies. This one, which the linker
// prefers, does the same in sight. Source: absl/status/status.cc.
void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

ABSL_NAMESPACE_END
}  // namespace absl

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::*::status_internal::Payload\n";
}

#endif

#if defined(__SANITIZE_ADDRESS__)

extern "C" const char* __lsan_default_suppressions();

// Debian's c-ares keeps some name that gRPC had it look up, gloo 0.5 the
// addresses that it looks up for a device.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares.so\nleak:gloo::transport::tcp::CreateDeviceAttr\n";
}

#endif
