// PassPart: how far one worker's part of a distributed backward pass has come.
//
// The part is done once it was prepared, each live message of this worker has
// brought its gradient, and all nodes have run. It does not wait until what it
// sent was taken: whoever gets that knows from the start how many gradients
// come, and is not done without them. So once every participant is done,
// nothing is on its way, and no further round is needed to find the end.
//
// No threads or I/O.

#ifndef WEFT_DIST_AUTOGRAD_CORE_PASS_PART_H_
#define WEFT_DIST_AUTOGRAD_CORE_PASS_PART_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/dist_autograd/core/message_set.h"

namespace weft::dist_autograd {

// Thread-safety: one thread at a time.
class PassPart {
 public:
  enum class Arrival {
    kStash,      // the part is not prepared: keep the gradient until it is
    kFeed,       // feed it now
    kDuplicate,  // it came before
    kNotLive,    // the root did not ask for it: the sender is wrong
  };

  explicit PassPart(WorkerKey self) : self_(self) {}

  // `live`: the messages of this worker that the pass goes through. Returns
  // those whose gradients were stashed, in ascending order, to be fed now; some
  // may turn out not to be live.
  std::vector<uint64_t> Prepare(MessageIntervals live);
  // The gradient of this worker's message `number` has come.
  Arrival OnGradient(uint64_t number);
  void OnSent() { ++in_flight_; }
  void OnTaken() { --in_flight_; }

  bool is_prepared() const { return is_prepared_; }
  bool IsLive(uint64_t number) const { return live_.Contains({self_, number}); }
  // `all_nodes_ran`: GraphTask::done().
  bool IsDone(bool all_nodes_ran) const {
    return is_prepared_ && all_nodes_ran &&
           arrived_.size() == live_.CountOf(self_);
  }
  uint64_t num_live() const { return live_.CountOf(self_); }
  // Gradients that were sent and not taken yet.
  int64_t in_flight() const { return in_flight_; }
  // The live messages that have brought no gradient, for reports.
  std::vector<uint64_t> Missing() const;

 private:
  const WorkerKey self_;
  bool is_prepared_ = false;
  MessageSet live_;
  std::set<uint64_t> arrived_;
  int64_t in_flight_ = 0;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CORE_PASS_PART_H_
