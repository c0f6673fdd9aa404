// Phases: how the ranks of a host wait for each other.
//
// A phase is over for a rank once all ranks have arrived in it. Between its
// arrivals in phases p and p + 1 a rank may read what others wrote into their
// slots p mod 2; it writes into its slot p mod 2 after phase p - 1 is over and
// before it arrives in p. So two slots for each rank are enough: whoever is
// still reading slot p has not arrived in p + 1, and nobody writes that slot
// again before p + 1 is over. Where all agree to, a rank may in that time also
// write into the slots p mod 2 of others, who read it between the end of p + 1
// and their arrival in p + 2. docs/collectives.md and phases_model_test check
// that for all interleavings, and that no wake-up is lost.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_PHASES_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_PHASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/collectives/backends/host/segment_layout.h"

namespace weft::collectives {

// One rank's view. Thread-safety: one thread at a time.
class Phases {
 public:
  // `controls` are those of the ranks, in shared memory, and must outlive it.
  // `spin_rounds`: how often to look before giving the core away.
  Phases(std::vector<RankControl*> controls, int rank, int spin_rounds)
      : controls_(std::move(controls)),
        rank_(rank),
        spin_rounds_(spin_rounds) {}

  // The phase in which this rank arrives next.
  uint64_t next() const { return next_; }

  // Arrives in phase next(). What this rank wrote before is seen by whoever
  // finds that phase over.
  void Arrive();

  // Waits until phase `phase` is over. `check`, called now and then while it
  // waits with the ranks that are missing, ends the wait with its error.
  absl::Status Await(
      uint64_t phase,
      absl::FunctionRef<absl::Status(const std::vector<int>& missing)> check);

  // Wakes all who sleep in Await, for them to call `check`.
  void WakeAll();

 private:
  // The control of the first rank that is missing; null: the phase is over.
  const RankControl* FirstMissing(uint64_t phase) const;
  std::vector<int> Missing(uint64_t phase) const;

  const std::vector<RankControl*> controls_;
  const int rank_;
  const int spin_rounds_;
  uint64_t next_ = 1;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_PHASES_H_
