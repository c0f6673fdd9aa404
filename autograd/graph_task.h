// GraphTask: one backward pass over a graph, in as many pieces as it takes.
//
//   GraphTask task(options);
//   task.Expect(loss.edge());            // all places where gradients come in
//   task.Feed(loss.edge(), seed);        // in any order, at any time
//   WEFT_RETURN_IF_ERROR(task.Run());    // all that is ready
//
// A node is ready when each gradient that can reach it has arrived, undefined
// ones included. So a pass may wait for gradients from elsewhere: who drives it
// expects them at first, and feeds and runs as they come. Ready nodes run
// highest first, by the longest way to a leaf, and leaves at once: about the
// reverse of the forward pass, and the same in each run.

#ifndef WEFT_AUTOGRAD_GRAPH_TASK_H_
#define WEFT_AUTOGRAD_GRAPH_TASK_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/node.h"
#include "weft/tensor/tensor.h"

namespace weft {

// Thread-safety: one thread at a time; it may move between threads. Several
// tasks may run at once over graphs that share nodes: leaves always, others if
// all of these tasks retain the graph.
class GraphTask {
 public:
  struct Options {
    // Keep what the nodes saved, so that the graph can be run again.
    bool retain_graph = false;
    // Where all leaves' gradients go; null: to each leaf's own sink. Borrowed.
    GradientSink* sink = nullptr;
  };

  explicit GraphTask(Options options);
  GraphTask() : GraphTask(Options()) {}
  ~GraphTask();
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  // Says that one gradient will be fed at `edge`, and counts the graph behind
  // it. Once for each gradient. kFailedPrecondition after the first Feed.
  absl::Status Expect(const Edge& edge);

  // Delivers one expected gradient, which may be undefined. kFailedPrecondition
  // if `edge` expects none.
  absl::Status Feed(const Edge& edge, Gradient gradient);

  // Runs all nodes that are ready. The first error ends the pass: it names the
  // node, and each later call returns it again. kFailedPrecondition for a node
  // that ran before without retain_graph.
  absl::Status Run();

  // Whether every node has run, or was skipped for want of a gradient.
  bool done() const { return num_left_ == 0; }

  // Whether a gradient for this leaf or node can still arise.
  bool Reaches(const Node& node) const;

 private:
  friend class BackwardCall;

  // A node's part in this pass.
  struct Place {
    Node* node;       // kept alive by entries_
    int32_t awaited;  // gradients that have not arrived
    int32_t unfed;    // of those, the ones that Feed brings
    bool has_run;
    absl::InlinedVector<Gradient, 1> gradients;  // one for each output
  };

  uint32_t PlaceOf(const Node& node) const;
  uint32_t Discover(Node* node);
  void Deliver(const Edge& edge, Gradient gradient);
  void RunReady();
  void RunPlace(uint32_t at);
  void RunHooks(Node& node, absl::Span<Gradient> gradients);
  void RunLeaf(Leaf& leaf, Gradient gradient);
  GradientSink& SinkOf(Leaf& leaf) const;
  Tensor Destination(const Edge& edge) const;

  const Options options_;
  const uint32_t id_;
  absl::Status status_;
  bool fed_ = false;
  int64_t num_left_ = 0;
  Node* running_ = nullptr;
  std::vector<NodePtr> entries_;
  std::vector<Place> places_;
  // Places of nodes that another task had marked when this one found them.
  absl::flat_hash_map<const Node*, uint32_t> unmarked_;
  // A heap of (rank, place), highest rank first, then lowest place.
  std::vector<uint64_t> ready_;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRAPH_TASK_H_
