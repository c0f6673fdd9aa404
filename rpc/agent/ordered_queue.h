// OrderedQueue, OrderedQueueTable: calls that run in the order in which they
// were made, one at a time.
//
// The caller sends a call of an ordered queue when the one before has ended for
// it: so they come in order, whatever connections do. One that was given up may
// still run then; so the callee lets a call of an ordered queue begin when no
// other of it runs.

#ifndef WEFT_RPC_AGENT_ORDERED_QUEUE_H_
#define WEFT_RPC_AGENT_ORDERED_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/message.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

namespace internal {

// An ordered queue at its caller. Its calls may go to several incarnations of a
// worker, one after another.
//
// Thread-safety: thread-safe.
class OrderedQueue final : public Abandoner,
                           public PendingSource,
                           public std::enable_shared_from_this<OrderedQueue> {
 public:
  using Abandon = internal::Abandon;

  // `queue` is another for each of the caller's agent, and not 0. `transport`
  // must outlive the calls.
  OrderedQueue(uint64_t queue, std::string peer,
               transport::Transport* transport)
      : queue_(queue), peer_(std::move(peer)), transport_(*transport) {}

  // As caller->Start, once the calls before this one have ended.
  Abandon Start(std::shared_ptr<Caller> caller,
                std::shared_ptr<Request> request, Caller::Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AbandonCall(uint64_t number, const absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the calls that were not sent yet, under ids that no session gives.
  void AddPending(std::vector<PendingCall>* calls) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AddActive(ActiveCalls* active) override ABSL_LOCKS_EXCLUDED(mu_);
  void AddOpen(std::vector<std::string>* open) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    std::shared_ptr<Caller> caller;
    std::shared_ptr<Request> request;
    Caller::Done done;
    transport::Transport::TimerId timer = 0;
    bool has_timer = false;
  };

  // Sends what is next until one is out.
  void Send() ABSL_LOCKS_EXCLUDED(mu_);
  void SendOne(uint64_t number, Waiting call) ABSL_LOCKS_EXCLUDED(mu_);
  void Ended() ABSL_LOCKS_EXCLUDED(mu_);

  const uint64_t queue_;
  const std::string peer_;
  transport::Transport& transport_;

  mutable Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;  // the number of a call
  absl::btree_map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool is_sending_ ABSL_GUARDED_BY(mu_) = false;  // somebody is in Send()
  uint64_t out_ ABSL_GUARDED_BY(mu_) = 0;         // which one; 0: none
  absl::Status given_up_ ABSL_GUARDED_BY(mu_);    // of that one
  Abandon abandon_ ABSL_GUARDED_BY(mu_);          // once it is known
};

}  // namespace internal

// The queues that an agent serves. An ordered queue is known while a call of it
// runs or waits.
//
// Thread-safety: thread-safe. Must outlive the turns.
class OrderedQueueTable {
 public:
  using Turn = std::unique_ptr<ServedCall::Turn>;
  using Run = absl::AnyInvocable<void(Turn) &&>;

  // `run` runs when the turns of those that came before it on the queue have
  // ended: here, or where the last of them ends.
  void Enter(WorkerKey caller, uint64_t queue, Run run)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<WorkerKey, uint64_t>;
  class Holder;
  struct Queue {
    std::deque<Run> waiting;
    bool is_taken = false;    // a Turn of it lives
    bool is_turning = false;  // somebody is in Advance()
  };

  void Leave(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);
  void Advance(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  absl::flat_hash_map<Key, Queue> queues_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_ORDERED_QUEUE_H_
