#include "weft/memory/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"

namespace weft::memory {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Failed(const char* call, int64_t bytes, int error) {
  const std::string message = absl::StrCat("Segment: ", call, " of ", bytes,
                                           " bytes: ", strerror(error));
  return error == ENOMEM || error == ENOSPC || error == EMFILE ||
                 error == ENFILE
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

// fallocate ends early when a signal comes.
int Fallocate(int fd, int64_t offset, int64_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  return result;
}

// Memory that the system can still give without the OOM killer.
int64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes;
  while (meminfo >> name >> kilobytes >> unit) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  struct sysinfo system;
  if (sysinfo(&system) != 0) return 0;
  return static_cast<int64_t>(system.freeram) * system.mem_unit;
}

// Whether the system has so many bytes. It is asked anew where they are more
// than a small part of what it had, and ten times a second: its answer costs as
// much as the pages of a small segment, and a worker that meets many others
// makes one for each.
absl::Status CheckAvailable(int64_t bytes) {
  constexpr int64_t kSmallPart = 1024;
  constexpr int64_t kValidNs = 100'000'000;
  static std::atomic<int64_t> available{0};
  static std::atomic<int64_t> asked_at{std::numeric_limits<int64_t>::min() / 2};
  const int64_t now = SteadyClock().Now().nanoseconds();
  if (now - asked_at.load() < kValidNs &&
      bytes < available.load() / kSmallPart) {
    return absl::OkStatus();
  }
  const int64_t found = AvailableBytes();
  available = found;
  asked_at = now;
  if (bytes <= found) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("Segment: wants ", bytes, " bytes of shared memory, has ",
                   found, " available"));
}

// Gives these bytes of `fd` their pages. A memfd has no limit of its own: asked
// for more than there is, the kernel would kill processes until it could.
absl::Status AllocatePages(int fd, int64_t offset, int64_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckAvailable(bytes));
  if (Fallocate(fd, offset, bytes) != 0)
    return Failed("fallocate", bytes, errno);
  return absl::OkStatus();
}

// A size that is not sealed could shrink under us, which ends in SIGBUS.
absl::Status CheckSealed(int fd, int64_t bytes, int64_t allocated) {
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Segment::FromFd: wants a memfd whose size is sealed, found ",
        seals < 0 ? "something else" : "one that is not"));
  }
  struct stat found;
  if (fstat(fd, &found) != 0) return Failed("fstat", bytes, errno);
  if (found.st_size < bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Segment::FromFd: wants ", bytes, " bytes, found ", found.st_size));
  }
  // Holes would be filled at first touch, or fail to be, with SIGBUS. Pages
  // that are there stay; those that nobody has touched yet the kernel clears
  // now.
  if (int64_t{found.st_blocks} * 512 >= bytes) return absl::OkStatus();
  return AllocatePages(fd, 0, allocated);
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(int64_t bytes,
                                        const std::string& name) {
  return CreateInPart(bytes, bytes, name);
}

absl::StatusOr<Segment> Segment::CreateInPart(int64_t bytes, int64_t allocated,
                                              const std::string& name) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Segment: wants a size above 0, found ", bytes));
  }
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create", bytes, errno);
  Segment segment(fd);
  WEFT_RETURN_IF_ERROR(AllocatePages(fd, 0, allocated));
  if (allocated < bytes && ftruncate(fd, bytes) != 0) {
    return Failed("ftruncate", bytes, errno);
  }
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    return Failed("sealing", bytes, errno);
  }
  WEFT_RETURN_IF_ERROR(segment.Map(bytes));
  return segment;
}

absl::StatusOr<Segment> Segment::FromFd(int fd, int64_t bytes) {
  return FromFdInPart(fd, bytes, bytes);
}

absl::StatusOr<Segment> Segment::FromFdInPart(int fd, int64_t bytes,
                                              int64_t allocated) {
  Segment segment(fd);
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Segment: wants a size above 0, found ", bytes));
  }
  WEFT_RETURN_IF_ERROR(CheckSealed(fd, bytes, allocated));
  WEFT_RETURN_IF_ERROR(segment.Map(bytes));
  return segment;
}

absl::Status Segment::Allocate(int64_t offset, int64_t bytes) const {
  // Asks the system how much there is only where some may be missing.
  if (is_allocated()) return absl::OkStatus();
  return AllocatePages(fd_, offset, bytes);
}

bool Segment::is_allocated() const {
  struct stat found;
  return fstat(fd_, &found) == 0 &&
         int64_t{found.st_blocks} * 512 >= size_bytes_;
}

absl::Status Segment::Map(int64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) return Failed("mmap", bytes, errno);
  data_ = static_cast<std::byte*>(data);
  size_bytes_ = bytes;
  return absl::OkStatus();
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace weft::memory
