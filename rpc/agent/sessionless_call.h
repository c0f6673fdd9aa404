// SessionlessCall, SelfCaller: a call that is served without a session: one of
// an agent by itself, or one that a client sent in untyped form.

#ifndef WEFT_RPC_AGENT_SESSIONLESS_CALL_H_
#define WEFT_RPC_AGENT_SESSIONLESS_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent/inbound.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/diagnostics/traffic.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/message.h"
#include "weft/telemetry/spans.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

// Serves calls without a session; the agent's part.
//
// Thread-safety: thread-safe.
class SessionlessServer {
 public:
  virtual ~SessionlessServer() = default;

  virtual const std::string& job() const = 0;
  virtual Worker worker() const = 0;
  virtual const std::string& build() const = 0;
  virtual const Registry& registry() const = 0;
  // Whether the role that `caller` has proven, if any, is for `function`.
  virtual bool MayCall(const Function& function,
                       const Worker& caller) const = 0;

  // Runs the function for `caller`, who gives the call up by `gone`, or by what
  // this returns. `done` runs once, perhaps before this returns.
  virtual internal::Caller::Abandon ServeSessionless(
      Worker caller, RequestPtr request, CancelToken gone,
      internal::Caller::Done done) = 0;
};

class SessionlessCall;

// The sessionless calls that an agent serves.
//
// Thread-safety: thread-safe.
class SessionlessCalls final : public PendingSource {
 public:
  // Returns under which number.
  uint64_t Add(SessionlessCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // In the order in which they began; without the lock.
  void ForEach(absl::FunctionRef<void(SessionlessCall&)> fn) const
      ABSL_LOCKS_EXCLUDED(mu_);

  void AddPending(std::vector<PendingCall>* calls) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AddActive(ActiveCalls* active) override ABSL_LOCKS_EXCLUDED(mu_);
  // None: they end with the functions that run.
  void AddOpen(std::vector<std::string>*) override {}

 private:
  mutable Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<uint64_t, SessionlessCall*> calls_ ABSL_GUARDED_BY(mu_);
};

// Encoded and decoded like any call. Ends at its deadline, with the agent, and
// when it is given up.
//
// Thread-safety: thread-safe.
class SessionlessCall final : public ServedCall, public internal::Abandoner {
 public:
  struct Options {
    std::shared_ptr<Dispatcher> dispatcher;
    transport::Transport* transport = nullptr;
    SessionlessCalls* calls = nullptr;  // lasts as long as the dispatcher
    Worker caller;
    bool is_own = false;                 // the caller is who serves
    const Function* function = nullptr;  // outlives it
    RequestPtr request;
    // What came with the request; null if it has none, as one of a client.
    std::shared_ptr<const ReceivedAttachments> attachments;
    Traffic* traffic = nullptr;  // with the caller; lasts as the calls
    internal::Caller::Done done;
  };

  // The dispatcher got CallBegan; it is notified when this ends.
  static std::shared_ptr<SessionlessCall> Create(Options options);
  SessionlessCall(Options options, Lineage inherited, CancelSource cancel);
  ~SessionlessCall() override;

  // Gives itself up with either.
  void Follow(const CancelToken& agent, const CancelToken& caller);
  absl::Status AbandonCall(uint64_t, const absl::Status& why) override;
  void Finish(absl::StatusOr<Slices> result) override;

  // Whether its caller, who serves it, still waits.
  bool is_awaited() const { return is_own_ && !ended_; }
  // Whether its function has not ended.
  bool is_running() const { return !finished_; }
  // Adds it as its two sides see it: made, and served.
  void AddPending(std::vector<PendingCall>* calls) const;

 private:
  // Ends the call with a result that has attachments, which this agent takes
  // from itself, as it would from a peer.
  void FinishWhenSettled(std::shared_ptr<Reply> reply,
                         std::shared_ptr<StagedAttachments> staged);
  // The first of several ends the call.
  void End(ReplyPtr reply);
  // For who has set ended_.
  void Tell(absl::Status status, ReplyPtr reply);
  absl::Status Expired() const;

  const std::shared_ptr<Dispatcher> dispatcher_;
  transport::Transport& transport_;
  SessionlessCalls& calls_;
  const Worker caller_;
  const bool is_own_;
  const Function& function_;
  const std::string for_peer_;
  const uint64_t for_id_;
  Traffic& traffic_;
  uint64_t number_ = 0;  // in calls_; set before anybody else knows of it
  CancelSource cancel_;
  internal::Caller::Done done_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> finished_{false};
  std::atomic<transport::Transport::TimerId> timer_{
      0};  // it may fire before it is known
  CancelToken::Registration with_agent_;
  CancelToken::Registration with_caller_;
};

// Calls of an agent by itself.
//
// Thread-safety: thread-safe.
class SelfCaller final : public internal::Caller {
 public:
  SelfCaller(std::weak_ptr<SessionlessServer> server, Worker self)
      : server_(std::move(server)), self_(std::move(self)) {}

  const Worker& peer() const override { return self_; }
  Abandon Start(std::shared_ptr<Request> request, Done done) override;

 private:
  const std::weak_ptr<SessionlessServer> server_;
  const Worker self_;
  std::atomic<uint64_t> last_id_{0};
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_SESSIONLESS_CALL_H_
