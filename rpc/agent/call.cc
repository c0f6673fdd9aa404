#include "weft/rpc/call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/driver.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent/agent_state.h"
#include "weft/rpc/session/outcome.h"

namespace weft::rpc {

const std::string& Target::name() const {
  static const auto* const nobody = new std::string("nobody");
  if (named_ != nullptr) return named_->name();
  return caller_ == nullptr ? *nobody : caller_->peer().name;
}

absl::Duration Target::timeout() const {
  return timeout_.has_value() ? *timeout_ : agent_->default_timeout();
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

// The arguments of WithAttachment(), and those of the one before.
struct Target::Attached {
  std::string kind;
  MakeAttachment make;
  std::shared_ptr<const Attached> earlier;
};

Target Target::WithAttachment(absl::string_view kind,
                              MakeAttachment make) const {
  Target other = *this;
  other.attached_ = std::make_shared<const Attached>(
      Attached{std::string(kind), std::move(make), attached_});
  return other;
}

namespace internal {
namespace {

// An error of the other side, prefixed with who it was.
absl::Status Name(const std::string& worker, const Function& function,
                  const absl::Status& status, const ReplyPtr& reply) {
  std::string text = SaidBy(worker, status.message());
  if (reply != nullptr && reply->refusal == Refusal::kSignatureDiffers) {
    text = absl::StrCat(worker, ": ", function.name,
                        ": signature differs: caller says ", function.signature,
                        ", callee has ", status.message(),
                        "; build both from the same sources");
  }
  return Reworded(ReceiveFailure(status, worker, function.name, Phase::kQueue),
                  status.code(), text);
}

}  // namespace

// The code that has access to a Target's members.
class CallStarter {
 public:
  static AgentState& StateOf(const Agent& agent) { return *agent.state_; }
  static AgentState& StateOf(const Target& target) {
    return StateOf(*target.agent_);
  }

  static const Worker& WorkerOf(const Target& target) {
    return target.caller_->peer();
  }

  static bool IsAlias(const Target& target) {
    if (!target.allows_alias_ || target.caller_ == nullptr) return false;
    if (target.attached_ != nullptr) return false;  // it needs a message
    const AgentOptions& self = StateOf(target).options();
    const Worker& peer = target.caller_->peer();
    // WithRetry() has the name only.
    return peer.key.epoch == 0 ? peer.name == self.name : peer.key == self.key;
  }

  static void Start(const Target& target, const Function& function,
                    const std::shared_ptr<Request>& request,
                    std::shared_ptr<OutgoingCall> call) {
    Address(target, function, request.get());
    WEFT_CHECK(target.caller_ != nullptr) << target.name();
    call->caller_ = target.caller_;
    call->queue_ = target.queue_;
    call->agent_ = target.agent_;
    call->worker_ = target.name();
    call->function_ = &function;
    call->request_ = request;
    if (StateOf(target).telemetry().spans().enabled()) {
      Trace(StateOf(target), request.get(), call.get());
    }
    std::shared_ptr<Caller> after_copies;
    if (DeviceTensors* const devices = StateOf(target).devices()) {
      call->streams_ = devices->CurrentStreams();
      after_copies = StateOf(target).AfterCopies(target.caller_);
    }
    const std::shared_ptr<Caller>& caller =
        after_copies == nullptr ? target.caller_ : after_copies;
    call->abandon_ = target.queue_ == nullptr
                         ? caller->Start(request, CallEnd(call))
                         : target.queue_->Start(caller, request, CallEnd(call));
    if (const Lineage* lineage = target.lineage_.get()) {
      // Given up also when the call that makes it is cancelled.
      call->with_parent_ = lineage->cancel.OnCancel(
          [weak = std::weak_ptr<OutgoingCall>(call)](const absl::Status& why) {
            if (const auto live = weak.lock()) live->GiveUp(why).IgnoreError();
          });
    }
  }

  // Objects are kept by one incarnation, so the target must be fixed.
  static absl::Status CheckFixed(const Target& target) {
    if (!target.retries_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "calls to ", target.name(),
        " may go to another incarnation, as WithRetry() lets them; objects "
        "and streams need a target without it"));
  }

  static absl::Status CheckNotSerialized(const Target& target,
                                         absl::string_view why) {
    if (target.queue_ == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted a target of ", target.name(), " without Serialized(): ", why));
  }

  static Encoder RequestEncoder(const Target& target, Request* request) {
    const CodecContext context{
        CodecContext::Message::kRequest, target.agent_, WorkerOf(target).key, 0,
        StateOf(target).devices(),       target.name()};
    return Encoder(context, target.retries_ ? nullptr : &request->staged,
                   "a call by WithRetry() may go to another incarnation");
  }

  static void StageAttached(const Target& target, Encoder& encoder) {
    for (const Target::Attached* attached = target.attached_.get();
         attached != nullptr; attached = attached->earlier.get()) {
      encoder.Stage(attached->kind,
                    [&] { return attached->make(encoder.context()); });
    }
  }

  static Target Alone(const Target& target) {
    Target alone(target.agent_);
    alone.status_ = target.status_;
    alone.caller_ = target.caller_;
    alone.named_ = target.named_;
    alone.key_ = target.key_;
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
    part.timeout_ = absl::InfiniteDuration();  // the deadline above ends it
    part.allows_alias_ = false;
    return part;
  }

 private:
  // Ends its call with what has come, or because nothing can come any more.
  class CallEnd {
   public:
    explicit CallEnd(std::shared_ptr<OutgoingCall> call)
        : call_(std::move(call)) {}
    CallEnd(CallEnd&&) noexcept = default;
    ~CallEnd() {
      if (call_ == nullptr) return;
      call_->End(absl::CancelledError("the agent ended before the call did"),
                 nullptr);
    }
    void operator()(absl::Status status, const ReplyPtr& reply) && {
      const auto call = std::move(call_);
      call->End(std::move(status), reply);
    }

   private:
    std::shared_ptr<OutgoingCall> call_;
  };

  // Sets all but the arguments and whether the result is kept.
  static void Address(const Target& target, const Function& function,
                      Request* request) {
    AgentState& state = StateOf(target);
    request->function = function.name;
    request->signature = function.digest;
    request->function_index = function.index;
    request->waits_for_credit = target.waits_for_credit_;
    request->is_stream = function.is_stream;
    request->is_part_of_stream = function.is_part_of_stream;
    const absl::Duration timeout =
        std::min(target.timeout(), state.options().limits.timeout);
    request->began = state.transport().clock().Now();
    request->deadline = request->began + timeout;
    if (const Lineage* lineage = target.lineage_.get()) {
      request->deadline = std::min(request->deadline, lineage->deadline);
      request->depth = lineage->depth + 1;
      request->chain = lineage->chain;
      request->trace = lineage->trace;
      request->for_peer = lineage->caller;
      request->for_id = lineage->call;
    }
    if (target.trace_.is_valid()) request->trace = target.trace_;
  }

  // Puts a span around the call, which `request` names as parent.
  static void Trace(const AgentState& state, Request* request,
                    OutgoingCall* call) {
    call->span_ =
        std::make_unique<telemetry::Span>(state.telemetry().spans().Start(
            absl::StrCat(request->keeps_result ? "rpc_remote#" : "rpc_call#",
                         request->function, "(", state.self(), " -> ",
                         call->caller_->peer().name, ")"),
            request->trace));
    call->span_->With("span.kind", "client");
    request->trace = call->span_->context();
  }
};

}  // namespace internal

absl::Status Target::status() const {
  return follows_ ? Pinned().status_ : status_;
}

Target Target::Pinned() const {
  Target other = *this;
  if (!follows_) return other;
  other.follows_ = false;
  AgentState& state = internal::CallStarter::StateOf(*this);
  auto caller = state.CallerOf(*named_, [&] {
    if (lineage_ == nullptr) return timeout();
    return std::min(timeout(),
                    lineage_->deadline - state.transport().clock().Now());
  });
  if (caller.ok()) {
    other.caller_ = *std::move(caller);
    other.key_ = other.caller_->peer().key;
  } else {
    other.status_ = state.NotThere(caller.status(), name());
  }
  return other;
}

Target Target::WithRetry(const RetryPolicy& policy) const {
  Target other = *this;
  // An incarnation that is not there, or not yet, has its key all the same.
  if (!status_.ok() && key_.epoch == 0) return other;
  other.status_ =
      queue_ != nullptr
          ? absl::InvalidArgumentError("WithRetry() comes before Serialized()")
          : Validate(policy);
  other.status_ =
      internal::NameFailure(other.status_, name(), "", Phase::kNone);
  AgentState& state = internal::CallStarter::StateOf(*this);
  other.caller_ = state.Retrying({name(), key_, ""}, policy);
  other.follows_ = false;
  other.retries_ = true;
  return other;
}

Target Target::Serialized() const {
  Target other = *this;
  other.queue_ = internal::CallStarter::StateOf(*this).NewQueue(name());
  return other;
}

namespace internal {

AgentParts& PartsOf(const Agent& agent) {
  return CallStarter::StateOf(agent).parts();
}

AgentParts& PartsOf(const Target& target) {
  return CallStarter::StateOf(target).parts();
}

Driver& DriverOf(const Target& target) { return PartsOf(target).driver; }

Target PartOf(const Target& target, const Request& request,
              CancelToken cancel) {
  return CallStarter::PartOf(target, request, std::move(cancel));
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
  return CallStarter::StateOf(target).CanCall();
}

}  // namespace

absl::StatusOr<const Function*> FindFunction(const Target& target,
                                             Function::Address address) {
  WEFT_RETURN_IF_ERROR(CheckTarget(target));
  return CallStarter::StateOf(target).access().FindOwn(address);
}

absl::StatusOr<const Function*> FindMethod(const Target& target,
                                           absl::string_view key) {
  WEFT_RETURN_IF_ERROR(CheckTarget(target));
  return CallStarter::StateOf(target).access().FindOwn(key);
}

bool IsAlias(const Target& target) { return CallStarter::IsAlias(target); }

OutgoingCall::OutgoingCall() = default;
OutgoingCall::~OutgoingCall() = default;

absl::Status OutgoingCall::GiveUp(const absl::Status& why) const {
  absl::Status end = abandon_(why);
  if (end.ok()) end = MarkFailure(WithOutcomeUnknown(why), Phase::kHandler);
  return Name(worker_, *function_, end, nullptr);
}

void OutgoingCall::End(absl::Status status, const ReplyPtr& reply) {
  const auto caller = std::move(caller_);
  const auto queue = std::move(queue_);
  // The memory of its arguments may be needed.
  const uint64_t id = std::exchange(request_, nullptr)->id;
  if (span_ != nullptr) {
    span_->With("code", absl::StatusCodeToString(status.code()));
    span_->End();
  }
  if (!status.ok()) {
    return OnEnd(id, Name(worker_, *function_, status, reply));
  }
  CodecContext context{
      CodecContext::Message::kReply, agent_,
      reply->received == nullptr ? caller->peer().key : reply->from, id};
  context.peer_name = worker_;
  if (streams_ != nullptr) {
    context.devices = streams_->devices.get();
    context.streams = &streams_->streams;
  }
  OnEnd(id, Received{reply->body, reply->is_private, context, reply->received});
}

Encoder RequestEncoder(const Target& target, Request* request) {
  return CallStarter::RequestEncoder(target, request);
}

void StageAttached(const Target& target, Encoder& encoder) {
  CallStarter::StageAttached(target, encoder);
}

absl::Status FreezeAttachments(Request* request) {
  if (request->staged == nullptr) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(request->attachments, request->staged->Freeze());
  return absl::OkStatus();
}

absl::Status AwaitCopiesOf(const Target& target, Request* request) {
  if (request->copies.empty()) return absl::OkStatus();
  if (InlineScope::IsActive()) {
    return absl::FailedPreconditionError(
        "a tensor of a device in what makes an object or a stream would be "
        "waited for in a function that runs inline: send To(Device::Cpu())");
  }
  const BlockingScope blocking;
  WEFT_RETURN_IF_ERROR(AwaitCopies(request->copies, target.timeout()));
  request->copies.clear();
  return absl::OkStatus();
}

void StartCall(const Target& target, const Function& function,
               const std::shared_ptr<Request>& request,
               std::shared_ptr<OutgoingCall> call) {
  CallStarter::Start(target, function, request, std::move(call));
}

absl::Status NotHere(const std::string& worker) {
  const absl::Status why = absl::FailedPreconditionError(absl::StrCat(
      "a call to ", worker,
      " would wait in a function that runs inline, on the thread that must "
      "receive the reply: use CallAsync, or register the function with "
      "WEFT_RPC"));
  return NameFailure(why, worker, "", Phase::kNone);
}

absl::Status NotBegun(const Target& target,
                      const absl::StatusOr<const Function*>& function,
                      const absl::Status& why) {
  if (!target.status().ok()) return target.status();  // which says it already
  return NameFailure(why, target.name(), function.ok() ? (*function)->name : "",
                     Phase::kNone);
}

absl::Status CheckNotSerialized(const Target& target, absl::string_view why) {
  return CallStarter::CheckNotSerialized(target, why);
}

absl::Status CheckFixed(const Target& target) {
  return CallStarter::CheckFixed(target);
}

Target Alone(const Target& target) { return CallStarter::Alone(target); }

const Worker& WorkerOf(const Target& target) {
  return CallStarter::WorkerOf(target);
}

}  // namespace internal
}  // namespace weft::rpc
