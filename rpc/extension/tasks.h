// Tasks: what is to be done once a lock is released: callbacks, calls, the ends
// of users' objects.
//
//   extension::Tasks tasks;   // above the lock, so that it ends below it
//   MutexLock lock(mu_);
//   tasks.Set(std::move(waiting.promise), absl::OkStatus());

#ifndef WEFT_RPC_EXTENSION_TASKS_H_
#define WEFT_RPC_EXTENSION_TASKS_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "weft/base/future.h"

namespace weft::rpc::extension {

// Its end runs the tasks in the order in which they were added, those that a
// task adds too.
//
// Thread-safety: one thread at a time.
class Tasks {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  Tasks() = default;
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;
  ~Tasks() {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      Task task = std::move(tasks_[i]);  // others move when one is added
      std::move(task)();
    }
  }

  void Add(Task task) { tasks_.push_back(std::move(task)); }
  template <typename T>
  void Set(Promise<T> promise, Result<T> result) {
    Add([promise = std::move(promise), result = std::move(result)]() mutable {
      promise.Set(std::move(result));
    });
  }

 private:
  std::vector<Task> tasks_;
};

}  // namespace weft::rpc::extension

#endif  // WEFT_RPC_EXTENSION_TASKS_H_
