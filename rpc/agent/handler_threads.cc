#include "weft/rpc/agent/handler_threads.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::rpc {
namespace {

// How often the pool is looked at while calls wait for its threads.
constexpr absl::Duration kPoolCheck = absl::Milliseconds(250);
// How long none of its threads may go on before the log says so.
constexpr absl::Duration kWarnAfter = absl::Seconds(1);
// How long a call waits then, at most.
constexpr absl::Duration kMostPatience = absl::Seconds(10);
// How long a thread of its own pool looks for the next call before it sleeps:
// as long as a Loop does (net::LoopOptions::spin).
constexpr absl::Duration kSpin = absl::Microseconds(50);

// Why a call whose turn has come need not run any more. Its timer may be late.
absl::Status TooLate(const ServedCall& call, const Clock& clock) {
  if (call.cancel().IsCancelled()) return call.cancel().status();
  if (clock.Now() < call.deadline()) return absl::OkStatus();
  return absl::DeadlineExceededError("the caller's deadline has passed");
}

}  // namespace

absl::Status HandlerThreads::Start() {
  executor_ = options_.executor;
  pool_ = options_.pool;
  if (executor_ != nullptr) return absl::OkStatus();
  ThreadPool::Options pool;
  pool.name = "rpc";
  pool.threads = options_.threads;
  pool.max_threads = options_.max_threads;
  pool.max_threads_option = "AgentOptions::max_threads";
  pool.spin = kSpin;
  WEFT_ASSIGN_OR_RETURN(own_pool_, ThreadPool::Create(pool));
  executor_ = own_pool_.get();
  pool_ = own_pool_.get();
  return absl::OkStatus();
}

void HandlerThreads::Run(const Function& function,
                         std::shared_ptr<ServedCall> call) {
  call->AwaitThread();
  const Clock& clock = options_.transport->clock();
  executor_->Schedule([&function, &clock, call = std::move(call)]() mutable {
    if (!call->BeginOnThread()) return;  // it has ended: no thread came in time
    absl::Status late = TooLate(*call, clock);
    if (!late.ok()) return call->Finish(std::move(late));
    // Let go of here: an executor may keep the task.
    const auto running = std::move(call);
    function.serve(*running);
  });
  if (pool_ != nullptr) WatchPool();
}

ThreadPool::Stats HandlerThreads::stats() const {
  if (pool_ == nullptr || has_stopped_.load()) return ThreadPool::Stats();
  return pool_->stats();
}

void HandlerThreads::CallEnded() {
  // A Stop() that counted this call waits by now; a later one counts none.
  if (running_.fetch_sub(1) > 1 || !has_stopped_.load()) return;
  MutexLock lock(mu_);
  none_runs_.NotifyAll();
}

void HandlerThreads::Stop() {
  has_stopped_ = true;
  MutexLock lock(mu_);
  // Bounded by the functions themselves: they have been cancelled, and the
  // calls that they wait for have ended.
  while (running_.load() > 0) {
    none_runs_.WaitUntil(
        mu_, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  }
}

void HandlerThreads::AddOpen(std::vector<std::string>* open) {
  const int64_t running = running_.load();
  if (!open->empty() || running == 0) return;
  open->push_back(absl::StrCat(running, " running functions"));
}

void HandlerThreads::WatchPool() {
  if (watches_pool_.load() || watches_pool_.exchange(true)) return;
  options_.transport->RunAt(options_.transport->clock().Now() + kPoolCheck,
                            [weak = weak_from_this()] {
                              if (auto self = weak.lock()) self->CheckPool();
                            });
}

void HandlerThreads::CheckPool() {
  if (has_stopped_.load()) return;
  const ThreadPool::Stats stats = pool_->stats();
  const Instant now = options_.transport->clock().Now();
  const bool is_stuck = stats.queued > 0 && stats.blocked == stats.threads &&
                        stats.started == pool_started_;
  pool_started_ = stats.started;
  if (!is_stuck) {
    stuck_since_ = Instant::Infinite();
    has_warned_ = false;
  } else if (stuck_since_.is_infinite()) {
    stuck_since_ = now;
  } else {
    EndStarvedCalls(stats, now);
  }
  watches_pool_ = false;
  // Tasks scheduled before have not armed the timer.
  if (pool_->stats().queued > 0) WatchPool();
}

void HandlerThreads::EndStarvedCalls(const ThreadPool::Stats& stats,
                                     Instant now) {
  const ThreadPool::Options& pool = pool_->options();
  const std::string why = absl::StrCat(
      "no thread was free: all ", stats.threads, " threads of the pool '",
      pool.name, "' of ", options_.worker,
      " are blocked in functions that wait, and ", stats.queued,
      " calls wait for one; allow more than ", pool.max_threads, " by ",
      pool.max_threads_option,
      ", or let fewer functions wait for calls (one that returns a Future "
      "holds no thread)");
  if (!has_warned_ && now - stuck_since_ >= kWarnAfter) {
    has_warned_ = true;
    WEFT_LOG(*options_.logger, Warning, why);
  }
  options_.for_each_waiting([&](ServedCall& call) {
    const absl::Duration patience =
        std::min(kMostPatience, (call.deadline() - call.began()) / 2);
    // Before its deadline, which would say nothing of threads.
    const Instant end =
        std::min(std::max(call.began(), stuck_since_) + patience,
                 call.deadline() - 2 * kPoolCheck);
    if (now < end || !call.DropUnrun()) return;
    call.Finish(
        absl::ResourceExhaustedError(absl::StrCat(call.function(), ": ", why)));
  });
}

}  // namespace weft::rpc
