#include "weft/dist_autograd/participation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/pass_calls.h"

namespace weft::dist_autograd {

namespace {

// The most messages that a report names for each worker.
constexpr size_t kMostAwaited = 8;

// A gradient of a peer, before a kernel reads it: kernels trust their sizes.
absl::Status CheckFits(const Slot& slot, uint64_t message, size_t number,
                       const Gradient& gradient) {
  if (!gradient.defined()) return absl::OkStatus();
  if (gradient.shape() != slot.shape || gradient.dtype() != slot.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", number, " of message ", message, " is ",
                     Name(slot.dtype), ShapeText(slot.shape), ", its gradient ",
                     Name(gradient.dtype()), ShapeText(gradient.shape())));
  }
  if (!gradient.is_sparse()) return absl::OkStatus();
  const Tensor rows = gradient.sparse().indices.Contiguous();
  for (const int64_t row : rows.span<int64_t>()) {
    if (row < 0 || row >= slot.shape[0]) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot ", number, " of message ", message, " has ",
                       slot.shape[0], " rows, its gradient has row ", row));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Participation::Participation(std::shared_ptr<WeakAgent> agent,
                             std::shared_ptr<Executor> executor,
                             std::shared_ptr<Context> context, PassId pass)
    : agent_(std::move(agent)),
      executor_(std::move(executor)),
      context_(std::move(context)),
      pass_(pass),
      strand_(*executor_),
      part_(agent_->key()) {}

void Participation::Post(std::function<void(Participation&)> task) {
  strand_.Schedule(
      [self = shared_from_this(), task = std::move(task)] { task(*self); });
}

Future<uint64_t> Participation::Prepare(const PassRequest& request,
                                        const std::vector<Root>& roots) {
  if (!abandoned_.ok()) return MakeReady<uint64_t>(abandoned_);
  if (decision_ != nullptr) {
    return MakeReady<uint64_t>(absl::AlreadyExistsError(
        absl::StrCat(pass_.ToString(), " was prepared before")));
  }
  retain_ = request.retain;
  deterministic_ = request.deterministic;
  participants_.insert(request.participants.begin(),
                       request.participants.end());
  participants_.insert(pass_.root);
  decision_ =
      std::make_unique<Decision>(agent_->key(), pass_.root, participants_);
  done_.emplace();
  Future<uint64_t> done = done_->future();
  if (absl::Status begun = BeginPass(request.live, roots); !begun.ok()) {
    Fail(begun);
  } else {
    RunReady();
  }
  return done;
}

absl::Status Participation::BeginPass(const MessageIntervals& live,
                                      const std::vector<Root>& roots) {
  GraphTask::Options options;
  options.retain_graph = retain_;
  // The graph is kept until then, so that a pass that is aborted can be begun
  // again.
  options.release_when_told = !retain_;
  options.sink = this;
  task_ = std::make_unique<GraphTask>(options);
  MessageIntervals own = Resolve(live);
  WEFT_RETURN_IF_ERROR(ExpectAll(own, roots));
  part_.Prepare(std::move(own));
  for (const Root& root : roots) {
    WEFT_RETURN_IF_ERROR(task_->Feed(root.edge, root.seed));
  }
  for (Stash& stash : std::exchange(stash_, {})) {
    WEFT_RETURN_IF_ERROR(Feed(stash.message, std::move(stash.slots)));
  }
  return absl::OkStatus();
}

// FAST: what "all" is, is known here only.
MessageIntervals Participation::Resolve(const MessageIntervals& live) const {
  if (live.empty() || live.back().last != kLastMessage) return live;
  MessageSet own;
  for (const uint64_t number : context_->Sends()) {
    own.Add({agent_->key(), number});
  }
  return own.Of(agent_->key());
}

absl::Status Participation::ExpectAll(const MessageIntervals& live,
                                      const std::vector<Root>& roots) {
  for (const Root& root : roots) {
    WEFT_RETURN_IF_ERROR(task_->Expect(root.edge));
  }
  for (const MessageInterval& interval : live) {
    for (uint64_t n = interval.first; n <= interval.last; ++n) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<Slot> slots,
                            context_->SlotsOf(n));
      for (const Slot& slot : slots) {
        WEFT_RETURN_IF_ERROR(task_->Expect(slot.edge));
        if (deterministic_) {
          ++meetings_[{slot.edge.node.get(), slot.edge.output}].expected;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Participation::OnGradients(const rpc::Worker& from,
                                        uint64_t message,
                                        std::vector<Gradient> slots) {
  if (!abandoned_.ok()) return abandoned_;
  WEFT_ASSIGN_OR_RETURN(const MessageLabel label, context_->LabelOf(message));
  if (label.to != from.key) {
    return absl::PermissionDeniedError(
        absl::StrCat("worker ", from.name, " sends gradients for message ",
                     message, " of ", context_->id().ToString(),
                     ", which went to worker ", agent_->NameOf(label.to)));
  }
  if (is_over_) return absl::OkStatus();  // they come late
  switch (part_.OnGradient(message)) {
    case PassPart::Arrival::kStash:
      stash_.push_back({message, std::move(slots)});
      return absl::OkStatus();
    case PassPart::Arrival::kDuplicate:
      return absl::OkStatus();
    case PassPart::Arrival::kNotLive:
      return absl::InvalidArgumentError(absl::StrCat(
          "gradients for message ", message, " of ", context_->id().ToString(),
          ", which ", pass_.ToString(), " does not go through"));
    case PassPart::Arrival::kFeed:
      break;
  }
  if (task_ == nullptr) return absl::OkStatus();  // the pass has ended here
  if (absl::Status fed = Feed(message, std::move(slots)); !fed.ok()) {
    Fail(fed);
    return fed;
  }
  RunReady();
  return absl::OkStatus();
}

absl::Status Participation::Feed(uint64_t message,
                                 std::vector<Gradient> slots) {
  if (!part_.IsLive(message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients for message ", message, ", which ",
                     pass_.ToString(), " does not go through"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<Slot> wanted,
                        context_->SlotsOf(message));
  if (slots.size() != wanted.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message ", message, " has ", wanted.size(),
                     " slots, its gradients ", slots.size()));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckFits(wanted[i], message, i, slots[i]));
  }
  if (!retain_) {
    std::vector<bool>& used = used_slots_[message];
    for (const Gradient& slot : slots) used.push_back(slot.defined());
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Edge& edge = wanted[i].edge;
    // It came by way of the host (gradient_codec.h).
    WEFT_RETURN_IF_ERROR(CatchToStatus([&]() -> absl::Status {
      slots[i] = slots[i].To(wanted[i].device);
      return absl::OkStatus();
    }));
    WEFT_RETURN_IF_ERROR(
        deterministic_ ? FeedInOrder(message, i, edge, std::move(slots[i]))
                       : task_->Feed(edge, std::move(slots[i])));
  }
  return absl::OkStatus();
}

// Gradients of one value are added in the order in which they are fed;
// GraphTask orders all others.
absl::Status Participation::FeedInOrder(uint64_t message, size_t slot,
                                        const Edge& edge, Gradient gradient) {
  Meeting& meeting = meetings_[{edge.node.get(), edge.output}];
  meeting.arrived[{message, slot}] = std::move(gradient);
  if (meeting.arrived.size() < meeting.expected) return absl::OkStatus();
  for (auto& [from, arrived] : meeting.arrived) {
    WEFT_RETURN_IF_ERROR(task_->Feed(edge, std::move(arrived)));
  }
  return absl::OkStatus();
}

void Participation::RunReady() {
  if (task_ == nullptr) return;
  if (absl::Status ran = task_->Run(); !ran.ok()) return Fail(ran);
  if (part_.IsDone(task_->done())) Tell(Decision::WorkDone{});
}

void Participation::SendGradients(ContextId context, const MessageId& message,
                                  std::vector<Gradient> slots) {
  if (!(context == context_->id())) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        pass_.ToString(), " of ", context_->id().ToString(), " reaches ",
        message.ToString(), " of ", context.ToString(), "; Detach() it")));
  }
  if (participants_.count(message.producer) == 0) {
    throw Error(absl::InternalError(
        absl::StrCat(pass_.ToString(), " reaches ", message.ToString(),
                     ", whose producer has no part in it")));
  }
  part_.OnSent();
  agent_
      ->CallOnce(message.producer, absl::InfiniteDuration(),
                 internal::TakeGradients, context_->id(), pass_, message.number,
                 slots)
      .OnReady([self = shared_from_this()](const absl::Status& taken) {
        self->Post([taken](Participation& part) {
          part.part_.OnTaken();
          if (!taken.ok()) part.OnNotTaken(taken);
        });
      });
}

void Participation::Accept(const BackwardPass&, Leaf& leaf, Gradient gradient) {
  AddGradient(leaf, std::move(gradient), &stage_);
}

void Participation::OnOutcome(const absl::Status& outcome) {
  if (decision_ == nullptr) {
    // It is faster than the request to take part.
    if (!outcome.ok()) Refuse(outcome);
    return;
  }
  if (outcome.ok() && decision_->state() == Decision::State::kWorking) {
    // A root that commits what is not done breaks the protocol.
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        pass_.ToString(), " was committed before all had done their part")));
  }
  Tell(Decision::OutcomeArrived{outcome});
}

Result<int64_t> Participation::OnAsked(const rpc::Worker& from) {
  if (decision_ == nullptr) {
    Refuse(absl::UnavailableError(absl::StrCat(
        "worker ", pass_.root.ToString(), ", which began the pass, is gone")));
    return static_cast<int64_t>(Decision::State::kAborted);
  }
  if (participants_.count(from.key) == 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("worker ", from.name, " asks for the outcome of ",
                     pass_.ToString(), ", in which it has no part"));
  }
  Tell(Decision::Asked{from.key});
  return static_cast<int64_t>(decision_->state());
}

void Participation::OnPeerGone(WorkerKey last) {
  const auto is_gone = [&](WorkerKey worker) {
    return worker.id == last.id && worker.epoch <= last.epoch;
  };
  if (decision_ == nullptr) {
    if (!is_gone(pass_.root)) return;
    return Refuse(absl::UnavailableError(absl::StrCat(
        "worker ", pass_.root.ToString(), ", which began the pass, is gone")));
  }
  for (const WorkerKey worker : participants_) {
    if (is_gone(worker)) Tell(Decision::PeerGone{worker});
  }
}

std::vector<std::string> Participation::AwaitedMessages() const {
  if (!abandoned_.ok() || is_over_) return {};
  if (decision_ == nullptr) return {"the request to take part"};
  std::vector<std::string> awaited;
  const std::vector<uint64_t> missing = part_.Missing();
  for (const uint64_t number : missing) {
    if (awaited.size() == kMostAwaited) {
      awaited.push_back(absl::StrCat("the gradients of ",
                                     missing.size() - kMostAwaited,
                                     " more messages"));
      break;
    }
    const MessageLabel label =
        context_->LabelOf(number).value_or(MessageLabel());
    awaited.push_back(
        absl::StrCat("the gradients of message ", number, " (the ",
                     label.is_reply ? "result" : "arguments", " of ",
                     label.function.empty() ? "a call" : label.function, " to ",
                     agent_->NameOf(label.to), ")"));
  }
  if (part_.in_flight() > 0) {
    awaited.push_back(absl::StrCat(
        part_.in_flight(), " gradient messages that were sent, to be taken"));
  }
  return awaited;
}

std::string Participation::Describe() const {
  std::vector<std::string> others;
  for (const WorkerKey worker : participants_) {
    if (worker != agent_->key()) others.push_back(agent_->NameOf(worker));
  }
  const std::vector<std::string> awaited = AwaitedMessages();
  const absl::Duration age =
      absl::Trunc(SteadyClock().Now() - began_, absl::Milliseconds(1));
  return absl::StrCat(
      others.empty() ? "" : " with ", absl::StrJoin(others, ", "),
      ", open for ", absl::FormatDuration(age), ", ",
      awaited.empty()
          ? std::string("done here, waits for the outcome")
          : absl::StrCat("waits for ", absl::StrJoin(awaited, "; ")));
}

void Participation::Abandon(const absl::Status& why) {
  Refuse(why);
  Fail(why);
}

void Participation::Refuse(const absl::Status& why) {
  if (decision_ != nullptr || !abandoned_.ok()) return;
  abandoned_ = why;
  stash_.clear();
  is_over_ = true;
}

void Participation::Fail(const absl::Status& why) {
  if (decision_ != nullptr) Tell(Decision::WorkFailed{why});
}

void Participation::OnNotTaken(const absl::Status& why) {
  if (decision_->state() != Decision::State::kDone) return Fail(why);
  // The reply that this part is done has left, so that it must not abort alone.
  // The root can: whoever waits for the gradient is not done.
  agent_->CallUntilAnswered(
      pass_.root, kControlAttempt, internal::FailPass,
      [](const absl::Status&) {}, context_->id(), pass_,
      static_cast<int64_t>(why.code()), std::string(why.message()));
}

void Participation::Tell(const Decision::Event& event) {
  std::vector<Decision::Action> actions;
  decision_->OnEvent(event, &actions);
  for (const Decision::Action& action : actions) Do(action);
}

// Messages to the root travel as replies: of Prepare that the part is done or
// failed, of the outcome that it was applied. OnAsked answers by its result.
void Participation::Do(const Decision::Action& action) {
  if (std::holds_alternative<Decision::SendDone>(action)) {
    std::exchange(done_, std::nullopt)->Set(part_.num_live());
  } else if (const auto* failed = std::get_if<Decision::SendFailed>(&action)) {
    std::exchange(done_, std::nullopt)->Set(failed->why);
  } else if (const auto* ask = std::get_if<Decision::AskParticipant>(&action)) {
    Ask(ask->to);
  } else if (const auto* apply = std::get_if<Decision::Apply>(&action)) {
    Apply(apply->outcome);
  }
}

void Participation::Ask(WorkerKey peer) {
  agent_->CallUntilAnswered(
      peer, kControlAttempt, internal::AskOutcome,
      [self = shared_from_this(), peer](const Result<int64_t>& state) {
        self->Post([peer, state](Participation& part) {
          // Without an answer the peer, or its part of the context, is gone.
          constexpr auto kLast =
              static_cast<int64_t>(Decision::State::kAborted);
          if (!state.ok() || *state < 0 || *state > kLast) {
            return part.Tell(Decision::PeerGone{peer});
          }
          part.Tell(
              Decision::Answered{peer, static_cast<Decision::State>(*state)});
        });
      },
      context_->id(), pass_);
}

void Participation::Apply(const absl::Status& outcome) {
  if (outcome.ok()) {
    context_->AddPartners(participants_);
    context_->Commit(std::move(stage_));
    if (!retain_) task_->ReleaseSaved().IgnoreError();
    for (const auto& [message, slots] : used_slots_) {
      context_->Consume(message, slots, pass_);
    }
  } else {
    if (task_ != nullptr) task_->Cancel(outcome);
    if (done_.has_value()) std::exchange(done_, std::nullopt)->Set(outcome);
  }
  stage_.clear();
  stash_.clear();
  meetings_.clear();
  used_slots_.clear();
  // RunReady may be on the stack, in the middle of the task.
  Post([](Participation& part) { part.task_.reset(); });
  is_over_ = true;
}

}  // namespace weft::dist_autograd
