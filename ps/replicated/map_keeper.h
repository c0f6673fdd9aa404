// MapKeeper: one server's copy of the job's partition map, and its hand in
// changing it.
//
// The map is the value of one key of the job's Store. Each server of the job
// has a keeper; all changes are compare-and-set, so that several may want the
// same: who comes second finds nothing to change.
//
// Three threads: one waits for the key's next version, one asks the store and
// makes changes, one tells the owner, so that a store that is away delays no
// news.

#ifndef WEFT_PS_REPLICATED_MAP_KEEPER_H_
#define WEFT_PS_REPLICATED_MAP_KEEPER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/ps/core/replication/dropped_servers.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/rendezvous/store.h"
#include "weft/telemetry/telemetry.h"

namespace weft::ps {

// Thread-safety: thread-safe; destroyed by any thread but its own.
class MapKeeper {
 public:
  struct Options {
    rendezvous::Store* store = nullptr;  // must outlive the keeper
    std::string key = "ps/map";
    // This server; live whatever OnServers says, unless it has exited. None: it
    // is no server, and only those of OnServers are.
    WorkerKey self;
    uint32_t host = 0;     // PartitionMap::Server::host of self
    bool has_log = false;  // PartitionMap::Server::has_log of self
    int entries = 64;      // of the first map
    int replicas = 2;
    // The limit of each call of the store; use at most a second, so that the
    // keeper ends soon.
    absl::Duration store_timeout = absl::Seconds(2);
    // How often the store is asked, which proves that it is there:
    // Leases::kCoordinator.
    absl::Duration contact_every = absl::Milliseconds(500);
    // Both run on one thread of the keeper, without locks held; they must not
    // block for long, and may call the keeper.
    //
    // Called with a newer map, in the order of epochs. If several came
    // meanwhile, only the newest is passed.
    std::function<void(const PartitionMap&)> on_map;
    // The store has answered a question that was sent at `asked`, on
    // SteadyClock(), with the map of `map_epoch`; 0: it has none. on_map has
    // told that map, or a newer one, before. A map that cannot be read is no
    // contact: what it says of this server is unknown.
    std::function<void(Instant asked, uint64_t map_epoch)> on_contact;
    telemetry::Telemetry* telemetry = nullptr;  // null: silent
  };

  // Starts its threads; throws std::system_error if the system has none left.
  explicit MapKeeper(Options options);
  // Ends them, within the time-out of a call of the store; on_* do not run
  // afterwards. REQUIRES: nobody is in AwaitMap or AwaitNewest.
  ~MapKeeper();
  MapKeeper(const MapKeeper&) = delete;
  MapKeeper& operator=(const MapKeeper&) = delete;

  // The servers that the job has now, from the membership, at each change of
  // its view. `live`: the members; of two incarnations of one, the newer.
  // `exited`: incarnations that are known to have ended. `expected`: how many
  // servers the job has; the first map is made once so many are live. Returns
  // at once. The newest holds until the next: also a later map is made to fit.
  void OnServers(std::vector<PartitionMap::Server> live,
                 std::vector<WorkerKey> exited, int expected)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A change that a replica wants. It is made, or dropped because the entry has
  // changed since. `may_make`, which may be null, is asked before each attempt,
  // on a thread of the keeper, without locks held: false drops it. Returns at
  // once. One change for each entry, kind and server waits: the newest.
  void Propose(const MapChange& change, std::function<bool()> may_make)
      ABSL_LOCKS_EXCLUDED(mu_);

  // There is a newer map than map(): the store is asked soon.
  void Learn() ABSL_LOCKS_EXCLUDED(mu_);

  // A map that another server or a client's answer brought, as encoded() has
  // it; kInvalidArgument if it is none, or has other entries than this job's. A
  // newer one becomes map().
  absl::Status Offer(absl::string_view encoded) ABSL_LOCKS_EXCLUDED(mu_);

  // The newest map that is known; epoch() 0: none yet.
  PartitionMap map() const ABSL_LOCKS_EXCLUDED(mu_);
  std::string encoded() const ABSL_LOCKS_EXCLUDED(mu_);  // empty: none yet

  // The first map, or a later one.
  //   kDeadlineExceeded  says how many of `expected` servers are there, and why
  //                      the store does not answer, if so
  //   kInvalidArgument   the options or servers are not such that there can be
  //                      a map
  absl::StatusOr<PartitionMap> AwaitMap(absl::Duration timeout) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // A map that is no older than the store's was when this was called.
  // kUnavailable: the store has not been read within `timeout`; it says why.
  absl::StatusOr<PartitionMap> AwaitNewest(absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Ends the threads that have begun.
  void Stop();

  struct Known {
    PartitionMap map;
    std::string encoded;
  };
  // Shared with threads that read it while a newer one takes its place.
  using KnownMap = std::shared_ptr<const Known>;
  struct View;
  struct Proposal {
    MapChange change;
    std::function<bool()> may_make;
    uint64_t number = 0;  // each call of Propose has its own
  };
  // Proposals by entry, kind, and the server that is meant.
  using Proposals =
      std::map<std::tuple<int, MapChange::Kind, uint32_t>, Proposal>;
  struct Contact {
    Instant asked;
    uint64_t map_epoch = 0;
  };
  struct Work {
    KnownMap known;
    std::shared_ptr<const View> view;
    Proposals proposals;
    bool may_add_backups = false;
    bool adds_backups = false;  // Compose has added some
  };

  // The threads.
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);
  void Change() ABSL_LOCKS_EXCLUDED(mu_);
  void Tell() ABSL_LOCKS_EXCLUDED(mu_);
  // `before` is null for the first map; `has_held` is whether this server had
  // a partition in one of them.
  void LogRoles(const PartitionMap& map, const PartitionMap* before,
                bool* has_held);

  // Waits until there is something to ask the store, and until `not_before` at
  // least. False: the keeper ends.
  bool AwaitWork(Instant not_before) ABSL_LOCKS_EXCLUDED(mu_);
  // False: the keeper ends.
  bool PauseFor(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mu_);

  // Asks the store, and makes what is wanted of its map. False: another change
  // came first.
  absl::StatusOr<bool> Attempt() ABSL_LOCKS_EXCLUDED(mu_);
  Work TakeWork(Contact contact) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes `next` of what the store has. False: there is nothing to write.
  bool Compose(const KnownMap& stored, Work& work, PartitionMap& next)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The first map, if it is time for it.
  // Which servers are to be avoided, once it is noted which `after` drops.
  std::set<WorkerKey> NoteDropped(const PartitionMap& before,
                                  const PartitionMap& after)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool ComposeFirst(const View* view, PartitionMap& next)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> Write(uint64_t version, PartitionMap next,
                             const Work& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the wait of these proposals, unless a newer one has taken the place of
  // one.
  void Forget(const Proposals& proposals) ABSL_LOCKS_EXCLUDED(mu_);

  // The map that the store holds; kDataLoss if it holds none, or another job's.
  absl::StatusOr<KnownMap> Read(const rendezvous::StoreEntry& entry)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes it the newest that is known, if it is. kInvalidArgument: it has other
  // entries than the one that is known.
  absl::Status Adopt(const KnownMap& map) ABSL_LOCKS_EXCLUDED(mu_);
  // How the last attempt went, for people.
  void Note(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  rendezvous::Store& store_;
  const absl::Duration timeout_;  // of each call of it
  telemetry::Telemetry& telemetry_;

  mutable Mutex mu_;
  mutable CondVar changed_;  // anything below
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  KnownMap known_ ABSL_GUARDED_BY(mu_);                    // null: none yet
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mu_);  // null: none yet
  Proposals proposals_ ABSL_GUARDED_BY(mu_);
  uint64_t last_proposal_ ABSL_GUARDED_BY(mu_) = 0;  // its number
  // An attempt is due that asks the store from now on: the answer to a question
  // that is on its way may be older than what is to be learnt.
  bool is_asked_ ABSL_GUARDED_BY(mu_) = false;
  // An attempt is due: known_ is not as it should be.
  bool has_work_ ABSL_GUARDED_BY(mu_) = false;
  Instant next_contact_ ABSL_GUARDED_BY(mu_);
  // When the store was asked whose answer is known, the last time.
  Instant read_at_ ABSL_GUARDED_BY(mu_);
  bool wants_backups_ ABSL_GUARDED_BY(mu_) = false;  // known_ lacks some
  Instant next_backups_ ABSL_GUARDED_BY(mu_);
  DroppedServers dropped_ ABSL_GUARDED_BY(mu_);
  std::optional<Contact> contact_ ABSL_GUARDED_BY(mu_);  // not told yet
  absl::Status store_status_ ABSL_GUARDED_BY(mu_);       // of the last attempt
  absl::Status no_first_map_ ABSL_GUARDED_BY(mu_);       // why

  // Last: they use the rest.
  std::thread watching_;
  std::thread changing_;
  std::thread telling_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_MAP_KEEPER_H_
