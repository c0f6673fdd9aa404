// Openings: which clients have a table open, and whose they are.
//
// A worker opens a table as one client or several, by numbers of its own
// choice; the server gives each opening a number that nobody else can name. So
// no worker can push as another's client, and all that is kept for a client can
// be dropped once its worker is gone.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_OPENINGS_H_
#define WEFT_PS_CORE_OPENINGS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

using rendezvous::WorkerKey;

// The caller: its name and incarnation, as the connection has them.
struct Caller {
  absl::string_view name;
  WorkerKey key;
};

class Openings {
 public:
  // The most openings of a worker at a time. One more closes its oldest.
  static constexpr size_t kMostOfAWorker = 64;

  // The number of the caller's `client`: a new one, unless it is open.
  uint64_t Open(const Caller& caller, uint64_t client);

  // The number of the caller's `client`.
  //   kPermissionDenied    `client` is another worker's; names both
  //   kFailedPrecondition  it is not open
  absl::StatusOr<uint64_t> NumberOf(const Caller& caller,
                                    uint64_t client) const;

  // Closes those of `worker` and of earlier incarnations of it.
  void Forget(WorkerKey worker);

  // `number` is in use: if it is closed, TakeClosed() returns it once more.
  void Use(uint64_t number);

  // The numbers that were closed since the last call. None is given again.
  std::vector<uint64_t> TakeClosed() { return std::exchange(closed_, {}); }

  size_t size() const { return open_.size(); }

 private:
  using Client = std::pair<WorkerKey, uint64_t>;
  struct OfWorker {
    std::string name;
    std::deque<std::pair<uint64_t, uint64_t>> openings;  // client and number
  };

  std::map<WorkerKey, OfWorker> workers_;
  absl::flat_hash_map<Client, uint64_t> numbers_;
  absl::flat_hash_set<uint64_t> open_;
  std::vector<uint64_t> closed_;
  uint64_t last_ = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_OPENINGS_H_
