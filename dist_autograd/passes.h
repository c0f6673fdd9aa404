// Passes: the backward passes at one worker: its parts of them, and those that
// began here.

#ifndef WEFT_DIST_AUTOGRAD_PASSES_H_
#define WEFT_DIST_AUTOGRAD_PASSES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/context_table.h"
#include "weft/dist_autograd/participation.h"
#include "weft/dist_autograd/pass_options.h"
#include "weft/dist_autograd/root_pass.h"
#include "weft/rpc/extension/weak_agent.h"

namespace weft::dist_autograd {

// Found by the functions that peers call as the agent's Local<Passes>().
//
// Thread-safety: thread-safe.
class Passes : public std::enable_shared_from_this<Passes> {
 public:
  using WeakAgent = rpc::extension::WeakAgent;

  // Passes run on `executor`, of contexts of `contexts`.
  Passes(std::shared_ptr<WeakAgent> agent,
         std::shared_ptr<const ContextTable> contexts,
         std::shared_ptr<Executor> executor);

  // As Scope::BackwardAsync.
  Future<PassReport> Begin(const std::shared_ptr<Context>& context,
                           absl::Span<const Variable> roots,
                           const PassOptions& options) ABSL_LOCKS_EXCLUDED(mu_);

  // This worker's part of a pass, made if it is new. kNotFound if the context
  // has no part here; kFailedPrecondition once it was released.
  absl::StatusOr<std::shared_ptr<Participation>> Join(ContextId context,
                                                      PassId pass)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The pass, if it began here and is open. kNotFound.
  absl::StatusOr<std::shared_ptr<RootPass>> FindRoot(ContextId context,
                                                     PassId pass) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // After the table of contexts knows it. `last`: and all earlier incarnations.
  void ContextEnded(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);
  void PeerGone(WorkerKey last) ABSL_LOCKS_EXCLUDED(mu_);

  // How many have not ended here.
  int64_t open() const ABSL_LOCKS_EXCLUDED(mu_);
  // As Contexts::ExplainPasses.
  std::vector<std::string> Explain() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<ContextId, PassId>;

  const std::shared_ptr<WeakAgent> agent_;
  const std::shared_ptr<const ContextTable> contexts_;
  const std::shared_ptr<Executor> executor_;  // passes hold it
  std::atomic<uint64_t> last_pass_{0};
  mutable Mutex mu_;
  std::map<Key, std::shared_ptr<Participation>> parts_ ABSL_GUARDED_BY(mu_);
  std::map<Key, std::shared_ptr<RootPass>> roots_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PASSES_H_
