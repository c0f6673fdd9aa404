// Poller: which thread is inside the event queue, and for how long it looks
// before it sleeps.
//
// One thread at a time holds the queue. A waiting thread takes it if it is free
// and handles events until its own wait is over; others park, and whoever
// leaves hands the queue to one of them. When nobody waits, the queue stays
// free for `retake_pause`, so that a thread that calls again at once finds it
// free, and then the background thread takes it: after a run of quick calls up
// to 4 ms later. Posted functions and timers are run by the holder.
//
// A Loop with two queues has a Poller for each, in one PollerGroup. While
// somebody waits at one of them the other's queue is not left free: what comes
// there may be what that wait is for.

#ifndef WEFT_NET_LOOP_POLLER_H_
#define WEFT_NET_LOOP_POLLER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"
#include "weft/net/loop/alarm.h"
#include "weft/net/loop/spin_time.h"

namespace weft::net {

// Where events come from.
class EventQueue {
 public:
  enum class Outcome { kEvent, kTimeout, kEnd };

  virtual ~EventQueue() = default;

  // Takes one event, waiting for it until `deadline`. kEnd: none will come
  // again. One thread at a time.
  virtual Outcome Next(Instant deadline) = 0;

  // Runs what the event stands for that Next has just taken, on the same
  // thread.
  virtual void Handle() = 0;

  // Makes Next return soon, at least once. From any thread, also before Next.
  virtual void Wake() = 0;

  // Whether more events are likely to be at hand. On the thread that polls.
  virtual bool IsInBurst() const { return false; }

  // The thread that polled leaves the queue: nothing may wait for another Next.
  virtual void Leave() {}
};

// Lets threads do something one at a time, in the order in which they came: a
// busy one keeps nobody out, as it would with a mutex.
//
// Thread-safety: thread-safe.
class FairLock {
 public:
  void Take() ABSL_LOCKS_EXCLUDED(mu_);
  void Pass() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::atomic<uint32_t> next_{0};     // the turn of who comes next
  std::atomic<uint32_t> current_{0};  // whose it is
  std::atomic<int> waiting_{0};
  Mutex mu_;
  CondVar passed_;
};

// A turn, from here to the end of the scope.
class FairLockHolder {
 public:
  explicit FairLockHolder(FairLock& turns) : turns_(turns) { turns_.Take(); }
  ~FairLockHolder() { turns_.Pass(); }
  FairLockHolder(const FairLockHolder&) = delete;
  FairLockHolder& operator=(const FairLockHolder&) = delete;

 private:
  FairLock& turns_;
};

class Poller;

// What the pollers of a Loop share: what they run runs one at a time, and only
// the one that had the last event looks without sleeping.
struct PollerGroup {
  FairLock running;
  std::atomic<const Poller*> busy{nullptr};  // null: none had one
};

// sched_yield.
void YieldCore();

struct PollerOptions {
  // How long it looks after an event before it sleeps. 0: it yields once.
  absl::Duration spin = absl::Microseconds(50);
  // The same where events come regularly (spin_time.h); at least `spin`.
  absl::Duration longest_spin = absl::ZeroDuration();
  // For so long after a wait the queue stays free for the next.
  absl::Duration retake_pause = absl::Microseconds(500);
  // Somebody computes who took the core for longer than this at a yield.
  absl::Duration long_yield = absl::Microseconds(200);
  PollerGroup* group = nullptr;  // must outlive it; null: it is alone
  std::function<void()> yield = &YieldCore;  // tests replace it
};

// Thread-safety: thread-safe.
class Poller final : public Driver {
 public:
  // `queue` must outlive it.
  Poller(EventQueue& queue, PollerOptions options);
  ~Poller() override;  // REQUIRES: Join() was called, or Start() was not

  // Starts the background thread. kResourceExhausted: there can be none, or no
  // timer for it.
  absl::Status Start();
  // In place of Start(), where that has failed: polls here until the queue has
  // ended.
  void PollToTheEnd() { RunBackground(); }
  // Returns when the queue has ended and the background thread with it.
  void Join();

  bool Wait(Waitable& what, Instant deadline) override;

  void Post(absl::AnyInvocable<void() &&> fn) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t RunAt(Instant when, absl::AnyInvocable<void() &&> fn)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool CancelTimer(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  // Times that the background thread woke to see whether nobody waits.
  uint32_t background_turns() const { return background_turns_.load(); }

  // Around a wait at another poller of the group.
  void BeginWaitElsewhere() ABSL_LOCKS_EXCLUDED(mu_);
  void EndWaitElsewhere() { waits_elsewhere_.fetch_sub(1); }

 private:
  class Waiter;
  using Task = absl::AnyInvocable<void() &&>;

  bool Enter(Waiter& waiter, Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  bool Take(Waiter& waiter) ABSL_LOCKS_EXCLUDED(mu_);
  bool TakeLocked(Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave(Waiter& waiter, Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  void Withdraw(Waiter& waiter, Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  void HandOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAlarm(Instant when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Handles events until done() or `deadline`; `now` and what it returns are
  // the time before and after. REQUIRES: `waiter` holds the queue.
  template <typename Done>
  Instant Poll(Waiter& waiter, Instant now, Instant deadline, const Done& done);
  Instant Yield();
  void SleepForSomeEvents();
  void TakeRestOfBurst();
  bool RunDue() ABSL_LOCKS_EXCLUDED(mu_);
  Instant next_timer() const {
    return Instant::FromNanoseconds(next_timer_ns_.load());
  }
  void WakeHolder();
  void Handle();
  bool MaySpin() const;

  void RunBackground();
  bool IsQueueLeft() ABSL_LOCKS_EXCLUDED(mu_);
  bool UsersComeSoon() ABSL_LOCKS_EXCLUDED(mu_);

  EventQueue& queue_;
  PollerGroup alone_;
  const PollerOptions options_;
  PollerGroup& group_;
  std::unique_ptr<Waiter> background_;
  Alarm alarm_;  // for the background thread; users who leave postpone it
  std::thread thread_;

  Mutex mu_;
  Waiter* holder_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<Waiter*> parked_ ABSL_GUARDED_BY(mu_);
  std::deque<Task> posted_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<Instant, int64_t>, Task> timers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int64_t, Instant> timer_times_ ABSL_GUARDED_BY(mu_);
  int64_t next_timer_id_ ABSL_GUARDED_BY(mu_) = 1;
  // When a user last left the queue or its wait.
  Instant left_ ABSL_GUARDED_BY(mu_);
  // The last wait began soon after the one before.
  bool calling_again_ ABSL_GUARDED_BY(mu_) = false;
  // When the first of a series of such waits began.
  Instant series_began_ ABSL_GUARDED_BY(mu_);
  Instant alarm_at_ ABSL_GUARDED_BY(mu_) = Instant::Infinite();

  // Whoever holds the queue uses these.
  SpinTime spin_;
  bool core_wanted_ = false;  // somebody else ran when it last yielded
  int without_yields_ = 0;    // events to come before it yields again
  int asleep_for_ = 1;        // the last value given to without_yields_
  int calm_events_ = 0;       // since then, of those before which it may yield
  int empty_rests_ = 0;  // successive looks for more of a burst without result
  int waits_without_rest_ = 0;  // to end before the next such look

  // The holder is about to sleep in the queue, or does.
  std::atomic<bool> asleep_{false};
  std::atomic<int> to_run_{0};  // posted functions not seen yet
  // When the first timer is due; earlier, if that one was cancelled.
  std::atomic<int64_t> next_timer_ns_{Instant::Infinite().nanoseconds()};
  std::atomic<int> parked_count_{0};
  std::atomic<int> waits_elsewhere_{0};
  std::atomic<uint32_t> background_turns_{0};
  std::atomic<bool> ended_{false};
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_POLLER_H_
