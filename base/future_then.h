// Future::Then: how a future is derived from another. Included by future.h.

#ifndef WEFT_BASE_FUTURE_THEN_H_
#define WEFT_BASE_FUTURE_THEN_H_

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"

namespace weft {
namespace internal {

// What this folder's own code may do with a Future.
struct FutureAccess {
  template <typename T>
  static Future<T> Make(std::shared_ptr<FutureState<T>> state) {
    return Future<T>(std::move(state));
  }
  template <typename T>
  static Future<T> MakeReady(Result<T> result, Driver& driver) {
    return Future<T>(std::move(result), driver);
  }
  template <typename T>
  static std::shared_ptr<FutureState<T>> State(const Future<T>& future) {
    return future.pending() ? future.state_ptr() : nullptr;
  }
  // Null unless the result can be read now without overtaking a callback.
  template <typename T>
  static const Result<T>* Settled(const Future<T>& future) {
    if (!future.pending()) return &future.ready();
    return future.state().IsSettled() ? &future.state().Get() : nullptr;
  }
  template <typename T>
  static Result<T>* Settled(Future<T>& future) {
    if (!future.pending()) return &future.ready();
    return future.state().IsSettled() ? &future.state().Get() : nullptr;
  }
};

// REQUIRES: result.ok().
template <typename T, typename Fn>
decltype(auto) InvokeWith(Fn& fn, Result<T>& result) {
  if constexpr (std::is_void_v<T>) {
    return fn();
  } else if constexpr (IsCopyable<T>::value) {
    return fn(static_cast<const T&>(*result));
  } else {
    return fn(std::move(*result));
  }
}

// `state` ends as `inner` does, and a cancellation goes on to `inner`.
template <typename U>
Undrained Follow(const std::shared_ptr<FutureState<U>>& state,
                 Future<U> inner) {
  auto source = FutureAccess::State(inner);
  if (source == nullptr) {
    return FutureState<U>::SetUndrained(
        state, std::move(*FutureAccess::Settled(inner)));
  }
  if (!source->IsReady()) state->PassCancelTo(source);
  return source->OnResult([state](Result<U>& result) {
    return FutureState<U>::SetUndrained(state, CopyOrTake<U>(result));
  });
}

// The state of what Then returns, and at once the continuation of its source:
// one allocation for both.
template <typename T, typename Fn>
class ThenState final : public FutureState<ThenValue<T, Fn>>,
                        public Continuation {
 public:
  using U = ThenValue<T, Fn>;
  using Returned = typename ThenCall<T, Fn>::type;

  // `executor` null: `fn` runs where the source becomes ready.
  static Future<U> Start(std::shared_ptr<FutureState<T>> source,
                         Executor* executor, Fn fn) {
    // An InlineExecutor does the same, but needs stack for each link of a
    // chain.
    if (dynamic_cast<InlineExecutor*>(executor) != nullptr) executor = nullptr;
    auto state =
        std::make_shared<ThenState>(source->driver(), executor, std::move(fn));
    state->self_ = state;
    state->source_ = source;
    state->PassCancelTo(source);
    if (Undrained ready = source->AppendOrRun(state.get())) ready->Drain();
    return FutureAccess::Make<U>(std::move(state));
  }

  ThenState(Driver& driver, Executor* executor, Fn fn)
      : FutureState<U>(driver), executor_(executor), fn_(std::move(fn)) {}

  Undrained Run(void* result) override {
    auto self = std::move(self_);
    if (executor_ == nullptr ||
        !StatusOf(*static_cast<Result<T>*>(result)).ok()) {
      return Finish(self);
    }
    executor_->Schedule(Step{std::move(self)});
    return nullptr;
  }

 private:
  // The task for the executor; one that is dropped unrun ends the future.
  struct Step {
    explicit Step(std::shared_ptr<ThenState> state) : state(std::move(state)) {}
    Step(Step&&) noexcept = default;
    ~Step() {
      if (state == nullptr) return;
      state->Set(absl::CancelledError("Then: the executor dropped its task"));
    }
    void operator()() {
      auto taken = std::move(state);
      if (Undrained ready = taken->Finish(taken)) ready->Drain();
    }
    std::shared_ptr<ThenState> state;
  };

  Undrained Finish(const std::shared_ptr<ThenState>& self) {
    auto source = std::move(source_);
    Result<T>& input = source->Get();
    if (this->IsReady()) {  // cancelled meanwhile
      fn_.reset();
      return nullptr;
    }
    if (!StatusOf(input).ok()) {
      fn_.reset();
      return FutureState<U>::SetUndrained(self, StatusOf(input));
    }
    auto output =
        CatchToStatus([&]() -> Returned { return InvokeWith<T>(*fn_, input); });
    fn_.reset();
    if constexpr (std::is_same_v<Returned, Future<U>>) {
      if (output.ok()) return Follow<U>(self, *std::move(output));
      return FutureState<U>::SetUndrained(self, output.status());
    } else {
      return FutureState<U>::SetUndrained(self, std::move(output));
    }
  }

  Executor* const executor_;
  std::optional<Fn> fn_;
  std::shared_ptr<FutureState<T>> source_;
  std::shared_ptr<ThenState> self_;  // while the source's list holds it
};

// Then on a result that is there: no state is made.
template <typename T, typename Fn>
Future<ThenValue<T, Fn>> ThenNow(Result<T>& input, Driver& driver, Fn& fn) {
  using U = ThenValue<T, Fn>;
  using Returned = typename ThenCall<T, Fn>::type;
  if (!StatusOf(input).ok()) {
    return FutureAccess::MakeReady<U>(StatusOf(input), driver);
  }
  auto output =
      CatchToStatus([&]() -> Returned { return InvokeWith<T>(fn, input); });
  if constexpr (std::is_same_v<Returned, Future<U>>) {
    if (output.ok()) return *std::move(output);
    return FutureAccess::MakeReady<U>(output.status(), driver);
  } else {
    return FutureAccess::MakeReady<U>(std::move(output), driver);
  }
}

// A state that holds `result` already.
template <typename T>
std::shared_ptr<FutureState<T>> ReadyState(Result<T> result, Driver& driver) {
  auto state = std::make_shared<FutureState<T>>(driver);
  state->Set(std::move(result));
  return state;
}

}  // namespace internal

template <typename T>
template <typename Fn>
Future<internal::ThenValue<T, Fn>> Future<T>::Then(Fn fn) const& {
  static_assert(internal::IsCopyable<T>::value,
                "move-only: use std::move(future).Then()");
  if (auto* result = internal::FutureAccess::Settled(*this)) {
    // Only read, since T can be copied.
    return internal::ThenNow<T>(const_cast<Result<T>&>(*result), driver(), fn);
  }
  return internal::ThenState<T, Fn>::Start(state_ptr(), nullptr, std::move(fn));
}

template <typename T>
template <typename Fn>
Future<internal::ThenValue<T, Fn>> Future<T>::Then(Fn fn) && {
  if (auto* result = internal::FutureAccess::Settled(*this)) {
    return internal::ThenNow<T>(*result, driver(), fn);
  }
  return internal::ThenState<T, Fn>::Start(state_ptr(), nullptr, std::move(fn));
}

template <typename T>
template <typename Fn>
Future<internal::ThenValue<T, Fn>> Future<T>::Then(Executor& executor,
                                                   Fn fn) const& {
  static_assert(internal::IsCopyable<T>::value,
                "move-only: use std::move(future).Then()");
  auto source =
      pending() ? state_ptr() : internal::ReadyState<T>(ready(), driver());
  return internal::ThenState<T, Fn>::Start(std::move(source), &executor,
                                           std::move(fn));
}

template <typename T>
template <typename Fn>
Future<internal::ThenValue<T, Fn>> Future<T>::Then(Executor& executor,
                                                   Fn fn) && {
  auto source = pending()
                    ? state_ptr()
                    : internal::ReadyState<T>(std::move(ready()), driver());
  return internal::ThenState<T, Fn>::Start(std::move(source), &executor,
                                           std::move(fn));
}

template <typename T>
Future<T> MakeReady(Result<T> result, Driver& driver) {
  return internal::FutureAccess::MakeReady<T>(std::move(result), driver);
}

inline Future<void> MakeReady() { return MakeReady<void>(absl::OkStatus()); }

}  // namespace weft

#endif  // WEFT_BASE_FUTURE_THEN_H_
