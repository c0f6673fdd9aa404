// Loop::Core: the gRPC server, its queue and the calls that are open, as the
// other parts of net see them.
//
// Lives on as long as anything of it is used; after Shutdown it refuses.

#ifndef WEFT_NET_LOOP_LOOP_CORE_H_
#define WEFT_NET_LOOP_LOOP_CORE_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/accept_loop.h"
#include "weft/net/edge/call_rate_limiter.h"
#include "weft/net/loop/local_end.h"
#include "weft/net/loop/loop.h"
#include "weft/net/loop/memory_queue.h"
#include "weft/net/loop/poller.h"
#include "weft/net/refusal_log.h"
#include "weft/net/tls/tls.h"
#include "weft/telemetry/telemetry.h"

namespace weft::net {

// What an event of the queue stands for.
class Tag {
 public:
  virtual void Proceed(bool ok) = 0;
  // It only wakes who sleeps in the queue.
  virtual bool is_wake() const { return false; }

 protected:
  ~Tag() = default;
};

// A Tag that calls a member function of `T`.
template <typename T, void (T::*kMember)(bool)>
class MemberTag final : public Tag {
 public:
  explicit MemberTag(T* owner) : owner_(owner) {}
  void Proceed(bool ok) override { (owner_->*kMember)(ok); }

 private:
  T* const owner_;
};

// A call that is open in this Loop, served or issued.
class OpenCall {
 public:
  // Ends it soon, in `reason`. From any thread; idempotent.
  virtual void Abort(absl::Status reason) = 0;

 protected:
  ~OpenCall() = default;
};

class ServerCall;

// One endpoint, as the Loop sees it. It keeps the calls that it serves.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void OnCall(ServerCall& call) = 0;
};

// An end that slept longer before a message may assume that its sender, on
// another core, sleeps too by now. Two ends that share a core answer each other
// within less; a core that sleeps takes longer to wake.
inline constexpr absl::Duration kPeerSleepsAfter = absl::Microseconds(40);

class GrpcQueue final : public EventQueue {
 public:
  Outcome Next(Instant deadline) override;
  void Handle() override;
  void Wake() override ABSL_LOCKS_EXCLUDED(mu_);
  bool IsInBurst() const override { return in_burst_; }
  void Leave() override;

  void Attach(std::unique_ptr<grpc::ServerCompletionQueue> queue) {
    queue_ = std::move(queue);
  }
  grpc::ServerCompletionQueue* get() { return queue_.get(); }
  // For how long the event that is being handled was slept for; zero where the
  // poller spins. On the thread that polls.
  absl::Duration slept() const { return slept_; }
  // Runs `fn` before the next look at the queue. On the thread that polls.
  void BeforeNext(absl::AnyInvocable<void() &&> fn) {
    before_next_.push_back(std::move(fn));
  }
  // Runs `fn` once a look finds no event, kMostOfABurst events have been
  // handled since the first such `fn`, or the thread leaves the queue. On the
  // thread that polls, while it handles an event.
  void AfterBurst(absl::AnyInvocable<void() &&> fn) {
    after_burst_.push_back(std::move(fn));
  }
  // For a message that has come: `*looks` is kept by its stream. True if no
  // look has found the queue empty since the stream's last message. On the
  // thread that polls.
  bool NoteMessage(uint64_t* looks) {
    in_burst_ = std::exchange(*looks, empty_looks_) == empty_looks_;
    return in_burst_;
  }
  // Returns when the events that were there have been handled.
  void AwaitHandled() ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: no call is open. Next returns kEnd once it is empty.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Enough for the replies to leave together, and few enough that none waits
  // long.
  static constexpr int kMostOfABurst = 16;

  void EndBurst();

  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  // Only the thread that polls uses these; the poller orders one after the
  // other.
  Tag* taken_ = nullptr;
  bool taken_ok_ = false;
  absl::Duration slept_;
  std::vector<absl::AnyInvocable<void() &&>> before_next_;
  std::vector<absl::AnyInvocable<void() &&>> after_burst_;
  int burst_ = 0;  // events since the first of after_burst_
  uint64_t empty_looks_ = 1;
  bool in_burst_ = false;  // the last message came without an empty look before
  Mutex mu_;
  bool shut_ ABSL_GUARDED_BY(mu_) = false;
};

// Waits in the poller whose queue had the last event: there the next is likely.
class LoopDriver final : public Driver {
 public:
  LoopDriver(PollerGroup& group, Poller& poller)
      : group_(group), poller_(poller) {}

  // A second poller; it must outlive all waits.
  void Add(Poller* poller) { second_.store(poller); }

  bool Wait(Waitable& what, Instant deadline) override {
    Poller* const second = second_.load();
    if (second == nullptr || what.IsReady()) {
      return poller_.Wait(what, deadline);
    }
    const bool is_second = group_.busy.load() == second;
    Poller& here = is_second ? *second : poller_;
    Poller& other = is_second ? poller_ : *second;
    other.BeginWaitElsewhere();
    const bool ready = here.Wait(what, deadline);
    other.EndWaitElsewhere();
    return ready;
  }

 private:
  PollerGroup& group_;
  Poller& poller_;
  std::atomic<Poller*> second_{nullptr};
};

class Loop::Core : public MemoryWatch,
                   public std::enable_shared_from_this<Loop::Core> {
 public:
  explicit Core(LoopOptions options);
  ~Core() override;

  absl::Status Start();
  absl::Status Shutdown(absl::Duration timeout);

  const LoopOptions& options() const { return options_; }
  telemetry::Telemetry& telemetry() { return telemetry_; }
  RefusalLog& refusal_log() { return refusal_log_; }
  Poller& poller() { return poller_; }
  Driver& driver() { return driver_; }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  absl::Duration slept() const { return queue_.slept(); }
  // Called on the thread that polls.
  void BeforeNextEvent(absl::AnyInvocable<void() &&> fn) {
    queue_.BeforeNext(std::move(fn));
  }
  void AfterBurst(absl::AnyInvocable<void() &&> fn) {
    queue_.AfterBurst(std::move(fn));
  }
  bool NoteMessage(uint64_t* looks) { return queue_.NoteMessage(looks); }

  // Holds `call` until RemoveCall. False if the Loop is shutting down: then
  // `call` must end at once.
  bool AddCall(const void* owner, std::shared_ptr<OpenCall> call)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveCall(OpenCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  void SetOwner(OpenCall* call, const void* owner) ABSL_LOCKS_EXCLUDED(mu_);
  // Aborts the calls that were added with `owner`, or all if null.
  void AbortCalls(const void* owner, const absl::Status& reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until none is open; false if `deadline` came first.
  bool AwaitNoCalls(const void* owner, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // After AbortCalls; false if they do not end.
  bool AwaitAborted(const void* owner) ABSL_LOCKS_EXCLUDED(mu_);

  // Handles what comes in `source` among the callbacks of this Loop, by a
  // second poller, made for the first one. kFailedPrecondition after Shutdown.
  absl::Status AddMemory(std::shared_ptr<MemorySource> source) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveMemory(const MemorySource* source) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // kAlreadyExists if there is an endpoint of that name here.
  absl::Status AddEndpoint(const std::string& name,
                           std::shared_ptr<CallSink> sink)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveEndpoint(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Listen(Listener listener) ABSL_LOCKS_EXCLUDED(mu_);
  void StopListening(const Address& address);

  // `call` was useless: it was refused, or taken back. Cuts off the peer
  // that has too many of those.
  void CountUselessCall(const ServerCall& call);

  // An address of the edge may begin no connections for now.
  bool IsHoldingBack() { return accept_loop_->IsHoldingBack(); }

  // A call arrived.
  void Route(ServerCall& call) ABSL_LOCKS_EXCLUDED(mu_);
  void RequestCall();

  // What streams over unix sockets are looked at with, by the second poller.
  // kFailedPrecondition after Shutdown; kResourceExhausted.
  absl::StatusOr<std::shared_ptr<LocalSockets>> UseLocalSockets()
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status RenewCredentials(const Credentials& credentials);
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsFor(
      const Address& address) const;
  grpc::AsyncGenericService& service() { return service_; }

 private:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  struct OpenEntry {
    const void* owner;
    std::shared_ptr<OpenCall> call;
  };

  void SetLimits(grpc::ServerBuilder& builder) const;
  telemetry::Fields Describe() ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitEnd() ABSL_LOCKS_EXCLUDED(mu_);
  int64_t CountEnded() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StartMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndMemory() ABSL_LOCKS_EXCLUDED(mu_);
  int CountCalls(const void* owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<CallSink> FindSink(const std::string& authority)
      ABSL_LOCKS_EXCLUDED(mu_);

  const LoopOptions options_;
  telemetry::Telemetry& telemetry_;
  RefusalLog refusal_log_;
  CallRateLimiter call_rates_;
  GrpcQueue queue_;
  PollerGroup pollers_;
  Poller poller_;
  LoopDriver driver_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<Acceptor> plain_;  // unix sockets, and TCP under --insecure
  std::unique_ptr<AcceptLoop> accept_loop_;  // whose addresses tls_ asks for
  std::unique_ptr<Tls> tls_;                 // null without certificates
  std::unique_ptr<Acceptor> secure_;         // null without certificates
  std::unique_ptr<grpc::Server> server_;
  // Until the end: calls that arrive late name it.
  telemetry::StatusPage::Registration status_page_;

  Mutex mu_;
  CondVar call_ended_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool shut_ ABSL_GUARDED_BY(mu_) = false;
  int64_t ended_calls_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<OpenCall*, OpenEntry> open_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<CallSink>> endpoints_
      ABSL_GUARDED_BY(mu_);
  // Made with the first memory, both; then they stay.
  std::unique_ptr<MemoryQueue> memory_queue_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Poller> memory_poller_ ABSL_GUARDED_BY(mu_);
  // Made with the first socket.
  std::shared_ptr<LocalSockets> local_sockets_ ABSL_GUARDED_BY(mu_);
};

// Between the two worlds. Slices are sent without a copy unless they are small,
// and received without one.
grpc::ByteBuffer ToByteBuffer(const Slices& slices);
Slices FromByteBuffer(grpc::ByteBuffer& buffer);
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);
gpr_timespec ToGpr(Instant deadline);

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_LOOP_CORE_H_
