// CoordinatorLog: see the header.

#include "weft/rendezvous/journal/coordinator_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/io/write_all.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

constexpr absl::string_view kMagic = "WEFTCRD2";
constexpr absl::string_view kNameAnother =
    "; name another file by --coordinator-log";

bool IsRegularFile(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

// False once another file has been renamed to `path`, or `path` removed.
bool IsAt(int fd, const std::string& path) {
  struct stat opened;
  struct stat found;
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &found) == 0 &&
         opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
}

bool IsRemoved(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) != 0 && errno == ENOENT;
}

// So that a file made or renamed in it is there after a crash.
absl::Status SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, directory);
  const int synced = fsync(fd);
  const int error = errno;
  close(fd);
  return synced == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorLog>> CoordinatorLog::Open(
    std::string path, Survives survives) {
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    const absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("coordinator log ", path));
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), kNameAnother));
  }
  std::unique_ptr<CoordinatorLog> log(
      new CoordinatorLog(std::move(path), fd, survives));
  if (!IsRegularFile(fd)) {  // another may be read for ever
    return absl::FailedPreconditionError(absl::StrCat(
        "coordinator log ", log->path_,
        ": wanted a file, found a device or a pipe", kNameAnother));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "coordinator log ", log->path_,
        ": another coordinator has it open; end that one", kNameAnother));
  }
  // Its last owner may have written it anew between the opening and the lock.
  if (!IsAt(fd, log->path_)) return Open(log->path_, survives);
  WEFT_RETURN_IF_ERROR(log->Read());
  return log;
}

CoordinatorLog::~CoordinatorLog() { close(fd_); }

absl::Status CoordinatorLog::Sync(int fd) const {
  if (survives_ == Survives::kProcess || fdatasync(fd) == 0) {
    return absl::OkStatus();
  }
  return Failed("fdatasync");
}

absl::Status CoordinatorLog::Read() {
  std::string all;
  char block[1 << 16];
  ssize_t n;
  while ((n = read(fd_, block, sizeof(block))) > 0) all.append(block, n);
  if (n < 0) return Failed("read");
  // A crash may have cut the very first write too.
  if (all.size() < kMagic.size() && kMagic.substr(0, all.size()) == all) {
    all = std::string(kMagic);
    if (lseek(fd_, 0, SEEK_SET) < 0) return Failed("seek");
    WEFT_RETURN_IF_ERROR(Write(fd_, kMagic));
    WEFT_RETURN_IF_ERROR(Sync(fd_));
    if (survives_ == Survives::kHost) {
      WEFT_RETURN_IF_ERROR(SyncDirectoryOf(path_));
    }
  }
  absl::string_view rest = all;
  if (rest.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError(absl::StrCat("coordinator log ", path_,
                                            ": not a log of Weft's coordinator",
                                            kNameAnother));
  }
  rest.remove_prefix(kMagic.size());
  if (const absl::Status taken = TakeRecords(&rest, &history_); !taken.ok()) {
    return absl::DataLossError(
        absl::StrCat("coordinator log ", path_, ": ", taken.message(),
                     " at byte ", all.size() - rest.size(),
                     "; move the file away to begin with an empty one"));
  }
  bytes_ = all.size() - rest.size();
  if (ftruncate(fd_, bytes_) != 0) return Failed("truncate");
  if (lseek(fd_, bytes_, SEEK_SET) < 0) return Failed("seek");
  return absl::OkStatus();
}

absl::Status CoordinatorLog::Append(const std::vector<v1::LogRecord>& records) {
  if (is_broken_) {
    return absl::FailedPreconditionError(
        absl::StrCat("coordinator log ", path_, ": an earlier write failed"));
  }
  // A cleaner of old files, say. What is open is right as before, but nobody
  // would find it after this process.
  if (IsRemoved(path_)) Restore().IgnoreError();
  const std::string frames = FrameRecords(records);
  absl::Status status = Write(fd_, frames);
  if (status.ok()) status = Sync(fd_);
  // The content on disk is unknown until it is read again.
  is_broken_ = !status.ok();
  if (status.ok()) bytes_ += frames.size();
  return status;
}

absl::Status CoordinatorLog::Restore() {
  std::string contents(bytes_, '\0');
  for (int64_t done = 0; done < bytes_;) {
    const ssize_t n = pread(fd_, &contents[done], bytes_ - done, done);
    if (n <= 0) return Failed("read");
    done += n;
  }
  return Replace(contents);
}

absl::Status CoordinatorLog::Rewrite(
    const std::vector<v1::LogRecord>& records) {
  return Replace(absl::StrCat(kMagic, FrameRecords(records)));
}

absl::Status CoordinatorLog::Replace(const std::string& contents) {
  const std::string path = path_ + ".new";
  const int fd = open(
      path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Failed("open the new file of");
  absl::Status status = Write(fd, contents);
  if (status.ok()) status = Sync(fd);
  if (status.ok() && flock(fd, LOCK_EX | LOCK_NB) != 0) status = Failed("lock");
  if (status.ok() && rename(path.c_str(), path_.c_str()) != 0) {
    status = Failed("rename");
  }
  if (!status.ok()) {
    close(fd);
    unlink(path.c_str());
    return status;
  }
  close(std::exchange(fd_, fd));
  bytes_ = contents.size();
  return SyncDirectoryOf(path_);
}

absl::Status CoordinatorLog::Write(int fd, absl::string_view bytes) const {
  errno = WriteAll(fd, bytes);
  return errno == 0 ? absl::OkStatus() : Failed("write");
}

absl::Status CoordinatorLog::Failed(absl::string_view what) const {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("coordinator log: cannot ", what, " ", path_));
}

}  // namespace weft::rendezvous
