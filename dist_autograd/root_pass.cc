#include "weft/dist_autograd/root_pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "weft/base/reworded.h"

namespace weft::dist_autograd {

namespace {

// How long participants have to say what they wait for.
constexpr absl::Duration kReportTimeout = absl::Seconds(2);
// If a participant has not answered by then, the outcome is sent again.
constexpr absl::Duration kOutcomeTimeout = absl::Seconds(10);

}  // namespace

absl::Status GraphLost(ContextId context, WorkerKey worker) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Backward: the graph of ", context.ToString(), " at worker ",
      worker.ToString(),
      " is lost, since that incarnation is gone; run the forward again"));
}

RootPass::RootPass(std::shared_ptr<WeakAgent> agent,
                   std::shared_ptr<Executor> executor,
                   std::shared_ptr<Context> context, PassId pass,
                   MessageSet live, const PassOptions& options,
                   std::vector<WorkerKey> participants,
                   std::vector<WorkerKey> shortened)
    : agent_(std::move(agent)),
      executor_(std::move(executor)),
      context_(std::move(context)),
      pass_(pass),
      live_(std::move(live)),
      options_(options),
      strand_(*executor_),
      participants_(std::move(participants)),
      shortened_(std::move(shortened)),
      decision_({participants_.begin(), participants_.end()}) {}

void RootPass::Post(std::function<void(RootPass&)> task) {
  strand_.Schedule(
      [self = shared_from_this(), task = std::move(task)] { task(*self); });
}

Future<PassReport> RootPass::Start(std::shared_ptr<Participation> own,
                                   std::vector<Participation::Root> roots) {
  own_ = std::move(own);
  WatchDeadline();
  result_ = Promise<PassReport>(deadline_->driver());
  Future<PassReport> result = result_.future();
  result_.OnCancel([weak = weak_from_this()](const absl::Status& why) {
    if (const auto self = weak.lock()) {
      self->Post([why](RootPass& pass) { pass.Abandon(why); });
    }
  });
  for (const WorkerKey worker : participants_) {
    if (worker != agent_->key()) PrepareAt(worker);
  }
  PrepareOwn(std::move(roots));
  return result;
}

// A call of this agent to itself ends at its time-out: the agent's own timers,
// and its clock, also in simulations.
void RootPass::WatchDeadline() {
  deadline_ = agent_->CallOnce(agent_->key(), options_.timeout,
                               internal::AwaitEnd, context_->id(), pass_);
  deadline_->OnReady([weak = weak_from_this()](const absl::Status& ended) {
    const auto self = weak.lock();
    if (self == nullptr || ended.ok()) return;
    self->Post([ended](RootPass& pass) {
      if (ended.code() != absl::StatusCode::kDeadlineExceeded) {
        return pass.Abandon(ended);
      }
      pass.OnDeadline();
    });
  });
}

PassRequest RootPass::RequestTo(WorkerKey worker) const {
  return {live_.Of(worker), participants_, options_.retain_graph,
          options_.deterministic};
}

void RootPass::PrepareOwn(std::vector<Participation::Root> roots) {
  own_->Post([root = shared_from_this(),
              roots = std::move(roots)](Participation& part) {
    const WorkerKey self = root->agent_->key();
    part.Prepare(root->RequestTo(self), roots)
        .OnReady([root, self](const Result<uint64_t>& done) {
          root->Post([self, done](RootPass& pass) { pass.OnDone(self, done); });
        });
  });
}

void RootPass::PrepareAt(WorkerKey worker) {
  const PassRequest request = RequestTo(worker);
  agent_
      ->CallOnce(worker, absl::InfiniteDuration(), internal::TakePart,
                 context_->id(), pass_, request.live, request.participants,
                 request.retain, request.deterministic)
      .OnReady(
          [self = shared_from_this(), worker](const Result<uint64_t>& done) {
            self->Post(
                [worker, done](RootPass& pass) { pass.OnDone(worker, done); });
          });
}

void RootPass::OnDone(WorkerKey worker, const Result<uint64_t>& messages) {
  if (messages.status().code() == absl::StatusCode::kNotFound) {
    // Neither the worker nor its part of the context is there any more.
    return Tell(Decision::Failed{worker, GraphLost(context_->id(), worker)});
  }
  if (!messages.ok()) return Tell(Decision::Failed{worker, messages.status()});
  live_messages_ += *messages;
  Tell(Decision::Done{worker});
}

bool RootPass::HasParticipant(WorkerKey worker) const {
  return std::find(participants_.begin(), participants_.end(), worker) !=
         participants_.end();
}

void RootPass::OnFailed(WorkerKey worker, const absl::Status& why) {
  Tell(Decision::Failed{worker, why});
}

void RootPass::OnPeerGone(WorkerKey last) {
  for (const WorkerKey worker : participants_) {
    if (worker.id == last.id && worker.epoch <= last.epoch) {
      Tell(Decision::PeerGone{worker});
    }
  }
}

void RootPass::Abandon(const absl::Status& why) {
  Tell(Decision::Cancelled{why});
}

void RootPass::OnDeadline() {
  if (has_expired_ || decision_.is_decided()) return;
  has_expired_ = true;
  asked_ = decision_.waiting_for();
  for (const WorkerKey worker : std::set<WorkerKey>(asked_)) {
    const auto tell = [self = shared_from_this(), worker](
                          const Result<std::vector<std::string>>& awaited) {
      self->Post([worker, awaited](RootPass& pass) {
        pass.OnAwaited(worker, awaited);
      });
    };
    if (worker == agent_->key()) {
      own_->Post([tell](Participation& part) { tell(part.AwaitedMessages()); });
    } else {
      agent_
          ->CallOnce(worker, kReportTimeout, internal::AskAwaited,
                     context_->id(), pass_)
          .OnReady(tell);
    }
  }
  if (asked_.empty()) GiveUp();
}

void RootPass::OnAwaited(WorkerKey worker,
                         const Result<std::vector<std::string>>& awaited) {
  asked_.erase(worker);
  const std::string name = agent_->NameOf(worker);
  if (!awaited.ok()) {
    awaited_.push_back(absl::StrCat("worker ", name, " did not say (",
                                    awaited.status().message(), ")"));
  } else if (awaited->empty()) {
    awaited_.push_back(absl::StrCat("worker ", name, " still computes"));
  } else {
    awaited_.push_back(absl::StrCat("worker ", name, " waits for ",
                                    absl::StrJoin(*awaited, ", ")));
  }
  if (asked_.empty()) GiveUp();
}

void RootPass::GiveUp() {
  std::string why = absl::StrCat("the pass did not end within ",
                                 absl::FormatDuration(options_.timeout), ": ",
                                 absl::StrJoin(awaited_, "; "));
  if (options_.mode == PassMode::kFast) {
    absl::StrAppend(&why,
                    ". FAST mode waits for every message of the participants: "
                    "use each result for the roots, or PassMode::kSmart");
  } else if (!shortened_.empty()) {
    absl::StrAppend(
        &why,
        ". The lineage of the roots had too many intervals, so the pass "
        "waited for every message of ",
        absl::StrJoin(shortened_, ", ",
                      [this](std::string* out, WorkerKey worker) {
                        absl::StrAppend(out, agent_->NameOf(worker));
                      }),
        ", as in FAST mode: raise ContextsOptions::max_lineage_intervals");
  }
  Tell(Decision::Cancelled{absl::DeadlineExceededError(why)});
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
  const auto settle = [self = shared_from_this(),
                       to](const absl::Status& applied) {
    self->Post([to, applied](RootPass& pass) {
      if (applied.ok()) return pass.Tell(Decision::Acknowledged{to});
      pass.Tell(Decision::PeerGone{to});
    });
  };
  if (to == agent_->key()) {
    own_->Post([outcome, settle](Participation& part) {
      part.OnOutcome(outcome);
      // After the graph's task has ended: the next pass may use its graph.
      part.Post([settle](Participation&) { settle(absl::OkStatus()); });
    });
    return;
  }
  const auto code = static_cast<int64_t>(outcome.code());
  const std::string message(outcome.message());
  agent_
      ->CallOnce(to, kOutcomeTimeout, internal::TakeOutcome, context_->id(),
                 pass_, code, message)
      .OnReady([self = shared_from_this(), to, code, message,
                settle](const absl::Status& applied) {
        // The session was given up, or is silent, perhaps while the peer lives:
        // it must not wait for the outcome for ever.
        if (!absl::IsUnavailable(applied) &&
            !absl::IsDeadlineExceeded(applied)) {
          return settle(applied);
        }
        self->agent_->CallUntilAnswered(
            to, kControlAttempt, internal::RepeatOutcome, settle,
            self->context_->id(), self->pass_, code, message);
      });
}

void RootPass::Finish(const Decision::Finished& finished) {
  if (finished.outcome.ok()) {
    PassReport report;
    report.participants = static_cast<int>(participants_.size());
    report.live_messages = live_messages_;
    for (const WorkerKey worker : finished.lost) {
      report.lost.push_back(worker.ToString());
    }
    for (const WorkerKey worker : shortened_) {
      report.fast_participants.push_back(agent_->NameOf(worker));
    }
    result_.Set(std::move(report));
  } else {
    result_.Set(
        Reworded(finished.outcome,
                 absl::StrCat("distributed backward (", pass_.ToString(),
                              " of ", context_->id().ToString(),
                              "): ", finished.outcome.message())));
  }
  end_.Set(absl::OkStatus());
}

}  // namespace weft::dist_autograd
