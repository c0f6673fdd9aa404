#include "weft/rpc/agent/device_waits.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/rpc/codec/device_tensors.h"
#include "weft/rpc/session/failure.h"

namespace weft::rpc::internal {
namespace {

// The first id, in the list of pending calls, of those that have none yet: no
// session and no ordered queue gives one as large, and RetriedCalls larger
// ones.
constexpr uint64_t kFirstId = uint64_t{3} << 61;

}  // namespace

class DeviceWaits::WaitingCaller final : public Caller {
 public:
  WaitingCaller(DeviceWaits& waits, std::shared_ptr<Caller> caller,
                Executor& executor)
      : waits_(waits.shared_from_this()),
        caller_(std::move(caller)),
        executor_(executor) {}

  const Worker& peer() const override { return caller_->peer(); }
  Abandon Start(std::shared_ptr<Request> request, Done done) override {
    if (request->copies.empty()) {
      return caller_->Start(std::move(request), std::move(done));
    }
    return waits_->Start(caller_, executor_, std::move(request),
                         std::move(done));
  }

 private:
  const std::shared_ptr<DeviceWaits> waits_;
  const std::shared_ptr<Caller> caller_;
  Executor& executor_;
};

// A call's wait on a thread. An executor that has ended destroys it unrun.
class DeviceWaits::Ticket {
 public:
  Ticket(DeviceWaits& waits, uint64_t number)
      : waits_(waits.shared_from_this()), number_(number) {}
  Ticket(Ticket&&) noexcept = default;
  ~Ticket() {
    if (waits_ == nullptr) return;
    waits_
        ->AbandonCall(number_, absl::CancelledError(
                                   "the agent ended before its tensors were "
                                   "copied from their device"))
        .IgnoreError();
  }
  void operator()() && { std::exchange(waits_, nullptr)->Wait(number_); }

 private:
  std::shared_ptr<DeviceWaits> waits_;
  uint64_t number_;
};

std::shared_ptr<Caller> DeviceWaits::Before(std::shared_ptr<Caller> caller,
                                            Executor& executor) {
  return std::make_shared<WaitingCaller>(*this, std::move(caller), executor);
}

Abandon DeviceWaits::Start(std::shared_ptr<Caller> caller, Executor& executor,
                           std::shared_ptr<Request> request,
                           Caller::Done done) {
  const Instant deadline = request->deadline;
  const std::string function(request->function);
  const std::string peer = caller->peer().name;
  uint64_t number = 0;
  {
    MutexLock lock(mu_);
    number = ++last_;
    Call& call = calls_[number];
    call.caller = std::move(caller);
    call.request = std::move(request);
    call.done = std::move(done);
  }
  const Abandon abandon(weak_from_this(), number);
  if (!deadline.is_infinite()) {
    const transport::Transport::TimerId timer =
        transport_.RunAt(deadline, [abandon, function, peer] {
          abandon(absl::DeadlineExceededError(absl::StrCat(
                      function, ": the deadline passed in phase ",
                      NameOf(Phase::kEncode), ": the tensors of the call to ",
                      peer, " were not copied from their device by then")))
              .IgnoreError();
        });
    MutexLock lock(mu_);
    if (const auto it = calls_.find(number); it != calls_.end()) {
      it->second.timer = timer;
      it->second.has_timer = true;
    }
  }
  executor.Schedule(Ticket(*this, number));
  return abandon;
}

void DeviceWaits::Wait(uint64_t number) {
  RequestPtr request;  // keeps the copies, though the call may be given up
  std::vector<StagedCall*> copies;
  absl::Duration timeout;
  {
    MutexLock lock(mu_);
    const auto it = calls_.find(number);
    if (it == calls_.end()) return;  // it was given up
    request = it->second.request;
    copies = request->copies;
    timeout = request->deadline - transport_.clock().Now();
  }
  absl::Status copied;
  {
    const BlockingScope blocking;
    copied = AwaitCopies(copies, timeout);
  }
  request = nullptr;  // it is the session's now
  if (copied.ok()) return StartNow(number);
  AbandonCall(number, copied).IgnoreError();
}

void DeviceWaits::StartNow(uint64_t number) {
  Call call;
  {
    MutexLock lock(mu_);
    const auto it = calls_.find(number);
    if (it == calls_.end()) return;
    call = std::move(it->second);
    it->second = Call();
  }
  if (call.has_timer) transport_.CancelTimer(call.timer);
  call.request->copies.clear();  // its body keeps what it needs
  const Abandon abandon = call.caller->Start(
      std::move(call.request),
      [self = shared_from_this(), number, done = std::move(call.done)](
          absl::Status status, ReplyPtr reply) mutable {
        self->Remove(number);
        std::move(done)(std::move(status), std::move(reply));
      });
  absl::Status given_up;
  {
    MutexLock lock(mu_);
    const auto it = calls_.find(number);
    if (it == calls_.end()) return;  // it has ended already
    given_up = it->second.given_up;
    it->second.abandon = abandon;
  }
  if (!given_up.ok()) abandon(given_up).IgnoreError();
}

void DeviceWaits::Remove(uint64_t number) {
  MutexLock lock(mu_);
  calls_.erase(number);
}

absl::Status DeviceWaits::AbandonCall(uint64_t number,
                                      const absl::Status& why) {
  std::optional<Call> waiting;
  Abandon abandon;
  {
    MutexLock lock(mu_);
    const auto it = calls_.find(number);
    if (it == calls_.end()) return absl::OkStatus();
    if (it->second.waits()) {
      waiting = std::move(it->second);
      calls_.erase(it);
    } else {
      if (it->second.given_up.ok()) it->second.given_up = why;
      abandon = it->second.abandon;
    }
  }
  if (!waiting.has_value()) return abandon(why);
  if (waiting->has_timer) transport_.CancelTimer(waiting->timer);
  if (waiting->request->staged != nullptr) {  // it was never numbered
    waiting->request->staged->Tell(0, AttachmentOutcome::kRefused);
  }
  const absl::Status end = MarkFailure(why, Phase::kEncode);
  std::move(waiting->done)(end, nullptr);
  return end;
}

void DeviceWaits::EndAll(const absl::Status& why) {
  std::vector<uint64_t> waiting;
  {
    MutexLock lock(mu_);
    for (const auto& [number, call] : calls_) {
      if (call.waits()) waiting.push_back(number);
    }
  }
  for (const uint64_t number : waiting) {
    AbandonCall(number, why).IgnoreError();
  }
}

void DeviceWaits::AddActive(ActiveCalls* active) {
  MutexLock lock(mu_);
  for (const auto& [number, call] : calls_) active->made += call.waits();
}

void DeviceWaits::AddOpen(std::vector<std::string>* open) {
  absl::btree_map<std::string, int> waiting;  // by peer
  MutexLock lock(mu_);
  for (const auto& [number, call] : calls_) {
    if (call.waits()) ++waiting[call.caller->peer().name];
  }
  for (const auto& [peer, count] : waiting) {
    open->push_back(absl::StrCat(count, " calls to ", peer,
                                 " whose tensors are copied from a device"));
  }
}

void DeviceWaits::AddPending(std::vector<PendingCall>* calls) {
  const Instant now = transport_.clock().Now();
  MutexLock lock(mu_);
  for (const auto& [number, call] : calls_) {
    if (!call.waits()) continue;
    PendingCall& pending = calls->emplace_back();
    pending.peer = call.caller->peer().name;
    pending.id = kFirstId + number;
    pending.function = std::string(call.request->function);
    pending.phase = Phase::kEncode;
    pending.age = now - call.request->began;
    pending.remaining = call.request->deadline - now;
    pending.for_peer = call.request->for_peer;
    pending.for_id = call.request->for_id;
  }
}

}  // namespace weft::rpc::internal
