// Contexts: one agent's distributed contexts and its parts of their passes.
//
// It drives the pure parts (core/, rendezvous::Decision) over rpc: a recorded
// call carries an attachment with its context, its number and its lineage; a
// pass is calls of functions that every worker with Contexts serves.
// docs/dist_autograd.md has the messages and the guarantees.
//
//   auto contexts = dist_autograd::Contexts::Open(agent);   // once, at start

#ifndef WEFT_DIST_AUTOGRAD_CONTEXTS_H_
#define WEFT_DIST_AUTOGRAD_CONTEXTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/thread_pool.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/dist_autograd/receive_node.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/telemetry/field.h"

namespace weft::dist_autograd {

class Participation;
class RootPass;

struct ContextsOptions {
  // On which backward passes run.
  int threads = 2;
  // How long one of them looks for the next task before it sleeps: what a pass
  // waits for comes within that time, and to wake a thread takes as long. 0: it
  // sleeps at once.
  absl::Duration spin = absl::Microseconds(50);
  // In place of threads of its own; must outlive the agent. For simulations.
  Executor* executor = nullptr;
  // A lineage that is made here names at most so many intervals of messages.
  // Of more, it is shortened: passes through it fall back to FAST for some of
  // the workers, and PassReport says so. 0 leaves the names of the workers
  // only. docs/dist_autograd.md.
  size_t max_lineage_intervals = 1024;
};

// Which messages of a context a pass waits for.
enum class PassMode {
  // Those that the roots depend on. An unused result costs nothing.
  kSmart,
  // All that each of the participants has sent in the context, whether the
  // roots depend on them or not: the rule of PyTorch. A result that was not
  // used ends the pass with kDeadlineExceeded, which names it.
  kFast,
};

// How a pass ended well.
struct PassReport {
  int participants = 0;
  uint64_t live_messages = 0;
  // Participants that committed nothing because they died after the decision.
  std::vector<std::string> lost;
  // Participants of a SMART pass of which the lineage names no messages,
  // because it was shortened: they waited for all of theirs, as in FAST mode.
  std::vector<std::string> fast_participants;
};

struct PassOptions {
  PassMode mode = PassMode::kSmart;
  // The gradient of each root; none: ones, and each root has one element.
  std::vector<Gradient> seeds;
  // The pass fails with kDeadlineExceeded, on all workers, after this. The
  // error names the messages whose gradients did not come, for each worker.
  // Positive.
  absl::Duration timeout = absl::Seconds(60);
  // Keep what the nodes saved, so that the graph can be run again.
  bool retain_graph = false;
  // Gradients of one value that come in several messages are added in the order
  // of the messages, not of their arrival: two passes over the same graph give
  // the same bits. They are kept in memory until the last of them has come.
  bool deterministic = false;
};

// Thread-safety: thread-safe. Close() before the agent ends; passes that are
// open when the agent ends fail with kCancelled.
class Contexts final : public std::enable_shared_from_this<Contexts> {
 public:
  static constexpr absl::string_view kKind = "weft.dist_autograd";

  // kAlreadyExists if the agent has some; kResourceExhausted without threads.
  static absl::StatusOr<std::shared_ptr<Contexts>> Open(
      rpc::Agent& agent, const ContextsOptions& options = {});
  // Those of `agent`; kFailedPrecondition, saying what to do, without any.
  static absl::StatusOr<std::shared_ptr<Contexts>> Of(const rpc::Agent& agent);
  // Ends all passes and contexts of this agent and its threads. A context that
  // is made later is released already, and those of others are refused.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  rpc::Agent& agent() const { return agent_; }

  // All are 0 once every context was released.
  struct Counts {
    int64_t contexts = 0;
    int64_t passes = 0;  // that have not ended here
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);
  // A line for each pass that has not ended here: since when it is open, who
  // takes part, and the messages that are waited for. Waits 250 ms at most for
  // passes that compute.
  std::vector<std::string> ExplainPasses() const ABSL_LOCKS_EXCLUDED(mu_);
  // Both, for a status page.
  telemetry::Fields Describe() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- For Scope.

  std::shared_ptr<Context> Create() ABSL_LOCKS_EXCLUDED(mu_);
  // The context, if it has a part here and was not released. kNotFound.
  absl::StatusOr<std::shared_ptr<Context>> Find(ContextId id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the context here and, if this worker has created it, at all workers
  // that have part in it (docs/dist_autograd.md, the end of a context).
  void Release(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The context of the call that `context` serves. kFailedPrecondition if it
  // was not recorded.
  absl::StatusOr<std::shared_ptr<Context>> ContextOf(
      const rpc::CallContext& context) const;
  // What a recorded request to `to` carries. `function`: its name, for reports.
  std::unique_ptr<rpc::Attachment> StageRequest(
      const std::shared_ptr<Context>& context, rpc::WorkerKey to,
      std::string function);
  Future<PassReport> Backward(const std::shared_ptr<Context>& context,
                              absl::Span<const Variable> roots,
                              const PassOptions& options)
      ABSL_LOCKS_EXCLUDED(mu_);

  // ---- For Codec<Variable>.

  // Writes the history of `variable` into the message of `encoder`: its slot.
  static void EncodeSlot(const Variable& variable, rpc::Encoder& encoder);
  static absl::Status DecodeSlot(rpc::Decoder& decoder, Tensor value,
                                 Variable& variable);

  // ---- For the functions that peers call.

  // This worker's part of a pass, made if it is new. kNotFound if the context
  // has no part here; kFailedPrecondition once it was released.
  absl::StatusOr<std::shared_ptr<Participation>> Join(ContextId context,
                                                      PassId pass)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ready once a pass that began here has ended; kNotFound without it.
  Future<void> EndOf(ContextId context, PassId pass) ABSL_LOCKS_EXCLUDED(mu_);
  // `from` has sent a gradient that was not taken: the pass, which began here,
  // is aborted if it is not decided. kPermissionDenied unless `from` takes part
  // in it; kNotFound once it has ended.
  absl::Status ServeFailure(const rpc::Worker& from, ContextId context,
                            PassId pass, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `peer` has part in a context of this agent, and is notified of its end.
  // kFailedPrecondition or kNotFound if it has ended; kInvalidArgument of one
  // that another worker has created.
  absl::Status ServeJoin(const rpc::Worker& peer, ContextId id)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `from` ends the context here. kPermissionDenied unless it has created it.
  absl::Status ServeRelease(const rpc::Worker& from, ContextId id)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Use Open.
  Contexts(rpc::Agent& agent, const ContextsOptions& options,
           std::unique_ptr<ThreadPool> pool);

 private:
  friend class Participation;
  friend class RootPass;
  class Staged;
  class Receipt;
  class Receiver;
  // While one lives, the agent does; false if it has ended.
  class Use;
  using PassKey = std::pair<ContextId, PassId>;

  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      const rpc::CodecContext& message, const Bytes& bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing of the agent is used from now on. Waits for what uses it.
  void AgentEnds() ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `function` at `to` until it answers or is gone; then `done(result)`.
  template <typename F, typename Done, typename... A>
  void CallUntilAnswered(WorkerKey to, F function, Done done,
                         const A&... arguments);
  // Calls `function` at `to`, with the deadline `timeout`.
  template <typename F, typename... A>
  auto CallOnce(WorkerKey to, absl::Duration timeout, F function,
                const A&... arguments);
  // "ps0", or its key where this worker does not know the name.
  std::string NameOf(WorkerKey worker);

  absl::StatusOr<std::shared_ptr<Context>> FindLocked(ContextId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the context if it is new here, and then sets `is_new`.
  // kFailedPrecondition once released, once its creator is gone, or after
  // Close(); kNotFound of one of this worker that it has not created.
  absl::StatusOr<std::shared_ptr<Context>> FindOrAdd(ContextId id, bool* is_new)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets the context here. Null if it has no part here.
  std::shared_ptr<Context> EndHere(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The pass, if it began here and is open. kNotFound.
  absl::StatusOr<std::shared_ptr<RootPass>> FindRoot(const PassKey& key) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void RootEnded(const PassKey& pass) ABSL_LOCKS_EXCLUDED(mu_);
  void PeerGone(const rpc::Agent::GonePeer& peer) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsGone(WorkerKey worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The context came from another worker than its creator, which does not know
  // yet that this worker has part in it: it will notify it of the end.
  void JoinCreator(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);

  rpc::Agent& agent_;
  const WorkerKey self_;
  const std::string name_;
  const size_t most_intervals_;
  const std::unique_ptr<ThreadPool> pool_;  // null with another executor
  Executor& executor_;
  rpc::Agent::PeerGoneRegistration peer_gone_;
  mutable Mutex mu_;
  CondVar changed_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool agent_has_ended_ ABSL_GUARDED_BY(mu_) = false;
  int64_t uses_ ABSL_GUARDED_BY(mu_) = 0;  // of the agent
  uint64_t last_context_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_pass_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<ContextId, std::shared_ptr<Context>> contexts_ ABSL_GUARDED_BY(mu_);
  // By creator and number, as messages are.
  MessageSet released_ ABSL_GUARDED_BY(mu_);
  // By worker, the last incarnation that has ended: its contexts, and those of
  // earlier ones, are not made again.
  std::map<uint32_t, rendezvous::Epoch> gone_ ABSL_GUARDED_BY(mu_);
  std::map<PassKey, std::shared_ptr<Participation>> passes_
      ABSL_GUARDED_BY(mu_);
  std::map<PassKey, std::shared_ptr<RootPass>> roots_ ABSL_GUARDED_BY(mu_);
  // The recorded calls that are served here, by caller and call id.
  struct Served {
    std::shared_ptr<Context> context;
    std::string function;
  };
  std::map<std::pair<rpc::WorkerKey, uint64_t>, Served> served_
      ABSL_GUARDED_BY(mu_);
};

// kFailedPrecondition: what a pass needs is gone with a worker.
absl::Status GraphLost(ContextId context, WorkerKey worker);

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXTS_H_
