#include "weft/transport/shm/memory_budget.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/socket_directory.h"

namespace weft::transport {
namespace {

constexpr char kFile[] = "/memory.budget";

// So often it tries again beside another process that has not checked its own
// yet.
constexpr int kAttempts = 64;
constexpr absl::Duration kBetweenTrials = absl::Microseconds(50);

// Accounts of others that a newcomer looks at before it appends one.
constexpr int kProbes = 8;
// That may append an account at the same time.
constexpr int kNewcomers = 4096;

// What an account can hold: 256 TiB.
constexpr int64_t kMostUnits = UINT32_MAX;

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

bool Lock(int fd, int64_t index, short type) {
  struct flock lock = LockOf(index, index + 1, type);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// Another MemoryBudget, of this process or another, has account `index`.
bool IsLocked(int fd, int64_t index) {
  struct flock lock = LockOf(index, index + 1, F_WRLCK);
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string MebibytesOf(int64_t units) {
  return absl::StrCat(units * MemoryBudget::kUnitBytes / 1048576.0, " MiB");
}

bool LockPresence(int fd, short type) { return Lock(fd, kPresence, type); }

// It has not been removed since it was opened.
bool IsLinked(int fd) {
  struct stat file;
  return fstat(fd, &file) == 0 && file.st_nlink > 0;
}

int64_t CountAccounts(int fd, int64_t account_bytes) {
  struct stat file;
  return fstat(fd, &file) == 0 ? int64_t{file.st_size} / account_bytes : 0;
}

// Locks an account that nobody has; -1 if the file takes no locks. Those of
// workers that have ended are used again, so that the file does not grow with
// each worker of a long job.
int64_t ClaimAccount(int fd, int64_t account_bytes) {
  const int64_t count = CountAccounts(fd, account_bytes);
  for (int i = 0; i < std::min<int64_t>(kProbes, count); ++i) {
    const int64_t index = (getpid() + i) % count;
    if (Lock(fd, index, F_WRLCK)) return index;
  }
  for (int64_t index = count; index < count + kNewcomers; ++index) {
    if (Lock(fd, index, F_WRLCK)) return index;
  }
  return -1;
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
      const int64_t index = ClaimAccount(fd.get(), sizeof(Account));
      const Account empty;
      if (index < 0 || pwrite(fd.get(), &empty, sizeof(empty),
                              index * sizeof(empty)) != sizeof(empty)) {
        return absl::UnavailableError(absl::StrCat(
            "shared memory: cannot write ", path, ": ", strerror(errno)));
      }
      return absl::WrapUnique(
          new MemoryBudget(std::move(fd), directory, bytes, index));
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

absl::StatusOr<MemoryBudget::Reservation> MemoryBudget::Reserve(int64_t bytes) {
  WEFT_CHECK(bytes > 0);
  const int64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  int64_t used = 0;
  MutexLock lock(mu_);
  if (units <= kMostUnits - own_ && TryReserve(units, &used)) {
    return Reservation(*this, units);
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job's workers on this host have ", MebibytesOf(used), " of the ",
      MebibytesOf(units_),
      " of shared memory that they may have together (counted in ", directory_,
      "), and ", MebibytesOf(units),
      " more are wanted; raise --shared-memory-budget of all of them"));
}

// If two write their trials before either reads, each sees the other's:
// together they never pass what the budget has. Where both found too little,
// each withdraws and tries again; nobody is refused because of a trial that may
// be withdrawn, unless its process stopped in the middle.
bool MemoryBudget::TryReserve(int64_t units, int64_t* used) {
  for (int i = 0; i < kAttempts; ++i) {
    Write(units);
    const Others before = ReadOthers();
    if (before.units + before.trial + own_ + units <= units_) {
      own_ += units;
      Write(0);
      return true;
    }
    Write(0);
    const Others others = ClearAndReadOthers();
    *used = others.units + own_;
    if (*used + units > units_ && others.trial == 0) return false;
    absl::SleepFor(kBetweenTrials * (1 + (getpid() + i) % 4));
  }
  return false;
}

void MemoryBudget::Release(int64_t units) {
  MutexLock lock(mu_);
  own_ -= units;
  Write(0);
}

int64_t MemoryBudget::used_bytes() {
  MutexLock lock(mu_);
  return (ClearAndReadOthers().units + own_) * kUnitBytes;
}

void MemoryBudget::Write(int64_t trial) const {
  const Account account = {static_cast<uint32_t>(trial),
                           static_cast<uint32_t>(own_)};
  // It lies within the file, in memory: it fails only with the disk, and the
  // bound is then too low or too high for this process alone.
  (void)!pwrite(fd_.get(), &account, sizeof(account), index_ * sizeof(account));
  // Written before the others are read.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::vector<MemoryBudget::Account> MemoryBudget::ReadAccounts() const {
  std::vector<Account> accounts(CountAccounts(fd_.get(), sizeof(Account)));
  const int64_t bytes = accounts.size() * sizeof(Account);
  const int64_t found = pread(fd_.get(), accounts.data(), bytes, 0);
  accounts.resize(std::max<int64_t>(found, 0) / sizeof(Account));
  return accounts;
}

MemoryBudget::Others MemoryBudget::ReadOthers() const {
  const std::vector<Account> accounts = ReadAccounts();
  Others others;
  for (int64_t i = 0; i < static_cast<int64_t>(accounts.size()); ++i) {
    if (i == index_) continue;
    others.units += accounts[i].units;
    others.trial += accounts[i].trial;
  }
  return others;
}

MemoryBudget::Others MemoryBudget::ClearAndReadOthers() const {
  const std::vector<Account> accounts = ReadAccounts();
  const Account empty;
  for (int64_t i = 0; i < static_cast<int64_t>(accounts.size()); ++i) {
    const bool is_empty = accounts[i].units == 0 && accounts[i].trial == 0;
    if (i == index_ || is_empty || IsLocked(fd_.get(), i)) continue;
    if (!Lock(fd_.get(), i, F_WRLCK)) continue;
    (void)!pwrite(fd_.get(), &empty, sizeof(empty), i * sizeof(empty));
    Lock(fd_.get(), i, F_UNLCK);
  }
  return ReadOthers();
}

}  // namespace weft::transport
