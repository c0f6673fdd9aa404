// BackgroundTask: work that goes on while its caller does something else, one
// task at a time, whose result is taken later.

#ifndef WEFT_TRAIN_BACKGROUND_TASK_H_
#define WEFT_TRAIN_BACKGROUND_TASK_H_

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/start_thread.h"

namespace weft::train {

// Thread-safety: one thread at a time, but for is_done.
template <typename T>
class BackgroundTask {
 public:
  using Result = absl::StatusOr<T>;

  BackgroundTask() = default;
  ~BackgroundTask() { Take(); }  // waits for the task that goes on
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Runs `task` on a thread of its own; what it throws becomes its result.
  // kResourceExhausted, naming `what` it does, if there can be no more threads:
  // then `task` is not run, and that is its result too. REQUIRES: !has_begun().
  absl::Status Begin(absl::string_view what, std::function<Result()> task);
  // Whether a task was begun whose result was not taken.
  bool has_begun() const { return has_begun_; }
  // Whether Take has a result without waiting.
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  // The result, once: null while the task goes on, or if none was begun.
  std::optional<Result> TakeIfDone() {
    return is_done() ? Take() : std::nullopt;
  }
  // The same, but waits, as long as the task lasts.
  std::optional<Result> Take();

 private:
  bool has_begun_ = false;
  std::thread thread_;
  std::optional<Result> result_;  // written by thread_, until is_done_
  std::atomic<bool> is_done_{false};
};

template <typename T>
absl::Status BackgroundTask<T>::Begin(absl::string_view what,
                                      std::function<Result()> task) {
  WEFT_CHECK(!has_begun_);
  has_begun_ = true;
  absl::StatusOr<std::thread> thread =
      StartThread(what, [this, task = std::move(task)] {
        result_ = CatchToStatus([&] { return task(); });
        is_done_.store(true, std::memory_order_release);
      });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    result_ = thread.status();
    is_done_.store(true, std::memory_order_release);
  }
  return thread.status();
}

template <typename T>
std::optional<absl::StatusOr<T>> BackgroundTask<T>::Take() {
  if (!has_begun_) return std::nullopt;
  if (thread_.joinable()) thread_.join();
  has_begun_ = false;
  is_done_.store(false, std::memory_order_relaxed);
  return std::exchange(result_, std::nullopt);
}

}  // namespace weft::train

#endif  // WEFT_TRAIN_BACKGROUND_TASK_H_
