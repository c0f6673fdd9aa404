// MemoryStore: a Store for the ranks of one process, for tests.

#ifndef WEFT_COLLECTIVES_TESTING_MEMORY_STORE_H_
#define WEFT_COLLECTIVES_TESTING_MEMORY_STORE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/steady_deadline.h"
#include "weft/rendezvous/store.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class MemoryStore final : public rendezvous::Store {
 public:
  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration) override {
    MutexLock lock(mu_);
    return Put(key, value);
  }
  absl::StatusOr<rendezvous::StoreEntry> Get(absl::string_view key,
                                             absl::Duration) override {
    MutexLock lock(mu_);
    const auto it = entries_.find(std::string(key));
    if (it == entries_.end()) return absl::NotFoundError(key);
    return it->second;
  }
  absl::StatusOr<rendezvous::StoreEntry> Wait(absl::string_view key,
                                              uint64_t after,
                                              absl::Duration timeout) override {
    const auto deadline = SteadyDeadline(timeout);
    MutexLock lock(mu_);
    while (true) {
      const auto it = entries_.find(std::string(key));
      if (it != entries_.end() && it->second.version > after) return it->second;
      if (!changed_.WaitUntil(mu_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("key ", key));
      }
    }
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration) override {
    MutexLock lock(mu_);
    int64_t sum = 0;
    const auto it = entries_.find(std::string(key));
    if (it != entries_.end() && !absl::SimpleAtoi(it->second.value, &sum)) {
      return absl::InvalidArgumentError(absl::StrCat(key, " is no number"));
    }
    sum += delta;
    Put(key, absl::StrCat(sum));
    return sum;
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key, uint64_t expected,
                                  absl::string_view value,
                                  absl::Duration) override {
    MutexLock lock(mu_);
    rendezvous::StoreEntry& entry = entries_[std::string(key)];
    Swap swap;
    swap.applied = entry.version == expected;
    if (swap.applied) Put(key, value);
    swap.now = entry;
    if (entry.version == 0) entries_.erase(std::string(key));
    return swap;
  }
  absl::StatusOr<bool> Delete(absl::string_view key, absl::Duration) override {
    MutexLock lock(mu_);
    ++version_;
    return entries_.erase(std::string(key)) > 0;
  }

  size_t size() const {
    MutexLock lock(mu_);
    return entries_.size();
  }

 private:
  uint64_t Put(absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    entries_[std::string(key)] = {std::string(value), ++version_};
    changed_.NotifyAll();
    return version_;
  }

  mutable Mutex mu_;
  CondVar changed_;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, rendezvous::StoreEntry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TESTING_MEMORY_STORE_H_
