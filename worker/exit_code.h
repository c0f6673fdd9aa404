// ExitCode: what the programs' exit codes mean; docs/cli.md is the list for
// users.

#ifndef WEFT_WORKER_EXIT_CODE_H_
#define WEFT_WORKER_EXIT_CODE_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {
namespace worker {

enum class ExitCode {
  kOk = 0,
  kInternal = 1,       // a bug of Weft, or an error without a code of its own
  kUsage = 2,          // the command line itself is wrong
  kConfig = 3,         // files, values or workers do not fit together
  kPeerLost = 10,      // another worker is gone or cannot be reached
  kTimeout = 11,       // a deadline has passed
  kAuth = 12,          // certificates, identity or rights
  kResource = 13,      // memory, disk or a limit
  kDiverged = 14,      // the loss or a parameter is not finite
  kBadCheckpoint = 20  // a checkpoint is damaged or incomplete
};

// The code that WithExitCode attached to `status`; else the one for its status
// code.
ExitCode ExitCodeFor(const absl::Status& status);

// `status`, which is not ok, made to end the program with `code`.
absl::Status WithExitCode(absl::Status status, ExitCode code);

// kCancelled: the work was interrupted by `signal` and ended in good order; the
// program ends with 128 + signal, as a shell says it.
absl::Status EndedBySignal(int signal, absl::string_view message);
// The signal of EndedBySignal; nothing for other statuses.
std::optional<int> SignalOf(const absl::Status& status);

// `status`, which is not ok, made to say that starting the program again cannot
// help: it would fail in the same way, or has nothing left to do.
absl::Status WithoutRestart(absl::Status status);
// Whether starting again cannot help: by WithoutRestart, or by the exit code
// (usage, configuration, diverged, bad checkpoint; authentication, but for a
// connection that a peer closed, which it may have done for want of room).
bool IsFinal(const absl::Status& status);

// The variable in which `weft run` names a file to a rank: a program that ends
// by ExitIfError with what IsFinal makes it, and nothing is started again.
inline constexpr char kNoRestartFile[] = "WEFT_NO_RESTART_FILE";

// The same error with `part` before its message; keeps its exit code.
absl::Status OfPart(absl::string_view part, const absl::Status& status);

// "peer lost"; "stopped by a signal" from 128 on.
absl::string_view NameOf(ExitCode code);

}  // namespace worker

// If `status` is an error, writes "error: <message>" ("stopped: <message>" for
// EndedBySignal) to standard error and ends the process with its exit code,
// without running destructors of others' threads. `weft run` is told if the
// error IsFinal.
void ExitIfError(const absl::Status& status);
template <typename T>
void ExitIfError(const absl::StatusOr<T>& result) {
  ExitIfError(result.status());
}

}  // namespace weft

#endif  // WEFT_WORKER_EXIT_CODE_H_
