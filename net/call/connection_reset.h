// ConnectionReset: the other end of TCP closed the connection before it took a
// call. So it refuses a certificate, or the lack of one, without a word.

#ifndef WEFT_NET_CALL_CONNECTION_RESET_H_
#define WEFT_NET_CALL_CONNECTION_RESET_H_

#include "absl/status/status.h"

namespace weft::net {

// Whether that is why a call ended in `status`.
bool WasConnectionReset(const absl::Status& status);

// `status`, marked so.
absl::Status MarkConnectionReset(absl::Status status);

}  // namespace weft::net

#endif  // WEFT_NET_CALL_CONNECTION_RESET_H_
