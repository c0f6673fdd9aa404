// PartitionMap: which server has which partition of the tables, who stands by
// for it, and since which epoch.
//
// One value of the job's store, changed only by compare-and-set: whoever wants
// a change reads the map, applies the change to its copy, and sets the value if
// it is still what was read; else it begins again. So each change is made to
// the map for which it was meant, or not at all, whoever wants it.
//
// The epoch counts the changes. A partition of a table has the entry
// EntryOf(partition); tables may have more partitions than the map has entries.
//
// Restoring. Each restored checkpoint is a generation of the tables. Where all
// copies of an entry are lost it stays without a primary, and nothing is served
// of it, until somebody who has a checkpoint begins to restore it: the change
// kBeginRestore gives such entries new servers, with nothing, and makes void
// all tables of older generations. From then on is_restoring(): nobody may open
// a table, so that nobody takes for empty what is only not yet loaded.
// kEndRestore says that each server with a part has loaded all of its part.
// Where nothing is lost a restore needs the end only.
//
// Moves. A copy moves by a third one: `next` is filled while primary and backup
// stay what they are, and takes the place of the backup once it has all that is
// stable. The role moves by a change of places: the primary takes nothing new
// (`is_handing_over`) until its backup has all, and then the two change roles.
// So an entry that has two copies has two in each map of a move. AddMoves()
// begins what is needed to take everything from servers that are drained, the
// changes kMoveCopy and kMoveRole one step of a single entry.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_PARTITION_MAP_H_
#define WEFT_PS_CORE_PARTITION_MAP_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

using rendezvous::WorkerKey;

// A key that is nobody's.
inline bool IsNone(WorkerKey key) { return key.epoch == 0; }

// What a server wants of one entry, or, for a client, of the whole map.
struct MapChange {
  enum class Kind {
    kMarkInSync,  // the primary: its backup has all that was promised
    kDropBackup,  // the primary: its backup is silent
    kPromote,     // the backup: the primary is silent
    kTakeNext,    // the primary: `next` has all, and becomes the backup
    kDropNext,    // the primary: `next` is silent
    kHandOver,    // the primary: its backup has all, and becomes the primary
    kKeepRole,    // the primary: that does not come to an end; no kHandOver
    // To balance the load: `server` is to be the backup; the backup is to have
    // the role.
    kMoveCopy,
    kMoveRole,
    // Of an entry that is lost, by `server`, which lives again and is an heir
    // (PartitionMap::Entry::heirs): it has in its log what it had, and is the
    // primary; or it has not.
    kRevive,
    kDisown,
    // Changes of the whole map; see "Restoring" of PartitionMap.
    kBeginRestore,
    kEndRestore,
    // Changes of one server: kDrain, it is to have no part in any entry;
    // kUndrain, it takes part again.
    kDrain,
    kUndrain,
  };
  Kind kind = Kind::kMarkInSync;
  int entry = 0;
  // PartitionMap::Entry::changed of the entry for which it is meant.
  uint64_t changed = 0;
  // kBeginRestore and kEndRestore.
  uint64_t generation = 0;
  // kEndRestore: which servers have loaded it, by the map of which epoch.
  std::map<WorkerKey, uint64_t> loaded = {};
  // kDrain, kUndrain, kMoveCopy, kRevive and kDisown: WorkerKey::id, of
  // whichever incarnation.
  uint32_t server = 0;

  bool is_of_all() const { return kind >= Kind::kBeginRestore; }
};

class PartitionMap {
 public:
  static constexpr int kMostEntries = 16'384;
  static constexpr int kMostServers = 1'024;

  enum class State {
    kLive,
    kSilent,  // suspected: it may be back, and holds what it holds
    // Its exit is proven, or it was silent for so long that it holds no lease:
    // what it held is lost.
    kExited,
  };
  struct Server {
    WorkerKey key;      // this incarnation; a restarted server is another
    uint32_t host = 0;  // servers of equal numbers can be lost together
    State state = State::kLive;
    // Neither it nor its later incarnations are to have a part in any entry.
    bool is_drained = false;
    // What it has is in a log on its disk as well, as far as tables want it.
    bool has_log = false;
  };
  struct Entry {
    WorkerKey primary;  // none: all copies are lost
    WorkerKey backup;   // none: nobody stands by
    // The backup has all that the primary has promised to clients. Only then
    // may it be promoted.
    bool in_sync = false;
    // It is being filled, to take the place of the backup. Only where that is
    // in sync. If the backup goes, it is the backup, to be filled anew.
    WorkerKey next;
    // The primary takes no pushes until its backup has all, and has the role
    // then. Only where that is in sync and there is no `next`.
    bool is_handing_over = false;
    uint64_t epoch = 0;    // since which the primary has the role
    uint64_t changed = 0;  // epoch of the last change of this entry
    // Of an entry that is lost: the servers with a log that had all that was
    // stable when the last copy went. Two where both went before the map let
    // either go on alone. What they have on disk brings the entry back.
    std::vector<WorkerKey> heirs = {};
  };

  PartitionMap() = default;

  // Deals `entries` partitions, which are empty, to `servers`: each has as many
  // primaries as any other, or one more, and stands by for all others alike. A
  // backup is on another host if there is one. `epoch` is above that of any
  // earlier map of the job.
  //   kInvalidArgument  `entries` is no power of two or beyond kMostEntries; no
  //                     servers, too many, one twice or without a key;
  //                     `replicas` is not 1 or 2
  static absl::StatusOr<PartitionMap> Assign(int entries,
                                             std::vector<Server> servers,
                                             int replicas, uint64_t epoch = 1);

  // A map as Encode() wrote it, whoever sends it. kInvalidArgument: it is none.
  static absl::StatusOr<PartitionMap> Decode(absl::string_view encoded);
  std::string Encode() const;

  uint64_t epoch() const { return epoch_; }
  int replicas() const { return replicas_; }
  int entries() const { return static_cast<int>(entries_.size()); }
  const Entry& entry(int i) const { return entries_[i]; }
  int EntryOf(int partition) const { return partition & (entries() - 1); }
  const std::vector<Server>& servers() const { return servers_; }
  // kExited for an earlier incarnation of one that it knows; kSilent for one
  // that it does not know.
  State StateOf(WorkerKey server) const;
  // Differs from that of any other job's map, whatever keys that has: so a log
  // of another job is known as such.
  uint64_t birth() const { return birth_; }
  void set_birth(uint64_t birth) { birth_ = birth; }
  // Tables of an older one are void. 0: none was restored.
  uint64_t generation() const { return generation_; }
  bool is_restoring() const { return is_restoring_; }
  // The number of entries that have lost all copies.
  int lost() const;
  // The servers with which `server` shares partitions.
  std::vector<WorkerKey> PartnersOf(WorkerKey server) const;
  // Whether each partition has a backup that may be promoted.
  bool IsReplicated() const;
  // What a server has.
  struct Parts {
    int primaries = 0;
    int backups = 0;  // in sync
    int filling = 0;  // not yet in sync, or `next`
    bool is_empty() const { return primaries + backups + filling == 0; }
  };
  Parts PartsOf(WorkerKey server) const;

  // --- Changes. True, or OK: it is another map now, with the next epoch. ---

  // `server` is there, new or heard of again. Earlier incarnations of it are
  // kExited. False if it was live, has exited, or there is no room.
  bool AddServer(WorkerKey server, uint32_t host);

  // `server` has a log. False if that is known, or the server is not.
  bool SetLogged(WorkerKey server);

  // `server` is kSilent or kExited. Backups that are in sync take its
  // partitions over. What it has alone stays with it while it is silent, and is
  // lost once it has exited; then it stands by for none either. False if
  // nothing changes.
  bool FailServer(WorkerKey server, State state);

  // The same of some that have exited, as one change. Where both copies of an
  // entry have, neither is promoted: both are heirs.
  bool FailServers(const std::vector<WorkerKey>& exited);

  // Gives each partition that has no backup one, of those with the least to do.
  // A drained one, or one of `avoided`, only if there is no other. False if
  // there is none to give.
  bool AddBackups(const std::set<WorkerKey>& avoided = {});

  // Takes the next steps of moving what drained servers have to those that are
  // not: gives entries that are in sync a `next`, or lets their primaries hand
  // over. Not while a checkpoint is restored, and not to those of `avoided`.
  // False if there are none, now.
  bool AddMoves(const std::set<WorkerKey>& avoided = {});

  // kFailedPrecondition: the entry has changed since, or is not so.
  //   kMoveCopy,     the entry is not in sync, or on the move, or a checkpoint
  //   kMoveRole      is restored; `server`, or the backup, is not live or is
  //                  drained, or `server` has a copy
  // The other kinds:
  //   kBeginRestore  no server is live; there is one of that generation or a
  //                  newer one
  //   kEndRestore    CheckLoaded; another restore has begun
  //   kDrain         no such server, or it is drained; fewer live servers would
  //                  be left than there are replicas
  //   kUndrain       no such server, or it is not drained
  // kInvalidArgument: of no known kind.
  absl::Status Apply(const MapChange& change);

  // Whether servers that have loaded a checkpoint, each its part by the map of
  // that epoch, have all that this map wants of them.
  //   kFailedPrecondition  an entry is lost
  //   kUnavailable         a server that is live, or has a role, has not loaded
  //   kAborted             one got its role after it had loaded: all is to be
  //                        loaded anew, as another generation
  absl::Status CheckLoaded(const std::map<WorkerKey, uint64_t>& loaded) const;

  // "epoch 7: 4 servers (1 silent), 64 partitions, 3 without a backup in sync,
  // 0 lost".
  std::string Summary() const;

 private:
  class Loads;

  Server* Find(WorkerKey server);
  // The one of that id that may be given more; null: there is none.
  const Server* FindTaker(uint32_t id) const;
  // The backup takes the role. REQUIRES: it is in sync.
  static void Promote(Entry& entry, uint64_t epoch);
  // `next`, if there is one, takes its place.
  static void DropBackup(Entry& entry, uint64_t epoch);
  // No copy is left.
  void Lose(Entry& entry, const std::vector<WorkerKey>& had, uint64_t epoch);
  // Whether `change` is one that may be made of the entry as it is.
  static bool Fits(const Entry& entry, MapChange::Kind change);
  // Checks a kMoveCopy or kMoveRole: whether the entry that it names can make
  // it.
  absl::Status CheckMove(const MapChange& change) const;
  // The same of a kRevive or kDisown.
  absl::Status CheckHeir(const MapChange& change) const;
  absl::Status ApplyToEntry(const MapChange& change);
  absl::Status SetDrained(uint32_t server, bool is_drained);
  absl::Status BeginRestore(uint64_t generation);
  absl::Status EndRestore(const MapChange& change);

  uint64_t epoch_ = 0;
  int replicas_ = 1;
  uint64_t birth_ = 0;
  uint64_t generation_ = 0;
  bool is_restoring_ = false;
  std::vector<Server> servers_;  // in the order in which they came
  std::vector<Entry> entries_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_PARTITION_MAP_H_
