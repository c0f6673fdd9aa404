// RunLock: see the header.

#include "weft/launch/run/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"

namespace weft::launch {
namespace {

constexpr absl::string_view kBegin = "coordinator-";
constexpr absl::string_view kEnd = ".lock";
constexpr absl::Duration kLookTime = absl::Milliseconds(500);

std::string PathOf(const std::string& directory,
                   absl::string_view coordinator) {
  const uint64_t hash = XXH3_64bits(coordinator.data(), coordinator.size());
  return absl::StrCat(directory, "/", kBegin, absl::Hex(hash), kEnd);
}

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Also where the file system has no locks.
bool TryLock(int fd) {
  struct flock lock = WholeFile();
  return fcntl(fd, F_SETLK, &lock) == 0 || (errno != EACCES && errno != EAGAIN);
}

// Whether the file is still at `path`: who had the lock may have removed it.
bool IsAt(int fd, const std::string& path) {
  struct stat opened, found;
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &found) == 0 &&
         opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
}

absl::Status Held(int fd, absl::string_view job,
                  absl::string_view coordinator) {
  struct flock lock = WholeFile();
  const bool is_known = fcntl(fd, F_GETLK, &lock) == 0 &&
                        lock.l_type != F_UNLCK && lock.l_pid > 0;
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job, " runs already on this host: another weft run",
      is_known ? absl::StrCat(", process ", lock.l_pid, ",") : "",
      " has started its coordinator at ", coordinator,
      "; wait until that has ended, or end it, or give this one a --job of its "
      "own"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Take(
    const std::function<absl::StatusOr<std::string>()>& make_directory,
    absl::string_view job, absl::string_view coordinator) {
  const Instant give_up = SteadyClock().Now() + kLookTime;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::string directory, make_directory());
    if (directory.empty()) return nullptr;
    const std::string path = PathOf(directory, coordinator);
    const int fd =
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    const bool is_last = SteadyClock().Now() >= give_up;
    if (fd < 0) {
      // Another may have removed the directory.
      if (errno == ENOENT && !is_last) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    }
    std::unique_ptr<RunLock> lock(new RunLock(fd));
    if (TryLock(fd)) {
      if (IsAt(fd, path)) return lock;
    } else if (is_last) {
      return Held(fd, job, coordinator);
    }
    usleep(10000);
  }
}

RunLock::~RunLock() { close(fd_); }

void RemoveUnheldRunLock(const std::string& path) {
  const absl::string_view name =
      absl::string_view(path).substr(path.rfind('/') + 1);
  if (!absl::StartsWith(name, kBegin) || !absl::EndsWith(name, kEnd)) return;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  const absl::Cleanup closer = [fd] { close(fd); };
  if (TryLock(fd) && IsAt(fd, path)) unlink(path.c_str());
}

}  // namespace weft::launch
