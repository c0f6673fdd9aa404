#include "weft/sim/baton_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/sim/sim_driver.h"

namespace weft::sim {

BatonScheduler::~BatonScheduler() {
  WEFT_CHECK(threads_.empty()) << "tasks were scheduled and no Run ran them";
}

std::vector<absl::Status> BatonScheduler::Run(
    int ranks, const std::function<absl::Status(int)>& rank_main) {
  std::vector<absl::Status> statuses(ranks, absl::UnknownError("did not run"));
  for (int rank = 0; rank < ranks; ++rank) {
    Start(absl::StrCat("rank", rank), [&, rank] {
      statuses[rank] = CatchToStatus([&] { return rank_main(rank); });
    });
  }
  Dispatch(nullptr);
  Reap();
  return statuses;
}

void BatonScheduler::Schedule(Task task) {
  Start(absl::StrCat("task", tasks_++), std::move(task));
}

void BatonScheduler::Start(std::string name, Task main) {
  threads_.push_back(std::make_unique<SimThread>(std::move(name)));
  SimThread* self = threads_.back().get();
  self->deadline = simulator_.Now();
  self->thread = std::thread([this, self, main = std::move(main)]() mutable {
    {
      MutexLock lock(mu_);
      while (baton_ != self) self->has_baton.Wait(mu_);
    }
    RunTask(std::move(main));
    self->is_done = true;
    Dispatch(self);
  });
}

bool BatonScheduler::Wait(Waitable& what, Instant deadline) {
  WEFT_CHECK(!InlineScope::IsActive()) << "an event waits; see executor()";
  SimThread* self = current_;
  if (self == nullptr) return SimDriver(simulator_).Wait(what, deadline);
  self->awaited = &what;
  self->deadline = deadline;
  Dispatch(self);
  self->awaited = nullptr;
  return what.IsReady();
}

void BatonScheduler::Yield() { SleepFor(absl::ZeroDuration()); }

void BatonScheduler::SleepFor(absl::Duration duration) {
  WEFT_CHECK(current_ != nullptr && !InlineScope::IsActive());
  current_->deadline = simulator_.Now() + duration;
  Dispatch(current_);
}

void BatonScheduler::Dispatch(SimThread* self) {
  Reap();
  SimThread* next = PickNext();
  current_ = next;
  MutexLock lock(mu_);
  baton_ = next;
  if (next == nullptr) {
    all_done_.NotifyAll();
  } else {
    next->has_baton.NotifyAll();
  }
  if (self == nullptr) {
    while (baton_ != nullptr) all_done_.Wait(mu_);
  } else if (!self->is_done) {
    while (baton_ != self) self->has_baton.Wait(mu_);
  }
}

BatonScheduler::SimThread* BatonScheduler::PickNext() {
  while (true) {
    int64_t unfinished = 0;
    std::vector<SimThread*> ready;
    for (const auto& thread : threads_) {
      if (thread->is_done) continue;
      ++unfinished;
      if (CanGoOn(*thread)) ready.push_back(thread.get());
    }
    if (unfinished == 0) return nullptr;
    const bool is_event_due = simulator_.NextAt() <= simulator_.Now();
    const int64_t choices =
        static_cast<int64_t>(ready.size()) + (is_event_due ? 1 : 0);
    if (choices == 0) {
      AdvanceClock();
      continue;
    }
    const size_t choice = simulator_.random().Below(choices);
    if (choice < ready.size()) {
      simulator_.Note(absl::StrCat("run ", ready[choice]->name));
      return ready[choice];
    }
    simulator_.Step();
  }
}

bool BatonScheduler::CanGoOn(const SimThread& thread) const {
  return thread.deadline <= simulator_.Now() ||
         (thread.awaited != nullptr && thread.awaited->IsReady());
}

void BatonScheduler::AdvanceClock() {
  Instant next = simulator_.NextAt();
  for (const auto& thread : threads_) {
    if (!thread->is_done) next = std::min(next, thread->deadline);
  }
  if (!next.is_infinite()) {
    simulator_.AdvanceTo(next);
    return;
  }
  ++deadlocks_;
  simulator_.Note("deadlock");
  for (const auto& thread : threads_) thread->deadline = simulator_.Now();
}

void BatonScheduler::Reap() {
  const auto is_left = [](const std::unique_ptr<SimThread>& thread) {
    return !thread->is_done ||
           thread->thread.get_id() == std::this_thread::get_id();
  };
  const auto done =
      std::stable_partition(threads_.begin(), threads_.end(), is_left);
  for (auto it = done; it != threads_.end(); ++it) (*it)->thread.join();
  threads_.erase(done, threads_.end());
}

}  // namespace weft::sim
