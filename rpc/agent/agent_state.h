// AgentState: what the agent's parts share. Its functions lie by what they are
// for: agent_state.cc its life and its calls, agent_admission.cc who may call,
// agent_serving.cc what is served, agent_report.cc what it reports.

#ifndef WEFT_RPC_AGENT_AGENT_STATE_H_
#define WEFT_RPC_AGENT_AGENT_STATE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/net/refusal_log.h"
#include "weft/rendezvous/member.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/agent/batcher.h"
#include "weft/rpc/agent/call_histograms.h"
#include "weft/rpc/agent/device_waits.h"
#include "weft/rpc/agent/function_access.h"
#include "weft/rpc/agent/handler_threads.h"
#include "weft/rpc/agent/inbound.h"
#include "weft/rpc/agent/ordered_queue.h"
#include "weft/rpc/agent/outbound.h"
#include "weft/rpc/agent/retry.h"
#include "weft/rpc/agent/sessionless_call.h"
#include "weft/rpc/agent_parts.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/diagnostics/leaks.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/diagnostics/traffic.h"
#include "weft/rpc/session/gone_epochs.h"
#include "weft/telemetry/telemetry.h"

namespace weft::rpc {

namespace internal {

// A worker that is called by name, and who that was when it was last asked.
//
// Thread-safety: thread-safe.
class NamedWorker {
 public:
  // The versions of the directory, and of what this agent knows of incarnations
  // that are gone: while both are the same, the name means the same
  // incarnation.
  using Version = std::pair<uint64_t, uint64_t>;

  explicit NamedWorker(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // Null unless it was found at this version.
  std::shared_ptr<Caller> FoundAt(Version version) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return version == version_ ? caller_ : nullptr;
  }
  void SetFound(Version version, std::shared_ptr<Caller> caller)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    version_ = version;
    caller_.swap(caller);  // the former one ends without the lock
  }

 private:
  const std::string name_;
  mutable Mutex mu_;
  Version version_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Caller> caller_ ABSL_GUARDED_BY(mu_);
};

// How a call ends of `worker` that was not found, as `why` says.
absl::Status NotThere(const absl::Status& why, const std::string& worker);

}  // namespace internal

// The peer's identity that a connection proves; empty where it proves none.
struct Proof {
  std::string name;
  std::string role;
};

// An order that is the same in each run of a simulation.
template <typename T>
void SortByPeer(std::vector<std::shared_ptr<T>>* all) {
  std::sort(all->begin(), all->end(), [](const auto& a, const auto& b) {
    const WorkerKey x = a->peer().key;
    const WorkerKey y = b->peer().key;
    return std::tie(x.id, x.epoch) < std::tie(y.id, y.epoch);
  });
}

// What the agent's parts share. It outlives the Agent where a thread of the
// transport still holds it; nothing of the options is used then.
class AgentState final : public Dispatcher,
                         public SessionlessServer,
                         public std::enable_shared_from_this<AgentState> {
 public:
  explicit AgentState(AgentOptions options, const Registry* registry)
      : options_(std::move(options)),
        registry_(*registry),
        telemetry_(telemetry::OrSilent(options_.telemetry)),
        parts_(options_.key, options_.transport->driver(), options_.limits) {
    SetDefaultTimeout(options_.default_timeout);
  }

  absl::Status Start(Agent* agent);
  // Ends everything and waits for the handlers, which were cancelled.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> StillOpen() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> CutCalls() const ABSL_LOCKS_EXCLUDED(mu_);
  void OutOfJob(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the calls in both directions; handlers are cancelled.
  void EndCalls(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the connections in both directions, each once nothing is owed there.
  void EndConnections(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  void PauseToCheck();

  const AgentOptions& options() const { return options_; }
  absl::Duration default_timeout() const {
    const int64_t ns = default_timeout_ns_.load(std::memory_order_relaxed);
    return Instant::FromNanoseconds(ns).is_infinite() ? absl::InfiniteDuration()
                                                      : absl::Nanoseconds(ns);
  }
  void SetDefaultTimeout(absl::Duration timeout) {
    default_timeout_ns_ = (Instant() + timeout).nanoseconds();
  }
  transport::Transport& transport() const { return *options_.transport; }
  absl::Status SetDevices(DeviceOptions options) ABSL_LOCKS_EXCLUDED(mu_);
  // Null: none were set.
  DeviceTensors* devices() const override {
    return devices_.load(std::memory_order_acquire);
  }
  // What starts calls as `caller` does, once their tensors are copied from
  // their devices.
  std::shared_ptr<internal::Caller> AfterCopies(
      std::shared_ptr<internal::Caller> caller) {
    return device_waits_->Before(std::move(caller), threads_->executor());
  }

  // kInvalidArgument for a name that no worker can have; kUnavailable, for
  // Reason::kPeerGone, of one that is gone.
  absl::StatusOr<Worker> Find(absl::string_view name) const;
  absl::StatusOr<Worker> Find(WorkerKey key) const;
  // As Find; who is not there is looked for again once the directory has caught
  // up, for which this waits for up to `timeout`, and not in an InlineScope.
  template <typename NameOrKey>
  absl::StatusOr<Worker> FindNow(NameOrKey worker,
                                 absl::Duration timeout) const;
  absl::StatusOr<std::shared_ptr<internal::Caller>> CallerFor(
      absl::StatusOr<Worker> worker) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls the incarnation that has the name now, as FindNow says it; asks for
  // its time-out only if it must look.
  absl::StatusOr<std::shared_ptr<internal::Caller>> CallerOf(
      internal::NamedWorker& worker,
      absl::FunctionRef<absl::Duration()> timeout) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CanCall() ABSL_LOCKS_EXCLUDED(mu_);
  // Why `worker`, for which there is no caller because of `why`, cannot be
  // called: who has left sees the others no more, so that they cannot be found
  // says nothing then.
  absl::Status NotThere(const absl::Status& why, const std::string& worker)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls under `policy`: whoever has the name at each attempt, or, if `peer`
  // has a key, that very incarnation.
  std::shared_ptr<internal::Caller> Retrying(Worker peer,
                                             const RetryPolicy& policy);
  // For calls to `peer` in the order in which they are made.
  std::shared_ptr<internal::OrderedQueue> NewQueue(const std::string& peer)
      ABSL_LOCKS_EXCLUDED(mu_);
  const FunctionAccess& access() const { return access_; }
  void PeerGone(WorkerKey key, absl::string_view why, bool left)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetLocal(const void* type_key, std::shared_ptr<void> object)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<void> FindLocal(const void* type_key)
      ABSL_LOCKS_EXCLUDED(mu_);
  Agent::PeerGoneRegistration OnPeerGone(Agent::PeerGoneCallback callback)
      ABSL_LOCKS_EXCLUDED(mu_);
  AttachmentReceivers& receivers() const override { return shared_->receivers; }
  internal::AgentParts& parts() { return parts_; }
  std::vector<Leak> Leaks() const ABSL_LOCKS_EXCLUDED(mu_);

  // Hears a connection that somebody opened.
  std::shared_ptr<transport::ConnectionObserver> AcceptConnection(
      std::unique_ptr<transport::Connection> connection);
  // Answers a peer's first frame. Null: it was refused.
  std::shared_ptr<Inbound> Admit(Link& link, const Hello& hello,
                                 const Proof& proof) ABSL_LOCKS_EXCLUDED(mu_);

  Agent* agent() override { return agent_; }
  const std::string& self() const override { return options_.name; }
  const std::string& build() const override { return options_.build; }
  absl::StatusOr<const Function*> Find(const Request& request,
                                       Refusal* refusal) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Dispatch(const Function& function,
                std::shared_ptr<ServedCall> call) override;
  std::unique_ptr<telemetry::Span> StartSpan(const Worker& peer,
                                             const Request& request) override;
  telemetry::Telemetry& telemetry() const { return telemetry_; }
  CallHistograms& histograms() override { return shared_->histograms; }
  telemetry::FlightRecorder& recorder() override {
    return telemetry_.recorder();
  }
  AgentMetrics Metrics() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<PendingCall> Pending() ABSL_LOCKS_EXCLUDED(mu_);
  telemetry::Fields Describe() ABSL_LOCKS_EXCLUDED(mu_);
  SessionHook* hook() override { return options_.hook; }
  void OverLimit(const Worker& peer, const absl::Status& why) override;
  void ClientVanished(Inbound& caller) override ABSL_LOCKS_EXCLUDED(mu_);
  void CallBegan() override;
  void CallEnded() override;

  const std::string& job() const override { return options_.job; }
  Worker worker() const override { return {options_.name, options_.key, ""}; }
  const Registry& registry() const override { return registry_; }
  internal::Caller::Abandon ServeSessionless(
      Worker caller, RequestPtr request, CancelToken gone,
      internal::Caller::Done done) override ABSL_LOCKS_EXCLUDED(mu_);
  bool MayCall(const Function& function, const Worker& caller) const override;

 private:
  class PendingPeer;
  using OutboundMap = absl::flat_hash_map<WorkerKey, std::shared_ptr<Outbound>>;
  using InboundMap = absl::flat_hash_map<WorkerKey, std::shared_ptr<Inbound>>;

  // What a Hello leads to.
  struct HelloOutcome {
    Welcome welcome;
    std::shared_ptr<Inbound> inbound;  // null: it is refused
    // Sessions that make room for it; they are to be ended without the lock.
    std::vector<std::shared_ptr<Inbound>> ended;
  };
  void DecideWelcome(const Hello& hello, const Proof& proof,
                     HelloOutcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckHello(const Hello& hello, const Proof& proof)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckKey(const Hello& hello, const Proof& proof)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckNotGone(const std::string& name, WorkerKey key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing is begun any more, for `why`; the first one counts.
  void Refuse(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // The calls that are open are about to be cut: streams are leaks then.
  void NoteCut() ABSL_LOCKS_EXCLUDED(mu_);
  // So that there is room for a session of `name`.
  void ForgetIdle(const std::string& name, HelloOutcome* outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Hello MakeHello(const Worker& peer) const;
  // Frees what a session of `peer`, which has ended, stood for.
  void SessionEnded(const Worker& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Export() ABSL_LOCKS_EXCLUDED(mu_);
  // In the order of SortByPeer.
  std::vector<OutboundMap::mapped_type> Outbounds() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<InboundMap::mapped_type> Inbounds() ABSL_LOCKS_EXCLUDED(mu_);
  Batcher& BatcherOf(const Function& function) ABSL_LOCKS_EXCLUDED(mu_);
  void Run(const Function& function, std::shared_ptr<ServedCall> call)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ForEachWithoutThread(absl::FunctionRef<void(ServedCall&)> fn)
      ABSL_LOCKS_EXCLUDED(mu_);
  // All who know of calls that have not ended, those of sessions first.
  void ForEachSource(absl::FunctionRef<void(PendingSource&)> fn)
      ABSL_LOCKS_EXCLUDED(mu_);

  const AgentOptions options_;
  const Registry& registry_;
  telemetry::Telemetry& telemetry_;
  net::RefusalLog refusal_log_{telemetry_};
  FunctionAccess access_{options_, registry_, refusal_log_};
  internal::AgentParts parts_;
  Agent* agent_ = nullptr;
  std::shared_ptr<HandlerThreads> threads_;  // timers hold it
  telemetry::StatusPage::Registration status_page_;
  std::unique_ptr<telemetry::Metrics::Refresher> metrics_;
  const std::shared_ptr<Outbound::Shared> shared_ =
      std::make_shared<Outbound::Shared>(
          registry_, std::make_shared<ConnectQueue>(
                         transport().clock(),
                         [transport = options_.transport](
                             Instant when, std::function<void()> fn) {
                           transport->RunAt(when, std::move(fn));
                         },
                         options_.key.id));
  SessionlessCalls sessionless_calls_;
  const std::shared_ptr<internal::RetriedCalls> retried_ =
      std::make_shared<internal::RetriedCalls>(options_.transport->clock());
  const std::shared_ptr<internal::DeviceWaits> device_waits_ =
      std::make_shared<internal::DeviceWaits>(*options_.transport);
  OrderedQueueTable queues_;
  // The counts that the Metrics have. For one reading at a time.
  std::map<std::string, Traffic::Counts> exported_;
  CancelSource ending_;                 // of the calls of this agent by itself
  std::atomic<bool> refuses_{false};    // peers too, as ended_ says
  std::atomic<bool> has_ended_{false};  // ended_ is set
  // Shutdown() has begun and cut nothing: callers whose connection breaks may
  // come back for the ends of their calls.
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> has_stopped_{false};        // no function begins any more
  std::atomic<int64_t> default_timeout_ns_{0};  // as an Instant after 0
  std::atomic<DeviceTensors*> devices_{nullptr};

  mutable Mutex mu_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);            // why calls are refused
  absl::Status connections_end_ ABSL_GUARDED_BY(mu_);  // why none is opened
  OutboundMap outbounds_ ABSL_GUARDED_BY(mu_);
  InboundMap inbounds_ ABSL_GUARDED_BY(mu_);
  uint64_t inbounds_begun_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<internal::Caller> self_caller_ ABSL_GUARDED_BY(mu_);
  GoneEpochs gone_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const void*, std::shared_ptr<void>> locals_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Function*, std::shared_ptr<Batcher>> batchers_
      ABSL_GUARDED_BY(mu_);
  // Objects here of who has left, and streams that were cut.
  LeakList leaks_ ABSL_GUARDED_BY(mu_);
  bool has_cut_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::string> cut_ ABSL_GUARDED_BY(mu_);  // as StillOpen() says
  // How often PeerGone was called.
  std::atomic<uint64_t> times_gone_{0};
  std::vector<std::weak_ptr<Agent::PeerGoneCallback>> on_peer_gone_
      ABSL_GUARDED_BY(mu_);
  std::shared_ptr<DeviceTensors> owned_devices_ ABSL_GUARDED_BY(mu_);
  uint64_t last_queue_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::weak_ptr<internal::OrderedQueue>> own_queues_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_AGENT_STATE_H_
