// FakeLink: a coordinator that holds calls until it is open, on fake time.

#ifndef WEFT_RENDEZVOUS_CLIENT_FAKE_LINK_H_
#define WEFT_RENDEZVOUS_CLIENT_FAKE_LINK_H_

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/rendezvous/client/fake_timers.h"
#include "weft/rendezvous/coordinator_link.h"

namespace weft::rendezvous {

// A call ends once it is open or has waited for as long as `Request` says;
// where the coordinator is gone, at its time-out. Thread-safety: one thread at
// a time.
template <typename Request>
class FakeLink : public CoordinatorLink {
 public:
  explicit FakeLink(FakeTimers& timers) : timers_(timers) {}

  Future<std::string> Call(absl::string_view, std::string request,
                           absl::Duration timeout) override {
    Promise<std::string> promise(timers_);
    Future<std::string> answer = promise.future();
    EXPECT_TRUE(asked_.ParseFromString(request));
    const Instant held =
        timers_.now() +
        (is_gone ? timeout : absl::Milliseconds(asked_.wait_ms()));
    timers_.Pass(std::max(std::min(held, open_at) - timers_.now(),
                          absl::ZeroDuration()));
    if (is_gone) {
      promise.Set(absl::DeadlineExceededError("no answer"));
    } else {
      promise.Set(Answer(asked_, timers_.now() >= open_at));
    }
    return answer;
  }
  const std::string& address() const override { return address_; }
  const Request& asked() const { return asked_; }  // by the last call

  Instant open_at = Instant::Infinite();
  bool is_gone = false;

 private:
  // The serialised reply.
  virtual std::string Answer(const Request& asked, bool is_open) const = 0;

  const std::string address_ = "nowhere:1";
  FakeTimers& timers_;
  Request asked_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_FAKE_LINK_H_
