// RetryingCaller: the attempts that a RetryPolicy allows.

#ifndef WEFT_RPC_RETRY_H_
#define WEFT_RPC_RETRY_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/cancel.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/retry_policy.h"
#include "weft/rpc/transport.h"

namespace weft::rpc::internal {

// Makes each call by a Caller of that moment, under a policy.
//
// Thread-safety: thread-safe.
class RetryingCaller final : public Caller {
 public:
  struct Options {
    RetryPolicy policy;
    Transport* transport = nullptr;  // must outlive the calls
    CancelToken agent;               // calls end with it
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

  const Worker peer_;  // as it was at first
  const std::shared_ptr<const Options> options_;
};

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_RETRY_H_
