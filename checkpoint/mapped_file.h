// MappedFile: a file's bytes as they lie on the disk, read through a mapping.
//
// Files that are read this way are replaced, never written to: a new one is
// written beside it and renamed into its place. A mapping keeps the old file
// until it goes, whatever happens to the name. Where a file is written to in
// place all the same, CheckUnchanged says so; where it is cut while somebody
// reads beyond its new end, the system ends the process (SIGBUS), which no
// check before the read can prevent.
//
// Thread-safety: immutable.

#ifndef WEFT_CHECKPOINT_MAPPED_FILE_H_
#define WEFT_CHECKPOINT_MAPPED_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::checkpoint {

class MappedFile {
 public:
  // What tells one content of a path from another.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t bytes = 0;
    int64_t modified_ns = 0;  // since 1970

    friend bool operator==(const Identity& a, const Identity& b) {
      return a.device == b.device && a.inode == b.inode && a.bytes == b.bytes &&
             a.modified_ns == b.modified_ns;
    }
    friend bool operator!=(const Identity& a, const Identity& b) {
      return !(a == b);
    }
  };

  // Links are followed. kNotFound, kPermissionDenied, and kInvalidArgument for
  // what is no regular file; all name the path.
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(
      const std::string& path);
  // The identity of the file that has this path now.
  static absl::StatusOr<Identity> IdentityOf(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const Identity& identity() const { return identity_; }
  // The content; valid as long as this lives.
  absl::string_view bytes() const {
    return {data_, static_cast<size_t>(identity_.bytes)};
  }

  // kDataLoss, with what was wanted and found, if the file (not its path) was
  // written to or cut since Open.
  absl::Status CheckUnchanged() const;

 private:
  MappedFile(std::string path, int fd, const Identity& identity,
             const char* data)
      : path_(std::move(path)), fd_(fd), identity_(identity), data_(data) {}

  const std::string path_;
  const int fd_;
  const Identity identity_;
  const char* const data_;
};

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_MAPPED_FILE_H_
