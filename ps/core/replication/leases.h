// Leases: until when a server may answer as a primary, and until when it has
// let others do so.
//
// A server pings all servers with which it shares partitions, and the job's
// coordinator. Who answers a ping promises to take no role from the other, or
// not to use it, for the lease's length; who gets the answer counts the lease
// from the moment at which it had sent the ping. So the lease of the one ends
// before the promise of the other, whatever the network delays, if their
// clocks run alike but for `drift`.
//
// An answer names the map's epoch that its sender knows. It counts only for one
// who knows that epoch: a promise does not hold for partitions that a newer map
// has taken away.
//
// Pure: the caller tells the time. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_LEASES_H_
#define WEFT_PS_CORE_LEASES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {

struct LeaseOptions {
  absl::Duration lease = absl::Milliseconds(250);
  // The length of the coordinator's lease: it declares a server dead only after
  // a longer time of silence.
  absl::Duration coordinator_lease = absl::Seconds(9);
  // How much faster one clock may run than another.
  double drift = 0.01;
  absl::Duration ping_every = absl::Milliseconds(50);
};

// A ping, and its answer with the same number.
struct Ping {
  uint64_t number = 0;
  uint64_t map_epoch = 0;  // that the sender knows
};

class Leases {
 public:
  // Stands for the coordinator in place of a server's key.
  static constexpr WorkerKey kCoordinator = {};
  static constexpr Instant Never() {
    return Instant::FromNanoseconds(std::numeric_limits<int64_t>::min());
  }

  explicit Leases(LeaseOptions options) : options_(options) {}

  // Sets the peers that are pinged from now on.
  void Watch(const std::vector<WorkerKey>& peers, Instant now);

  struct Out {
    WorkerKey to;
    Ping ping;
  };
  // The pings that are due.
  std::vector<Out> OnTick(uint64_t map_epoch, Instant now);

  // The answer to a ping.
  Ping OnPing(WorkerKey from, const Ping& ping, uint64_t map_epoch,
              Instant now);
  // False if it does not count before this server knows a newer map.
  bool OnAnswer(WorkerKey from, const Ping& answer, uint64_t map_epoch,
                Instant now);

  // This server may answer, as far as `from` is concerned, until then.
  Instant HeldUntil(WorkerKey from) const;
  // `to` may answer until then, as far as this server is concerned.
  Instant GrantedUntil(WorkerKey to) const;
  // When something came from `peer`, or it was watched for the first time.
  Instant HeardAt(WorkerKey peer) const;
  // The newest map that `peer` has named; 0: none.
  uint64_t EpochOf(WorkerKey peer) const;

  // For explorations: all of the state, times relative to `now`.
  std::string Snapshot(Instant now) const;

 private:
  static constexpr size_t kMostAsked = 64;
  struct Peer {
    std::map<uint64_t, Instant> asked;  // by number: when
    Instant due;
    Instant heard;
    Instant held = Never();
    uint64_t epoch = 0;  // of its map
  };

  LeaseOptions options_;
  uint64_t last_ = 0;  // number of a ping
  std::map<WorkerKey, Peer> peers_;
  std::map<WorkerKey, Instant> granted_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_LEASES_H_
