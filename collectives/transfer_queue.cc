#include "weft/collectives/transfer_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/reworded.h"
#include "weft/base/start_thread.h"

namespace weft::collectives {
namespace {

// How late the queue's thread may see a deadline or its own end.
constexpr absl::Duration kLongestWait = absl::Milliseconds(50);

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
  MutexLock lock(mu_);
  for (Pending& pending : pending_) {
    pending.promise.Set(Prefixed(
        pending.what, absl::CancelledError("the group ended on this rank")));
  }
}

bool TransferQueue::IsBehind(const Transfer& transfer) const {
  for (const Pending& older : pending_) {
    if (&older.transfer == &transfer) return false;
    if (CompeteForOne(older.transfer, transfer)) return true;
  }
  return false;
}

bool TransferQueue::Move(Pending& pending) {
  absl::StatusOr<bool> moved = backend_.Advance(pending.transfer);
  if (!moved.ok()) {
    pending.result = Prefixed(pending.what, moved.status());
    return true;
  }
  if (*moved) {
    pending.result = pending.transfer.peer;
    return true;
  }
  if (backend_.driver().clock().Now() < pending.deadline) return false;
  pending.result = absl::DeadlineExceededError(
      absl::StrCat(pending.what, ": the other rank has not called in time"));
  // The rest of a message that is half there can go nowhere.
  if (pending.transfer.moved_bytes > 0) backend_.Abort(pending.result.status());
  return true;
}

Future<int> TransferQueue::Add(Transfer transfer, Instant deadline,
                               std::string what) {
  MutexLock lock(mu_);
  pending_.push_back({transfer, deadline, std::move(what), Promise<int>(), -1});
  Pending& added = pending_.back();
  if (!IsBehind(added.transfer) && Move(added)) {
    absl::StatusOr<int> result = std::move(added.result);
    pending_.pop_back();
    return MakeReady<int>(std::move(result));
  }
  Future<int> future = added.promise.future();
  if (!thread_.joinable()) {
    absl::StatusOr<std::thread> thread =
        StartThread("process group", [this] { Run(); });
    if (!thread.ok()) {
      pending_.pop_back();
      return MakeReady<int>(thread.status());
    }
    thread_ = *std::move(thread);
  }
  changed_.NotifyAll();
  return future;
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
    {
      MutexLock lock(mu_);
      while (pending_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      for (auto it = pending_.begin(); it != pending_.end();) {
        auto next = std::next(it);
        if (!IsBehind(it->transfer) && Move(*it)) {
          ended.splice(ended.end(), pending_, it);
        }
        it = next;
      }
    }
    {
      InlineScope callbacks;  // The next transfers need this thread.
      for (Pending& pending : ended) pending.promise.Set(pending.result);
    }
    if (!ended.empty()) continue;
    backend_.AwaitTransfers(seen,
                            backend_.driver().clock().Now() + kLongestWait);
  }
}

}  // namespace weft::collectives
