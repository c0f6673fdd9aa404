// OperationQueue: runs the operations of one group one after the other, in the
// order in which they were called.

#ifndef WEFT_COLLECTIVES_RUN_OPERATION_QUEUE_H_
#define WEFT_COLLECTIVES_RUN_OPERATION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/device/runtime.h"

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

  // Runs `body`, which does not wait and whose status is dropped, on this
  // thread if nothing comes before it; else false.
  bool TryRunHere(absl::FunctionRef<absl::Status(uint64_t number)> body)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `body` on the queue's thread, which the first call starts. Callbacks
  // of the Future run there too, under InlineScope: a wait in them is refused.
  // `stream`, if it names one, is current for them. kResourceExhausted: no
  // thread.
  Future<void> Schedule(Body body, device::Stream stream = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a `body` that only says that this rank refuses its part; the
  // number of the operation, once that is sure to be said.
  absl::StatusOr<uint64_t> ScheduleRefusal(Body body) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether nothing but refusals is under way.
  bool is_idle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Scheduled {
    uint64_t number;
    Body body;
    Promise<void> promise;
    bool is_refusal = false;
    device::Stream stream = {};
  };

  absl::Status EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTurn(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndTurn(bool of_refusal = false) ABSL_LOCKS_EXCLUDED(mu_);
  void RunScheduled() ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;      // number of the next call
  uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;      // whose turn it is
  uint64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;  // of those that go on
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;  // threads in a wait for changed_
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Scheduled> scheduled_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_OPERATION_QUEUE_H_
