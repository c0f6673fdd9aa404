#include "weft/dist_autograd/context.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "weft/dist_autograd/receive_node.h"

namespace weft::dist_autograd {

namespace {

// The messages behind a node, kept at it: its edges never change.
class Lineage final : public NodeNote {
 public:
  explicit Lineage(ContextId context) : context(context) {}
  const ContextId context;
  MessageSet messages;
};

}  // namespace

void AddGradient(Leaf& leaf, Gradient gradient, LeafGradients* gradients) {
  auto& [node, sum] = (*gradients)[&leaf];
  node = NodePtr(&leaf);
  sum.Add(std::move(gradient));
}

uint64_t Context::AddSend(std::vector<Slot> slots, MessageLabel label) {
  MutexLock lock(mu_);
  Send& send = sends_[++last_send_];
  send.slots = std::move(slots);
  send.label = std::move(label);
  return last_send_;
}

void Context::RemoveSend(uint64_t number) {
  Send removed;  // its nodes end without the lock
  MutexLock lock(mu_);
  const auto it = sends_.find(number);
  if (it == sends_.end()) return;
  removed = std::move(it->second);
  sends_.erase(it);
}

namespace {

absl::Status NoSuchMessage(ContextId context, const MessageId& message) {
  return absl::NotFoundError(absl::StrCat(message.ToString(), " of ",
                                          context.ToString(),
                                          " is unknown at its producer"));
}

}  // namespace

absl::StatusOr<std::vector<Slot>> Context::SlotsOf(uint64_t number) const {
  MutexLock lock(mu_);
  const auto it = sends_.find(number);
  if (it == sends_.end()) return NoSuchMessage(id_, {self_, number});
  const Send& send = it->second;
  if (send.consumed_by.empty()) return send.slots;
  return absl::FailedPreconditionError(absl::StrCat(
      MessageId{self_, number}.ToString(), " of ", id_.ToString(), " (the ",
      send.label.is_reply ? "result" : "arguments", " of ", send.label.function,
      ") was consumed by ", send.consumed_by,
      ", which did not retain the graph; run the first pass with "
      "retain_graph"));
}

std::vector<uint64_t> Context::Sends() const {
  MutexLock lock(mu_);
  std::vector<uint64_t> numbers;
  for (const auto& [number, send] : sends_) {
    if (send.consumed_by.empty()) numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<MessageLabel> Context::LabelOf(uint64_t number) const {
  MutexLock lock(mu_);
  const auto it = sends_.find(number);
  if (it == sends_.end()) return NoSuchMessage(id_, {self_, number});
  return it->second.label;
}

void Context::Consume(uint64_t number, const std::vector<bool>& slots,
                      PassId pass) {
  std::vector<Slot> freed;  // without the lock
  MutexLock lock(mu_);
  const auto it = sends_.find(number);
  if (it == sends_.end() || it->second.slots.size() != slots.size()) return;
  Send& send = it->second;
  send.consumed.resize(slots.size());
  bool is_consumed = true;
  for (size_t i = 0; i < slots.size(); ++i) {
    send.consumed[i] = send.consumed[i] || slots[i];
    Node* const node = send.slots[i].edge.node.get();
    is_consumed = is_consumed && send.consumed[i] && node != nullptr &&
                  node->leaf() == nullptr &&
                  dynamic_cast<ReceiveNode*>(node) == nullptr;
  }
  if (!is_consumed) return;
  send.consumed_by = pass.ToString();
  freed.swap(send.slots);
}

absl::Status Context::AddPeer(WorkerKey peer) {
  MutexLock lock(mu_);
  if (is_closed_) {
    return absl::FailedPreconditionError(absl::StrCat(
        id_.ToString(), " was released: no more calls are recorded in it"));
  }
  peers_.insert(peer);
  return absl::OkStatus();
}

std::set<WorkerKey> Context::Close() {
  MutexLock lock(mu_);
  is_closed_ = true;
  return peers_;
}

void Context::AddReached(const std::set<WorkerKey>& workers) {
  MutexLock lock(mu_);
  reached_.insert(workers.begin(), workers.end());
}

std::set<WorkerKey> Context::Others() const {
  MutexLock lock(mu_);
  std::set<WorkerKey> others = peers_;
  others.insert(reached_.begin(), reached_.end());
  others.erase(self_);
  return others;
}

void Context::AddPartners(const std::set<WorkerKey>& workers) {
  MutexLock lock(mu_);
  partners_.insert(workers.begin(), workers.end());
}

bool Context::MayStep(WorkerKey worker) const {
  if (worker == id_.creator || worker == self_) return true;
  MutexLock lock(mu_);
  return partners_.count(worker) > 0;
}

absl::Status Context::AddParticipant(std::shared_ptr<Participant> participant) {
  MutexLock lock(mu_);
  if (is_closed_) {
    return absl::FailedPreconditionError(absl::StrCat(
        id_.ToString(), " was released: nothing more has part in its steps"));
  }
  participants_.push_back(std::move(participant));
  return absl::OkStatus();
}

std::vector<std::shared_ptr<Participant>> Context::Participants() const {
  MutexLock lock(mu_);
  return participants_;
}

absl::StatusOr<int64_t> Context::PrepareParticipants() {
  int64_t changes = 0;
  for (const auto& participant : Participants()) {
    const absl::StatusOr<bool> prepared = participant->Prepare();
    if (!prepared.ok()) return prepared.status();
    if (*prepared) ++changes;
  }
  return changes;
}

Future<void> Context::CommitParticipants() {
  std::vector<Future<void>> commits;
  for (const auto& participant : Participants()) {
    commits.push_back(participant->Commit());
  }
  return WhenAllOk(std::move(commits));
}

void Context::AbortParticipants() {
  std::vector<std::shared_ptr<Participant>> participants;
  {
    MutexLock lock(mu_);
    participants.swap(participants_);
  }
  for (const auto& participant : participants) participant->Abort();
}

// Depth first and without recursion: a graph may be a chain of a million nodes.
// Each node is visited once in its life, since the result stays with it.
absl::StatusOr<MessageSet> Context::LineageOf(
    absl::Span<const Edge> edges) const {
  struct Visit {
    Node* node;
    size_t next_edge = 0;
    MessageSet messages = {};
  };
  std::vector<Visit> path;
  MessageSet all;
  // The lineages of nodes whose note belongs to another context.
  absl::flat_hash_map<const Node*, MessageSet> visited;
  absl::Status foreign;
  // Adds the lineage of `node` to `sum` if it is known, else begins a visit.
  const auto enter = [&](Node* node, MessageSet* sum) {
    if (auto* receive = dynamic_cast<ReceiveNode*>(node)) {
      if (receive->context() == id_) {
        sum->Add(receive->lineage());
      } else if (foreign.ok()) {
        foreign = absl::FailedPreconditionError(absl::StrCat(
            "the graph reaches a message of ", receive->context().ToString(),
            ", not of ", id_.ToString(),
            ": a value that was received in one context cannot be used in a "
            "pass of another; Detach() it"));
      }
      return;
    }
    if (node->edges().empty()) return;
    const auto* known = dynamic_cast<const Lineage*>(node->note());
    if (known != nullptr && known->context == id_) {
      sum->Add(known->messages);
    } else if (const auto seen = visited.find(node); seen != visited.end()) {
      sum->Add(seen->second);
    } else {
      path.push_back({node});
    }
  };
  for (const Edge& edge : edges) {
    if (!edge.node) continue;
    enter(edge.node.get(), &all);
    while (!path.empty()) {
      const size_t top = path.size() - 1;
      const auto node_edges = path[top].node->edges();
      if (path[top].next_edge < node_edges.size()) {
        Node* const next = node_edges[path[top].next_edge++].node.get();
        if (next == nullptr) continue;
        MessageSet found;
        enter(next, &found);
        path[top].messages.Add(found);
        continue;
      }
      auto note = std::make_unique<Lineage>(id_);
      path[top].messages.Shorten(most_intervals_);
      note->messages = path[top].messages;
      Node* const node = path[top].node;
      MessageSet done = std::move(path[top].messages);
      path.pop_back();
      if (foreign.ok()) node->SetNote(std::move(note));
      const auto* kept = dynamic_cast<const Lineage*>(node->note());
      if (kept == nullptr || !(kept->context == id_)) visited[node] = done;
      (path.empty() ? all : path.back().messages).Add(done);
    }
  }
  if (!foreign.ok()) return foreign;
  all.Shorten(most_intervals_);
  return all;
}

void Context::Commit(LeafGradients gradients) {
  MutexLock lock(mu_);
  for (auto& [leaf, entry] : gradients) {
    AddGradient(*leaf, std::move(entry.second), &gradients_);
  }
}

Gradient Context::GradientOf(const Leaf& leaf) const {
  MutexLock lock(mu_);
  const auto it = gradients_.find(const_cast<Leaf*>(&leaf));
  return it == gradients_.end() ? Gradient() : it->second.second;
}

LeafGradients Context::gradients() const {
  MutexLock lock(mu_);
  return gradients_;
}

void Context::ClearGradients() {
  LeafGradients cleared;
  MutexLock lock(mu_);
  cleared.swap(gradients_);
}

}  // namespace weft::dist_autograd
