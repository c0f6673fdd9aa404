// ViewFeed: see the header.

#include "weft/rendezvous/client/view_feed.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/failpoint.h"

namespace weft::rendezvous {

// The callbacks of one OnChange. Thread-safety: thread-safe.
class ViewFeed::Listener {
 public:
  Listener(OnView on_view, OnLost on_lost, telemetry::Telemetry& telemetry)
      : on_view_(std::move(on_view)),
        on_lost_(std::move(on_lost)),
        telemetry_(telemetry) {}

  // In the order in which this worker has received the views.
  void Tell(std::shared_ptr<const View> view) {
    {
      MutexLock lock(mu_);
      if (is_cancelled_) return;
      running_on_ = std::this_thread::get_id();
    }
    Run([&] { on_view_(std::move(view)); });
  }

  void TellLost(const absl::Status& why) {
    {
      MutexLock lock(mu_);
      if (is_cancelled_ || on_lost_ == nullptr) return;
      running_on_ = std::this_thread::get_id();
    }
    Run([&] { on_lost_(why); });
  }

  // Once this has returned, the callback does not run, unless it is the
  // callback that called.
  void Cancel() {
    MutexLock lock(mu_);
    is_cancelled_ = true;
    while (running_on_ != std::thread::id() &&
           running_on_ != std::this_thread::get_id()) {
      done_.Wait(mu_);
    }
  }
  bool is_cancelled() {
    MutexLock lock(mu_);
    return is_cancelled_;
  }

 private:
  // Runs `callback` for the thread that has set running_on_.
  void Run(absl::FunctionRef<void()> callback) {
    const absl::Status told = CatchToStatus(callback);
    if (!told.ok()) {
      WEFT_LOG(telemetry_.logger(), Error, "an OnChange callback threw: ")
          << told.message();
    }
    MutexLock lock(mu_);
    running_on_ = std::thread::id();
    done_.NotifyAll();
  }

  const OnView on_view_;
  const OnLost on_lost_;
  telemetry::Telemetry& telemetry_;
  Mutex mu_;
  CondVar done_;
  std::thread::id running_on_ ABSL_GUARDED_BY(mu_);
  bool is_cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

ViewFeed::ViewFeed(Driver& driver, Executor& executor,
                   telemetry::Telemetry& telemetry, std::string job)
    : driver_(driver),
      telemetry_(telemetry),
      job_(std::move(job)),
      listener_strand_(executor) {}

std::shared_ptr<const View> ViewFeed::view() const {
  MutexLock lock(mu_);
  return view_;
}

absl::Status ViewFeed::status() const {
  MutexLock lock(mu_);
  return status_;
}

void ViewFeed::Publish(const std::shared_ptr<const View>& view) {
  std::vector<Promise<void>> news;
  std::vector<std::shared_ptr<Listener>> listeners;
  {
    MutexLock lock(mu_);
    view_ = view;
    listeners = listeners_;
    for (Waiter& waiter : waiters_) waiter.unseen.push_back(view);
    news = TakeNews();
  }
  for (Promise<void>& waiter : news) waiter.Set(absl::OkStatus());
  for (const std::shared_ptr<Listener>& listener : listeners) {
    listener_strand_.Schedule([listener, view] { listener->Tell(view); });
  }
}

void ViewFeed::End(const absl::Status& why) {
  std::vector<Promise<void>> news;
  {
    MutexLock lock(mu_);
    status_ = why;
    news = TakeNews();
  }
  for (Promise<void>& waiter : news) waiter.Set(absl::OkStatus());
}

void ViewFeed::TellLost() {
  std::vector<std::shared_ptr<Listener>> listeners;
  absl::Status why;
  {
    MutexLock lock(mu_);
    is_lost_ = true;
    listeners = listeners_;
    why = status_;
  }
  for (const std::shared_ptr<Listener>& listener : listeners) {
    listener_strand_.Schedule([listener, why] { listener->TellLost(why); });
  }
}

std::vector<Promise<void>> ViewFeed::TakeNews() {
  std::vector<Promise<void>> news;
  for (Waiter& waiter : waiters_) {
    if (!waiter.news.has_value()) continue;
    news.push_back(*std::move(waiter.news));
    waiter.news.reset();
  }
  return news;
}

absl::StatusOr<std::shared_ptr<const View>> ViewFeed::NextView(
    Waiter& waiter, Instant deadline) {
  for (;;) {
    auto [promise, news] = MakePromise<void>(driver_);
    {
      MutexLock lock(mu_);
      if (!waiter.unseen.empty()) {
        // After the deadline only the newest view is looked at.
        while (waiter.unseen.size() > 1 && now() >= deadline) {
          waiter.unseen.pop_front();
        }
        std::shared_ptr<const View> view = std::move(waiter.unseen.front());
        waiter.unseen.pop_front();
        return view;
      }
      if (!status_.ok()) return status_;
      waiter.news = std::move(promise);
    }
    const absl::Status told =
        news.Wait(std::max(deadline - now(), absl::ZeroDuration()));
    if (!news.IsReady()) return told;
  }
}

// `is_fit` runs here, on the thread that waits and under no lock.
absl::StatusOr<std::shared_ptr<const View>> ViewFeed::WaitFor(
    const std::function<bool(const View&)>& is_fit, absl::Duration timeout) {
  const Instant deadline = now() + timeout;
  std::list<Waiter>::iterator waiter;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return status_;
    waiter = waiters_.emplace(waiters_.end());
    waiter->unseen.push_back(view_);
  }
  absl::StatusOr<std::shared_ptr<const View>> view;
  absl::StatusOr<bool> fits = false;
  // Views may come faster than they are judged; the deadline holds still.
  bool is_over = false;
  while (fits.ok() && !*fits) {
    if (is_over) {
      view = absl::DeadlineExceededError("");
      break;
    }
    is_over = now() >= deadline;
    view = NextView(*waiter, deadline);
    if (!view.ok()) break;
    fits = CatchToStatus([&] { return is_fit(**view); });
  }
  MutexLock lock(mu_);
  waiters_.erase(waiter);
  if (!fits.ok()) return fits.status();
  if (!absl::IsDeadlineExceeded(view.status())) return view;
  return absl::DeadlineExceededError(
      absl::StrCat("job \"", job_, "\": ", view_->Summary(), " after ",
                   absl::FormatDuration(timeout)));
}

std::function<void()> ViewFeed::OnChange(OnView on_view, OnLost on_lost) {
  const auto listener = std::make_shared<Listener>(
      std::move(on_view), std::move(on_lost), telemetry_);
  // Scheduled there, so that later views are delivered after the present one.
  listener_strand_.Schedule([weak = weak_from_this(), listener] {
    if (const auto self = weak.lock()) self->Begin(listener);
  });
  return [weak = weak_from_this(), listener] {
    listener->Cancel();
    if (const auto self = weak.lock()) self->Remove(listener);
  };
}

void ViewFeed::Begin(const std::shared_ptr<Listener>& listener) {
  std::shared_ptr<const View> view;
  absl::Status lost;
  {
    MutexLock lock(mu_);
    if (listener->is_cancelled()) return;
    listeners_.push_back(listener);
    view = view_;
    if (is_lost_) lost = status_;
  }
  WEFT_FAILPOINT("rendezvous/on_change").IgnoreError();
  listener->Tell(view);
  if (!lost.ok()) listener->TellLost(lost);
}

void ViewFeed::Remove(const std::shared_ptr<Listener>& listener) {
  MutexLock lock(mu_);
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener),
                   listeners_.end());
}

}  // namespace weft::rendezvous
