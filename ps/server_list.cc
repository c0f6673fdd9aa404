#include "weft/ps/server_list.h"

#include <algorithm>

#include "weft/base/status_macros.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {
namespace {

const char* NameOf(PartitionMap::State state) {
  switch (state) {
    case PartitionMap::State::kLive:
      return "live";
    case PartitionMap::State::kSilent:
      return "silent";
    case PartitionMap::State::kExited:
      return "gone";
  }
  return "";
}

}  // namespace

const ServerList::Server* ServerList::Find(uint32_t id) const {
  const auto it =
      std::find_if(servers.begin(), servers.end(),
                   [&](const Server& server) { return server.key.id == id; });
  return it == servers.end() ? nullptr : &*it;
}

absl::StatusOr<ServerList> ServerList::Of(absl::string_view encoded_map) {
  WEFT_ASSIGN_OR_RETURN(const PartitionMap map,
                        PartitionMap::Decode(encoded_map));
  ServerList list;
  list.epoch = map.epoch();
  list.entries = map.entries();
  list.lost = map.lost();
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& entry = map.entry(i);
    list.placed.push_back({entry.primary, entry.backup});
    list.single += !IsNone(entry.primary) && !entry.in_sync ? 1 : 0;
  }
  for (const PartitionMap::Server& server : map.servers()) {
    const PartitionMap::Parts parts = map.PartsOf(server.key);
    list.servers.push_back({server.key, NameOf(server.state), server.is_drained,
                            parts.primaries, parts.backups, parts.filling});
  }
  std::sort(
      list.servers.begin(), list.servers.end(),
      [](const Server& a, const Server& b) { return a.key.id < b.key.id; });
  return list;
}

}  // namespace weft::ps
