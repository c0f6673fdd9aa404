// PartitionMap as bytes.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "weft/base/bytes.h"
#include "weft/base/slice_reader.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {
namespace {

constexpr char kMagic[] = {'W', 'P', 'M', '4'};

void AddVarint(uint64_t value, std::string& to) {
  for (; value >= 0x80; value >>= 7)
    to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

absl::Status NoMap(absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("partition map: wanted one as a server of this version "
                   "writes it, found ",
                   found));
}

// False if there is no number up to `most`.
template <typename T>
bool ReadUpTo(SliceReader& reader, uint64_t most, T& value) {
  uint64_t read = 0;
  if (!reader.Varint(&read) || read > most) return false;
  value = static_cast<T>(read);
  return true;
}

// Those of an entry that is lost.
bool ReadHeirs(SliceReader& reader, PartitionMap::Entry& entry) {
  size_t count = 0;
  if (!ReadUpTo(reader, 2, count)) return false;
  for (size_t i = 0; i < count; ++i) {
    WorkerKey heir;
    if (!ReadUpTo(reader, UINT32_MAX, heir.id) ||
        !ReadUpTo(reader, ~uint64_t{0}, heir.epoch) || IsNone(heir)) {
      return false;
    }
    entry.heirs.push_back(heir);
  }
  return true;
}

}  // namespace

// Servers are named by their place in the list, from 1; 0 is none.
std::string PartitionMap::Encode() const {
  std::map<WorkerKey, uint64_t> numbers;
  for (const Server& server : servers_) {
    numbers.emplace(server.key, numbers.size() + 1);
  }
  std::string out(kMagic, sizeof(kMagic));
  AddVarint(epoch_, out);
  AddVarint(replicas_, out);
  AddVarint(birth_, out);
  AddVarint(generation_, out);
  AddVarint(is_restoring_ ? 1 : 0, out);
  AddVarint(servers_.size(), out);
  for (const Server& server : servers_) {
    AddVarint(server.key.id, out);
    AddVarint(server.key.epoch, out);
    AddVarint(server.host, out);
    AddVarint(static_cast<uint64_t>(server.state), out);
    AddVarint((server.is_drained ? 1 : 0) | (server.has_log ? 2 : 0), out);
  }
  const auto number = [&](WorkerKey key) -> uint64_t {
    return IsNone(key) ? 0 : numbers.at(key);
  };
  AddVarint(entries_.size(), out);
  for (const Entry& entry : entries_) {
    AddVarint(number(entry.primary), out);
    AddVarint(number(entry.backup), out);
    AddVarint(number(entry.next), out);
    AddVarint((entry.in_sync ? 1 : 0) | (entry.is_handing_over ? 2 : 0), out);
    AddVarint(epoch_ - entry.epoch, out);
    AddVarint(epoch_ - entry.changed, out);
    if (!IsNone(entry.primary)) continue;
    AddVarint(entry.heirs.size(), out);
    for (WorkerKey heir : entry.heirs) {
      AddVarint(heir.id, out);
      AddVarint(heir.epoch, out);
    }
  }
  return out;
}

absl::StatusOr<PartitionMap> PartitionMap::Decode(absl::string_view encoded) {
  constexpr uint64_t kAny = ~uint64_t{0};
  constexpr uint64_t kMostEpoch = uint64_t{1} << 62;  // it is counted on
  const Slices slices = {Bytes::Copy(encoded)};
  SliceReader reader(slices);
  char magic[sizeof(kMagic)] = {};
  if (!reader.Copy(magic, sizeof(magic)) ||
      !std::equal(std::begin(magic), std::end(magic), kMagic)) {
    return NoMap("another beginning");
  }
  PartitionMap map;
  size_t count = 0;
  if (!ReadUpTo(reader, kMostEpoch, map.epoch_) || map.epoch_ == 0 ||
      !ReadUpTo(reader, 2, map.replicas_) || map.replicas_ == 0 ||
      !ReadUpTo(reader, kAny, map.birth_) ||
      !ReadUpTo(reader, kAny, map.generation_) ||
      !ReadUpTo(reader, 1, map.is_restoring_) ||
      !ReadUpTo(reader, kMostServers, count) || count == 0) {
    return NoMap("no epoch, replicas or servers");
  }
  std::set<uint32_t> ids;  // a map has one incarnation of each
  for (size_t i = 0; i < count; ++i) {
    Server server;
    int flags = 0;
    if (!ReadUpTo(reader, UINT32_MAX, server.key.id) ||
        !ReadUpTo(reader, kAny, server.key.epoch) || IsNone(server.key) ||
        !ReadUpTo(reader, UINT32_MAX, server.host) ||
        !ReadUpTo(reader, 2, server.state) || !ReadUpTo(reader, 3, flags) ||
        !ids.insert(server.key.id).second) {
      return NoMap(absl::StrCat("a bad server ", i));
    }
    server.is_drained = (flags & 1) != 0;
    server.has_log = (flags & 2) != 0;
    map.servers_.push_back(server);
  }
  if (!ReadUpTo(reader, kMostEntries, count) ||
      !absl::has_single_bit(static_cast<uint32_t>(count))) {
    return NoMap("no power of two of partitions");
  }
  for (size_t i = 0; i < count; ++i) {
    Entry entry;
    size_t primary = 0;
    size_t backup = 0;
    size_t next = 0;
    int flags = 0;
    if (!ReadUpTo(reader, map.servers_.size(), primary) ||
        !ReadUpTo(reader, map.servers_.size(), backup) ||
        !ReadUpTo(reader, map.servers_.size(), next) ||
        !ReadUpTo(reader, 3, flags) ||
        !ReadUpTo(reader, map.epoch_ - 1, entry.epoch) ||
        !ReadUpTo(reader, entry.epoch, entry.changed) ||
        (backup != 0 && (primary == 0 || primary == backup)) ||
        (flags != 0 && backup == 0) || flags == 2 ||
        (next != 0 && (flags != 1 || next == primary || next == backup)) ||
        (primary == 0 && !ReadHeirs(reader, entry))) {
      return NoMap(absl::StrCat("a bad entry ", i));
    }
    entry.in_sync = (flags & 1) != 0;
    entry.is_handing_over = (flags & 2) != 0;
    for (const auto& [number, key] :
         {std::pair(primary, &entry.primary), std::pair(backup, &entry.backup),
          std::pair(next, &entry.next)}) {
      if (number == 0) continue;
      const Server& server = map.servers_[number - 1];
      if (server.state == State::kExited) {
        return NoMap(absl::StrCat("entry ", i, " with a server that is gone"));
      }
      *key = server.key;
    }
    entry.epoch = map.epoch_ - entry.epoch;
    entry.changed = map.epoch_ - entry.changed;
    map.entries_.push_back(entry);
  }
  if (reader.remaining() != 0) return NoMap("more than a map");
  return map;
}

}  // namespace weft::ps
