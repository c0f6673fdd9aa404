// DroppedServers: which live servers have just lost copies because they did not
// answer.
//
// A server that is stopped, or cut off from other servers, may be live for the
// membership for as long as --silence says. Its copies are dropped long before
// that, by the primaries that it does not answer. It has the least to do then,
// and would be chosen again, and dropped again, while another server stands by.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_REPLICATION_DROPPED_SERVERS_H_
#define WEFT_PS_CORE_REPLICATION_DROPPED_SERVERS_H_

#include <map>
#include <set>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {

class DroppedServers {
 public:
  // For so long others are preferred.
  static constexpr absl::Duration kAvoidFor = absl::Seconds(10);

  // `after` is a later map of the same job. Servers that took part in an entry
  // and do not any more, other than by a move, were dropped at `now`.
  void OnChange(const PartitionMap& before, const PartitionMap& after,
                Instant now);

  // PartitionMap::AddBackups prefers others.
  std::set<WorkerKey> At(Instant now) const;

 private:
  std::map<WorkerKey, Instant> until_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_REPLICATION_DROPPED_SERVERS_H_
