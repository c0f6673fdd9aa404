// RetryingCaller, RetriedCalls: the attempts that a RetryPolicy allows.

#ifndef WEFT_RPC_AGENT_RETRY_H_
#define WEFT_RPC_AGENT_RETRY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/transport/transport.h"

namespace weft::rpc::internal {

// The calls of an agent's RetryingCallers that have not ended: in the pauses
// between their attempts no session knows of them.
//
// Thread-safety: thread-safe.
class RetriedCalls final : public PendingSource {
 public:
  struct Call {
    std::string peer;
    std::string function;
    Instant began;
    Instant deadline;
    std::string for_peer;  // as in PendingCall
    uint64_t for_id = 0;
    bool is_paused = false;
  };

  explicit RetriedCalls(Clock& clock) : clock_(clock) {}

  // Returns under which number.
  uint64_t Add(Call call) ABSL_LOCKS_EXCLUDED(mu_);
  void SetPaused(uint64_t number, bool is_paused) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the calls that are paused.
  void AddPending(std::vector<PendingCall>* calls) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AddActive(ActiveCalls* active) override ABSL_LOCKS_EXCLUDED(mu_);
  // Also calls between two attempts, which no session lists.
  void AddOpen(std::vector<std::string>* open) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Clock& clock_;
  Mutex mu_;
  // No session gives a number as large.
  uint64_t last_ ABSL_GUARDED_BY(mu_) = uint64_t{1} << 63;
  std::map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
};

// Makes each call by a Caller of that moment, under a policy.
//
// Thread-safety: thread-safe.
class RetryingCaller final : public Caller {
 public:
  struct Options {
    RetryPolicy policy;
    // `find` may find a later incarnation once one is gone.
    bool may_come_back = true;
    transport::Transport* transport = nullptr;  // must outlive the calls
    CancelToken agent;                          // calls end with it
    std::shared_ptr<RetriedCalls> calls;        // not null
    std::function<absl::StatusOr<std::shared_ptr<Caller>>()> find;
    std::function<bool(absl::string_view function)> is_idempotent;
  };

  RetryingCaller(Worker peer, Options options)
      : peer_(std::move(peer)),
        options_(std::make_shared<const Options>(std::move(options))) {}

  const Worker& peer() const override { return peer_; }
  Abandon Start(std::shared_ptr<Request> request, Done done) override;

 private:
  class RetriedCall;

  const Worker peer_;
  const std::shared_ptr<const Options> options_;
};

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_AGENT_RETRY_H_
