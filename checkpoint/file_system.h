// FileSystem: the few file operations that a checkpoint is made of.
//
// An interface, so that a test can fail each of them, byte by byte, and take
// away what a power cut would (fake_file_system.h).
//
// Errors name the path. A full disk is kResourceExhausted, an unreadable one
// kDataLoss, a missing file kNotFound.
//
// Thread-safety: thread-safe.

#ifndef WEFT_CHECKPOINT_FILE_SYSTEM_H_
#define WEFT_CHECKPOINT_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::checkpoint {

// A file being written. Its destructor closes it; what was not synced may be
// lost. Thread-safety: one thread at a time.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // On return all appended bytes survive a power cut.
  virtual absl::Status Sync() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Fails with kAlreadyExists if there is one.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) = 0;

  // kResourceExhausted if it is larger than `max_bytes`. Follows no link.
  virtual absl::StatusOr<std::string> Read(const std::string& path,
                                           int64_t max_bytes) = 0;
  // A piece: `most` bytes from `offset` on, or up to the file's end. Follows no
  // link.
  virtual absl::StatusOr<std::string> ReadAt(const std::string& path,
                                             int64_t offset, int64_t most) = 0;
  virtual absl::StatusOr<int64_t> Size(const std::string& path) = 0;

  // Names in a directory, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) = 0;

  // Makes the directory and the parents that are missing. It is no error if the
  // directory exists; kFailedPrecondition if something else has that name. On
  // return what was made survives a power cut.
  virtual absl::Status MakeDirectories(const std::string& path) = 0;

  // Replaces a file at `to`; a directory that has files it does not replace.
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;

  // A file or an empty directory; not an error if there is none.
  virtual absl::Status Remove(const std::string& path) = 0;

  // On return the names in `directory` survive a power cut.
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
};

// The system's own. Files are 0600 and directories 0700 before the umask.
FileSystem& LocalFiles();

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_FILE_SYSTEM_H_
