#include "weft/base/future.h"

#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"

namespace weft::internal {

absl::Status AlreadySet(const absl::Status& first) {
  return absl::AlreadyExistsError(
      absl::StrCat("the promise is kept already, with ", first.ToString()));
}

void ReportThrown() noexcept {
  const std::string text = CurrentExceptionToStatus().ToString();
  std::fprintf(stderr, "weft: a callback of a Future threw: %s\n",
               text.c_str());
}

FutureCore::~FutureCore() {  // nobody else has it
  WEFT_CHECK(first_ == nullptr) << "a future died unset with callbacks";
}

absl::Status FutureCore::AwaitReady(absl::Duration timeout) {
  if (IsReady()) return absl::OkStatus();
  if (InlineScope::IsActive()) {
    return absl::FailedPreconditionError(
        "Future::Wait: not ready, and this thread must not block (it runs an "
        "inline handler or callback); use Then or OnReady");
  }
  BlockingScope blocking;
  if (driver_->Wait(*this, driver_->clock().Now() + timeout)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "Future::Wait: not ready after ", absl::FormatDuration(timeout)));
}

bool FutureCore::Append(Continuation* continuation) {
  MutexLock lock(mu_);
  if (IsSettled()) return false;
  if (last_ == nullptr) {
    first_ = continuation;
  } else {
    last_->next_ = continuation;
  }
  last_ = continuation;
  return true;
}

void FutureCore::Drain(void* result) {
  while (true) {
    Continuation* next;
    {
      MutexLock lock(mu_);
      if (Settle()) return;
      next = first_;
      first_ = last_ = nullptr;
    }
    while (next != nullptr) {
      // Read before Run, which deletes it.
      Continuation* const after = next->next_;
      next->Run(result);
      next = after;
    }
  }
}

}  // namespace weft::internal
