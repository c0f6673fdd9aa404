// LocalWorld: the ranks of groups whose ranks are threads of one process. It
// fails on demand, so it is also the fake of tests.
//
//   LocalWorld world(4);
//   // on the thread of rank r
//   std::unique_ptr<ProcessGroup> group =
//       ProcessGroup::Create(world.Connect(r));
//
// A group is that of the stream backend, one Mesh for each rank. Its streams
// are calls within the process: whoever sends a message hands it to the mesh of
// the rank it is for, so there are no threads, and a simulation runs it as it
// is.

#ifndef WEFT_COLLECTIVES_BACKENDS_LOCAL_LOCAL_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_LOCAL_LOCAL_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/collectives/algorithms/run_over_link.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {

// Each rank sends one message at a time, and takes one at a time, at this rate
// (of elements: what a message has besides takes no time); a message is on its
// way for `latency` besides.
struct LinkModel {
  absl::Duration latency = absl::Microseconds(20);
  double bytes_per_second = 1.25e9;
  // Runs a function at that time of the driver's clock. REQUIRED.
  std::function<void(Instant, std::function<void()>)> run_at = nullptr;
};

// Thread-safety: thread-safe.
class LocalWorld {
 public:
  struct Options {
    DiagnosisOptions diagnosis;
    // How ranks wait, and by which clock. Must outlive the world's backends.
    Driver* driver = &ParkingDriver();
    // The cost by which algorithms are chosen.
    LinkCost cost;
    // How long messages take, by the driver's clock; none: they are there at
    // once.
    absl::optional<LinkModel> link;
    // As HostOptions::max_unasked_bytes.
    int64_t max_unasked_bytes = kMostUnaskedBytes;
  };

  // REQUIRES: size > 0.
  explicit LocalWorld(int size);
  LocalWorld(int size, Options options);
  ~LocalWorld();

  // Rank `rank` of it, for that rank's thread. The backend may outlive the
  // world. REQUIRES: 0 <= rank < size.
  std::unique_ptr<Backend> Connect(int rank);

  // --- Failures on demand. ---------------------------------------------------

  // From now on all groups with this rank of the world find it ended, as if its
  // process had been killed; its own operations end in kCancelled.
  void Kill(int rank);
  // Kills `rank` in the place of the message that it sends after `messages`
  // more of them.
  void KillAfter(int rank, int64_t messages);
  // Whether `rank` has been killed by now.
  bool IsKilled(int rank) const;
  // Messages that `rank` sends are held back, until Release; it sends no more
  // meanwhile.
  void Hold(int rank);
  void Release(int rank);

  class State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_LOCAL_LOCAL_WORLD_H_
