// Context: what one worker has recorded of a distributed context: the messages
// that it sent and the gradients that passes left here.

#ifndef WEFT_DIST_AUTOGRAD_CONTEXT_H_
#define WEFT_DIST_AUTOGRAD_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/node.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/dist_autograd/participant.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/shape.h"

namespace weft::dist_autograd {

// The id of a context: the worker that opened it and a number of its own.
struct ContextId {
  WorkerKey creator;
  uint64_t number = 0;

  std::string ToString() const {
    return absl::StrCat("context ", number, " of ", creator.ToString());
  }
  friend bool operator==(const ContextId& a, const ContextId& b) {
    return a.creator == b.creator && a.number == b.number;
  }
  friend bool operator<(const ContextId& a, const ContextId& b) {
    return std::tie(a.creator, a.number) < std::tie(b.creator, b.number);
  }
};

// The id of a backward pass: the worker that began it and a number of its own.
struct PassId {
  WorkerKey root;
  uint64_t number = 0;

  std::string ToString() const {
    return absl::StrCat("pass ", number, " of ", root.ToString());
  }
  friend bool operator<(const PassId& a, const PassId& b) {
    return std::tie(a.root, a.number) < std::tie(b.root, b.number);
  }
};

// The gradients of some leaves, which it keeps alive.
using LeafGradients = std::map<Leaf*, std::pair<NodePtr, Gradient>>;
// Adds `gradient` to that of `leaf`.
void AddGradient(Leaf& leaf, Gradient gradient, LeafGradients* gradients);

// What a message is, for reports.
struct MessageLabel {
  std::string function;  // of the call; "" if it is not known
  WorkerKey to;
  bool is_reply = false;
};

// A value in a message: where its gradient goes on, and what that is like.
struct Slot {
  Edge edge;
  Shape shape;
  DType dtype;
  Device device = {};  // where its gradient is wanted
  // The context of `device`; null for the CPU.
  std::shared_ptr<device::Context> keeps_device = nullptr;
};

// Thread-safety: thread-safe.
class Context {
 public:
  // A lineage of more than `most_intervals` intervals is shortened: it then
  // names all messages of some producers (MessageSet::Shorten).
  Context(ContextId id, WorkerKey self, size_t most_intervals)
      : id_(id), self_(self), most_intervals_(most_intervals) {}

  ContextId id() const { return id_; }

  // Records a message with these slots; its number.
  uint64_t AddSend(std::vector<Slot> slots, MessageLabel label)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The message never arrived, and never will.
  void RemoveSend(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // The slots of a message. kNotFound; kFailedPrecondition if a pass that did
  // not retain the graph consumed it.
  absl::StatusOr<std::vector<Slot>> SlotsOf(uint64_t number) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The messages through which a pass can still go, ascending.
  std::vector<uint64_t> Sends() const ABSL_LOCKS_EXCLUDED(mu_);
  // kNotFound.
  absl::StatusOr<MessageLabel> LabelOf(uint64_t number) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // A pass that did not retain the graph brought gradients for these slots of a
  // message. With gradients for all of its slots, and none of them a leaf or a
  // value that came in another message, it is consumed.
  void Consume(uint64_t number, const std::vector<bool>& slots, PassId pass)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A worker that has part in the context: its creator notifies it of the end.
  // kFailedPrecondition after Close.
  absl::Status AddPeer(WorkerKey peer) ABSL_LOCKS_EXCLUDED(mu_);
  // The context was released. Returns those that must be notified.
  std::set<WorkerKey> Close() ABSL_LOCKS_EXCLUDED(mu_);

  // A pass came to these workers.
  void AddReached(const std::set<WorkerKey>& workers) ABSL_LOCKS_EXCLUDED(mu_);
  // The other workers that have part in the context, as far as this one knows:
  // at its creator all that were called in it, and that passes came to.
  std::set<WorkerKey> Others() const ABSL_LOCKS_EXCLUDED(mu_);

  // These took part in a pass that was committed here.
  void AddPartners(const std::set<WorkerKey>& workers) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `worker` may step the context here: its creator, this worker, or
  // one that took part in a pass that was committed here.
  bool MayStep(WorkerKey worker) const ABSL_LOCKS_EXCLUDED(mu_);

  // `participant` has part in the steps of this context. kFailedPrecondition
  // after Close.
  absl::Status AddParticipant(std::shared_ptr<Participant> participant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // How many of them have something to commit, or why one cannot.
  absl::StatusOr<int64_t> PrepareParticipants() ABSL_LOCKS_EXCLUDED(mu_);
  Future<void> CommitParticipants() ABSL_LOCKS_EXCLUDED(mu_);
  void AbortParticipants() ABSL_LOCKS_EXCLUDED(mu_);

  // The messages from which a gradient of `edges` would go on, at any worker.
  // kFailedPrecondition if the graph reaches messages of another context.
  absl::StatusOr<MessageSet> LineageOf(absl::Span<const Edge> edges) const;

  // Adds what a pass has made.
  void Commit(LeafGradients gradients) ABSL_LOCKS_EXCLUDED(mu_);
  // Undefined if no pass reached the leaf.
  Gradient GradientOf(const Leaf& leaf) const ABSL_LOCKS_EXCLUDED(mu_);
  LeafGradients gradients() const ABSL_LOCKS_EXCLUDED(mu_);
  void ClearGradients() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Send {
    std::vector<Slot> slots;  // empty once consumed
    MessageLabel label;
    std::vector<bool> consumed;  // by slot; empty: none
    std::string consumed_by;     // the pass; "" until it is consumed
  };

  std::vector<std::shared_ptr<Participant>> Participants() const
      ABSL_LOCKS_EXCLUDED(mu_);

  const ContextId id_;
  const WorkerKey self_;
  const size_t most_intervals_;
  mutable Mutex mu_;
  uint64_t last_send_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Send> sends_ ABSL_GUARDED_BY(mu_);
  std::set<WorkerKey> peers_ ABSL_GUARDED_BY(mu_);
  std::set<WorkerKey> reached_ ABSL_GUARDED_BY(mu_);
  std::set<WorkerKey> partners_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Participant>> participants_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  LeafGradients gradients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXT_H_
