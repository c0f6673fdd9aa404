// FactsSharing: see the header.

#include "weft/launch/stuck/facts_sharing.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/launch/stuck/shared_facts.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kAskEvery = absl::Seconds(5);
// Longer than until the question is asked again.
constexpr absl::Duration kPublishFor = absl::Seconds(12);
constexpr absl::Duration kPublishEvery = absl::Seconds(1);
// Of one that does not publish any more nothing is known.
constexpr absl::Duration kForget = absl::Seconds(5);

}  // namespace

std::string FactsSharing::Call::key() const {
  const bool is_question = kind == Kind::kAwaitQuestion || kind == Kind::kAsk;
  return absl::StrCat("weft run/stuck/", is_question ? "asked/" : "facts/",
                      node);
}

bool FactsSharing::IsUnderWay(const Call& call) const {
  return absl::c_any_of(under_way_, [&](const Call& other) {
    return other.kind == call.kind && other.node == call.node;
  });
}

std::vector<FactsSharing::Call> FactsSharing::Due(const std::set<int>& wanted,
                                                  Instant now) {
  std::vector<Call> calls;
  const auto add = [&](Call call) {
    if (IsUnderWay(call)) return;
    under_way_.push_back(call);
    calls.push_back(call);
  };
  add({Call::Kind::kAwaitQuestion, node_, question_});
  if (now < publish_until_ && now >= publish_at_) {
    publish_at_ = now + kPublishEvery;
    add({Call::Kind::kPublish, node_});
  }
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    it = wanted.count(it->first) == 0 ? nodes_.erase(it) : std::next(it);
  }
  for (const int number : wanted) {
    if (number == node_) continue;
    Node& node = nodes_[number];
    if (now >= node.ask_at) {
      node.ask_at = now + kAskEvery;
      add({Call::Kind::kAsk, number});
    }
    if (node.asked != 0) {
      add({Call::Kind::kAwaitFacts, number, std::max(node.asked, node.seen)});
    }
  }
  return calls;
}

void FactsSharing::OnAnswer(const Call& call, uint64_t version,
                            absl::string_view value, Instant now) {
  OnFailure(call);
  if (call.kind == Call::Kind::kAwaitQuestion) return OnQuestion(version, now);
  const auto it = nodes_.find(call.node);
  if (it == nodes_.end()) return;
  Node& node = it->second;
  if (call.kind == Call::Kind::kAwaitFacts) {
    OnFacts(node, call, version, value, now);
  } else if (call.kind == Call::Kind::kAsk &&
             (node.asked == 0 || version < node.asked)) {
    node.asked = version;
  }
}

// Another version, not only a later one: another coordinator counts anew.
void FactsSharing::OnQuestion(uint64_t version, Instant now) {
  if (version != 0 && version != question_) {
    publish_until_ = now + kPublishFor;
  }
  question_ = version;
}

void FactsSharing::OnFacts(Node& node, const Call& call, uint64_t version,
                           absl::string_view value, Instant now) {
  if (version < node.seen) {  // of another coordinator
    node = Node();
    return;
  }
  if (version <= call.after) return;
  absl::StatusOr<std::vector<RankFacts>> ranks = ParseFacts(value);
  node.seen = version;
  if (!ranks.ok()) return;
  node.seen_at = now;
  node.ranks = *std::move(ranks);
}

void FactsSharing::OnFailure(const Call& call) {
  under_way_.erase(std::remove_if(under_way_.begin(), under_way_.end(),
                                  [&](const Call& other) {
                                    return other.kind == call.kind &&
                                           other.node == call.node;
                                  }),
                   under_way_.end());
}

std::vector<RankFacts> FactsSharing::Known(Instant now) const {
  std::vector<RankFacts> all;
  for (const auto& [number, node] : nodes_) {
    const absl::Duration age = now - node.seen_at;
    if (age > kForget) continue;
    for (RankFacts rank : node.ranks) {
      if (rank.process == RankFacts::Process::kStopped) rank.stopped += age;
      for (RankWait& wait : rank.waits) {
        wait.waited += age;
        wait.said_ago += age;
      }
      all.push_back(std::move(rank));
    }
  }
  return all;
}

}  // namespace weft::launch
