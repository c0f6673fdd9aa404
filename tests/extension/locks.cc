#include "weft/tests/extension/locks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/extension/calls.h"

namespace locks {

using weft::Bytes;
using weft::Future;
using weft::MakeReady;
using weft::MutexLock;
using weft::Promise;
namespace rpc = weft::rpc;

namespace {

absl::Status NoLocks(const rpc::CallContext& context) {
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", context.agent().name(), " has no Locks: open them there"));
}

}  // namespace

// What peers call. Each may run twice: the first answer may be lost.
Future<void> AcquireAt(rpc::CallContext& context, const std::string& lock) {
  Locks* const locks = context.Local<Locks>();
  if (locks == nullptr) return MakeReady<void>(NoLocks(context));
  return locks->ServeAcquire(context.peer().key, lock);
}
WEFT_RPC_INLINE_IDEMPOTENT(AcquireAt);

absl::Status ReleaseAt(rpc::CallContext& context, const std::string& lock) {
  Locks* const locks = context.Local<Locks>();
  if (locks == nullptr) return NoLocks(context);
  return locks->ServeRelease(context.peer().key, lock);
}
WEFT_RPC_INLINE_IDEMPOTENT(ReleaseAt);

// The name of a lock, beside the arguments of a call.
class Locks::Claim final : public rpc::Attachment {
 public:
  Claim(std::shared_ptr<Locks> locks, std::string lock)
      : locks_(std::move(locks)), lock_(std::move(lock)) {}
  absl::StatusOr<Bytes> Freeze() override { return Bytes::Own(lock_); }
  void OnOutcome(uint64_t, rpc::AttachmentOutcome outcome) override {
    const bool came = outcome == rpc::AttachmentOutcome::kDelivered;
    ++(came ? locks_->delivered_ : locks_->refused_);
  }

 private:
  const std::shared_ptr<Locks> locks_;
  const std::string lock_;
};

Locks::Locks(rpc::Agent& agent)
    : Library(agent), driver_(rpc::extension::DriverOf(agent)) {}

absl::StatusOr<std::shared_ptr<Locks>> Locks::Open(rpc::Agent& agent) {
  auto locks = std::make_shared<Locks>(agent);
  WEFT_RETURN_IF_ERROR(Attach(locks, {kKind}));
  return locks;
}

Future<void> Locks::Acquire(WorkerKey keeper, const std::string& lock) {
  const auto promise = std::make_shared<Promise<void>>(driver_);
  // It answers when the lock is free, which may be late.
  weak_agent()->CallUntilAnswered(
      keeper, absl::InfiniteDuration(), AcquireAt,
      [promise](const absl::Status& acquired) { promise->Set(acquired); },
      lock);
  return promise->future();
}

Future<void> Locks::Release(WorkerKey keeper, const std::string& lock) {
  return weak_agent()->CallOnce(keeper, absl::Seconds(60), ReleaseAt, lock);
}

rpc::Target Locks::Guarded(const rpc::Target& target, const std::string& lock) {
  return target.WithAttachment(
      kKind, [locks = shared_from_this(), lock](const rpc::CodecContext&) {
        return std::make_unique<Claim>(locks, lock);
      });
}

int64_t Locks::waiting() const {
  MutexLock lock(mu_);
  int64_t waiting = 0;
  for (const auto& [name, one] : locks_) waiting += one.waiting.size();
  return waiting;
}

Future<void> Locks::ServeAcquire(WorkerKey peer, const std::string& lock) {
  MutexLock guard(mu_);
  Lock& one = locks_[lock];
  if (!one.holder.has_value()) one.holder = peer;
  if (*one.holder == peer) return MakeReady();
  one.waiting.push_back({peer, Promise<void>(driver_)});
  return one.waiting.back().promise.future();
}

absl::Status Locks::ServeRelease(WorkerKey peer, const std::string& lock) {
  Tasks tasks;
  MutexLock guard(mu_);
  Lock& one = locks_[lock];
  if (one.holder != peer) {
    return absl::NotFoundError(absl::StrCat(
        peer.ToString(), " does not hold lock '", lock, "' of ", name()));
  }
  GiveOn(&one, &tasks);
  return absl::OkStatus();
}

void Locks::GiveOn(Lock* lock, Tasks* tasks) {
  lock->holder.reset();
  if (lock->waiting.empty()) return;
  lock->holder = lock->waiting.front().peer;
  std::vector<Waiting> left;
  for (Waiting& one : lock->waiting) {
    if (one.peer == *lock->holder) {
      tasks->Set<void>(std::move(one.promise), absl::OkStatus());
    } else {
      left.push_back(std::move(one));
    }
  }
  lock->waiting = std::move(left);
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Locks::Take(
    absl::string_view, const rpc::CodecContext& message, const Bytes& bytes) {
  MutexLock guard(mu_);
  const auto it = locks_.find(std::string(bytes.view()));
  if (it == locks_.end() || it->second.holder != message.peer) {
    return absl::FailedPreconditionError(
        absl::StrCat(message.peer.ToString(), " does not hold lock '",
                     bytes.view(), "' of ", name()));
  }
  return std::make_unique<rpc::ReceivedAttachment>();
}

void Locks::OnPeerGone(const rpc::Agent::GonePeer& peer) {
  const auto is_gone = [&](WorkerKey worker) {
    return worker.id == peer.key.id && worker.epoch <= peer.key.epoch;
  };
  Tasks tasks;
  MutexLock guard(mu_);
  for (auto& [name, lock] : locks_) {
    std::vector<Waiting> left;
    for (Waiting& one : lock.waiting) {
      if (!is_gone(one.peer)) left.push_back(std::move(one));
    }
    lock.waiting.swap(left);
    if (lock.holder.has_value() && is_gone(*lock.holder)) {
      GiveOn(&lock, &tasks);
    }
    for (Waiting& one : left) {
      if (!is_gone(one.peer)) continue;
      tasks.Set<void>(std::move(one.promise), absl::UnavailableError(peer.why));
    }
  }
}

void Locks::OnAgentEnd() {
  Tasks tasks;
  MutexLock guard(mu_);
  for (auto& [name, lock] : locks_) {
    for (Waiting& one : lock.waiting) {
      tasks.Set<void>(std::move(one.promise),
                      absl::CancelledError("the agent has ended"));
    }
  }
  locks_.clear();
}

}  // namespace locks
