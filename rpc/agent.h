// Agent: one worker's end of all calls.
//
//   WEFT_ASSIGN_OR_RETURN(auto agent, rpc::Agent::Create(options));
//   rpc::Target ps = agent->To("ps0");
//   WEFT_ASSIGN_OR_RETURN(Tensor y, rpc::Call(ps, Scale, x, 2.0));
//
// It serves from the moment it is made. To call itself is to call anybody:
// arguments and results are copied.

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

// Who may call some functions, whatever they were registered with.
struct AccessRule {
  std::string functions;  // a name, or the beginning of names: "ps::*"
  net::Roles roles;
};

// How busy an agent is, and with whom.
struct AgentMetrics {
  // Of the agent's own pool, else of AgentOptions::pool; 0 without either.
  int pool_threads = 0;
  int idle_threads = 0;
  int64_t client_active_calls = 0;  // made here and not ended
  int64_t server_active_calls = 0;  // served here and not ended
  // Of them, by a Future that is to come.
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
  // with `threads`. One that waits for a Future, or in a BlockingScope
  // (base/driver.h), is replaced by another thread, up to `max_threads` in all.
  // With all of them waiting, and none of them going on, calls that have waited
  // for a thread for half of their time, or 10 s, end with kResourceExhausted.
  Executor* executor = nullptr;
  int threads = 16;
  int max_threads = 4096;
  // `executor`, where that is a pool: so that its threads are counted by
  // Metrics(), and calls that get none end as above. Must outlive the agent.
  const ThreadPool* pool = nullptr;

  // Of calls that name none; see SetDefaultTimeout. Not negative.
  absl::Duration default_timeout = absl::Seconds(60);
  Limits limits;  // what peers may ask of this worker at a time
  // The first that matches counts; else what WEFT_RPC_ROLES says of the
  // function; else net::Roles::Members(). Callers without a certificate are not
  // asked: see net::Roles::Check.
  std::vector<AccessRule> access;
  // A peer that cannot be reached for so long is given up: its calls end with
  // kUnavailable.
  absl::Duration give_up_after = absl::Seconds(10);
  // What the results may take, with what each costs besides, that are on their
  // way from one peer at a time. One that is too much ends its call with
  // kResourceExhausted; others are not touched.
  int64_t result_bytes = int64_t{4} << 30;
  std::string build;                   // shown in errors; empty: Weft's version
  const Registry* registry = nullptr;  // null: Registry::Global()
  SessionHook* hook = nullptr;         // of simulations; must outlive the agent
};

// Thread-safety: thread-safe.
class Agent {
 public:
  // kInvalidArgument, naming the option, for what makes no sense.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  // Ends what is open with kCancelled, without waiting for the network.
  ~Agent();

  // A worker to call. By name: whichever incarnation has it when a call is
  // made; it need not be there yet. By key, or by what the directory or
  // CallContext::peer() say: that incarnation, and no other. See Target.
  //
  // Without a `timeout` each call takes the agent's default of that moment; an
  // infinite one never passes; with a negative one, calls are kInvalidArgument.
  // So they are for a name that no worker can have, and kNotFound, with the
  // names that are known, for one that no worker has. By key the worker is
  // looked for here, as Target says of a call by name.
  Target To(absl::string_view name,
            std::optional<absl::Duration> timeout = std::nullopt);
  Target To(WorkerKey key,
            std::optional<absl::Duration> timeout = std::nullopt);
  Target To(const Worker& worker,
            std::optional<absl::Duration> timeout = std::nullopt);
  // All living workers that `selector` matches, as Directory::Select, each by
  // name. To call them from a handler, take each Within() its context.
  absl::StatusOr<std::vector<Target>> ToAll(
      absl::string_view selector,
      std::optional<absl::Duration> timeout = std::nullopt);

  // For calls made from now on. kInvalidArgument if it is negative.
  absl::Status SetDefaultTimeout(absl::Duration timeout);
  absl::Duration default_timeout() const;

  // What handlers find by CallContext::Local<T>(), until it is replaced. A call
  // that has found it shares it, so that it may be let go while calls run.
  template <typename T>
  void SetLocal(std::shared_ptr<T> object) {
    SetLocalObject(&internal::kTypeKey<T>, std::move(object));
  }
  // The same; `object` must outlive the agent.
  template <typename T>
  void SetLocal(T* object) {
    SetLocal(std::shared_ptr<T>(std::shared_ptr<void>(), object));
  }

  // What SetLocal attached, or null; for a Codec, which has an agent by its
  // context().
  template <typename T>
  std::shared_ptr<T> Local() const {
    return std::static_pointer_cast<T>(FindLocalObject(&internal::kTypeKey<T>));
  }

  // Membership says that this incarnation is gone, and with it all earlier
  // ones: its calls end, those that were out with OutcomeUnknown, and it is
  // heard no more. `left`: by its own wish, so that Leaks() names what it
  // left here.
  void PeerGone(WorkerKey key, absl::string_view why, bool left = false);

  // Runs `callback` for each PeerGone, after the calls from and to the
  // incarnations that are gone were told to end, the attachments of both were
  // told kAbandoned, and what they hold was released. Handlers that serve one
  // of them may still run: what they add afterwards they must look for
  // themselves, as CallContext::cancel() fires before. On the thread that tells
  // of the end, under no lock of rpc; must not block or throw. None for calls
  // of a client: it is not a member, and ends with its session. Callbacks run
  // in the order of registration, perhaps twice for one key, until the
  // Registration is let go; one that is running on another thread then goes on,
  // so hold what it needs by a weak_ptr.
  struct GonePeer {
    WorkerKey key;  // and all incarnations of key.id with a smaller epoch
    std::string why;
    bool left = false;  // by its own wish
  };
  using PeerGoneCallback = std::function<void(const GonePeer&)>;
  using PeerGoneRegistration = std::shared_ptr<const void>;
  [[nodiscard]] PeerGoneRegistration OnPeerGone(PeerGoneCallback callback);

  // Who takes the attachments of `kind` that come with requests and replies
  // (attachment.h), until the agent ends. Set it before the first call may
  // come: messages with attachments that nobody takes are refused.
  // kAlreadyExists if somebody takes them; kInvalidArgument for a bad kind.
  absl::Status SetAttachmentReceiver(
      absl::string_view kind, std::shared_ptr<AttachmentReceiver> receiver);

  // What this worker keeps for others; for libraries that let several workers
  // hold one object.
  ObjectTable& objects();

  // This incarnation is out of its job, as `why` says: ends the calls in
  // progress and refuses new ones in both directions. Peers are told
  // kUnavailable for Reason::kPeerGone, who calls here kAborted.
  void OutOfJob(const absl::Status& why);

  // Waits until this agent neither has calls out nor serves any; refuses none.
  // kDeadlineExceeded says which there still are.
  absl::Status AwaitIdle(absl::Duration timeout);
  // The calls in progress, by peer: "2 calls to ps0", "1 calls of trainer1".
  std::vector<std::string> OpenCalls() const;

  // Refuses new calls in both directions, waits until those in progress have
  // ended, and after `timeout` ends them: then kDeadlineExceeded says which.
  // Refused ones have Reason::kShuttingDown: kUnavailable for peers,
  // kFailedPrecondition for who calls here.
  absl::Status Shutdown(absl::Duration timeout);
  // What Shutdown() ended in progress, as OpenCalls() says it; none before it.
  std::vector<std::string> CutCalls() const;

  // What nobody has let go of: handles that were made here and not released,
  // what others keep here or have left here when they left, and the streams
  // that Shutdown() has ended. Of peers that died there is nothing.
  std::vector<Leak> Leaks() const;

  // Also exported as weft_rpc_* by the Metrics of its Telemetry.
  AgentMetrics Metrics();
  // The calls that are made or served here, for WaitsFor.
  std::vector<PendingCall> Pending();
  telemetry::Telemetry& telemetry() const;
  // What its section of the status page says.
  telemetry::Fields DebugInfo();

  const std::string& name() const;
  WorkerKey key() const;

  // For what brings calls without a session: see untyped_call_service.h.
  std::weak_ptr<SessionlessServer> sessionless_server() const;

 private:
  friend class AgentState;
  friend class CallContext;
  friend class internal::CallStarter;
  explicit Agent(std::shared_ptr<AgentState> state);
  Target ByName(absl::string_view name, std::optional<absl::Duration> timeout,
                std::shared_ptr<const Lineage> lineage);
  Target ByKey(WorkerKey key, std::optional<absl::Duration> timeout,
               std::shared_ptr<const Lineage> lineage);
  void SetLocalObject(const void* type_key, std::shared_ptr<void> object);
  std::shared_ptr<void> FindLocalObject(const void* type_key) const;

  std::shared_ptr<AgentState> state_;
};

// What is pending at the worker that `target` names, but for questions such as
// this one.
Future<std::vector<PendingCall>> AskPending(const Target& target);

// Asks `workers` for what is pending there; what this agent knows is added. Who
// has not answered within `timeout` is left out, and named in `silent` unless
// that is null. Not in an inline function.
WaitsFor AskWaitsFor(Agent& agent, const std::vector<std::string>& workers,
                     absl::Duration timeout,
                     std::vector<std::string>* silent = nullptr);

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_H_
