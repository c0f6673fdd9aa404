// OperationQueue: runs the operations of one group one after the other, in the
// order in which they were called.

#ifndef WEFT_COLLECTIVES_OPERATION_QUEUE_H_
#define WEFT_COLLECTIVES_OPERATION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"

namespace weft::collectives {

// Each operation gets the next number, from 0, when it is called, and runs when
// all lower numbers are done.
//
// Thread-safety: thread-safe.
class OperationQueue {
 public:
  using Body = absl::AnyInvocable<absl::Status(uint64_t number) &&>;

  OperationQueue() = default;
  // Waits for what runs and for what was scheduled.
  ~OperationQueue();

  // Runs `body` on this thread, after those called before. They end by their
  // own deadlines.
  absl::Status RunHere(absl::FunctionRef<absl::Status(uint64_t number)> body)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `body` on the queue's thread, which the first call starts. Callbacks
  // of the Future run there too, under InlineScope: a wait in them is refused.
  // kResourceExhausted: no thread.
  Future<void> Schedule(Body body) ABSL_LOCKS_EXCLUDED(mu_);

  bool is_idle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Scheduled {
    uint64_t number;
    Body body;
    Promise<void> promise;
  };

  absl::Status EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTurn(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndTurn() ABSL_LOCKS_EXCLUDED(mu_);
  void RunScheduled() ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;  // number of the next call
  uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;  // whose turn it is
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;    // threads in a wait for changed_
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Scheduled> scheduled_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_OPERATION_QUEUE_H_
