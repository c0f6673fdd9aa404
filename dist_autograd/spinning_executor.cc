#include "weft/dist_autograd/spinning_executor.h"

#include <sched.h>

#include <chrono>
#include <utility>

namespace weft::dist_autograd {

SpinningExecutor::SpinningExecutor(Executor& threads, absl::Duration spin)
    : threads_(threads), spin_(spin) {}

void SpinningExecutor::Schedule(Task task) {
  {
    MutexLock lock(mu_);
    if (is_looking_ && !has_next_.load() && waiting_.load() == 0) {
      next_ = std::move(task);
      has_next_.store(true);
      return;
    }
    ++waiting_;
  }
  threads_.Schedule([this, task = std::move(task)]() mutable {
    --waiting_;
    RunThenLook(std::move(task));
  });
}

void SpinningExecutor::RunThenLook(Task task) {
  while (task != nullptr) {
    RunTask(std::move(task));
    task = Look();
  }
}

Task SpinningExecutor::Look() {
  {
    MutexLock lock(mu_);
    if (is_looking_ || waiting_.load() > 0) return nullptr;
    is_looking_ = true;
  }
  const auto end =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(spin_);
  while (!has_next_.load() && waiting_.load() == 0 &&
         std::chrono::steady_clock::now() < end) {
    sched_yield();
  }
  // A task may have come since.
  MutexLock lock(mu_);
  is_looking_ = false;
  has_next_.store(false);
  return std::exchange(next_, nullptr);
}

}  // namespace weft::dist_autograd
