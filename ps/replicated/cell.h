// Cell: what a ReplicatedTable has of one partition, and what its functions
// hand to each other. For replicated_table.cc,
// table_requests.cc, table_rows.cc and table_logging.cc.
//
// Thread-safety: as each of them says.

#ifndef WEFT_PS_REPLICATED_CELL_H_
#define WEFT_PS_REPLICATED_CELL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/rate_changes.h"
#include "weft/ps/core/replication/partition_clocks.h"
#include "weft/ps/core/replication/replica.h"
#include "weft/ps/core/round_gate.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/replicated_table.h"

namespace weft::ps {

inline WorkerKey KeyOf(const v1::Key& key) { return {key.id(), key.epoch()}; }

// What came with a copy is bounded: counting on from it cannot overflow.
inline constexpr uint64_t kMostRounds = uint64_t{1} << 62;

// SYNC: how many rounds are in the rows. ASYNC, where nobody pushes as kRounds:
// the version that the table was restored at.
inline int64_t RoundsOf(const Marks& marks) {
  const auto rounds = marks.find(kRounds);
  return rounds == marks.end() ? 0
                               : static_cast<int64_t>(std::min(
                                     rounds->second.through(), kMostRounds));
}

// The part of a shard in a round.
struct RoundPayload {
  uint64_t opening = 0;
  Bytes payload;
  ByteBudget::Hold hold;
  ByteBudget::Hold rows;  // that it could make
};

// A request, of whose spans each is answered by its partition. Result:
// v1::PushReply or Pulled.
//
// Thread-safety: thread-safe.
template <typename Result>
class ReplicatedTable::SpanCall {
 public:
  explicit SpanCall(int spans) : left_(spans) {
    auto* const answers = reply().mutable_spans();
    answers->Reserve(spans);
    for (int i = 0; i < spans; ++i) answers->Add();
    if constexpr (kReads) result_.values.resize(spans);
  }
  Future<Result> future() { return promise_.future(); }

  // True once: for the first span that is read.
  bool BeginRead() {
    return !is_read_.exchange(true, std::memory_order_relaxed);
  }
  // `values`: of a pull. True with the last: then Finish.
  bool Answer(int span, const ps::Answer& answer, const absl::Status& refused,
              Bytes values = Bytes()) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    v1::SpanAnswer& to = *reply().mutable_spans(span);
    to.set_code(static_cast<int>(answer.code));
    to.set_epoch(answer.epoch);
    to.set_sequence(answer.sequence);
    to.set_stable_through(answer.stable_through);
    if (!refused.ok()) {
      to.set_status(refused.raw_code());
      to.set_message(std::string(refused.message()));
    }
    reply().set_map_epoch(std::max(reply().map_epoch(), answer.map_epoch));
    if constexpr (kReads) result_.values[span] = std::move(values);
    return --left_ == 0;
  }
  void SetPartition(int span, uint32_t partition) {
    reply().mutable_spans(span)->set_partition(partition);
  }
  // Of a join; before its answer.
  void SetClock(int span, int64_t clock) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    reply().mutable_spans(span)->set_clock(clock);
  }
  void Finish() {
    if constexpr (kReads) {  // of the spans that were read
      size_t read = 0;
      for (int i = 0; i < reply().spans_size(); ++i) {
        const v1::SpanAnswer& span = reply().spans(i);
        if (span.code() != static_cast<int>(Code::kOk) || span.status() != 0) {
          continue;
        }
        if (read != static_cast<size_t>(i)) {
          result_.values[read] = std::move(result_.values[i]);
        }
        ++read;
      }
      result_.values.resize(read);
    }
    promise_.Set(std::move(result_));
  }

 private:
  static constexpr bool kReads = std::is_same_v<Result, Pulled>;

  auto& reply() {
    if constexpr (kReads) {
      return result_.reply;
    } else {
      return result_;
    }
  }

  Promise<Result> promise_;
  std::atomic<bool> is_read_{false};
  Mutex mu_;
  Result result_;
  int left_;
};

// What is done in one go, of any number of partitions.
//
// Thread-safety: one thread.
struct ReplicatedTable::Work {
  // To be called once no lock is held.
  std::vector<absl::AnyInvocable<void()>> answers;
  std::vector<MapChange> proposals;
  bool learns_map = false;
  bool fills_next = false;  // a partition may be copied now

  // Memory that partition after partition uses.
  std::vector<Replica::Action> actions;
  // What NowOf has given, and how often.
  std::shared_ptr<const Leases> leases;
  Instant time;
  int given = 0;

  // For the metrics: of which span the wait for the lock is measured, and that
  // wait; what became of gradients.
  int measured = -1;
  absl::Duration lock_wait;
  int64_t appended = 0;
  int64_t repeated = 0;

  // The call has its last answer.
  template <typename Call>
  void End(std::shared_ptr<Call> call) {
    answers.push_back([call = std::move(call)] { call->Finish(); });
  }
};

struct ReplicatedTable::Cell {
  struct Pushing {
    std::shared_ptr<PushCall> call;
    int span = 0;
    std::optional<int> joins = {};  // a rank
    ClientId client = kRounds;
  };
  struct Reading {
    std::shared_ptr<PullCall> call;
    int span = 0;
    ReadRequest request;
    Bytes keys;
    Bytes values;
    Instant since;
    Instant deadline;
    bool is_parked = false;
    std::optional<int64_t> clock;  // at which it is
  };

  Cell(int number, Replica its_replica, const TableLayout* layout,
       std::shared_ptr<ByteBudget> memory)
      : partition(number),
        replica(std::move(its_replica)),
        rows(layout, std::move(memory)),
        clocks(layout->spec().staleness()),
        gate(0) {}

  // Of the rows. ASYNC: `rounds` are those before the log began, at a
  // checkpoint's version, so it goes on from that, and never back.
  int64_t version(bool is_sync) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return is_sync ? rounds : rounds + static_cast<int64_t>(replica.end());
  }

  const int partition;
  mutable Mutex mu;
  Replica replica ABSL_GUARDED_BY(mu);
  Partition rows ABSL_GUARDED_BY(mu);
  RateChanges rates ABSL_GUARDED_BY(mu);
  PartitionClocks clocks ABSL_GUARDED_BY(mu);  // with a staleness
  // SYNC: rounds that are in the rows. The replica may have counted more, whose
  // kApply is still to be done.
  int64_t rounds ABSL_GUARDED_BY(mu) = 0;
  RoundGate<RoundPayload> gate ABSL_GUARDED_BY(mu);  // of the primary
  uint64_t last_token ABSL_GUARDED_BY(mu) = 0;
  absl::flat_hash_map<uint64_t, Pushing> pushes
      ABSL_GUARDED_BY(mu);                                // by token
  std::map<uint64_t, Reading> reads ABSL_GUARDED_BY(mu);  // by token
  // For the backup that is being filled; else null.
  std::unique_ptr<const CopyInPieces> copy ABSL_GUARDED_BY(mu);
  bool is_in_line ABSL_GUARDED_BY(mu) = false;  // of fills_
  // The open round of which parts have been there since then, as Waits saw it.
  int64_t begun_round ABSL_GUARDED_BY(mu) = -1;
  Instant begun_at ABSL_GUARDED_BY(mu);
  // LOGGED: which copy of the partition the rows are, as TableLog::Place.
  uint64_t content ABSL_GUARDED_BY(mu) = 1;
  // What came with the message of this moment; else null.
  const PartitionCopy* loading ABSL_GUARDED_BY(mu) = nullptr;
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_CELL_H_
