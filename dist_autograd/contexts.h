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
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/base/thread_pool.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/context_table.h"
#include "weft/dist_autograd/pass_options.h"
#include "weft/dist_autograd/passes.h"
#include "weft/dist_autograd/recording.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/extension/library.h"
#include "weft/telemetry/field.h"

namespace weft::dist_autograd {

struct ContextsOptions {
  // The number of threads on which backward passes run.
  int threads = 2;
  // How long one of them looks for the next task before it sleeps: what a pass
  // waits for comes within that time, and to wake a thread takes as long. 0: it
  // sleeps at once.
  absl::Duration spin = absl::Microseconds(50);
  // In place of threads of its own; must outlive the agent. For simulations.
  Executor* executor = nullptr;
  // A lineage that is made here names at most so many intervals of messages.
  // A longer one is shortened: passes through it fall back to FAST for some of
  // the workers, and PassReport says so. 0 leaves the names of the workers
  // only. docs/dist_autograd.md.
  size_t max_lineage_intervals = 1024;
};

// Thread-safety: thread-safe. Close() before the agent ends; passes that are
// open when the agent ends fail with kCancelled.
class Contexts final : public rpc::extension::Library,
                       public std::enable_shared_from_this<Contexts> {
 public:
  static constexpr absl::string_view kKind = kRecordedKind;

  // kAlreadyExists if the agent has some; kResourceExhausted without threads.
  static absl::StatusOr<std::shared_ptr<Contexts>> Open(
      rpc::Agent& agent, const ContextsOptions& options = {});
  // Those of `agent`; kFailedPrecondition, saying what to do, without any.
  static absl::StatusOr<std::shared_ptr<Contexts>> Of(const rpc::Agent& agent);
  // Ends all passes and contexts of this agent and its threads. A context that
  // is made later is released already, and those of others are refused.
  void Close();

  // All are 0 once every context was released.
  struct Counts {
    int64_t contexts = 0;
    int64_t passes = 0;  // that have not ended here
  };
  Counts counts() const;
  // A line for each pass that has not ended here: since when it is open, who
  // takes part, and the messages that are waited for. Waits 250 ms at most for
  // passes that compute.
  std::vector<std::string> ExplainPasses() const { return passes_->Explain(); }
  // Both, for a status page.
  telemetry::Fields Describe() const;

  // ---- For Scope.

  std::shared_ptr<Context> Create() { return table_->Create(); }
  // The context, if it has a part here and was not released. kNotFound.
  absl::StatusOr<std::shared_ptr<Context>> Find(ContextId id) const {
    return table_->Find(id);
  }
  // The same for `peer`, who prepares or makes a step of it here.
  // kPermissionDenied unless it has created the context or took part in a pass
  // of it that was committed here.
  absl::StatusOr<std::shared_ptr<Context>> FindToStep(const rpc::Worker& peer,
                                                      ContextId id) const;
  // Ends the context here and, if this worker has created it, at all workers
  // that have part in it (docs/dist_autograd.md, the end of a context).
  void Release(ContextId id);
  Passes& passes() const { return *passes_; }

  // ---- For the functions that peers call.

  // `peer` has part in a context of this agent, and is notified of its end.
  // kFailedPrecondition or kNotFound if it has ended; kInvalidArgument of one
  // that another worker has created.
  absl::Status ServeJoin(const rpc::Worker& peer, ContextId id);
  // `from` ends the context here. kPermissionDenied unless it has created it.
  absl::Status ServeRelease(const rpc::Worker& from, ContextId id);

  // Use Open.
  Contexts(rpc::Agent& agent, const ContextsOptions& options,
           std::shared_ptr<ThreadPool> pool);

 private:
  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      absl::string_view kind, const rpc::CodecContext& message,
      const Bytes& bytes) override;
  void OnPeerGone(const rpc::Agent::GonePeer& peer) override;
  void OnAgentEnd() override;

  // Forgets the context here. Null if it has no part here.
  std::shared_ptr<Context> EndHere(ContextId id);
  // The creator of the context will notify this worker of its end.
  void JoinCreator(ContextId id);

  const std::shared_ptr<ThreadPool> pool_;  // null with another executor
  const std::shared_ptr<ContextTable> table_;
  const std::shared_ptr<Passes> passes_;
};

// As those of Context, at the worker that is called, for who steps a context
// (Contexts::FindToStep). Where the context has no part there is nothing to do.
absl::StatusOr<int64_t> PrepareParticipants(rpc::CallContext& call,
                                            ContextId id);
Future<void> CommitParticipants(rpc::CallContext& call, ContextId id);

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXTS_H_
