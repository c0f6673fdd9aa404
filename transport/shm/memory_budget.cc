#include "weft/transport/shm/memory_budget.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/socket_directory.h"

namespace weft::transport {
namespace {

constexpr char kFile[] = "/memory.budget";

// Of attempts in which another process was faster.
constexpr int kAttempts = 64;

// Each process that has the file open holds a read lock on this byte, which
// stands for no memory; whoever removes the file holds a write lock on it.
constexpr int64_t kPresence = int64_t{1} << 62;
// While another process removes the file, which takes microseconds.
constexpr int kOpenAttempts = 1000;
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(1);

struct flock LockOf(int64_t begin, int64_t end, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = begin;
  lock.l_len = end - begin;
  return lock;
}

std::string MebibytesOf(int64_t units) {
  return absl::StrCat(units * MemoryBudget::kUnitBytes / 1048576.0, " MiB");
}

bool LockPresence(int fd, short type) {
  struct flock lock = LockOf(kPresence, kPresence + 1, type);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// It has not been removed since it was opened.
bool IsLinked(int fd) {
  struct stat file;
  return fstat(fd, &file) == 0 && file.st_nlink > 0;
}

}  // namespace

int64_t MemoryBudget::DefaultBytes() {
  const int64_t bytes =
      int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)} / 2;
  return std::max(bytes, kUnitBytes);
}

absl::StatusOr<std::shared_ptr<MemoryBudget>> MemoryBudget::Open(
    const std::string& directory, int64_t bytes) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: wants a budget above 0 bytes, found ", bytes));
  }
  WEFT_RETURN_IF_ERROR(net::CheckSocketDirectory(directory));
  const std::string path = directory + kFile;
  for (int i = 0; i < kOpenAttempts; ++i) {
    net::Descriptor fd(
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd.get() < 0) {
      return absl::UnavailableError(absl::StrCat("shared memory: cannot open ",
                                                 path, ": ", strerror(errno)));
    }
    if (LockPresence(fd.get(), F_RDLCK) && IsLinked(fd.get())) {
      return std::shared_ptr<MemoryBudget>(
          new MemoryBudget(std::move(fd), directory, bytes));
    }
    absl::SleepFor(kBetweenAttempts);
  }
  return absl::UnavailableError(absl::StrCat(
      "shared memory: another process keeps ", path,
      " locked; end it, or remove the file once no worker of the job runs"));
}

void MemoryBudget::RemoveUnused(const std::string& directory) {
  const std::string path = directory + kFile;
  const net::Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd.get() < 0 || !LockPresence(fd.get(), F_WRLCK)) return;
  if (IsLinked(fd.get())) unlink(path.c_str());
}

MemoryBudget::~MemoryBudget() {
  fd_ = net::Descriptor();
  RemoveUnused(directory_);
}

absl::StatusOr<std::shared_ptr<const void>> MemoryBudget::Reserve(
    int64_t bytes) {
  WEFT_CHECK(bytes > 0);
  const int64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  int64_t left = 0;
  MutexLock lock(mu_);
  for (int i = 0; i < kAttempts; ++i) {
    const std::vector<Range> free = FindFree();
    left = 0;
    for (const Range& range : free) left += range.end - range.begin;
    if (left < units) break;
    std::vector<Range> taken;
    if (!Take(free, units, &taken)) continue;
    return std::shared_ptr<const void>(
        nullptr, [self = shared_from_this(), taken](const void*) {
          self->Release(taken);
        });
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job's workers on this host have ", MebibytesOf(units_ - left),
      " of the ", MebibytesOf(units_),
      " of shared memory that they may have together (counted in ", directory_,
      "), and ", MebibytesOf(units),
      " more are wanted; raise --shared-memory-budget of all of them"));
}

int64_t MemoryBudget::used_bytes() {
  MutexLock lock(mu_);
  int64_t used = units_;
  for (const Range& range : FindFree()) used -= range.end - range.begin;
  return used * kUnitBytes;
}

std::vector<MemoryBudget::Range> MemoryBudget::FindFree() {
  std::vector<Range> free;
  int64_t begin = 0;
  for (const auto& [own_begin, own_end] : own_) {
    AddFree({begin, own_begin}, &free);
    begin = own_end;
  }
  AddFree({begin, units_}, &free);
  return free;
}

// The kernel names any one lock within the range, and none of this process.
void MemoryBudget::AddFree(Range range, std::vector<Range>* free) const {
  std::vector<Range> left = {range};
  while (!left.empty()) {
    const Range next = left.back();
    left.pop_back();
    if (next.begin >= next.end) continue;
    struct flock lock = LockOf(next.begin, next.end, F_WRLCK);
    if (fcntl(fd_.get(), F_OFD_GETLK, &lock) != 0) continue;
    if (lock.l_type == F_UNLCK) {
      free->push_back(next);
      continue;
    }
    const int64_t end =
        lock.l_len == 0 ? next.end : int64_t{lock.l_start} + lock.l_len;
    left.push_back({next.begin, std::min(int64_t{lock.l_start}, next.end)});
    left.push_back({std::max(end, next.begin), next.end});
  }
}

bool MemoryBudget::Take(const std::vector<Range>& free, int64_t units,
                        std::vector<Range>* taken) {
  for (const Range& range : free) {
    if (units == 0) break;
    const int64_t end = range.begin + std::min(units, range.end - range.begin);
    struct flock lock = LockOf(range.begin, end, F_WRLCK);
    if (fcntl(fd_.get(), F_OFD_SETLK, &lock) != 0) {
      Unlock(*taken);
      return false;
    }
    taken->push_back({range.begin, end});
    own_[range.begin] = end;
    units -= end - range.begin;
  }
  return true;
}

void MemoryBudget::Release(const std::vector<Range>& ranges) {
  MutexLock lock(mu_);
  Unlock(ranges);
}

void MemoryBudget::Unlock(const std::vector<Range>& ranges) {
  for (const Range& range : ranges) {
    struct flock lock = LockOf(range.begin, range.end, F_UNLCK);
    (void)fcntl(fd_.get(), F_OFD_SETLK, &lock);
    own_.erase(range.begin);
  }
}

}  // namespace weft::transport
