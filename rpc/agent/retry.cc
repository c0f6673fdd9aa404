#include "weft/rpc/agent/retry.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"

namespace weft::rpc {

absl::Status Validate(const RetryPolicy& policy) {
  if (policy.max_attempts >= 1 && policy.growth >= 1 &&
      policy.first_pause >= absl::ZeroDuration() &&
      policy.longest_pause >= policy.first_pause) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "RetryPolicy: wanted at least 1 attempt, growth of at least 1 and pauses "
      "from 0 to longest_pause; found ",
      policy.max_attempts, " attempts, growth ", policy.growth, ", pauses ",
      absl::FormatDuration(policy.first_pause), " to ",
      absl::FormatDuration(policy.longest_pause)));
}

namespace internal {

uint64_t RetriedCalls::Add(Call call) {
  MutexLock lock(mu_);
  calls_.emplace_hint(calls_.end(), ++last_, std::move(call));
  return last_;
}

void RetriedCalls::SetPaused(uint64_t number, bool is_paused) {
  MutexLock lock(mu_);
  const auto it = calls_.find(number);
  if (it != calls_.end()) it->second.is_paused = is_paused;
}

void RetriedCalls::Remove(uint64_t number) {
  MutexLock lock(mu_);
  calls_.erase(number);
}

void RetriedCalls::AddActive(ActiveCalls* active) {
  MutexLock lock(mu_);
  for (const auto& [number, call] : calls_) active->made += call.is_paused;
}

void RetriedCalls::AddOpen(std::vector<std::string>* open) {
  std::map<std::string, size_t> paused;  // by peer
  MutexLock lock(mu_);
  for (const auto& [number, call] : calls_) {
    if (call.is_paused) ++paused[call.peer];
  }
  for (const auto& [peer, n] : paused) {
    open->push_back(
        absl::StrCat(n, " calls to ", peer, " that wait to be tried again"));
  }
  if (!open->empty() || calls_.empty()) return;
  open->push_back(
      absl::StrCat(calls_.size(), " calls that may be tried again"));
}

void RetriedCalls::AddPending(std::vector<PendingCall>* calls) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  for (const auto& [number, call] : calls_) {
    if (!call.is_paused) continue;
    PendingCall& pending = calls->emplace_back();
    pending.peer = call.peer;
    pending.id = number;
    pending.function = call.function;
    pending.phase = Phase::kQueue;
    pending.age = now - call.began;
    pending.remaining = call.deadline - now;
    pending.for_peer = call.for_peer;
    pending.for_id = call.for_id;
  }
}

// One call and its attempts, of which one is under way at a time.
class RetryingCaller::RetriedCall final
    : public Abandoner,
      public std::enable_shared_from_this<RetriedCall> {
 public:
  RetriedCall(const std::string& peer, std::shared_ptr<const Options> options,
              std::shared_ptr<Request> request, Done done)
      : options_(std::move(options)),
        request_(std::move(request)),
        done_(std::move(done)),
        number_(options_->calls->Add({peer, std::string(request_->function),
                                      request_->began, request_->deadline,
                                      request_->for_peer, request_->for_id})) {}
  ~RetriedCall() override { options_->calls->Remove(number_); }

  void Begin() {
    with_agent_ =
        options_->agent.OnCancel([weak = weak_from_this()](auto& why) {
          if (auto self = weak.lock()) self->AbandonCall(0, why).IgnoreError();
        });
    Attempt();
  }

  absl::Status AbandonCall(uint64_t, const absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    Abandon abandon;
    bool was_out = false;
    bool may_have_run = false;
    {
      MutexLock lock(mu_);
      if (!given_up_.ok() || state_ == State::kEnded) return absl::OkStatus();
      given_up_ = why;
      if (state_ == State::kStarting) return absl::OkStatus();
      was_out = state_ == State::kOut;
      may_have_run = may_have_run_;
      abandon = abandon_;
    }
    absl::Status end =
        was_out ? abandon(why) : MarkFailure(why, Phase::kQueue);  // it pauses
    if (may_have_run && !end.ok()) end = WithOutcomeUnknown(std::move(end));
    if (!was_out) End(end, nullptr);
    return end;
  }

 private:
  enum class State { kStarting, kOut, kPausing, kEnded };

  void Attempt() ABSL_LOCKS_EXCLUDED(mu_) {
    int attempt = 0;
    {
      MutexLock lock(mu_);
      if (state_ == State::kEnded) return;
      state_ = State::kStarting;
      attempt = ++attempts_;
    }
    options_->calls->SetPaused(number_, false);
    const auto caller = options_->find();
    if (!caller.ok()) {
      const bool may_come = absl::IsNotFound(caller.status());
      return AttemptEnded(caller.status(), nullptr, may_come);
    }
    // A request is frozen once it was sent: each attempt sends its own.
    auto request = std::make_shared<Request>(*request_);
    const Abandon abandon =
        (*caller)->Start(request, [self = shared_from_this(), request](
                                      absl::Status status, ReplyPtr reply) {
          self->request_->id = request->id;
          self->AttemptEnded(std::move(status), std::move(reply), false);
        });
    absl::Status given_up;
    {
      MutexLock lock(mu_);
      // It has ended already, and perhaps the next one starts.
      if (state_ != State::kStarting || attempts_ != attempt) return;
      state_ = State::kOut;
      given_up = given_up_;
      if (given_up.ok()) abandon_ = abandon;
    }
    if (!given_up.ok()) abandon(given_up).IgnoreError();
  }

  void AttemptEnded(absl::Status status, ReplyPtr reply, bool may_come)
      ABSL_LOCKS_EXCLUDED(mu_) {
    Instant next;
    {
      MutexLock lock(mu_);
      may_have_run_ |= OutcomeUnknown(status);
      const Instant now = options_->transport->clock().Now();
      next = now + Pause();
      const bool again = given_up_.ok() && MayRetry(status, may_come) &&
                         attempts_ < options_->policy.max_attempts &&
                         next < request_->deadline;
      state_ = again ? State::kPausing : State::kOut;
      if (!again) next = Instant::Infinite();
    }
    if (next.is_infinite()) return End(std::move(status), std::move(reply));
    options_->calls->SetPaused(number_, true);
    options_->transport->RunAt(
        next, [self = shared_from_this()] { self->Attempt(); });
  }

  bool MayRetry(const absl::Status& status, bool may_come) const {
    if (may_come) return true;
    if (!absl::IsUnavailable(status) || ReasonOf(status) == Reason::kNone) {
      return false;
    }
    // One incarnation that is gone, or ends, takes no call any more.
    if (!options_->may_come_back &&
        (ReasonOf(status) == Reason::kPeerGone ||
         ReasonOf(status) == Reason::kShuttingDown)) {
      return false;
    }
    return !OutcomeUnknown(status) ||
           options_->is_idempotent(request_->function);
  }

  absl::Duration Pause() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const RetryPolicy& policy = options_->policy;
    return std::min(
        policy.longest_pause,
        policy.first_pause * std::pow(policy.growth, attempts_ - 1));
  }

  void End(absl::Status status, ReplyPtr reply) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (state_ == State::kEnded) return;
      state_ = State::kEnded;
      // Also if the last attempt has not run.
      if (may_have_run_ && !status.ok()) {
        status = WithOutcomeUnknown(std::move(status));
      }
    }
    options_->calls->Remove(number_);
    std::move(done_)(std::move(status), std::move(reply));
  }

  const std::shared_ptr<const Options> options_;
  const std::shared_ptr<Request> request_;
  Done done_;              // run by who sets kEnded
  const uint64_t number_;  // in Options::calls
  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kStarting;
  int attempts_ ABSL_GUARDED_BY(mu_) = 0;
  bool may_have_run_ ABSL_GUARDED_BY(mu_) = false;  // in an attempt that ended
  absl::Status given_up_ ABSL_GUARDED_BY(mu_);
  Abandon abandon_ ABSL_GUARDED_BY(mu_);  // while kOut
  CancelToken::Registration with_agent_;
};

RetryingCaller::Abandon RetryingCaller::Start(std::shared_ptr<Request> request,
                                              Done done) {
  auto call = std::make_shared<RetriedCall>(
      peer_.name, options_, std::move(request), std::move(done));
  call->Begin();
  return Abandon(call, 0);
}

}  // namespace internal
}  // namespace weft::rpc
