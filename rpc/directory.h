// Directory: who a worker is and where it is reached, as the agent asks it.
//
// rendezvous knows; whoever makes the agent hands it an adapter, so that rpc
// works over any membership, and over a fixed list in a test.

#ifndef WEFT_RPC_DIRECTORY_H_
#define WEFT_RPC_DIRECTORY_H_

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

// One incarnation of a worker.
struct Worker {
  std::string name;  // ps0
  WorkerKey key;
  std::string
      address;  // as the transport understands it: unix:/path, host:port
  // Of a caller, as its certificate proves it. Empty where nothing is proven:
  // callers over a unix socket, or under --insecure.
  std::string role = {};
};

// Thread-safety: thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;

  // The living incarnation of `name`. kNotFound says who is known.
  virtual absl::StatusOr<Worker> Find(absl::string_view name) const = 0;
  // That very incarnation. kNotFound if it never was or is gone.
  virtual absl::StatusOr<Worker> Find(WorkerKey key) const = 0;
};

// A list that its owner edits.
class FixedDirectory final : public Directory {
 public:
  FixedDirectory() = default;
  explicit FixedDirectory(std::vector<Worker> workers)
      : workers_(std::move(workers)) {}

  // Adds a worker, in place of one of the same name.
  void Put(Worker worker) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<Worker> Find(absl::string_view name) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Worker> Find(WorkerKey key) const override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_DIRECTORY_H_
