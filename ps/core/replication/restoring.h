// Restoring: what a client that restores a checkpoint into a job with two
// replicas asks for next.
//
// All servers load the same checkpoint, each the part that it has by the map,
// as a new generation of the tables; the map then says that this generation
// counts (PartitionMap, "Restoring"). If all copies of an entry were lost, the
// map first gives it new servers. A death meanwhile is no error: whoever has
// got a role after it had loaded would have nothing, so all is loaded anew.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_RESTORING_H_
#define WEFT_PS_CORE_RESTORING_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {

class Restoring {
 public:
  // `generation`: above that of all restores before. If all is to be loaded
  // anew, the next one is taken.
  explicit Restoring(uint64_t generation) : generation_(generation) {}

  struct Step {
    enum class Kind {
      kBegin,  // ask for the change kBeginRestore of `generation`
      kLoad,   // let `servers` load `generation` by this map
      kWait,   // for a newer map: see `status`
      kEnd,    // ask for the change kEndRestore: End()
      kDone,
      kFailed,  // with `status`: another restore has begun
    };
    Kind kind = Kind::kWait;
    uint64_t generation = 0;
    std::vector<WorkerKey> servers;
    absl::Status status;
  };
  Step Next(const PartitionMap& map);

  // `server` has loaded `generation`, by the map of `epoch`.
  void Loaded(WorkerKey server, uint64_t generation, uint64_t epoch);
  MapChange End() const;

 private:
  uint64_t generation_;
  std::map<WorkerKey, uint64_t> loaded_;  // by the map of which epoch
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_RESTORING_H_
