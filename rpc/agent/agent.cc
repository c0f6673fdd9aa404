#include "weft/rpc/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/base/version.h"
#include "weft/rendezvous/member.h"
#include "weft/rpc/agent/agent_state.h"

namespace weft::rpc {

namespace {

// A chain of callers may be so long; then the nearest of them are kept.
constexpr size_t kMaxChain = 256;

absl::Status Wrong(absl::string_view option, absl::string_view wanted,
                   absl::string_view found) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Agent::Create: ", option, ": wanted ", wanted, ", found ", found));
}

absl::Status CheckThreads(const AgentOptions& options) {
  if (options.executor != nullptr) return absl::OkStatus();
  if (options.pool != nullptr) {
    return Wrong("pool", "the one that executor is", "no executor");
  }
  if (options.threads < 1) {
    return Wrong("threads", "1 or more", absl::StrCat(options.threads));
  }
  if (options.max_threads >= options.threads) return absl::OkStatus();
  return Wrong("max_threads",
               absl::StrCat("no fewer than threads, ", options.threads),
               absl::StrCat(options.max_threads));
}

// One of 0 would let calls wait for ever, or refuse them all.
absl::Status CheckLimits(const Limits& limits) {
  const std::pair<const char*, int64_t> counts[] = {
      {"limits.calls", limits.calls},
      {"limits.bytes", limits.bytes},
      {"limits.nested_calls", limits.nested_calls},
      {"limits.objects", limits.objects},
      {"limits.streams", limits.streams},
      {"limits.sessions", limits.sessions}};
  for (const auto& [name, count] : counts) {
    if (count < 1) return Wrong(name, "1 or more", absl::StrCat(count));
  }
  if (limits.timeout > absl::ZeroDuration()) return absl::OkStatus();
  return Wrong("limits.timeout", "more than 0",
               absl::FormatDuration(limits.timeout));
}

absl::Status Validate(const AgentOptions& options) {
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(options.name));
  if (options.job.empty()) return Wrong("job", "its name", "none");
  if (options.key.epoch == 0) {
    return Wrong("key", "an epoch from 1 on", options.key.ToString());
  }
  if (options.transport == nullptr) return Wrong("transport", "one", "none");
  if (options.directory == nullptr) return Wrong("directory", "one", "none");
  WEFT_RETURN_IF_ERROR(CheckThreads(options));
  if (options.default_timeout < absl::ZeroDuration()) {
    return Wrong("default_timeout", "none below zero",
                 absl::FormatDuration(options.default_timeout));
  }
  WEFT_RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.result_bytes < 1) {
    return Wrong("result_bytes", "1 or more",
                 absl::StrCat(options.result_bytes));
  }
  if (options.give_up_after > absl::ZeroDuration()) return absl::OkStatus();
  return Wrong("give_up_after", "more than 0",
               absl::FormatDuration(options.give_up_after));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  WEFT_RETURN_IF_ERROR(Validate(options));
  if (options.build.empty()) options.build = std::string(kVersion);
  const Registry* registry =
      options.registry != nullptr ? options.registry : &Registry::Global();
  auto state = std::make_shared<AgentState>(std::move(options), registry);
  std::unique_ptr<Agent> agent(new Agent(state));
  WEFT_RETURN_IF_ERROR(state->Start(agent.get()));
  return agent;
}

Agent::Agent(std::shared_ptr<AgentState> state) : state_(std::move(state)) {}

Agent::~Agent() { state_->Stop(); }

Target Agent::To(const Worker& worker, std::optional<absl::Duration> timeout) {
  return To(worker.key, timeout);
}

absl::StatusOr<std::vector<Target>> Agent::ToAll(
    absl::string_view selector, std::optional<absl::Duration> timeout) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Worker> workers,
                        state_->options().directory->Select(selector));
  std::vector<Target> targets;
  for (const Worker& worker : workers) {
    targets.push_back(To(worker.name, timeout));
  }
  return targets;
}

absl::Status Agent::SetDevices(DeviceOptions options) {
  return state_->SetDevices(std::move(options));
}

absl::Status Agent::SetDefaultTimeout(absl::Duration timeout) {
  if (timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Agent::SetDefaultTimeout: wanted none below zero, found ",
                     absl::FormatDuration(timeout)));
  }
  state_->SetDefaultTimeout(timeout);
  return absl::OkStatus();
}

absl::Duration Agent::default_timeout() const {
  return state_->default_timeout();
}

Target Agent::To(absl::string_view name,
                 std::optional<absl::Duration> timeout) {
  Target target(this);
  target.named_ = std::make_shared<internal::NamedWorker>(std::string(name));
  target.timeout_ = timeout;
  const absl::Status valid = rendezvous::ValidateName(name);
  target.follows_ = valid.ok();
  if (!valid.ok()) target.status_ = internal::NotThere(valid, target.name());
  return target;
}

Target Agent::To(WorkerKey key, std::optional<absl::Duration> timeout) {
  Target target(this);
  target.key_ = key;
  target.timeout_ = timeout;
  const absl::StatusOr<Worker> worker = state_->FindNow(key, target.timeout());
  auto caller = state_->CallerFor(worker);
  if (caller.ok()) {
    target.caller_ = *std::move(caller);
  } else {
    target.named_ = std::make_shared<internal::NamedWorker>(
        worker.ok() ? worker->name : key.ToString());
    target.status_ = state_->NotThere(caller.status(), target.name());
  }
  return target;
}

void Agent::SetLocalObject(const void* type_key, std::shared_ptr<void> object) {
  state_->SetLocal(type_key, std::move(object));
}

std::shared_ptr<void> Agent::FindLocalObject(const void* type_key) const {
  return state_->FindLocal(type_key);
}

void Agent::PeerGone(WorkerKey key, absl::string_view why, bool left) {
  state_->PeerGone(key, why, left);
}

Agent::PeerGoneRegistration Agent::OnPeerGone(PeerGoneCallback callback) {
  return state_->OnPeerGone(std::move(callback));
}

absl::Status Agent::SetAttachmentReceiver(
    absl::string_view kind, std::shared_ptr<AttachmentReceiver> receiver) {
  return state_->receivers().Add(kind, std::move(receiver));
}

ObjectTable& Agent::objects() { return state_->parts().objects; }

void Agent::OutOfJob(const absl::Status& why) { state_->OutOfJob(why); }

absl::Status Agent::AwaitIdle(absl::Duration timeout) {
  return state_->AwaitIdle(timeout);
}

std::vector<std::string> Agent::OpenCalls() const {
  return state_->StillOpen();
}

std::vector<std::string> Agent::CutCalls() const { return state_->CutCalls(); }

absl::Status Agent::Shutdown(absl::Duration timeout) {
  return state_->Drain(timeout);
}

std::vector<Leak> Agent::Leaks() const { return state_->Leaks(); }

AgentMetrics Agent::Metrics() { return state_->Metrics(); }
std::vector<PendingCall> Agent::Pending() { return state_->Pending(); }
telemetry::Telemetry& Agent::telemetry() const { return state_->telemetry(); }
telemetry::Fields Agent::DebugInfo() { return state_->Describe(); }

const std::string& Agent::name() const { return state_->options().name; }
WorkerKey Agent::key() const { return state_->options().key; }

std::weak_ptr<SessionlessServer> Agent::sessionless_server() const {
  return state_;
}

// -------------------------------------------------------------- CallContext

absl::Duration CallContext::Remaining() const {
  const Instant now = agent_->state_->transport().clock().Now();
  return std::max(deadline() - now, absl::ZeroDuration());
}

Target CallContext::To(absl::string_view name,
                       std::optional<absl::Duration> timeout) const {
  return agent_->To(name, timeout).Within(*this);
}

Target CallContext::To(WorkerKey key,
                       std::optional<absl::Duration> timeout) const {
  return agent_->To(key, timeout).Within(*this);
}

Target CallContext::To(const Worker& worker,
                       std::optional<absl::Duration> timeout) const {
  return To(worker.key, timeout);
}

void* CallContext::FindLocal(const void* type_key) const {
  return Hold(agent_->state_->FindLocal(type_key));
}

absl::StatusOr<void*> CallContext::FindObject(const ObjectId& id,
                                              const void* type_key) const {
  WEFT_ASSIGN_OR_RETURN(
      ObjectTable::Object object,
      agent_->state_->parts().objects.Find(id, peer_.key, type_key));
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

Lineage ServedCall::lineage() const {
  Lineage lineage = inherited();
  std::string chain =
      absl::StrCat(lineage.chain, lineage.chain.empty() ? "" : " > ",
                   agent().name(), ":", function());
  lineage.chain =
      chain.size() <= kMaxChain
          ? std::move(chain)
          : absl::StrCat("... ", chain.substr(chain.size() - kMaxChain));
  lineage.caller = peer().name;
  lineage.call = id();
  return lineage;
}

absl::Status ServedCall::AwaitCopiesOf(Encoder& encoder) const {
  const auto copies = encoder.TakeCopies();
  if (copies.empty()) return absl::OkStatus();
  if (InlineScope::IsActive()) {
    return OfDevices(absl::FailedPreconditionError(
        "a tensor of a device in the result of what runs inline, on a thread "
        "that must not wait for the device: register the function with "
        "WEFT_RPC, or return To(Device::Cpu())"));
  }
  const BlockingScope blocking;
  return AwaitCopies(copies, Remaining());
}

absl::Status ServedCall::Keep(ObjectTable::Object object) {
  ObjectTable& objects = agent().objects();
  object.function = function();
  const ObjectId made{agent().key(), peer().key, id()};
  WEFT_RETURN_IF_ERROR(objects.Add(made, peer(), std::move(object)));
  WEFT_FAILPOINT("rpc/keep").IgnoreError();
  // A caller that abandons the call releases its object afterwards: only now is
  // it certain that one of the two sees the other.
  if (!cancel().IsCancelled()) return absl::OkStatus();
  (void)objects.Release(made, peer().key);
  return cancel().status();
}

}  // namespace weft::rpc
