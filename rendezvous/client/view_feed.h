// ViewFeed: the views of its job that one worker has received, for those who
// wait for one and those who are told of each.

#ifndef WEFT_RENDEZVOUS_CLIENT_VIEW_FEED_H_
#define WEFT_RENDEZVOUS_CLIENT_VIEW_FEED_H_

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/strand.h"
#include "weft/rendezvous/view.h"
#include "weft/telemetry/telemetry.h"

namespace weft::rendezvous {

// Made by make_shared.
//
// Thread-safety: thread-safe; Publish, End and TellLost by one thread at a
// time.
class ViewFeed : public std::enable_shared_from_this<ViewFeed> {
 public:
  using OnView = std::function<void(std::shared_ptr<const View>)>;
  using OnLost = std::function<void(const absl::Status& why)>;

  // `executor` runs the callbacks of OnChange. All must outlive the feed.
  // `job` is for messages.
  ViewFeed(Driver& driver, Executor& executor, telemetry::Telemetry& telemetry,
           std::string job);

  // The newest. Never null.
  std::shared_ptr<const View> view() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ok until End, then its reason.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

  void Publish(const std::shared_ptr<const View>& view)
      ABSL_LOCKS_EXCLUDED(mu_);
  // No more views come, and each wait ends with `why`. REQUIRES: !why.ok().
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells all who follow, and those who come later, why() of End, last.
  void TellLost() ABSL_LOCKS_EXCLUDED(mu_);

  // Membership::WaitFor.
  absl::StatusOr<std::shared_ptr<const View>> WaitFor(
      const std::function<bool(const View&)>& is_fit, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Membership::OnChange. What it returns ends that, and waits for a callback
  // that runs on another thread.
  std::function<void()> OnChange(OnView on_view, OnLost on_lost);

 private:
  class Listener;
  struct Waiter {
    std::deque<std::shared_ptr<const View>> unseen;
    std::optional<Promise<void>> news;  // set while it has seen all
  };

  // The next view that `waiter` is to judge.
  absl::StatusOr<std::shared_ptr<const View>> NextView(Waiter& waiter,
                                                       Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Promise<void>> TakeNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On listener_strand_.
  void Begin(const std::shared_ptr<Listener>& listener)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const std::shared_ptr<Listener>& listener)
      ABSL_LOCKS_EXCLUDED(mu_);
  Instant now() const { return driver_.clock().Now(); }

  Driver& driver_;
  telemetry::Telemetry& telemetry_;
  const std::string job_;
  Strand listener_strand_;

  mutable Mutex mu_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<View>();
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool is_lost_ ABSL_GUARDED_BY(mu_) = false;  // TellLost has run
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_VIEW_FEED_H_
