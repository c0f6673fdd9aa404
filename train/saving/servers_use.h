// CheckServersUse: whether parameter servers can save in a directory.

#ifndef WEFT_TRAIN_SAVING_SERVERS_USE_H_
#define WEFT_TRAIN_SAVING_SERVERS_USE_H_

#include <string>

#include "absl/status/status.h"
#include "weft/ps/client.h"

namespace weft::train {

// The errors of Client::CheckCheckpointDirectory; with ExitCode kConfig where
// servers were started with another directory.
absl::Status CheckServersUse(const std::string& directory, ps::Client& client);

}  // namespace weft::train

#endif  // WEFT_TRAIN_SAVING_SERVERS_USE_H_
