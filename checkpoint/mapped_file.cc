#include "weft/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {
namespace {

absl::Status FromErrno(int error, absl::string_view what,
                       absl::string_view path) {
  return absl::Status(
      absl::ErrnoToStatusCode(error),
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

MappedFile::Identity IdentityIn(const struct stat& stat) {
  MappedFile::Identity identity;
  identity.device = stat.st_dev;
  identity.inode = stat.st_ino;
  identity.bytes = stat.st_size;
  identity.modified_ns =
      static_cast<int64_t>(stat.st_mtim.tv_sec) * 1000000000 +
      stat.st_mtim.tv_nsec;
  return identity;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Open(
    const std::string& path) {
  // A pipe without a writer would make open() wait.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FromErrno(errno, "open", path);
  struct stat stat = {};
  void* data = nullptr;
  const absl::Status mapped = [&]() -> absl::Status {
    if (fstat(fd, &stat) != 0) return FromErrno(errno, "read", path);
    if (!S_ISREG(stat.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read ", path, ": wanted a file"));
    }
    if (stat.st_size == 0) return absl::OkStatus();  // nothing to map
    data = mmap(nullptr, stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data != MAP_FAILED) return absl::OkStatus();
    return FromErrno(errno, "map", path);
  }();
  if (!mapped.ok()) {
    close(fd);
    return mapped;
  }
  return std::unique_ptr<const MappedFile>(
      new MappedFile(path, fd, IdentityIn(stat), static_cast<char*>(data)));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), identity_.bytes);
  close(fd_);
}

absl::StatusOr<MappedFile::Identity> MappedFile::IdentityOf(
    const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return FromErrno(errno, "find", path);
  return IdentityIn(found);
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat stat = {};
  if (fstat(fd_, &stat) != 0) return FromErrno(errno, "read", path_);
  const Identity now = IdentityIn(stat);
  if (now == identity_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path_, " was written to while it was read: it had ", identity_.bytes,
      " bytes, changed at ", identity_.modified_ns, " ns, and has ", now.bytes,
      ", changed at ", now.modified_ns,
      "; replace such a file by renaming another onto it"));
}

}  // namespace weft::checkpoint
