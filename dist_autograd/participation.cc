#include "weft/dist_autograd/participation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/rpc/call.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd {

// ------------------------------------------------------------ a worker's part

Participation::Participation(std::shared_ptr<Contexts> contexts,
                             std::shared_ptr<Context> context, PassId pass)
    : contexts_(std::move(contexts)),
      context_(std::move(context)),
      pass_(pass),
      strand_(*contexts_->pool_),
      part_(contexts_->agent().key()) {}

void Participation::Post(std::function<void(Participation&)> task) {
  strand_.Schedule(
      [self = shared_from_this(), task = std::move(task)] { task(*self); });
}

Future<void> Participation::Prepare(MessageIntervals live,
                                    const std::vector<WorkerKey>& participants,
                                    bool retain,
                                    const std::vector<Root>& roots) {
  if (!abandoned_.ok()) return MakeReady<void>(abandoned_);
  if (decision_ != nullptr) {
    return MakeReady<void>(absl::AlreadyExistsError(
        absl::StrCat(pass_.ToString(), " was prepared before")));
  }
  retain_ = retain;
  decision_ = std::make_unique<Decision>(
      contexts_->agent().key(), pass_.root,
      std::set<WorkerKey>(participants.begin(), participants.end()));
  done_.emplace();
  Future<void> done = done_->future();
  GraphTask::Options options;
  options.retain_graph = retain;
  // So that a pass that is aborted can be begun again.
  options.release_when_told = !retain;
  options.sink = this;
  task_ = std::make_unique<GraphTask>(options);
  if (absl::Status status = ExpectAll(live, roots); !status.ok()) {
    Fail(status);
    return done;
  }
  part_.Prepare(std::move(live));
  for (const Root& root : roots) {
    if (absl::Status fed = task_->Feed(root.edge, root.seed); !fed.ok()) {
      Fail(fed);
      return done;
    }
  }
  for (Stash& stash : std::exchange(stash_, {})) {
    if (absl::Status fed = Feed(stash.message, std::move(stash.slots));
        !fed.ok()) {
      Fail(fed);
      return done;
    }
  }
  RunReady();
  return done;
}

absl::Status Participation::ExpectAll(const MessageIntervals& live,
                                      const std::vector<Root>& roots) {
  for (const Root& root : roots) {
    WEFT_RETURN_IF_ERROR(task_->Expect(root.edge));
  }
  for (const MessageInterval& interval : live) {
    for (uint64_t n = interval.first; n <= interval.last; ++n) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<Edge> slots,
                            context_->SlotsOf(n));
      for (const Edge& slot : slots) WEFT_RETURN_IF_ERROR(task_->Expect(slot));
    }
  }
  return absl::OkStatus();
}

absl::Status Participation::OnGradients(
    uint64_t message, std::vector<std::optional<Tensor>> slots) {
  if (!abandoned_.ok()) return abandoned_;
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
                                 std::vector<std::optional<Tensor>> slots) {
  if (!part_.IsLive(message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients for message ", message, ", which ",
                     pass_.ToString(), " does not go through"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<Edge> edges,
                        context_->SlotsOf(message));
  if (slots.size() != edges.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message ", message, " has ", edges.size(),
                     " slots, its gradients ", slots.size()));
  }
  for (size_t i = 0; i < edges.size(); ++i) {
    Gradient gradient;
    if (slots[i].has_value()) gradient = Gradient(*std::move(slots[i]));
    WEFT_RETURN_IF_ERROR(task_->Feed(edges[i], std::move(gradient)));
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
  std::vector<std::optional<Tensor>> tensors;
  for (const Gradient& slot : slots) {
    tensors.push_back(slot.defined() ? std::optional<Tensor>(slot.ToDense())
                                     : std::nullopt);
  }
  part_.OnSent();
  rpc::Agent& agent = contexts_->agent();
  rpc::CallAsync(agent.To(message.producer, absl::InfiniteDuration()),
                 internal::TakeGradients, context_->id(), pass_, message.number,
                 tensors)
      .OnReady([self = shared_from_this()](const absl::Status& taken) {
        self->Post([taken](Participation& part) {
          part.part_.OnTaken();
          if (!taken.ok()) return part.Fail(taken);
          part.RunReady();
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
  Tell(Decision::OutcomeArrived{outcome});
}

int64_t Participation::OnAsked(WorkerKey from) {
  if (decision_ == nullptr) {
    Refuse(absl::UnavailableError(absl::StrCat(
        "worker ", pass_.root.ToString(), ", which began the pass, is gone")));
    return static_cast<int64_t>(Decision::State::kAborted);
  }
  Tell(Decision::Asked{from});
  return static_cast<int64_t>(decision_->state());
}

void Participation::OnPeerGone(WorkerKey peer) {
  if (decision_ != nullptr) {
    Tell(Decision::PeerGone{peer});
  } else if (peer == pass_.root) {
    Refuse(absl::UnavailableError(absl::StrCat(
        "worker ", peer.ToString(), ", which began the pass, is gone")));
  }
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

void Participation::Tell(const Decision::Event& event) {
  std::vector<Decision::Action> actions;
  decision_->OnEvent(event, &actions);
  for (const Decision::Action& action : actions) Do(action);
}

// What the root is told travels as replies: of Prepare that the part is done or
// failed, of the outcome that it was applied. OnAsked answers by its result.
void Participation::Do(const Decision::Action& action) {
  if (std::holds_alternative<Decision::SendDone>(action)) {
    std::exchange(done_, std::nullopt)->Set(absl::OkStatus());
  } else if (const auto* failed = std::get_if<Decision::SendFailed>(&action)) {
    std::exchange(done_, std::nullopt)->Set(failed->why);
  } else if (const auto* ask = std::get_if<Decision::AskParticipant>(&action)) {
    Ask(ask->to);
  } else if (const auto* apply = std::get_if<Decision::Apply>(&action)) {
    Apply(apply->outcome);
  }
}

void Participation::Ask(WorkerKey peer) {
  rpc::Agent& agent = contexts_->agent();
  rpc::CallAsync(agent.To(peer, absl::InfiniteDuration()), internal::AskOutcome,
                 context_->id(), pass_)
      .OnReady([self = shared_from_this(), peer](const Result<int64_t>& state) {
        // Without an answer the peer is gone, which is heard of by itself.
        if (!state.ok()) return;
        self->Post([peer, state = *state](Participation& part) {
          part.Tell(
              Decision::Answered{peer, static_cast<Decision::State>(state)});
        });
      });
}

void Participation::Apply(const absl::Status& outcome) {
  if (outcome.ok()) {
    context_->Commit(std::move(stage_));
    if (!retain_) task_->ReleaseSaved().IgnoreError();
  } else {
    task_->Cancel(outcome);
    if (done_.has_value()) std::exchange(done_, std::nullopt)->Set(outcome);
  }
  stage_.clear();
  stash_.clear();
  // RunReady may be on the stack, in the middle of the task.
  Post([](Participation& part) { part.task_.reset(); });
  is_over_ = true;
}

// ------------------------------------------------------------ the root's part

RootPass::RootPass(std::shared_ptr<Contexts> contexts,
                   std::shared_ptr<Context> context, PassId pass,
                   MessageSet live, absl::Duration timeout, bool retain,
                   std::vector<WorkerKey> participants)
    : contexts_(std::move(contexts)),
      context_(std::move(context)),
      pass_(pass),
      live_(std::move(live)),
      timeout_(timeout),
      retain_(retain),
      strand_(*contexts_->pool_),
      participants_(std::move(participants)),
      decision_({participants_.begin(), participants_.end()}) {}

void RootPass::Post(std::function<void(RootPass&)> task) {
  strand_.Schedule(
      [self = shared_from_this(), task = std::move(task)] { task(*self); });
}

Future<PassReport> RootPass::Start(std::shared_ptr<Participation> own,
                                   std::vector<Participation::Root> roots) {
  own_ = std::move(own);
  Future<PassReport> result = result_.future();
  const WorkerKey self = contexts_->agent().key();
  for (const WorkerKey worker : participants_) {
    if (worker != self) PrepareAt(worker);
  }
  own_->Post([root = shared_from_this(), self,
              roots = std::move(roots)](Participation& part) {
    part.Prepare(root->live_.Of(self), root->participants_, root->retain_,
                 roots)
        .OnReady([root, self](const absl::Status& done) {
          root->Post([self, done](RootPass& pass) { pass.OnDone(self, done); });
        });
  });
  return result;
}

void RootPass::PrepareAt(WorkerKey worker) {
  rpc::CallAsync(contexts_->agent().To(worker, timeout_), internal::TakePart,
                 context_->id(), pass_, live_.Of(worker), participants_,
                 retain_)
      .OnReady([self = shared_from_this(), worker](const absl::Status& done) {
        self->Post(
            [worker, done](RootPass& pass) { pass.OnDone(worker, done); });
      });
}

void RootPass::OnDone(WorkerKey worker, const absl::Status& status) {
  if (status.ok()) return Tell(Decision::Done{worker});
  Tell(Decision::Failed{worker, status});
}

void RootPass::OnPeerGone(WorkerKey peer) { Tell(Decision::PeerGone{peer}); }

void RootPass::Abandon(const absl::Status& why) {
  Tell(Decision::Cancelled{why});
}

void RootPass::Tell(const Decision::Event& event) {
  std::vector<Decision::Action> actions;
  decision_.OnEvent(event, &actions);
  for (const Decision::Action& action : actions) {
    if (const auto* send = std::get_if<Decision::SendOutcome>(&action)) {
      SendOutcome(send->to, send->outcome);
    } else {
      Finish(std::get<Decision::Finished>(action));
    }
  }
}

void RootPass::SendOutcome(WorkerKey to, const absl::Status& outcome) {
  const auto acknowledge = [self = shared_from_this(),
                            to](const absl::Status& applied) {
    self->Post([to, applied](RootPass& pass) {
      if (applied.ok()) return pass.Tell(Decision::Acknowledged{to});
      pass.Tell(Decision::PeerGone{to});
    });
  };
  if (to == contexts_->agent().key()) {
    own_->Post([outcome, acknowledge](Participation& part) {
      part.OnOutcome(outcome);
      // After the graph's task has ended: the next pass may use its graph.
      part.Post(
          [acknowledge](Participation&) { acknowledge(absl::OkStatus()); });
    });
    return;
  }
  rpc::CallAsync(contexts_->agent().To(to, absl::InfiniteDuration()),
                 internal::TakeOutcome, context_->id(), pass_,
                 static_cast<int64_t>(outcome.code()),
                 std::string(outcome.message()))
      .OnReady(acknowledge);
}

void RootPass::Finish(const Decision::Finished& finished) {
  if (finished.outcome.ok()) {
    PassReport report;
    report.participants = static_cast<int>(participants_.size());
    for (const WorkerKey worker : participants_) {
      report.live_messages += live_.CountOf(worker);
    }
    for (const WorkerKey worker : finished.lost) {
      report.lost.push_back(worker.ToString());
    }
    result_.Set(std::move(report));
  } else {
    result_.Set(
        absl::Status(finished.outcome.code(),
                     absl::StrCat("distributed backward (", pass_.ToString(),
                                  " of ", context_->id().ToString(),
                                  "): ", finished.outcome.message())));
  }
  contexts_->RootEnded({context_->id(), pass_});
}

}  // namespace weft::dist_autograd
