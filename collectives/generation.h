// Generation: what a group is between two changes of its members: one backend,
// and what goes on over it.

#ifndef WEFT_COLLECTIVES_GENERATION_H_
#define WEFT_COLLECTIVES_GENERATION_H_

#include <atomic>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/future.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/call_options.h"
#include "weft/collectives/group_options.h"
#include "weft/collectives/operation_queue.h"
#include "weft/collectives/preparation.h"
#include "weft/collectives/transfer_queue.h"

namespace weft::collectives {

// A call's arguments, checked; or why they are refused, with verb and site.
struct Call {
  Preparation preparation;
  absl::Status refusal;
};

// Thread-safety: thread-safe.
class Generation {
 public:
  explicit Generation(std::unique_ptr<Backend> backend, GroupOptions options)
      : options_(std::move(options)),
        backend_(std::move(backend)),
        transfers_(*backend_) {
    if (options_.abort_source != nullptr) {
      options_.abort_source->Add(*backend_);
    }
  }
  // Aborts what goes on.
  ~Generation();

  Backend& backend() { return *backend_; }
  absl::Status Run(Call call, const CallOptions& options);
  Future<void> RunAsync(Call call, const CallOptions& options);

  // Of the operation that `call` prepared: one block.
  Future<int> Move(Call call, int peer, uint64_t tag,
                   const CallOptions& options);

 private:
  Instant DeadlineOf(const CallOptions& options);
  // `is_late`: its deadline has passed before its turn came.
  absl::Status RunNow(Call& call, uint64_t number, Instant deadline,
                      bool is_late);
  // OK; or, the first time, what has broken the group; or that it is broken.
  absl::Status CheckHealth();
  // False: the caller has been told before of what has broken the group.
  bool Tell(const absl::Status& why);
  // `status`, with what was called where.
  absl::Status Annotate(const absl::Status& status,
                        const Operation& operation) const;

  const GroupOptions options_;
  const std::unique_ptr<Backend> backend_;
  std::atomic<bool> has_told_{false};  // of what has broken the group
  TransferQueue transfers_;
  OperationQueue operations_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GENERATION_H_
