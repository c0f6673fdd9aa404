#include "weft/rpc/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/base/version.h"
#include "weft/rendezvous/member.h"
#include "weft/rpc/agent/agent_core.h"
#include "weft/rpc/handle.h"

namespace weft::rpc {

namespace {

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
  auto core = std::make_shared<Core>(std::move(options), registry);
  std::unique_ptr<Agent> agent(new Agent(core));
  WEFT_RETURN_IF_ERROR(core->Start(agent.get()));
  return agent;
}

Agent::Agent(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Agent::~Agent() { core_->Stop(); }

Target Agent::To(absl::string_view name,
                 std::optional<absl::Duration> timeout) {
  return ByName(name, timeout, nullptr);
}

Target Agent::To(WorkerKey key, std::optional<absl::Duration> timeout) {
  return ByKey(key, timeout, nullptr);
}

Target Agent::To(const Worker& worker, std::optional<absl::Duration> timeout) {
  return ByKey(worker.key, timeout, nullptr);
}

absl::StatusOr<std::vector<Target>> Agent::ToAll(
    absl::string_view selector, std::optional<absl::Duration> timeout) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Worker> workers,
                        core_->options().directory->Select(selector));
  std::vector<Target> targets;
  for (const Worker& worker : workers) {
    targets.push_back(ByName(worker.name, timeout, nullptr));
  }
  return targets;
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

Target Agent::ByName(absl::string_view name,
                     std::optional<absl::Duration> timeout,
                     std::shared_ptr<const Lineage> lineage) {
  Target target(this);
  target.named_ = std::make_shared<internal::NamedWorker>(std::string(name));
  target.timeout_ = timeout;
  target.lineage_ = std::move(lineage);
  const absl::Status valid = rendezvous::ValidateName(name);
  target.follows_ = valid.ok();
  if (!valid.ok()) target.status_ = internal::NotThere(valid, target.name());
  return target;
}

Target Agent::ByKey(WorkerKey key, std::optional<absl::Duration> timeout,
                    std::shared_ptr<const Lineage> lineage) {
  Target target(this);
  target.key_ = key;
  target.timeout_ = timeout;
  target.lineage_ = std::move(lineage);
  const absl::StatusOr<Worker> worker = core_->Find(key);
  auto caller = core_->CallerFor(worker);
  if (caller.ok()) {
    target.caller_ = *std::move(caller);
  } else {
    target.named_ = std::make_shared<internal::NamedWorker>(
        worker.ok() ? worker->name : key.ToString());
    target.status_ = core_->NotThere(caller.status(), target.name());
  }
  return target;
}

void Agent::SetLocalObject(const void* type_key, std::shared_ptr<void> object) {
  core_->SetLocal(type_key, std::move(object));
}

std::shared_ptr<void> Agent::FindLocalObject(const void* type_key) const {
  return core_->FindLocal(type_key);
}

void Agent::PeerGone(WorkerKey key, absl::string_view why, bool left) {
  core_->PeerGone(key, why, left);
}

Agent::PeerGoneRegistration Agent::OnPeerGone(PeerGoneCallback callback) {
  return core_->OnPeerGone(std::move(callback));
}

absl::Status Agent::SetAttachmentReceiver(
    absl::string_view kind, std::shared_ptr<AttachmentReceiver> receiver) {
  return core_->receivers()->Add(kind, std::move(receiver));
}

ObjectTable& Agent::objects() { return core_->objects(); }

void Agent::OutOfJob(const absl::Status& why) { core_->OutOfJob(why); }

absl::Status Agent::AwaitIdle(absl::Duration timeout) {
  return core_->AwaitIdle(timeout);
}

std::vector<std::string> Agent::OpenCalls() const { return core_->StillOpen(); }

std::vector<std::string> Agent::CutCalls() const { return core_->CutCalls(); }

absl::Status Agent::Shutdown(absl::Duration timeout) {
  return core_->Drain(timeout);
}

std::vector<Leftover> Agent::Leftovers() const { return core_->Leftovers(); }

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
  return agent_->ByName(name, timeout,
                        std::make_shared<const Lineage>(lineage()));
}

Target CallContext::To(WorkerKey key,
                       std::optional<absl::Duration> timeout) const {
  return agent_->ByKey(key, timeout,
                       std::make_shared<const Lineage>(lineage()));
}

Target CallContext::To(const Worker& worker,
                       std::optional<absl::Duration> timeout) const {
  return To(worker.key, timeout);
}

void* CallContext::FindLocal(const void* type_key) const {
  return Hold(agent_->core_->FindLocal(type_key));
}

absl::StatusOr<void*> CallContext::FindObject(const ObjectId& id,
                                              const void* type_key) const {
  WEFT_ASSIGN_OR_RETURN(
      ObjectTable::Object object,
      agent_->core_->objects().Find(id, peer_->key, type_key));
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

absl::Status ServedCall::Keep(ObjectTable::Object object) {
  ObjectTable& objects = internal::ObjectsOf(agent());
  object.function = function();
  const ObjectId made{agent().key(), peer().key, id()};
  WEFT_RETURN_IF_ERROR(objects.Add(made, peer(), std::move(object)));
  WEFT_FAILPOINT("rpc/keep").IgnoreError();
  // Who gives the call up releases what it made after that: only now is it
  // certain that one of the two sees the other.
  if (!cancel().IsCancelled()) return absl::OkStatus();
  (void)objects.Release(made, peer().key);
  return cancel().status();
}

}  // namespace weft::rpc
