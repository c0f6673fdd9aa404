// Inbound: the calls of one peer that this agent serves: the callee's session,
// its connection and the handlers that run.

#ifndef WEFT_RPC_AGENT_INBOUND_H_
#define WEFT_RPC_AGENT_INBOUND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent/action_queue.h"
#include "weft/rpc/agent/call_histograms.h"
#include "weft/rpc/agent/session_timer.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/diagnostics/traffic.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/id_map.h"
#include "weft/rpc/session/limits.h"
#include "weft/rpc/session/message.h"
#include "weft/rpc/session/session.h"
#include "weft/rpc/session/session_hook.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/telemetry/spans.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

class Inbound;

// How long a client whose connection is lost may take to connect again.
inline constexpr absl::Duration kClientPatience = absl::Seconds(2);

// How a handler is found and run; the agent's part.
//
// Thread-safety: thread-safe.
class Dispatcher : public CallCounter {
 public:
  virtual Agent* agent() = 0;
  virtual DeviceTensors* devices() const = 0;    // null: none
  virtual const std::string& self() const = 0;   // the worker's name
  virtual const std::string& build() const = 0;  // for messages
  // Ok and the function, or why the request cannot be served.
  virtual absl::StatusOr<const Function*> Find(const Request& request,
                                               Refusal* refusal) const = 0;
  virtual telemetry::FlightRecorder& recorder() = 0;
  virtual CallHistograms& histograms() = 0;
  virtual SessionHook* hook() = 0;  // null: none
  // The span of serving `request`; null where spans are not kept.
  virtual std::unique_ptr<telemetry::Span> StartSpan(
      const Worker& peer, const Request& request) = 0;
  // `peer` asks for more than rpc::Limits allow.
  virtual void OverLimit(const Worker& peer, const absl::Status& why) = 0;
  // The client that `caller` is of has not connected again in time.
  virtual void ClientVanished(Inbound& caller) = 0;
  // The receivers of attachments that come here.
  virtual AttachmentReceivers& receivers() const = 0;
  // Runs the function on the call, here or on an executor.
  virtual void Dispatch(const Function& function,
                        std::shared_ptr<ServedCall> call) = 0;
};

// What the call of `peer` that `request` is comes with. `span`: of serving it,
// which its trace then is; null: it has none.
Lineage LineageOf(const Request& request, CancelToken cancel,
                  const telemetry::Span* span);
// Has `dispatcher` dispatch the call once `attachments`, those of its request,
// are settled; ends it with why they could not be. `settled` runs first in both
// cases. Holds no thread meanwhile; a call that is cancelled ends before.
void DispatchWhenSettled(std::shared_ptr<Dispatcher> dispatcher,
                         const Function& function,
                         std::shared_ptr<ServedCall> call,
                         const ReceivedAttachments& attachments,
                         std::function<void()> settled);

// The error that the caller receives for `status` at `self`. If it is of the
// function, or of its arguments or result, it begins with the function's name.
absl::Status FunctionFailure(absl::Status status, const std::string& self,
                             const std::string& function, Phase phase);

// Thread-safety: thread-safe.
class Inbound final : public PendingSource,
                      public std::enable_shared_from_this<Inbound> {
 public:
  // One generation of the caller's session; `number` orders those of an agent
  // by when they began. A client that has not connected again for
  // kClientPatience after its connection was lost is gone; of a worker's end
  // the membership tells. `traffic` must last as long as the dispatcher.
  Inbound(Worker peer, uint64_t number, uint64_t generation, Limits limits,
          transport::Transport& transport,
          std::shared_ptr<Dispatcher> dispatcher, Traffic& traffic);

  const Worker& peer() const { return peer_; }
  uint64_t number() const { return number_; }
  uint64_t generation() const { return generation_; }

  // Takes the calls of `link` from now on; an earlier link is closed.
  void Attach(Link& link) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFrame(Link& link, Frame&& frame) ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkClosed(Link& link) ABSL_LOCKS_EXCLUDED(mu_);

  // Closes the connection once the caller has acknowledged all replies. It may
  // connect again until then, to hear the end of calls that it has made.
  void EndWhenAcknowledged() ABSL_LOCKS_EXCLUDED(mu_);
  // The caller's incarnation, or this generation of it, is no more: handlers
  // are cancelled and nothing is answered.
  void PeerGone(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  void AddPending(std::vector<PendingCall>* calls) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AddActive(ActiveCalls* active) override ABSL_LOCKS_EXCLUDED(mu_);
  void AddOpen(std::vector<std::string>* open) override
      ABSL_LOCKS_EXCLUDED(mu_);
  // Replies that the caller, while it is connected, has not acknowledged.
  size_t unacknowledged() ABSL_LOCKS_EXCLUDED(mu_);
  // Those whose function waits for a thread to run on.
  void ForEachWithoutThread(absl::FunctionRef<void(ServedCall&)> fn)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool is_idle() ABSL_LOCKS_EXCLUDED(mu_);  // not connected, nothing runs
  bool has_open_attachments() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Call;

  // What runs, held so that nothing of it ends under the lock.
  void ForEachCall(absl::FunctionRef<void(Call&)> fn) ABSL_LOCKS_EXCLUDED(mu_);

  // `from`: the link that it came by; if that is not ours any more, nothing.
  void Tell(const CalleeSession::Event& event, const Link* from = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What is to be done once the lock is gone.
  struct Due {
    bool has_actions = false;
    std::shared_ptr<Link> link;  // to be drained
    bool must_close = false;     // and then closed
  };
  Due TellLocked(const CalleeSession::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(const Due& due) ABSL_LOCKS_EXCLUDED(mu_);
  void Run(CalleeSession::Action& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Serve(RequestPtr request) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers `request` without running it.
  void Refuse(const Request& request, absl::Status why, Refusal refusal)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(absl::string_view function, ReplyPtr reply)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetTimer(Instant when) ABSL_LOCKS_EXCLUDED(mu_);

  const Worker peer_;
  const uint64_t number_;
  const uint64_t generation_;
  transport::Transport& transport_;
  const std::shared_ptr<Dispatcher> dispatcher_;
  Traffic& traffic_;

  Mutex mu_;
  CalleeSession session_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mu_);
  // A call takes itself out before it ends.
  IdMap<Call*> running_ ABSL_GUARDED_BY(mu_);
  std::vector<CalleeSession::Action> emitted_ ABSL_GUARDED_BY(mu_);  // scratch
  ActionQueue<CalleeSession::Action> actions_;                       // with mu_
  SessionTimer timer_;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_INBOUND_H_
