// PeerOf, CutSocket and others: what the system says of a connected socket, and
// how it is ended although it is also another's.

#ifndef WEFT_NET_EDGE_PEER_SOCKET_H_
#define WEFT_NET_EDGE_PEER_SOCKET_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace weft::net {

inline constexpr char kUnix[] = "unix";  // the address of all unix sockets

// Host number and port of the other end; kUnix and nothing for a unix socket;
// nothing if there is none.
std::pair<std::string, std::string> PeerOf(int fd);

// Whether the other end of a unix socket is a process of this user.
bool IsSameUser(int fd);

// That came over a TCP connection so far.
int64_t BytesHeard(int fd);

// Tells a socket from its successor under the same descriptor. Nothing: `fd` is
// no socket, or is closed.
std::optional<ino_t> InodeOf(int fd);

// Ends the connection of `fd`, which another may close at any moment: not if
// that is another one than `inode` by now. What has come, and has not been
// read, is thrown away. False: the system has no descriptor left for it.
bool CutSocket(int fd, ino_t inode);

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_PEER_SOCKET_H_
