#include "weft/transport/event_thread.h"

#include <chrono>
#include <utility>

#include "weft/base/driver.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::transport {

absl::StatusOr<std::unique_ptr<EventThread>> EventThread::Create() {
  std::unique_ptr<EventThread> made(new EventThread());
  WEFT_ASSIGN_OR_RETURN(
      made->thread_,
      StartThread("a local transport", [self = made.get()] { self->Run(); }));
  return made;
}

void EventThread::Stop() {
  std::deque<Task> posted;
  std::map<TimerKey, Task> timers;
  {
    MutexLock lock(mu_);
    if (std::exchange(ended_, true)) return;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();  // else it was never started
  MutexLock lock(mu_);                     // dropped after the lock is released
  posted.swap(posted_);
  timers.swap(timers_);
  when_.clear();
}

void EventThread::Post(Task task) {
  MutexLock lock(mu_);
  if (ended_) return;
  posted_.push_back(std::move(task));
  changed_.NotifyAll();
}

int64_t EventThread::RunAt(Instant when, Task task) {
  MutexLock lock(mu_);
  if (ended_) return 0;
  const int64_t id = next_id_++;
  timers_.emplace(TimerKey(when, id), std::move(task));
  when_.emplace(id, when);
  changed_.NotifyAll();
  return id;
}

bool EventThread::Cancel(int64_t id) {
  Task dropped;  // destroyed after the lock is released
  MutexLock lock(mu_);
  const auto it = when_.find(id);
  if (it == when_.end()) return false;
  const auto timer = timers_.find(TimerKey(it->second, id));
  dropped = std::move(timer->second);
  timers_.erase(timer);
  when_.erase(it);
  return true;
}

void EventThread::Run() {
  InlineScope inline_scope;
  Task task;
  while (Take(&task)) {
    RunTask(std::move(task));
    task = nullptr;
  }
}

bool EventThread::Take(Task* task) {
  MutexLock lock(mu_);
  for (;;) {
    if (ended_) return false;
    const Instant now = SteadyClock().Now();
    if (!timers_.empty() && timers_.begin()->first.first <= now) {
      *task = std::move(timers_.begin()->second);
      when_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
      return true;
    }
    if (!posted_.empty()) {
      *task = std::move(posted_.front());
      posted_.pop_front();
      return true;
    }
    const Instant until =
        timers_.empty() ? now + absl::Hours(1) : timers_.begin()->first.first;
    // Both clocks are CLOCK_MONOTONIC.
    changed_.WaitUntil(mu_, std::chrono::steady_clock::time_point(
                                std::chrono::nanoseconds(until.nanoseconds())));
  }
}

}  // namespace weft::transport
