// LoneCall, SelfCaller: a call that is served without a session: one of an
// agent by itself, or one that a client sent in plain form.

#ifndef WEFT_RPC_LONE_CALL_H_
#define WEFT_RPC_LONE_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/cancel.h"
#include "weft/rpc/directory.h"
#include "weft/rpc/function.h"
#include "weft/rpc/inbound.h"
#include "weft/rpc/message.h"
#include "weft/rpc/outbound.h"
#include "weft/rpc/transport.h"

namespace weft::rpc {

// Who serves calls without a session; the agent's part.
//
// Thread-safety: thread-safe.
class LoneServer {
 public:
  virtual ~LoneServer() = default;

  virtual const std::string& job() const = 0;
  virtual Worker worker() const = 0;
  virtual const std::string& build() const = 0;
  virtual const Registry& registry() const = 0;
  // Whether the role that `caller` has proven, if any, is for `function`.
  virtual bool MayCall(const Function& function,
                       const Worker& caller) const = 0;

  // Runs the function for `caller`, who gives the call up by `gone`, or by what
  // this returns. `done` runs once, perhaps before this returns.
  virtual internal::Caller::Abandon ServeAlone(
      Worker caller, std::shared_ptr<const Request> request, CancelToken gone,
      internal::Caller::Done done) = 0;
};

// Encoded and decoded like any call. Ends at its deadline, with the agent, and
// when it is given up.
//
// Thread-safety: thread-safe.
class LoneCall final : public ServedCall,
                       public std::enable_shared_from_this<LoneCall> {
 public:
  // The dispatcher was told by CallBegan; it is told when this ends. `function`
  // outlives it.
  LoneCall(std::shared_ptr<Dispatcher> dispatcher, Transport& transport,
           Worker caller, const Function& function, const Request& request,
           CancelSource cancel, internal::Caller::Done done);
  ~LoneCall() override;

  Lineage lineage() const override;
  // Gives itself up with either.
  void Follow(const CancelToken& agent, const CancelToken& caller);
  void Abandon(const absl::Status& why);
  void Finish(absl::StatusOr<Slices> result) override;

 private:
  void End(absl::Status status, ReplyPtr reply);

  const std::shared_ptr<Dispatcher> dispatcher_;
  Transport& transport_;
  const Function& function_;
  CancelSource cancel_;
  internal::Caller::Done done_;
  std::atomic<bool> ended_{false};
  std::atomic<Transport::TimerId> timer_{0};  // it may fire before it is known
  CancelToken::Registration with_agent_;
  CancelToken::Registration with_caller_;
};

// Calls of an agent by itself.
//
// Thread-safety: thread-safe.
class SelfCaller final : public internal::Caller {
 public:
  SelfCaller(std::weak_ptr<LoneServer> server, Worker self)
      : server_(std::move(server)), self_(std::move(self)) {}

  const Worker& peer() const override { return self_; }
  Abandon Start(std::shared_ptr<Request> request, Done done) override;

 private:
  const std::weak_ptr<LoneServer> server_;
  const Worker self_;
  std::atomic<uint64_t> last_id_{0};
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_LONE_CALL_H_
