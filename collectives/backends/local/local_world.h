// LocalWorld: the ranks of groups whose ranks are threads of one process. It
// fails on demand, so it is also the fake of tests.
//
//   LocalWorld world(4);
//   // on the thread of rank r
//   std::unique_ptr<ProcessGroup> group =
//       ProcessGroup::Create(world.Connect(r));
//
// Operations run by the algorithms for links, over messages in memory. Every
// copy of an operation's description is compared when it begins, so a mismatch
// is found at once.

#ifndef WEFT_COLLECTIVES_BACKENDS_LOCAL_LOCAL_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_LOCAL_LOCAL_WORLD_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "weft/base/driver.h"
#include "weft/collectives/algorithms/run_over_link.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {

// Each rank sends one message at a time, and takes one at a time, at this rate;
// a message is on its way for `latency` besides.
struct LinkModel {
  absl::Duration latency = absl::Microseconds(20);
  double bytes_per_second = 1.25e9;
};

// Thread-safety: thread-safe.
class LocalWorld {
 public:
  struct Options {
    DiagnosisOptions diagnosis;
    // How ranks wait, and by which clock. Must outlive the world's backends.
    Driver* driver = &ParkingDriver();
    // By which algorithms are chosen.
    LinkCost cost;
    // How long messages of operations take, by the driver's clock; none: they
    // are there at once.
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
  // Messages that `rank` sends are held back, until Release.
  void Hold(int rank);
  void Release(int rank);

  class State;
  class Group;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_LOCAL_LOCAL_WORLD_H_
