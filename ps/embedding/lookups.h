// Lookups: one worker's passes through sparse tables. Look-ups record
// themselves, and Commit pushes their gradients.
//
//   ps::Lookups lookups;
//   for (each batch) {
//     WEFT_ASSIGN_OR_RETURN(const Variable e,
//                           lookups.Embedding(*users, batch.users));
//     Loss(model.Forward(e), batch.labels).Backward();
//     WEFT_RETURN_IF_ERROR(lookups.Commit());
//   }
//
// A look-up is a leaf of the graph: the rows of its ids. Backward passes add
// their gradients up in it; one that fails leaves none there, and neither does
// one without the look-up. Commit adds up by row what all look-ups since the
// last Commit have, and pushes each table once, all tables in one message to
// each server (many.h). Nothing of a pass leaves this worker before.
//
// Visible together. SYNC: each Commit is one round of each table that this
// worker looks up, or has looked up before, so the look-ups after it are of
// tables in which all workers have made as many passes, and never see a part of
// one. A reader without a part in the rounds may see one table after a pass and
// another one before it. ASYNC: the rows of a partition change together;
// another worker may see one partition after a pass and another one before it.
// With TableSpec.staleness each Commit ends a step (SparseTable::Tick) of the
// same tables. Nobody ever sees anything of a pass that is aborted, or that
// Commit refuses before it sends anything.
//
// Prefetch asks for the rows of a later pass, so that they are there, or on
// their way, when that pass looks them up. It changes no bit of a SYNC table's
// result: rows that may change in between are asked for again by Commit.
//
// Errors of look-ups: kInvalidArgument, which names the table and what was
// wanted and found; else as SparseTable::Pull.
//
// Tables are borrowed, and outlive it; nobody else uses them meanwhile but to
// set learning rates. Variables may outlive it.
//
// Thread-safety: one thread at a time; backward passes on any.

#ifndef WEFT_PS_EMBEDDING_LOOKUPS_H_
#define WEFT_PS_EMBEDDING_LOOKUPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/base/future.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/ahead.h"
#include "weft/ps/embedding/look_up.h"
#include "weft/ps/embedding/look_up_record.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

struct LookupsOptions {
  // The limit of each wait. Messages that are on their way at its end go on.
  absl::Duration timeout = absl::Seconds(60);
  // Tables that have a part in each Commit from the first one on, whether this
  // worker has looked them up or not: a round of a SYNC table waits for it.
  // Others have one from their first look-up on.
  std::vector<SparseTable*> tables;
};

class Lookups {
 public:
  using Options = LookupsOptions;

  static constexpr int kMostPassesAhead = 8;

  explicit Lookups(Options options = {});
  // Aborts the pass that is open.
  ~Lookups();
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;

  // The rows of `ids` [...], as f32 [..., dim]. In a NoGradScope nothing is
  // recorded: it is a look-up only.
  absl::StatusOr<Variable> Embedding(SparseTable& table, const Tensor& ids);
  // The sum or mean of the rows of each bag: ids [..., n] -> f32 [..., dim].
  absl::StatusOr<Variable> EmbeddingBag(SparseTable& table, const Tensor& ids,
                                        BagMode mode);
  // Any number of them, in one message to each server. A table may be there
  // several times. All, or none.
  absl::StatusOr<std::vector<Variable>> Embeddings(
      absl::Span<const LookUp> look_ups);

  // Asks for what the pass that is so many Commits from now will look up. A
  // look-up in that pass with the same ids takes the rows from here, once; what
  // no look-up takes is dropped with the pass. kInvalidArgument unless 1 <=
  // passes_ahead <= kMostPassesAhead, and as Embeddings; no other error: rows
  // that do not come are asked for again by their look-up.
  //
  // They are the rows that a look-up without Prefetch would give, where all
  // changes in between are by rounds (SYNC) or by this worker. ASYNC: what
  // others push between Prefetch and Commit may be missing.
  absl::Status Prefetch(absl::Span<const LookUp> look_ups,
                        int passes_ahead = 1);

  // Whether Commit, and CommitNothing, would push: their errors before anything
  // is sent.
  absl::Status Check() const;
  absl::Status CheckNothing() const;

  // Pushes the gradients of all look-ups since the last Commit, and begins the
  // next pass. A look-up that no gradient came to has none: its rows do not
  // change. Ready once the servers have taken them.
  //
  // kFailedPrecondition, with nothing sent and the pass still open: there was
  // no look-up (CommitNothing), or no gradient came to any of them (was there a
  // Backward?), or a table must be opened again. kInvalidArgument, also so: a
  // gradient is not finite. Other errors are those of pushes: the pass is over,
  // it is unknown which servers have applied their parts of it, and the tables
  // whose pushes failed must be opened again.
  Future<void> CommitAsync();
  absl::Status Commit();
  // In place of a pass, on a worker that has no data for it: an empty part of
  // the round of each SYNC table, and the end of a step of each with a
  // staleness. kFailedPrecondition if there was a look-up: Abort it first.
  absl::Status CommitNothing();

  // Drops the look-ups since the last Commit, with their gradients. A backward
  // pass that comes to one of them later is refused (kFailedPrecondition), as
  // it is after Commit.
  void Abort();

  // Look-ups since the last Commit.
  int64_t recorded() const { return record_->size(); }
  // Prefetched rows that look-ups have taken, and look-ups that asked servers.
  int64_t prefetched() const { return prefetched_; }
  int64_t asked() const { return asked_; }

 private:
  void Register(SparseTable* table);
  // The rows [n, dim] of each look-up.
  absl::StatusOr<std::vector<Tensor>> RowsOf(absl::Span<const LookUp> look_ups);
  // Waits until what was sent has arrived.
  absl::Status AwaitCommit();
  absl::Status Await(const Future<void>& sent);
  absl::Status CheckTables() const;
  absl::StatusOr<std::vector<Push>> Pushes() const;
  Future<void> Send(std::vector<Push> pushes);
  void BeginPass(const absl::Status& last);

  const Options options_;
  std::vector<SparseTable*> tables_;  // in the order of their first look-up
  std::unique_ptr<LookUpRecord> record_;
  Ahead ahead_;
  std::optional<Future<void>> sent_;  // by the last Commit
  int64_t prefetched_ = 0;
  int64_t asked_ = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_LOOKUPS_H_
