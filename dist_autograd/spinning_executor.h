// SpinningExecutor: threads that look for the next task for a moment before
// they sleep.

#ifndef WEFT_DIST_AUTOGRAD_SPINNING_EXECUTOR_H_
#define WEFT_DIST_AUTOGRAD_SPINNING_EXECUTOR_H_

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"

namespace weft::dist_autograd {

// Runs tasks on `threads`. A thread that has run one looks for another for
// `spin` and then returns to `threads`: a task that follows another within that
// time starts without the 10 to 50 us that it takes to wake a thread. One
// thread at a time looks, and yields its core to others between two looks. As
// many tasks run at once as `threads` allows.
//
// A task that is scheduled is run, or is destroyed by `threads`. The executor
// outlives the threads of `threads`.
//
// Thread-safety: thread-safe.
class SpinningExecutor final : public Executor {
 public:
  SpinningExecutor(Executor& threads, absl::Duration spin);

  void Schedule(Task task) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void RunThenLook(Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // The next task, if it comes in time. Empty: no task came, another thread
  // looks, or a task waits for a thread.
  Task Look() ABSL_LOCKS_EXCLUDED(mu_);

  Executor& threads_;
  const absl::Duration spin_;
  Mutex mu_;
  bool is_looking_ ABSL_GUARDED_BY(mu_) = false;
  // For the thread that looks: at most one. Empty while none looks.
  Task next_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_next_{false};
  std::atomic<int> waiting_{0};  // tasks at `threads_` that have not begun
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_SPINNING_EXECUTOR_H_
