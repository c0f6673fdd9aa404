// DirectoryStore: a Store for the processes of one test, in a directory. Only
// what groups need to meet: Set, Get, Wait and CompareSet of an absent key.

#ifndef WEFT_COLLECTIVES_TESTING_DIRECTORY_STORE_H_
#define WEFT_COLLECTIVES_TESTING_DIRECTORY_STORE_H_

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/clock.h"
#include "weft/rendezvous/store.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class DirectoryStore final : public rendezvous::Store {
 public:
  explicit DirectoryStore(std::string directory)
      : directory_(std::move(directory)) {}

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration) override {
    rename(WriteNew(value).c_str(), PathOf(key).c_str());
    return 1;
  }
  absl::StatusOr<rendezvous::StoreEntry> Get(absl::string_view key,
                                             absl::Duration) override {
    std::ifstream file(PathOf(key), std::ios::binary);
    if (!file) return absl::NotFoundError(key);
    return rendezvous::StoreEntry{
        std::string(std::istreambuf_iterator<char>(file), {}), 1};
  }
  absl::StatusOr<rendezvous::StoreEntry> Wait(absl::string_view key, uint64_t,
                                              absl::Duration timeout) override {
    const Instant deadline = SteadyClock().Now() + timeout;
    while (true) {
      absl::StatusOr<rendezvous::StoreEntry> entry = Get(key, timeout);
      if (entry.ok()) return entry;
      if (SteadyClock().Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("key ", key));
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key, uint64_t,
                                  absl::string_view value,
                                  absl::Duration) override {
    Swap swap;
    const std::string file = WriteNew(value);
    swap.applied = link(file.c_str(), PathOf(key).c_str()) == 0;
    unlink(file.c_str());
    return swap;
  }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t,
                              absl::Duration) override {
    return absl::UnimplementedError("DirectoryStore lacks Add");
  }
  absl::StatusOr<bool> Delete(absl::string_view, absl::Duration) override {
    return absl::UnimplementedError("DirectoryStore lacks Delete");
  }

 private:
  std::string PathOf(absl::string_view key) const {
    return absl::StrCat(directory_, "/", absl::BytesToHexString(key));
  }
  std::string WriteNew(absl::string_view value) {
    const std::string path =
        absl::StrCat(directory_, "/new-", getpid(), "-", counter_++);
    std::ofstream(path, std::ios::binary) << value;
    return path;
  }

  const std::string directory_;
  std::atomic<int> counter_{0};
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TESTING_DIRECTORY_STORE_H_
