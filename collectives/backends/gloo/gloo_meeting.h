// GlooMeeting: how the ranks of a gloo group find each other.
//
// Messages, as keys of the store, under "gloo/<group>/":
//   place/<rank>                     the host of the rank and its address
//   control/<key>, elements/<key>    gloo's own, of its two contexts

#ifndef WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_MEETING_H_
#define WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_MEETING_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gloo/transport/device.h"
#include "weft/base/clock.h"
#include "weft/collectives/backends/gloo/breakable_context.h"
#include "weft/collectives/backends/gloo/gloo_backend.h"

namespace weft::collectives {

// An address that no other host can reach: 127.0.0.0/8 or ::1, as a number.
bool IsLoopback(absl::string_view address);

// Says where this rank is, waits for all others, and finds whether their
// addresses can be reached. Errors as ConnectGloo.
absl::Status MeetForGloo(const GlooOptions& options, Instant deadline);

// gloo's sockets of this process, served by a thread of gloo's. kUnavailable:
// the address is not of this host.
absl::StatusOr<std::shared_ptr<::gloo::transport::Device>> MakeGlooDevice(
    const GlooOptions& options);

// Connects all ranks, which call it with the same `purpose`. kUnavailable:
// gloo's reason.
absl::StatusOr<std::shared_ptr<BreakableContext>> ConnectGlooContext(
    const GlooOptions& options, absl::string_view purpose,
    std::shared_ptr<::gloo::transport::Device> device, Instant deadline);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_MEETING_H_
