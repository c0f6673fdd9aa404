// ContextTable: the contexts that have a part at one worker, and the recorded
// calls that it serves in them. It sends nothing and knows no passes.

#ifndef WEFT_DIST_AUTOGRAD_CONTEXT_TABLE_H_
#define WEFT_DIST_AUTOGRAD_CONTEXT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/message_set.h"

namespace weft::dist_autograd {

// Thread-safety: thread-safe.
class ContextTable {
 public:
  // The contexts of the worker `self`. `most_intervals`: the limit for a
  // lineage, see Context.
  ContextTable(WorkerKey self, std::string name, size_t most_intervals)
      : self_(self), name_(std::move(name)), most_intervals_(most_intervals) {}

  WorkerKey self() const { return self_; }
  const std::string& name() const { return name_; }

  // A new context of this worker; after Close(), one that was released.
  std::shared_ptr<Context> Create() ABSL_LOCKS_EXCLUDED(mu_);
  // kFailedPrecondition once it was released; kNotFound if it has no part here.
  absl::StatusOr<std::shared_ptr<Context>> Find(ContextId id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the context if it is new here, and then sets `is_new`.
  // kFailedPrecondition once released, once its creator is gone, or after
  // Close(); kNotFound of one of this worker that it has not created.
  absl::StatusOr<std::shared_ptr<Context>> FindOrAdd(ContextId id, bool* is_new)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Closes and forgets the context: it is not made again. Null if it has no
  // part here.
  std::shared_ptr<Context> End(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<ContextId> Open() const ABSL_LOCKS_EXCLUDED(mu_);
  // No context is made from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // `last` and all earlier incarnations of that worker are gone. Returns the
  // contexts that they have created.
  std::vector<ContextId> PeerGone(WorkerKey last) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsGone(WorkerKey worker) const ABSL_LOCKS_EXCLUDED(mu_);

  // The recorded calls that are served here, by caller and call id.
  using Call = std::pair<WorkerKey, uint64_t>;
  struct Served {
    std::shared_ptr<Context> context;  // null: it is not recorded
    std::string function;
  };
  void CallBegan(const Call& call, Served served) ABSL_LOCKS_EXCLUDED(mu_);
  void CallEnded(const Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  Served FindCall(const Call& call) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<std::shared_ptr<Context>> FindLocked(ContextId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsGoneLocked(WorkerKey worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WorkerKey self_;
  const std::string name_;
  const size_t most_intervals_;
  mutable Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_context_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<ContextId, std::shared_ptr<Context>> contexts_ ABSL_GUARDED_BY(mu_);
  // By creator and number, as messages are.
  MessageSet released_ ABSL_GUARDED_BY(mu_);
  // By worker, the last incarnation that has ended: its contexts, and those of
  // earlier ones, are not made again.
  std::map<uint32_t, rendezvous::Epoch> gone_ ABSL_GUARDED_BY(mu_);
  std::map<Call, Served> served_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXT_TABLE_H_
