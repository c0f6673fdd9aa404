// OpenStreams: how many streams gRPC's transports have open with each peer.

#ifndef WEFT_NET_EDGE_OPEN_STREAMS_H_
#define WEFT_NET_EDGE_OPEN_STREAMS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace weft::net {

// The number of open streams by peer, of the connections from `peers` (ip:port)
// to any server of this process; a peer that gRPC does not know is absent. They
// count from the moment in which gRPC reads their headers, long before a call
// is handed out: this is what channelz shows. Thread-safety: thread-safe; waits
// for no call.
std::map<std::string, int64_t> OpenStreams(const std::set<std::string>& peers);

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_OPEN_STREAMS_H_
