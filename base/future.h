// Future<T> and Promise<T>: the two ends of a value that arrives later.
//
// Every asynchronous call in Weft returns a Future. Its producer keeps the
// Promise and sets it once, to a value or to an error:
//
//   auto [promise, future] = MakePromise<int>();
//   pool.Schedule([p = std::move(promise)]() mutable { p.Set(Compute()); });
//   WEFT_ASSIGN_OR_RETURN(int n, future.Wait(absl::Seconds(5)));
//
// A Promise that is destroyed unset sets kCancelled, so a lost producer cannot
// hang its waiters. Both ends share one state; either may outlive the other.
//
// A Future whose result is known at once (MakeReady) holds it, and allocates
// nothing; a pending one is one allocation, and so is each Then upon it.
//
// A Future of a type that can be copied can be copied, and each copy sees the
// same result. A Future of a move-only type has one consumer: Then, WhenAll or
// std::move(future).Wait() takes the value out.
//
// A chain of Then, a loop whose functions return Futures, and a nest of WhenAll
// may have any length: ending, dropping and cancelling one takes no more stack
// than one link does. A Promise that a callback sets runs what waits for it in
// that callback, so a chain made of such callbacks takes stack for each.
//
// Thread-safety: Future is thread-safe. Promise is not: one owner at a time.

#ifndef WEFT_BASE_FUTURE_H_
#define WEFT_BASE_FUTURE_H_

#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/driver.h"
#include "weft/base/executor.h"
#include "weft/base/future_state.h"

namespace weft {

template <typename T>
class Future;
template <typename T>
class Promise;

namespace internal {
struct FutureAccess;

// T and what Then makes of a callable's return type.
template <typename R>
struct ThenResult {
  using type = R;
};
template <>
struct ThenResult<absl::Status> {
  using type = void;
};
template <typename U>
struct ThenResult<absl::StatusOr<U>> {
  using type = U;
};
template <typename U>
struct ThenResult<Future<U>> {
  using type = U;
};

// The return type of Fn, called with the value of a Future<T>: `const T&`, or
// `T&&` where T is move-only.
template <typename T, typename Fn>
struct ThenCall {
  using Argument = std::conditional_t<IsCopyable<T>::value, const T&, T&&>;
  using type = std::invoke_result_t<Fn&, Argument>;
};
template <typename Fn>
struct ThenCall<void, Fn> {
  using type = std::invoke_result_t<Fn&>;
};

template <typename T, typename Fn>
using ThenValue =
    typename ThenResult<typename ThenCall<T, std::decay_t<Fn>>::type>::type;

}  // namespace internal

// A result that is known already, read without allocation or lock. Futures
// derived from it have `driver` too.
template <typename T>
Future<T> MakeReady(Result<T> result, Driver& driver = ParkingDriver());
inline Future<void> MakeReady();

template <typename T>
class [[nodiscard]] Future {
 public:
  using value_type = T;

  bool IsReady() const { return !pending() || state().IsReady(); }

  // The result, or null while there is none. Lives as long as this Future.
  const Result<T>* Peek() const {
    if (!pending()) return &ready();
    return state().IsReady() ? &state().Get() : nullptr;
  }

  // Blocks until ready, in the way of its Driver. kDeadlineExceeded if
  // `timeout` passes first (the operation itself goes on); kFailedPrecondition
  // at once if not ready in an InlineScope. Never call it on a thread that must
  // fulfil it, nor in a callback of the same future.
  Result<T> Wait(absl::Duration timeout) const& {
    static_assert(internal::IsCopyable<T>::value,
                  "move-only: use std::move(future).Wait()");
    if (!pending()) return ready();
    const absl::Status waited = state().AwaitReady(timeout);
    if (!waited.ok()) return waited;
    return state().Get();
  }
  Result<T> Wait(absl::Duration timeout) && {
    if (!pending()) return std::move(ready());
    const absl::Status waited = state().AwaitReady(timeout);
    if (!waited.ok()) return waited;
    return internal::CopyOrTake<T>(state().Get());
  }

  // Runs `callback(const Result<T>&)` once: on the thread that makes it ready,
  // or right here if it is. Callbacks of one future run in the order of
  // registration, without a lock. They must not block; an exception of one is
  // written to standard error and dropped. One that runs right here must not
  // destroy this Future, which may hold the result.
  template <typename Callback>
  void OnReady(Callback callback) const {
    if (!pending()) return internal::RunCallback(callback, ready());
    // Nothing that it returns needs a Drain: the callback sets what it sets.
    (void)state_ptr()->OnResult(
        [callback = std::move(callback)](const Result<T>& result) mutable {
          internal::RunCallback(callback, result);
        });
  }

  // The Future of `fn(value)`, which may return a U, StatusOr<U>, Status or
  // Future<U>, or throw. An error here skips `fn` and passes through. `fn` runs
  // as a callback does, or as a task of `executor`, which must outlive it.
  template <typename Fn>
  Future<internal::ThenValue<T, Fn>> Then(Fn fn) const&;
  template <typename Fn>
  Future<internal::ThenValue<T, Fn>> Then(Fn fn) &&;
  template <typename Fn>
  Future<internal::ThenValue<T, Fn>> Then(Executor& executor, Fn fn) const&;
  template <typename Fn>
  Future<internal::ThenValue<T, Fn>> Then(Executor& executor, Fn fn) &&;

  // Unless it is ready: ends it with `reason`, or with the producer's version
  // of that (a call adds how far it had come), and notifies the producer. On a
  // future derived by Then it cancels the first of the chain: the operation is
  // cancelled for all its users. If another thread ends or cancels it at the
  // same time, it may be ready a moment after this returns. REQUIRES:
  // !reason.ok().
  void Cancel(absl::Status reason = absl::CancelledError("cancelled")) const {
    WEFT_CHECK(!reason.ok());
    if (pending()) state_ptr()->Cancel(reason);
  }

  Driver& driver() const { return *driver_; }

 private:
  friend class Promise<T>;
  friend struct internal::FutureAccess;
  using State = internal::FutureState<T>;

  explicit Future(std::shared_ptr<State> state)
      : driver_(&state->driver()), rep_(std::move(state)) {}
  Future(Result<T> result, Driver& driver)
      : driver_(&driver), rep_(std::move(result)) {}

  bool pending() const { return rep_.index() == 0; }
  // A copy, since a callback may destroy this Future.
  std::shared_ptr<State> state_ptr() const {
    WEFT_CHECK(std::get<0>(rep_) != nullptr) << "future was moved from";
    return std::get<0>(rep_);
  }
  State& state() const {
    WEFT_CHECK(std::get<0>(rep_) != nullptr) << "future was moved from";
    return *std::get<0>(rep_);
  }
  const Result<T>& ready() const { return std::get<1>(rep_); }
  Result<T>& ready() { return std::get<1>(rep_); }

  Driver* driver_;
  // The shared state, or the result where it was known at once.
  std::variant<std::shared_ptr<State>, Result<T>> rep_;
};

template <typename T>
class Promise {
 public:
  explicit Promise(Driver& driver = ParkingDriver())
      : state_(std::make_shared<internal::FutureState<T>>(driver)) {}
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    Promise dropped(std::move(*this));
    state_ = std::move(other.state_);
    return *this;
  }
  ~Promise() {
    if (state_ != nullptr && !state_->IsReady()) {
      state_->Set(absl::CancelledError(
          "promise dropped: its producer ended without a result"));
    }
  }

  // The first call wins; returns whether it was this one. A Cancel counts.
  // REQUIRES: not moved from.
  bool Set(Result<T> result) {
    WEFT_CHECK(state_ != nullptr) << "promise was moved from";
    auto state = state_;  // a callback may destroy *this
    return state->Set(std::move(result));
  }

  // As Set, where a second result is a mistake: it returns kAlreadyExists, and
  // the message has the first result's status.
  absl::Status SetOnce(Result<T> result) {
    if (Set(std::move(result))) return absl::OkStatus();
    return internal::AlreadySet(internal::StatusOf(state_->Get()));
  }

  // `hook(const absl::Status& reason)` runs once if the future is cancelled,
  // at once if it is; never after Set. A second hook replaces the first.
  template <typename Hook>
  void OnCancel(Hook hook) {
    WEFT_CHECK(state_ != nullptr) << "promise was moved from";
    auto state = state_;
    state->OnCancel(std::move(hook));
  }

  // Whether the future is ready already: a Set would have no effect.
  bool IsDone() const { return state_->IsReady(); }

  // REQUIRES: for a move-only T, called once.
  Future<T> future() const { return Future<T>(state_); }

 private:
  std::shared_ptr<internal::FutureState<T>> state_;
};

template <typename T>
std::pair<Promise<T>, Future<T>> MakePromise(Driver& driver = ParkingDriver()) {
  Promise<T> promise(driver);
  Future<T> future = promise.future();
  return {std::move(promise), std::move(future)};
}

// Ready when all are, with their results in order; never an error itself.
// Cancelling it cancels those still pending.
template <typename T>
Future<std::vector<Result<T>>> WhenAll(std::vector<Future<T>> futures);

// Ready with all values in order, or with the first error as soon as it comes;
// the other operations go on. For void it is a Future<void>.
template <typename T>
Future<std::conditional_t<
    std::is_void_v<T>, void,
    std::vector<std::conditional_t<std::is_void_v<T>, int, T>>>>
WhenAllOk(std::vector<Future<T>> futures);

// WhenAllOk and Wait: all values in order, or the first error as soon as it
// comes. kDeadlineExceeded if `timeout` passes first; all go on in any case.
template <typename T>
auto WaitAll(std::vector<Future<T>> futures, absl::Duration timeout) {
  return WhenAllOk(std::move(futures)).Wait(timeout);
}

}  // namespace weft

#include "weft/base/future_then.h"      // IWYU pragma: export
#include "weft/base/future_when_all.h"  // IWYU pragma: export

#endif  // WEFT_BASE_FUTURE_H_
