#include "weft/rpc/diagnostics/waits_for.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rpc {
namespace {

using Chain = std::vector<WaitsFor::Wait>;

// So many nested calls are shown further in.
constexpr int kMaxDepth = 64;
// A chain has at most so many, from its innermost call on: far more than calls
// may nest.
constexpr size_t kMaxChain = 256;

// The part that comes back to the worker where it began, if there is one.
Chain CycleOf(const Chain& chain) {
  for (size_t first = 0; first < chain.size(); ++first) {
    if (chain[first].callee == chain[first].caller) continue;
    for (size_t last = first + 1; last < chain.size(); ++last) {
      if (chain[last].callee != chain[first].caller) continue;
      return Chain(chain.begin() + first, chain.begin() + last + 1);
    }
  }
  return {};
}

std::string TextOf(const Chain& chain) {
  std::string text = chain.front().caller;
  for (const WaitsFor::Wait& wait : chain) {
    absl::StrAppend(&text, " > ", wait.callee, ":", wait.function, " (",
                    NameOf(wait.phase), ", ", absl::FormatDuration(wait.age),
                    ")");
  }
  return text;
}

int64_t Microseconds(absl::Duration d) { return absl::ToInt64Microseconds(d); }

}  // namespace

void Codec<PendingCall>::Encode(const PendingCall& call, Encoder& encoder) {
  encoder.Write(call.peer, call.is_served, call.id, call.function,
                static_cast<uint8_t>(call.phase), Microseconds(call.age),
                Microseconds(call.remaining), call.for_peer, call.for_id);
}

absl::Status Codec<PendingCall>::Decode(Decoder& decoder, PendingCall& call) {
  uint8_t phase = 0;
  int64_t age = 0;
  int64_t remaining = 0;
  const absl::Status status =
      decoder.Read(call.peer, call.is_served, call.id, call.function, phase,
                   age, remaining, call.for_peer, call.for_id);
  if (!status.ok()) return status;
  if (phase >= kPhases) return Decoder::Malformed("no such phase");
  // WaitsFor takes such a call for one that was not reported.
  if (call.function.empty()) return Decoder::Malformed("no function");
  call.phase = static_cast<Phase>(phase);
  call.age = absl::Microseconds(age);
  call.remaining = absl::Microseconds(remaining);
  return absl::OkStatus();
}

void WaitsFor::Add(const std::string& worker,
                   const std::vector<PendingCall>& calls) {
  for (const PendingCall& call : calls) {
    const std::string& caller = call.is_served ? call.peer : worker;
    const std::string& callee = call.is_served ? worker : call.peer;
    const Key key(caller, callee, call.id);
    Node& node = nodes_[key];
    const bool is_new = node.wait.function.empty();
    // The callee knows better how far it is.
    if (is_new || call.is_served) node.wait.phase = call.phase;
    node.wait.caller = caller;
    node.wait.callee = callee;
    node.wait.id = call.id;
    node.wait.function = call.function;
    node.wait.age = std::max(node.wait.age, call.age);
    node.wait.remaining = call.remaining;
    if (call.is_served || call.for_id == 0) continue;
    node.wait.for_caller = call.for_peer;
    node.wait.for_id = call.for_id;
    node.parent = Key(call.for_peer, worker, call.for_id);
    nodes_[node.parent].children.insert(key);
  }
}

std::vector<Chain> WaitsFor::Chains() const {
  std::vector<Chain> chains;
  for (const auto& [key, leaf] : nodes_) {
    if (!leaf.children.empty() || leaf.wait.function.empty()) continue;
    Chain chain;
    // Reports are of different moments, and may not fit together.
    std::set<const Node*> seen;
    const Node* node = &leaf;
    while (chain.size() < kMaxChain && !node->wait.function.empty() &&
           seen.insert(node).second) {
      chain.push_back(node->wait);
      const auto parent = nodes_.find(node->parent);
      if (parent == nodes_.end()) break;
      node = &parent->second;
    }
    std::reverse(chain.begin(), chain.end());
    chains.push_back(std::move(chain));
  }
  return chains;
}

void WaitsFor::AddBelow(const Key& key, int depth, std::set<Key>* seen,
                        std::vector<std::pair<int, const Wait*>>* calls) const {
  const auto node = nodes_.find(key);
  if (!seen->insert(key).second) return;
  const bool is_known = !node->second.wait.function.empty();
  if (is_known) calls->emplace_back(depth, &node->second.wait);
  if (depth == kMaxDepth) return;
  for (const Key& child : node->second.children) {
    // Reported again, it may have been made within another since.
    if (nodes_.at(child).parent != key) continue;
    AddBelow(child, depth + (is_known ? 1 : 0), seen, calls);
  }
}

std::vector<std::pair<int, const WaitsFor::Wait*>> WaitsFor::Forest() const {
  std::vector<std::pair<int, const Wait*>> calls;
  std::set<Key> seen;
  for (const auto& [key, node] : nodes_) {
    if (nodes_.count(node.parent) == 0) AddBelow(key, 0, &seen, &calls);
  }
  // Reports that do not fit together may have parents in a ring.
  for (const auto& [key, node] : nodes_) AddBelow(key, 0, &seen, &calls);
  return calls;
}

std::vector<WaitsFor::Wait> WaitsFor::Calls() const {
  std::vector<Wait> calls;
  for (const auto& [depth, wait] : Forest()) calls.push_back(*wait);
  return calls;
}

std::string WaitsFor::Tree() const {
  std::string text;
  for (const auto& [depth, wait] : Forest()) {
    absl::StrAppend(&text, std::string(2 * depth, ' '), wait->caller,
                    " waits for ", wait->callee, ":", wait->function, "  ",
                    NameOf(wait->phase), ", ", absl::FormatDuration(wait->age),
                    "\n");
  }
  return text;
}

std::vector<WaitsFor::Wait> WaitsFor::LongestChain() const {
  Chain longest;
  for (Chain& chain : Chains()) {
    const bool is_older = chain.size() == longest.size() &&
                          chain.front().age > longest.front().age;
    if (chain.size() > longest.size() || is_older) longest = std::move(chain);
  }
  return longest;
}

std::vector<WaitsFor::Wait> WaitsFor::Cycle() const {
  for (const Chain& chain : Chains()) {
    Chain cycle = CycleOf(chain);
    if (!cycle.empty()) return cycle;
  }
  return {};
}

std::string WaitsFor::ToString() const {
  if (const Chain cycle = Cycle(); !cycle.empty()) {
    return absl::StrCat("cycle: ", TextOf(cycle));
  }
  const Chain longest = LongestChain();
  if (longest.empty()) return "nothing is pending";
  return absl::StrCat("longest chain: ", TextOf(longest));
}

void AddOpenCalls(size_t calls, size_t parts_of_streams, const char* way,
                  const std::string& peer, std::vector<std::string>* open) {
  if (calls > 0) {
    open->push_back(absl::StrCat(calls, " calls ", way, " ", peer));
  } else if (parts_of_streams > 0) {
    open->push_back(
        absl::StrCat(parts_of_streams, " parts of streams ", way, " ", peer));
  }
}

}  // namespace weft::rpc
