// TransferQueue: the sends and receives of one rank that go on.

#ifndef WEFT_COLLECTIVES_RUN_TRANSFER_QUEUE_H_
#define WEFT_COLLECTIVES_RUN_TRANSFER_QUEUE_H_

#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backend.h"
#include "weft/device/runtime.h"
#include "weft/tensor/device_staging.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class TransferQueue {
 public:
  // `backend` must outlive it.
  explicit TransferQueue(Backend& backend) : backend_(backend) {}
  // Transfers under way end in kCancelled.
  ~TransferQueue();

  struct Addition {
    Transfer transfer;
    // Where a tensor of a device passes through the host; null: it does not.
    std::shared_ptr<StagedCall> staged;
    device::Stream caller;  // with a tensor of a device: the caller's
    Instant deadline;
    std::string what;  // with which its errors begin
    // Kept until the transfer has ended, though its Future may be cancelled
    // before: what owns its memory.
    std::shared_ptr<const void> owner = nullptr;
  };
  // Moves each as soon as it can be moved, on this thread or on the queue's,
  // which the first that must wait starts. Its memory must live until then; its
  // Transfer::state ends before.
  // Ends in the peer's rank; in kDeadlineExceeded at its deadline. What one of
  // all that go on asks for is not in the way of the others: kResourceExhausted
  // (Backend::Advance) only where none of them takes anything. Callbacks of the
  // Futures run under InlineScope on the queue's thread, or on the one that
  // ends the queue, and with the current stream of the caller for a device.
  std::vector<Future<int>> Add(std::vector<Addition> additions)
      ABSL_LOCKS_EXCLUDED(mu_);

  bool is_idle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    Transfer transfer;
    std::shared_ptr<StagedCall> staged;
    device::Stream caller;
    Instant deadline;
    std::string what;
    std::shared_ptr<const void> owner;
    Promise<int> promise;
    absl::StatusOr<int> result = -1;
    // Why it is not to go on, unless another one makes room for it.
    absl::Status obstacle;
    bool met_before = false;  // also by the pass before
  };

  // Whether an older one comes first.
  bool IsBehind(const Transfer& transfer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True once its input is on the host; an error ends it, and the group.
  absl::StatusOr<bool> HasInput(Pending& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True once it has ended, with its result; the backend is done with it.
  bool Move(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same, but the backend may still hold something for it.
  bool Attempt(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves all, those that have ended to `ended`.
  void MoveAll(std::list<Pending>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives those that have ended their results; runs their callbacks.
  static void Settle(std::list<Pending>& ended);
  absl::Status EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Backend& backend_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Pending> pending_ ABSL_GUARDED_BY(mu_);  // oldest first
  // Whether one of them waits for a device, which wakes nobody.
  bool awaits_device_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_TRANSFER_QUEUE_H_
