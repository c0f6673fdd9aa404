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

class FutureCore;

// A future that has just become ready and whose continuations must still run;
// null for none. The caller that receives it runs them, by Drain or in a Drain
// of its own.
using Undrained = std::shared_ptr<FutureCore>;

// One entry in the list of what runs when a future becomes ready.
class Continuation {
 public:
  // `result` is the Result<T>*. The continuation may delete itself. What it
  // makes ready it returns instead of draining it, so that a chain of any
  // length needs no more stack than one link.
  virtual Undrained Run(void* result) = 0;

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

  Undrained Run(void* result) override {
    Undrained next = fn_(result);
    if (in_buffer_) {
      this->~CallableContinuation();
    } else {
      delete this;
    }
    return next;
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
  // Futures that a cancellation goes on to.
  using CancelList = std::vector<std::shared_ptr<FutureCore>>;

  // The producer, where it lives as long as the state, such as a class derived
  // from it: told of a cancellation as a hook that comes first is, and not set
  // for each future.
  class CancelListener {
   public:
    // Runs before the future ends, and may end it by Set.
    virtual void OnCancelled(const absl::Status& reason) = 0;

   protected:
    ~CancelListener() = default;
  };

  explicit FutureCore(Driver& driver, CancelListener* listener = nullptr)
      : driver_(&driver), listener_(listener) {}
  virtual ~FutureCore() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  Driver& driver() const { return *driver_; }
  bool IsSettled() const { return settled_.load(std::memory_order_acquire); }

  // OK once ready; else says why the wait ended.
  absl::Status AwaitReady(absl::Duration timeout);

  // Runs what was appended, and what becomes ready by that: the continuations
  // of a future that one of them made ready run before the next one.
  // REQUIRES: ready; called once, by who made it ready.
  void Drain() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends in `reason` unless ready, then tells the producer; where the hook
  // comes first, in what that made of it.
  void Cancel(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces the hook, `void(const absl::Status&)` or one that returns the
  // CancelList to cancel next. Runs it now if the cancellation has come.
  // `comes_first`: it runs before the future ends, and may end it by Set, as
  // one does that knows more than the reason.
  template <typename Hook>
  void OnCancel(Hook hook, bool comes_first = false) ABSL_LOCKS_EXCLUDED(mu_) {
    using Returned = std::invoke_result_t<Hook&, const absl::Status&>;
    if constexpr (std::is_void_v<Returned>) {
      SetHook(
          [hook = std::move(hook)](const absl::Status& reason) mutable {
            hook(reason);
            return CancelList();
          },
          comes_first);
    } else {
      SetHook(std::move(hook), comes_first);
    }
  }

  // As a hook that comes first and cancels `source`, but without recursion.
  void PassCancelTo(std::shared_ptr<FutureCore> source)
      ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  using CancelHook = absl::AnyInvocable<CancelList(const absl::Status&) &&>;

  // The receiver of a cancellation: a source or a hook.
  struct Producer {
    bool IsThere() const { return source != nullptr || hook; }

    std::shared_ptr<FutureCore> source;  // of a derived future
    CancelHook hook;
    bool comes_first = false;
  };

  virtual void* result() = 0;  // a Result<T>*; REQUIRES: ready
  virtual absl::Status status() = 0;
  // Makes `error` the result.
  virtual void PutError(const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;

  // Appends it, or runs it here if settled.
  Undrained AppendOrRun(Continuation* continuation) ABSL_LOCKS_EXCLUDED(mu_);

  // True if nothing is left to run: from then on nothing is appended.
  bool Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (first_ != nullptr) return false;
    settled_.store(true, std::memory_order_release);
    return true;
  }

  Producer TakeProducer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::exchange(producer_, Producer());
  }
  bool HasProducer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return producer_.IsThere();
  }

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

 private:
  static constexpr size_t kBufferBytes = 64;
  struct Frame;

  void SetHook(CancelHook hook, bool comes_first) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Producer> ReplaceProducer(Producer producer)
      ABSL_LOCKS_EXCLUDED(mu_);
  // False if the future ends without the rest of a cancellation. Else what
  // comes first is in `first`, or is listener_.
  bool BeginCancel(Producer* first) ABSL_LOCKS_EXCLUDED(mu_);
  CancelList EndCancel(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);
  CancelList CancelUpToProducer(const absl::Status& reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The list of what was appended since, or null and settled.
  Continuation* TakeAppended() ABSL_LOCKS_EXCLUDED(mu_);

  Driver* const driver_;
  CancelListener* const listener_;  // null: none
  std::atomic<bool> settled_{false};
  std::atomic<bool> buffer_taken_{false};
  bool cancelling_ ABSL_GUARDED_BY(mu_) =
      false;  // its producer is notified first
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  Producer producer_ ABSL_GUARDED_BY(mu_);
  Continuation* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  Continuation* last_ ABSL_GUARDED_BY(mu_) = nullptr;
  alignas(std::max_align_t) std::byte buffer_[kBufferBytes];
};

// The caller of a method holds a shared_ptr on the state until it returns.
template <typename T>
class FutureState : public FutureCore {
 public:
  using FutureCore::AppendOrRun;
  using FutureCore::FutureCore;

  // The first result wins: returns false, and changes nothing, if there is one.
  bool Set(Result<T> result) ABSL_LOCKS_EXCLUDED(mu_) {
    if (!Put(std::move(result))) return false;
    if (!IsSettled()) Drain();
    return true;
  }

  // As Set, but leaves the continuations to who gets the Undrained.
  static Undrained SetUndrained(const std::shared_ptr<FutureState>& state,
                                Result<T> result) {
    if (!state->Put(std::move(result)) || state->IsSettled()) return nullptr;
    return state;
  }

  // `fn(Result<T>&)` runs once ready, in order of registration. It returns
  // nothing, or an Undrained; so does OnResult, of one that ran here.
  template <typename Fn>
  Undrained OnResult(Fn fn) {
    if (IsSettled()) return Call(fn, Get());
    return AppendOrRun(
        MakeContinuation([fn = std::move(fn)](void* result) mutable {
          return Call(fn, *static_cast<Result<T>*>(result));
        }));
  }

  // REQUIRES: ready. It is not written after that, so needs no lock.
  Result<T>& Get() ABSL_NO_THREAD_SAFETY_ANALYSIS { return *result_; }

 private:
  template <typename Fn>
  static Undrained Call(Fn& fn, Result<T>& result) {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn&, Result<T>&>>) {
      fn(result);
      return nullptr;
    } else {
      return fn(result);
    }
  }

  // Ready then, and settled if nobody listens. False if it was ready.
  bool Put(Result<T>&& result) ABSL_LOCKS_EXCLUDED(mu_) {
    Producer unused;  // destroyed after the lock is released
    MutexLock lock(mu_);
    if (IsReady()) return false;
    result_.emplace(std::move(result));
    if (HasProducer()) unused = TakeProducer();
    MarkReady();
    Settle();
    return true;
  }

  void* result() override { return &Get(); }
  absl::Status status() override { return StatusOf(Get()); }
  void PutError(const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) override {
    result_.emplace(error);
  }

  std::optional<Result<T>> result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal
}  // namespace weft

#endif  // WEFT_BASE_FUTURE_STATE_H_
