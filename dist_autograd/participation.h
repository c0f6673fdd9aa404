// Participation: one worker's part of one distributed backward pass, and, at
// the worker that began it, RootPass: the decision of all.
//
// Both live on a Strand: what happens to a pass here happens in one order.

#ifndef WEFT_DIST_AUTOGRAD_PARTICIPATION_H_
#define WEFT_DIST_AUTOGRAD_PARTICIPATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/autograd/graph_task.h"
#include "weft/autograd/variable.h"
#include "weft/base/future.h"
#include "weft/base/strand.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/core/pass_part.h"
#include "weft/dist_autograd/receive_node.h"
#include "weft/rendezvous/core/decision.h"

namespace weft::dist_autograd {

// Thread-safety: Post is thread-safe; the rest runs in what was posted.
class Participation final : public PassStore,
                            public std::enable_shared_from_this<Participation> {
 public:
  using Decision = rendezvous::DecisionParticipant;
  struct Root {
    Edge edge;
    Gradient seed;
  };

  Participation(std::shared_ptr<Contexts> contexts,
                std::shared_ptr<Context> context, PassId pass);

  // The pass has ended here, or never begins. Thread-safe.
  bool is_over() const { return is_over_.load(); }
  // Runs `task` on the strand.
  void Post(std::function<void(Participation&)> task);

  // The root asks for this part; the Future is ready once the part is done, or
  // why it failed. `roots`: of the worker that began the pass.
  Future<void> Prepare(MessageIntervals live,
                       const std::vector<WorkerKey>& participants, bool retain,
                       const std::vector<Root>& roots);
  absl::Status OnGradients(uint64_t message,
                           std::vector<std::optional<Tensor>> slots);
  void OnOutcome(const absl::Status& outcome);
  int64_t OnAsked(WorkerKey from);
  void OnPeerGone(WorkerKey peer);
  // The context is released, or this worker closes.
  void Abandon(const absl::Status& why);

  void SendGradients(ContextId context, const MessageId& message,
                     std::vector<Gradient> slots) override;
  void Accept(const BackwardPass& pass, Leaf& leaf, Gradient gradient) override;

 private:
  struct Stash {
    uint64_t message;
    std::vector<std::optional<Tensor>> slots;
  };

  absl::Status ExpectAll(const MessageIntervals& live,
                         const std::vector<Root>& roots);
  absl::Status Feed(uint64_t message, std::vector<std::optional<Tensor>> slots);
  void RunReady();
  // The part never begins, if it has not.
  void Refuse(const absl::Status& why);
  void Fail(const absl::Status& why);
  void Tell(const Decision::Event& event);
  void Do(const Decision::Action& action);
  void Ask(WorkerKey peer);
  void Apply(const absl::Status& outcome);

  const std::shared_ptr<Contexts> contexts_;
  const std::shared_ptr<Context> context_;
  const PassId pass_;
  Strand strand_;
  PassPart part_;
  bool retain_ = false;
  std::unique_ptr<GraphTask> task_;
  std::unique_ptr<Decision> decision_;
  std::optional<Promise<void>> done_;
  std::vector<Stash> stash_;
  LeafGradients stage_;
  absl::Status abandoned_;  // not OK: why the part never begins
  std::atomic<bool> is_over_{false};
};

// Thread-safety: as Participation.
class RootPass final : public std::enable_shared_from_this<RootPass> {
 public:
  using Decision = rendezvous::DecisionCoordinator;

  RootPass(std::shared_ptr<Contexts> contexts, std::shared_ptr<Context> context,
           PassId pass, MessageSet live, absl::Duration timeout, bool retain,
           std::vector<WorkerKey> participants);

  // Ends with the pass; cancelling it aborts the pass.
  Future<PassReport> Start(std::shared_ptr<Participation> own,
                           std::vector<Participation::Root> roots);
  void Post(std::function<void(RootPass&)> task);
  void OnPeerGone(WorkerKey peer);
  void Abandon(const absl::Status& why);

 private:
  void PrepareAt(WorkerKey worker);
  void OnDone(WorkerKey worker, const absl::Status& status);
  void Tell(const Decision::Event& event);
  void SendOutcome(WorkerKey to, const absl::Status& outcome);
  void Finish(const Decision::Finished& finished);

  const std::shared_ptr<Contexts> contexts_;
  const std::shared_ptr<Context> context_;
  const PassId pass_;
  const MessageSet live_;
  const absl::Duration timeout_;
  const bool retain_;
  Strand strand_;
  const std::vector<WorkerKey> participants_;
  std::shared_ptr<Participation> own_;
  Decision decision_;
  Promise<PassReport> result_;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PARTICIPATION_H_
