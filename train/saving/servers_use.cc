#include "weft/train/saving/servers_use.h"

#include "weft/worker/exit_code.h"

namespace weft::train {

absl::Status CheckServersUse(const std::string& directory, ps::Client& client) {
  const absl::Status usable = client.CheckCheckpointDirectory(directory);
  return absl::IsPermissionDenied(usable)
             ? worker::WithExitCode(usable, worker::ExitCode::kConfig)
             : usable;
}

}  // namespace weft::train
