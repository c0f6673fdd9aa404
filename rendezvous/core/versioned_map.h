// VersionedMap: the store's contents: keys with values and versions. Pure.

#ifndef WEFT_RENDEZVOUS_CORE_VERSIONED_MAP_H_
#define WEFT_RENDEZVOUS_CORE_VERSIONED_MAP_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time.
class VersionedMap {
 public:
  struct Limits {
    int64_t max_key_bytes = 1 << 10;
    int64_t max_value_bytes = 1 << 20;
    int64_t max_total_bytes = int64_t{64} << 20;
    // What one wrote last has no more, so that none fills the map for all
    // others.
    int64_t max_owner_bytes = int64_t{16} << 20;
  };
  // What an entry counts besides its key and its value.
  static constexpr int64_t kEntryBytes = 256;

  struct Entry {
    std::string value;
    uint64_t version = 0;
    std::string owner;  // who wrote it
  };

  explicit VersionedMap(Limits limits) : limits_(limits) {}

  // Null if absent.
  const Entry* Find(const std::string& key) const;

  // The number of keys that begin with `prefix`.
  int64_t CountKeys(const std::string& prefix) const;

  // What a GET or WAIT answers now.
  v1::StoreReply Look(const std::string& key) const;

  // What a SET, ADD, COMPARE_SET or DELETE of `owner` would change and answer.
  // Nothing is changed yet: `change` has no key if there is nothing to change.
  // kInvalidArgument: no number where ADD wants one, or a key or value that is
  // too long; kResourceExhausted: the map is full, or the owner's share of it.
  struct Plan {
    v1::LogRecord::StoreChange change;
    v1::StoreReply reply;
  };
  absl::StatusOr<Plan> Prepare(const v1::StoreRequest& request,
                               const std::string& owner) const;

  void Apply(const v1::LogRecord::StoreChange& change);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  uint64_t last_version() const { return last_version_; }

 private:
  absl::Status CheckRoom(const std::string& key, const std::string& value,
                         const std::string& owner) const;
  // Counts what the entry takes, `sign` times.
  void Count(const std::string& key, const Entry& entry, int sign);

  Limits limits_;
  std::map<std::string, Entry> entries_;
  uint64_t last_version_ = 0;  // of any change, deletions too
  int64_t total_bytes_ = 0;
  std::map<std::string, int64_t> owner_bytes_;  // of those that have an entry
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_VERSIONED_MAP_H_
