// ExitCode: what the programs' exit codes mean; docs/cli.md is the list for
// users.

#ifndef WEFT_WORKER_EXIT_CODE_H_
#define WEFT_WORKER_EXIT_CODE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {
namespace worker {

enum class ExitCode {
  kOk = 0,
  kInternal = 1,       // a bug of ours, or what no other code says
  kUsage = 2,          // the command line itself is wrong
  kConfig = 3,         // files, values or workers do not fit together
  kPeerLost = 10,      // another worker is gone or cannot be reached
  kTimeout = 11,       // a deadline has passed
  kAuth = 12,          // certificates, identity or rights
  kResource = 13,      // memory, disk or a limit
  kDiverged = 14,      // the loss or a parameter is not finite
  kBadCheckpoint = 20  // a checkpoint is damaged or incomplete
};

// The one that `status` carries by WithExitCode; else by its code.
ExitCode ExitCodeFor(const absl::Status& status);

// `status`, which is not ok, made to end the program with `code`.
absl::Status WithExitCode(absl::Status status, ExitCode code);

// The same error, saying of which part it is, and with its exit code.
absl::Status OfPart(absl::string_view part, const absl::Status& status);

// "peer lost".
absl::string_view NameOf(ExitCode code);

}  // namespace worker

// If `status` is an error, writes "error: <message>" to standard error and
// ends the process with its exit code, without running destructors of others'
// threads.
void ExitIfError(const absl::Status& status);
template <typename T>
void ExitIfError(const absl::StatusOr<T>& result) {
  ExitIfError(result.status());
}

}  // namespace weft

#endif  // WEFT_WORKER_EXIT_CODE_H_
