// EventThread: a thread that runs what is posted to it, in order, and timers.

#ifndef WEFT_TRANSPORT_EVENT_THREAD_H_
#define WEFT_TRANSPORT_EVENT_THREAD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"

namespace weft::transport {

// Tasks run under InlineScope: none may wait.
//
// Thread-safety: thread-safe.
class EventThread {
 public:
  // kResourceExhausted: the system has no thread for it.
  static absl::StatusOr<std::unique_ptr<EventThread>> Create();
  ~EventThread() { Stop(); }

  // Ends the thread; what has not run is dropped, as is what comes later.
  // REQUIRES: not on the thread itself, at the first time.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  void Post(Task task) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t RunAt(Instant when, Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // True if it will not run.
  bool Cancel(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  EventThread() = default;

  using TimerKey = std::pair<Instant, int64_t>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the next task; false when it is time to end.
  bool Take(Task* task) ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Task> posted_ ABSL_GUARDED_BY(mu_);
  std::map<TimerKey, Task> timers_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, Instant> when_ ABSL_GUARDED_BY(mu_);
  int64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::thread thread_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_EVENT_THREAD_H_
