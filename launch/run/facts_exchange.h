// FactsExchange: gives what a launcher sees of its ranks to the launchers of
// the job's other nodes, and gets what they see, by the store of the job's
// coordinator (stuck/facts_sharing.h says when).

#ifndef WEFT_LAUNCH_RUN_FACTS_EXCHANGE_H_
#define WEFT_LAUNCH_RUN_FACTS_EXCHANGE_H_

#include <set>
#include <string>
#include <vector>

#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/launch/run/coordinator_channel.h"
#include "weft/launch/stuck/facts_sharing.h"
#include "weft/launch/stuck/stuck.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class FactsExchange {
 public:
  // Of the launcher of `node`.
  FactsExchange(CoordinatorChannelOptions options, int node)
      : channel_(std::move(options)), sharing_(node) {}

  // LaunchOptions::share_facts. Where the coordinator cannot be called nothing
  // is known.
  std::vector<RankFacts> Exchange(const std::vector<RankFacts>& own,
                                  const std::set<int>& nodes);

 private:
  struct UnderWay {
    FactsSharing::Call call;
    Future<Slices> reply;
  };
  void TakeReplies(Instant now);
  Future<Slices> Begin(net::Channel& channel, const FactsSharing::Call& call,
                       const std::vector<RankFacts>& own) const;

  CoordinatorChannel channel_;
  FactsSharing sharing_;
  std::vector<UnderWay> under_way_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_FACTS_EXCHANGE_H_
