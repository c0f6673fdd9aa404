// MemoryBudget: bounds the shared memory that the processes of one job have on
// this host, all together.
//
// It is counted in a file in the job's directory of sockets: each MemoryBudget
// has an account there, which only it writes, and a lock that says that it
// lives. The kernel releases the lock of a process that ends, so whoever finds
// the budget used up first clears the accounts of processes that were killed.
//
// A reservation is written first and checked afterwards against the sum of all
// accounts, so nobody waits for another process. Cost: two small writes and one
// read of 8 bytes for each account.

#ifndef WEFT_TRANSPORT_SHM_MEMORY_BUDGET_H_
#define WEFT_TRANSPORT_SHM_MEMORY_BUDGET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/descriptor.h"

namespace weft::transport {

// Thread-safety: thread-safe.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  static constexpr int64_t kUnitBytes = int64_t{64} << 10;

  // Half of the host's memory.
  static int64_t DefaultBytes();

  // Shared with all that open one in `directory`, which is of mode 0700.
  // `bytes` is how much this process lets all of them have. kInvalidArgument
  // unless it is above 0; kFailedPrecondition: the directory is open to others;
  // kUnavailable: the file cannot be made or written.
  static absl::StatusOr<std::shared_ptr<MemoryBudget>> Open(
      const std::string& directory, int64_t bytes);

  // Removes the file from `directory` unless a process has it open. The last
  // one that closes it does so; this is for what killed processes left.
  static void RemoveUnused(const std::string& directory);

  // Removes the file if it was the last that had it open.
  ~MemoryBudget();

  // What Reserve() counts, until this ends; it keeps the budget. An empty one
  // counts nothing. Thread-safety: one thread at a time.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&&) = default;
    Reservation& operator=(Reservation&& other) {
      Reservation former(std::move(*this));
      budget_ = std::move(other.budget_);
      units_ = other.units_;
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->Release(units_);
    }

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget& budget, int64_t units)
        : budget_(budget.shared_from_this()), units_(units) {}

    std::shared_ptr<MemoryBudget> budget_;  // null: empty
    int64_t units_ = 0;
  };

  // Counts `bytes`, rounded up to units. kResourceExhausted names the budget,
  // what is in use of it and the option that raises it. REQUIRES: bytes > 0.
  absl::StatusOr<Reservation> Reserve(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // What all processes use.
  int64_t used_bytes() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // As it lies in the file, in units: one word, so that no reader finds half of
  // a change.
  struct Account {
    uint32_t trial = 0;  // wanted besides, and not checked yet
    uint32_t units = 0;
  };
  static_assert(sizeof(Account) == sizeof(uint64_t));
  // The accounts of the others.
  struct Others {
    int64_t units = 0;
    int64_t trial = 0;
  };

  MemoryBudget(net::Descriptor fd, std::string directory, int64_t bytes,
               int64_t index)
      : fd_(std::move(fd)),
        directory_(std::move(directory)),
        units_((bytes + kUnitBytes - 1) / kUnitBytes),
        index_(index) {}

  // Gives `units` more to the own account if the budget has them; sets `used`
  // to what the budget had in use otherwise.
  bool TryReserve(int64_t units, int64_t* used)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(int64_t units) ABSL_LOCKS_EXCLUDED(mu_);
  // The own account, with so much on trial.
  void Write(int64_t trial) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Account> ReadAccounts() const;
  Others ReadOthers() const;
  // The same after accounts of processes that have ended are cleared.
  Others ClearAndReadOthers() const;

  net::Descriptor fd_;
  const std::string directory_;
  const int64_t units_;
  const int64_t index_;  // of the own account
  Mutex mu_;
  int64_t own_ ABSL_GUARDED_BY(mu_) = 0;  // units
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_MEMORY_BUDGET_H_
