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
// while the key is absent. Keys hold 1 byte to 1 KiB, values up to 1 MiB, all
// of it up to 64 MiB, and of that 16 MiB what one worker wrote last, 256 bytes
// being counted for each key besides: kInvalidArgument for an empty key or what
// is too long, kResourceExhausted where there is no room. (etcd has the limits
// of its own on all of it.)
//
// Every call waits for its answer, at most `timeout`, then kDeadlineExceeded
// names the key. A timeout of zero or less is over at once: kDeadlineExceeded,
// also of what needs no waiting, and nothing is read or changed. A change is
// made once, however the network behaves, while the caller's incarnation lives.
//
// All of this is the same for each of these stores: store_test.cc.
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

  // How many keys there are now; in a PrefixStore those below its prefix.
  absl::StatusOr<int64_t> NumKeys(absl::Duration timeout) {
    return CountKeys("", timeout);
  }
  // How many of them begin with `prefix`, which may be empty. kUnimplemented by
  // a store of a program's own that does not count.
  virtual absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                            absl::Duration timeout);

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

// Checks that every Store makes before anything else: kInvalidArgument or
// kDeadlineExceeded as above.
absl::Status CheckKey(absl::string_view key);
absl::Status CheckTimeout(absl::string_view key, absl::Duration timeout);
absl::Status CheckCall(absl::string_view key, absl::Duration timeout);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_STORE_H_
