// TransferQueue: the sends and receives of one rank that go on.

#ifndef WEFT_COLLECTIVES_TRANSFER_QUEUE_H_
#define WEFT_COLLECTIVES_TRANSFER_QUEUE_H_

#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backend.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class TransferQueue {
 public:
  // `backend` must outlive it.
  explicit TransferQueue(Backend& backend) : backend_(backend) {}
  // Those that go on end in kCancelled.
  ~TransferQueue();

  // Moves `transfer` as soon as it can be moved, on this thread or on the
  // queue's, which the first that must wait starts. Its memory must live until
  // then. Ends in the peer's rank; in kDeadlineExceeded at `deadline`. Errors
  // begin with `what`.
  Future<int> Add(Transfer transfer, Instant deadline, std::string what)
      ABSL_LOCKS_EXCLUDED(mu_);

  bool is_idle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    Transfer transfer;
    Instant deadline;
    std::string what;
    Promise<int> promise;
    absl::StatusOr<int> result = -1;
  };

  // Whether an older one comes first.
  bool IsBehind(const Transfer& transfer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True once it has ended, with its result.
  bool Move(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Backend& backend_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Pending> pending_ ABSL_GUARDED_BY(mu_);  // oldest first
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TRANSFER_QUEUE_H_
