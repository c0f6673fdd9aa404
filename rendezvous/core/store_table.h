// StoreTable: the store that the members of a job share, those who wait for one
// of its keys, and which changes have been made. Pure.

#ifndef WEFT_RENDEZVOUS_CORE_STORE_TABLE_H_
#define WEFT_RENDEZVOUS_CORE_STORE_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/held_calls.h"
#include "weft/rendezvous/core/versioned_map.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time. Copyable.
class StoreTable {
 public:
  using Ticket = uint64_t;

  struct Outcome {
    Ticket ticket;
    absl::StatusOr<v1::StoreReply> reply;
  };
  struct Result {
    // To be persisted before the outcomes are sent; nothing: none has changed.
    std::optional<v1::LogRecord::Stored> stored;
    std::vector<Outcome> outcomes;
  };

  explicit StoreTable(VersionedMap::Limits limits)
      : limits_(limits), map_(limits) {}

  // kInvalidArgument: its key is empty or too long, or its operation none.
  absl::Status Check(const v1::StoreRequest& request) const;

  // What a GET, a WAIT or a COUNT answers now.
  v1::StoreReply Look(const std::string& key) const { return map_.Look(key); }
  v1::StoreReply Count(const std::string& prefix) const;

  // Holds a WAIT until a version of its key later than its own, or `answer_by`.
  void Hold(Ticket ticket, const v1::StoreRequest& request, Instant answer_by);

  // A SET, ADD, COMPARE_SET or DELETE of `owner`. One of a client is made once:
  // a repetition gets the same answer, a late copy of an earlier one
  // kCancelled. Else as VersionedMap::Prepare.
  Result Change(Ticket ticket, const v1::StoreRequest& request,
                const std::string& owner);

  // Answers the waits whose deadline has come.
  std::vector<Outcome> Expire(Instant now);
  Instant NextExpiry() const { return waits_.NextDeadline(); }
  void CallerGone(Ticket ticket) { waits_.Drop(ticket); }
  // The client repeats no changes any more.
  void ClientGone(uint64_t client) { last_changes_.erase(client); }
  int64_t held() const { return waits_.size(); }

  void Replay(const v1::LogRecord::Stored& stored);
  // Appends the records of all that.
  void Snapshot(std::vector<v1::LogRecord>* records) const;

 private:
  struct Wait {
    std::string key;
    uint64_t version;  // that is known
  };
  struct LastChange {  // of one client, applied or not
    uint64_t sequence = 0;
    absl::StatusOr<v1::StoreReply> reply;
  };

  VersionedMap::Limits limits_;
  VersionedMap map_;
  std::map<uint64_t, LastChange> last_changes_;  // by client
  HeldCalls<Wait> waits_;                        // for the key
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_STORE_TABLE_H_
