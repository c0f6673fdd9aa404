// RootPass: at the worker that began a pass, the decision of all participants.
//
// It lives on a Strand, as the worker's own Participation does on another one.

#ifndef WEFT_DIST_AUTOGRAD_ROOT_PASS_H_
#define WEFT_DIST_AUTOGRAD_ROOT_PASS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/base/strand.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/dist_autograd/participation.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/pass_options.h"
#include "weft/rendezvous/core/decision.h"
#include "weft/rpc/extension/weak_agent.h"

namespace weft::dist_autograd {

// kFailedPrecondition: what a pass needs is gone with a worker.
absl::Status GraphLost(ContextId context, WorkerKey worker);

// Thread-safety: Post, end and HasParticipant are thread-safe; the rest runs in
// what was posted.
class RootPass final : public std::enable_shared_from_this<RootPass> {
 public:
  using Decision = rendezvous::DecisionCoordinator;
  using WeakAgent = rpc::extension::WeakAgent;

  // `live`: the messages that the participants wait for. `shortened`: the
  // workers all of whose messages it has because a lineage was shortened.
  RootPass(std::shared_ptr<WeakAgent> agent, std::shared_ptr<Executor> executor,
           std::shared_ptr<Context> context, PassId pass, MessageSet live,
           const PassOptions& options, std::vector<WorkerKey> participants,
           std::vector<WorkerKey> shortened);

  // Ends with the pass; cancelling it aborts the pass. Once, before the rest.
  Future<PassReport> Start(std::shared_ptr<Participation> own,
                           std::vector<Participation::Root> roots);
  // Ready once the pass has ended, however.
  Future<void> end() const { return end_.future(); }
  bool HasParticipant(WorkerKey worker) const;
  void Post(std::function<void(RootPass&)> task);
  // `worker` has said that it is done; a gradient that it sent was not taken.
  void OnFailed(WorkerKey worker, const absl::Status& why);
  void OnPeerGone(WorkerKey last);
  void Abandon(const absl::Status& why);

 private:
  PassRequest RequestTo(WorkerKey worker) const;
  void WatchDeadline();
  void PrepareOwn(std::vector<Participation::Root> roots);
  void PrepareAt(WorkerKey worker);
  void OnDone(WorkerKey worker, const Result<uint64_t>& messages);
  // The deadline: asks those who are not done what they wait for.
  void OnDeadline();
  void OnAwaited(WorkerKey worker,
                 const Result<std::vector<std::string>>& awaited);
  void GiveUp();
  void Tell(const Decision::Event& event);
  void SendOutcome(WorkerKey to, const absl::Status& outcome);
  void Finish(const Decision::Finished& finished);

  const std::shared_ptr<WeakAgent> agent_;
  const std::shared_ptr<Executor> executor_;
  const std::shared_ptr<Context> context_;
  const PassId pass_;
  const MessageSet live_;
  const PassOptions options_;
  Strand strand_;
  const std::vector<WorkerKey> participants_;
  const std::vector<WorkerKey> shortened_;
  std::shared_ptr<Participation> own_;
  Decision decision_;
  uint64_t live_messages_ = 0;
  bool has_expired_ = false;
  std::set<WorkerKey> asked_;  // who has not said what it waits for
  std::vector<std::string> awaited_;
  std::optional<Future<void>> deadline_;
  Promise<PassReport> result_;
  Promise<void> end_;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_ROOT_PASS_H_
