// Node: one recorded operation, with the edges that its gradients leave by.
//
// The graph is made while the forward pass runs: the Variable an operation
// returns holds the node, the node holds the nodes of its inputs. So a graph
// lives as long as its last result, and goes away with it.

#ifndef WEFT_AUTOGRAD_NODE_H_
#define WEFT_AUTOGRAD_NODE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/tensor/intrusive_ptr.h"
#include "weft/tensor/tensor.h"

namespace weft {

class GraphTask;
class Leaf;
class Node;

// A counted reference. The count sits in the node, and the last reference ends
// it without recursion, however long the chain behind it.
using NodePtr = IntrusivePtr<Node>;

// A place where a gradient arrives: at result number `output` of `node`.
struct Edge {
  NodePtr node;  // none: that gradient is not wanted
  uint32_t output = 0;
};

// What a node is given when its turn comes, and where it puts what it makes.
class BackwardCall {
 public:
  BackwardCall(GraphTask& task, Node& node, absl::Span<Gradient> outputs,
               absl::Span<Gradient> inputs)
      : outputs(outputs), inputs(inputs), task_(task), node_(node) {}

  // The gradient of the only result, as a tensor.
  Tensor output() const { return outputs[0].ToDense(); }

  // Whether anybody wants the gradient of input `i`.
  bool needs(int i) const;

  // Where the gradient of input `i` may be written instead of into a new
  // tensor; undefined if nowhere. Its contents are not to be read. Whoever
  // writes there puts the same tensor into inputs[i].
  Tensor destination(int i) const;

  // One for each result of the operation; undefined where it was not used. At
  // least one is defined.
  const absl::Span<Gradient> outputs;

  // One for each edge; undefined until set, and then not a gradient of zeros.
  const absl::Span<Gradient> inputs;

 private:
  GraphTask& task_;
  Node& node_;
};

// Sees a gradient on its way and returns what goes on; undefined is allowed.
using GradientHook = std::function<Gradient(Gradient)>;

// Thread-safety: Apply and ReleaseSaved are called by one GraphTask at a time,
// unless all of them retain the graph. Edges do not change once a Variable with
// the node is out; hooks are added before the backward pass.
class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // The operation's name, for messages.
  virtual absl::string_view name() const = 0;

  // Makes the gradients of the inputs from those of the outputs. What it throws
  // becomes the Status of the backward pass, under this node's name.
  virtual void Apply(BackwardCall& call) = 0;

  // Lets go of what was saved for Apply, which is not called again.
  virtual void ReleaseSaved() = 0;

  absl::Span<const Edge> edges() const { return edges_; }
  int64_t num_outputs() const { return num_outputs_; }

  // This node as a Leaf, else null.
  Leaf* leaf();

  // Runs `hook` on each gradient of result `output`, once all of it has
  // arrived. Hooks run in the order in which they were added.
  void AddHook(uint32_t output, GradientHook hook);

  // For NodePtr.
  void AddRef() const { references_.fetch_add(1, std::memory_order_relaxed); }
  void Release() const;

  static void* operator new(std::size_t bytes);
  static void operator delete(void* block, std::size_t bytes) noexcept;

 protected:
  enum class Kind : uint8_t { kOperation, kLeaf };

  explicit Node(uint32_t num_outputs = 1, Kind kind = Kind::kOperation)
      : num_outputs_(num_outputs), kind_(kind) {}
  // Only the last reference ends a node.
  virtual ~Node() = default;

  // Adds an edge, for the next input. REQUIRES: no GraphTask knows the node.
  void AddEdge(Edge edge);

 private:
  friend class GraphTask;

  struct Hook {
    uint32_t output;
    GradientHook run;
  };

  // Ends a node and all that only it kept, without recursion.
  static void Destroy(Node* node);

  // Which GraphTask counts this node, and its place there: (task, place), or 0.
  // A node waiting for its end keeps the next such node here.
  std::atomic<uint64_t> mark_{0};
  mutable std::atomic<int32_t> references_{0};
  // The longest way to a node without edges.
  uint32_t height_ = 0;
  uint32_t num_outputs_;
  Kind kind_;
  bool released_ = false;
  absl::InlinedVector<Edge, 2> edges_;
  std::unique_ptr<std::vector<Hook>> hooks_;
};

inline void Node::Release() const {
  // Who holds the only reference need not take it away atomically: nobody else
  // can take another one.
  if (references_.load(std::memory_order_acquire) == 1 ||
      references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    Destroy(const_cast<Node*>(this));
  }
}

inline bool BackwardCall::needs(int i) const {
  return static_cast<bool>(node_.edges()[i].node);
}

}  // namespace weft

#endif  // WEFT_AUTOGRAD_NODE_H_
