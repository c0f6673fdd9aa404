// FactsExchange: gives what a launcher sees of its ranks to the launchers of
// the job's other nodes, and gets what they see, by the store of the job's
// coordinator (stuck/facts_sharing.h says when).

#ifndef WEFT_LAUNCH_RUN_FACTS_EXCHANGE_H_
#define WEFT_LAUNCH_RUN_FACTS_EXCHANGE_H_

#include <set>
#include <string>
#include <vector>

#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/launch/run/coordinator_channel.h"
#include "weft/launch/stuck/facts_sharing.h"
#include "weft/launch/stuck/stuck.h"
#include "weft/rendezvous/coordinator_link.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class FactsExchange {
 public:
  // Of the launcher of `node`. `channel` must outlive it.
  FactsExchange(CoordinatorChannel& channel, int node)
      : channel_(channel), sharing_(node) {}

  // LaunchOptions::share_facts. Where the coordinator cannot be called nothing
  // is known.
  std::vector<RankFacts> Exchange(const std::vector<RankFacts>& own,
                                  const std::set<int>& nodes);

 private:
  struct UnderWay {
    FactsSharing::Call call;
    Future<std::string> reply;
  };
  void TakeReplies(Instant now);
  Future<std::string> Begin(rendezvous::CoordinatorLink& link,
                            const FactsSharing::Call& call,
                            const std::vector<RankFacts>& own) const;

  CoordinatorChannel& channel_;
  FactsSharing sharing_;
  std::vector<UnderWay> under_way_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_FACTS_EXCHANGE_H_
