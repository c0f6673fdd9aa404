// ContextLookups: look-ups in tables as parts of distributed passes.
//
//   Variable Embed(rpc::CallContext& call, const Tensor& ids) {   // recorded
//     const auto scope = dist_autograd::Scope::Within(call).value();
//     return call.Local<Model>()->lookups->Embedding(scope, *users,
//     ids).value();
//   }
//
// A look-up belongs to the context of its scope, at this worker. Backward
// passes of the context leave its gradients there, on all workers or on none;
// the step of a DistributedOptimizer in that context pushes them, once all
// workers have agreed that they can step. The end of the context drops what was
// not pushed. A step that is repeated pushes nothing a second time.
//
// With SYNC tables each step of a context is one round of the tables that were
// looked up in it here, so contexts of one worker step one after another. With
// TableSpec.staleness it ends a step of them (SparseTable::Tick).
//
// Passes have no store but their context: a pass of weft::Backward, without the
// scope, leaves nothing here.
//
// Errors and ids as those of Lookups. Tables are borrowed, and outlive it and
// the contexts; nobody else uses them meanwhile.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_EMBEDDING_CONTEXT_LOOKUPS_H_
#define WEFT_PS_EMBEDDING_CONTEXT_LOOKUPS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/scope.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/look_up.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

class ContextLookups {
 public:
  explicit ContextLookups(absl::Duration timeout = absl::Seconds(60));
  ~ContextLookups();
  ContextLookups(const ContextLookups&) = delete;
  ContextLookups& operator=(const ContextLookups&) = delete;

  // As those of Lookups. kFailedPrecondition once the context was released.
  absl::StatusOr<Variable> Embedding(const dist_autograd::Scope& scope,
                                     SparseTable& table, const Tensor& ids);
  absl::StatusOr<Variable> EmbeddingBag(const dist_autograd::Scope& scope,
                                        SparseTable& table, const Tensor& ids,
                                        BagMode mode);
  absl::StatusOr<std::vector<Variable>> Embeddings(
      const dist_autograd::Scope& scope, absl::Span<const LookUp> look_ups);

 private:
  class Part;
  // A table is used by one thread at a time. Parts outlive the ContextLookups.
  struct Tables {
    Mutex mu;
  };

  // The part of a context that still takes look-ups.
  absl::StatusOr<std::shared_ptr<Part>> PartOf(
      const dist_autograd::Scope& scope) ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration timeout_;
  const std::shared_ptr<Tables> tables_;
  Mutex mu_;
  // By context; expired: it has ended.
  std::vector<std::pair<dist_autograd::ContextId, std::weak_ptr<Part>>> parts_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_CONTEXT_LOOKUPS_H_
