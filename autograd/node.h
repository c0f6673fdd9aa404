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
#include "weft/autograd/gradient_sink.h"
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

  // Where the gradient of input `i` may be made instead of in a new tensor;
  // undefined if nowhere. A node that makes it there, by overwriting or adding
  // as the destination says, puts the same tensor into inputs[i].
  GradientDestination destination(int i) const;

  // Puts `gradient` into inputs[i], brought into its destination if it has one:
  // for gradients that are small, or made by an operation that cannot write
  // into given memory. The second for who has asked for the destination.
  void Put(int i, const Tensor& gradient) const;
  void PutInto(const GradientDestination& to, int i,
               const Tensor& gradient) const;

  // The pass that this call is part of.
  const BackwardPass& pass() const;

  // One for each result of the operation; undefined where it was not used. At
  // least one is defined, unless the node is of Kind::kAlways.
  const absl::Span<Gradient> outputs;

  // One for each edge; undefined until set, and then not a gradient of zeros.
  const absl::Span<Gradient> inputs;

 private:
  GraphTask& task_;
  Node& node_;
};

// Sees a gradient on its way and returns what goes on; undefined is allowed.
using GradientHook = std::function<Gradient(Gradient)>;

// What a higher layer keeps at a node until the node ends, such as which
// messages lie behind it. Autograd does not read it.
class NodeNote {
 public:
  virtual ~NodeNote() = default;
};

// Thread-safety: Apply and ReleaseSaved are called by one GraphTask at a time,
// unless all of them retain the graph. Edges do not change once a Variable with
// the node is out; hooks are added before the backward pass. Notes are
// thread-safe.
class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // The operation's name, for messages.
  virtual absl::string_view name() const = 0;

  // Makes the gradients of the inputs from those of the outputs. What it throws
  // becomes the Status of the backward pass, under this node's name.
  virtual void Apply(BackwardCall& call) = 0;

  // Frees what was saved for Apply, which is not called again.
  virtual void ReleaseSaved() = 0;

  absl::Span<const Edge> edges() const { return edges_; }
  int64_t num_outputs() const { return num_outputs_; }

  // This node as a Leaf, else null.
  Leaf* leaf();

  // Runs `hook` on each gradient of result `output`, once all of it has
  // arrived. Hooks run in the order in which they were added.
  void AddHook(uint32_t output, GradientHook hook);

  // Null if there is none.
  const NodeNote* note() const;
  // Keeps `note` unless there is one; returns the one that the node keeps. Of
  // several threads the first wins.
  const NodeNote& SetNote(std::unique_ptr<const NodeNote> note);

  // For NodePtr.
  void AddRef() const { references_.fetch_add(1, std::memory_order_relaxed); }
  void Release() const;

  static void* operator new(std::size_t bytes);
  static void operator delete(void* block, std::size_t bytes) noexcept;

 protected:
  // kAlways: Apply runs once in each pass that reaches the node, also if all
  // gradients of its results are undefined, and before other nodes that are
  // ready. For nodes for which another process waits: one that sends gradients
  // to where a message came from, a collective operation. It saves nothing, and
  // runs again in a later pass whether the graph was retained or not.
  enum class Kind : uint8_t { kOperation, kLeaf, kAlways };

  explicit Node(uint32_t num_outputs = 1, Kind kind = Kind::kOperation)
      : num_outputs_(num_outputs), kind_(kind) {}
  // Only the last reference ends a node.
  virtual ~Node();

  // Adds an edge, for the next input. REQUIRES: no GraphTask knows the node.
  void AddEdge(Edge edge);

 private:
  friend class GraphTask;

  struct Hook {
    uint32_t output;
    GradientHook run;
  };
  // What few nodes have.
  struct Extra {
    std::vector<Hook> hooks;
    std::atomic<const NodeNote*> note{nullptr};  // owned
  };

  // Ends a node and all that only it kept, without recursion.
  static void Destroy(Node* node);

  Extra& MakeExtra();
  absl::Span<const Hook> hooks() const {
    const Extra* extra = extra_.load(std::memory_order_acquire);
    return extra == nullptr ? absl::Span<const Hook>() : extra->hooks;
  }

  // Which GraphTask counts this node, and its place there: (task, place), or 0.
  // A task that does not retain the graph holds the node alone while its mark
  // is there. A node waiting for its end keeps the next such node here.
  std::atomic<uint64_t> mark_{0};
  mutable std::atomic<int32_t> references_{0};
  // The longest way to a node without edges.
  uint32_t height_ = 0;
  uint32_t num_outputs_;
  Kind kind_;
  bool released_ = false;  // written only by the task that holds it alone
  // Tasks that use the node beside the one whose mark it has, all of which
  // retain the graph.
  std::atomic<uint16_t> guests_{0};
  absl::InlinedVector<Edge, 2> edges_;
  std::atomic<Extra*> extra_{nullptr};  // owned; null until needed
};

inline void Node::Release() const {
  // The holder of the only reference need not remove it atomically: no other
  // thread can take another one.
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
