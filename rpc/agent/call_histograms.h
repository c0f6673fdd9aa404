// CallHistograms: how long an agent's calls take, and how large their messages
// are.

#ifndef WEFT_RPC_AGENT_CALL_HISTOGRAMS_H_
#define WEFT_RPC_AGENT_CALL_HISTOGRAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/clock.h"
#include "weft/rpc/function.h"
#include "weft/telemetry/bucket_counts.h"
#include "weft/telemetry/metrics.h"

namespace weft::rpc {

// Exported as
//
//   weft_rpc_client_seconds             from a call to its end, at the caller
//   weft_rpc_server_seconds{method}     from the arrival of a call to its reply
//   weft_rpc_request_bytes{direction}   arguments, "out" and "in"
//   weft_rpc_reply_bytes{direction}     results, "in" and "out"
//
// Thread-safety: thread-safe; Export, one thread at a time.
class CallHistograms {
 public:
  // Counts the calls of an agent that serves `registry`, which must outlive it.
  explicit CallHistograms(const Registry& registry);
  ~CallHistograms();

  void CallEnded(Instant began, Instant now) {
    client_.Add(now.nanoseconds() - began.nanoseconds());
  }
  // `function`: null if the call was of none that is known.
  void Served(const Function* function, Instant began, Instant now);
  void RequestSent(size_t bytes) { requests_out_.Add(bytes); }
  void RequestReceived(size_t bytes) { requests_in_.Add(bytes); }
  void ReplySent(size_t bytes) { replies_out_.Add(bytes); }
  void ReplyReceived(size_t bytes) { replies_in_.Add(bytes); }

  // Adds what is new since the last Export.
  void Export(telemetry::Metrics& to);

 private:
  using Times = telemetry::BucketCounts<telemetry::kDurationBoundsInNs.size()>;
  using Sizes = telemetry::BucketCounts<telemetry::kSizeBounds.size()>;

  // By Function::index, which begins at 1; 0: of no function.
  struct Method {
    std::string name;
    std::atomic<Times*> times{nullptr};  // made by the first call
  };
  std::vector<Method> methods_;
  Times client_{telemetry::kDurationBoundsInNs};
  Sizes requests_out_{telemetry::kSizeBounds};
  Sizes requests_in_{telemetry::kSizeBounds};
  Sizes replies_out_{telemetry::kSizeBounds};
  Sizes replies_in_{telemetry::kSizeBounds};
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_CALL_HISTOGRAMS_H_
