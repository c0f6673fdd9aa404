#include "weft/net/edge/open_streams.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "weft/net/tls/peer.h"

namespace weft::net {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// Takes what channelz allocated; null is empty.
Struct Parse(char* json) {
  const std::unique_ptr<char, void (*)(void*)> owned(json, gpr_free);
  Struct parsed;
  if (json == nullptr ||
      !google::protobuf::util::JsonStringToMessage(json, &parsed).ok()) {
    return Struct();
  }
  return parsed;
}

const Value& Field(const Struct& from, const std::string& name) {
  const auto found = from.fields().find(name);
  return found == from.fields().end() ? Value::default_instance()
                                      : found->second;
}

// 64-bit numbers are text in this JSON; none is 0.
int64_t Number(const Struct& from, const std::string& name) {
  int64_t number = 0;
  return absl::SimpleAtoi(Field(from, name).string_value(), &number) ? number
                                                                     : 0;
}

int64_t OpenOf(int64_t socket) {
  const Struct answer = Parse(grpc_channelz_get_socket(socket));
  const Struct& data =
      Field(Field(answer, "socket").struct_value(), "data").struct_value();
  return Number(data, "streamsStarted") - Number(data, "streamsSucceeded") -
         Number(data, "streamsFailed");
}

}  // namespace

std::map<std::string, int64_t> OpenStreams(const std::set<std::string>& peers) {
  std::map<std::string, int64_t> open;
  const Struct servers = Parse(grpc_channelz_get_servers(0));
  for (const Value& server : Field(servers, "server").list_value().values()) {
    const int64_t id =
        Number(Field(server.struct_value(), "ref").struct_value(), "serverId");
    for (int64_t next = 0, more = true; more;) {
      const Struct page = Parse(grpc_channelz_get_server_sockets(id, next, 0));
      more = false;
      for (const Value& socket :
           Field(page, "socketRef").list_value().values()) {
        const Struct& ref = socket.struct_value();
        const int64_t number = Number(ref, "socketId");
        // chttp2 ipv4:10.0.0.7:4711
        const std::string peer = AddressOfUri(
            absl::StripPrefix(Field(ref, "name").string_value(), "chttp2 "));
        // One peer may come from one port to two listeners.
        if (peers.count(peer) > 0)
          open[peer] = std::max(open[peer], OpenOf(number));
        next = number + 1;
        more = !Field(page, "end").bool_value();
      }
    }
  }
  return open;
}

}  // namespace weft::net
