// SocketDirectory: where the unix sockets of one job live, closed to other
// users.

#ifndef WEFT_NET_EDGE_SOCKET_DIRECTORY_H_
#define WEFT_NET_EDGE_SOCKET_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::net {

// The path that DefaultSocketDirectory makes; nothing is made.
absl::StatusOr<std::string> SocketDirectoryPath(absl::string_view job);

// $XDG_RUNTIME_DIR/weft/<job>, else /tmp/weft-<uid>/<job>: made with mode 0700
// if absent. kFailedPrecondition if it is not ours alone; kInvalidArgument as
// ValidateJob.
absl::StatusOr<std::string> DefaultSocketDirectory(absl::string_view job);

// Ok if `directory` is a directory of this user that no other may enter.
absl::Status CheckSocketDirectory(const std::string& directory);

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_SOCKET_DIRECTORY_H_
