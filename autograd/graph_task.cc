#include "weft/autograd/graph_task.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/sum_order.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/error.h"
#include "weft/base/reworded.h"

namespace weft {
namespace {

constexpr uint32_t kNoPlace = std::numeric_limits<uint32_t>::max();

uint64_t NextPassId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Tells the marks of one task from another's: odd if it is exclusive, never 0.
// It comes round after 2^31 tasks, long after the marks of the first are gone.
uint32_t MarkId(uint64_t pass_id, bool is_exclusive) {
  const uint32_t number = static_cast<uint32_t>(pass_id % 0x7fffffff) + 1;
  return number << 1 | (is_exclusive ? 1 : 0);
}

bool IsExclusive(uint64_t mark) { return (mark >> 32 & 1) != 0; }

uint64_t Pack(uint32_t high, uint32_t low) {
  return static_cast<uint64_t>(high) << 32 | low;
}

absl::Status Prefixed(absl::string_view what, const absl::Status& status) {
  return Reworded(status, absl::StrCat(what, ": ", status.message()));
}

[[noreturn]] void ThrowInUse(const Node& node) {
  ThrowFailedPrecondition(
      "GraphTask::Expect: another backward pass that has not ended uses ",
      node.name(),
      "; let it end first, or run all passes with retain_graph to share the "
      "graph");
}

}  // namespace

GraphTask::GraphTask(Options options)
    : options_(options),
      pass_{NextPassId(), options.sink},
      mark_id_(MarkId(pass_.id, !options.retain_graph)) {}

GraphTask::~GraphTask() {
  if (has_begun_ && !has_ended_) {
    const absl::Status reason = CancelReason();
    Fail(reason.ok() ? absl::CancelledError(
                           "the backward pass was given up before its end")
                     : reason);
  }
  GiveUpNodes();
}

// ---- what can be reached

absl::Status GraphTask::Expect(const Edge& edge) {
  if (has_begun_) {
    return absl::FailedPreconditionError(
        "GraphTask::Expect: a gradient was fed already; all must be expected "
        "before the first");
  }
  if (!status_.ok() || !edge.node) return status_;
  entries_.push_back(edge);
  const absl::Status counted = CatchToStatus([&] {
    Place& entry = places_[Discover(edge.node.get())];
    ++entry.awaited;
    ++entry.unfed;
  });
  ++num_unfed_;
  if (!counted.ok()) Fail(counted);
  return status_;
}

// Counts, for each node that can be reached, the edges that lead to it: a node
// found for the first time lends a count to each node behind it.
uint32_t GraphTask::Discover(Node* node) {
  uint32_t first = PlaceOf(*node);
  if (first != kNoPlace) return first;
  // As many nodes lie behind it at least; in a chain, no more.
  if (places_.empty()) places_.reserve(node->height_ + 1);
  first = AddPlace(node);
  std::vector<Node*> unexplored = {node};
  while (!unexplored.empty()) {
    const Node* next = unexplored.back();
    unexplored.pop_back();
    for (const Edge& edge : next->edges_) {
      Node* behind = edge.node.get();
      if (behind == nullptr) continue;
      uint32_t place = PlaceOf(*behind);
      if (place == kNoPlace) {
        place = AddPlace(behind);
        unexplored.push_back(behind);
      }
      ++places_[place].awaited;
    }
  }
  return first;
}

inline uint32_t GraphTask::AddPlace(Node* node) {
  const uint32_t at = static_cast<uint32_t>(places_.size());
  Place& made = places_.emplace_back();
  made.node = node;
  made.gradients.resize(node->num_outputs_);
  ++num_left_;
  if (node->kind_ == Node::Kind::kLeaf) {
    leaves_.push_back(static_cast<Leaf*>(node));
  }
  Claim(*node, at);
  return at;
}

// Puts this task's mark on the node, or finds another one there. If one task
// wants the node alone and another uses it as a guest, at least one of them
// sees the other: both write first, then read.
inline void GraphTask::Claim(Node& node, uint32_t place) {
  uint64_t mark = 0;
  const bool is_leaf = node.kind_ == Node::Kind::kLeaf;
  if (node.mark_.compare_exchange_strong(mark, Pack(mark_id_, place))) {
    if (is_exclusive() && !is_leaf && node.guests_.load() != 0) {
      ThrowInUse(node);
    }
    return;
  }
  unmarked_[&node] = place;
  if (is_leaf) return;
  if (is_exclusive() || IsExclusive(mark)) ThrowInUse(node);
  places_[place].is_guest = true;
  node.guests_.fetch_add(1);
  if (IsExclusive(node.mark_.load())) ThrowInUse(node);
}

void GraphTask::GiveUpNodes() {
  if (has_given_up_) return;
  has_given_up_ = true;
  for (uint32_t place = 0; place < places_.size(); ++place) {
    Node& node = *places_[place].node;
    if (places_[place].is_guest) {
      node.guests_.fetch_sub(1);
    } else if (node.mark_.load(std::memory_order_relaxed) ==
               Pack(mark_id_, place)) {
      node.mark_.store(0, std::memory_order_release);
    }
  }
  unmarked_.clear();
}

uint32_t GraphTask::PlaceOf(const Node& node) const {
  const uint64_t mark = node.mark_.load(std::memory_order_relaxed);
  if (mark >> 32 == mark_id_) return static_cast<uint32_t>(mark);
  if (unmarked_.empty()) return kNoPlace;
  const auto it = unmarked_.find(&node);
  return it == unmarked_.end() ? kNoPlace : it->second;
}

bool GraphTask::Reaches(const Node& node) const {
  const uint32_t place = PlaceOf(node);
  return place != kNoPlace && places_[place].state == State::kWaiting;
}

// ---- beginning and end

void GraphTask::Begin() {
  if (has_begun_ || !status_.ok()) return;
  has_begun_ = true;
  const absl::Status begun = CatchToStatus([this] { BeginSinks(); });
  if (!begun.ok()) Fail(Prefixed("GradientSink::Begin", begun));
}

void GraphTask::BeginSinks() {
  if (options_.sink != nullptr) sinks_.push_back({options_.sink, leaves_});
  absl::flat_hash_map<GradientSink*, size_t> parts;
  for (Leaf* leaf : leaves_) {
    if (leaf->sink() == nullptr) continue;
    const auto [it, is_new] = parts.try_emplace(leaf->sink(), sinks_.size());
    if (is_new) sinks_.push_back({leaf->sink(), {}});
    sinks_[it->second].leaves.push_back(leaf);
  }
  for (SinkPart& part : sinks_) {
    part.sink->Begin(pass_, part.leaves);
    part.has_begun = true;
  }
}

void GraphTask::Fail(const absl::Status& status) {
  status_ = status;
  EndSinks();
  GiveUpNodes();
}

// The store hears last: the others may still hand it gradients.
void GraphTask::EndSinks() {
  if (!has_begun_ || has_ended_) return;
  has_ended_ = true;
  const auto end = [this](const SinkPart& part) {
    if (!part.has_begun) return;
    const absl::Status ended =
        CatchToStatus([&] { return part.sink->End(pass_, status_); });
    if (status_.ok() && !ended.ok()) {
      status_ = Prefixed("GradientSink::End", ended);
    }
  };
  const size_t stores = options_.sink != nullptr ? 1 : 0;
  for (size_t i = stores; i < sinks_.size(); ++i) end(sinks_[i]);
  if (stores > 0 && !sinks_.empty()) end(sinks_[0]);
}

void GraphTask::Cancel(absl::Status reason) {
  WEFT_CHECK(!reason.ok());
  MutexLock lock(mu_);
  if (!cancel_reason_.ok()) return;
  cancel_reason_ = std::move(reason);
  is_cancelled_.store(true, std::memory_order_release);
}

absl::Status GraphTask::CancelReason() {
  if (!is_cancelled_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(mu_);
  return cancel_reason_;
}

absl::Status GraphTask::ReleaseSaved() {
  if (!done() || !has_ended_ || has_given_up_ || !options_.release_when_told ||
      options_.retain_graph) {
    return absl::FailedPreconditionError(
        "GraphTask::ReleaseSaved: wanted a pass that is done, with "
        "release_when_told, without retain_graph and not released before");
  }
  for (const Place& place : places_) {
    if (place.state == State::kApplied) ReleaseSavedOf(*place.node);
  }
  GiveUpNodes();
  return absl::OkStatus();
}

// ---- gradients

absl::Status GraphTask::Feed(const Edge& edge, Gradient gradient) {
  Begin();
  if (!status_.ok() || !edge.node) return status_;
  const uint32_t at = PlaceOf(*edge.node);
  if (at == kNoPlace || places_[at].unfed == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GraphTask::Feed: ", edge.node->name(), " expects no gradient"));
  }
  Place& place = places_[at];
  --place.unfed;
  --num_unfed_;
  const absl::Status fed = CatchToStatus([&] {
    Gradient& sum = place.gradients[edge.output];
    if (sum_order_ != nullptr) {
      sum_order_->AddFed(at, edge.output, std::move(gradient), sum);
    } else {
      fed_.emplace_back(at, edge.output);
      sum.Add(std::move(gradient));
    }
    Arrive(at);
  });
  if (!fed.ok()) {
    Fail(Prefixed(absl::StrCat("backward of ", edge.node->name()), fed));
  }
  return status_;
}

uint32_t GraphTask::RankOf(const Node& node) {
  switch (node.kind_) {
    case Node::Kind::kAlways:
      return std::numeric_limits<uint32_t>::max();
    case Node::Kind::kLeaf:
      // So that their gradients can travel while the rest is made.
      return std::numeric_limits<uint32_t>::max() - 1;
    case Node::Kind::kOperation:
      break;
  }
  return node.height_;
}

inline void GraphTask::Arrive(uint32_t at) {
  Place& place = places_[at];
  if (--place.awaited > 0) return;
  ready_.push_back(Pack(RankOf(*place.node), ~at));
  std::push_heap(ready_.begin(), ready_.end());
}

inline void GraphTask::DeliverFrom(uint32_t source, size_t input,
                                   const Edge& edge, Gradient gradient) {
  const uint32_t at = PlaceOf(*edge.node);
  Gradient& sum = places_[at].gradients[edge.output];
  if (sum_order_ != nullptr) {
    sum_order_->AddFrom(source, input, at, edge.output, std::move(gradient),
                        sum);
  } else if (gradient.defined()) {
    sum.Add(std::move(gradient));
  }
  Arrive(at);
}

// ---- nodes

absl::Status GraphTask::Run() {
  Begin();
  if (!status_.ok() || has_ended_) return status_;
  if (num_unfed_ > 0 && sum_order_ == nullptr) {
    sum_order_ = std::make_unique<SumOrder>(*this);
  }
  const absl::Status ran = CatchToStatus([this] { RunReady(); });
  if (!ran.ok()) {
    Fail(Prefixed(absl::StrCat("backward of ", running_->name()), ran));
  } else if (num_left_ == 0) {
    EndSinks();
    if (!status_.ok()) GiveUpNodes();
  } else if (const absl::Status reason = CancelReason(); !reason.ok()) {
    Fail(reason);
  }
  return status_;
}

void GraphTask::RunReady() {
  while (!ready_.empty() && !is_cancelled_.load(std::memory_order_relaxed)) {
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
  place.state = State::kSkipped;
  // Taken out, so that they end with this call.
  absl::InlinedVector<Gradient, 1> outputs = std::move(place.gradients);
  if (!node.hooks().empty()) RunHooks(node, absl::MakeSpan(outputs));
  const bool is_used =
      std::any_of(outputs.begin(), outputs.end(),
                  [](const Gradient& gradient) { return gradient.defined(); });
  if (node.kind_ == Node::Kind::kLeaf) {
    RunLeaf(static_cast<Leaf&>(node), std::move(outputs[0]));
    --num_left_;
    return;
  }
  absl::InlinedVector<Gradient, 2> inputs(node.edges_.size());
  if (is_used || node.kind_ == Node::Kind::kAlways) {
    Apply(place, absl::MakeSpan(outputs), absl::MakeSpan(inputs));
  }
  // In place additions need the sole hold on a tensor.
  outputs.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Edge& edge = node.edges_[i];
    if (edge.node) DeliverFrom(at, i, edge, std::move(inputs[i]));
  }
  --num_left_;
}

void GraphTask::Apply(Place& place, absl::Span<Gradient> outputs,
                      absl::Span<Gradient> inputs) {
  Node& node = *place.node;
  if (node.released_) {
    ThrowFailedPrecondition(
        "a backward pass ran through this graph before and freed what was "
        "saved; run the first one with retain_graph");
  }
  BackwardCall call(*this, node, outputs, inputs);
  node.Apply(call);
  place.state = State::kApplied;
  if (!options_.retain_graph && !options_.release_when_told) {
    ReleaseSavedOf(node);
  }
}

// What runs in every pass saves nothing: a second pass may go through it, as
// through a leaf.
void GraphTask::ReleaseSavedOf(Node& node) {
  node.released_ = node.kind_ != Node::Kind::kAlways;
  node.ReleaseSaved();
}

void GraphTask::RunHooks(Node& node, absl::Span<Gradient> gradients) {
  for (const Node::Hook& hook : node.hooks()) {
    Gradient& gradient = gradients[hook.output];
    if (gradient.defined()) gradient = hook.run(std::move(gradient));
  }
}

void GraphTask::RunLeaf(Leaf& leaf, Gradient gradient) {
  if (!gradient.defined()) return SinkOf(leaf).NoGradient(pass_, leaf);
  leaf.CheckFits(gradient);
  SinkOf(leaf).Accept(pass_, leaf, std::move(gradient));
}

GradientSink& GraphTask::SinkOf(Leaf& leaf) const {
  if (leaf.sink() != nullptr) return *leaf.sink();
  return pass_.store != nullptr ? *pass_.store : leaf;
}

GradientDestination GraphTask::Destination(const Edge& edge) const {
  Leaf* leaf = edge.node ? edge.node->leaf() : nullptr;
  if (leaf == nullptr || !leaf->hooks().empty()) return {};
  const uint32_t at = PlaceOf(*leaf);
  const Place& place = places_[at];
  const bool is_only =
      place.awaited == 1 && !place.gradients[0].defined() &&
      (sum_order_ == nullptr || !sum_order_->IsWaiting(at, edge.output));
  return is_only ? SinkOf(*leaf).Destination(pass_, *leaf)
                 : GradientDestination();
}

}  // namespace weft
