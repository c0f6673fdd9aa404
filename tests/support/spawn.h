// Process, SpawnWorkers: programs run by a test, killed at the end of scope.
//
// For tests of process death; ranks are threads otherwise (RunRanks).

#ifndef WEFT_TESTS_SUPPORT_SPAWN_H_
#define WEFT_TESTS_SUPPORT_SPAWN_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"

namespace weft::testing {

struct Command {
  // The program's path and its arguments.
  std::vector<std::string> argv;
  // `NAME=value`, added to the test's own environment.
  std::vector<std::string> env;
};

// A running child. Its standard output and error are gathered as one text.
// It dies with the thread that started it, so that no orphan is left.
//
// Thread-safety: thread-safe.
class Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(Command command);

  // Kills it, with SIGKILL, unless it has ended.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // Its output so far.
  std::string output() const ABSL_LOCKS_EXCLUDED(mu_);

  // OK once `text` is in the output. kDeadlineExceeded after `timeout`,
  // kFailedPrecondition if the output ended without; both quote the output.
  absl::Status WaitForOutput(absl::string_view text, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The exit code, or 128 + the signal that ended it, as a shell says; all
  // output is there then. kDeadlineExceeded after `timeout`.
  absl::StatusOr<int> Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  void Signal(int signal) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Process(pid_t pid, int output_fd);

  void ReadOutput() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns false once nothing more can come.
  bool ReadAvailable() ABSL_LOCKS_EXCLUDED(mu_);

  const pid_t pid_;
  const int output_fd_;
  mutable Mutex mu_;
  CondVar changed_;
  std::string output_ ABSL_GUARDED_BY(mu_);
  bool output_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // and reaped
  int exit_code_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread reader_;  // of the output, then of the exit status
};

// Starts `command_of(rank)` for each rank in [0, size).
absl::StatusOr<std::vector<std::unique_ptr<Process>>> SpawnWorkers(
    int size, absl::FunctionRef<Command(int rank)> command_of);

// The path of a file that the test target names under `data`, such as
// "launch/trainer".
std::string RunfilePath(absl::string_view path);

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_SPAWN_H_
