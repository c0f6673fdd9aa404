// Directory: who a worker is and where it is reached, as the agent asks it.
//
// rendezvous knows; whoever makes the agent hands it an adapter, so that rpc
// works over any membership, and over a fixed list in a test.

#ifndef WEFT_RPC_SESSION_DIRECTORY_H_
#define WEFT_RPC_SESSION_DIRECTORY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rpc {

using rendezvous::WorkerKey;

// The id of every client's key. No worker has it: theirs are given by a
// coordinator, and count from 0.
inline constexpr uint32_t kClientId = ~uint32_t{0};

// One incarnation of a worker.
struct Worker {
  std::string name;  // ps0
  WorkerKey key;
  // As the transport understands it: unix:/path, host:port.
  std::string address;
  // The role of a caller, as its certificate proves it. Empty where nothing is
  // proven: callers over a unix socket, or under --insecure.
  std::string role = {};
  // Where it takes memory from processes of its host; empty: nowhere. See
  // transport::Destination.
  std::string memory_socket = {};

  // Equal: the same incarnation, under the same name.
  friend bool operator==(const Worker& a, const Worker& b) {
    return a.name == b.name && a.key == b.key;
  }
  friend bool operator!=(const Worker& a, const Worker& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const Worker& worker) {
    return H::combine(std::move(h), worker.name, worker.key);
  }
};

// Thread-safety: thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;

  // The living incarnation of `name`. kNotFound says who is known; kUnavailable
  // that it was here and has gone, and why.
  virtual absl::StatusOr<Worker> Find(absl::string_view name) const = 0;
  // That very incarnation. kUnavailable if it is known to be gone, kNotFound if
  // it is unknown.
  virtual absl::StatusOr<Worker> Find(WorkerKey key) const = 0;
  // Catches up with what other workers may know already: afterwards Find
  // answers by all that anybody knew when this was called. False: it cannot, or
  // not within `timeout`. May block, so not in an InlineScope.
  virtual bool Refresh(absl::Duration timeout) const {
    (void)timeout;
    return false;
  }
  // Another number, never 0, whenever Find(name) might answer otherwise than it
  // did before: who has asked need not ask again at the same one. 0: it must.
  virtual uint64_t version() const { return 0; }
  // The living workers whose labels are all of `selector`, "role=ps,zone=a".
  // kNotFound if there is none; kInvalidArgument if it is no selector.
  virtual absl::StatusOr<std::vector<Worker>> Select(
      absl::string_view selector) const;
};

// A list that its owner edits.
class FixedDirectory final : public Directory {
 public:
  FixedDirectory() = default;
  explicit FixedDirectory(std::vector<Worker> workers) {
    for (Worker& worker : workers) Put(std::move(worker));
  }

  // Adds a worker, in place of one of the same name. It also has the label
  // "name".
  void Put(Worker worker, std::map<std::string, std::string> labels = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the worker of that name, if there is one.
  void Remove(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<Worker> Find(absl::string_view name) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Worker> Find(WorkerKey key) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t version() const override { return version_.load(); }
  absl::StatusOr<std::vector<Worker>> Select(
      absl::string_view selector) const override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Worker worker;
    std::map<std::string, std::string> labels;
  };

  std::string Known() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<uint64_t> version_{1};  // each change comes before its number
  mutable Mutex mu_;
  std::vector<Entry> workers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_DIRECTORY_H_
