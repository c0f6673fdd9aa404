#include "weft/rpc/agent/ordered_queue.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/rpc/session/failure.h"

namespace weft::rpc {
namespace internal {
namespace {

// The first id, in the list of pending calls, of those that have none yet:
// larger than those of sessions, smaller than those of RetriedCalls.
constexpr uint64_t kFirstId = uint64_t{1} << 62;

}  // namespace

OrderedQueue::Abandon OrderedQueue::Start(std::shared_ptr<Caller> caller,
                                          std::shared_ptr<Request> request,
                                          Caller::Done done) {
  request->ordered_queue = queue_;
  const Instant deadline = request->deadline;
  const std::string function(request->function);
  uint64_t number = 0;
  bool must_wait = false;
  {
    MutexLock lock(mu_);
    number = ++last_;
    must_wait = out_ != 0 || !waiting_.empty();
    waiting_[number] =
        Waiting{std::move(caller), std::move(request), std::move(done)};
  }
  const Abandon abandon(weak_from_this(), number);
  if (must_wait && !deadline.is_infinite()) {
    // One that is out its session ends.
    const transport::Transport::TimerId timer =
        transport_.RunAt(deadline, [abandon, function, peer = peer_] {
          abandon(absl::DeadlineExceededError(absl::StrCat(
                      function, ": the deadline passed in phase ",
                      NameOf(Phase::kQueue), ": the call to ", peer,
                      " waited for those before it in its ordered queue")))
              .IgnoreError();
        });
    MutexLock lock(mu_);
    if (const auto it = waiting_.find(number); it != waiting_.end()) {
      it->second.timer = timer;
      it->second.has_timer = true;
    }
  }
  Send();
  return abandon;
}

void OrderedQueue::AddActive(ActiveCalls* active) {
  MutexLock lock(mu_);
  active->made += waiting_.size();
}

void OrderedQueue::AddOpen(std::vector<std::string>* open) {
  MutexLock lock(mu_);
  if (waiting_.empty()) return;
  open->push_back(absl::StrCat(
      waiting_.size(), " calls that wait in an ordered queue to ", peer_));
}

void OrderedQueue::AddPending(std::vector<PendingCall>* calls) {
  const Instant now = transport_.clock().Now();
  MutexLock lock(mu_);
  for (const auto& [number, call] : waiting_) {
    PendingCall& pending = calls->emplace_back();
    pending.peer = peer_;
    pending.id = kFirstId + (queue_ << 32) + number;
    pending.function = std::string(call.request->function);
    pending.phase = Phase::kQueue;
    pending.age = now - call.request->began;
    pending.remaining = call.request->deadline - now;
    pending.for_peer = call.request->for_peer;
    pending.for_id = call.request->for_id;
  }
}

void OrderedQueue::Send() {
  bool is_first = true;
  for (;;) {
    uint64_t number = 0;
    Waiting call;
    {
      MutexLock lock(mu_);
      if (is_first && is_sending_) return;  // it will see what is new
      is_sending_ = out_ == 0 && !waiting_.empty();
      if (!is_sending_) return;
      out_ = number = waiting_.begin()->first;
      call = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      given_up_ = absl::OkStatus();
      abandon_ = Abandon();
    }
    is_first = false;
    SendOne(number, std::move(call));
  }
}

void OrderedQueue::SendOne(uint64_t number, Waiting call) {
  if (call.has_timer) transport_.CancelTimer(call.timer);
  const Abandon abandon = call.caller->Start(
      std::move(call.request),
      [self = shared_from_this(), done = std::move(call.done)](
          absl::Status status, ReplyPtr reply) mutable {
        self->Ended();  // the next one leaves before callbacks run
        std::move(done)(std::move(status), std::move(reply));
      });
  absl::Status given_up;
  {
    MutexLock lock(mu_);
    if (out_ != number) return;  // it has ended already
    given_up = given_up_;
    if (given_up.ok()) abandon_ = abandon;
  }
  if (!given_up.ok()) abandon(given_up).IgnoreError();
}

void OrderedQueue::Ended() {
  {
    MutexLock lock(mu_);
    out_ = 0;
  }
  Send();
}

absl::Status OrderedQueue::AbandonCall(uint64_t number,
                                       const absl::Status& why) {
  std::optional<Waiting> unsent;
  Abandon abandon;
  {
    MutexLock lock(mu_);
    if (const auto it = waiting_.find(number); it != waiting_.end()) {
      unsent = std::move(it->second);
      waiting_.erase(it);
    } else if (out_ == number && given_up_.ok()) {
      given_up_ = why;
      abandon = std::exchange(abandon_, Abandon());
    }
  }
  if (!unsent.has_value()) return abandon(why);
  if (unsent->has_timer) transport_.CancelTimer(unsent->timer);
  if (unsent->request->staged != nullptr) {  // it was never numbered
    unsent->request->staged->Tell(0, AttachmentOutcome::kRefused);
  }
  const absl::Status end = MarkFailure(why, Phase::kQueue);
  std::move(unsent->done)(end, nullptr);
  return end;
}

}  // namespace internal

class OrderedQueueTable::Holder final : public ServedCall::Turn {
 public:
  Holder(OrderedQueueTable& table, Key key) : table_(table), key_(key) {}
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() override { table_.Leave(key_); }

 private:
  OrderedQueueTable& table_;
  const Key key_;
};

void OrderedQueueTable::Enter(WorkerKey caller, uint64_t queue, Run run) {
  const Key key(caller, queue);
  {
    MutexLock lock(mu_);
    queues_[key].waiting.push_back(std::move(run));
  }
  Advance(key);
}

void OrderedQueueTable::Leave(const Key& key) {
  {
    MutexLock lock(mu_);
    queues_[key].is_taken = false;
  }
  Advance(key);
}

void OrderedQueueTable::Advance(const Key& key) {
  bool is_first = true;
  for (;;) {
    Run run;
    {
      MutexLock lock(mu_);
      const auto it = queues_.find(key);
      if (it == queues_.end()) return;
      Queue& queue = it->second;
      if (is_first && queue.is_turning) return;  // it will see what is new
      queue.is_turning = false;
      if (queue.is_taken) return;
      if (queue.waiting.empty()) {
        queues_.erase(it);
        return;
      }
      queue.is_turning = queue.is_taken = true;
      run = std::move(queue.waiting.front());
      queue.waiting.pop_front();
    }
    is_first = false;
    std::move(run)(std::make_unique<Holder>(*this, key));
  }
}

}  // namespace weft::rpc
