// JoinScope, CancelOnDrop: futures that do not outlive the code that wants
// them.
//
//   JoinScope scope;
//   const Future<Tensor> y = rpc::CallAsync(ps0, Scale, x, 2.0);
//   scope.Add(y);
//   scope.Add(rpc::CallAsync(ps1, Push, gradient));
//   WEFT_RETURN_IF_ERROR(scope.Join(absl::Seconds(10)));
//   return *y.Wait(absl::ZeroDuration());

#ifndef WEFT_BASE_JOIN_SCOPE_H_
#define WEFT_BASE_JOIN_SCOPE_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/future.h"

namespace weft {

// Futures that have all ended when the scope has: what is left then, because
// the code returned or threw before Join, is cancelled. Only one that another
// thread is cancelling just then may end a moment later, with that thread.
//
// Thread-safety: one thread at a time.
class JoinScope {
 public:
  JoinScope() = default;
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  ~JoinScope() { CancelAll(); }

  template <typename T>
  void Add(const Future<T>& future) {
    static_assert(internal::IsCopyable<T>::value,
                  "move-only: keep the future, and add one by Then");
    if constexpr (std::is_void_v<T>) {
      ends_.push_back(future.Then([] {}));
    } else {
      ends_.push_back(future.Then([](const T&) {}));
    }
  }

  // Waits until all have succeeded. At the first error, or after `timeout`, it
  // cancels the others and returns that. The scope is empty then.
  absl::Status Join(absl::Duration timeout) {
    const absl::Status status = WaitAll(ends_, timeout);
    CancelAll();
    return status;
  }

 private:
  void CancelAll() {
    for (const Future<void>& end : std::exchange(ends_, {})) {
      end.Cancel(absl::CancelledError("its JoinScope has ended"));
    }
  }

  std::vector<Future<void>> ends_;
};

// The only handle of an operation that nobody wants once it is gone.
//
// Thread-safety: one thread at a time.
template <typename T>
class [[nodiscard]] CancelOnDrop {
 public:
  explicit CancelOnDrop(Future<T> future) : future_(std::move(future)) {}
  CancelOnDrop(CancelOnDrop&& other) noexcept
      : future_(std::move(other.future_)),
        cancels_(std::exchange(other.cancels_, false)) {}
  CancelOnDrop& operator=(CancelOnDrop&& other) noexcept {
    CancelOnDrop dropped(std::move(*this));
    future_ = std::move(other.future_);
    cancels_ = std::exchange(other.cancels_, false);
    return *this;
  }
  ~CancelOnDrop() {
    if (cancels_)
      future_.Cancel(absl::CancelledError("its handle was dropped"));
  }

  // REQUIRES of both: not moved from.
  const Future<T>& future() const { return future_; }
  // The operation goes on without this handle.
  Future<T> Release() && {
    cancels_ = false;
    return std::move(future_);
  }

 private:
  Future<T> future_;
  bool cancels_ = true;  // false: moved from
};

}  // namespace weft

#endif  // WEFT_BASE_JOIN_SCOPE_H_
