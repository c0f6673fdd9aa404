#include "weft/base/driver.h"

#include <algorithm>

namespace weft {
namespace {

// Set and restored by the scopes only.
thread_local BlockingListener* listener_of_thread = nullptr;
thread_local int blocking_depth = 0;
thread_local int inline_depth = 0;

class ThreadParkingDriver final : public Driver {
 public:
  bool Wait(Waitable& what, Instant deadline) override {
    Parker parker;
    what.AddWaiter(&parker);
    while (!what.IsReady() && parker.ParkUntil(deadline)) {
    }
    what.RemoveWaiter(&parker);
    return what.IsReady();
  }
};

}  // namespace

void Waitable::AddWaiter(Parker* parker) {
  MutexLock lock(mu_);
  if (IsReady()) {
    parker->Unpark();
  } else {
    waiters_.push_back(parker);
  }
}

void Waitable::RemoveWaiter(Parker* parker) {
  MutexLock lock(mu_);
  auto found = std::find(waiters_.begin(), waiters_.end(), parker);
  if (found != waiters_.end()) waiters_.erase(found);
}

// Unparks under the lock: a waiter may die as soon as RemoveWaiter returns.
void Waitable::MarkReady() {
  ready_.store(true, std::memory_order_release);
  for (Parker* parker : waiters_) parker->Unpark();
  waiters_.clear();
}

Driver& ParkingDriver() {
  static ThreadParkingDriver driver;
  return driver;
}

BlockingListener::Scope::Scope(BlockingListener& listener)
    : previous_(listener_of_thread) {
  listener_of_thread = &listener;
}

BlockingListener::Scope::~Scope() { listener_of_thread = previous_; }

BlockingScope::BlockingScope() {
  if (blocking_depth++ == 0 && listener_of_thread != nullptr) {
    listener_of_thread->BeginBlocking();
  }
}

BlockingScope::~BlockingScope() {
  if (--blocking_depth == 0 && listener_of_thread != nullptr) {
    listener_of_thread->EndBlocking();
  }
}

InlineScope::InlineScope() { ++inline_depth; }

InlineScope::~InlineScope() { --inline_depth; }

bool InlineScope::IsActive() { return inline_depth > 0; }

}  // namespace weft
