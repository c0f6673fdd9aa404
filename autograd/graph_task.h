// GraphTask: one backward pass over a graph, in as many pieces as it takes.
//
//   GraphTask task(options);
//   task.Expect(loss.edge());            // all places where gradients come in
//   task.Feed(loss.edge(), seed);        // in any order, at any time
//   WEFT_RETURN_IF_ERROR(task.Run());    // all that is ready
//
// A node is ready when each gradient that can reach it has arrived, undefined
// ones included. So a pass may wait for gradients from elsewhere: its driver
// expects them at first, and feeds and runs as they come.
//
// Order. Nodes of Kind::kAlways run as soon as they are ready, leaves next, and
// other nodes highest first, by the longest way to a leaf: about the reverse of
// the forward pass. Gradients that meet at a node are added in the order in
// which they would come if all were fed before the first Run. So the same graph
// with the same calls of Expect gives the same bits, whatever the order of
// Feed. (Gradients fed at one and the same edge are added as they are fed.)
//
// Which task may run a node. A task that does not retain the graph holds all
// nodes that it can reach, but for leaves, from Expect to its end; tasks that
// retain it share them. Expect of a node that another task holds, or that
// others share and this one would hold, is kFailedPrecondition. A task gives
// its nodes up when it is destroyed, when it fails, and in ReleaseSaved.

#ifndef WEFT_AUTOGRAD_GRAPH_TASK_H_
#define WEFT_AUTOGRAD_GRAPH_TASK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/node.h"
#include "weft/base/mutex.h"

namespace weft {

class SumOrder;

// Thread-safety: one thread at a time, but for Cancel. It may move between
// threads: a driver that gets gradients on several puts it behind a Strand.
class GraphTask {
 public:
  struct Options {
    // Keep what the nodes saved, so that the graph can be run again.
    bool retain_graph = false;
    // Free what the nodes saved in ReleaseSaved, not as each node has run: a
    // pass that fails, or is given up before ReleaseSaved, can be repeated.
    bool release_when_told = false;
    // Where the gradients of all leaves go; null: to the leaves. Borrowed. See
    // gradient_sink.h.
    GradientSink* sink = nullptr;
  };

  explicit GraphTask(Options options);
  GraphTask() : GraphTask(Options()) {}
  // Ends a pass that has begun and not ended: kCancelled.
  ~GraphTask();
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  // Says that one gradient will be fed at `edge`, and counts the graph behind
  // it. Once for each gradient. kFailedPrecondition after the first Feed or
  // Run, or if another task is in the way; the latter ends the pass.
  absl::Status Expect(const Edge& edge);

  // Delivers one expected gradient, which may be undefined. kFailedPrecondition
  // if `edge` expects none.
  absl::Status Feed(const Edge& edge, Gradient gradient);

  // Runs all nodes that are ready. The first error ends the pass: it names the
  // node, and each later call returns it again. kFailedPrecondition for a node
  // that ran before without retain_graph.
  absl::Status Run();

  // Ends the pass with `reason`, not OK, unless it has ended: no node begins
  // after this, and the Run that is under way, else the next call, returns
  // `reason`. Thread-safe.
  void Cancel(absl::Status reason) ABSL_LOCKS_EXCLUDED(mu_);

  // Frees what the nodes that ran had saved, after which they do not run again,
  // and gives up the nodes. kFailedPrecondition unless done() and
  // Options::release_when_told without retain_graph. Once.
  absl::Status ReleaseSaved();

  // Whether the pass has ended well: every node has run, or was skipped for
  // want of a gradient, and all sinks know.
  bool done() const { return num_left_ == 0 && status_.ok(); }

  // Whether a gradient for this leaf or node can still arise.
  bool Reaches(const Node& node) const;

  // Valid as long as this task. To be known before the first Feed by who looks
  // passes up by their id.
  const BackwardPass& pass() const { return pass_; }

 private:
  friend class BackwardCall;
  friend class SumOrder;

  enum class State : uint8_t { kWaiting, kSkipped, kApplied };

  // A node's part in this pass.
  struct Place {
    Node* node = nullptr;  // kept alive by entries_
    int32_t awaited = 0;   // gradients that have not arrived
    int32_t unfed = 0;     // of those, the ones that Feed brings
    State state = State::kWaiting;
    bool is_guest = false;                       // counts in Node::guests_
    absl::InlinedVector<Gradient, 1> gradients;  // one for each output
  };

  // A sink and which of the leaves reached are its own.
  struct SinkPart {
    GradientSink* sink;
    std::vector<Leaf*> leaves;
    bool has_begun = false;
  };

  bool is_exclusive() const { return !options_.retain_graph; }
  static uint32_t RankOf(const Node& node);

  uint32_t PlaceOf(const Node& node) const;
  uint32_t Discover(Node* node);
  uint32_t AddPlace(Node* node);
  void Claim(Node& node, uint32_t place);
  void GiveUpNodes();

  void Begin();
  void BeginSinks();
  void Fail(const absl::Status& status);
  void EndSinks();
  absl::Status CancelReason() ABSL_LOCKS_EXCLUDED(mu_);

  void Arrive(uint32_t at);
  void DeliverFrom(uint32_t source, size_t input, const Edge& edge,
                   Gradient gradient);
  void RunReady();
  void RunPlace(uint32_t at);
  void Apply(Place& place, absl::Span<Gradient> outputs,
             absl::Span<Gradient> inputs);
  static void ReleaseSavedOf(Node& node);
  void RunHooks(Node& node, absl::Span<Gradient> gradients);
  void RunLeaf(Leaf& leaf, Gradient gradient);
  GradientSink& SinkOf(Leaf& leaf) const;
  GradientDestination Destination(const Edge& edge) const;

  const Options options_;
  const BackwardPass pass_;
  const uint32_t mark_id_;
  absl::Status status_;
  bool has_begun_ = false;
  bool has_ended_ = false;
  bool has_given_up_ = false;  // its nodes
  int64_t num_left_ = 0;
  int64_t num_unfed_ = 0;
  Node* running_ = nullptr;
  std::vector<Edge> entries_;
  std::vector<std::pair<uint32_t, uint32_t>> fed_;  // before the first Run
  std::vector<Place> places_;
  std::vector<Leaf*> leaves_;
  // Places of nodes that another task had marked when this one found them.
  absl::flat_hash_map<const Node*, uint32_t> unmarked_;
  // A heap of (rank, place), highest rank first, then lowest place.
  std::vector<uint64_t> ready_;
  // Null if gradients come in their order anyway.
  std::unique_ptr<SumOrder> sum_order_;
  std::vector<SinkPart> sinks_;

  std::atomic<bool> is_cancelled_{false};
  Mutex mu_;
  absl::Status cancel_reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRAPH_TASK_H_
