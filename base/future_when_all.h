// WhenAll, WhenAllOk: one future of many. Included by future.h.

#ifndef WEFT_BASE_FUTURE_WHEN_ALL_H_
#define WEFT_BASE_FUTURE_WHEN_ALL_H_

#include <atomic>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/base/future.h"
#include "weft/base/future_then.h"

namespace weft {
namespace internal {

// The driver of the first future that is still pending, else of the first.
template <typename T>
Driver& DriverOf(const std::vector<Future<T>>& futures) {
  for (const Future<T>& future : futures) {
    if (!future.IsReady()) return future.driver();
  }
  return futures.empty() ? ParkingDriver() : futures.front().driver();
}

// Results of many futures as they come in, by index.
template <typename T>
class Gathered {
 public:
  explicit Gathered(size_t size)
      : results_(size), missing_(static_cast<int64_t>(size)) {}

  // Each index once; different ones from different threads. Returns true to
  // the call that put in the last, which alone may Take.
  bool Put(size_t index, Result<T> result) {
    results_[index].emplace(std::move(result));
    return missing_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  std::vector<Result<T>> Take() {
    std::vector<Result<T>> all;
    all.reserve(results_.size());
    for (auto& result : results_) all.push_back(*std::move(result));
    return all;
  }

 private:
  std::vector<std::optional<Result<T>>> results_;
  std::atomic<int64_t> missing_;
};

// The states of those that have one; for cancelling them.
template <typename T>
FutureCore::CancelList PendingStates(const std::vector<Future<T>>& futures) {
  FutureCore::CancelList states;
  for (const Future<T>& future : futures) {
    if (!future.IsReady()) states.push_back(FutureAccess::State(future));
  }
  return states;
}

// `consume(Result<T>&)`, which returns an Undrained, now or once ready.
template <typename T, typename Consume>
void Consumed(Future<T>& future, Consume consume) {
  const auto state = FutureAccess::State(future);
  const Undrained ready = state == nullptr
                              ? consume(*FutureAccess::Settled(future))
                              : state->OnResult(std::move(consume));
  if (ready != nullptr) ready->Drain();
}

template <typename T>
struct WhenAllState final : public FutureState<std::vector<Result<T>>> {
  WhenAllState(Driver& driver, size_t size)
      : FutureState<std::vector<Result<T>>>(driver), gathered(size) {}
  Gathered<T> gathered;
};

template <typename T>
using AllOk = std::conditional_t<
    std::is_void_v<T>, void,
    std::vector<std::conditional_t<std::is_void_v<T>, int, T>>>;

// REQUIRES: all are OK.
template <typename T>
Result<AllOk<T>> ValuesOf(std::vector<Result<T>> results) {
  if constexpr (std::is_void_v<T>) {
    return absl::OkStatus();
  } else {
    std::vector<T> values;
    values.reserve(results.size());
    for (Result<T>& result : results) values.push_back(*std::move(result));
    return values;
  }
}

template <typename T>
struct WhenAllOkState final : public FutureState<AllOk<T>> {
  WhenAllOkState(Driver& driver, size_t size)
      : FutureState<AllOk<T>>(driver), gathered(size) {}
  Gathered<T> gathered;
};

// A cancellation of `all` goes on to `inputs`.
inline void PassCancelOn(FutureCore& all, FutureCore::CancelList inputs) {
  all.OnCancel([inputs = std::move(inputs)](const absl::Status&) mutable {
    return std::move(inputs);
  });
}

}  // namespace internal

template <typename T>
Future<std::vector<Result<T>>> WhenAll(std::vector<Future<T>> futures) {
  using All = std::vector<Result<T>>;
  Driver& driver = internal::DriverOf(futures);
  if (futures.empty()) return MakeReady<All>(All(), driver);
  auto all =
      std::make_shared<internal::WhenAllState<T>>(driver, futures.size());
  internal::PassCancelOn(*all, internal::PendingStates(futures));
  for (size_t i = 0; i < futures.size(); ++i) {
    internal::Consumed(futures[i], [all, i](Result<T>& result) {
      if (!all->gathered.Put(i, internal::CopyOrTake<T>(result))) {
        return internal::Undrained();
      }
      return internal::WhenAllState<T>::SetUndrained(all, all->gathered.Take());
    });
  }
  return internal::FutureAccess::Make<All>(std::move(all));
}

template <typename T>
Future<internal::AllOk<T>> WhenAllOk(std::vector<Future<T>> futures) {
  using All = internal::AllOk<T>;
  Driver& driver = internal::DriverOf(futures);
  if (futures.empty()) {
    return MakeReady<All>(internal::ValuesOf<T>({}), driver);
  }
  auto all =
      std::make_shared<internal::WhenAllOkState<T>>(driver, futures.size());
  internal::PassCancelOn(*all, internal::PendingStates(futures));
  for (size_t i = 0; i < futures.size(); ++i) {
    internal::Consumed(futures[i], [all, i](Result<T>& result) {
      using State = internal::WhenAllOkState<T>;
      if (!internal::StatusOf(result).ok()) {  // its index stays missing
        return State::SetUndrained(all, internal::StatusOf(result));
      }
      if (!all->gathered.Put(i, internal::CopyOrTake<T>(result))) {
        return internal::Undrained();
      }
      return State::SetUndrained(all,
                                 internal::ValuesOf<T>(all->gathered.Take()));
    });
  }
  return internal::FutureAccess::Make<All>(std::move(all));
}

}  // namespace weft

#endif  // WEFT_BASE_FUTURE_WHEN_ALL_H_
