// RendezvousFile: see the header.

#include "weft/rendezvous/discovery/rendezvous_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {
namespace {

// The magic says the version; the XXH64 of what follows it comes next.
constexpr absl::string_view kMagic = "WEFTMEET";
constexpr size_t kHeadBytes = 16;
constexpr size_t kMaxBytes = 64 << 10;

absl::Status Failed(const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("rendezvous file ", path, ": ", what));
}

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("rendezvous file ", path, ": ", why));
}

// Whether this process may make and trust files there.
absl::Status CheckDirectory(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  struct stat found;
  if (stat(directory.c_str(), &found) != 0) return Failed(path, directory);
  const bool others_write = (found.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  const bool is_sticky = (found.st_mode & S_ISVTX) != 0;
  const bool is_ours = found.st_uid == geteuid() || found.st_uid == 0;
  if (others_write ? is_sticky : is_ours) return absl::OkStatus();
  return Refuse(path, absl::StrCat("others may write ", directory,
                                   "; wanted a directory of this user's with "
                                   "mode 0700, or a sticky one"));
}

struct flock WholeFile(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Whether some other open file holds the host's lock.
absl::StatusOr<bool> IsLocked(const std::string& path, int fd) {
  struct flock lock = WholeFile(F_WRLCK);
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0) {
    return Refuse(path,
                  absl::StrCat("locks do not work there (", strerror(errno),
                               "); wanted a file system that has them"));
  }
  return lock.l_type != F_UNLCK;
}

struct Found {
  v1::Meeting meeting;
  bool is_held = false;
};

absl::StatusOr<Found> Look(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat("rendezvous file ", path, " is not there yet"));
  }
  if (fd < 0) return Failed(path, "open");
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat found;
  if (fstat(fd, &found) != 0) return Failed(path, "stat");
  if (!S_ISREG(found.st_mode) || found.st_uid != geteuid() ||
      (found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Refuse(path, "wanted a file of this user's with mode 0600");
  }
  std::string bytes(kMaxBytes, '\0');
  const ssize_t n = pread(fd, &bytes[0], bytes.size(), 0);
  if (n < 0) return Failed(path, "read");
  bytes.resize(n);
  Found result;
  absl::StatusOr<v1::Meeting> meeting = ParseRendezvousFile(bytes);
  if (!meeting.ok()) {
    return absl::DataLossError(
        absl::StrCat("rendezvous file ", path, ": ", meeting.status().message(),
                     "; name another, or remove it: rm ", path));
  }
  result.meeting = *std::move(meeting);
  WEFT_ASSIGN_OR_RETURN(result.is_held, IsLocked(path, fd));
  return result;
}

absl::Status Stale(const std::string& path, const v1::Meeting& meeting) {
  return Refuse(
      path, absl::StrCat("it is stale: the coordinator of job \"",
                         meeting.job(), "\" at ", meeting.address(),
                         ", which left it, has ended; remove it: rm ", path));
}

// Why `path` could not be made, it being there.
absl::Status FileExistsError(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Found found, Look(path));
  if (!found.is_held) return Stale(path, found.meeting);
  return absl::AlreadyExistsError(
      absl::StrCat("rendezvous file ", path, ": the coordinator of job \"",
                   found.meeting.job(), "\" at ", found.meeting.address(),
                   " has it; end that one, or name "
                   "another file"));
}

}  // namespace

absl::StatusOr<v1::Meeting> ParseRendezvousFile(absl::string_view bytes) {
  v1::Meeting meeting;
  uint64_t hash = 0;
  if (bytes.size() >= kHeadBytes && bytes.substr(0, kMagic.size()) == kMagic) {
    const absl::string_view body = bytes.substr(kHeadBytes);
    std::memcpy(&hash, bytes.data() + kMagic.size(), sizeof(hash));
    if (XXH64(body.data(), body.size(), 0) == hash &&
        meeting.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
      return meeting;
    }
  }
  return absl::DataLossError("not one of Weft's");
}

absl::StatusOr<std::unique_ptr<RendezvousFile>> RendezvousFile::Create(
    std::string path, const std::string& job, const std::string& address) {
  WEFT_RETURN_IF_ERROR(CheckDirectory(path));
  v1::Meeting meeting;
  meeting.set_job(job);
  meeting.set_address(address);
  meeting.set_nonce(DrawIncarnation());
  const std::string body = meeting.SerializeAsString();
  const uint64_t hash = XXH64(body.data(), body.size(), 0);
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  bytes += body;

  const std::string making = absl::StrCat(path, ".", meeting.nonce());
  const int fd = open(making.c_str(),
                      O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failed(making, "create");
  std::unique_ptr<RendezvousFile> file(new RendezvousFile(making, fd));
  if (write(fd, bytes.data(), bytes.size()) !=
          static_cast<ssize_t>(bytes.size()) ||
      fsync(fd) != 0) {
    return Failed(making, "write");
  }
  struct flock lock = WholeFile(F_WRLCK);
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    return Refuse(path,
                  absl::StrCat("locks do not work there (", strerror(errno),
                               "); wanted a file system that has them"));
  }
  WEFT_ASSIGN_OR_RETURN(const Found probe, Look(making));
  if (!probe.is_held) {
    return Refuse(path,
                  "locks on it are not seen by others; wanted a file system "
                  "that has them");
  }
  // Fails if the name is taken, unlike rename.
  if (link(making.c_str(), path.c_str()) != 0) {
    return errno == EEXIST ? FileExistsError(path) : Failed(path, "link");
  }
  return std::unique_ptr<RendezvousFile>(
      new RendezvousFile(std::move(path), fcntl(fd, F_DUPFD_CLOEXEC, 0)));
}

RendezvousFile::~RendezvousFile() {
  // Before the lock goes, so that nobody takes it for stale.
  unlink(path_.c_str());
  close(fd_);
}

absl::StatusOr<std::string> ReadRendezvousFile(const std::string& path,
                                               const std::string& job) {
  WEFT_RETURN_IF_ERROR(CheckDirectory(path));
  WEFT_ASSIGN_OR_RETURN(const Found found, Look(path));
  if (!found.is_held) return Stale(path, found.meeting);
  if (found.meeting.job() == job) return found.meeting.address();
  return Refuse(
      path, absl::StrCat("it is of job \"", found.meeting.job(),
                         "\", not of job \"", job, "\": give each its own"));
}

}  // namespace weft::rendezvous
