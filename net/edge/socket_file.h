// SocketFile: the file of a unix socket, which is removed only if it is one.

#ifndef WEFT_NET_EDGE_SOCKET_FILE_H_
#define WEFT_NET_EDGE_SOCKET_FILE_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace weft::net {

// Removes the file at `path` if it is a unix socket of `type` (SOCK_STREAM,
// SOCK_SEQPACKET, SOCK_DGRAM) that no process holds open: one that ended
// without removing it left it there. Ok too if there is no file. Any other file
// stays:
//   kAlreadyExists  it is no socket (a link to one neither), or of another
//   type;
//                   the message says what it is
//   kUnavailable    a process holds the socket
absl::Status RemoveAbandonedSocket(const std::string& path, int type);

// Removes the file at `path` if it is a unix socket, even one that a process
// holds: called by the owner of the path after that process has not answered.
void RemoveSocket(const std::string& path);

// Which file is at a path now: device and inode; none if there is none.
using FileId = std::pair<dev_t, ino_t>;
std::optional<FileId> FileIdOf(const std::string& path);

// Removes the file at `path` if it is still `made`: a successor, or the user,
// may have put another there.
void RemoveIfSame(const std::string& path, const std::optional<FileId>& made);

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_SOCKET_FILE_H_
