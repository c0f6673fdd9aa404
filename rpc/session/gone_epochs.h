// GoneEpochs: which incarnations of workers are gone.

#ifndef WEFT_RPC_SESSION_GONE_EPOCHS_H_
#define WEFT_RPC_SESSION_GONE_EPOCHS_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "weft/rpc/session/directory.h"

namespace weft::rpc {

// With an incarnation all earlier ones of its worker are gone.
//
// Thread-safety: one thread at a time.
class GoneEpochs {
 public:
  void Add(WorkerKey key) {
    uint64_t& gone = epochs_[key.id];
    gone = std::max(gone, key.epoch);
  }
  bool Has(WorkerKey key) const {
    const auto gone = epochs_.find(key.id);
    return gone != epochs_.end() && key.epoch <= gone->second;
  }

 private:
  absl::flat_hash_map<uint32_t, uint64_t> epochs_;  // the last, by id
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_GONE_EPOCHS_H_
