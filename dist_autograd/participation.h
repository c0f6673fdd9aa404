// Participation: one worker's part of one distributed backward pass. It lives
// on a Strand: what happens to a pass here happens in one order.

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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/autograd/graph_task.h"
#include "weft/autograd/variable.h"
#include "weft/base/clock.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/base/strand.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/pass_part.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/receive_node.h"
#include "weft/rendezvous/core/decision.h"
#include "weft/rpc/extension/weak_agent.h"

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

  using WeakAgent = rpc::extension::WeakAgent;

  Participation(std::shared_ptr<WeakAgent> agent,
                std::shared_ptr<Executor> executor,
                std::shared_ptr<Context> context, PassId pass);

  // The pass has ended here, or never begins. Thread-safe.
  bool is_over() const { return is_over_.load(); }
  // Runs `task` on the strand.
  void Post(std::function<void(Participation&)> task);

  // The root asks for this part; the Future is ready once the part is done,
  // with the number of its live messages, or why it failed. `roots`: of the
  // worker that began the pass.
  Future<uint64_t> Prepare(const PassRequest& request,
                           const std::vector<Root>& roots);
  absl::Status OnGradients(const rpc::Worker& from, uint64_t message,
                           std::vector<Gradient> slots);
  void OnOutcome(const absl::Status& outcome);
  Result<int64_t> OnAsked(const rpc::Worker& from);
  // `last` and all earlier incarnations of that worker.
  void OnPeerGone(WorkerKey last);
  // What this part waits for, one line for each message: "the gradients of
  // message 3 (the result of Scale to w0)". Empty if it is done.
  std::vector<std::string> AwaitedMessages() const;
  // " with w1, w2, open for 3.2s, waits for ...", for a status page.
  std::string Describe() const;
  // The context is released, or this worker closes.
  void Abandon(const absl::Status& why);

  void SendGradients(ContextId context, const MessageId& message,
                     std::vector<Gradient> slots) override;
  void Accept(const BackwardPass& pass, Leaf& leaf, Gradient gradient) override;

 private:
  struct Stash {
    uint64_t message;
    std::vector<Gradient> slots;
  };
  // The gradients that come from other workers for one value.
  struct Meeting {
    std::map<std::pair<uint64_t, size_t>, Gradient> arrived;  // message, slot
    size_t expected = 0;
  };
  using Place = std::pair<const Node*, uint32_t>;

  absl::Status BeginPass(const MessageIntervals& live,
                         const std::vector<Root>& roots);
  MessageIntervals Resolve(const MessageIntervals& live) const;
  absl::Status ExpectAll(const MessageIntervals& live,
                         const std::vector<Root>& roots);
  absl::Status Feed(uint64_t message, std::vector<Gradient> slots);
  absl::Status FeedInOrder(uint64_t message, size_t slot, const Edge& edge,
                           Gradient gradient);
  void RunReady();
  // The part never begins, if it has not.
  void Refuse(const absl::Status& why);
  void Fail(const absl::Status& why);
  // A gradient that this part has sent was not taken.
  void OnNotTaken(const absl::Status& why);
  void Tell(const Decision::Event& event);
  void Do(const Decision::Action& action);
  void Ask(WorkerKey peer);
  void Apply(const absl::Status& outcome);

  const std::shared_ptr<WeakAgent> agent_;
  const std::shared_ptr<Executor> executor_;
  const std::shared_ptr<Context> context_;
  const PassId pass_;
  const Instant began_ = SteadyClock().Now();
  Strand strand_;
  PassPart part_;
  bool retain_ = false;
  bool deterministic_ = false;
  std::set<WorkerKey> participants_;
  std::unique_ptr<GraphTask> task_;
  std::unique_ptr<Decision> decision_;
  std::optional<Promise<uint64_t>> done_;
  std::map<Place, Meeting> meetings_;  // of a deterministic pass
  // In a pass that does not retain the graph: which slots of a message got a
  // gradient.
  std::map<uint64_t, std::vector<bool>> used_slots_;
  std::vector<Stash> stash_;
  LeafGradients stage_;
  absl::Status abandoned_;  // not OK: why the part never begins
  std::atomic<bool> is_over_{false};
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PARTICIPATION_H_
