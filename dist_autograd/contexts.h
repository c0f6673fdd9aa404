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
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/thread_pool.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/dist_autograd/receive_node.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"

namespace weft::dist_autograd {

class Participation;
class RootPass;

struct ContextsOptions {
  int threads = 2;  // on which backward passes run
};

// What a pass that has ended well has to tell.
struct PassReport {
  int participants = 0;
  uint64_t live_messages = 0;
  // Participants that committed nothing because they died after the decision.
  std::vector<std::string> lost;
};

struct PassOptions {
  // The gradient of each root; none: ones, and each root has one element.
  std::vector<Gradient> seeds;
  // The pass fails with kDeadlineExceeded, on all workers, after this.
  absl::Duration timeout = absl::Seconds(60);
  // Keep what the nodes saved, so that the graph can be run again.
  bool retain_graph = false;
};

// Thread-safety: thread-safe. Must not outlive its agent; Close() first.
class Contexts final : public rpc::AttachmentReceiver,
                       public std::enable_shared_from_this<Contexts> {
 public:
  static constexpr absl::string_view kKind = "weft.dist_autograd";

  // kAlreadyExists if the agent has some; kResourceExhausted without threads.
  static absl::StatusOr<std::shared_ptr<Contexts>> Open(
      rpc::Agent& agent, const ContextsOptions& options = {});
  // Those of `agent`; kFailedPrecondition, saying what to do, without any.
  static absl::StatusOr<std::shared_ptr<Contexts>> Of(const rpc::Agent& agent);
  // Ends all passes and contexts of this agent and its threads.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  rpc::Agent& agent() const { return agent_; }

  // All are 0 once every context was released.
  struct Counts {
    int64_t contexts = 0;
    int64_t passes = 0;  // that have not ended here
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- For Scope.

  std::shared_ptr<Context> Create() ABSL_LOCKS_EXCLUDED(mu_);
  // The context, if it has a part here and was not released. kNotFound.
  absl::StatusOr<std::shared_ptr<Context>> Find(ContextId id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets the context, here and at all workers that have part in it.
  void Release(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The context of the call that `context` serves. kFailedPrecondition if it
  // was not recorded.
  absl::StatusOr<std::shared_ptr<Context>> ContextOf(
      const rpc::CallContext& context) const;
  // What a recorded request to `to` carries.
  std::unique_ptr<rpc::Attachment> StageRequest(
      const std::shared_ptr<Context>& context, rpc::WorkerKey to);
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
  void RootEnded(const std::pair<ContextId, PassId>& pass)
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      const rpc::CodecContext& context, const Bytes& bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);

  Contexts(rpc::Agent& agent, std::unique_ptr<ThreadPool> pool)
      : agent_(agent), pool_(std::move(pool)) {}

 private:
  friend class Participation;
  friend class RootPass;
  class Staged;
  class Receipt;
  using PassKey = std::pair<ContextId, PassId>;

  absl::StatusOr<std::shared_ptr<Context>> FindLocked(ContextId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the context if it is new here. kFailedPrecondition once released, or
  // once its creator is gone.
  absl::StatusOr<std::shared_ptr<Context>> FindOrAdd(ContextId id)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets the context here. Null if it has no part here.
  std::shared_ptr<Context> EndHere(ContextId id) ABSL_LOCKS_EXCLUDED(mu_);
  void PeerGone(const rpc::Agent::GonePeer& peer) ABSL_LOCKS_EXCLUDED(mu_);

  rpc::Agent& agent_;
  const std::unique_ptr<ThreadPool> pool_;
  rpc::Agent::PeerGoneRegistration peer_gone_;
  mutable Mutex mu_;
  uint64_t last_context_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_pass_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<ContextId, std::shared_ptr<Context>> contexts_ ABSL_GUARDED_BY(mu_);
  // By creator and number, as messages are.
  MessageSet released_ ABSL_GUARDED_BY(mu_);
  // Incarnations that have ended, whose contexts are not made again.
  std::set<rpc::WorkerKey> gone_ ABSL_GUARDED_BY(mu_);
  std::map<PassKey, std::shared_ptr<Participation>> passes_
      ABSL_GUARDED_BY(mu_);
  std::map<PassKey, std::shared_ptr<RootPass>> roots_ ABSL_GUARDED_BY(mu_);
  // Of the recorded calls that are served here, by caller and call id.
  std::map<std::pair<rpc::WorkerKey, uint64_t>, std::shared_ptr<Context>>
      served_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXTS_H_
