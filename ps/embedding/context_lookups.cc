#include "weft/ps/embedding/context_lookups.h"

#include <algorithm>
#include <optional>

#include "weft/autograd/gradient.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/participant.h"
#include "weft/ps/embedding/end_step.h"
#include "weft/ps/embedding/look_up_record.h"
#include "weft/ps/embedding/pull_rows.h"
#include "weft/ps/many.h"

namespace weft::ps {

// The look-ups of one context at this worker, up to the step that pushes them.
//
// Thread-safety: thread-safe.
class ContextLookups::Part final : public dist_autograd::Participant {
 public:
  // `context` owns it.
  Part(std::shared_ptr<Tables> tables,
       std::weak_ptr<dist_autograd::Context> context)
      : tables_(std::move(tables)), context_(std::move(context)) {}

  // kFailedPrecondition once it was committed or aborted.
  absl::StatusOr<std::vector<Variable>> Add(absl::Span<const LookUp> look_ups,
                                            std::vector<Tensor> rows)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(ended_);
    return CatchToStatus([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      std::vector<Variable> variables;
      for (size_t i = 0; i < look_ups.size(); ++i) {
        variables.push_back(record_.Add(look_ups[i], std::move(rows[i])));
      }
      return variables;
    });
  }

  bool is_open() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return ended_.ok();
  }

  absl::StatusOr<bool> Prepare() override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (committed_.has_value()) return false;
    WEFT_RETURN_IF_ERROR(ended_);
    WEFT_ASSIGN_OR_RETURN(const LookUpRecord::Found found, Pushes());
    for (const Push& push : found.pushes) {
      WEFT_RETURN_IF_ERROR(push.table->status());
    }
    return found.with_gradient > 0;
  }

  Future<void> Commit() override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (committed_.has_value()) return *committed_;
    if (!ended_.ok()) return MakeReady<void>(ended_);
    const absl::StatusOr<LookUpRecord::Found> found = Pushes();
    if (!found.ok()) return MakeReady<void>(found.status());
    std::vector<PushOf> pushes;
    for (const Push& push : found->pushes) {
      const bool is_sync = push.table->spec().mode() == v1::TableSpec::SYNC;
      if (!is_sync && push.keys.numel() == 0) continue;
      pushes.push_back({push.table, push.keys, push.gradients});
    }
    {
      MutexLock tables(tables_->mu);
      std::vector<Future<void>> sent = {PushMany(std::move(pushes))};
      for (const Push& push : found->pushes) {
        sent.push_back(EndStep(*push.table));
      }
      committed_ = WhenAllOk(std::move(sent));
    }
    End(absl::FailedPreconditionError(
        "it was looked up before the step of its context, which pushed its "
        "gradient; look it up again"));
    return *committed_;
  }

  void Abort() override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!ended_.ok()) return;
    End(absl::FailedPreconditionError(
        "the context in which it was looked up has ended"));
  }

 private:
  absl::StatusOr<LookUpRecord::Found> Pushes() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::shared_ptr<dist_autograd::Context> context = context_.lock();
    if (context == nullptr) {
      return absl::FailedPreconditionError(
          "the context in which it was looked up has ended");
    }
    return record_.Pushes(
        {}, [&](const Leaf& leaf) { return context->GradientOf(leaf); });
  }

  void End(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    record_.End(why);
    ended_ = std::move(why);
  }

  const std::shared_ptr<Tables> tables_;
  const std::weak_ptr<dist_autograd::Context> context_;
  mutable Mutex mu_;
  LookUpRecord record_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // why it takes no more
  std::optional<Future<void>> committed_ ABSL_GUARDED_BY(mu_);
};

ContextLookups::ContextLookups(absl::Duration timeout)
    : timeout_(timeout), tables_(std::make_shared<Tables>()) {}

ContextLookups::~ContextLookups() = default;

absl::StatusOr<std::shared_ptr<ContextLookups::Part>> ContextLookups::PartOf(
    const dist_autograd::Scope& scope) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<dist_autograd::Context> context,
                        scope.contexts().Find(scope.id()));
  MutexLock lock(mu_);
  for (auto it = parts_.begin(); it != parts_.end();) {
    const std::shared_ptr<Part> part = it->second.lock();
    if (part == nullptr || !part->is_open()) {
      it = parts_.erase(it);
      continue;
    }
    if (it->first == scope.id()) return part;
    ++it;
  }
  auto part = std::make_shared<Part>(tables_, context);
  WEFT_RETURN_IF_ERROR(context->AddParticipant(part));
  parts_.emplace_back(scope.id(), part);
  return part;
}

absl::StatusOr<Variable> ContextLookups::Embedding(
    const dist_autograd::Scope& scope, SparseTable& table, const Tensor& ids) {
  const LookUp look_up{&table, ids};
  WEFT_ASSIGN_OR_RETURN(const std::vector<Variable> all,
                        Embeddings(scope, absl::MakeConstSpan(&look_up, 1)));
  return all[0];
}

absl::StatusOr<Variable> ContextLookups::EmbeddingBag(
    const dist_autograd::Scope& scope, SparseTable& table, const Tensor& ids,
    BagMode mode) {
  const LookUp look_up{&table, ids, mode};
  WEFT_ASSIGN_OR_RETURN(const std::vector<Variable> all,
                        Embeddings(scope, absl::MakeConstSpan(&look_up, 1)));
  return all[0];
}

absl::StatusOr<std::vector<Variable>> ContextLookups::Embeddings(
    const dist_autograd::Scope& scope, absl::Span<const LookUp> look_ups) {
  for (const LookUp& look_up : look_ups) {
    WEFT_RETURN_IF_ERROR(CheckLookUp(look_up));
  }
  std::optional<Future<std::vector<Tensor>>> rows;
  {
    MutexLock lock(tables_->mu);
    for (const LookUp& look_up : look_ups) {
      WEFT_RETURN_IF_ERROR(look_up.table->status());
    }
    rows = PullRows(look_ups);
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<Tensor> pulled, rows->Wait(timeout_));
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Part> part, PartOf(scope));
  return part->Add(look_ups, std::move(pulled));
}

}  // namespace weft::ps
