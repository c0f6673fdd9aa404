#include "weft/base/cancel.h"

#include <atomic>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"

namespace weft {
namespace internal {

class CancelState {
 public:
  bool IsCancelled() const {
    return cancelled_.load(std::memory_order_acquire);
  }

  // Written once, before cancelled_.
  const absl::Status& reason() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return reason_;
  }

  bool Cancel(absl::Status reason) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (IsCancelled()) return false;
      reason_ = std::move(reason);
      caller_ = std::this_thread::get_id();
      cancelled_.store(true, std::memory_order_release);
    }
    while (RunNext()) {
    }
    return true;
  }

  // Returns 0, and leaves the callback alone, if cancelled.
  int64_t Add(CancelToken::Callback& callback) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (IsCancelled()) return 0;
    callbacks_.emplace(++last_id_, std::move(callback));
    return last_id_;
  }

  void Remove(int64_t id) ABSL_LOCKS_EXCLUDED(mu_) {
    CancelToken::Callback removed;  // destroyed without the lock
    MutexLock lock(mu_);
    if (auto found = callbacks_.find(id); found != callbacks_.end()) {
      removed = std::move(found->second);
      callbacks_.erase(found);
      return;
    }
    // A callback that takes itself back must not wait for itself.
    while (running_ == id && caller_ != std::this_thread::get_id()) {
      ran_.Wait(mu_);
    }
  }

 private:
  // Runs the oldest callback that is left; returns false if there is none.
  bool RunNext() ABSL_LOCKS_EXCLUDED(mu_) {
    CancelToken::Callback callback;
    {
      MutexLock lock(mu_);
      if (callbacks_.empty()) return false;
      running_ = callbacks_.begin()->first;
      callback = std::move(callbacks_.begin()->second);
      callbacks_.erase(callbacks_.begin());
    }
    std::move(callback)(reason());
    callback = nullptr;  // what it holds ends before Remove returns
    MutexLock lock(mu_);
    running_ = 0;
    ran_.NotifyAll();
    return true;
  }

  std::atomic<bool> cancelled_{false};
  Mutex mu_;
  CondVar ran_;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, CancelToken::Callback> callbacks_ ABSL_GUARDED_BY(mu_);
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t running_ ABSL_GUARDED_BY(mu_) = 0;  // 0: none
  std::thread::id caller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal

CancelToken::Registration::Registration(Registration&& other) noexcept
    : state_(std::move(other.state_)), id_(other.id_) {}

CancelToken::Registration& CancelToken::Registration::operator=(
    Registration&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  state_ = std::move(other.state_);
  id_ = other.id_;
  return *this;
}

void CancelToken::Registration::Reset() {
  if (auto state = std::move(state_)) state->Remove(id_);
}

bool CancelToken::IsCancelled() const {
  return state_ != nullptr && state_->IsCancelled();
}

absl::Status CancelToken::status() const {
  return IsCancelled() ? state_->reason() : absl::OkStatus();
}

CancelToken::Registration CancelToken::OnCancel(Callback callback) const {
  if (state_ == nullptr) return Registration();
  const int64_t id = state_->Add(callback);
  if (id != 0) return Registration(state_, id);
  std::move(callback)(state_->reason());
  return Registration();
}

CancelSource::CancelSource()
    : state_(std::make_shared<internal::CancelState>()) {}

bool CancelSource::Cancel(absl::Status reason) {
  WEFT_CHECK(!reason.ok());
  return state_->Cancel(std::move(reason));
}

}  // namespace weft
