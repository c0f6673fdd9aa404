// ThreadPool: an Executor of some threads, which replaces those that block.

#ifndef WEFT_BASE_THREAD_POOL_H_
#define WEFT_BASE_THREAD_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"

namespace weft {

// Runs tasks in the order of Schedule, `threads` of them at once. A task that
// blocks in a BlockingScope (each Future::Wait is one) does not count: a spare
// thread takes its place, up to `max_threads` threads in all. When it goes on,
// no new task starts until the number is the normal one again.
//
// With `spin`, a thread that has ended a task looks for the next one for that
// long before it sleeps, so that a task that follows soon starts without the 10
// to 50 us that it takes to wake a thread. One thread at a time does so, and it
// yields its core between two looks.
//
// Thread-safety: thread-safe.
class ThreadPool final : public Executor, private BlockingListener {
 public:
  struct Options {
    // In the names of its threads, of which the system shows 15 characters.
    std::string name = "pool";
    // How many tasks run at once.
    int threads = 1;
    // How many threads there may be, blocked ones included. With all of them
    // blocked, tasks wait.
    int max_threads = 64;
    // What a user sets to change max_threads, for messages: "--flag".
    std::string max_threads_option = "ThreadPool::Options::max_threads";
    // How long a spare thread is kept when there is no need of it.
    absl::Duration spare_idle_time = absl::Seconds(5);
    // How long a thread looks for its next task without sleeping.
    absl::Duration spin = absl::ZeroDuration();
  };
  struct Stats {
    int threads = 0;
    int idle = 0;     // of them, waiting for work
    int blocked = 0;  // of them, in a task that waits
    int64_t queued = 0;
    int64_t started = 0;  // tasks that have begun, since the pool was made
  };

  // kInvalidArgument for numbers that make no sense; kResourceExhausted if the
  // system has no more threads.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(Options options);

  // Drops what is queued and waits for the tasks that run.
  ~ThreadPool() override;

  // After Shutdown, destroys the task unrun.
  void Schedule(Task task) override ABSL_LOCKS_EXCLUDED(mu_);

  // Runs what is queued, and what those tasks schedule, then ends the threads.
  // After `timeout`, drops what has not begun and returns kDeadlineExceeded.
  // kFailedPrecondition on a thread of the pool.
  absl::Status Shutdown(absl::Duration timeout = absl::Seconds(30))
      ABSL_LOCKS_EXCLUDED(mu_);

  const Options& options() const { return options_; }
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ThreadPool(Options options);

  void BeginBlocking() override ABSL_LOCKS_EXCLUDED(mu_);
  void EndBlocking() override ABSL_LOCKS_EXCLUDED(mu_);

  void RunWorker(int index) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns once there is a task to start, the spin has passed, or the core is
  // wanted by another thread.
  void Spin() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the spin if there is a task to start.
  bool SpinnerTakes() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the thread that spins is about to see what is in the queue.
  bool SpinnerLooks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AwaitTask(Task* task) ABSL_LOCKS_EXCLUDED(mu_);
  bool CanStartTask() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeOrAddWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AddWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AwaitEnd(std::chrono::steady_clock::time_point deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void StopNow() ABSL_LOCKS_EXCLUDED(mu_);
  void JoinAll() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  mutable Mutex mu_;
  CondVar work_;   // a worker has something to do, or to end
  CondVar ended_;  // live_ went down
  std::deque<Task> queue_ ABSL_GUARDED_BY(mu_);
  // By index, which a later thread takes over from a retired one.
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  std::vector<int> retired_ ABSL_GUARDED_BY(mu_);  // indices to take
  int live_ ABSL_GUARDED_BY(mu_) = 0;              // threads not ended
  int idle_ ABSL_GUARDED_BY(mu_) = 0;              // of them, waiting for work
  int looking_ ABSL_GUARDED_BY(mu_) = 0;           // about to look for work
  int running_ ABSL_GUARDED_BY(mu_) = 0;           // in a task, not blocked
  int blocked_ ABSL_GUARDED_BY(mu_) = 0;           // in a task, blocked
  int64_t started_ ABSL_GUARDED_BY(mu_) = 0;       // tasks that have begun
  bool spins_ ABSL_GUARDED_BY(mu_) = false;        // one of the looking_
  std::atomic<bool> has_queued_{false};            // queue_ is not empty
  std::atomic<int64_t> spinner_looked_{0};  // when, by the steady clock in ns
  bool draining_ ABSL_GUARDED_BY(mu_) = false;  // Shutdown has begun
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;   // take no more tasks
};

}  // namespace weft

#endif  // WEFT_BASE_THREAD_POOL_H_
