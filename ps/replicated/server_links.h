// ServerLinks: what waits to be said to other servers, and says it.
//
// To each server one batch of messages is under way at a time, so that they
// stay in order and the next batch has all that came meanwhile. Pieces of
// copies go beside them, a few at a time, so that no message waits for one; and
// with pauses where pushes go on meanwhile, for both ends have work with a
// piece, which those who push would wait for.
//
// What a server does not take is sent to it again for a while: it may not have
// joined yet, as far as this server or that one knows, or may know an older
// map. After that it is dropped, for replicas send again what is still wanted.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_REPLICATED_SERVER_LINKS_H_
#define WEFT_PS_REPLICATED_SERVER_LINKS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/replicated/batch.h"
#include "weft/rpc/agent.h"

namespace weft::ps {

class ServerLinks {
 public:
  // The agent outlives it.
  explicit ServerLinks(rpc::Agent* agent) : agent_(agent) {}
  // Waits for the calls that are under way, which end by their time-outs.
  ~ServerLinks();

  // Behind what goes to `to` already; sends nothing yet.
  void Enqueue(WorkerKey to, Envelope envelope) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends what may be sent now. To be called after Enqueue, and every 20 ms.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // What waits for a server that has exited goes nowhere.
  void OnMap(const PartitionMap& map) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends nothing from now on.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Queue {
    std::deque<Envelope> waiting;
    bool is_sending = false;
    Instant send_at;  // not before
    Instant failing_since = Instant::Infinite();
  };
  struct Link {
    Queue messages;
    Queue copies;
    bool is_sending() const { return messages.is_sending || copies.is_sending; }
  };
  struct Batch {
    WorkerKey to;
    bool is_copy = false;
    Instant sent_at;
    std::deque<Envelope> envelopes;
  };

  // Null if nothing is to be sent now.
  std::shared_ptr<Batch> Take(WorkerKey to, Queue& queue, bool is_copy,
                              Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(std::shared_ptr<Batch> batch) ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent(Batch& batch, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);

  rpc::Agent* const agent_;

  Mutex mu_;
  CondVar ended_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;  // under way
  std::map<WorkerKey, Link> links_ ABSL_GUARDED_BY(mu_);
  Instant appended_ ABSL_GUARDED_BY(mu_);  // the last entry of a log
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_SERVER_LINKS_H_
