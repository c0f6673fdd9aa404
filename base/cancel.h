// CancelSource and CancelToken: one side says stop, with a reason; many look.

#ifndef WEFT_BASE_CANCEL_H_
#define WEFT_BASE_CANCEL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace weft {

namespace internal {
class CancelState;
}  // namespace internal

// A token by which an operation learns that it must stop. Cheap to copy. A
// default one is never cancelled.
//
// Thread-safety: thread-safe.
class CancelToken {
 public:
  using Callback = absl::AnyInvocable<void(const absl::Status&) &&>;

  // Keeps a callback registered. Its destructor takes the callback back, and
  // waits for it if it runs on another thread: after that it does not run.
  class [[nodiscard]] Registration {
   public:
    Registration() = default;
    Registration(Registration&& other) noexcept;
    Registration& operator=(Registration&& other) noexcept;
    ~Registration() { Reset(); }
    void Reset();

   private:
    friend class CancelToken;
    Registration(std::shared_ptr<internal::CancelState> state, int64_t id)
        : state_(std::move(state)), id_(id) {}
    std::shared_ptr<internal::CancelState> state_;
    int64_t id_ = 0;
  };

  CancelToken() = default;

  // One load: cheap enough for an inner loop.
  bool IsCancelled() const;

  // The reason, or OK while not cancelled.
  absl::Status status() const;

  // Runs `callback(reason)` once: on the thread that cancels, or here if that
  // has happened. No lock is held meanwhile.
  Registration OnCancel(Callback callback) const;

 private:
  friend class CancelSource;
  explicit CancelToken(std::shared_ptr<internal::CancelState> state)
      : state_(std::move(state)) {}

  std::shared_ptr<internal::CancelState> state_;
};

// What says stop. Destroying it cancels nothing.
//
// Thread-safety: thread-safe.
class CancelSource {
 public:
  CancelSource();

  CancelToken token() const { return CancelToken(state_); }

  // The first reason stays; returns whether it was this one.
  // REQUIRES: !reason.ok().
  bool Cancel(absl::Status reason = absl::CancelledError("cancelled"));

 private:
  std::shared_ptr<internal::CancelState> state_;
};

}  // namespace weft

#endif  // WEFT_BASE_CANCEL_H_
