// ReplicatedTableClient: a client's end of one table of a job with two
// replicas: what it has pushed and is not stable yet, and what it asks for.
//
// A push goes to whoever has the role of its partition, and again to the next
// one until it is acknowledged; so does a pull until it is answered. A server
// that dies costs time, and no error, unless no copy is left.
//
// Errors of operations:
//   kDeadlineExceeded    not within Options::timeout; says what waits for whom
//   kDataLoss            all copies of a partition are lost: restore a
//                        checkpoint, and open the table again
//   kFailedPrecondition  a checkpoint was restored since
//   kCancelled           the session was closed, or was told to give up on
//                        servers that are gone
//   others               as a server refuses it, ReplicatedTable
//
// Thread-safety: thread-safe, but one thread at a time pushes.

#ifndef WEFT_PS_REPLICATED_TABLE_CLIENT_H_
#define WEFT_PS_REPLICATED_TABLE_CLIENT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/replication/client_window.h"
#include "weft/ps/replicated/replica_session.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/waits/server_waits.h"

namespace weft::ps {

class ReplicatedTableClient final
    : public MapFollower,
      public std::enable_shared_from_this<ReplicatedTableClient> {
 public:
  struct Options {
    v1::TableSpec spec;
    uint64_t opening = 0;  // as which the table was opened
    uint64_t opened_at = 0;
    uint64_t generation = 0;  // that it had: TableStats
    int rank = 0;
    absl::Duration timeout = absl::Seconds(60);  // of each operation
    uint64_t first_sequence = 1;  // ASYNC: the number of the first push
  };
  static std::shared_ptr<ReplicatedTableClient> Make(
      std::shared_ptr<ReplicaSession> session, Options options);

  // A payload for one partition.
  struct Piece {
    int partition = 0;
    Bytes payload;
  };

  // The part of a shard in a round, one piece for each partition with rows.
  // Waits for room. `closes`: its refusal closes the table.
  Future<void> PushPart(int shard, int64_t round, bool take_over, bool closes,
                        std::vector<Piece> pieces) ABSL_LOCKS_EXCLUDED(mu_);
  // ASYNC. Waits for room.
  Future<void> Push(std::vector<Piece> pieces) ABSL_LOCKS_EXCLUDED(mu_);
  // First values and learning rates: each is made once.
  Future<void> Change(std::vector<Piece> pieces) ABSL_LOCKS_EXCLUDED(mu_);
  // With a staleness: joins the clocks of each of `partitions`; where the clock
  // of this rank is there, by partition.
  using Clocks = std::map<int, int64_t>;
  Future<Clocks> Join(const std::vector<int>& partitions)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Leaves them, after what was pushed; of a table that has failed, in place of
  // what of that has not arrived.
  Future<void> Leave(const std::vector<int>& partitions)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The values for each piece, whose payload is keys. SYNC: of `version` or
  // newer. With a staleness: at `clock`, if there is one.
  Future<std::vector<Bytes>> Pull(int64_t version, std::vector<Piece> pieces,
                                  std::optional<int64_t> clock = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The names of the servers that this table waits for.
  enum class Awaited {
    kPulls,   // those that are to answer pulls
    kPushes,  // those that are to answer pushes
    kBoth,    // those that are to answer a push and the pull after it
    kStable,  // those of which what was pushed is to be stable
  };
  std::vector<std::string> ServersAwaited(Awaited what) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // `result` of pulls or pushes, whose waits are reported.
  template <typename T>
  Future<T> Watch(Awaited what, Future<T> result);

  // Ok, or why the table must be opened again.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // What of it is not, of one partition, and which server is to answer: for
  // errors of waits. Empty: all of it is.
  std::string DescribeUnstable() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all that was pushed is stable, or status() is an error; false:
  // not within `timeout`.
  bool AwaitStable(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  void OnMap(const PartitionMap& map) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnTick(Instant now) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnClose(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // An operation of which one or more pieces are under way.
  struct Operation {
    size_t left = 0;
    Promise<void> promise;
    Instant deadline;
    bool has_ended = false;
    bool closes = false;
    bool joins = false;
    Clocks clocks;  // of a join
  };
  struct Window {
    Window(ClientWindowOptions options, int partitions, const PartitionMap& map)
        : window(options, partitions, map), client(options.client) {}
    ClientWindow window;
    ClientId client;
    int shard = 0;  // of parts
    bool take_over = false;
    uint64_t next = 1;  // the number that its next push gets
    // The operations under way, by partition and number.
    absl::flat_hash_map<std::pair<int, uint64_t>, std::shared_ptr<Operation>>
        operations;
  };
  struct PullOperation {
    struct Item {
      Piece piece;
      Bytes values;
      bool is_done = false;
      uint64_t asked = 0;  // the epoch that was asked; 0: nobody is
    };
    int64_t version = 0;
    std::optional<int64_t> clock;
    std::vector<Item> items;
    size_t left = 0;
    Promise<std::vector<Bytes>> promise;
    Instant deadline;
    Instant ask_at;
    absl::Status last;  // what a server has said, of a deadline
  };
  // What is done once the lock is released.
  struct Work {
    struct Call {
      WorkerKey to;
      uint64_t window = 0;
      v1::PushRequest request;
      std::vector<Bytes> payloads;
    };
    std::map<std::pair<WorkerKey, uint64_t>, Call> pushes;
    struct PullCall {
      WorkerKey to;
      uint64_t pull = 0;
      absl::Duration timeout;
      v1::PullRequest request;
      std::vector<Bytes> payloads;
      std::vector<size_t> items;
    };
    std::vector<PullCall> pulls;
    std::vector<absl::AnyInvocable<void()>> done;
    std::vector<WorkerKey> opens;
    bool learns_map = false;
  };

  ReplicatedTableClient(std::shared_ptr<ReplicaSession> session,
                        Options options);

  Window& NewWindow(uint64_t id, ClientId client, uint64_t first)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The id of the window of a shard's parts from `round` on.
  uint64_t WindowOfShard(int shard, int64_t round)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Future<void> PushTo(uint64_t id, std::vector<Piece> pieces, bool closes)
      ABSL_LOCKS_EXCLUDED(mu_);
  Future<void> PushTo(uint64_t id, std::vector<Piece> pieces,
                      const std::shared_ptr<Operation>& operation)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Gives pieces from number `next` on to their window, as far as it has room.
  // True: these were all, or `operation` has ended.
  bool PushPieces(uint64_t id, std::vector<Piece>& pieces, size_t& next,
                  const std::shared_ptr<Operation>& operation, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until the window has room for `piece`, or will have none; for a
  // moment at most.
  void AwaitRoom(uint64_t id, const Piece& piece, const Operation& operation,
                 Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ServerWaits::Wait BeginWait(const char* what, Awaited awaited);
  void Collect(uint64_t id, Window& window, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Ask(uint64_t id, PullOperation& pull, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndPull(uint64_t id, const absl::Status& status, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const std::shared_ptr<Operation>& operation,
           const absl::Status& status, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The table is closed: ends all.
  void Fail(const absl::Status& status, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(uint64_t id, int partition, uint64_t sequence,
              const absl::Status& status, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnPushed(const Work::Call& call,
                const absl::StatusOr<v1::PushReply>& reply)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnPulled(const Work::PullCall& call,
                const absl::StatusOr<PullSpansReply>& reply)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // The servers that are gone and have entries of the map. Names are asked for
  // without the lock.
  using Names = std::map<WorkerKey, std::string>;
  Names NamesOfGone() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends what waits for the servers of `gone`.
  void GiveUpOn(const Names& gone, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ok, or that a server of `gone` has the partition.
  absl::Status CheckIsServed(int partition, const Names& gone) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The server that is gone and has the entry; nothing: one that is there has.
  std::optional<WorkerKey> GoneServerOf(const PartitionMap::Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How a call of `server` ended.
  void NoteEnd(WorkerKey server, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool is_sync() const { return options_.spec.mode() == v1::TableSpec::SYNC; }
  absl::Status Lost(int partition) const;
  // Whether what is asked has not been answered for so long that whoever is
  // asked may have no part in it any more.
  bool MayBeElsewhere(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<ReplicaSession> session_;
  const Options options_;
  const ClientId client_;

  mutable Mutex mu_;
  CondVar moved_;  // something was answered
  PartitionMap map_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Window> windows_ ABSL_GUARDED_BY(mu_);  // by id
  std::map<int, uint64_t> of_shard_ ABSL_GUARDED_BY(mu_);    // the newest's id
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 16;
  uint64_t last_push_ ABSL_GUARDED_BY(mu_);  // ASYNC: the highest number
  std::map<uint64_t, PullOperation> pulls_ ABSL_GUARDED_BY(mu_);  // by id
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  // When a server has answered, or nothing was asked of one, the last time.
  Instant heard_at_ ABSL_GUARDED_BY(mu_);
  std::set<WorkerKey> gone_ ABSL_GUARDED_BY(mu_);  // servers of map_
  // Of AwaitStable: whoever waits in short pieces goes on with the same wait.
  std::optional<ServerWaits::Wait> stable_wait_ ABSL_GUARDED_BY(mu_);
  Instant stable_seen_ ABSL_GUARDED_BY(mu_);
};

template <typename T>
Future<T> ReplicatedTableClient::Watch(Awaited what, Future<T> result) {
  ServerWaits::Operation operation;
  operation.table = options_.spec.name();
  operation.what = what == Awaited::kPulls  ? "Pull"
                   : what == Awaited::kBoth ? "PushPull"
                                            : "Push";
  operation.servers = [weak = weak_from_this(), what] {
    const auto self = weak.lock();
    return self == nullptr ? std::vector<std::string>()
                           : self->ServersAwaited(what);
  };
  return ServerWaits::Watch(session_->waits(), std::move(operation),
                            std::move(result));
}

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_TABLE_CLIENT_H_
