// CheckpointRoot: the directory below which a server writes and reads
// checkpoints, whoever asks.
//
// Paths come off the wire, from any worker that may ask for a checkpoint. They
// are followed to where they lead, through "..", links and the working
// directory, and only then compared with the root.

#ifndef WEFT_PS_CHECKPOINT_ROOT_H_
#define WEFT_PS_CHECKPOINT_ROOT_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace weft::ps {

// Thread-safety: immutable.
class CheckpointRoot {
 public:
  // `path` need not be there yet; empty: there is no root.
  explicit CheckpointRoot(std::string path) : path_(std::move(path)) {}

  // The path without links to which `directory` leads: the root, or below it.
  // Makes no directory.
  //   kFailedPrecondition  there is no root; names the flag that sets one
  //   kPermissionDenied    it leads elsewhere
  //   kNotFound            no such directory
  absl::StatusOr<std::string> Resolve(const std::string& directory) const;

 private:
  const std::string path_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CHECKPOINT_ROOT_H_
