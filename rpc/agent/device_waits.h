// DeviceWaits: calls whose tensors are still being copied from their devices.
//
// A call is handed to its session once the bytes of its body are there; until
// then no session knows of it. A thread of the executor waits for the copies.

#ifndef WEFT_RPC_AGENT_DEVICE_WAITS_H_
#define WEFT_RPC_AGENT_DEVICE_WAITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/session/message.h"
#include "weft/transport/transport.h"

namespace weft::rpc::internal {

// Thread-safety: thread-safe.
class DeviceWaits final : public Abandoner,
                          public PendingSource,
                          public std::enable_shared_from_this<DeviceWaits> {
 public:
  // `transport` must outlive the calls.
  explicit DeviceWaits(transport::Transport& transport)
      : transport_(transport) {}

  // What starts calls as `caller` does, those with Request::copies after these.
  // `executor` must outlive the calls.
  std::shared_ptr<Caller> Before(std::shared_ptr<Caller> caller,
                                 Executor& executor);
  // Ends the calls that wait.
  void EndAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status AbandonCall(uint64_t number, const absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the calls that wait, under ids that no session gives.
  void AddPending(std::vector<PendingCall>* calls) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AddActive(ActiveCalls* active) override ABSL_LOCKS_EXCLUDED(mu_);
  void AddOpen(std::vector<std::string>* open) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class WaitingCaller;
  class Ticket;
  struct Call {
    std::shared_ptr<Caller> caller;    // null once it is started
    std::shared_ptr<Request> request;  // likewise
    Caller::Done done;                 // likewise
    transport::Transport::TimerId timer = 0;
    bool has_timer = false;
    // Once it is started.
    Abandon abandon;
    absl::Status given_up;

    bool waits() const { return caller != nullptr; }
  };

  Abandon Start(std::shared_ptr<Caller> caller, Executor& executor,
                std::shared_ptr<Request> request, Caller::Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Wait(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  void StartNow(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  transport::Transport& transport_;
  Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_AGENT_DEVICE_WAITS_H_
