#include "weft/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"

namespace weft {
namespace {

// The pool whose thread this is; set for a worker's whole life.
thread_local const ThreadPool* pool_of_thread = nullptr;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A look and the yield after it take 1 us. If they took this long, another
// thread had the core: to spin on would take more from it.
constexpr int64_t kLongLookNs = 20'000;

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(
    Options options) {
  if (options.threads < 1 || options.max_threads < options.threads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ThreadPool '", options.name, "': wants 1 <= threads <= max_threads, ",
        "has threads=", options.threads,
        ", max_threads=", options.max_threads));
  }
  auto pool = std::unique_ptr<ThreadPool>(new ThreadPool(std::move(options)));
  MutexLock lock(pool->mu_);
  for (int i = 0; i < pool->options_.threads; ++i) {
    if (absl::Status added = pool->AddWorker(); !added.ok()) return added;
  }
  return pool;
}

ThreadPool::ThreadPool(Options options) : options_(std::move(options)) {}

ThreadPool::~ThreadPool() {
  StopNow();
  JoinAll();
}

void ThreadPool::Schedule(Task task) {
  MutexLock lock(mu_);
  // A task that runs during the shutdown may still schedule others.
  if (stopped_ || (draining_ && pool_of_thread != this)) return;
  queue_.push_back(std::move(task));
  has_queued_.store(true, std::memory_order_relaxed);
  WakeOrAddWorker();
}

absl::Status ThreadPool::Shutdown(absl::Duration timeout) {
  if (pool_of_thread == this) {
    return absl::FailedPreconditionError(
        absl::StrCat("ThreadPool '", options_.name,
                     "': Shutdown on one of its own threads"));
  }
  if (!AwaitEnd(SteadyDeadline(timeout))) {
    const Stats left = stats();
    StopNow();
    return absl::DeadlineExceededError(
        absl::StrCat("ThreadPool '", options_.name, "': tasks still run after ",
                     absl::FormatDuration(timeout), "; dropped ", left.queued,
                     " that had not begun"));
  }
  StopNow();
  JoinAll();
  return absl::OkStatus();
}

// Returns false if threads are left at `deadline`.
bool ThreadPool::AwaitEnd(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mu_);
  draining_ = true;
  work_.NotifyAll();
  while (live_ > 0) {
    if (!ended_.WaitUntil(mu_, deadline)) return live_ == 0;
  }
  return true;
}

ThreadPool::Stats ThreadPool::stats() const {
  MutexLock lock(mu_);
  return {live_, idle_, blocked_, static_cast<int64_t>(queue_.size()),
          started_};
}

void ThreadPool::BeginBlocking() {
  MutexLock lock(mu_);
  --running_;
  ++blocked_;
  WakeOrAddWorker();
}

void ThreadPool::EndBlocking() {
  MutexLock lock(mu_);
  --blocked_;
  ++running_;
  // An idle worker may now be a spare one: let it look.
  if (idle_ > 0) work_.NotifyOne();
}

bool ThreadPool::CanStartTask() const {
  return !queue_.empty() && running_ < options_.threads;
}

// Called whenever CanStartTask() may have become true by another than a worker
// that is about to look itself.
void ThreadPool::WakeOrAddWorker() {
  if (!CanStartTask()) return;
  const auto can_start = std::min<int64_t>(static_cast<int64_t>(queue_.size()),
                                           options_.threads - running_);
  if (SpinnerLooks()) return;
  if (idle_ > 0) {
    work_.NotifyOne();
  } else if (can_start > looking_ && live_ < options_.max_threads) {
    // Without a further thread the task waits for a present one.
    AddWorker().IgnoreError();
  }
}

// A spinner that the system has put aside does not count: the task would wait
// for its next slice, which may be milliseconds.
bool ThreadPool::SpinnerLooks() const {
  return spins_ && NowNs() - spinner_looked_.load(std::memory_order_relaxed) <
                       kLongLookNs;
}

absl::Status ThreadPool::AddWorker() {
  if (retired_.empty()) {
    retired_.push_back(static_cast<int>(threads_.size()));
    threads_.emplace_back();
  }
  const int index = retired_.back();
  std::thread& thread = threads_[index];
  if (thread.joinable()) thread.join();  // it needs no lock any more
  WEFT_ASSIGN_OR_RETURN(
      thread, StartThread(absl::StrCat("ThreadPool '", options_.name, "'"),
                          [this, index] { RunWorker(index); }));
  retired_.pop_back();
  ++live_;
  ++looking_;
  return absl::OkStatus();
}

void ThreadPool::RunWorker(int index) {
  pool_of_thread = this;
  const std::string name = absl::StrCat(options_.name, "/", index);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  BlockingListener::Scope listener(*this);
  Task task;
  while (AwaitTask(&task)) {
    RunTask(std::move(task));
    task = nullptr;
    {
      MutexLock lock(mu_);
      --running_;
      ++looking_;
    }
    if (options_.spin > absl::ZeroDuration()) Spin();
  }
  MutexLock lock(mu_);
  --live_;
  WakeOrAddWorker();          // what came while this one was ending
  retired_.push_back(index);  // after it, as that may join a retired one
  ended_.NotifyAll();
}

void ThreadPool::Spin() {
  {
    MutexLock lock(mu_);
    if (spins_ || CanStartTask() || stopped_ || draining_) return;
    spins_ = true;
    spinner_looked_.store(NowNs(), std::memory_order_relaxed);
  }
  const int64_t end = NowNs() + absl::ToInt64Nanoseconds(options_.spin);
  for (int64_t now = NowNs(), last = now; now < end && now < last + kLongLookNs;
       now = NowNs()) {
    spinner_looked_.store(now, std::memory_order_relaxed);
    // A thread that is awake anyway may take the task before this one.
    if (has_queued_.load(std::memory_order_relaxed) && SpinnerTakes()) return;
    last = now;
    sched_yield();
  }
  MutexLock lock(mu_);
  spins_ = false;
}

bool ThreadPool::SpinnerTakes() {
  MutexLock lock(mu_);
  spins_ = !CanStartTask();
  return !spins_;
}

// Returns false if this thread is to end: the pool stops, or it is a spare of
// which there has been no need for a while.
bool ThreadPool::AwaitTask(Task* task) {
  MutexLock lock(mu_);
  --looking_;
  auto until = SteadyDeadline(options_.spare_idle_time);
  while (!CanStartTask()) {
    if (stopped_ || (draining_ && queue_.empty() && running_ + blocked_ == 0)) {
      work_.NotifyAll();
      return false;
    }
    const bool is_spare = live_ - blocked_ > options_.threads;
    ++idle_;
    bool in_time = true;
    if (is_spare) {
      in_time = work_.WaitUntil(mu_, until);
    } else {
      work_.Wait(mu_);
    }
    --idle_;
    if (is_spare && !in_time && !CanStartTask() &&
        live_ - blocked_ > options_.threads) {
      return false;
    }
  }
  *task = std::move(queue_.front());
  queue_.pop_front();
  has_queued_.store(!queue_.empty(), std::memory_order_relaxed);
  ++running_;
  ++started_;
  WakeOrAddWorker();  // two wake-ups may have found this one idle thread
  return true;
}

void ThreadPool::StopNow() {
  std::deque<Task> dropped;  // destroyed without the lock
  MutexLock lock(mu_);
  stopped_ = true;
  dropped.swap(queue_);
  has_queued_.store(false, std::memory_order_relaxed);
  work_.NotifyAll();
}

void ThreadPool::JoinAll() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mu_);
    threads.swap(threads_);
    retired_.clear();
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace weft
