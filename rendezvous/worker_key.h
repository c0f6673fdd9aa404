// WorkerKey: one incarnation of a worker: a restarted one is a different key.

#ifndef WEFT_RENDEZVOUS_WORKER_KEY_H_
#define WEFT_RENDEZVOUS_WORKER_KEY_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft::rendezvous {

// (term, counter) in one integer: the high half is the durable term of the
// coordinator, the low half counts within it. It never goes back; 0 is none.
using Epoch = uint64_t;

constexpr Epoch MakeEpoch(uint32_t term, uint32_t counter) {
  return (Epoch{term} << 32) | counter;
}
constexpr uint32_t TermOf(Epoch epoch) {
  return static_cast<uint32_t>(epoch >> 32);
}
constexpr uint32_t CounterOf(Epoch epoch) {
  return static_cast<uint32_t>(epoch);
}

struct WorkerKey {
  uint32_t id = 0;  // stable for a name within a job
  Epoch epoch = 0;  // one incarnation of it

  // "3@1.7": id, term, counter.
  std::string ToString() const {
    return absl::StrCat(id, "@", TermOf(epoch), ".", CounterOf(epoch));
  }

  friend bool operator==(WorkerKey a, WorkerKey b) {
    return a.id == b.id && a.epoch == b.epoch;
  }
  friend bool operator!=(WorkerKey a, WorkerKey b) { return !(a == b); }
  friend bool operator<(WorkerKey a, WorkerKey b) {
    return a.id != b.id ? a.id < b.id : a.epoch < b.epoch;
  }
  template <typename H>
  friend H AbslHashValue(H h, WorkerKey key) {
    return H::combine(std::move(h), key.id, key.epoch);
  }
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_WORKER_KEY_H_
