#include "weft/collectives/run/operation_queue.h"

#include <optional>
#include <utility>

#include "weft/base/catch_to_status.h"
#include "weft/base/driver.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::collectives {

OperationQueue::~OperationQueue() {
  std::thread thread;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void OperationQueue::AwaitTurn(uint64_t number) {
  while (turn_ != number) {
    ++waiting_;
    changed_.Wait(mu_);
    --waiting_;
  }
}

// Wakes nobody where nobody waits: that is the way of each lone operation.
void OperationQueue::EndTurn(bool of_refusal) {
  MutexLock lock(mu_);
  ++turn_;
  refusals_ -= of_refusal;
  if (waiting_ > 0) changed_.NotifyAll();
}

absl::Status OperationQueue::RunHere(
    absl::FunctionRef<absl::Status(uint64_t)> body) {
  BlockingScope blocking;
  uint64_t number;
  {
    MutexLock lock(mu_);
    number = next_++;
    AwaitTurn(number);
  }
  absl::Status status = CatchToStatus([&] { return body(number); });
  EndTurn();
  return status;
}

bool OperationQueue::TryRunHere(
    absl::FunctionRef<absl::Status(uint64_t)> body) {
  uint64_t number;
  {
    MutexLock lock(mu_);
    if (next_ != turn_) return false;
    number = next_++;
  }
  CatchToStatus([&] { return body(number); }).IgnoreError();
  EndTurn();
  return true;
}

absl::Status OperationQueue::EnsureThread() {
  if (thread_.joinable()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(
      thread_, StartThread("process group", [this] { RunScheduled(); }));
  return absl::OkStatus();
}

Future<void> OperationQueue::Schedule(Body body, device::Stream stream) {
  Promise<void> promise;
  Future<void> future = promise.future();
  MutexLock lock(mu_);
  if (absl::Status started = EnsureThread(); !started.ok()) {
    return MakeReady<void>(std::move(started));
  }
  scheduled_.push_back(
      {next_++, std::move(body), std::move(promise), false, stream});
  if (waiting_ > 0) changed_.NotifyAll();
  return future;
}

absl::StatusOr<uint64_t> OperationQueue::ScheduleRefusal(Body body) {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(EnsureThread());
  scheduled_.push_back({next_, std::move(body), Promise<void>(), true});
  ++refusals_;
  if (waiting_ > 0) changed_.NotifyAll();
  return next_++;
}

bool OperationQueue::is_idle() const {
  MutexLock lock(mu_);
  return next_ - turn_ == refusals_;
}

void OperationQueue::RunScheduled() {
  while (true) {
    std::optional<Scheduled> next;
    {
      MutexLock lock(mu_);
      while (scheduled_.empty() && !stopping_) {
        ++waiting_;
        changed_.Wait(mu_);
        --waiting_;
      }
      if (scheduled_.empty()) return;
      next.emplace(std::move(scheduled_.front()));
      scheduled_.pop_front();
      AwaitTurn(next->number);
    }
    absl::Status status =
        CatchToStatus([&] { return std::move(next->body)(next->number); });
    EndTurn(next->is_refusal);
    // A callback that waits would wait for this thread, if what it waits for
    // is behind it here.
    InlineScope callbacks;
    std::optional<device::StreamScope> current;
    if (next->stream.is_valid()) current.emplace(next->stream);
    next->promise.Set(std::move(status));
  }
}

}  // namespace weft::collectives
