// Generation: what a group is between two changes of its members: one backend,
// and what goes on over it.

#ifndef WEFT_COLLECTIVES_RUN_GENERATION_H_
#define WEFT_COLLECTIVES_RUN_GENERATION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/future.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/call_options.h"
#include "weft/collectives/group_options.h"
#include "weft/collectives/run/operation_queue.h"
#include "weft/collectives/run/preparation.h"
#include "weft/collectives/run/transfer_queue.h"
#include "weft/device/runtime.h"
#include "weft/tensor/device_staging.h"

namespace weft::collectives {

// A call's arguments, checked; or why they are refused, with verb and site.
struct Call {
  Preparation preparation;
  absl::Status refusal;
  // An error of this rank's device: breaks the group in this call's turn.
  absl::Status failure;
  bool has_broken_group = false;
  // Operation::whole of the preparation, where it is a step of something.
  std::unique_ptr<Operation> whole = nullptr;

  Operation& operation() { return preparation.operation(); }
  // The stream on which its results are seen; none where the tensors are on the
  // CPU.
  device::Stream stream() const { return preparation.caller(); }
  void SetLabel(uint64_t label) {
    operation().label = label;
    if (whole != nullptr) whole->label = label;
  }
  void SetNumber(uint64_t number) {
    operation().sequence = number;
    if (whole != nullptr) whole->sequence = number;
  }
};

// Operations that a backend has begun and not ended.
//
// Thread-safety: thread-safe.
class Enqueued {
 public:
  // Waits for their end: at their deadlines, or since the group is aborted.
  ~Enqueued();
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_idle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Thread-safety: thread-safe.
class Generation {
 public:
  Generation(std::unique_ptr<Backend> backend, GroupOptions options,
             std::vector<int> parent_ranks,
             std::shared_ptr<DeviceStaging> staging)
      : options_(std::move(options)),
        parent_ranks_(std::move(parent_ranks)),
        staging_(std::move(staging)),
        backend_(std::move(backend)),
        transfers_(*backend_) {
    if (options_.abort_source != nullptr) {
      options_.abort_source->Add(*backend_);
    }
  }
  // Aborts what goes on.
  ~Generation();

  Backend& backend() const { return *backend_; }
  const std::shared_ptr<DeviceStaging>& staging() const { return staging_; }
  struct Shrink {
    int number = 0;  // how often this rank has called it before
    uint64_t key = 0;
  };
  // The one to `members` that begins.
  Shrink BeginShrink(const std::vector<int>& members) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends those that this rank has called, on all ranks.
  void EndShrinks(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // OK, or why that Shrink is to end.
  absl::Status CheckShrink(uint64_t key) const ABSL_LOCKS_EXCLUDED(mu_);
  // The rank of each in the group that this one was made from.
  const std::vector<int>& parent_ranks() const { return parent_ranks_; }

  // `after`, which may be null, runs after an operation that is OK, before the
  // next one, on the thread of the operation; its status is the call's.
  // `number` is the operation's, equal on all ranks. Once the group is broken,
  // the reason takes the place of an error of it.
  using After = absl::AnyInvocable<absl::Status(uint64_t number) &&>;
  absl::Status Run(Call call, const CallOptions& options, After after = {});
  Future<void> RunAsync(Call call, const CallOptions& options,
                        After after = {});

  // A Send or Receive: its operation has one block.
  struct Movement {
    Call call;
    int peer = 0;  // -1: receive from any
    uint64_t tag = 0;
  };
  // Begins all at once; each ends in its peer.
  std::vector<Future<int>> Move(std::vector<Movement> movements,
                                const CallOptions& options);

 private:
  Instant DeadlineOf(const CallOptions& options);
  // `is_late`: its deadline has passed before its turn came.
  absl::Status RunNow(Call& call, uint64_t number, Instant deadline,
                      bool is_late);
  // What comes before the operation, and after. An error of Begin is that of
  // the operation, which is not to be run. What End returns is the call's.
  absl::Status Begin(Call& call, uint64_t number, Instant deadline,
                     bool is_late);
  absl::Status End(Call& call, absl::Status status);
  // Waits until the inputs of a device are on the host: at most until
  // `deadline`, or until the group is broken.
  absl::Status AwaitInputs(Call& call, Instant deadline);
  // Breaks the group for `why`, which only this rank knows; returns it.
  absl::Status Break(Call& call, absl::Status why);
  // As RunAsync of a call that is refused: the others are told in its turn.
  Future<void> RefuseAsync(Call call, Instant deadline);
  // As RunAsync, where the backend enqueues.
  Future<void> EnqueueAsync(Call call, Instant deadline);
  absl::Status RunNow(Call& call, After& after, uint64_t number,
                      Instant deadline, bool is_late);
  absl::Status RunAfter(const Call& call, After& after, uint64_t number);
  // OK; or, the first time, what has broken the group; or that it is broken.
  absl::Status CheckHealth();
  // False: the caller has been told before of what has broken the group.
  bool Tell(const absl::Status& why);
  // What TransferQueue moves for it; or why it is not to be moved.
  absl::StatusOr<TransferQueue::Addition> AdditionOf(const Movement& movement,
                                                     Instant deadline);
  // What comes after it; an error is the call's.
  absl::Status EndMovement(Preparation& preparation);
  // `status`, with what was called where.
  absl::Status Annotate(const absl::Status& status,
                        const Operation& operation) const;

  const GroupOptions options_;
  const std::vector<int> parent_ranks_;
  const std::shared_ptr<DeviceStaging> staging_;
  const std::unique_ptr<Backend> backend_;
  std::atomic<bool> has_told_{false};  // of what has broken the group
  mutable Mutex mu_;
  // The keys of the Shrinks that this rank has called; the first
  // `ended_shrinks_` of them were ended by `why_shrinks_end_`.
  std::vector<uint64_t> shrinks_ ABSL_GUARDED_BY(mu_);
  size_t ended_shrinks_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status why_shrinks_end_ ABSL_GUARDED_BY(mu_);
  TransferQueue transfers_;
  Enqueued enqueued_;  // ends after those who may begin more
  OperationQueue operations_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_GENERATION_H_
