#include "weft/net/edge/socket_file.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "weft/net/edge/descriptor.h"

namespace weft::net {
namespace {

std::string KindOf(const struct stat& file) {
  switch (file.st_mode & S_IFMT) {
    case S_IFREG:
      return absl::StrCat("a regular file of ", file.st_size, " bytes");
    case S_IFDIR:
      return "a directory";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a FIFO";
    default:
      return "a device";
  }
}

absl::Status NotReplaced(const std::string& path, const std::string& what) {
  return absl::AlreadyExistsError(absl::StrCat(
      "wanted to make a socket at ", path, "; ", what,
      " is there, which is not replaced: move it, or choose another path"));
}

}  // namespace

absl::Status RemoveAbandonedSocket(const std::string& path, int type) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) return absl::OkStatus();
  if (!S_ISSOCK(file.st_mode)) return NotReplaced(path, KindOf(file));
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", path, " is longer than ",
                     sizeof name.sun_path - 1, " bytes"));
  }
  memcpy(name.sun_path, path.data(), path.size());
  const Descriptor probe(
      socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // A socket whose process has ended refuses connections.
  const int connected = connect(
      probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const int error = connected == 0 ? 0 : errno;
  if (error == EPROTOTYPE) {
    return NotReplaced(path, "a socket of another type");
  }
  if (error != ECONNREFUSED && error != ENOENT) {
    return absl::UnavailableError(
        absl::StrCat("wanted to make a socket at ", path,
                     "; it is in use by another process"));
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

void RemoveSocket(const std::string& path) {
  struct stat file;
  if (lstat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode)) {
    unlink(path.c_str());
  }
}

std::optional<FileId> FileIdOf(const std::string& path) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) return std::nullopt;
  return FileId(file.st_dev, file.st_ino);
}

void RemoveIfSame(const std::string& path, const std::optional<FileId>& made) {
  if (made.has_value() && FileIdOf(path) == made) unlink(path.c_str());
}

}  // namespace weft::net
