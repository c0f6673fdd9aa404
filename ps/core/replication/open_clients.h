// OpenClients: which clients have a table with two replicas open, by worker.
//
// Unlike Openings, whose numbers one server gives, all servers of a table know
// a client by the same number, and by when it opened the table: so they close
// the same ones, in whatever order they hear of them, and a server that came
// later need only be told which are open.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_OPEN_CLIENTS_H_
#define WEFT_PS_CORE_OPEN_CLIENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "weft/ps/core/replication/replication.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

class OpenClients {
 public:
  struct Opening {
    WorkerKey worker;
    ClientId client = kRounds;
    uint64_t opened_at = 0;  // grows from one opening of a worker to the next
  };

  // Whether it is open: it was, or is from now on. False: its worker has opened
  // the table Openings::kMostOfAWorker times since. One that opens it so often
  // closes its oldest.
  bool Open(const Opening& opening);
  // Closes those of `worker` and of earlier incarnations of it.
  void Forget(WorkerKey worker);

  // The clients that were closed since the last call.
  std::vector<ClientId> TakeClosed() { return std::exchange(closed_, {}); }
  std::vector<Opening> All() const;
  size_t size() const;

 private:
  struct OfWorker {
    std::set<std::pair<uint64_t, ClientId>> open;  // by when
    std::optional<uint64_t> closed_through;        // opened then or before
  };
  std::map<WorkerKey, OfWorker> workers_;
  std::vector<ClientId> closed_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_OPEN_CLIENTS_H_
