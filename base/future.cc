#include "weft/base/future.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
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

Undrained FutureCore::AppendOrRun(Continuation* continuation) {
  {
    MutexLock lock(mu_);
    if (!IsSettled()) {
      (last_ == nullptr ? first_ : last_->next_) = continuation;
      last_ = continuation;
      return nullptr;
    }
  }
  return continuation->Run(result());
}

Continuation* FutureCore::TakeAppended() {
  MutexLock lock(mu_);
  if (Settle()) return nullptr;
  last_ = nullptr;
  return std::exchange(first_, nullptr);
}

// A future of which some continuations have run.
struct FutureCore::Frame {
  FutureCore* core;
  Undrained held;  // `core`, unless whoever called Drain holds it
  Continuation* next = nullptr;
};

// The stack of what recursion would do: links of a chain are frames of it.
void FutureCore::Drain() {
  absl::InlinedVector<Frame, 4> frames;
  frames.push_back({this, nullptr});
  while (!frames.empty()) {
    Frame& top = frames.back();
    if (top.next == nullptr) top.next = top.core->TakeAppended();
    if (top.next == nullptr) {
      frames.pop_back();
      continue;
    }
    // Its next_ is read before Run, which deletes it.
    Continuation* const run = std::exchange(top.next, top.next->next_);
    if (Undrained made = run->Run(top.core->result())) {
      FutureCore* const core = made.get();
      frames.push_back({core, std::move(made)});
    }
  }
}

// -------------------------------------------------------------------
// cancelling

void FutureCore::SetHook(CancelHook hook, bool comes_first) {
  std::optional<Producer> late =
      ReplaceProducer({nullptr, std::move(hook), comes_first});
  if (!late.has_value()) return;
  for (const auto& source : std::move(late->hook)(status())) {
    source->Cancel(status());
  }
}

void FutureCore::PassCancelTo(std::shared_ptr<FutureCore> source) {
  std::optional<Producer> late =
      ReplaceProducer({std::move(source), nullptr, /*comes_first=*/true});
  if (late.has_value()) late->source->Cancel(status());
}

// Returns it if it must be notified at once.
std::optional<FutureCore::Producer> FutureCore::ReplaceProducer(
    Producer producer) {
  Producer replaced;  // destroyed after the lock is released
  MutexLock lock(mu_);
  if (!IsReady()) {
    replaced = std::exchange(producer_, std::move(producer));
    return std::nullopt;
  }
  if (!cancelled_) {
    replaced = std::move(producer);
    return std::nullopt;
  }
  return producer;
}

bool FutureCore::BeginCancel(Producer* first) {
  MutexLock lock(mu_);
  if (IsReady() || cancelling_) return false;
  if (producer_.comes_first && producer_.IsThere()) {
    *first = TakeProducer();
    cancelling_ = true;
  } else if (listener_ != nullptr) {
    cancelling_ = true;
  }
  return true;
}

FutureCore::CancelList FutureCore::EndCancel(const absl::Status& reason) {
  Producer producer;
  {
    MutexLock lock(mu_);
    if (IsReady()) return {};
    PutError(reason);
    cancelled_ = true;
    producer = TakeProducer();
    MarkReady();
  }
  Drain();
  if (producer.source != nullptr) return {std::move(producer.source)};
  return producer.hook ? std::move(producer.hook)(reason) : CancelList();
}

// From this future up the chain of those it is derived from, to one whose
// producer does not come first; then down again, ending each. Returns what is
// to be cancelled after that.
FutureCore::CancelList FutureCore::CancelUpToProducer(
    const absl::Status& reason) {
  CancelList later;
  const auto append = [&later](CancelList list) {
    for (auto& core : list) later.push_back(std::move(core));
  };
  CancelList above;  // of this, the nearest first
  Producer first;
  FutureCore* highest = this;
  bool ends = highest->BeginCancel(&first);
  while (ends && first.source != nullptr) {
    above.push_back(std::exchange(first, Producer()).source);
    highest = above.back().get();
    ends = highest->BeginCancel(&first);
  }
  if (ends && first.hook) {
    append(std::move(first.hook)(reason));
  } else if (ends && highest->listener_ != nullptr) {
    highest->listener_->OnCancelled(reason);
  }
  // One that was ready, or is being cancelled, is left alone.
  if (!ends && above.empty()) return later;
  if (!ends) above.pop_back();
  for (; !above.empty(); above.pop_back()) {
    append(above.back()->EndCancel(reason));
  }
  append(EndCancel(reason));
  return later;
}

void FutureCore::Cancel(const absl::Status& reason) {
  CancelList open = CancelUpToProducer(reason);
  std::reverse(open.begin(), open.end());
  while (!open.empty()) {
    const std::shared_ptr<FutureCore> next = std::move(open.back());
    open.pop_back();
    CancelList more = next->CancelUpToProducer(reason);
    open.insert(open.end(), std::make_move_iterator(more.rbegin()),
                std::make_move_iterator(more.rend()));
  }
}

}  // namespace weft::internal
