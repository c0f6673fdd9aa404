// FutureState: what a Promise and its Futures share. Included by future.h only.

#ifndef WEFT_BASE_FUTURE_STATE_H_
#define WEFT_BASE_FUTURE_STATE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"

namespace weft {

// What a Future<T> holds when ready: Status for void, else StatusOr<T>.
template <typename T>
using Result =
    std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>>;

namespace internal {

// Whether T can be copied, also where the standard trait says yes too early:
// std::vector<std::unique_ptr<X>> claims to be copyable.
template <typename T>
struct IsCopyable : std::is_copy_constructible<T> {};
template <>
struct IsCopyable<void> : std::true_type {};
template <typename T>
struct IsCopyable<std::vector<T>> : IsCopyable<T> {};
template <typename T>
struct IsCopyable<absl::StatusOr<T>> : IsCopyable<T> {};

inline const absl::Status& StatusOf(const absl::Status& result) {
  return result;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// A consumer may move a result out only if it is the only one, which a T that
// cannot be copied makes sure of.
template <typename T>
Result<T> CopyOrTake(Result<T>& result) {
  if constexpr (IsCopyable<T>::value) {
    return result;
  } else {
    return std::move(result);
  }
}

// Why a second result was not taken.
absl::Status AlreadySet(const absl::Status& first);
// Tells people what a callback threw. REQUIRES: it is being handled.
void ReportThrown() noexcept;

template <typename Callback, typename R>
void RunCallback(Callback& callback, const R& result) {
  try {
    callback(result);
  } catch (...) {
    ReportThrown();
  }
}

// One entry in the list of what runs when a future becomes ready.
class Continuation {
 public:
  // `result` is the Result<T>*. The continuation may delete itself.
  virtual void Run(void* result) = 0;

 protected:
  ~Continuation() = default;

 private:
  friend class FutureCore;
  Continuation* next_ = nullptr;
};

// A continuation around a callable, in the state's buffer or on the heap.
template <typename Fn>
class CallableContinuation final : public Continuation {
 public:
  CallableContinuation(Fn fn, bool in_buffer)
      : fn_(std::move(fn)), in_buffer_(in_buffer) {}
  ~CallableContinuation() = default;

  void Run(void* result) override {
    fn_(result);
    if (in_buffer_) {
      this->~CallableContinuation();
    } else {
      delete this;
    }
  }

 private:
  Fn fn_;
  const bool in_buffer_;
};

// The part of a FutureState that does not depend on T.
//
// Continuations run in the order of registration, also those registered while
// others run: the thread that made the future ready drains the list, and only
// then (settled) do later ones run where they are registered.
class FutureCore : public Waitable {
 public:
  using CancelHook = absl::AnyInvocable<void(const absl::Status&) &&>;

  explicit FutureCore(Driver& driver) : driver_(&driver) {}
  ~FutureCore() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  Driver& driver() const { return *driver_; }
  bool IsSettled() const { return settled_.load(std::memory_order_acquire); }

  // OK once ready; else says why the wait ended.
  absl::Status AwaitReady(absl::Duration timeout);

 protected:
  // Appends it, or returns false if settled: then the caller runs it.
  bool Append(Continuation* continuation) ABSL_LOCKS_EXCLUDED(mu_);

  // True if nothing is left to run: from then on nothing is appended.
  bool Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (first_ != nullptr) return false;
    settled_.store(true, std::memory_order_release);
    return true;
  }
  // Runs what was appended. REQUIRES: called once, by who made it ready.
  void Drain(void* result) ABSL_LOCKS_EXCLUDED(mu_);

  template <typename Fn>
  Continuation* MakeContinuation(Fn fn) {
    using Node = CallableContinuation<Fn>;
    if constexpr (sizeof(Node) <= kBufferBytes &&
                  alignof(Node) <= alignof(std::max_align_t)) {
      if (!buffer_taken_.exchange(true, std::memory_order_relaxed)) {
        return new (buffer_) Node(std::move(fn), /*in_buffer=*/true);
      }
    }
    return new Node(std::move(fn), /*in_buffer=*/false);
  }

  CancelHook hook_ ABSL_GUARDED_BY(mu_);
  bool hook_comes_first_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mu_) = false;  // that hook runs
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;

 private:
  static constexpr size_t kBufferBytes = 64;

  Driver* const driver_;
  std::atomic<bool> settled_{false};
  std::atomic<bool> buffer_taken_{false};
  Continuation* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  Continuation* last_ ABSL_GUARDED_BY(mu_) = nullptr;
  alignas(std::max_align_t) std::byte buffer_[kBufferBytes];
};

// Whoever calls a method holds a shared_ptr on the state until it returns.
template <typename T>
class FutureState : public FutureCore {
 public:
  using FutureCore::FutureCore;

  // The first result wins: returns false, and changes nothing, if there is one.
  bool Set(Result<T> result) ABSL_LOCKS_EXCLUDED(mu_) {
    CancelHook unused;  // destroyed after the lock is released
    {
      MutexLock lock(mu_);
      if (IsReady()) return false;
      result_.emplace(std::move(result));
      unused = std::move(hook_);
      hook_ = nullptr;
      MarkReady();
      if (Settle()) return true;
    }
    Drain(&Get());
    return true;
  }

  // Ends in `reason` unless ready, then tells the producer; where the hook
  // comes first, in what that made of it.
  void Cancel(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_) {
    if (!TellFirst(reason)) return;
    CancelHook hook;
    {
      MutexLock lock(mu_);
      if (IsReady()) return;
      result_.emplace(reason);
      cancelled_ = true;
      hook = std::move(hook_);
      hook_ = nullptr;
      MarkReady();
    }
    Drain(&Get());
    if (hook) std::move(hook)(reason);
  }

  // Replaces the hook. Runs it now if the cancellation has come already.
  // `comes_first`: it runs before the future ends, and may end it by Set, as
  // one does that knows more than the reason.
  void OnCancel(CancelHook hook, bool comes_first = false)
      ABSL_LOCKS_EXCLUDED(mu_) {
    CancelHook replaced;
    {
      MutexLock lock(mu_);
      if (!IsReady()) {
        replaced = std::move(hook_);
        hook_ = std::move(hook);
        hook_comes_first_ = comes_first;
        return;
      }
      if (!cancelled_) return;
    }
    std::move(hook)(StatusOf(Get()));
  }

  // `fn(Result<T>&)` runs once ready, in order of registration.
  template <typename Fn>
  void OnResult(Fn fn) {
    if (IsSettled()) return fn(Get());
    AppendOrRun(MakeContinuation([fn = std::move(fn)](void* result) mutable {
      fn(*static_cast<Result<T>*>(result));
    }));
  }

  void AppendOrRun(Continuation* continuation) {
    if (!Append(continuation)) continuation->Run(&Get());
  }

  // REQUIRES: ready. It is not written after that, so needs no lock.
  Result<T>& Get() ABSL_NO_THREAD_SAFETY_ANALYSIS { return *result_; }

 private:
  // False if the future ends without the rest of Cancel.
  bool TellFirst(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_) {
    CancelHook hook;
    {
      MutexLock lock(mu_);
      if (IsReady() || cancelling_) return false;
      if (!hook_comes_first_ || !hook_) return true;
      hook = std::move(hook_);
      hook_ = nullptr;
      cancelling_ = true;
    }
    std::move(hook)(reason);
    return true;
  }

  std::optional<Result<T>> result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal
}  // namespace weft

#endif  // WEFT_BASE_FUTURE_STATE_H_
