// FactsSharing: when the launcher of a node asks those of other nodes what they
// see of their ranks, and when it says so of its own: a pure state machine over
// the store of the job.
//
// Each node has two keys: who wants its facts writes the one, and for a while
// after that its launcher writes them to the other, again and again. So nothing
// is written where nobody waits. The versions of a store grow with each of its
// changes: facts with a later version than that of the question were said after
// it.

#ifndef WEFT_LAUNCH_STUCK_FACTS_SHARING_H_
#define WEFT_LAUNCH_STUCK_FACTS_SHARING_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/launch/stuck/stuck.h"

namespace weft::launch {

// Thread-safety: one thread at a time. Times do not go back.
class FactsSharing {
 public:
  explicit FactsSharing(int node) : node_(node) {}

  // Of the store. Each is under way from Due to OnAnswer or OnFailure.
  struct Call {
    enum class Kind {
      kAwaitQuestion,  // until the key has a later version than `after`
      kAsk,            // writes anything
      kPublish,        // writes FormatFacts of this node's ranks
      kAwaitFacts,     // as kAwaitQuestion
    };
    Kind kind = Kind::kAsk;
    int node = 0;
    uint64_t after = 0;
    std::string key() const;
  };

  // What is to be called now; `wanted`: the other nodes whose facts are.
  std::vector<Call> Due(const std::set<int>& wanted, Instant now);
  // `version`: of the key now, 0 if it is absent; `value`: what it holds.
  void OnAnswer(const Call& call, uint64_t version, absl::string_view value,
                Instant now);
  void OnFailure(const Call& call);

  // What is known of the ranks of the nodes that are wanted. What was said long
  // ago is left out.
  std::vector<RankFacts> Known(Instant now) const;

 private:
  struct Node {
    Instant ask_at;      // again
    uint64_t asked = 0;  // the version of the question; 0: none is there
    uint64_t seen = 0;   // that of `ranks`
    Instant seen_at;
    std::vector<RankFacts> ranks;
  };
  bool IsUnderWay(const Call& call) const;
  void OnQuestion(uint64_t version, Instant now);
  void OnFacts(Node& node, const Call& call, uint64_t version,
               absl::string_view value, Instant now);

  const int node_;
  uint64_t question_ = 0;  // the last version
  Instant publish_until_;
  Instant publish_at_;
  std::map<int, Node> nodes_;  // wanted
  std::vector<Call> under_way_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_FACTS_SHARING_H_
