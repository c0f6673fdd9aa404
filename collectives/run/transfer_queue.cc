#include "weft/collectives/run/transfer_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/reworded.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::collectives {
namespace {

// How late the queue's thread may see a deadline or its own end.
constexpr absl::Duration kLongestWait = absl::Milliseconds(50);
// How often a device is asked for an input.
constexpr absl::Duration kDevicePoll = absl::Microseconds(100);

absl::Status Prefixed(const std::string& what, const absl::Status& status) {
  return Reworded(status, absl::StrCat(what, ": ", status.message()));
}

bool CompeteForOne(const Transfer& a, const Transfer& b) {
  if (a.is_send != b.is_send || a.tag != b.tag) return false;
  return a.peer == b.peer || (!a.is_send && (a.peer < 0 || b.peer < 0));
}

}  // namespace

TransferQueue::~TransferQueue() {
  std::thread thread;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  backend_.WithdrawSends();
  std::list<Pending> ended;
  {
    MutexLock lock(mu_);
    ended.swap(pending_);
  }
  for (Pending& pending : ended) {
    pending.result = Prefixed(
        pending.what, absl::CancelledError("the group ended on this rank"));
    pending.transfer.state = nullptr;
  }
  Settle(ended);
}

void TransferQueue::Settle(std::list<Pending>& ended) {
  InlineScope callbacks;  // The next transfers need this thread.
  for (Pending& pending : ended) {
    std::optional<device::StreamScope> current;
    if (pending.caller.is_valid()) current.emplace(pending.caller);
    // A callback that still wants it keeps it too.
    pending.owner = nullptr;
    pending.promise.Set(pending.result);
  }
}

bool TransferQueue::IsBehind(const Transfer& transfer) const {
  for (const Pending& older : pending_) {
    if (&older.transfer == &transfer) return false;
    if (CompeteForOne(older.transfer, transfer)) return true;
  }
  return false;
}

absl::StatusOr<bool> TransferQueue::HasInput(Pending& pending) {
  if (pending.staged == nullptr) return true;
  const absl::StatusOr<bool> found = pending.staged->HasInputs();
  if (found.ok()) return found;
  const absl::Status status = Prefixed(pending.what, found.status());
  backend_.Abort(status);
  return status;
}

bool TransferQueue::Move(Pending& pending) {
  if (!Attempt(pending)) return false;
  // Now, not behind its Future: the backend still uses the memory of one that
  // is given up, and the other rank may still agree to it.
  pending.transfer.state = nullptr;
  return true;
}

bool TransferQueue::Attempt(Pending& pending) {
  const absl::StatusOr<bool> has_input = HasInput(pending);
  if (!has_input.ok()) {
    pending.result = has_input.status();
    return true;
  }
  if (!*has_input) {
    absl::Status health = backend_.health();
    if (health.ok() && backend_.driver().clock().Now() >= pending.deadline) {
      health = absl::DeadlineExceededError(
          "the tensor has not come from its device to the host in time");
    }
    awaits_device_ = awaits_device_ || health.ok();
    if (!health.ok()) pending.result = Prefixed(pending.what, health);
    return !health.ok();
  }
  absl::StatusOr<bool> moved = backend_.Advance(pending.transfer);
  pending.obstacle = absl::OkStatus();
  if (absl::IsResourceExhausted(moved.status()) && !pending.transfer.is_send) {
    pending.obstacle = moved.status();
    moved = false;
  }
  if (!moved.ok()) {
    pending.result = Prefixed(pending.what, moved.status());
    return true;
  }
  if (*moved) {
    pending.result = pending.transfer.peer;
    return true;
  }
  if (backend_.driver().clock().Now() < pending.deadline) return false;
  if (!pending.obstacle.ok()) {
    pending.result = Prefixed(pending.what, pending.obstacle);
    return true;
  }
  const bool has_begun = pending.transfer.moved_bytes > 0;
  pending.result = absl::DeadlineExceededError(absl::StrCat(
      pending.what, has_begun ? ": it has begun, and not ended in time"
                              : ": the other rank has not called in "
                                "time"));
  // The rest of a message that is half there can go nowhere.
  if (has_begun) backend_.Abort(pending.result.status());
  return true;
}

void TransferQueue::MoveAll(std::list<Pending>& ended) {
  // What fills the room may have come after its own turn: an obstacle counts if
  // a whole pass after the one that met it takes nothing.
  bool has_obstacles = true;
  for (int idle_passes = 0; has_obstacles && idle_passes < 2;) {
    has_obstacles = false;
    ++idle_passes;
    for (auto it = pending_.begin(); it != pending_.end();) {
      const auto next = std::next(it);
      it->met_before = !it->obstacle.ok() && idle_passes > 1;
      it->obstacle = absl::OkStatus();
      if (!IsBehind(it->transfer)) {
        if (Move(*it)) {
          if (!it->transfer.is_send) idle_passes = 0;
          ended.splice(ended.end(), pending_, it);
        } else {
          has_obstacles = has_obstacles || !it->obstacle.ok();
        }
      }
      it = next;
    }
  }
  // No receive asks for the messages that are in their way.
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (!it->obstacle.ok() && it->met_before) {
      it->result = Prefixed(it->what, it->obstacle);
      it->transfer.state = nullptr;
      ended.splice(ended.end(), pending_, it);
    }
    it = next;
  }
}

absl::Status TransferQueue::EnsureThread() {
  if (thread_.joinable()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(thread_,
                        StartThread("process group", [this] { Run(); }));
  return absl::OkStatus();
}

std::vector<Future<int>> TransferQueue::Add(std::vector<Addition> additions) {
  std::vector<Future<int>> futures;
  MutexLock lock(mu_);
  // All before the first is moved: it may wait for what another one takes.
  const size_t before = pending_.size();
  for (Addition& one : additions) {
    pending_.push_back({one.transfer, std::move(one.staged), one.caller,
                        one.deadline, std::move(one.what), std::move(one.owner),
                        Promise<int>(), -1, absl::OkStatus()});
  }
  for (auto it = std::next(pending_.begin(), before); it != pending_.end();) {
    const auto next = std::next(it);
    absl::Status started;
    if (!IsBehind(it->transfer) && Move(*it)) {
      futures.push_back(MakeReady<int>(std::move(it->result)));
      pending_.erase(it);
    } else if (started = EnsureThread(); !started.ok()) {
      futures.push_back(MakeReady<int>(Prefixed(it->what, started)));
      pending_.erase(it);
    } else {
      futures.push_back(it->promise.future());
    }
    it = next;
  }
  if (!pending_.empty()) changed_.NotifyAll();
  return futures;
}

bool TransferQueue::is_idle() const {
  MutexLock lock(mu_);
  return pending_.empty();
}

void TransferQueue::Run() {
  while (true) {
    // Before the attempts: what arrives after it is seen by the wait.
    const uint64_t seen = backend_.transfer_events();
    std::list<Pending> ended;
    absl::Duration wait = kLongestWait;
    {
      MutexLock lock(mu_);
      while (pending_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      awaits_device_ = false;
      MoveAll(ended);
      if (awaits_device_) wait = kDevicePoll;
    }
    Settle(ended);
    if (!ended.empty()) continue;
    backend_.AwaitTransfers(seen, backend_.driver().clock().Now() + wait);
  }
}

}  // namespace weft::collectives
