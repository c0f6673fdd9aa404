// partition_map: no bytes harm who reads a map of the partitions, and a map
// that is taken is one: changes of it end no process, and it comes back as it
// was encoded.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/core/replication/partition_map.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using ps::PartitionMap;

ps::MapChange Restore(uint64_t generation,
                      std::map<ps::WorkerKey, uint64_t> loaded) {
  using Kind = ps::MapChange::Kind;
  return {loaded.empty() ? Kind::kBeginRestore : Kind::kEndRestore, 0, 0,
          generation, std::move(loaded)};
}

std::vector<std::string> Seeds() {
  PartitionMap map = *PartitionMap::Assign(
      4, {{{1, 1}, 0, {}}, {{2, 1}, 1, {}}, {{3, 1}, 1, {}}}, 2);
  std::vector<std::string> seeds = {map.Encode()};
  map.FailServer({1, 1}, PartitionMap::State::kExited);
  seeds.push_back(map.Encode());
  map.AddBackups();
  seeds.push_back(map.Encode());
  map.FailServer({2, 1}, PartitionMap::State::kExited);
  map.FailServer({3, 1}, PartitionMap::State::kSilent);
  seeds.push_back(map.Encode());
  (void)map.Apply(Restore(7, {}));
  map.FailServer({3, 1}, PartitionMap::State::kExited);
  map.AddServer({1, 2}, 0);
  (void)map.Apply(Restore(7, {}));
  seeds.push_back(map.Encode());
  return seeds;
}

std::vector<std::string> Words() { return {"WPM4", std::string(1, '\0')}; }

void Run(absl::string_view input) {
  auto map = PartitionMap::Decode(input);
  if (!map.ok()) return;
  Hold(PartitionMap::Decode(map->Encode())->Encode() == map->Encode());
  const std::vector<PartitionMap::Server> servers = map->servers();
  for (const PartitionMap::Server& server : servers) {
    map->FailServer(server.key, PartitionMap::State::kExited);
    map->AddBackups();
  }
  for (int i = 0; i < map->entries(); ++i) {
    using Kind = ps::MapChange::Kind;
    for (const Kind kind :
         {Kind::kMarkInSync, Kind::kMoveCopy, Kind::kMoveRole, Kind::kTakeNext,
          Kind::kPromote, Kind::kDropBackup, Kind::kRevive, Kind::kDisown}) {
      map->Apply({kind, i, map->entry(i).changed, 0, {}, 2}).IgnoreError();
    }
  }
  map->AddServer({1, 77}, 0);
  const uint64_t next = map->generation() + 1;
  if (map->Apply(Restore(next, {})).ok()) {
    Hold(map->lost() == 0 && map->is_restoring());
    std::map<ps::WorkerKey, uint64_t> all;
    for (const PartitionMap::Server& server : map->servers()) {
      all[server.key] = map->epoch();
    }
    Hold(map->Apply(Restore(next, all)).ok() && !map->is_restoring());
  }
  Hold(PartitionMap::Decode(map->Encode()).ok());
}

WEFT_FUZZ_TARGET(partition_map, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
