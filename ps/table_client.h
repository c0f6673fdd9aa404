// TableClient: what the dense and the sparse table of a client have in common:
// the calls, the numbers of pushes, rounds. For dense_table.cc and
// sparse_table.cc.
//
// Thread-safety: one thread at a time, but for status() and Fail().

#ifndef WEFT_PS_TABLE_CLIENT_H_
#define WEFT_PS_TABLE_CLIENT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/core/cut.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/pinned_servers.h"
#include "weft/ps/replicated/replica_session.h"
#include "weft/ps/replicated/table_client.h"
#include "weft/ps/service.h"
#include "weft/ps/waits/server_waits.h"
#include "weft/ps/wire/push_encoder.h"
#include "weft/rpc/agent.h"
#include "weft/tensor/tensor.h"

namespace weft::ps::internal {

class TableClient {
 public:
  TableClient(const ClientOptions& options,
              std::shared_ptr<PinnedServers> servers,
              std::unique_ptr<TableLayout> layout, uint64_t identity,
              int64_t version)
      : options_(options),
        waits_(ServerWaits::Of(*options.agent)),
        servers_(std::move(servers)),
        layout_(std::move(layout)),
        placement_(layout_->spec().name(), layout_->spec().partitions(),
                   static_cast<int>(options.servers.size())),
        encoder_(*layout_),
        identity_(identity),
        round_(version),
        pushed_(layout_->spec().partitions(), 0) {}

  // With two replicas, of which the table has one part: its partitions have no
  // servers of their own.
  TableClient(const ClientOptions& options,
              std::shared_ptr<const OpenSession> session,
              ReplicatedTableClient::Options replicated,
              std::unique_ptr<TableLayout> layout, uint64_t identity,
              int64_t version)
      : options_(options),
        waits_(session->session()->waits()),
        open_session_(std::move(session)),
        replicated_(ReplicatedTableClient::Make(open_session_->session(),
                                                std::move(replicated))),
        layout_(std::move(layout)),
        placement_(layout_->spec().name(), layout_->spec().partitions(), 1),
        encoder_(*layout_),
        identity_(identity),
        round_(version) {}

  // With two replicas: the table that was opened has ended. What is under way
  // may keep this longer.
  void Close();

  // Null unless there are two replicas.
  ReplicatedTableClient* replicated() const { return replicated_.get(); }

  // The pushed rows, as one part of the open round, or at once. Its waits are
  // not reported (ReplicatedTableClient::Watch).
  Future<void> PushPieces(std::vector<ReplicatedTableClient::Piece> pieces,
                          const RoundPart& part, bool closes) const;
  // With a clock: what ends this step, to go with the last of its pushes.
  void AddTicks(std::vector<ReplicatedTableClient::Piece>& pieces) const;
  // With a staleness: the client has a clock from now on.
  absl::Status JoinClocks();
  const std::vector<int>& clock_partitions() const { return clock_partitions_; }
  // What is pulled once `pushed` is there; SYNC: after the rounds so far. With
  // a clock: at that which it has now.
  Future<std::vector<Bytes>> PullPieces(
      const std::optional<Future<void>>& pushed,
      std::vector<ReplicatedTableClient::Piece> pieces) const;

  // Those of one client have the same ones, unless it has restored a checkpoint
  // between their openings. Null with two replicas.
  const std::shared_ptr<PinnedServers>& pinned() const { return servers_; }
  const std::string& server_name(int server) const {
    return options_.servers[server];
  }
  absl::Duration timeout() const { return options_.timeout; }

  const TableLayout& layout() const { return *layout_; }
  const Placement& placement() const { return placement_; }
  int servers() const { return placement_.servers(); }
  uint64_t identity() const { return identity_; }
  int64_t round() const { return std::max(round_, behind_.load()); }
  bool is_sync() const { return layout_->spec().mode() == v1::TableSpec::SYNC; }

  rpc::Target To(int server) const {
    return (*servers_)[server].WithTimeout(options_.timeout);
  }

  // The result of calls To() servers, whose waits are reported as those of
  // `what`, a literal.
  template <typename T>
  Future<T> Watch(const char* what, Future<T> result) const {
    return ServerWaits::Watch(
        waits_, {layout_->spec().name(), what, nullptr},
        PinnedServers::Watch(servers_, std::move(result)));
  }

  // The encoder of what it pushes. A push that is sent again has the bytes that
  // were encoded first.
  PushEncoder& encoder() { return encoder_; }
  const PushEncoder& encoder() const { return encoder_; }

  // The part of this worker's own shard in the round that is its next. A worker
  // that was thought dead, or came back, takes its shard back.
  RoundPart OwnPart() const { return {options_.rank, round(), true}; }

  // `step`: it ends one, of a table with clocks.
  v1::Request NewRequest(bool push, bool pull, const RoundPart& part,
                         bool step = false) const;

  void AddSpan(v1::Request& request, int partition, int64_t rows) {
    request.add_partitions(partition);
    request.add_rows(static_cast<uint32_t>(rows));
    if (!is_sync()) request.add_sequences(++pushed_[partition]);
  }

  void EndRound() {
    if (is_sync()) round_ = round() + 1;
  }

  // With a quorum: counts what the servers said of a part.
  void NoteLate(const std::vector<ExchangeReply>& replies)
      ABSL_LOCKS_EXCLUDED(mu_);
  LateParts late_parts() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return late_;
  }

  // Whether the client has a clock of the table: it has joined, and not left.
  bool has_clock() const { return clock_.has_value(); }
  int64_t clock() const { return clock_.value_or(0); }
  void BeginClock(int64_t at) { clock_ = at; }
  void EndStep() {
    if (clock_.has_value()) ++*clock_;
  }
  void EndClock() { clock_.reset(); }
  // kFailedPrecondition unless it has a clock.
  absl::Status CheckHasClock() const;
  // All pushes under way.
  Future<void> UnderWay() const;

  // Sends the change to every server: all must know it.
  Future<void> SetLearningRateScale(double scale,
                                    std::optional<int64_t> from_round) const;

  // ASYNC: no partition takes a push that is more than SequenceWindow::kWidth
  // after one that it has not applied. So waits for the oldest push that is
  // under way, if as many are; its error, which has closed the table.
  // `all`: for all of them, since what follows says that they are applied.
  absl::Status AwaitRoom(bool all = false) {
    return AwaitRoom(options_.timeout, all);
  }
  absl::Status AwaitRoom(absl::Duration timeout, bool all);
  void Ticks(const Future<void>& tick) { under_way_.push_back(tick); }
  void Sent(const Future<std::vector<ExchangeReply>>& push) {
    if (is_sync()) return;
    // Without what it pulls, which nobody else is to hold.
    under_way_.push_back(push.Then([](const std::vector<ExchangeReply>&) {}));
  }

  // Whether an operation is under way, for which a server works already.
  bool has_pushes_under_way() const { return !under_way_.empty(); }
  bool has_pull_under_way() const {
    return last_pull_.has_value() && !last_pull_->IsReady();
  }
  void Pulls(const Future<void>& pull) { last_pull_ = pull; }

  // The cut of `keys`, which is kept for the next call: a worker pulls the rows
  // of a batch and then pushes to the same ones. `grown` as CutSparse: not
  // called if the last call had the same keys.
  std::shared_ptr<const SparseCut> Cut(
      const Tensor& keys, absl::FunctionRef<void(const SparseCut&)> grown);
  std::shared_ptr<const SparseCut> Cut(const Tensor& keys) {
    return Cut(keys, [](const SparseCut&) {});
  }

  // kFailedPrecondition unless it has rounds.
  absl::Status CheckRounds(absl::string_view what) const;

  // Those that hold rows of the table.
  std::vector<int> PartitionsWithRows() const;

  // kUnavailable once a server is gone.
  absl::Status servers_status() const {
    return servers_ != nullptr ? servers_->status() : absl::OkStatus();
  }

  // As servers_status(); kFailedPrecondition once a push has failed.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (failure_.ok()) failure_ = status;
  }

 private:
  // With two replicas: as operation.Wait(timeout()), which ends sooner once the
  // worker is asked to stop and servers are gone.
  template <typename T>
  Result<T> AwaitOpening(const Future<T>& operation) const;

  const ClientOptions options_;
  const std::shared_ptr<ServerWaits> waits_;
  const std::shared_ptr<PinnedServers> servers_;     // null with two replicas
  std::shared_ptr<const OpenSession> open_session_;  // or these
  const std::shared_ptr<ReplicatedTableClient> replicated_;
  const std::unique_ptr<TableLayout> layout_;
  const Placement placement_;
  PushEncoder encoder_;
  const uint64_t identity_;
  int64_t round_;
  // With a quorum: the rounds before are closed on all servers.
  std::atomic<int64_t> behind_{0};
  std::optional<int64_t> clock_;
  std::vector<int> clock_partitions_;  // with two replicas: that have it
  std::vector<uint64_t> pushed_;       // by partition: the last number given
  // ASYNC: pushes, in the order in which they were sent.
  std::deque<Future<void>> under_way_;
  std::optional<Future<void>> last_pull_;
  std::vector<int64_t> cut_keys_;  // of cut_
  std::shared_ptr<const SparseCut> cut_;

  mutable Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  LateParts late_ ABSL_GUARDED_BY(mu_);
};

// DenseTable::Tick and LeaveClock.
Future<void> Tick(const std::shared_ptr<TableClient>& table);
Future<void> LeaveClock(const std::shared_ptr<TableClient>& table);

// Those that hold rows of the table.
std::vector<int> ServersWithRows(const TableLayout& layout,
                                 const Placement& placement);

// Remembers the failure of a push, on whichever thread it shows.
void WatchPush(const Future<std::vector<ExchangeReply>>& replies,
               const std::shared_ptr<TableClient>& table);

absl::Status Unfit(const TableLayout& layout, absl::string_view what,
                   absl::string_view wanted, const Tensor& found);

// The rows that were pulled, those of `keys` or slices, in f32: the tensor of
// the answer if that has them so. Servers are not trusted to send tensors of
// the right dtype and shape, ...
absl::StatusOr<Tensor> RowsOf(const ExchangeReply& reply,
                              const TableLayout& layout,
                              absl::Span<const uint64_t> keys,
                              const Shape& wanted);
// ... nor as many bytes as were asked for. The floats are in `values`, or read
// into `memory`.
absl::StatusOr<const float*> FloatsOf(const Bytes& values,
                                      const TableLayout& layout,
                                      absl::Span<const uint64_t> keys,
                                      std::vector<float>& memory);

}  // namespace weft::ps::internal

#endif  // WEFT_PS_TABLE_CLIENT_H_
