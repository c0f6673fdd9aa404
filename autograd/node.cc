#include "weft/autograd/node.h"

#include <algorithm>

#include "weft/autograd/graph_task.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/node_pool.h"

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

void Node::AddHook(uint32_t output, GradientHook hook) {
  if (hooks_ == nullptr) hooks_ = std::make_unique<std::vector<Hook>>();
  hooks_->push_back({output, std::move(hook)});
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

Tensor BackwardCall::destination(int i) const {
  return task_.Destination(node_.edges()[i]);
}

}  // namespace weft
