// RebalanceDriver: asks all servers of the job what they have to do, and has
// the map changed as a Rebalancer (ps/core/replication/rebalancer.h) says.
//
// Each server has one. The live server of the lowest id begins moves, if the
// job wants that; each goes on with those that it has begun, or was asked for.
// If it dies they stay as they are, each with two copies, and the next server
// begins others.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_REPLICATED_REBALANCE_DRIVER_H_
#define WEFT_PS_REPLICATED_REBALANCE_DRIVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps_load.pb.h"
#include "weft/ps/core/replication/load_meter.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/rebalancer.h"
#include "weft/rpc/agent.h"

namespace weft::ps {

class RebalanceDriver {
 public:
  struct Options {
    rpc::Agent* agent = nullptr;  // outlives the driver
    WorkerKey self;
    RebalanceMode mode = RebalanceMode::kOff;
    RebalanceOptions rebalance;
    absl::Duration look_every = absl::Seconds(1);
    absl::Duration step_every =
        absl::Milliseconds(200);  // while something moves
    // Functions of this server. They must not take a lock under which the
    // driver is called.
    std::function<PartitionMap()> map;
    std::function<std::vector<EntryLoad>()> loads;  // one for each entry
    std::function<void(const MapChange&)> propose;
  };
  explicit RebalanceDriver(Options options);
  // Waits for questions to other servers, which end by their time-outs.
  ~RebalanceDriver();

  // To be called about every 20 ms. Does not wait.
  void OnTick(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  // One round now, or what it would be: up to RebalanceOptions::most_moves
  // moves. The reply comes once they have begun; the driver goes on with them.
  //   kUnavailable        a server did not answer, or this one shuts down
  //   kDeadlineExceeded   a server did not answer in time
  Future<v1::BalanceReply> Balance(bool dry_run) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Loads = absl::StatusOr<std::vector<EntryLoad>>;
  struct Gathering;

  // `then` runs once, with the sums over all servers of `map` that live.
  void Gather(const PartitionMap& map, std::function<void(Loads)> then)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool BeginCall() ABSL_LOCKS_EXCLUDED(mu_);
  void EndCall() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it is for this server to begin moves.
  bool Leads(const PartitionMap& map) const;
  // Looks at the map with the loads that were gathered; `may_begin` as in
  // Rebalancer::OnLook.
  void Look(const PartitionMap& map, const std::vector<EntryLoad>& loads,
            bool may_begin) ABSL_LOCKS_EXCLUDED(mu_);
  void TellOfPlan(const PartitionMap& map, const std::vector<EntryLoad>& loads)
      ABSL_LOCKS_EXCLUDED(mu_);
  void TellOf(const std::vector<Rebalancer::Event>& events);

  const Options options_;

  Mutex mu_;
  CondVar calls_end_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_looking_ ABSL_GUARDED_BY(mu_) = false;
  Instant next_look_ ABSL_GUARDED_BY(mu_);
  Rebalancer rebalancer_ ABSL_GUARDED_BY(mu_);
  Instant next_told_ ABSL_GUARDED_BY(mu_);  // kDryRun: of a plan
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_REBALANCE_DRIVER_H_
