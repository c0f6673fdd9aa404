#include "weft/base/strand.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft {

class Strand::Queue {
 public:
  explicit Queue(Executor& executor) : executor_(executor) {}

  // Returns true if the caller must schedule a Turn: none is under way.
  bool Push(Task task) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    tasks_.push_back(std::move(task));
    return !std::exchange(has_turn_, true);
  }

  // Returns true if tasks are left, for another Turn.
  bool RunSome() ABSL_LOCKS_EXCLUDED(mu_) {
    for (int i = 0; i < kTasksInATurn; ++i) {
      Task task;
      {
        MutexLock lock(mu_);
        if (tasks_.empty()) {
          has_turn_ = false;
          return false;
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      RunTask(std::move(task));
    }
    return true;
  }

  void Drop() ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<Task> dropped;  // destroyed without the lock
    MutexLock lock(mu_);
    dropped.swap(tasks_);
    has_turn_ = false;
  }

  Executor& executor() const { return executor_; }

 private:
  static constexpr int kTasksInATurn = 32;

  Executor& executor_;
  Mutex mu_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool has_turn_ ABSL_GUARDED_BY(mu_) = false;
};

// The one task that a Strand has at its executor while it has tasks.
struct Strand::Turn {
  explicit Turn(std::shared_ptr<Queue> queue) : queue(std::move(queue)) {}
  Turn(Turn&&) noexcept = default;
  ~Turn() {
    if (queue != nullptr) queue->Drop();
  }
  void operator()() {
    auto taken = std::move(queue);
    if (!taken->RunSome()) return;
    Executor& executor = taken->executor();
    executor.Schedule(Turn(std::move(taken)));
  }

  std::shared_ptr<Queue> queue;
};

Strand::Strand(Executor& executor)
    : queue_(std::make_shared<Queue>(executor)) {}

void Strand::Schedule(Task task) {
  if (queue_->Push(std::move(task))) queue_->executor().Schedule(Turn(queue_));
}

}  // namespace weft
