// Executor: where tasks run.

#ifndef WEFT_BASE_EXECUTOR_H_
#define WEFT_BASE_EXECUTOR_H_

#include "absl/functional/any_invocable.h"

namespace weft {

using Task = absl::AnyInvocable<void() &&>;

// Thread-safety: thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `task` once, or destroys it unrun if the executor has ended: a Promise
  // inside then cancels whoever waits for it.
  virtual void Schedule(Task task) = 0;
};

// Runs each task in Schedule, on the thread that calls it.
class InlineExecutor final : public Executor {
 public:
  void Schedule(Task task) override;
};

// Runs a task for an executor. A task should not throw; what it throws is
// written to stderr, as no caller waits for it.
void RunTask(Task task) noexcept;

}  // namespace weft

#endif  // WEFT_BASE_EXECUTOR_H_
