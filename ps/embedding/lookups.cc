#include "weft/ps/embedding/lookups.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/ps/embedding/end_step.h"
#include "weft/ps/embedding/pull_rows.h"
#include "weft/ps/many.h"

namespace weft::ps {
namespace {

bool IsSync(const SparseTable& table) {
  return table.spec().mode() == v1::TableSpec::SYNC;
}

// Whether a row changes by a push that names it and by nothing else, and this
// worker knows of each that counts: with rounds there is no other worker, and
// without rounds nobody waits for others. Rows of a table with RowLife also go
// by pushes of others, and those of one with a staleness must be as of the
// clock at which they are looked up.
bool KnowsWhatChanges(const SparseTable& table) {
  if (table.spec().has_life() || table.spec().has_staleness()) return false;
  return !IsSync(table) || table.spec().shards() <= 1;
}

// What is asked of one table for some parts, and where it goes.
struct Asked {
  struct For {
    Ahead::Part* part;
    bool is_whole;  // else a patch
    Tensor keys;
  };
  SparseTable* table;
  std::vector<For> parts;

  Tensor keys() const {
    std::vector<Tensor> all;
    for (const For& each : parts) all.push_back(each.keys);
    return JoinKeys(all);
  }

  void Give(const Future<Tensor>& rows) const {
    int64_t begin = 0;
    for (const For& each : parts) {
      const int64_t end = begin + each.keys.numel();
      Future<Tensor> own = rows.Then([begin, end](const Tensor& all) {
        return all.Slice(0, begin, end).Clone();
      });
      begin = end;
      if (each.is_whole) {
        each.part->rows = std::move(own);
      } else {
        each.part->patches.emplace_back(each.keys, std::move(own));
      }
    }
  }
};

// What is to be asked once `pushes` have changed their tables.
std::vector<Asked> AskedAfter(const std::vector<Push>& pushes, Ahead& ahead) {
  std::vector<Asked> all;
  for (const Push& push : pushes) {
    Asked asked{push.table, {}};
    for (Ahead::Part& part : ahead.parts()) {
      if (part.table != push.table) continue;
      if (part.rows.has_value()) {
        Tensor changed = KeysInBoth(part.keys, push.keys);
        if (changed.numel() > 0) {
          asked.parts.push_back({&part, false, std::move(changed)});
        }
      } else if (part.passes == 0) {
        asked.parts.push_back({&part, true, part.keys});
      }
    }
    if (!asked.parts.empty()) all.push_back(std::move(asked));
  }
  return all;
}

// Each by its own operation on its table, all together.
void Ask(const std::vector<Asked>& asked) {
  std::vector<TableOperation> pulls;
  for (const Asked& each : asked) {
    pulls.push_back(PullOf{each.table, each.keys()});
  }
  const std::vector<Future<Tensor>> rows = ExchangeEach(std::move(pulls));
  for (size_t i = 0; i < asked.size(); ++i) asked[i].Give(rows[i]);
}

}  // namespace

Lookups::Lookups(Options options)
    : options_(std::move(options)), record_(std::make_unique<LookUpRecord>()) {
  for (SparseTable* const table : options_.tables) Register(table);
}

Lookups::~Lookups() = default;

void Lookups::Register(SparseTable* table) {
  if (std::find(tables_.begin(), tables_.end(), table) == tables_.end()) {
    tables_.push_back(table);
  }
}

absl::StatusOr<Variable> Lookups::Embedding(SparseTable& table,
                                            const Tensor& ids) {
  const LookUp look_up{&table, ids};
  WEFT_ASSIGN_OR_RETURN(const std::vector<Variable> all,
                        Embeddings(absl::MakeConstSpan(&look_up, 1)));
  return all[0];
}

absl::StatusOr<Variable> Lookups::EmbeddingBag(SparseTable& table,
                                               const Tensor& ids,
                                               BagMode mode) {
  const LookUp look_up{&table, ids, mode};
  WEFT_ASSIGN_OR_RETURN(const std::vector<Variable> all,
                        Embeddings(absl::MakeConstSpan(&look_up, 1)));
  return all[0];
}

absl::StatusOr<std::vector<Variable>> Lookups::Embeddings(
    absl::Span<const LookUp> look_ups) {
  for (const LookUp& look_up : look_ups) {
    WEFT_RETURN_IF_ERROR(CheckLookUp(look_up));
    WEFT_RETURN_IF_ERROR(look_up.table->status());
  }
  WEFT_RETURN_IF_ERROR(AwaitCommit());
  WEFT_ASSIGN_OR_RETURN(std::vector<Tensor> rows, RowsOf(look_ups));
  return CatchToStatus([&] {
    std::vector<Variable> variables;
    for (size_t i = 0; i < look_ups.size(); ++i) {
      Register(look_ups[i].table);
      variables.push_back(record_->Add(look_ups[i], std::move(rows[i])));
    }
    return variables;
  });
}

absl::StatusOr<std::vector<Tensor>> Lookups::RowsOf(
    absl::Span<const LookUp> look_ups) {
  std::vector<Tensor> rows(look_ups.size());
  std::vector<LookUp> missing;
  std::vector<size_t> places;
  for (size_t i = 0; i < look_ups.size(); ++i) {
    std::optional<Tensor> taken =
        ahead_.Take(look_ups[i].table, KeysOf(look_ups[i]), options_.timeout);
    if (taken.has_value()) {
      ++prefetched_;
      rows[i] = *std::move(taken);
    } else {
      missing.push_back(look_ups[i]);
      places.push_back(i);
    }
  }
  if (missing.empty()) return rows;
  WEFT_ASSIGN_OR_RETURN(std::vector<Tensor> pulled,
                        PullRows(missing).Wait(options_.timeout));
  asked_ += static_cast<int64_t>(missing.size());
  for (size_t i = 0; i < places.size(); ++i) {
    rows[places[i]] = std::move(pulled[i]);
  }
  return rows;
}

absl::Status Lookups::Prefetch(absl::Span<const LookUp> look_ups,
                               int passes_ahead) {
  if (passes_ahead < 1 || passes_ahead > kMostPassesAhead) {
    return absl::InvalidArgumentError(
        absl::StrCat("Lookups::Prefetch: wanted a pass that is 1 to ",
                     kMostPassesAhead, " Commits ahead, found ", passes_ahead));
  }
  std::vector<SparseTable*> order;
  absl::flat_hash_map<SparseTable*, std::vector<Tensor>> keys;
  for (const LookUp& look_up : look_ups) {
    WEFT_RETURN_IF_ERROR(CheckLookUp(look_up));
    if (look_up.ids.numel() == 0) continue;
    std::vector<Tensor>& of_table = keys[look_up.table];
    if (of_table.empty()) order.push_back(look_up.table);
    of_table.push_back(KeysOf(look_up).Clone());
  }
  std::vector<Asked> asked;
  for (SparseTable* const table : order) {
    Register(table);
    Ahead::Part& part = ahead_.Add(table, passes_ahead, std::move(keys[table]));
    if (!KnowsWhatChanges(*table)) continue;
    asked.push_back({table, {{&part, true, part.keys}}});
  }
  // Rows from before what the last Commit pushes are of no use.
  if (asked.empty() || !AwaitCommit().ok()) return absl::OkStatus();
  Ask(asked);
  return absl::OkStatus();
}

absl::Status Lookups::AwaitCommit() {
  if (!sent_.has_value()) return absl::OkStatus();
  const absl::Status sent = sent_->Wait(options_.timeout);
  if (sent_->IsReady()) sent_.reset();
  return sent;
}

absl::Status Lookups::Await(const Future<void>& sent) {
  const absl::Status status = sent.Wait(options_.timeout);
  if (sent.IsReady()) sent_.reset();
  return status;
}

absl::Status Lookups::CheckTables() const {
  for (const SparseTable* const table : tables_) {
    WEFT_RETURN_IF_ERROR(table->status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Push>> Lookups::Pushes() const {
  if (record_->size() == 0) {
    return absl::FailedPreconditionError(
        "Lookups::Commit: nothing was looked up since the last Commit; a "
        "worker without data for a pass calls CommitNothing");
  }
  WEFT_RETURN_IF_ERROR(CheckTables());
  WEFT_ASSIGN_OR_RETURN(LookUpRecord::Found found,
                        record_->Pushes(tables_, [this](const Leaf& leaf) {
                          return record_->GradientOf(leaf);
                        }));
  if (found.with_rows > 0 && found.with_gradient == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Lookups::Commit: none of ", found.with_rows,
        " look-ups has a gradient: call Backward before, or Abort()"));
  }
  return std::move(found.pushes);
}

absl::Status Lookups::Check() const { return Pushes().status(); }

absl::Status Lookups::CheckNothing() const {
  if (record_->size() == 0) return CheckTables();
  return absl::FailedPreconditionError(
      absl::StrCat("Lookups::CommitNothing: ", record_->size(),
                   " look-ups since the last Commit: Commit or Abort them"));
}

Future<void> Lookups::CommitAsync() {
  const absl::Status last = AwaitCommit();
  if (!last.ok()) return MakeReady<void>(last);
  absl::StatusOr<std::vector<Push>> pushes = Pushes();
  if (!pushes.ok()) return MakeReady<void>(pushes.status());
  return Send(*std::move(pushes));
}

absl::Status Lookups::Commit() {
  WEFT_RETURN_IF_ERROR(AwaitCommit());  // else Await would forget it
  return Await(CommitAsync());
}

absl::Status Lookups::CommitNothing() {
  WEFT_RETURN_IF_ERROR(CheckNothing());
  WEFT_RETURN_IF_ERROR(AwaitCommit());
  WEFT_ASSIGN_OR_RETURN(
      LookUpRecord::Found found,
      record_->Pushes(tables_, [](const Leaf&) { return Gradient(); }));
  return Await(Send(std::move(found.pushes)));
}

Future<void> Lookups::Send(std::vector<Push> pushes) {
  BeginPass(absl::FailedPreconditionError(
      "it was looked up in a pass that was committed: its gradient would be "
      "lost; look it up again"));
  ahead_.NextPass();
  const std::vector<Asked> asked = AskedAfter(pushes, ahead_);
  // A server answers once all of a message is done, and a pull of a SYNC table
  // waits for its round: it follows in a message of its own. One of an ASYNC
  // table sees its push only if it comes with it, and then ends the step of a
  // table with a staleness by itself.
  std::vector<Asked> later;
  std::vector<SparseTable*> ends;
  std::vector<TableOperation> operations;
  std::vector<const Asked*> with;  // by operation
  for (Push& push : pushes) {
    const auto it = std::find_if(
        asked.begin(), asked.end(),
        [&](const Asked& each) { return each.table == push.table; });
    const bool is_sync = IsSync(*push.table);
    const bool pushes_rows = push.keys.numel() > 0;
    const bool pulls = it != asked.end() && !is_sync;
    if (it != asked.end() && is_sync) later.push_back(*it);
    const bool is_stale = push.table->spec().has_staleness();
    if (is_stale && !pulls) ends.push_back(push.table);
    if (!is_sync && !pushes_rows && !pulls) continue;
    if (!pulls) {
      operations.push_back(PushOf{push.table, push.keys, push.gradients});
    } else if (pushes_rows || is_stale) {
      operations.push_back(
          PushPullOf{push.table, push.keys, push.gradients, it->keys()});
    } else {
      operations.push_back(PullOf{push.table, it->keys()});
    }
    with.push_back(pulls ? &*it : nullptr);
  }
  const std::vector<Future<Tensor>> results =
      ExchangeEach(std::move(operations));
  std::vector<Future<void>> sent;
  for (size_t i = 0; i < results.size(); ++i) {
    if (with[i] != nullptr) with[i]->Give(results[i]);
    sent.push_back(results[i].Then([](const Tensor&) {}));
  }
  for (SparseTable* const table : ends) sent.push_back(EndStep(*table));
  Ask(later);
  sent_ = WhenAllOk(std::move(sent));
  return *sent_;
}

void Lookups::BeginPass(const absl::Status& last) {
  record_->End(last);
  record_ = std::make_unique<LookUpRecord>();
}

void Lookups::Abort() {
  BeginPass(absl::FailedPreconditionError(
      "it was looked up in a pass that was aborted: its gradient would be "
      "lost; look it up again"));
}

}  // namespace weft::ps
