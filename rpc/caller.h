// Caller: where the calls to one worker go.

#ifndef WEFT_RPC_CALLER_H_
#define WEFT_RPC_CALLER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/message.h"

namespace weft::rpc::internal {

// Abandons calls by number. The implementation chooses what the numbers mean.
//
// Thread-safety: thread-safe.
class Abandoner {
 public:
  virtual ~Abandoner() = default;
  // Returns how the call ends by this, of which its Done may hear later; OK if
  // that cannot be said: it has ended, was never made, or is about to be sent.
  // One that has ended, or was never made, is left alone.
  virtual absl::Status AbandonCall(uint64_t number,
                                   const absl::Status& why) = 0;
};

// Abandons a call, any number of times, and returns what AbandonCall does. A
// default one does nothing.
//
// Thread-safety: as for an int.
class Abandon {
 public:
  Abandon() = default;
  Abandon(std::weak_ptr<Abandoner> whose, uint64_t number)
      : whose_(std::move(whose)), number_(number) {}

  absl::Status operator()(const absl::Status& why) const {
    const auto live = whose_.lock();
    return live == nullptr ? absl::OkStatus() : live->AbandonCall(number_, why);
  }

 private:
  std::weak_ptr<Abandoner> whose_;
  uint64_t number_ = 0;
};

// Over a session, or to this agent itself.
//
// Thread-safety: thread-safe.
class Caller {
 public:
  // `reply` is null where the call ended without one.
  using Done = absl::AnyInvocable<void(absl::Status, ReplyPtr) &&>;
  using Abandon = internal::Abandon;

  virtual ~Caller() = default;
  virtual const Worker& peer() const = 0;
  // Sets the request's id. `done` runs once, perhaps before this returns; it is
  // dropped unrun only where the caller itself ends.
  virtual Abandon Start(std::shared_ptr<Request> request, Done done) = 0;
};

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_CALLER_H_
