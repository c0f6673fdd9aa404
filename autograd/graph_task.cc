#include "weft/autograd/graph_task.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/autograd/leaf.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"

namespace weft {
namespace {

constexpr uint32_t kNoPlace = std::numeric_limits<uint32_t>::max();

// Tells the marks of one task from another's; 0 marks nothing. It comes round
// after 2^32 tasks, long after the marks of the first are gone.
uint32_t NextTaskId() {
  static std::atomic<uint32_t> last{0};
  uint32_t id = 0;
  while (id == 0) id = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return id;
}

uint64_t Pack(uint32_t high, uint32_t low) {
  return static_cast<uint64_t>(high) << 32 | low;
}

absl::Status Prefixed(absl::string_view node, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("backward of ", node, ": ",
                                                  status.message()));
}

}  // namespace

GraphTask::GraphTask(Options options) : options_(options), id_(NextTaskId()) {}

GraphTask::~GraphTask() {
  for (uint32_t place = 0; place < places_.size(); ++place) {
    std::atomic<uint64_t>& mark = places_[place].node->mark_;
    if (mark.load(std::memory_order_relaxed) == Pack(id_, place)) {
      mark.store(0, std::memory_order_relaxed);
    }
  }
}

absl::Status GraphTask::Expect(const Edge& edge) {
  if (fed_) {
    return absl::FailedPreconditionError(
        "GraphTask::Expect: a gradient was fed already; all must be expected "
        "before the first");
  }
  if (!edge.node) return absl::OkStatus();
  entries_.push_back(edge.node);
  Place& entry = places_[Discover(edge.node.get())];
  ++entry.awaited;
  ++entry.unfed;
  return absl::OkStatus();
}

// Counts, for each node that can be reached, the edges that lead to it: a node
// found for the first time lends a count to each node behind it.
uint32_t GraphTask::Discover(Node* node) {
  std::vector<Node*> unexplored;
  const auto find = [&](Node* found) {
    uint32_t place = PlaceOf(*found);
    if (place != kNoPlace) return place;
    place = static_cast<uint32_t>(places_.size());
    Place& made = places_.emplace_back();
    made.node = found;
    made.gradients.resize(found->num_outputs_);
    uint64_t unmarked = 0;
    if (!found->mark_.compare_exchange_strong(unmarked, Pack(id_, place),
                                              std::memory_order_relaxed)) {
      unmarked_[found] = place;
    }
    ++num_left_;
    unexplored.push_back(found);
    return place;
  };
  const uint32_t first = find(node);
  while (!unexplored.empty()) {
    const Node* next = unexplored.back();
    unexplored.pop_back();
    for (const Edge& edge : next->edges_) {
      if (edge.node) ++places_[find(edge.node.get())].awaited;
    }
  }
  return first;
}

uint32_t GraphTask::PlaceOf(const Node& node) const {
  const uint64_t mark = node.mark_.load(std::memory_order_relaxed);
  if (mark >> 32 == id_) return static_cast<uint32_t>(mark);
  if (unmarked_.empty()) return kNoPlace;
  const auto it = unmarked_.find(&node);
  return it == unmarked_.end() ? kNoPlace : it->second;
}

bool GraphTask::Reaches(const Node& node) const {
  const uint32_t place = PlaceOf(node);
  return place != kNoPlace && !places_[place].has_run;
}

absl::Status GraphTask::Feed(const Edge& edge, Gradient gradient) {
  fed_ = true;
  if (!status_.ok() || !edge.node) return status_;
  const uint32_t place = PlaceOf(*edge.node);
  if (place == kNoPlace || places_[place].unfed == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GraphTask::Feed: ", edge.node->name(), " expects no gradient"));
  }
  --places_[place].unfed;
  running_ = edge.node.get();
  const absl::Status delivered =
      CatchToStatus([&] { Deliver(edge, std::move(gradient)); });
  if (!delivered.ok()) status_ = Prefixed(running_->name(), delivered);
  return status_;
}

void GraphTask::Deliver(const Edge& edge, Gradient gradient) {
  const uint32_t at = PlaceOf(*edge.node);
  Place& place = places_[at];
  if (gradient.defined()) {
    place.gradients[edge.output].Add(std::move(gradient));
  }
  if (--place.awaited > 0) return;
  // Leaves first, so that their gradients can travel while the rest is made.
  const uint32_t rank = place.node->leaf() != nullptr
                            ? std::numeric_limits<uint32_t>::max()
                            : place.node->height_;
  ready_.push_back(Pack(rank, ~at));
  std::push_heap(ready_.begin(), ready_.end());
}

absl::Status GraphTask::Run() {
  fed_ = true;
  if (!status_.ok()) return status_;
  const absl::Status ran = CatchToStatus([this] { RunReady(); });
  if (!ran.ok()) status_ = Prefixed(running_->name(), ran);
  return status_;
}

void GraphTask::RunReady() {
  while (!ready_.empty()) {
    std::pop_heap(ready_.begin(), ready_.end());
    const uint32_t place = ~static_cast<uint32_t>(ready_.back());
    ready_.pop_back();
    RunPlace(place);
  }
}

void GraphTask::RunPlace(uint32_t at) {
  Place& place = places_[at];
  Node& node = *place.node;
  running_ = &node;
  place.has_run = true;
  --num_left_;
  // Taken out, so that they end with this call.
  absl::InlinedVector<Gradient, 1> outputs = std::move(place.gradients);
  if (node.hooks_ != nullptr) RunHooks(node, absl::MakeSpan(outputs));
  const bool is_used =
      std::any_of(outputs.begin(), outputs.end(),
                  [](const Gradient& gradient) { return gradient.defined(); });
  if (Leaf* leaf = node.leaf()) {
    if (is_used) RunLeaf(*leaf, std::move(outputs[0]));
    return;
  }
  absl::InlinedVector<Gradient, 2> inputs(node.edges_.size());
  if (is_used) {
    if (node.released_) {
      ThrowFailedPrecondition(
          "a backward pass ran through this graph before and let go of what "
          "was saved; run the first one with retain_graph");
    }
    BackwardCall call(*this, node, absl::MakeSpan(outputs),
                      absl::MakeSpan(inputs));
    node.Apply(call);
    if (!options_.retain_graph) {
      node.released_ = true;
      node.ReleaseSaved();
    }
  }
  // In place additions need the sole hold on a tensor.
  outputs.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (node.edges_[i].node) Deliver(node.edges_[i], std::move(inputs[i]));
  }
}

void GraphTask::RunHooks(Node& node, absl::Span<Gradient> gradients) {
  for (const Node::Hook& hook : *node.hooks_) {
    Gradient& gradient = gradients[hook.output];
    if (gradient.defined()) gradient = hook.run(std::move(gradient));
  }
}

void GraphTask::RunLeaf(Leaf& leaf, Gradient gradient) {
  leaf.CheckFits(gradient);
  SinkOf(leaf).Accept(leaf, std::move(gradient));
}

GradientSink& GraphTask::SinkOf(Leaf& leaf) const {
  return options_.sink != nullptr ? *options_.sink : leaf.sink();
}

Tensor GraphTask::Destination(const Edge& edge) const {
  Leaf* leaf = edge.node ? edge.node->leaf() : nullptr;
  if (leaf == nullptr || leaf->hooks_ != nullptr) return Tensor();
  const Place& place = places_[PlaceOf(*leaf)];
  const bool is_only = place.awaited == 1 && !place.gradients[0].defined();
  return is_only ? SinkOf(*leaf).Destination(*leaf) : Tensor();
}

}  // namespace weft
