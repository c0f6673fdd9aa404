// Store: the small shared map of a job, through which its ranks agree on small
// things: a seed, a port, who writes the checkpoint.
//
//   Membership::store()   the job's own, kept by its coordinator (over gRPC)
//   MemoryStore           of one process           memory_store.h
//   FileStore             a file that ranks share  file_store.h
//   EtcdStore             keys in etcd             etcd_store.h
//   PrefixStore           a part of another        prefix_store.h
//
// Each key has a version, which grows with every change of the map and is 0
// while the key is absent. Keys hold up to 1 KiB, values up to 1 MiB, all of it
// up to 64 MiB, and of that 16 MiB what one worker wrote last, 256 bytes being
// counted for each key besides: kResourceExhausted or kInvalidArgument beyond.
//
// Every call waits for its answer, at most `timeout`, then kDeadlineExceeded
// names the key. A change is made once, however the network behaves, while the
// caller's incarnation lives.
//
// Thread-safety: thread-safe.

#ifndef WEFT_RENDEZVOUS_STORE_H_
#define WEFT_RENDEZVOUS_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace weft::rendezvous {

struct StoreEntry {
  std::string value;
  uint64_t version = 0;  // 0: absent
};

class Store {
 public:
  virtual ~Store() = default;

  // Returns the new version.
  virtual absl::StatusOr<uint64_t> Set(absl::string_view key,
                                       absl::string_view value,
                                       absl::Duration timeout) = 0;

  // kNotFound if absent; does not wait for it to appear.
  virtual absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                         absl::Duration timeout) = 0;

  // Waits until the key's version is above `after`: Wait(key, 0, t) until it
  // exists.
  virtual absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                          absl::Duration timeout) = 0;

  // Adds to the decimal number stored there, 0 if absent, and returns the sum.
  // kInvalidArgument if the value is no such number.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                                      absl::Duration timeout) = 0;

  struct Swap {
    bool applied = false;
    StoreEntry now;  // what the key holds afterwards
  };
  // Sets the key if its version is `expected_version`; 0 expects no key.
  virtual absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                          uint64_t expected_version,
                                          absl::string_view value,
                                          absl::Duration timeout) = 0;

  // True if the key was there.
  virtual absl::StatusOr<bool> Delete(absl::string_view key,
                                      absl::Duration timeout) = 0;

  // --- Made of those above; a store may do them in fewer round trips. ---

  // Adds `suffix` to the end of the value, "" if absent; returns the version.
  virtual absl::StatusOr<uint64_t> Append(absl::string_view key,
                                          absl::string_view suffix,
                                          absl::Duration timeout);

  // Waits until all keys exist; kDeadlineExceeded lists those that do not.
  virtual absl::Status WaitAll(const std::vector<std::string>& keys,
                               absl::Duration timeout);

  // WaitAll, and what they hold, in the order of `keys`; each entry is of some
  // moment of the call.
  virtual absl::StatusOr<std::vector<StoreEntry>> MultiGet(
      const std::vector<std::string>& keys, absl::Duration timeout);
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_STORE_H_
