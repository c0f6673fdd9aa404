// MemoryBudget: bounds the shared memory that the processes of one job have on
// this host, all together.
//
// It is counted by locks on the bytes of a file in the job's directory of
// sockets, each of which stands for kUnitBytes of memory. The kernel releases
// the locks of a process that ends, so nothing stays counted of one that was
// killed.

#ifndef WEFT_TRANSPORT_SHM_MEMORY_BUDGET_H_
#define WEFT_TRANSPORT_SHM_MEMORY_BUDGET_H_

#include <cstdint>
#include <map>
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
  // kUnavailable: the file cannot be made.
  static absl::StatusOr<std::shared_ptr<MemoryBudget>> Open(
      const std::string& directory, int64_t bytes);

  // Removes the file from `directory` unless a process has it open. The last
  // one that closes it does so; this is for what killed processes left.
  static void RemoveUnused(const std::string& directory);

  // Removes the file if it was the last that had it open.
  ~MemoryBudget();

  // Counts `bytes`, rounded up to units, until the last copy of the handle is
  // released. kResourceExhausted names the budget, what is in use of it and the
  // option that raises it. REQUIRES: bytes > 0.
  absl::StatusOr<std::shared_ptr<const void>> Reserve(int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Of all processes.
  int64_t used_bytes() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Range {  // of units
    int64_t begin;
    int64_t end;
  };

  MemoryBudget(net::Descriptor fd, std::string directory, int64_t bytes)
      : fd_(std::move(fd)),
        directory_(std::move(directory)),
        units_((bytes + kUnitBytes - 1) / kUnitBytes) {}

  // What neither this process nor another has.
  std::vector<Range> FindFree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same of what this process does not have.
  void AddFree(Range range, std::vector<Range>* free) const;
  // Some of `free`, `units` in all; false if another process was faster.
  bool Take(const std::vector<Range>& free, int64_t units,
            std::vector<Range>* taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(const std::vector<Range>& ranges) ABSL_LOCKS_EXCLUDED(mu_);
  void Unlock(const std::vector<Range>& ranges)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  net::Descriptor fd_;
  const std::string directory_;
  const int64_t units_;
  Mutex mu_;
  std::map<int64_t, int64_t> own_ ABSL_GUARDED_BY(mu_);  // begins and ends
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_MEMORY_BUDGET_H_
