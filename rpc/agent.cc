#include "weft/rpc/agent.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/thread_pool.h"
#include "weft/net/audit.h"
#include "weft/rendezvous/member.h"
#include "weft/rpc/batcher.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/inbound.h"
#include "weft/rpc/link.h"
#include "weft/rpc/lone_call.h"
#include "weft/rpc/outbound.h"
#include "weft/rpc/outcome.h"
#include "weft/rpc/retry.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/wire.h"

namespace weft::rpc {
namespace {

// Sessions of callers that may have gone without a word are forgotten beyond
// this many. A caller that comes back is told so.
constexpr size_t kMaxIdleSessions = 1024;
// What a stranger may take to say who it is, and to read why it was refused.
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
// How often Shutdown looks whether all has ended.
constexpr absl::Duration kDrainCheck = absl::Milliseconds(2);

// An order that is the same in each run of a simulation.
template <typename T>
void SortByPeer(std::vector<std::shared_ptr<T>>* all) {
  std::sort(all->begin(), all->end(), [](const auto& a, const auto& b) {
    const WorkerKey x = a->peer().key;
    const WorkerKey y = b->peer().key;
    return std::tie(x.id, x.epoch) < std::tie(y.id, y.epoch);
  });
}

// Who a connection proves its peer to be; empty where it proves nothing.
struct Proof {
  std::string name;
  std::string role;
};

bool Matches(const AccessRule& rule, absl::string_view function) {
  absl::string_view wanted = rule.functions;
  return absl::ConsumeSuffix(&wanted, "*") ? absl::StartsWith(function, wanted)
                                           : function == wanted;
}

}  // namespace

// What the agent's parts share. It outlives the Agent where a thread of the
// transport still holds it; nothing of the options is used then.
class Agent::Core final : public Dispatcher,
                          public LoneServer,
                          public std::enable_shared_from_this<Agent::Core> {
 public:
  explicit Core(AgentOptions options, const Registry* registry)
      : options_(std::move(options)),
        registry_(*registry),
        telemetry_(telemetry::OrSilent(options_.telemetry)),
        objects_(options_.limits.objects) {
    SetDefaultTimeout(options_.default_timeout);
  }

  absl::Status Start(Agent* agent);
  // Ends everything and waits for the handlers, which have been told.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> StillOpen() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the calls in both directions; handlers are told.
  void EndCalls(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  const AgentOptions& options() const { return options_; }
  absl::Duration default_timeout() const {
    return Instant::FromNanoseconds(default_timeout_ns_.load()) - Instant();
  }
  void SetDefaultTimeout(absl::Duration timeout) {
    default_timeout_ns_ = (Instant() + timeout).nanoseconds();
  }
  Transport& transport() const { return *options_.transport; }

  // kInvalidArgument for a name that no worker can have.
  absl::StatusOr<Worker> Find(absl::string_view name) const {
    WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(name));
    return options_.directory->Find(name);
  }
  absl::StatusOr<std::shared_ptr<internal::Caller>> CallerFor(
      absl::StatusOr<Worker> worker) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CanCall() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls the incarnation of the moment, under `policy`.
  std::shared_ptr<internal::Caller> Retrying(Worker peer,
                                             const RetryPolicy& policy);
  absl::StatusOr<const Function*> FindOwn(Function::Address address) const;
  absl::StatusOr<const Function*> FindOwn(absl::string_view method) const;
  void PeerGone(WorkerKey key, absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  void SetLocal(const void* type_key, std::shared_ptr<void> object)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<void> FindLocal(const void* type_key)
      ABSL_LOCKS_EXCLUDED(mu_);
  ObjectTable& objects() { return objects_; }

  // Hears a connection that somebody opened.
  std::shared_ptr<ConnectionObserver> Greet(
      std::shared_ptr<Connection> connection);
  // Answers a peer's first frame. Null: it was refused.
  std::shared_ptr<Inbound> Admit(Link& link, const Hello& hello,
                                 const Proof& proof) ABSL_LOCKS_EXCLUDED(mu_);

  Agent* agent() override { return agent_; }
  const std::string& self() const override { return options_.name; }
  const std::string& build() const override { return options_.build; }
  absl::StatusOr<const Function*> Find(const Request& request,
                                       Refusal* refusal) const override;
  void Dispatch(const Function& function,
                std::shared_ptr<ServedCall> call) override;
  telemetry::Span StartSpan(const Worker& peer,
                            const Request& request) override;
  telemetry::Telemetry& telemetry() const { return telemetry_; }
  telemetry::FlightRecorder& recorder() override {
    return telemetry_.recorder();
  }
  AgentMetrics Metrics() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<PendingCall> Pending() ABSL_LOCKS_EXCLUDED(mu_);
  telemetry::Fields Describe() ABSL_LOCKS_EXCLUDED(mu_);
  void CallBegan() override ABSL_LOCKS_EXCLUDED(handlers_mu_);
  void CallEnded() override ABSL_LOCKS_EXCLUDED(handlers_mu_);

  const std::string& job() const override { return options_.job; }
  Worker worker() const override { return {options_.name, options_.key, ""}; }
  const Registry& registry() const override { return registry_; }
  internal::Caller::Abandon ServeAlone(Worker caller,
                                       std::shared_ptr<const Request> request,
                                       CancelToken gone,
                                       internal::Caller::Done done) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Guest;
  using OutboundMap = absl::flat_hash_map<WorkerKey, std::shared_ptr<Outbound>>;
  using InboundMap = absl::flat_hash_map<WorkerKey, std::shared_ptr<Inbound>>;

  Welcome Judge(const Hello& hello, const Proof& proof,
                std::shared_ptr<Inbound>* inbound,
                std::vector<std::shared_ptr<Inbound>>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckHello(const Hello& hello, const Proof& proof)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckKey(const Hello& hello, const Proof& proof)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckNotGone(const std::string& name, WorkerKey key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  net::Roles RolesOf(const Function& function) const;
  absl::Status CheckRole(const Function& function, const Worker& caller);
  // What a caller whose registry differs may call. Null: too much to tell.
  std::shared_ptr<const FunctionTable> TableFor(const std::string& role) const;
  void ForgetIdle(std::vector<std::shared_ptr<Inbound>>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Hello MakeHello(const Worker& peer) const;
  void Export() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<Outbound>> Outbounds() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<Inbound>> Inbounds() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Batcher> BatcherOf(const Function& function)
      ABSL_LOCKS_EXCLUDED(mu_);

  const AgentOptions options_;
  const Registry& registry_;
  telemetry::Telemetry& telemetry_;
  net::Audit audit_{telemetry_};
  ObjectTable objects_;
  Agent* agent_ = nullptr;
  std::unique_ptr<ThreadPool> own_pool_;
  Executor* executor_ = nullptr;
  telemetry::StatusPage::Registration status_page_;
  std::unique_ptr<telemetry::Metrics::Refresher> metrics_;
  TrafficTable traffic_;
  // What the Metrics have been told. For one reading at a time.
  std::map<std::string, Traffic::Counts> exported_;
  CancelSource ending_;  // of the calls of this agent by itself
  std::atomic<bool> is_draining_{false};
  std::atomic<int64_t> default_timeout_ns_{0};  // as an Instant after 0

  Mutex mu_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // why calls are refused
  OutboundMap outbounds_ ABSL_GUARDED_BY(mu_);
  InboundMap inbounds_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<internal::Caller> self_caller_ ABSL_GUARDED_BY(mu_);
  // Up to which epoch the incarnations of a worker are gone, by id.
  absl::flat_hash_map<uint32_t, uint64_t> gone_epochs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const void*, std::shared_ptr<void>> locals_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Function*, std::shared_ptr<Batcher>> batchers_
      ABSL_GUARDED_BY(mu_);

  Mutex handlers_mu_;
  CondVar no_handlers_;
  int64_t handlers_ ABSL_GUARDED_BY(handlers_mu_) = 0;
};

// A connection that somebody opened: a stranger until the Hello.
class Agent::Core::Guest final : public LinkOwner {
 public:
  Guest(std::weak_ptr<Core> core, Proof proof)
      : core_(std::move(core)), proof_(std::move(proof)) {}

  absl::Status OnFrame(Link& link, Frame frame) override {
    if (inbound_ != nullptr) return inbound_->OnFrame(link, std::move(frame));
    if (refused_) return absl::OkStatus();  // it is told why, then closed
    const auto* hello = std::get_if<Hello>(&frame);
    if (hello == nullptr) {
      return absl::InvalidArgumentError("the first frame is not a Hello");
    }
    const std::shared_ptr<Core> core = core_.lock();
    if (core == nullptr) return absl::UnavailableError("the agent has ended");
    inbound_ = core->Admit(link, *hello, proof_);
    refused_ = inbound_ == nullptr;
    is_stranger_ = refused_;
    return absl::OkStatus();
  }

  bool is_stranger() const { return is_stranger_; }

  void OnLinkClosed(Link& link, absl::Status) override {
    if (inbound_ != nullptr) inbound_->OnLinkClosed(link);
  }

 private:
  const std::weak_ptr<Core> core_;
  const Proof proof_;
  std::shared_ptr<Inbound> inbound_;
  bool refused_ = false;
  std::atomic<bool> is_stranger_{true};
};

namespace {

// Calls of an agent by itself.
class SelfCaller final : public internal::Caller {
 public:
  SelfCaller(std::weak_ptr<LoneServer> server, Worker self)
      : server_(std::move(server)), self_(std::move(self)) {}

  const Worker& peer() const override { return self_; }

  Abandon Start(std::shared_ptr<Request> request, Done done) override {
    request->id = ++last_id_;
    // Elements that are only lent are read later, by the handler.
    if (!request->borrowed.empty()) request->body = {Copy(request->body)};
    if (const std::shared_ptr<LoneServer> server = server_.lock()) {
      return server->ServeAlone(self_, std::move(request), CancelToken(),
                                std::move(done));
    }
    std::move(done)(absl::UnavailableError("the agent has ended"), nullptr);
    return [](absl::Status) {};
  }

 private:
  static Bytes Copy(const Slices& slices) {
    std::string bytes;
    for (const Bytes& slice : slices) absl::StrAppend(&bytes, slice.view());
    return Bytes::Own(std::move(bytes));
  }

  const std::weak_ptr<LoneServer> server_;
  const Worker self_;
  std::atomic<uint64_t> last_id_{0};
};

}  // namespace

// ------------------------------------------------------------------ its life

absl::Status Agent::Core::Start(Agent* agent) {
  agent_ = agent;
  executor_ = options_.executor;
  if (executor_ == nullptr) {
    ThreadPool::Options pool;
    pool.name = "rpc";
    pool.threads = options_.threads;
    pool.max_threads = options_.max_threads;
    WEFT_ASSIGN_OR_RETURN(own_pool_, ThreadPool::Create(pool));
    executor_ = own_pool_.get();
  }
  {
    MutexLock lock(mu_);
    self_caller_ = std::make_shared<SelfCaller>(weak_from_this(), worker());
  }
  std::weak_ptr<Core> weak = weak_from_this();
  status_page_ = telemetry_.status().Register("rpc", [weak] {
    const std::shared_ptr<Core> core = weak.lock();
    return core == nullptr ? telemetry::Fields() : core->Describe();
  });
  if (options_.telemetry != nullptr) {
    metrics_ = telemetry_.metrics().BeforeReading([weak] {
      if (const std::shared_ptr<Core> core = weak.lock()) core->Export();
    });
  }
  transport().Accept(
      [weak](std::shared_ptr<Connection> connection)
          -> absl::StatusOr<std::shared_ptr<ConnectionObserver>> {
        const std::shared_ptr<Core> core = weak.lock();
        if (core == nullptr) {
          return absl::UnavailableError("the agent has ended");
        }
        return core->Greet(std::move(connection));
      });
  return absl::OkStatus();
}

void Agent::Core::Stop() {
  const absl::Status why = absl::CancelledError(
      absl::StrCat("the agent of ", options_.name, " has ended"));
  {
    MutexLock lock(mu_);
    if (ended_.ok()) ended_ = why;
  }
  status_page_.Release();
  metrics_ = nullptr;
  transport().Accept(nullptr);
  EndCalls(why);
  {
    MutexLock lock(handlers_mu_);
    // Bounded by the handlers themselves: they have been cancelled, and the
    // calls that they wait for have ended.
    while (handlers_ > 0) {
      no_handlers_.WaitUntil(handlers_mu_, std::chrono::steady_clock::now() +
                                               std::chrono::seconds(1));
    }
  }
  own_pool_.reset();
  objects_.Clear();
  // Sessions share this core as the one that runs their calls; let them go, or
  // neither ends.
  OutboundMap outbounds;
  InboundMap inbounds;
  MutexLock lock(mu_);
  outbounds.swap(outbounds_);
  inbounds.swap(inbounds_);
}

void Agent::Core::EndCalls(const absl::Status& why) {
  for (const auto& outbound : Outbounds()) outbound->Shutdown(why);
  for (const auto& inbound : Inbounds()) inbound->PeerGone(why);
  ending_.Cancel(why);
  // Those that wait for a batch to fill have been told; they end in it.
  std::vector<std::shared_ptr<Batcher>> batchers;
  {
    MutexLock lock(mu_);
    for (const auto& [function, batcher] : batchers_) {
      batchers.push_back(batcher);
    }
  }
  for (const auto& batcher : batchers) batcher->Flush();
}

absl::Status Agent::Core::Drain(absl::Duration timeout) {
  is_draining_ = true;
  {
    MutexLock lock(mu_);
    if (ended_.ok()) {
      ended_ = absl::UnavailableError(
          absl::StrCat(options_.name, " is shutting down"));
    }
  }
  const absl::Status idle = AwaitIdle(timeout);
  if (!idle.ok()) {
    EndCalls(
        absl::CancelledError(absl::StrCat(options_.name, " has shut down")));
  }
  return idle;
}

absl::Status Agent::Core::AwaitIdle(absl::Duration timeout) {
  const Instant deadline = transport().clock().Now() + timeout;
  while (!StillOpen().empty()) {
    if (transport().clock().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("after ", absl::FormatDuration(timeout),
                       " there are still ", absl::StrJoin(StillOpen(), ", ")));
    }
    // Waits as this transport is waited for, which lets it go on.
    Promise<void> pause(transport().driver());
    (void)pause.future().Wait(kDrainCheck);
  }
  return absl::OkStatus();
}

std::vector<std::string> Agent::Core::StillOpen() {
  std::vector<std::string> open;
  for (const auto& outbound : Outbounds()) {
    if (const size_t n = outbound->pending_calls(); n > 0) {
      open.push_back(absl::StrCat(n, " calls to ", outbound->peer().name));
    }
  }
  for (const auto& inbound : Inbounds()) {
    if (const size_t n = inbound->running_calls(); n > 0) {
      open.push_back(absl::StrCat(n, " calls of ", inbound->peer().name));
    }
  }
  MutexLock lock(handlers_mu_);
  if (open.empty() && handlers_ > 0) {  // as of an agent that calls itself
    open.push_back(absl::StrCat(handlers_, " running functions"));
  }
  return open;
}

std::vector<std::shared_ptr<Outbound>> Agent::Core::Outbounds() {
  std::vector<std::shared_ptr<Outbound>> all;
  MutexLock lock(mu_);
  for (const auto& [key, outbound] : outbounds_) all.push_back(outbound);
  SortByPeer(&all);
  return all;
}

std::vector<std::shared_ptr<Inbound>> Agent::Core::Inbounds() {
  std::vector<std::shared_ptr<Inbound>> all;
  MutexLock lock(mu_);
  for (const auto& [key, inbound] : inbounds_) all.push_back(inbound);
  SortByPeer(&all);
  return all;
}

telemetry::Fields Agent::Core::Describe() {
  const std::vector<PendingCall> calls = Pending();
  telemetry::Fields fields;
  fields.emplace_back("worker", options_.name);
  fields.emplace_back("key", options_.key.ToString());
  for (const PendingCall& call : calls) {
    fields.emplace_back(
        absl::StrCat(call.is_served ? "serving " : "call ", call.id,
                     call.is_served ? " of " : " to ", call.peer),
        absl::StrCat(call.function, ", ", NameOf(call.phase), ", ",
                     absl::FormatDuration(call.age), " old, ",
                     absl::FormatDuration(call.remaining), " left",
                     call.for_id == 0 ? ""
                                      : absl::StrCat(", for ", call.for_id,
                                                     " of ", call.for_peer)));
  }
  WaitsFor waits;
  waits.Add(options_.name, calls);
  fields.emplace_back("waits", waits.ToString());
  const AgentMetrics metrics = Metrics();
  fields.emplace_back("pool_threads", metrics.pool_threads);
  fields.emplace_back("idle_threads", metrics.idle_threads);
  for (const auto& [peer, counts] : metrics.peers) {
    fields.emplace_back(
        absl::StrCat("with ", peer),
        absl::StrCat(counts.calls, " calls, ", counts.errors,
                     " errors; served ", counts.served, ", ",
                     counts.served_errors, " errors; sent ", counts.sent_bytes,
                     " bytes, received ", counts.received_bytes));
  }
  return fields;
}

std::vector<PendingCall> Agent::Core::Pending() {
  std::vector<PendingCall> calls;
  for (const auto& outbound : Outbounds()) outbound->AddPending(&calls);
  for (const auto& inbound : Inbounds()) inbound->AddPending(&calls);
  return calls;
}

AgentMetrics Agent::Core::Metrics() {
  AgentMetrics metrics;
  if (own_pool_ != nullptr) {
    const ThreadPool::Stats pool = own_pool_->stats();
    metrics.pool_threads = pool.threads;
    metrics.idle_threads = pool.idle;
  }
  for (const auto& outbound : Outbounds()) {
    metrics.client_active_calls += outbound->pending_calls();
  }
  for (const auto& inbound : Inbounds()) {
    metrics.server_active_calls += inbound->running_calls();
    metrics.server_active_async_calls += inbound->async_calls();
  }
  metrics.peers = traffic_.Counts();
  return metrics;
}

void Agent::Core::Export() {
  telemetry::Metrics& to = telemetry_.metrics();
  const AgentMetrics metrics = Metrics();
  to.GaugeFor("weft_rpc_pool_threads").Set(metrics.pool_threads);
  to.GaugeFor("weft_rpc_idle_threads").Set(metrics.idle_threads);
  to.GaugeFor("weft_rpc_client_active_calls").Set(metrics.client_active_calls);
  to.GaugeFor("weft_rpc_server_active_calls").Set(metrics.server_active_calls);
  to.GaugeFor("weft_rpc_server_active_async_calls")
      .Set(metrics.server_active_async_calls);
  for (const auto& [peer, now] : metrics.peers) {
    Traffic::Counts& then = exported_[peer];
    const auto add = [&to, &peer = peer](const char* name, const char* way,
                                         int64_t by) {
      to.CounterFor(name, {{"peer", peer}, {"direction", way}}).Increment(by);
    };
    add("weft_rpc_calls_total", "out", now.calls - then.calls);
    add("weft_rpc_calls_total", "in", now.served - then.served);
    add("weft_rpc_errors_total", "out", now.errors - then.errors);
    add("weft_rpc_errors_total", "in", now.served_errors - then.served_errors);
    add("weft_rpc_bytes_total", "out", now.sent_bytes - then.sent_bytes);
    add("weft_rpc_bytes_total", "in", now.received_bytes - then.received_bytes);
    then = now;
  }
}

telemetry::Span Agent::Core::StartSpan(const Worker& peer,
                                       const Request& request) {
  if (!telemetry_.spans().enabled()) return telemetry::Span();
  return telemetry_.spans().Start(
      absl::StrCat("rpc_serve#", request.function, "(", peer.name, " -> ",
                   options_.name, ")"),
      request.trace);
}

// ------------------------------------------------------------------- calling

absl::Status Agent::Core::CanCall() {
  MutexLock lock(mu_);
  if (ended_.ok()) return absl::OkStatus();
  // To peers it is kUnavailable; who calls by an agent that it has shut down is
  // wrong about its own.
  return absl::FailedPreconditionError(
      absl::StrCat(ended_.message(), ": it makes no more calls"));
}

absl::StatusOr<const Function*> Agent::Core::FindOwn(
    Function::Address address) const {
  const Function* function = registry_.FindAddress(address);
  if (function != nullptr) return function;
  return absl::FailedPreconditionError(
      "the function is not registered in this program: put WEFT_RPC(function) "
      "beside its definition");
}

absl::StatusOr<const Function*> Agent::Core::FindOwn(
    absl::string_view method) const {
  const Function* function = registry_.FindMethod(method);
  if (function != nullptr) return function;
  return absl::FailedPreconditionError(
      "the method is not registered in this program: put "
      "WEFT_RPC_METHOD(Class, Method) beside the class");
}

Hello Agent::Core::MakeHello(const Worker& peer) const {
  Hello hello;
  hello.job = options_.job;
  hello.build = options_.build;
  hello.name = options_.name;
  hello.from = options_.key;
  hello.to = peer.key;
  hello.registry = registry_.Digest();
  return hello;
}

absl::StatusOr<std::shared_ptr<internal::Caller>> Agent::Core::CallerFor(
    absl::StatusOr<Worker> worker) {
  if (!worker.ok()) return worker.status();
  std::shared_ptr<Outbound> outbound;
  MutexLock lock(mu_);
  if (worker->key == options_.key) return self_caller_;
  WEFT_RETURN_IF_ERROR(CheckNotGone(worker->name, worker->key));
  std::shared_ptr<Outbound>& known = outbounds_[worker->key];
  if (known == nullptr) {
    Outbound::Options options;
    options.hello = MakeHello(*worker);
    options.peer = *std::move(worker);
    options.transport = options_.transport;
    options.give_up_after = options_.give_up_after;
    options.traffic = traffic_.Of(options.peer.name);
    options.recorder = &telemetry_.recorder();
    known = std::make_shared<Outbound>(std::move(options));
  }
  return std::shared_ptr<internal::Caller>(known);
}

std::shared_ptr<internal::Caller> Agent::Core::Retrying(
    Worker peer, const RetryPolicy& policy) {
  internal::RetryingCaller::Options options;
  options.policy = policy;
  options.transport = options_.transport;
  options.agent = ending_.token();
  options.find = [weak = weak_from_this(), name = peer.name]()
      -> absl::StatusOr<std::shared_ptr<internal::Caller>> {
    const std::shared_ptr<Core> core = weak.lock();
    if (core == nullptr) return absl::CancelledError("the agent has ended");
    return core->CallerFor(core->options().directory->Find(name));
  };
  options.is_idempotent = [&registry = registry_](const std::string& name) {
    const Function* function = registry.FindName(name);
    return function != nullptr && function->is_idempotent;
  };
  return std::make_shared<internal::RetryingCaller>(std::move(peer),
                                                    std::move(options));
}

void Agent::Core::PeerGone(WorkerKey key, absl::string_view why) {
  const absl::Status status = internal::MarkFailure(
      absl::UnavailableError(
          absl::StrCat("the incarnation ", key.ToString(), " is gone: ", why)),
      Phase::kNone, Reason::kPeerGone);
  std::shared_ptr<Outbound> outbound;
  std::shared_ptr<Inbound> inbound;
  {
    MutexLock lock(mu_);
    uint64_t& gone = gone_epochs_[key.id];
    gone = std::max(gone, key.epoch);
    // The outbound stays, so that Targets that hold it learn why.
    if (const auto it = outbounds_.find(key); it != outbounds_.end()) {
      outbound = it->second;
      outbounds_.erase(it);
    }
    if (const auto it = inbounds_.find(key); it != inbounds_.end()) {
      inbound = it->second;
      inbounds_.erase(it);
    }
  }
  if (outbound != nullptr) outbound->Shutdown(status);
  if (inbound != nullptr) inbound->PeerGone(status);
  objects_.ReleaseAll(key);  // later ones find their calls cancelled
}

void Agent::Core::SetLocal(const void* type_key, std::shared_ptr<void> object) {
  MutexLock lock(mu_);
  locals_[type_key].swap(object);  // the former one ends without the lock
}

std::shared_ptr<void> Agent::Core::FindLocal(const void* type_key) {
  MutexLock lock(mu_);
  const auto it = locals_.find(type_key);
  return it == locals_.end() ? nullptr : it->second;
}

// ------------------------------------------------------------------- serving

std::shared_ptr<ConnectionObserver> Agent::Core::Greet(
    std::shared_ptr<Connection> connection) {
  auto guest = std::make_shared<Guest>(
      weak_from_this(),
      Proof{connection->ProvenName(), connection->ProvenRole()});
  // As much for nested calls as for the others.
  auto link = std::make_shared<Link>(guest, transport().clock(),
                                     2 * options_.limits.bytes);
  link->Attach(std::move(connection));
  transport().RunAt(
      transport().clock().Now() + kHelloTimeout,
      [who = std::weak_ptr<Guest>(guest), link = std::weak_ptr<Link>(link)] {
        const std::shared_ptr<Guest> guest = who.lock();
        const std::shared_ptr<Link> open = link.lock();
        if (guest == nullptr || open == nullptr) return;
        if (!guest->is_stranger()) return;
        open->End(absl::DeadlineExceededError(
            absl::StrCat("no Hello, or none that was accepted, within ",
                         absl::FormatDuration(kHelloTimeout))));
      });
  return link;
}

std::shared_ptr<Inbound> Agent::Core::Admit(Link& link, const Hello& hello,
                                            const Proof& proof) {
  std::shared_ptr<Inbound> inbound;
  std::vector<std::shared_ptr<Inbound>> ended;
  Welcome welcome;
  {
    MutexLock lock(mu_);
    welcome = Judge(hello, proof, &inbound, &ended);
  }
  for (const auto& old : ended) {
    old->PeerGone(absl::AbortedError("the caller has begun another session"));
    objects_.ReleaseAll(old->peer().key);
  }
  if (inbound == nullptr) {
    audit_.Refused("name", hello.name.substr(0, 64), "to call",
                   welcome.status.message());
    link.Append(welcome);
    link.End(welcome.status, /*after_writing=*/true);
    return nullptr;
  }
  if (hello.registry != welcome.registry) {
    welcome.functions = TableFor(proof.role);
  }
  link.Append(welcome);  // before any reply
  inbound->Attach(link.shared_from_this());
  return inbound;
}

absl::Status Agent::Core::CheckHello(const Hello& hello, const Proof& proof) {
  if (hello.magic != kMagic) {
    return absl::InvalidArgumentError("the caller is not a Weft worker");
  }
  if (hello.min_version > kProtocolVersion ||
      hello.max_version < kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.name, " (build ", options_.build, ") speaks protocol version ",
        kProtocolVersion, ", ", hello.name, " (build ", hello.build,
        ") versions ", hello.min_version, " to ", hello.max_version));
  }
  if (hello.job != options_.job) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.name, " belongs to the job '", options_.job, "', ", hello.name,
        " to '", hello.job, "': two jobs use one address"));
  }
  if (!proof.name.empty() && proof.name != hello.name) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the certificate is of ", proof.name, ", who says to be ", hello.name));
  }
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(hello.name));
  if (!CheckNotGone(hello.name, hello.from).ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the incarnation ", hello.from.ToString(), " of ",
                     hello.name, " was declared gone: join again"));
  }
  WEFT_RETURN_IF_ERROR(ended_);
  return CheckKey(hello, proof);
}

// A name is proven by a certificate; whose key it is, the directory knows.
// Until it does, the key is of who came first.
absl::Status Agent::Core::CheckKey(const Hello& hello, const Proof& proof) {
  const absl::StatusOr<Worker> owner = options_.directory->Find(hello.from);
  const auto known = inbounds_.find(hello.from);
  std::string of = owner.ok() ? owner->name : hello.name;
  if (!owner.ok() && known != inbounds_.end()) of = known->second->peer().name;
  if (of != hello.name) {
    return absl::PermissionDeniedError(
        absl::StrCat("the key ", hello.from.ToString(), " is of ", of,
                     ", not of ", hello.name));
  }
  const bool resumes = known != inbounds_.end() &&
                       known->second->peer().name == hello.name &&
                       known->second->life() == hello.life;
  if (resumes && known->second->peer().role != proof.role) {
    return absl::PermissionDeniedError(
        absl::StrCat("the session of ", hello.name,
                     " was begun with another proof of who it is"));
  }
  return absl::OkStatus();
}

absl::Status Agent::Core::CheckNotGone(const std::string& name,
                                       WorkerKey key) const {
  const auto gone = gone_epochs_.find(key.id);
  if (gone == gone_epochs_.end() || key.epoch > gone->second) {
    return absl::OkStatus();
  }
  return internal::NameFailure(
      internal::MarkFailure(
          absl::UnavailableError(absl::StrCat(
              "the incarnation ", key.ToString(), " of ", name, " is gone")),
          Phase::kNone, Reason::kPeerGone),
      name, "", Phase::kNone);
}

Welcome Agent::Core::Judge(const Hello& hello, const Proof& proof,
                           std::shared_ptr<Inbound>* inbound,
                           std::vector<std::shared_ptr<Inbound>>* ended) {
  Welcome welcome;
  welcome.build = options_.build;
  welcome.registry = registry_.Digest();
  welcome.limits = options_.limits;
  welcome.status = CheckHello(hello, proof);
  if (!welcome.status.ok()) return welcome;
  if (hello.to != options_.key) {
    welcome.replaced = true;
    welcome.status = absl::UnavailableError(absl::StrCat(
        "this is the incarnation ", options_.key.ToString(), " of ",
        options_.name, "; the call was for ", hello.to.ToString()));
    return welcome;
  }
  const auto it = inbounds_.find(hello.from);
  std::shared_ptr<Inbound> known = it == inbounds_.end() ? nullptr : it->second;
  if (known != nullptr && known->peer().name != hello.name) {
    ended->push_back(std::move(known));  // the directory knows better
    inbounds_.erase(it);
    known = nullptr;
  }
  if (known != nullptr && known->life() > hello.life) {
    welcome.status = absl::AbortedError(
        absl::StrCat(hello.name, " has begun a later life of its session"));
    return welcome;
  }
  if (known == nullptr || known->life() < hello.life) {
    if (hello.resumes) {
      welcome.forgotten = true;
      welcome.status = absl::UnavailableError("the session was forgotten");
      return welcome;
    }
    if (known != nullptr) ended->push_back(known);
    ForgetIdle(ended);
    known = std::make_shared<Inbound>(
        Worker{hello.name, hello.from, "", proof.role}, hello.life,
        options_.limits, transport(), shared_from_this(),
        traffic_.Of(hello.name));
    inbounds_[hello.from] = known;
  }
  *inbound = std::move(known);
  return welcome;
}

void Agent::Core::ForgetIdle(std::vector<std::shared_ptr<Inbound>>* ended) {
  if (inbounds_.size() < kMaxIdleSessions) return;
  for (auto it = inbounds_.begin(); it != inbounds_.end();) {
    const auto current = it++;
    if (!current->second->is_idle()) continue;
    telemetry_.recorder().Record("rpc.forgets", current->second->peer().name);
    ended->push_back(current->second);
    inbounds_.erase(current);
  }
}

absl::StatusOr<const Function*> Agent::Core::Find(const Request& request,
                                                  Refusal* refusal) const {
  if (is_draining_) {
    return internal::MarkFailure(absl::UnavailableError(absl::StrCat(
                                     options_.name, " is shutting down")),
                                 Phase::kQueue, Reason::kShuttingDown);
  }
  const Function* function = registry_.FindName(request.function);
  if (function == nullptr) {
    *refusal = Refusal::kUnknownFunction;
    return absl::UnimplementedError(
        absl::StrCat(options_.name, " (build ", options_.build,
                     ") has no function ", request.function));
  }
  if (function->digest != request.signature) {
    *refusal = Refusal::kSignatureDiffers;
    return absl::FailedPreconditionError(function->signature);
  }
  return function;
}

net::Roles Agent::Core::RolesOf(const Function& function) const {
  if (function.is_of_maker) return net::Roles::Any();
  for (const AccessRule& rule : options_.access) {
    if (Matches(rule, function.name)) return rule.roles;
  }
  return function.roles.value_or(net::Roles::Members());
}

std::shared_ptr<const FunctionTable> Agent::Core::TableFor(
    const std::string& role) const {
  auto table = std::make_shared<FunctionTable>();
  for (const std::string& name : registry_.Names()) {
    const Function& function = *registry_.FindName(name);
    if (!role.empty() && !RolesOf(function).Allow(role)) continue;
    (*table)[name] = {function.signature, function.digest};
  }
  return table->size() <= kMaxFunctions ? table : nullptr;
}

absl::Status Agent::Core::CheckRole(const Function& function,
                                    const Worker& caller) {
  if (caller.role.empty()) return absl::OkStatus();
  absl::Status allowed =
      RolesOf(function).Check(caller.name, caller.role, function.name);
  if (!allowed.ok())
    audit_.Refused("function", caller.name, function.name, allowed.message());
  return allowed;
}

void Agent::Core::Dispatch(const Function& function,
                           std::shared_ptr<ServedCall> call) {
  absl::Status allowed = CheckRole(function, call->peer());
  if (!allowed.ok()) return call->Finish(std::move(allowed));
  if (function.serve_batch != nullptr) {
    return BatcherOf(function)->Add(std::move(call));
  }
  if (function.runs_on == RunsOn::kTransport) {
    InlineScope scope;
    return function.serve(std::move(call));
  }
  executor_->Schedule([&function, call = std::move(call)]() mutable {
    // Nobody waits for it any more: its turn came too late.
    if (call->cancel().IsCancelled()) {
      return call->Finish(call->cancel().status());
    }
    function.serve(std::move(call));
  });
}

internal::Caller::Abandon Agent::Core::ServeAlone(
    Worker caller, std::shared_ptr<const Request> request, CancelToken gone,
    internal::Caller::Done done) {
  Refusal refusal;
  absl::StatusOr<const Function*> function = Find(*request, &refusal);
  absl::Status status = function.status();
  if (status.ok()) {
    // In one with the look at it: Stop waits for those that have begun.
    MutexLock lock(mu_);
    status = ended_;
    if (status.ok()) CallBegan();
  }
  if (!status.ok()) {
    std::move(done)(std::move(status), nullptr);
    return [](absl::Status) {};
  }
  auto call = std::make_shared<LoneCall>(
      std::shared_ptr<Dispatcher>(shared_from_this()), transport(),
      std::move(caller), **function, *request, CancelSource(), std::move(done));
  call->Follow(ending_.token(), gone);
  Dispatch(**function, call);
  return [weak = std::weak_ptr<LoneCall>(call)](absl::Status why) {
    if (auto live = weak.lock()) live->Abandon(why);
  };
}

std::shared_ptr<Batcher> Agent::Core::BatcherOf(const Function& function) {
  MutexLock lock(mu_);
  std::shared_ptr<Batcher>& batcher = batchers_[&function];
  if (batcher == nullptr) {
    batcher = std::make_shared<Batcher>(function, transport(), *executor_);
  }
  return batcher;
}

void Agent::Core::CallBegan() {
  MutexLock lock(handlers_mu_);
  ++handlers_;
}

void Agent::Core::CallEnded() {
  MutexLock lock(handlers_mu_);
  if (--handlers_ == 0) no_handlers_.NotifyAll();
}

// -------------------------------------------------------------------- Agent

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(options.name));
  if (options.transport == nullptr || options.directory == nullptr) {
    return absl::InvalidArgumentError(
        "Agent::Create: a transport and a directory are needed");
  }
  if (options.default_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Agent::Create: the default time-out is ",
                     absl::FormatDuration(options.default_timeout)));
  }
  if (options.build.empty()) options.build = "weft";
  const Registry* registry =
      options.registry != nullptr ? options.registry : &Registry::Global();
  auto core = std::make_shared<Core>(std::move(options), registry);
  std::unique_ptr<Agent> agent(new Agent(core));
  WEFT_RETURN_IF_ERROR(core->Start(agent.get()));
  return agent;
}

Agent::Agent(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Agent::~Agent() { core_->Stop(); }

Target Agent::To(absl::string_view name,
                 std::optional<absl::Duration> timeout) {
  return MakeTarget(core_->Find(name), timeout, nullptr);
}

absl::StatusOr<std::vector<Target>> Agent::ToAll(
    absl::string_view selector, std::optional<absl::Duration> timeout) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Worker> workers,
                        core_->options().directory->Select(selector));
  std::vector<Target> targets;
  for (Worker& worker : workers) {
    targets.push_back(MakeTarget(std::move(worker), timeout, nullptr));
  }
  return targets;
}

Target Agent::To(WorkerKey key, std::optional<absl::Duration> timeout) {
  return MakeTarget(core_->options().directory->Find(key), timeout, nullptr);
}

absl::Status Agent::SetDefaultTimeout(absl::Duration timeout) {
  if (timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Agent::SetDefaultTimeout: wanted none below zero, found ",
                     absl::FormatDuration(timeout)));
  }
  core_->SetDefaultTimeout(timeout);
  return absl::OkStatus();
}

absl::Duration Agent::default_timeout() const {
  return core_->default_timeout();
}

Target Agent::MakeTarget(absl::StatusOr<Worker> worker,
                         std::optional<absl::Duration> timeout,
                         std::shared_ptr<const Lineage> lineage) {
  Target target;
  target.agent_ = this;
  target.timeout_ = timeout;
  target.lineage_ = std::move(lineage);
  auto caller = core_->CallerFor(std::move(worker));
  if (caller.ok()) {
    target.caller_ = *std::move(caller);
  } else {
    target.status_ = caller.status();
  }
  return target;
}

void Agent::SetLocalObject(const void* type_key, std::shared_ptr<void> object) {
  core_->SetLocal(type_key, std::move(object));
}

void Agent::PeerGone(WorkerKey key, absl::string_view why) {
  core_->PeerGone(key, why);
}

absl::Status Agent::AwaitIdle(absl::Duration timeout) {
  return core_->AwaitIdle(timeout);
}

std::vector<std::string> Agent::OpenCalls() const { return core_->StillOpen(); }

absl::Status Agent::Shutdown(absl::Duration timeout) {
  return core_->Drain(timeout);
}

AgentMetrics Agent::Metrics() { return core_->Metrics(); }
std::vector<PendingCall> Agent::Pending() { return core_->Pending(); }
telemetry::Telemetry& Agent::telemetry() const { return core_->telemetry(); }
telemetry::Fields Agent::DebugInfo() { return core_->Describe(); }

const std::string& Agent::name() const { return core_->options().name; }
WorkerKey Agent::key() const { return core_->options().key; }

std::weak_ptr<LoneServer> Agent::lone_server() const { return core_; }

// -------------------------------------------------------------- CallContext

absl::Duration CallContext::Remaining() const {
  const Instant now = agent_->core_->transport().clock().Now();
  return std::max(deadline() - now, absl::ZeroDuration());
}

Target CallContext::To(absl::string_view name,
                       std::optional<absl::Duration> timeout) const {
  return agent_->MakeTarget(agent_->core_->Find(name), timeout,
                            std::make_shared<const Lineage>(lineage_));
}

Target CallContext::To(WorkerKey key,
                       std::optional<absl::Duration> timeout) const {
  return agent_->MakeTarget(agent_->core_->options().directory->Find(key),
                            timeout, std::make_shared<const Lineage>(lineage_));
}

void* CallContext::FindLocal(const void* type_key) const {
  return Hold(agent_->core_->FindLocal(type_key));
}

absl::StatusOr<void*> CallContext::FindObject(uint64_t id,
                                              const void* type_key) const {
  WEFT_ASSIGN_OR_RETURN(ObjectTable::Object object,
                        agent_->core_->objects().Find(peer_.key, id, type_key));
  return Hold(std::move(object.value));
}

void* CallContext::Hold(std::shared_ptr<void> object) const {
  void* const held = object.get();
  if (object.use_count() > 0) {
    MutexLock lock(mu_);
    used_.push_back(std::move(object));
  }
  return held;
}

// -------------------------------------------------------------------- calls

const std::string& Target::name() const {
  static const auto* const nobody = new std::string("nobody");
  return caller_ == nullptr ? *nobody : caller_->peer().name;
}

absl::Duration Target::timeout() const {
  if (timeout_.has_value()) return *timeout_;
  return agent_ == nullptr ? absl::ZeroDuration() : agent_->default_timeout();
}

Target Target::WithTrace(const telemetry::TraceContext& trace) const {
  Target other = *this;
  other.trace_ = trace;
  return other;
}

Target Target::WithTimeout(std::optional<absl::Duration> timeout) const {
  Target other = *this;
  other.timeout_ = timeout;
  return other;
}

Target Target::Within(const CallContext& context) const {
  Target other = *this;
  other.lineage_ = std::make_shared<const Lineage>(context.lineage());
  return other;
}

Target Target::FailingWithoutCredit() const {
  Target other = *this;
  other.waits_for_credit_ = false;
  return other;
}

Target Target::AllowingAlias() const {
  Target other = *this;
  other.allows_alias_ = true;
  return other;
}

namespace internal {
namespace {

// An error of the other side, prefixed with who it was.
absl::Status Name(const Worker& peer, const Function& function,
                  const absl::Status& status, const ReplyPtr& reply) {
  std::string text = absl::StrCat(peer.name, ": ", status.message());
  if (reply != nullptr && reply->refusal == Refusal::kSignatureDiffers) {
    text = absl::StrCat(peer.name, ": ", function.name,
                        ": signature differs: caller says ", function.signature,
                        ", callee has ", status.message(),
                        "; build both from the same sources");
  }
  const absl::Status known =
      ReceiveFailure(status, peer.name, function.name, Phase::kQueue);
  absl::Status named(status.code(), text);
  known.ForEachPayload([&named](absl::string_view url, const absl::Cord& c) {
    named.SetPayload(url, c);
  });
  return named;
}

}  // namespace

// What may look into a Target.
class CallStarter {
 public:
  static Agent::Core& CoreOf(const Agent& agent) { return *agent.core_; }
  static Agent::Core& CoreOf(const Target& target) {
    return CoreOf(*target.agent_);
  }

  static bool IsAlias(const Target& target) {
    return target.allows_alias_ && target.caller_ != nullptr &&
           target.caller_->peer().key == CoreOf(target).options().key;
  }

  static Abandon Start(
      const Target& target, const Function& function, Outgoing outgoing,
      Done done,
      const std::shared_ptr<Request>& request = std::make_shared<Request>()) {
    Agent::Core& core = CoreOf(target);
    request->function = function.name;
    request->signature = function.digest;
    request->function_index = function.index;
    request->body = std::move(outgoing.body);
    request->borrowed = std::move(outgoing.borrowed);
    request->keeps_result = outgoing.keeps_result;
    request->alias = std::move(outgoing.alias);
    request->waits_for_credit = target.waits_for_credit_;
    const absl::Duration timeout =
        std::min(target.timeout(), core.options().limits.timeout);
    request->began = core.transport().clock().Now();
    request->deadline = request->began + timeout;
    auto parent = std::make_shared<CancelToken::Registration>();
    if (const Lineage* lineage = target.lineage_.get()) {
      request->deadline = std::min(request->deadline, lineage->deadline);
      request->depth = lineage->depth + 1;
      request->chain = lineage->chain;
      request->trace = lineage->trace;
      request->for_peer = lineage->caller;
      request->for_id = lineage->call;
    }
    if (target.trace_.is_valid()) request->trace = target.trace_;
    if (core.telemetry().spans().enabled()) {
      done =
          Traced(core, target.caller_->peer(), request.get(), std::move(done));
    }
    auto on_end = [request = std::shared_ptr<Request>(request),
                   caller = target.caller_, &function, parent,
                   done = std::move(done)](absl::Status status,
                                           ReplyPtr reply) mutable {
      // The memory of its arguments may be needed.
      const uint64_t id = std::exchange(request, nullptr)->id;
      if (!status.ok()) {
        return std::move(done)(id,
                               Name(caller->peer(), function, status, reply));
      }
      std::move(done)(id, Received{reply->body, reply->is_private});
    };
    Abandon abandon = target.caller_->Start(request, std::move(on_end));
    if (target.lineage_ == nullptr) return abandon;
    return FollowParent(target.lineage_->cancel, std::move(abandon), parent);
  }

  // What is kept by an incarnation needs one that stays the same.
  static absl::Status CheckFixed(const Target& target) {
    if (target.is_fixed_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "calls to ", target.name(),
        " may go to another incarnation, as WithRetry() lets them; objects "
        "and streams need a target without it"));
  }

  static Target Alone(const Target& target) {
    Target alone;
    alone.agent_ = target.agent_;
    alone.status_ = target.status_;
    alone.caller_ = target.caller_;
    return alone;
  }

  // For calls that are part of the one that `request` is.
  static Target PartOf(const Target& target, const Request& request,
                       CancelToken cancel) {
    auto lineage = std::make_shared<Lineage>();
    lineage->deadline = request.deadline;
    lineage->depth = request.depth;
    lineage->chain = request.chain;
    lineage->trace = request.trace;
    lineage->caller = request.for_peer;
    lineage->call = request.for_id;
    lineage->cancel = std::move(cancel);
    Target part = target;
    part.lineage_ = std::move(lineage);
    part.allows_alias_ = false;
    return part;
  }

 private:
  // `done`, with a span around the call, which `request` will name as parent.
  static Done Traced(const Agent::Core& core, const Worker& peer,
                     Request* request, Done done) {
    telemetry::Span span = core.telemetry().spans().Start(
        absl::StrCat("rpc_call#", request->function, "(", core.self(), " -> ",
                     peer.name, ")"),
        request->trace);
    request->trace = span.context();
    return [span = std::move(span), done = std::move(done)](
               uint64_t id, absl::StatusOr<Received> reply) mutable {
      span.With("code", absl::StatusCodeToString(reply.status().code()));
      span.End();
      std::move(done)(id, std::move(reply));
    };
  }

  // Gives the call up also when the call that makes it is cancelled.
  static Abandon FollowParent(
      const CancelToken& token, Abandon abandon,
      const std::shared_ptr<CancelToken::Registration>& registration) {
    struct Once {
      std::atomic<bool> used{false};
      Abandon abandon;
    };
    auto once = std::make_shared<Once>();
    once->abandon = std::move(abandon);
    const auto give_up = [once](absl::Status why) {
      if (!once->used.exchange(true)) std::move(once->abandon)(std::move(why));
    };
    *registration =
        token.OnCancel([give_up](const absl::Status& why) { give_up(why); });
    return
        [give_up, registration](absl::Status why) { give_up(std::move(why)); };
  }
};

}  // namespace internal

Target Target::WithRetry(const RetryPolicy& policy) const {
  Target other = *this;
  if (!other.status_.ok()) return other;
  other.status_ = Validate(policy);
  other.caller_ =
      internal::CallStarter::CoreOf(*this).Retrying(caller_->peer(), policy);
  other.is_fixed_ = false;
  return other;
}

namespace internal {

Driver& DriverOf(const Target& target) {
  return CallStarter::CoreOf(target).transport().driver();
}

namespace {

absl::Status CheckTarget(const Target& target) {
  WEFT_RETURN_IF_ERROR(target.status());
  if (target.timeout() < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a call to ", target.name(), " has the time-out ",
                     absl::FormatDuration(target.timeout()),
                     ": wanted none below zero; InfiniteDuration() is none"));
  }
  return CallStarter::CoreOf(target).CanCall();
}

}  // namespace

absl::StatusOr<const Function*> FindFunction(const Target& target,
                                             Function::Address address) {
  WEFT_RETURN_IF_ERROR(CheckTarget(target));
  return CallStarter::CoreOf(target).FindOwn(address);
}

absl::StatusOr<const Function*> FindMethod(const Target& target,
                                           absl::string_view key) {
  WEFT_RETURN_IF_ERROR(CheckTarget(target));
  return CallStarter::CoreOf(target).FindOwn(key);
}

bool IsAlias(const Target& target) { return CallStarter::IsAlias(target); }

Abandon StartCall(const Target& target, const Function& function,
                  Outgoing outgoing, Done done) {
  return CallStarter::Start(target, function, std::move(outgoing),
                            std::move(done));
}

absl::Status NotHere(absl::string_view worker) {
  return absl::FailedPreconditionError(absl::StrCat(
      "a call to ", worker,
      " would wait in a function that runs inline, on the thread that must "
      "receive the reply: use CallAsync, or register the function with "
      "WEFT_RPC"));
}

StartedStream StartStreamCall(const Target& target, const Function& function,
                              Outgoing outgoing, CancelToken ended, Done done) {
  const auto request = std::make_shared<Request>();
  StartedStream started;
  started.abandon = CallStarter::Start(target, function, std::move(outgoing),
                                       std::move(done), request);
  started.id = request->id;
  started.pulls = CallStarter::PartOf(target, *request, std::move(ended));
  return started;
}

Driver& DriverOf(const Agent& agent) {
  return CallStarter::CoreOf(agent).transport().driver();
}

absl::Status CheckFixed(const Target& target) {
  return CallStarter::CheckFixed(target);
}

Target Alone(const Target& target) { return CallStarter::Alone(target); }

ObjectTable& ObjectsOf(const Agent& agent) {
  return CallStarter::CoreOf(agent).objects();
}

}  // namespace internal

std::vector<PendingCall> PendingCalls(CallContext& context) {
  return context.agent().Pending();
}
WEFT_RPC_INLINE(PendingCalls);

WaitsFor AskWaitsFor(Agent& agent, const std::vector<std::string>& workers,
                     absl::Duration timeout, std::vector<std::string>* silent) {
  std::vector<Future<std::vector<PendingCall>>> answers;
  for (const std::string& worker : workers) {
    answers.push_back(CallAsync(agent.To(worker, timeout), PendingCalls));
  }
  WaitsFor waits;
  waits.Add(agent.name(), agent.Pending());
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto calls = answers[i].Wait(timeout + absl::Seconds(1));
    if (calls.ok()) {
      if (workers[i] != agent.name()) waits.Add(workers[i], *calls);
    } else if (silent != nullptr) {
      silent->push_back(workers[i]);
    }
  }
  return waits;
}

absl::Status ServedCall::Keep(ObjectTable::Object object) {
  ObjectTable& objects = internal::ObjectsOf(agent());
  WEFT_RETURN_IF_ERROR(objects.Add(peer().key, id(), std::move(object)));
  // Who gives the call up releases what it made after that: only now is it
  // certain that one of the two sees the other.
  if (!cancel().IsCancelled()) return absl::OkStatus();
  (void)objects.Release(peer().key, id());
  return cancel().status();
}

}  // namespace weft::rpc
