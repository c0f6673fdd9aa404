// Keeper: a process that outlives the launcher by an instant, to end its ranks
// should it be killed.
//
// A rank dies with the launcher by PR_SET_PDEATHSIG; what the rank has started
// does not. The keeper holds one end of a pipe, and when the launcher's end
// closes, kills every group that was not reaped and every other process with
// the launcher's mark (rank_mark.h), and sweeps what they leave.

#ifndef WEFT_LAUNCH_RUN_KEEPER_H_
#define WEFT_LAUNCH_RUN_KEEPER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class Keeper {
 public:
  // Starts the keeper of the launcher with that id (DrawLauncherId). In the end
  // `sweep` runs in the keeper's process. REQUIRES: the process has one thread.
  static absl::StatusOr<std::unique_ptr<Keeper>> Start(
      const std::string& launcher, const std::function<void()>& sweep);
  // Ends it, with all groups it still watches.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void Watch(pid_t group);
  void Forget(pid_t group);  // it was reaped

 private:
  Keeper(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  void Tell(pid_t message);

  const pid_t pid_;
  const int fd_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_KEEPER_H_
