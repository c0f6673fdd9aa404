// TableShard: what one server holds of one table: its partitions, and the rule
// by which pushes become visible.
//
// SYNC: each push is the part of one shard of the data in a round; a round
// closes when the parts of all shards are there, and is applied in their order
// as one step. A pull waits, as a parked Future and not a thread, for the
// version it names. A part is known by (shard, round), so that sending it again
// is harmless, also where another rank serves the shard by then.
// With a quorum a round closes without the slowest shards, whose late parts are
// dropped or folded (round_gate.h).
// ASYNC: a push is applied as it comes; each of its spans is known by (client,
// partition, sequence). With a staleness a pull waits, parked as well, for the
// clocks of the slowest workers (clock_gate.h).
//
// Each client opens the table first, and pushes and pulls by the number that it
// gets (openings.h).
//
// Parts of rounds, and keys of parked pulls, count against the server's budget.
// Those of rounds ahead of the open one may use half of it, so that the open
// round has room, and can close. Rows that a part could make are held of the
// server's memory for rows from the moment when it is taken.
//
// Errors:
//   kInvalidArgument     the message does not fit the table; nothing changed
//   kFailedPrecondition  a dense table without first values; a sequence, a
//                        round, a version or a clock too far ahead; a round
//                        closed without this shard; another rank serves it; a
//                        clock that goes back, or is another client's
//   kResourceExhausted   the budget is used up, or kMostParked pulls wait, or
//                        the push could make more rows than there is memory for
//   kDeadlineExceeded    the version was not reached in time; names who is
//                        missing
//   kCancelled           the shard was shut down
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_SHARD_TABLE_SHARD_H_
#define WEFT_PS_SHARD_TABLE_SHARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/clock_gate.h"
#include "weft/ps/core/cut.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/rate_changes.h"
#include "weft/ps/core/replication/load_meter.h"
#include "weft/ps/core/round_gate.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/shard/table_metrics.h"
#include "weft/ps/shard/table_snapshot.h"
#include "weft/ps/waits/wait_board.h"
#include "weft/ps/wire/wire_values.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// How many pulls of a table may wait at a server.
inline constexpr size_t kMostParked = 65536;

struct ShardReply {
  v1::Reply reply;
  // If pulled: f32 [m, dim], or [elements of this server]; where the table's
  // pulls are in another dtype, u8 of the bytes of these rows.
  Tensor values;
};

class TableShard {
 public:
  // As TableLayout::Create. `budget` null: nothing bounds what is held;
  // `memory` null: nothing but the spec bounds the rows.
  static absl::StatusOr<std::unique_ptr<TableShard>> Create(
      v1::TableSpec spec, int server, int servers,
      std::shared_ptr<ByteBudget> budget = nullptr,
      std::shared_ptr<ByteBudget> memory = nullptr);
  ~TableShard();

  const v1::TableSpec& spec() const { return layout_->spec(); }

  // Openings::Open, NumberOf and Forget. What is known of the pushes of clients
  // that are closed is dropped by Expire.
  void Open(const Caller& caller, uint64_t client) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<uint64_t> NumberOf(const Caller& caller, uint64_t client) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(WorkerKey worker) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives a dense table its first values: this server's slices one after
  // another, in the order of Cut. Ignored if it has them.
  absl::Status Initialize(const Tensor& values) ABSL_LOCKS_EXCLUDED(mu_);

  // The tensors are as proto/ps.proto says; those that are not used may be
  // undefined. request.client() is what NumberOf() returns. `deadline` bounds
  // the wait for a version.
  Future<ShardReply> Handle(const v1::Request& request, Tensor push_keys,
                            Tensor push_values, Tensor pull_keys,
                            Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // The bytes of the values that a pull of these keys gets.
  int64_t PulledBytes(const Tensor& pull_keys) const;

  // With a staleness: the caller's client has the clock of that rank from now
  // on, and pulls of others wait for it; `leave`: not any more.
  // request.client() is what NumberOf() returns. A worker that is forgotten has
  // none.
  //   kInvalidArgument     no such rank, or `at` is no clock
  //   kFailedPrecondition  the table has no staleness; another worker, which
  //                        lives, has the clock
  //   kResourceExhausted   there are too many
  absl::StatusOr<v1::ClockReply> JoinClocks(const Caller& caller,
                                            const v1::ClockRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);

  // SYNC: `rank` gives no parts any more, or does again. What becomes of the
  // shards that it served: round_gate.h.
  void DeclareDead(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  void Admit(int rank) ABSL_LOCKS_EXCLUDED(mu_);

  // SYNC: in round `from_round` and those after it the rule's learning rate is
  // multiplied by `scale`, until the next change. Errors as RateChanges::Set.
  // ASYNC: of pushes that come once this has returned. Kept in checkpoints.
  absl::Status SetLearningRateScale(double scale, int64_t from_round)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends parked pulls whose deadline has passed, and forgets closed clients.
  void Expire(Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all parked pulls with `reason`.
  void Shutdown(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);

  v1::TableStats Stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // For whom pulls have waited for longer than kLongWait; nothing: none has.
  std::optional<TableWait> Waits(Instant now) const ABSL_LOCKS_EXCLUDED(mu_);
  TableMetrics& metrics() { return metrics_; }
  // What this server has to do for its partitions.
  const LoadMeter& load() const { return load_; }

  // The table as it is now, to be copied partition by partition while pushes
  // and pulls go on and rounds close. SYNC: of one version. ASYNC: each
  // partition as it is when its turn comes. What pushes copy counts against
  // `copies`, if given; `as`: Partition::Freeze. The shard must outlive it.
  std::unique_ptr<TableSnapshot> Freeze(
      std::shared_ptr<ByteBudget> copies = nullptr, SavedAs as = SavedAs())
      ABSL_LOCKS_EXCLUDED(mu_);

  // A copy of every partition, and the version.
  struct Image {
    int64_t version = 0;
    RateChanges rates;
    std::vector<std::pair<int, PartitionImage>> partitions;
    // For partitions that are deltas: the attempt since which they have what
    // has changed.
    std::string base = {};
  };
  // What Freeze gives, all at once.
  Image Save() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes of `image` what belongs to this server and goes on at its version.
  // kInvalidArgument if rows do not fit the layout.
  absl::Status Restore(const Image& image) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What a partition applies or refuses as a whole.
  struct Span {
    uint32_t partition = 0;
    uint32_t rows = 0;
    uint64_t sequence = PushSpan::kUnnumbered;
  };
  // A push, kept until its round closes.
  struct Part {
    uint64_t client = 0;
    std::vector<Span> spans;
    Tensor keys;
    Tensor values;
    ByteBudget::Hold hold;
    ByteBudget::Hold rows;  // that it could make
  };
  struct Parked {
    int64_t version = 0;  // ASYNC: that all clocks are to reach
    uint64_t client = 0;
    Instant since;
    Instant deadline;
    Tensor keys;
    Promise<ShardReply> promise;
    ByteBudget::Hold hold;
  };

  // What came of closing rounds.
  struct Closed {
    int64_t version = 0;
    std::vector<Parked> released;
    // Dense: what a pull of that version gets, f32; undefined if no round has
    // closed, or nobody is known to wait for it.
    Tensor values;
  };

  TableShard(std::unique_ptr<TableLayout> layout, int server, int servers,
             std::shared_ptr<ByteBudget> budget,
             std::shared_ptr<ByteBudget> memory);

  absl::Status CheckPush(const v1::Request& request, const Tensor& keys,
                         const Tensor& values) const;
  // Whether the values are those of the rows of `keys`, or slices.
  absl::Status CheckValues(absl::Span<const uint64_t> keys,
                           const Tensor& values) const;
  // The values of a push that was checked, in f32.
  Tensor FloatsOf(const v1::Request& request, const Tensor& keys,
                  Tensor values) const;
  // The slices of a push to a dense table.
  std::vector<uint64_t> PushedSlices(const v1::Request& request) const;
  absl::Status CheckSpan(uint32_t partition,
                         absl::Span<const uint64_t> keys) const;
  absl::Status CheckPull(const Tensor& keys) const;
  absl::Status NotHere(uint64_t key) const;
  absl::Status CheckServing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // SYNC: gives the part to its round; a pull waits for the version it wants.
  Future<ShardReply> HandleInRound(const v1::Request& request, Part part,
                                   const Tensor& pull_keys, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // ASYNC: applies the part and reads.
  Future<ShardReply> HandleAtOnce(const v1::Request& request, const Part& part,
                                  const Tensor& pull_keys, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // For a request with a clock to a table with a staleness, once its push is
  // applied: ticks, and reads once the clocks let it.
  Future<ShardReply> HandleAtClock(const v1::Request& request,
                                   const Tensor& pull_keys, v1::Reply reply,
                                   Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the table can take the clock of a request.
  absl::Status CheckClock(const v1::Request& request) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckClockLocked(const v1::Request& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WhyNotClock(ClockGate::Answer answer, int rank,
                           int64_t clock) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes out the pulls that the clocks let read, and answers them.
  std::vector<Parked> TakeReadable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerReadable(std::vector<Parked> readable) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds version and values to `reply`.
  Future<ShardReply> AnswerNow(const v1::Request& request,
                               const Tensor& pull_keys, v1::Reply reply)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The answer to a pull, which it counts.
  ShardReply Pulled(const Tensor& keys, ShardReply read);
  absl::Status PushNow(const v1::Request& request, const Part& part,
                       double lr_scale, v1::Reply& reply)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the part to the round's gate. Says in `reply` whether it came late.
  absl::Status GivePart(const v1::Request& request, Part part, v1::Reply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts the push in the load of its partitions; the time that it takes is
  // added later.
  void CountPush(const Part& part, const Tensor& keys, const Tensor& values);
  // SYNC: a pull that waits for version `wanted`.
  absl::StatusOr<Future<ShardReply>> ParkForRound(int64_t wanted,
                                                  Instant deadline,
                                                  const Tensor& keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Future<ShardReply>> Park(Parked waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `bytes` of the budget, of which `most` may be held with them.
  absl::StatusOr<ByteBudget::Hold> Hold(int64_t bytes, int64_t most,
                                        absl::string_view what) const;
  // Memory for the rows that `part` could make.
  absl::StatusOr<ByteBudget::Hold> HoldRows(const Part& part);
  // Applies the rounds that may close and takes out the pulls that they
  // release. `is_pulled`: whoever closes them pulls too.
  Closed CloseRounds(bool is_pulled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `values`: Closed::values, or null.
  void ApplyRound(const std::vector<Part>& parts, double lr_scale,
                  float* values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers what was released. Returns what whoever has closed the rounds gets
  // of a dense table, or nothing.
  std::optional<ShardReply> Answer(Closed closed) ABSL_LOCKS_EXCLUDED(mu_);
  ShardReply Read(const Tensor& keys, int64_t version) const;
  // The answer with these rows, as pulls of the table travel.
  ShardReply ReplyOf(const Tensor& keys, Tensor floats, int64_t version) const;
  Tensor ReadFloats(const Tensor& keys) const;
  std::vector<PushSpan> SpansOf(const Part& part) const;
  int64_t VersionLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string MissingParts() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What parked pulls wait for.
  std::string WaitsFor() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string SlowestClock() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool is_sync() const { return spec().mode() == v1::TableSpec::SYNC; }
  bool Owns(uint32_t partition) const;
  // Null if there is none.
  const DensePart::Group* DenseGroup(uint32_t partition) const;
  static RoundGate<Part> MakeGate(const v1::TableSpec& spec, int64_t open);

  const std::unique_ptr<TableLayout> layout_;
  const int server_;
  const Placement placement_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<ByteBudget> memory_;
  std::atomic<int64_t> refused_pushes_{0};  // for want of memory
  const DensePart dense_;                   // of this server; empty if sparse
  std::vector<int> dense_group_;            // by partition; negative: none
  // By partition; null where another server holds it.
  std::vector<std::unique_ptr<Partition>> partitions_;

  mutable TableMetrics metrics_;
  mutable LoadMeter load_;

  mutable Mutex mu_;
  RoundGate<Part> gate_ ABSL_GUARDED_BY(mu_);
  ClockGate clocks_ ABSL_GUARDED_BY(mu_);  // ASYNC
  std::vector<Parked> parked_ ABSL_GUARDED_BY(mu_);
  Openings openings_ ABSL_GUARDED_BY(mu_);
  RateChanges rates_ ABSL_GUARDED_BY(mu_);
  int64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;       // ASYNC
  int64_t late_folded_ ABSL_GUARDED_BY(mu_) = 0;  // parts
  int64_t late_dropped_ ABSL_GUARDED_BY(mu_) = 0;
  bool initialized_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status shut_down_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_TABLE_SHARD_H_
