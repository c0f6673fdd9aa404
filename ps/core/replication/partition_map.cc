#include "weft/ps/core/replication/partition_map.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
// How much each server has to do.
class PartitionMap::Loads {
 public:
  explicit Loads(const PartitionMap& map,
                 const std::set<WorkerKey>& avoided = {})
      : servers_(map.servers_) {
    for (size_t i = 0; i < servers_.size(); ++i) {
      index_[servers_[i].key] = static_cast<int>(i);
    }
    for (const WorkerKey server : avoided) {
      const auto known = index_.find(server);
      if (known != index_.end()) avoided_.insert(known->second);
    }
    load_.assign(servers_.size(), 0);
    primaries_.assign(servers_.size(), 0);
    for (const Entry& entry : map.entries_) {
      if (!IsNone(entry.primary)) AddPrimary(index_.at(entry.primary));
      if (!IsNone(entry.backup)) AddBackup(entry);
    }
  }

  // The one that will be the backup.
  void AddBackup(const Entry& entry) {
    const int backup =
        index_.at(IsNone(entry.next) ? entry.backup : entry.next);
    ++load_[backup];
    ++pairs_[{index_.at(entry.primary), backup}];
  }

  // The server that is to stand by for `primary`: on another host, with the
  // least to do, and least of it for that primary, so that the others share
  // what it has if it dies. One that is avoided or drained only if there is no
  // other, and not in place of `backup`. None if there is none.
  WorkerKey ChooseBackup(WorkerKey primary, WorkerKey backup = {}) const {
    const int from = index_.at(primary);
    using Rank = std::tuple<bool, bool, bool, int, int, int>;
    Rank best = {true, true, true, 0, 0, -1};
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) {
      const Server& server = servers_[i];
      if (i == from || server.state != State::kLive) continue;
      const bool is_avoided = avoided_.count(i) != 0;
      if (!IsNone(backup) &&
          (is_avoided || server.is_drained || server.key == backup)) {
        continue;
      }
      const auto pair = pairs_.find({from, i});
      const Rank rank = {is_avoided,
                         server.is_drained,
                         server.host == servers_[from].host,
                         load_[i],
                         pair == pairs_.end() ? 0 : pair->second,
                         i};
      if (std::get<5>(best) < 0 || rank < best) best = rank;
    }
    const int chosen = std::get<5>(best);
    return chosen < 0 ? WorkerKey() : servers_[chosen].key;
  }

  // Gives an entry to the live server that is primary of the fewest. REQUIRES:
  // there is one that is live.
  WorkerKey ChoosePrimary() {
    int best = -1;
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) {
      if (servers_[i].state != State::kLive) continue;
      const auto rank = [&](int of) {
        return std::tuple(servers_[of].is_drained, primaries_[of], load_[of]);
      };
      if (best < 0 || rank(i) < rank(best)) {
        best = i;
      }
    }
    WEFT_CHECK(best >= 0);
    AddPrimary(best);
    return servers_[best].key;
  }

 private:
  void AddPrimary(int server) {
    ++load_[server];
    ++primaries_[server];
  }

  const std::vector<Server>& servers_;
  std::map<WorkerKey, int> index_;
  std::set<int> avoided_;
  std::vector<int> load_;                     // by server: copies
  std::vector<int> primaries_;                // by server
  std::map<std::pair<int, int>, int> pairs_;  // by primary and backup
};

absl::StatusOr<PartitionMap> PartitionMap::Assign(int entries,
                                                  std::vector<Server> servers,
                                                  int replicas,
                                                  uint64_t epoch) {
  std::set<uint32_t> ids;
  bool has_keys = true;
  for (const Server& server : servers) {
    ids.insert(server.key.id);
    has_keys = has_keys && !IsNone(server.key);
  }
  if (!has_keys || entries < 1 || entries > kMostEntries ||
      !absl::has_single_bit(static_cast<uint32_t>(entries)) ||
      servers.empty() || servers.size() > kMostServers || replicas < 1 ||
      replicas > 2 || epoch == 0 || ids.size() != servers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition map: wanted a power of two of at most ",
                     kMostEntries, " partitions, 1 to ", kMostServers,
                     " different servers, and 1 or 2 replicas, found ", entries,
                     " partitions, ", servers.size(), " servers",
                     has_keys ? "" : ", one of which has no key,", " and ",
                     replicas, " replicas"));
  }
  PartitionMap map;
  map.epoch_ = epoch;
  map.replicas_ = replicas;
  map.servers_ = std::move(servers);
  map.entries_.resize(entries);
  for (int i = 0; i < entries; ++i) {
    Entry& entry = map.entries_[i];
    entry.primary = map.servers_[i % map.servers_.size()].key;
    entry.epoch = entry.changed = epoch;
  }
  map.AddBackups();
  map.epoch_ = epoch;
  // Copies of nothing are in sync.
  for (Entry& entry : map.entries_) {
    entry.changed = epoch;
    entry.in_sync = !IsNone(entry.backup);
  }
  return map;
}

PartitionMap::Server* PartitionMap::Find(WorkerKey server) {
  const auto it =
      std::find_if(servers_.begin(), servers_.end(),
                   [&](const Server& s) { return s.key == server; });
  return it == servers_.end() ? nullptr : &*it;
}

PartitionMap::State PartitionMap::StateOf(WorkerKey server) const {
  for (const Server& one : servers_) {
    if (one.key == server) return one.state;
    if (one.key.id == server.id && server < one.key) return State::kExited;
  }
  return State::kSilent;
}

std::vector<WorkerKey> PartitionMap::PartnersOf(WorkerKey server) const {
  std::set<WorkerKey> partners;
  for (const Entry& entry : entries_) {
    if (IsNone(entry.primary) || IsNone(entry.backup)) continue;
    for (WorkerKey copy : {entry.backup, entry.next}) {
      if (IsNone(copy)) continue;
      if (entry.primary == server) partners.insert(copy);
      if (copy == server) partners.insert(entry.primary);
    }
  }
  return {partners.begin(), partners.end()};
}

bool PartitionMap::IsReplicated() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.in_sync; });
}

PartitionMap::Parts PartitionMap::PartsOf(WorkerKey server) const {
  Parts parts;
  for (const Entry& entry : entries_) {
    if (entry.primary == server) ++parts.primaries;
    if (entry.backup == server)
      ++(entry.in_sync ? parts.backups : parts.filling);
    if (entry.next == server) ++parts.filling;
  }
  return parts;
}

void PartitionMap::Promote(Entry& entry, uint64_t epoch) {
  WEFT_CHECK(entry.in_sync);
  entry.primary = entry.backup;
  entry.epoch = epoch;
  DropBackup(entry, epoch);
}

void PartitionMap::DropBackup(Entry& entry, uint64_t epoch) {
  entry.backup = std::exchange(entry.next, WorkerKey());
  entry.in_sync = entry.is_handing_over = false;
  entry.changed = epoch;
}

bool PartitionMap::AddServer(WorkerKey server, uint32_t host) {
  Server* const known = Find(server);
  if (known != nullptr) {
    if (known->state != State::kSilent) return false;
    known->state = State::kLive;
    ++epoch_;
    return true;
  }
  const auto is_newer = [&](const Server& s) {
    return s.key.id == server.id && server < s.key;
  };
  if (IsNone(server) ||
      std::any_of(servers_.begin(), servers_.end(), is_newer)) {
    return false;
  }
  std::vector<WorkerKey> earlier;
  bool is_drained = false;
  for (const Server& s : servers_) {
    if (s.key.id != server.id) continue;
    earlier.push_back(s.key);
    is_drained = is_drained || s.is_drained;
  }
  if (earlier.empty() && servers_.size() >= kMostServers) return false;
  const uint64_t epoch = epoch_;
  for (WorkerKey key : earlier) FailServer(key, State::kExited);
  servers_.erase(
      std::remove_if(servers_.begin(), servers_.end(),
                     [&](const Server& s) { return s.key.id == server.id; }),
      servers_.end());
  // All of it is one change.
  epoch_ = epoch + 1;
  servers_.push_back({server, host, State::kLive, is_drained});
  return true;
}

bool PartitionMap::FailServer(WorkerKey server, State state) {
  Server* const known = Find(server);
  if (known == nullptr || known->state >= state) return false;
  known->state = state;
  ++epoch_;
  const bool has_exited = state == State::kExited;
  for (Entry& entry : entries_) {
    // The primary itself drops a backup that is only silent: if it has just
    // died, that backup is all there is.
    if (entry.backup == server && has_exited) DropBackup(entry, epoch_);
    if (entry.next == server && has_exited) {
      entry.next = WorkerKey();
      entry.changed = epoch_;
    }
    if (entry.primary != server) continue;
    if (entry.in_sync &&
        (has_exited || StateOf(entry.backup) == State::kLive)) {
      Promote(entry, epoch_);
    } else if (has_exited) {
      Lose(entry, {server}, epoch_);
    }
  }
  return true;
}

bool PartitionMap::SetLogged(WorkerKey server) {
  Server* const known = Find(server);
  if (known == nullptr || known->has_log) return false;
  known->has_log = true;
  ++epoch_;
  return true;
}

void PartitionMap::Lose(Entry& entry, const std::vector<WorkerKey>& had,
                        uint64_t epoch) {
  entry.heirs.clear();
  for (WorkerKey key : had) {
    if (Find(key)->has_log) entry.heirs.push_back(key);
  }
  entry.primary = entry.next = WorkerKey();
  entry.epoch = epoch;
  DropBackup(entry, epoch);
}

bool PartitionMap::FailServers(const std::vector<WorkerKey>& exited) {
  const auto has_gone = [&](WorkerKey key) {
    return std::find(exited.begin(), exited.end(), key) != exited.end();
  };
  const uint64_t epoch = epoch_;
  bool has_changed = false;
  for (Entry& entry : entries_) {
    if (!entry.in_sync || !has_gone(entry.primary) || !has_gone(entry.backup)) {
      continue;
    }
    Lose(entry, {entry.primary, entry.backup}, epoch + 1);
    has_changed = true;
  }
  for (WorkerKey server : exited) {
    // All of it is one change.
    epoch_ = epoch;
    if (FailServer(server, State::kExited)) has_changed = true;
  }
  epoch_ = has_changed ? epoch + 1 : epoch;
  return has_changed;
}

bool PartitionMap::AddBackups(const std::set<WorkerKey>& avoided) {
  if (replicas_ < 2) return false;
  Loads loads(*this, avoided);
  bool has_changed = false;
  for (Entry& entry : entries_) {
    if (IsNone(entry.primary) || !IsNone(entry.backup)) continue;
    entry.backup = loads.ChooseBackup(entry.primary);
    if (IsNone(entry.backup)) continue;
    entry.changed = epoch_ + 1;
    loads.AddBackup(entry);
    has_changed = true;
  }
  if (has_changed) ++epoch_;
  return has_changed;
}

bool PartitionMap::AddMoves(const std::set<WorkerKey>& avoided) {
  if (replicas_ < 2 || is_restoring_) return false;
  std::set<WorkerKey> drained;
  for (const Server& server : servers_) {
    if (server.is_drained) drained.insert(server.key);
  }
  if (drained.empty()) return false;
  Loads loads(*this, avoided);
  bool has_changed = false;
  for (Entry& entry : entries_) {
    if (!entry.in_sync || entry.is_handing_over || !IsNone(entry.next)) {
      continue;
    }
    if (drained.count(entry.backup) != 0) {
      entry.next = loads.ChooseBackup(entry.primary, entry.backup);
      if (IsNone(entry.next)) continue;
      loads.AddBackup(entry);
    } else if (drained.count(entry.primary) != 0 &&
               StateOf(entry.backup) == State::kLive) {
      entry.is_handing_over = true;
    } else {
      continue;
    }
    entry.changed = epoch_ + 1;
    has_changed = true;
  }
  if (has_changed) ++epoch_;
  return has_changed;
}

absl::Status PartitionMap::Apply(const MapChange& change) {
  switch (change.kind) {
    case MapChange::Kind::kMarkInSync:
    case MapChange::Kind::kDropBackup:
    case MapChange::Kind::kPromote:
    case MapChange::Kind::kTakeNext:
    case MapChange::Kind::kDropNext:
    case MapChange::Kind::kHandOver:
    case MapChange::Kind::kKeepRole:
    case MapChange::Kind::kMoveCopy:
    case MapChange::Kind::kMoveRole:
    case MapChange::Kind::kRevive:
    case MapChange::Kind::kDisown:
      return ApplyToEntry(change);
    case MapChange::Kind::kDrain:
    case MapChange::Kind::kUndrain:
      return SetDrained(change.server, change.kind == MapChange::Kind::kDrain);
    case MapChange::Kind::kBeginRestore:
      return BeginRestore(change.generation);
    case MapChange::Kind::kEndRestore:
      return EndRestore(change);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("partition map: wanted a change of a known kind, found ",
                   static_cast<int>(change.kind)));
}

bool PartitionMap::Fits(const Entry& entry, MapChange::Kind change) {
  switch (change) {
    case MapChange::Kind::kMarkInSync:
      return !IsNone(entry.backup) && !entry.in_sync;
    case MapChange::Kind::kDropBackup:
      return !IsNone(entry.backup);
    case MapChange::Kind::kPromote:
      return entry.in_sync;
    case MapChange::Kind::kTakeNext:
    case MapChange::Kind::kDropNext:
      return !IsNone(entry.next);
    case MapChange::Kind::kHandOver:
    case MapChange::Kind::kKeepRole:
      return entry.is_handing_over;
    case MapChange::Kind::kMoveCopy:
    case MapChange::Kind::kMoveRole:
      return entry.in_sync && !entry.is_handing_over && IsNone(entry.next);
    case MapChange::Kind::kRevive:
    case MapChange::Kind::kDisown:
      return IsNone(entry.primary);
    default:
      return false;
  }
}

absl::Status PartitionMap::CheckHeir(const MapChange& change) const {
  const auto is_it = [&](WorkerKey key) { return key.id == change.server; };
  const std::vector<WorkerKey>& heirs = entries_[change.entry].heirs;
  const bool is_live =
      std::any_of(servers_.begin(), servers_.end(), [&](const Server& server) {
        return is_it(server.key) && server.state == State::kLive;
      });
  if (is_live && !is_restoring_ &&
      std::any_of(heirs.begin(), heirs.end(), is_it)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "partition map: entry ", change.entry, " is not for server ",
      change.server,
      is_restoring_ ? ": a checkpoint is being restored"
      : is_live     ? ": it had no copy in sync when the last one was lost"
                    : ": it is not live"));
}

const PartitionMap::Server* PartitionMap::FindTaker(uint32_t id) const {
  for (const Server& one : servers_) {
    if (one.key.id != id) continue;
    return one.state == State::kLive && !one.is_drained ? &one : nullptr;
  }
  return nullptr;
}

absl::Status PartitionMap::CheckMove(const MapChange& change) const {
  const bool is_copy = change.kind == MapChange::Kind::kMoveCopy;
  const Entry& entry = entries_[change.entry];
  const uint32_t id = is_copy ? change.server : entry.backup.id;
  const bool has_copy = id == entry.primary.id || id == entry.backup.id;
  if (!is_restoring_ && FindTaker(id) != nullptr && !(is_copy && has_copy)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "partition map: entry ", change.entry, " cannot be moved to server ", id,
      is_restoring_         ? ": a checkpoint is being restored"
      : is_copy && has_copy ? ": it has a copy"
                            : ": wanted one that lives and is not drained"));
}

absl::Status PartitionMap::ApplyToEntry(const MapChange& change) {
  if (change.entry < 0 || change.entry >= entries()) {
    return absl::FailedPreconditionError(
        absl::StrCat("partition map: wanted an entry of ", entries(),
                     ", found ", change.entry));
  }
  Entry& entry = entries_[change.entry];
  if (entry.changed != change.changed || !Fits(entry, change.kind)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "partition map: a change of entry ", change.entry, " as of epoch ",
        change.changed, " comes too late: it has changed in epoch ",
        entry.changed, " of ", epoch_));
  }
  if (change.kind == MapChange::Kind::kMoveCopy ||
      change.kind == MapChange::Kind::kMoveRole) {
    WEFT_RETURN_IF_ERROR(CheckMove(change));
  }
  if (change.kind == MapChange::Kind::kRevive ||
      change.kind == MapChange::Kind::kDisown) {
    WEFT_RETURN_IF_ERROR(CheckHeir(change));
  }
  entry.changed = ++epoch_;
  switch (change.kind) {
    case MapChange::Kind::kMoveCopy:
      entry.next = FindTaker(change.server)->key;
      break;
    case MapChange::Kind::kMoveRole:
      entry.is_handing_over = true;
      break;
    case MapChange::Kind::kMarkInSync:
      entry.in_sync = true;
      break;
    case MapChange::Kind::kRevive:
      for (const Server& server : servers_) {
        if (server.key.id == change.server) entry.primary = server.key;
      }
      entry.heirs.clear();
      entry.epoch = epoch_;
      break;
    case MapChange::Kind::kDisown:
      entry.heirs.erase(std::remove_if(entry.heirs.begin(), entry.heirs.end(),
                                       [&](WorkerKey heir) {
                                         return heir.id == change.server;
                                       }),
                        entry.heirs.end());
      break;
    case MapChange::Kind::kDropBackup:
      DropBackup(entry, epoch_);
      break;
    case MapChange::Kind::kPromote:
      Promote(entry, epoch_);
      break;
    case MapChange::Kind::kTakeNext:
      entry.backup = std::exchange(entry.next, WorkerKey());
      break;
    case MapChange::Kind::kDropNext:
      entry.next = WorkerKey();
      break;
    case MapChange::Kind::kHandOver:
      std::swap(entry.primary, entry.backup);
      entry.epoch = epoch_;
      entry.is_handing_over = false;
      break;
    default:
      entry.is_handing_over = false;
  }
  return absl::OkStatus();
}

absl::Status PartitionMap::SetDrained(uint32_t server, bool is_drained) {
  Server* found = nullptr;
  int others = 0;  // that can take what it has
  for (Server& one : servers_) {
    if (one.key.id == server) {
      found = &one;
    } else if (one.state == State::kLive && !one.is_drained) {
      ++others;
    }
  }
  const auto refuse = [&](const auto&... why) {
    return absl::FailedPreconditionError(
        absl::StrCat("partition map: server ", server, " ", why...));
  };
  if (found == nullptr) return refuse("is none of the job's");
  if (found->is_drained == is_drained) {
    return refuse(is_drained ? "is drained already" : "is not drained");
  }
  if (is_drained && others < replicas_) {
    return refuse("cannot be drained: wanted ", replicas_,
                  " other servers that live and are not drained, one for each "
                  "replica, found ",
                  others);
  }
  found->is_drained = is_drained;
  ++epoch_;
  return absl::OkStatus();
}

absl::Status PartitionMap::BeginRestore(uint64_t generation) {
  const bool has_live =
      std::any_of(servers_.begin(), servers_.end(),
                  [](const Server& s) { return s.state == State::kLive; });
  if (generation <= generation_ || !has_live) {
    return absl::FailedPreconditionError(absl::StrCat(
        "partition map: a restore of generation ", generation, " of the tables",
        has_live
            ? absl::StrCat(" comes too late: there is generation ", generation_)
            : " wants a server that is live: there is none"));
  }
  ++epoch_;
  generation_ = generation;
  is_restoring_ = true;
  Loads loads(*this);
  for (Entry& entry : entries_) {
    if (!IsNone(entry.primary)) continue;
    entry.primary = loads.ChoosePrimary();
    entry.heirs.clear();
    if (replicas_ == 2) entry.backup = loads.ChooseBackup(entry.primary);
    // Both load the same.
    entry.in_sync = !IsNone(entry.backup);
    if (entry.in_sync) loads.AddBackup(entry);
    entry.epoch = entry.changed = epoch_;
  }
  return absl::OkStatus();
}

absl::Status PartitionMap::EndRestore(const MapChange& change) {
  const auto refuse = [&](const auto&... why) {
    return absl::FailedPreconditionError(
        absl::StrCat("partition map: the end of restoring generation ",
                     change.generation, " of the tables: ", why...));
  };
  const bool is_next = is_restoring_ ? change.generation == generation_
                                     : change.generation > generation_;
  if (!is_next) {
    return refuse("it comes too late: there is generation ", generation_,
                  is_restoring_ ? ", which is being restored" : "");
  }
  const absl::Status loaded = CheckLoaded(change.loaded);
  if (!loaded.ok()) return refuse(loaded.message());
  ++epoch_;
  generation_ = change.generation;
  is_restoring_ = false;
  return absl::OkStatus();
}

absl::Status PartitionMap::CheckLoaded(
    const std::map<WorkerKey, uint64_t>& loaded) const {
  if (lost() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(lost(), " partitions are lost"));
  }
  std::set<WorkerKey> lacking;
  for (const Server& server : servers_) {
    if (server.state == State::kLive) lacking.insert(server.key);
  }
  for (const Entry& entry : entries_) {
    lacking.insert(entry.primary);
    // One that is not in sync is filled by its primary.
    if (entry.in_sync) lacking.insert(entry.backup);
  }
  for (const auto& [key, by_map] : loaded) lacking.erase(key);
  if (!lacking.empty()) {
    return absl::UnavailableError(
        absl::StrCat(lacking.size(), " servers have not loaded it, such as ",
                     lacking.begin()->ToString()));
  }
  for (int i = 0; i < entries(); ++i) {
    const Entry& entry = entries_[i];
    // It may be marked as in sync by a primary that had nothing to copy yet.
    const bool is_backup_late =
        entry.in_sync && loaded.at(entry.backup) < entry.changed;
    if (is_backup_late || loaded.at(entry.primary) < entry.epoch) {
      return absl::AbortedError(absl::StrCat(
          "partition ", i, ": server ",
          (is_backup_late ? entry.backup : entry.primary).ToString(),
          " had no part in it when it loaded the checkpoint"));
    }
  }
  return absl::OkStatus();
}

int PartitionMap::lost() const {
  return static_cast<int>(
      std::count_if(entries_.begin(), entries_.end(),
                    [](const Entry& e) { return IsNone(e.primary); }));
}

std::string PartitionMap::Summary() const {
  const auto count = [&](const auto& is) {
    return std::count_if(entries_.begin(), entries_.end(), is);
  };
  const int64_t away =
      std::count_if(servers_.begin(), servers_.end(),
                    [](const Server& s) { return s.state != State::kLive; });
  return absl::StrCat("epoch ", epoch_, ": ", servers_.size(), " servers (",
                      away, " silent or gone), ", entries(), " partitions, ",
                      count([](const Entry& e) { return !e.in_sync; }),
                      " without a backup in sync, ", count([](const Entry& e) {
                        return e.is_handing_over || !IsNone(e.next);
                      }),
                      " on the move, ", lost(), " lost",
                      is_restoring_ ? ", a checkpoint is being restored" : "");
}

}  // namespace weft::ps
