#include "weft/autograd/node.h"

#include <algorithm>

#include "weft/autograd/graph_task.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/node_pool.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft {

void* Node::operator new(std::size_t bytes) { return AllocateNode(bytes); }

void Node::operator delete(void* block, std::size_t bytes) noexcept {
  FreeNode(block, bytes);
}

Leaf* Node::leaf() {
  return kind_ == Kind::kLeaf ? static_cast<Leaf*>(this) : nullptr;
}

void Node::AddEdge(Edge edge) {
  if (edge.node) height_ = std::max(height_, edge.node->height_ + 1);
  edges_.push_back(std::move(edge));
}

Node::~Node() {
  const Extra* extra = extra_.load(std::memory_order_acquire);
  if (extra == nullptr) return;
  delete extra->note.load(std::memory_order_acquire);
  delete extra;
}

Node::Extra& Node::MakeExtra() {
  Extra* current = extra_.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  auto made = std::make_unique<Extra>();
  if (extra_.compare_exchange_strong(current, made.get(),
                                     std::memory_order_acq_rel)) {
    return *made.release();
  }
  return *current;
}

void Node::AddHook(uint32_t output, GradientHook hook) {
  MakeExtra().hooks.push_back({output, std::move(hook)});
}

const NodeNote* Node::note() const {
  const Extra* extra = extra_.load(std::memory_order_acquire);
  return extra == nullptr ? nullptr
                          : extra->note.load(std::memory_order_acquire);
}

const NodeNote& Node::SetNote(std::unique_ptr<const NodeNote> note) {
  const NodeNote* current = nullptr;
  if (MakeExtra().note.compare_exchange_strong(current, note.get(),
                                               std::memory_order_acq_rel)) {
    return *note.release();
  }
  return *current;
}

void Node::Destroy(Node* node) {
  // A node's destructor drops its edges, and so may end the nodes behind them:
  // those only join the list, and the outermost call on this thread ends them.
  // So the stack stays flat however long the chain, also through Variables that
  // a node or a hook keeps.
  thread_local Node* waiting = nullptr;
  thread_local bool ending = false;
  node->mark_.store(reinterpret_cast<uint64_t>(waiting),
                    std::memory_order_relaxed);
  waiting = node;
  if (ending) return;
  ending = true;
  while (waiting != nullptr) {
    Node* next = waiting;
    waiting =
        reinterpret_cast<Node*>(next->mark_.load(std::memory_order_relaxed));
    delete next;
  }
  ending = false;
}

GradientDestination BackwardCall::destination(int i) const {
  return task_.Destination(node_.edges()[i]);
}

void BackwardCall::Put(int i, const Tensor& gradient) const {
  PutInto(destination(i), i, gradient);
}

void BackwardCall::PutInto(const GradientDestination& to, int i,
                           const Tensor& gradient) const {
  if (!to.tensor.defined()) {
    inputs[i] = gradient;
    return;
  }
  if (to.add) {
    Add_(to.tensor, gradient);
  } else {
    to.tensor.CopyFrom(gradient);
  }
  inputs[i] = to.tensor;
}

const BackwardPass& BackwardCall::pass() const { return task_.pass(); }

}  // namespace weft
