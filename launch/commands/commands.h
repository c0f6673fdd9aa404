// Commands: what the subcommands of `weft` do. Each is given its own command
// line, argv[0] being its name, and returns the program's exit code, or the
// error that is to be shown.

#ifndef WEFT_LAUNCH_COMMANDS_COMMANDS_H_
#define WEFT_LAUNCH_COMMANDS_COMMANDS_H_

#include "absl/status/statusor.h"

namespace weft::launch {

absl::StatusOr<int> RunCommand(int argc, char** argv);
absl::StatusOr<int> CertsCommand(int argc, char** argv);
absl::StatusOr<int> CoordinatorCommand(int argc, char** argv);
absl::StatusOr<int> HealthCommand(int argc, char** argv);
absl::StatusOr<int> ServersCommand(int argc, char** argv);
absl::StatusOr<int> StatusCommand(int argc, char** argv);
absl::StatusOr<int> CallCommand(int argc, char** argv);
absl::StatusOr<int> DumpCommand(int argc, char** argv);
absl::StatusOr<int> CkptCommand(int argc, char** argv);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_COMMANDS_H_
