#include "weft/net/edge/socket_directory.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/identity.h"

namespace weft::net {
namespace {

// Where the directories of this user's jobs lie.
std::string Base() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && runtime[0] == '/' && access(runtime, W_OK) == 0
             ? absl::StrCat(runtime, "/weft")
             : absl::StrCat("/tmp/weft-", geteuid());
}

absl::Status MakePrivateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot make the socket directory ", path, ": ", strerror(errno),
        "; choose --listen=unix:/path or host:port"));
  }
  return CheckSocketDirectory(path);
}

}  // namespace

absl::Status CheckSocketDirectory(const std::string& directory) {
  struct stat found;
  // Not followed: a link could be turned elsewhere after the check.
  if (lstat(directory.c_str(), &found) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, directory);
    return absl::Status(status.code(),
                        absl::StrCat("socket directory ", status.message(),
                                     ". Try: mkdir -m 700 ", directory));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket directory ", directory, " is not a directory"));
  }
  if (found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    // Not to change its mode: it may be /tmp or /etc, which are for others too.
    return absl::FailedPreconditionError(absl::StrFormat(
        "socket directory %s: wanted mode 0700 and user %d, found mode %04o "
        "and user %d; others could reach the sockets in it. Try: one "
        "of your own, made by mkdir -m 700",
        directory, geteuid(), found.st_mode & 07777, found.st_uid));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SocketDirectoryPath(absl::string_view job) {
  WEFT_RETURN_IF_ERROR(ValidateJob(job));
  return absl::StrCat(Base(), "/", job);
}

absl::StatusOr<std::string> DefaultSocketDirectory(absl::string_view job) {
  WEFT_ASSIGN_OR_RETURN(std::string directory, SocketDirectoryPath(job));
  WEFT_RETURN_IF_ERROR(MakePrivateDirectory(Base()));
  WEFT_RETURN_IF_ERROR(MakePrivateDirectory(directory));
  return directory;
}

}  // namespace weft::net
