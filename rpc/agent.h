// Agent: one worker's end of all calls.
//
//   WEFT_ASSIGN_OR_RETURN(auto agent, rpc::Agent::Create(options));
//   rpc::Target ps = agent->To("ps0");
//   WEFT_ASSIGN_OR_RETURN(Tensor y, rpc::Call(ps, Scale, x, 2.0));
//
// It serves calls as soon as it is created. Calls to itself are like other
// calls: arguments and results are copied.

#ifndef WEFT_RPC_AGENT_H_
#define WEFT_RPC_AGENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/executor.h"
#include "weft/net/tls/roles.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/device_tensors.h"
#include "weft/rpc/connection/purpose.h"
#include "weft/rpc/diagnostics/leaks.h"
#include "weft/rpc/diagnostics/traffic.h"
#include "weft/rpc/diagnostics/waits_for.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/limits.h"
#include "weft/telemetry/telemetry.h"
#include "weft/transport/transport.h"

namespace weft {
class ThreadPool;
}  // namespace weft

namespace weft::rpc {

class AgentState;

class SessionlessServer;
class SessionHook;

// The roles that may call some functions, in place of those that they were
// registered with.
struct AccessRule {
  std::string functions;  // a name, or the beginning of names: "ps::*"
  net::Roles roles;
};

// How busy an agent is, and with which peers.
struct AgentMetrics {
  // The threads of the agent's own pool, else of AgentOptions::pool; 0 without
  // either.
  int pool_threads = 0;
  int idle_threads = 0;
  int64_t client_active_calls = 0;  // made here and not ended
  int64_t server_active_calls = 0;  // served here and not ended
  // Those of them that end by a Future that is to come.
  int64_t server_active_async_calls = 0;
  std::map<std::string, Traffic::Counts> peers;  // since the agent began
};

struct AgentOptions {
  std::string job;  // peers of another job are refused
  std::string name;
  WorkerKey key;

  // The three must outlive the agent.
  transport::Transport* transport = nullptr;
  Directory* directory = nullptr;
  telemetry::Telemetry* telemetry = nullptr;  // null: silent

  // Where handlers run; must outlive the agent. Null: a pool of the agent's own
  // with `threads`. A handler that waits for a Future, or in a BlockingScope
  // (base/driver.h), is replaced by another thread, up to `max_threads` in all.
  // If all threads wait and none makes progress, calls that have waited for a
  // thread for half of their timeout, or 10 s, end with kResourceExhausted.
  Executor* executor = nullptr;
  int threads = 16;
  int max_threads = 4096;
  // `executor`, where that is a pool: so that its threads are counted by
  // Metrics(), and calls that get none end as above. Must outlive the agent.
  const ThreadPool* pool = nullptr;

  // Timeout of calls that have none of their own; see SetDefaultTimeout. Not
  // negative.
  absl::Duration default_timeout = absl::Seconds(60);
  Limits limits;  // what peers may ask of this worker at a time
  // The first rule that matches a function counts; else its WEFT_RPC_ROLES;
  // else net::Roles::Members(). Callers without a certificate are not checked:
  // see net::Roles::Check.
  std::vector<AccessRule> access;
  // A peer that cannot be reached for so long is given up: its calls end with
  // kUnavailable.
  absl::Duration give_up_after = absl::Seconds(10);
  // Bytes of results, with their overhead, that may be in transit from one peer
  // at a time. A result beyond it ends its call with kResourceExhausted; other
  // calls go on.
  int64_t result_bytes = int64_t{4} << 30;
  std::string build;                   // shown in errors; empty: Weft's version
  const Registry* registry = nullptr;  // null: Registry::Global()
  SessionHook* hook = nullptr;         // of simulations; must outlive the agent
};

// Thread-safety: thread-safe.
class Agent {
 public:
  // kInvalidArgument names an option with an invalid value.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  // Ends open calls with kCancelled, without waiting for the network.
  ~Agent();

  // A worker to call. By name: the incarnation that has the name when a call is
  // made; it need not be there yet. By key, or by a Worker of the directory or
  // of CallContext::peer(): that incarnation, and no other. See Target.
  //
  // Without a `timeout` each call takes the agent's default of that moment; an
  // infinite one never passes; with a negative one, calls end with
  // kInvalidArgument, as they do for an invalid name. For a name that no worker
  // has they end with kNotFound and the known names. By key the worker is
  // looked up here, in the way that Target describes for a call by name.
  Target To(absl::string_view name,
            std::optional<absl::Duration> timeout = std::nullopt);
  Target To(WorkerKey key,
            std::optional<absl::Duration> timeout = std::nullopt);
  Target To(const Worker& worker,
            std::optional<absl::Duration> timeout = std::nullopt);
  // All living workers that `selector` matches, as Directory::Select, each by
  // name. To call them from a handler, use Within() with its context on each.
  absl::StatusOr<std::vector<Target>> ToAll(
      absl::string_view selector,
      std::optional<absl::Duration> timeout = std::nullopt);

  // Lets calls carry tensors of devices, from now on: device_tensors.h. Without
  // it they are refused with kInvalidArgument, which names the device. Set it
  // before the first call; once: kFailedPrecondition for a second time.
  // kInvalidArgument for options that make no sense.
  absl::Status SetDevices(DeviceOptions options);

  // For calls made from now on. kInvalidArgument if it is negative.
  absl::Status SetDefaultTimeout(absl::Duration timeout);
  absl::Duration default_timeout() const;

  // The object that handlers get by CallContext::Local<T>(), until it is
  // replaced. A call that has got it shares it, so that it may be released
  // while calls run.
  template <typename T>
  void SetLocal(std::shared_ptr<T> object) {
    SetLocalObject(&internal::kTypeKey<T>, std::move(object));
  }
  // The same; `object` must outlive the agent.
  template <typename T>
  void SetLocal(T* object) {
    SetLocal(std::shared_ptr<T>(std::shared_ptr<void>(), object));
  }

  // The object that SetLocal attached, or null; for a Codec, which has an agent
  // by its context().
  template <typename T>
  std::shared_ptr<T> Local() const {
    return std::static_pointer_cast<T>(FindLocalObject(&internal::kTypeKey<T>));
  }

  // Membership says that this incarnation is gone, and with it all earlier
  // ones: its calls end, those that were sent with OutcomeUnknown, and its
  // messages are ignored. `left`: it left in good order, so that Leaks() names
  // the objects that it left here.
  void PeerGone(WorkerKey key, absl::string_view why, bool left = false);

  // Runs `callback` for each PeerGone, after the calls from and to the
  // incarnations that are gone were ended, the attachments of both received
  // kAbandoned, and what they hold was released. Handlers that serve one of
  // them may still run: they must clean up what they add afterwards, as
  // CallContext::cancel() fires before. It runs on the thread that reports the
  // end, under no lock of rpc; it must not block or throw. None for calls of a
  // client: it is not a member, and ends with its session. Callbacks run in the
  // order of registration, perhaps twice for one key, until the Registration is
  // destroyed; one that is running on another thread then goes on, so hold what
  // it needs by a weak_ptr.
  struct GonePeer {
    WorkerKey key;  // and all incarnations of key.id with a smaller epoch
    std::string why;
    bool left = false;  // in good order
  };
  using PeerGoneCallback = std::function<void(const GonePeer&)>;
  using PeerGoneRegistration = std::shared_ptr<const void>;
  [[nodiscard]] PeerGoneRegistration OnPeerGone(PeerGoneCallback callback);

  // Sets the receiver of the attachments of `kind` that come with requests and
  // replies (attachment.h), until the agent ends. Set it before the first call
  // may come: messages with attachments that nobody takes are refused.
  // kAlreadyExists if somebody takes them; kInvalidArgument for a bad kind.
  absl::Status SetAttachmentReceiver(
      absl::string_view kind, std::shared_ptr<AttachmentReceiver> receiver);

  // The objects that this worker keeps for others; for libraries that let
  // several workers hold one object.
  ObjectTable& objects();

  // This incarnation is out of its job, as `why` says: ends the calls in
  // progress and refuses new ones in both directions. Calls of peers end with
  // kUnavailable for Reason::kPeerGone, calls made here with kAborted.
  void OutOfJob(const absl::Status& why);

  // Waits until no call from or to this agent is in progress; refuses none.
  // kDeadlineExceeded names those that still are.
  absl::Status AwaitIdle(absl::Duration timeout);
  // The calls in progress, by peer: "2 calls to ps0", "1 calls of trainer1".
  std::vector<std::string> OpenCalls() const;

  // Refuses new calls in both directions, waits until those in progress have
  // ended, and after `timeout` ends them: then kDeadlineExceeded names them.
  // Refused calls have Reason::kShuttingDown: those of peers end with
  // kUnavailable, those made here with kFailedPrecondition.
  absl::Status Shutdown(absl::Duration timeout);
  // The calls that Shutdown() ended in progress, in the form of OpenCalls();
  // none before it.
  std::vector<std::string> CutCalls() const;

  // Objects that were not released: handles that were made here and not
  // released, objects that others keep here or had not released when they left,
  // and the streams that Shutdown() has ended. Objects of peers that died are
  // not listed.
  std::vector<Leak> Leaks() const;

  // Also exported as weft_rpc_* by the Metrics of its Telemetry.
  AgentMetrics Metrics();
  // The calls that are made or served here, for WaitsFor.
  std::vector<PendingCall> Pending();
  telemetry::Telemetry& telemetry() const;
  // The text of its section of the status page.
  telemetry::Fields DebugInfo();

  const std::string& name() const;
  WorkerKey key() const;

  // For services that receive calls without a session: see
  // untyped_call_service.h.
  std::weak_ptr<SessionlessServer> sessionless_server() const;

 private:
  friend class AgentState;
  friend class CallContext;
  friend class internal::CallStarter;
  explicit Agent(std::shared_ptr<AgentState> state);
  void SetLocalObject(const void* type_key, std::shared_ptr<void> object);
  std::shared_ptr<void> FindLocalObject(const void* type_key) const;

  std::shared_ptr<AgentState> state_;
};

// The calls pending at the worker that `target` names, except queries such as
// this one.
Future<std::vector<PendingCall>> AskPending(const Target& target);

// Asks `workers` for the calls pending there; those pending at this agent are
// added. A worker that has not answered within `timeout` is left out, and named
// in `silent` unless that is null. Not in an inline function.
WaitsFor AskWaitsFor(Agent& agent, const std::vector<std::string>& workers,
                     absl::Duration timeout,
                     std::vector<std::string>* silent = nullptr);

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_H_
