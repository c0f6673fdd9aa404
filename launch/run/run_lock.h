// RunLock: on this host one `weft run` at a time starts the coordinator of a
// job. Ranks that were started beside another's coordinator would join that.

#ifndef WEFT_LAUNCH_RUN_RUN_LOCK_H_
#define WEFT_LAUNCH_RUN_RUN_LOCK_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::launch {

// A lock of the process, which ends with it, however it ends; what the process
// forks does not have it.
//
// Thread-safety: one thread at a time.
class RunLock {
 public:
  // Takes the lock of `job` at `coordinator`, a file of the directory that
  // `make_directory` makes; null if that gives "". Waits half a second for one
  // who only looks whether the lock is held.
  //   kFailedPrecondition  another process has it; its id is named
  // and the errors of `make_directory` and of open.
  static absl::StatusOr<std::unique_ptr<RunLock>> Take(
      const std::function<absl::StatusOr<std::string>()>& make_directory,
      absl::string_view job, absl::string_view coordinator);

  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  explicit RunLock(int fd) : fd_(fd) {}

  const int fd_;
};

// Removes the file at `path` if it is of a RunLock that no other process has.
void RemoveUnheldRunLock(const std::string& path);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_RUN_LOCK_H_
