// Client: how a worker reaches the tables of all parameter servers.
//
//   ps::Client client({.agent = &agent, .servers = {"ps0", "ps1"}, ...});
//   WEFT_ASSIGN_OR_RETURN(auto model, client.Dense(spec));
//   WEFT_RETURN_IF_ERROR(model->Initialize(parameters).Wait(timeout));
//   Future<Tensor> next = model->PushPull(gradient);   // one step
//
// Each operation makes one call to each server that holds part of its data, or
// several, if it is a push or a pull of many keys to an ASYNC table. It ends
// with the first error, whose message begins with the name of the server.
// Operations on several tables in one call: many.h.
//
// With one replica (ClientOptions::replicas) a client stays with the
// incarnations of its servers that it found at its first opening of a table, or
// by its last Restore. If one of them dies, all changes of its tables since the
// last checkpoint are lost: from then on every operation of the client and its
// tables ends with kUnavailable, which names the server and its incarnation,
// also where a new one has taken its place. To go on, Restore a checkpoint and
// open the tables again, or start the job again with --resume. A new client
// takes the servers as they are.
//
// With two replicas the death of a server ends no operation. A table that is
// destroyed waits, 2 s at most, until what it has pushed is on two servers; of
// several that are destroyed one after another the first waits for all. What is
// under way when a client and all of its tables are gone ends with kCancelled.
//
// After a failed push it is unknown which servers have applied it, so the table
// refuses further pushes (kFailedPrecondition with the first error); open it
// again to go on.

#ifndef WEFT_PS_CLIENT_H_
#define WEFT_PS_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/manifest.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/cut.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/service.h"
#include "weft/rpc/agent.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

class PinnedServers;
class ServersByMap;

struct ClientOptions {
  rpc::Agent* agent = nullptr;  // must outlive the client and its tables
  // The servers' names in the order of their index.
  std::vector<std::string> servers;
  // Unique among the clients of this worker.
  uint64_t client = 0;
  // For synchronous tables: the rank of this client, and the shard of the data
  // whose gradients Push and PushPull push. With TableSpec.staleness: whose
  // clock it ticks; negative: it has none, and its pulls wait for nobody. A
  // worker with a certificate must give its own rank.
  int rank = 0;
  absl::Duration timeout = absl::Seconds(60);  // of each operation
  // Copies of each partition of the tables, 1 or 2: the same as the servers'
  // setting. With 2 the death of a server loses nothing, and ends no operation,
  // as long as each partition has a copy: docs/replication.md. Operations then
  // end with kDataLoss once it has none: Restore a checkpoint, and open the
  // tables again.
  int replicas = 1;
  // With two replicas, for a worker that may be told to end while it opens a
  // table: once this is true an opening that would have to wait for servers
  // that are gone, or that are not there yet, ends with kCancelled. It is
  // called by the thread that opens. Null: an opening waits until `timeout`.
  std::function<bool()> is_asked_to_stop;
};

// How much of the tables a checkpoint has. By default all; to save what has
// changed:
//   auto parent = directory->FindParent(16);        // null: save all rows
//   auto attempt = directory->Begin(step);
//   auto files = client.Snapshot(path, *attempt, version, timeout,
//                                SaveAs::Delta(*parent));
//   directory->Commit(*attempt, *files->Wait(timeout), metadata, *parent);
struct SaveAs {
  // Servers keep track of which rows change after this checkpoint, so that it
  // can be the parent of another: up to two bits a row, and keys of rows that
  // go.
  bool may_be_parent = false;
  // A server that knows what has changed in a partition since this checkpoint
  // writes only that. It does not know after a restart, a restore, a move or a
  // promotion, or when another checkpoint was saved as a parent meanwhile; then
  // it writes the whole partition.
  std::optional<checkpoint::Parent> parent = std::nullopt;

  static SaveAs Delta(std::optional<checkpoint::Parent> parent) {
    return {true, std::move(parent)};
  }
};

namespace internal {
class TableClient;
class TablesTogether;
struct Message;
struct Prepared;
}  // namespace internal

// The shard and the round of a push to a synchronous table. A part may be
// pushed again, by any client: the first push counts.
struct RoundPart {
  int shard = 0;  // of the data
  int64_t round = 0;
  // This client's rank takes the shard over from the rank that has served it,
  // which has died or left. If false, kFailedPrecondition if another rank
  // serves the shard.
  bool take_over = false;
};

// With TableSpec.quorum: how often the servers have said that a part came late.
// A part that is late at several servers counts for each of them.
struct LateParts {
  int64_t folded = 0;   // it counts in a later round
  int64_t dropped = 0;  // it does not count
};

// A dense table: a vector of floats, all of which each worker pushes and pulls.
//
// Thread-safety: one thread at a time.
class DenseTable {
 public:
  ~DenseTable();
  DenseTable(const DenseTable&) = delete;
  DenseTable& operator=(const DenseTable&) = delete;

  int64_t elements() const;

  // Proposes first values f32 [elements]. The first proposal counts, so every
  // worker may make one, in any order.
  Future<void> Initialize(const Tensor& values);

  // Pushes this worker's gradient f32 [elements] and pulls the new values: in
  // SYNC those after the round, which waits for all workers. A gradient that is
  // moved in, and whose memory nobody else has (Tensor::is_sole_owner), is sent
  // as it is if one server has the whole table; else it is copied.
  //
  // ASYNC: with 64 pushes of the table under way a further one waits, within
  // the time-out, for the oldest; so in an InlineScope (base/driver.h) it may
  // end with kFailedPrecondition.
  Future<Tensor> PushPull(Tensor gradient);
  Future<void> Push(Tensor gradient);
  // Pulls the values. SYNC: those after the rounds that this worker has pushed
  // to.
  Future<Tensor> Pull();

  // SYNC, for a worker that serves any number of shards of the data: pushes the
  // gradient of one, and does not end the round. A failure does not close the
  // table: the same part may be pushed again. kResourceExhausted: the servers
  // hold as many gradients of open rounds as they may; push the part again
  // later.
  //   for (int shard : mine) Push shard's part of round();
  //   EndRound();  Pull();
  Future<void> PushShard(const RoundPart& part, Tensor gradient);
  void EndRound();

  // Multiplies the learning rate of the table's rule by `scale`, 1 at first;
  // kept in checkpoints. Schedules of optimizer/schedule.h:
  //   table->SetLearningRateScale(schedule(r), r)   for a round r
  //
  // SYNC: holds from round `from_round`, by default round(), until the next
  // change. If this worker pushes its part of that round once the Future is
  // ready, all servers have the change by then, and the values have the bits of
  // a local optimizer. Every worker may set the same. ASYNC, which takes no
  // round: holds for pushes that are sent once the Future is ready.
  //   kInvalidArgument     `scale` is negative or not finite
  //   kFailedPrecondition  the round is closed, or has another change; ASYNC: a
  //                        round was given
  //   kResourceExhausted   thousands of changes are to come
  Future<void> SetLearningRateScale(
      double scale, std::optional<int64_t> from_round = std::nullopt);

  // SYNC: the round that the next push belongs to. After a restore it is the
  // table's version. With a quorum, once a push has come late: the first round
  // that is not closed on all servers.
  int64_t round() const;

  // SYNC with a quorum: the late parts among the pushes that have ended. A push
  // that came late ends well, and so does its pull, which sees the table as it
  // is now.
  LateParts late_parts() const;

  // ASYNC with TableSpec.staleness: ends the worker's step, to which all that
  // it has pushed belongs, and advances its clock by one. It is sent once all
  // pushes under way have ended. Later pulls wait, at the servers, until no
  // worker's clock is behind this one by more than the staleness. A PushPull
  // ends the step by itself, in one message, and first waits for pushes that
  // are under way.
  //
  // A pull whose time runs out ends with kDeadlineExceeded, which names the
  // slowest worker and its clock. A worker that dies, leaves or closes the
  // table is no longer waited for.
  //   kFailedPrecondition  the table has no staleness, the client no rank, or
  //                        it has left
  Future<void> Tick();
  // To be called after the last step: nobody waits for this worker any more,
  // and it waits for nobody. Destroying the table does the same.
  Future<void> LeaveClock();
  // This worker's clock: the lowest clock of the others when it opened the
  // table, and one more for each step that it has ended since.
  int64_t clock() const;

 private:
  friend class Client;
  friend class internal::TablesTogether;
  explicit DenseTable(std::unique_ptr<internal::TableClient> table);
  absl::Status CheckGradient(const Tensor& gradient) const;
  // Whether the operation may be prepared; null: of a pull.
  absl::Status Check(const Tensor* gradient) const;
  internal::Prepared Prepare(std::optional<Tensor> gradient, bool pull);
  // One message to each server.
  std::vector<internal::Message> MessagesOf(std::optional<Tensor> gradient,
                                            bool pull, const RoundPart& part);
  std::vector<Future<ExchangeReply>> Send(std::optional<Tensor> gradient,
                                          bool pull, const RoundPart& part);
  Future<std::vector<ExchangeReply>> Exchange(std::optional<Tensor> gradient,
                                              bool pull);
  Future<Tensor> ExchangeReplicated(std::optional<Tensor> gradient, bool pull);

  // Shared with the callbacks of operations that are under way.
  const std::shared_ptr<internal::TableClient> table_;
  const std::shared_ptr<const std::vector<DensePart>> cut_;
};

// A sparse table: rows of `dim` floats by 64-bit key.
//
// Thread-safety: one thread at a time.
class SparseTable {
 public:
  ~SparseTable();
  SparseTable(const SparseTable&) = delete;
  SparseTable& operator=(const SparseTable&) = delete;

  int64_t dim() const;
  // As it was opened, defaults filled in.
  const v1::TableSpec& spec() const;
  // OK, or why the table must be opened again.
  absl::Status status() const;

  // The rows of `keys` i64 [n], which may repeat, as f32 [n, dim]. A row that
  // was never pushed to has its initial value.
  Future<Tensor> Pull(const Tensor& keys);

  // Pushes gradients f32 [n, dim] of the rows `keys` i64 [n]; those of a key
  // that repeats are added up first. SYNC: each shard of the data has a part of
  // each round, also if it has no keys.
  Future<void> Push(const Tensor& keys, const Tensor& gradients);

  // Both in one message: SYNC, the rows of `pull_keys` after the round.
  Future<Tensor> PushPull(const Tensor& push_keys, const Tensor& gradients,
                          const Tensor& pull_keys);

  // As DenseTable's.
  Future<void> PushShard(const RoundPart& part, const Tensor& keys,
                         const Tensor& gradients);
  void EndRound();
  // With two replicas: waits until no single death can lose what was pushed; in
  // SYNC, until its rounds are closed on both copies. At D1 a push is answered
  // earlier than that (docs/replication.md). kDeadlineExceeded after `timeout`;
  // OK at once with one replica.
  absl::Status AwaitStable(absl::Duration timeout);
  Future<void> SetLearningRateScale(
      double scale, std::optional<int64_t> from_round = std::nullopt);
  int64_t round() const;
  LateParts late_parts() const;
  Future<void> Tick();
  Future<void> LeaveClock();
  int64_t clock() const;

 private:
  friend class Client;
  friend class internal::TablesTogether;
  explicit SparseTable(std::unique_ptr<internal::TableClient> table);
  absl::Status CheckPush(const Tensor& keys, const Tensor& gradients) const;
  // Whether the operation may be prepared; null: what it has not.
  absl::Status Check(const Tensor* push_keys, const Tensor* gradients,
                     const Tensor* pull_keys) const;
  internal::Prepared Prepare(const Tensor* push_keys, const Tensor* gradients,
                             const Tensor* pull_keys);
  Future<Tensor> Exchange(const Tensor* push_keys, const Tensor* gradients,
                          const Tensor* pull_keys);
  Future<Tensor> ExchangeReplicated(const Tensor* push_keys,
                                    const Tensor* gradients,
                                    const Tensor* pull_keys);

  const std::shared_ptr<internal::TableClient> table_;
};

// Operations on all servers wait, within the timeout, for servers that have
// joined and do not serve yet.
//
// Thread-safety: one thread at a time.
class Client {
 public:
  // REQUIRES: options.agent, at least one server.
  explicit Client(ClientOptions options);
  ~Client();

  // With two replicas, for a worker that is to end: 2 s from now on operations
  // of its tables end with kCancelled, as a table that is closed, if they wait
  // for a server that is gone and that no other has taken the place of by then.
  // Those that wait for workers, or for a server that lives, go on. With one
  // replica none waits for a server that is gone.
  void GiveUpOnGoneServers();

  // Makes the table on every server, or finds it there.
  //   kInvalidArgument     as CheckedSpec, or of the other kind
  //   kFailedPrecondition  another table has that name
  //   kCancelled           ClientOptions::is_asked_to_stop
  absl::StatusOr<std::unique_ptr<DenseTable>> Dense(v1::TableSpec spec);
  absl::StatusOr<std::unique_ptr<SparseTable>> Sparse(v1::TableSpec spec);

  // Checks, before there is something to save, that all servers may use the
  // directory `path`. The error is that with which Save and Restore would end:
  //   kFailedPrecondition  it was started without --checkpoint-dir
  //   kPermissionDenied    that directory is neither `path` nor above it
  //   kNotFound            its host does not see the directory
  absl::Status CheckCheckpointDirectory(const std::string& path);

  // Every server adds its part to checkpoint `attempt` of the directory `path`,
  // which all see; then the caller commits them. Errors as
  // CheckCheckpointDirectory; kFailedPrecondition unless synchronous tables are
  // at `version` (negative: any). `as`: whether only what has changed is saved.
  absl::StatusOr<std::vector<checkpoint::FileRecord>> Save(
      const std::string& path, const std::string& attempt, int64_t version,
      const SaveAs& as = SaveAs());
  // The same of the tables as they are when this returns, after some
  // milliseconds: pushes, pulls and rounds go on while servers write, and the
  // Future has what Save returns. So a caller that gives its own part of a
  // round only after this has a checkpoint of one version. The Future's errors,
  // beside those of Save: kUnavailable if a server dies meanwhile, also with
  // two replicas; kFailedPrecondition if a server was asked to write later than
  // it keeps what it has frozen (30 s); kResourceExhausted if more is changed
  // than servers may keep (--snapshot-memory). Then begin another checkpoint;
  // the tables go on.
  absl::StatusOr<Future<std::vector<checkpoint::FileRecord>>> Snapshot(
      const std::string& path, const std::string& attempt, int64_t version,
      absl::Duration write_timeout, const SaveAs& as = SaveAs());

  // Every server replaces its tables by those of that checkpoint. If it has
  // only what has changed, the checkpoints that it needs are read too. Tables
  // that are open must be opened again. The calls go to the servers that run
  // now, and the client stays with these incarnations.
  //
  // With two replicas also where all copies of partitions are lost: then the
  // tables, which ended with kDataLoss, are there again. If it fails in that
  // case, or this client dies, no table can be opened (kUnavailable) before
  // another Restore. kAborted: another client has begun one meanwhile.
  absl::Status Restore(const std::string& path, const std::string& name);

  absl::StatusOr<std::vector<v1::ServerStats>> Describe();

 private:
  // The incarnations of the servers that run now.
  std::shared_ptr<PinnedServers> Pin() const;
  // Makes `call` to all of `servers`, again while one of them does not serve
  // yet. If `servers` is null, calls those that run then, and sets it to them.
  template <typename T>
  Result<T> OnEach(
      std::shared_ptr<PinnedServers>& servers,
      absl::FunctionRef<Future<T>(const std::vector<rpc::Target>&)> call);
  absl::StatusOr<std::unique_ptr<internal::TableClient>> Open(
      v1::TableSpec spec);
  // With a staleness: gives the client a clock. Returns where that begins.
  absl::StatusOr<int64_t> JoinClocks(const TableLayout& layout,
                                     uint64_t identity);
  absl::StatusOr<std::unique_ptr<internal::TableClient>> OpenReplicated(
      std::unique_ptr<TableLayout> layout, uint64_t identity);

  const ClientOptions options_;
  std::shared_ptr<PinnedServers> servers_;  // null: none were found yet
  uint64_t opened_ = 0;                     // tables so far
  std::unique_ptr<ServersByMap> by_map_;    // with two replicas; else null
};

}  // namespace weft::ps

#endif  // WEFT_PS_CLIENT_H_
