#include "weft/net/loop/poller.h"

#include <sched.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/base/check.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

// A yield longer than this means that somebody else ran: the core is wanted.
// One may have been an interruption, of this thread or of the whole virtual
// machine. If the next takes long too then somebody else does want the core:
// whether nothing came between, or an event did, as where two ends take turns
// on one core.
constexpr absl::Duration kForeignYield = absl::Microseconds(5);

// A yield takes about as long as half a look, and what comes meanwhile waits.
constexpr int kLooksPerYield = 4;

// A thread that ran for long_yield during a yield computes. An event does not
// take the core from it while this thread waits in the run queue, but it does
// when this thread sleeps. So this thread sleeps for the next events instead of
// yielding: for few after the first long yield, which may have been a timer of
// the process or an interruption, and for twice as many each time that a yield
// soon afterwards is long again.
constexpr int kFirstEventsAsleep = 4;
constexpr int kMostEventsAsleep = 64;
constexpr int kCalmEvents = 64;

// The background thread leaves the queue to users who come and go for as long
// again as they have done so, but no longer than this: events that come while
// the queue is free wait as long.
constexpr absl::Duration kLongRest = absl::Milliseconds(4);

constexpr int kMostOfABurst = 16;
// After so many looks for more of a burst in a row that found nothing, only
// every 33rd wait looks.
constexpr int kMostEmptyRests = 5;

// In the past of every clock.
constexpr Instant kNow = Instant::FromNanoseconds(0);

}  // namespace

// A thread that waits. It sleeps in Park() or, holding the queue, in
// EventQueue::Next.
class Poller::Waiter final : public Parker {
 public:
  explicit Waiter(Poller& poller) : poller_(poller) {}

  // What it waits for is ready.
  void Unpark() override {
    notified_.store(true);
    if (polling_.load()) {
      poller_.WakeHolder();
    } else {
      Parker::Unpark();
    }
  }

  // It was given the queue.
  void UnparkToPoll() { Parker::Unpark(); }

  bool notified() const { return notified_.load(); }

  // Between the two, Unpark() wakes the queue.
  void BeginPolling() { polling_.store(true); }
  void EndPolling() { polling_.store(false); }

 private:
  Poller& poller_;
  std::atomic<bool> notified_{false};
  std::atomic<bool> polling_{false};
};

void YieldCore() { sched_yield(); }

void FairLock::Take() {
  const uint32_t mine = next_.fetch_add(1);
  if (current_.load() == mine) return;
  waiting_.fetch_add(1);
  {
    MutexLock lock(mu_);
    while (current_.load() != mine) passed_.Wait(mu_);
  }
  waiting_.fetch_sub(1);
}

// A waiter counts itself in waiting_ before it reads current_.
void FairLock::Pass() {
  current_.fetch_add(1);
  if (waiting_.load() == 0) return;
  MutexLock lock(mu_);
  passed_.NotifyAll();
}

Poller::Poller(EventQueue& queue, PollerOptions options)
    : queue_(queue),
      options_(options),
      group_(options.group == nullptr ? alone_ : *options.group),
      background_(std::make_unique<Waiter>(*this)),
      spin_(options_.spin, options_.longest_spin) {}

Poller::~Poller() {
  WEFT_CHECK(!thread_.joinable()) << "the poller was not joined";
}

absl::Status Poller::Start() {
  WEFT_RETURN_IF_ERROR(alarm_.status());
  WEFT_ASSIGN_OR_RETURN(thread_,
                        StartThread("the poller", [this] { RunBackground(); }));
  return absl::OkStatus();
}

void Poller::Join() {
  if (thread_.joinable()) thread_.join();
  std::deque<Task> unrun;
  std::map<std::pair<Instant, int64_t>, Task> untimed;
  MutexLock lock(mu_);
  unrun.swap(posted_);
  untimed.swap(timers_);
  timer_times_.clear();
}

bool Poller::Wait(Waitable& what, Instant deadline) {
  if (what.IsReady()) return true;
  WEFT_CHECK(!InlineScope::IsActive())
      << "a wait on the thread that polls would wait for itself";
  Waiter waiter(*this);
  what.AddWaiter(&waiter);
  Instant now = SteadyClock().Now();
  bool holds = Enter(waiter, now);
  bool listed = !holds;  // among the parked, or was
  while (holds || (!what.IsReady() && now < deadline)) {
    if (holds) {
      now = Poll(waiter, now, deadline, [&] { return what.IsReady(); });
      Leave(waiter, now);
    } else {
      waiter.ParkUntil(deadline);
      now = SteadyClock().Now();
    }
    if (what.IsReady() || now >= deadline) break;
    holds = Take(waiter);
    listed |= !holds;
  }
  what.RemoveWaiter(&waiter);
  if (listed) Withdraw(waiter, now);
  return what.IsReady();
}

// Take() by a thread that begins to wait.
bool Poller::Enter(Waiter& waiter, Instant now) {
  MutexLock lock(mu_);
  calling_again_ = now - left_ < options_.retake_pause;
  if (!calling_again_) series_began_ = now;
  return TakeLocked(waiter);
}

// True if `waiter` holds the queue now; else it is among the parked, and is
// unparked when it does.
bool Poller::Take(Waiter& waiter) {
  MutexLock lock(mu_);
  return TakeLocked(waiter);
}

bool Poller::TakeLocked(Waiter& waiter) {
  if (holder_ == &waiter) return true;
  if (ended_.load()) return false;
  if (holder_ == nullptr) {
    auto found = std::find(parked_.begin(), parked_.end(), &waiter);
    if (found != parked_.end()) parked_.erase(found);
    parked_count_.store(static_cast<int>(parked_.size()));
    holder_ = &waiter;
    return true;
  }
  if (&waiter != background_.get() &&
      std::find(parked_.begin(), parked_.end(), &waiter) == parked_.end()) {
    parked_.push_back(&waiter);
    parked_count_.store(static_cast<int>(parked_.size()));
  }
  return false;
}

void Poller::BeginWaitElsewhere() {
  if (waits_elsewhere_.fetch_add(1) > 0) return;
  MutexLock lock(mu_);
  if (holder_ == nullptr) SetAlarm(kNow);
}

void Poller::Leave(Waiter& waiter, Instant now) {
  MutexLock lock(mu_);
  WEFT_CHECK(holder_ == &waiter);
  left_ = now;
  HandOn();
}

// `waiter` is about to die: nobody may name it any more.
void Poller::Withdraw(Waiter& waiter, Instant now) {
  MutexLock lock(mu_);
  left_ = now;
  auto found = std::find(parked_.begin(), parked_.end(), &waiter);
  if (found != parked_.end()) {
    parked_.erase(found);
    parked_count_.store(static_cast<int>(parked_.size()));
  }
  if (holder_ == &waiter) HandOn();
}

// The one who parked last is the one whose core sleeps least deeply. It is
// unparked under the lock, since it may die as soon as it can withdraw.
void Poller::HandOn() {
  holder_ = nullptr;
  if (ended_.load()) {
    SetAlarm(kNow);
    return;
  }
  // One whose wait is over leaves by itself: to hand it the queue would only
  // delay the others.
  for (auto it = parked_.rbegin(); it != parked_.rend(); ++it) {
    if ((*it)->notified()) continue;
    holder_ = *it;
    parked_.erase(std::next(it).base());
    parked_count_.store(static_cast<int>(parked_.size()));
    holder_->UnparkToPoll();
    return;
  }
  if (waits_elsewhere_.load() > 0) {
    SetAlarm(kNow);
  } else if (alarm_at_.is_infinite() ||
             alarm_at_ < left_ + options_.retake_pause) {
    const absl::Duration series =
        calling_again_ ? left_ - series_began_ : absl::ZeroDuration();
    SetAlarm(left_ +
             std::max(std::min(series, kLongRest), options_.retake_pause));
  }
}

void Poller::SetAlarm(Instant when) {
  alarm_at_ = when;
  alarm_.Set(when);
}

template <typename Done>
Instant Poller::Poll(Waiter& waiter, Instant now, Instant deadline,
                     const Done& done) {
  waiter.BeginPolling();
  Instant last = now;  // when the last event came
  Instant spin_end = now + spin_.Get();
  bool yielded = false;  // since the last event
  bool crowded = false;  // two long yields in a row: others want this core
  int looks = 0;  // that found nothing; the clock is read at each yield only
  while (!done()) {
    if (to_run_.load() > 0 || now >= next_timer()) {
      const bool ran = RunDue();
      now = SteadyClock().Now();
      if (ran) {
        last = now;
        spin_end = now + spin_.Get();
      }
      continue;
    }
    if (now >= deadline) break;
    const bool may_look = !crowded && MaySpin() && without_yields_ == 0;
    // gRPC leaves part of its work to threads of its own, which need this core
    // too. If the core was wanted last time the peer may run on it: it goes
    // first. Nobody sleeps who has not yielded: what comes meanwhile costs
    // nobody a wake-up.
    if (may_look && (core_wanted_ ? !yielded || looks > 0
                                  : looks == kLooksPerYield ||
                                        (now >= spin_end && !yielded))) {
      const bool was_wanted = core_wanted_;
      now = Yield();
      crowded = was_wanted && core_wanted_;
      yielded = true;
      looks = 0;
    }
    const bool sleep = crowded || now >= spin_end || !may_look;
    Instant until = kNow;
    if (sleep) {
      asleep_.store(true);
      // A thread that made one of these true, or set an earlier timer, before
      // asleep_ was set did not wake us. Notified implies done.
      if (waiter.notified() || to_run_.load() > 0) {
        asleep_.store(false);
        continue;
      }
      until = std::min(deadline, next_timer());
    }
    const EventQueue::Outcome outcome = queue_.Next(until);
    // Before the event is handled: what it makes ready need not wake us.
    if (sleep) asleep_.store(false);
    if (outcome == EventQueue::Outcome::kEnd) {
      ended_.store(true);
      break;
    }
    if (outcome == EventQueue::Outcome::kEvent) {
      Handle();
      now = SteadyClock().Now();
      if (sleep) spin_.OnWoken(now - last);
      last = now;
      spin_end = now + spin_.Get();
      crowded = yielded = false;
      looks = 0;
      if (without_yields_ > 0) {
        --without_yields_;
      } else if (calm_events_ < kCalmEvents) {
        ++calm_events_;
      }
    } else if (sleep) {
      now = SteadyClock().Now();
    } else {
      ++looks;
    }
  }
  TakeRestOfBurst();
  queue_.Leave();
  waiter.EndPolling();
  return now;
}

// A wait that ends in the middle of a burst takes the rest along: its thread
// may then answer all of them with one message instead of one each. Two ends
// that share a core seem to be in a burst with each message, since none finds
// the queue empty; so a look that found no more postpones the next such look.
void Poller::TakeRestOfBurst() {
  if (!queue_.IsInBurst()) return;
  if (waits_without_rest_ > 0) {
    --waits_without_rest_;
    return;
  }
  int taken = 0;
  while (taken < kMostOfABurst && queue_.IsInBurst() &&
         queue_.Next(kNow) == EventQueue::Outcome::kEvent) {
    Handle();
    ++taken;
  }
  empty_rests_ = taken > 0 ? 0 : std::min(empty_rests_ + 1, kMostEmptyRests);
  waits_without_rest_ = taken > 0 ? 0 : 1 << empty_rests_;
}

// Lets others have the core, and finds out whether somebody wanted it. Our own
// background thread has looked in if its count changed.
Instant Poller::Yield() {
  const Instant before = SteadyClock().Now();
  const uint32_t turns = background_turns_.load();
  options_.yield();
  const Instant after = SteadyClock().Now();
  core_wanted_ =
      after - before > kForeignYield && background_turns_.load() == turns;
  if (after - before > options_.long_yield) SleepForSomeEvents();
  return after;
}

void Poller::SleepForSomeEvents() {
  asleep_for_ =
      calm_events_ < kCalmEvents
          ? std::clamp(2 * asleep_for_, kFirstEventsAsleep, kMostEventsAsleep)
          : kFirstEventsAsleep;
  without_yields_ = asleep_for_;
  calm_events_ = 0;
}

// Runs what was posted and the timers that are due; true if there was any.
bool Poller::RunDue() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mu_);
    to_run_.store(0);
    for (Task& task : posted_) tasks.push_back(std::move(task));
    posted_.clear();
    const Instant now = SteadyClock().Now();
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
      timer_times_.erase(timers_.begin()->first.second);
      tasks.push_back(std::move(timers_.begin()->second));
      timers_.erase(timers_.begin());
    }
    const Instant next =
        timers_.empty() ? Instant::Infinite() : timers_.begin()->first.first;
    next_timer_ns_.store(next.nanoseconds());
  }
  if (tasks.empty()) return false;
  InlineScope scope;
  FairLockHolder turn(group_.running);
  for (Task& task : tasks) std::move(task)();
  tasks.clear();
  return true;
}

void Poller::Handle() {
  if (group_.busy.load(std::memory_order_relaxed) != this) {
    group_.busy.store(this);
  }
  FairLockHolder turn(group_.running);
  queue_.Handle();
}

// Two that looked on one core would take it from each other.
bool Poller::MaySpin() const {
  const Poller* const busy = group_.busy.load(std::memory_order_relaxed);
  return busy == this || busy == nullptr;
}

void Poller::WakeHolder() {
  if (asleep_.exchange(false)) queue_.Wake();
}

void Poller::Post(Task fn) {
  {
    MutexLock lock(mu_);
    if (ended_.load()) return;
    posted_.push_back(std::move(fn));
    to_run_.fetch_add(1);
  }
  WakeHolder();
}

int64_t Poller::RunAt(Instant when, Task fn) {
  int64_t id;
  bool first;
  {
    MutexLock lock(mu_);
    id = next_timer_id_++;
    if (ended_.load()) return id;
    first = timers_.empty() || when < timers_.begin()->first.first;
    timers_.emplace(std::make_pair(when, id), std::move(fn));
    timer_times_.emplace(id, when);
    if (first) next_timer_ns_.store(when.nanoseconds());
  }
  if (first) WakeHolder();
  return id;
}

bool Poller::CancelTimer(int64_t id) {
  Task cancelled;  // destroyed without the lock
  MutexLock lock(mu_);
  auto found = timer_times_.find(id);
  if (found == timer_times_.end()) return false;
  auto timer = timers_.find({found->second, id});
  cancelled = std::move(timer->second);
  timers_.erase(timer);
  timer_times_.erase(found);
  return true;
}

// Users that wait in quick succession are better off polling themselves: leave
// the queue to them when one of them has what it waited for.
bool Poller::UsersComeSoon() {
  if (parked_count_.load() == 0 || waits_elsewhere_.load() > 0) return false;
  MutexLock lock(mu_);
  if (!calling_again_) return false;
  return std::any_of(parked_.begin(), parked_.end(),
                     [](const Waiter* w) { return w->notified(); });
}

// Whether the background thread may take the queue now. If not, the alarm is
// set for when it may, or left to the user who leaves the queue next.
bool Poller::IsQueueLeft() {
  MutexLock lock(mu_);
  if (ended_.load()) return true;
  if (holder_ != nullptr) {
    SetAlarm(Instant::Infinite());
    return false;
  }
  const Instant free_at = left_ + options_.retake_pause;
  if (waits_elsewhere_.load() > 0 || SteadyClock().Now() >= free_at) {
    return true;
  }
  SetAlarm(free_at);
  return false;
}

void Poller::RunBackground() {
  while (!ended_.load()) {
    if (!IsQueueLeft()) {
      alarm_.Wait();
      background_turns_.fetch_add(1);
    } else if (Take(*background_)) {
      const Instant now =
          Poll(*background_, SteadyClock().Now(), Instant::Infinite(),
               [&] { return UsersComeSoon(); });
      Leave(*background_, now);
    }
  }
}

}  // namespace weft::net
