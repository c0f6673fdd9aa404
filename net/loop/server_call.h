// ServerCall: one call that came in, from its arrival to its last event. A
// Stream to those who serve streams.

#ifndef WEFT_NET_LOOP_SERVER_CALL_H_
#define WEFT_NET_LOOP_SERVER_CALL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/net/loop/loop_core.h"
#include "weft/net/stream.h"

namespace weft::net {

// It came by gRPC (GrpcCall), or from this host without it (LocalCall). Lives
// as long as anyone holds it. Thread-safety: thread-safe.
class ServerCall : public Stream,
                   public OpenCall,
                   public std::enable_shared_from_this<ServerCall> {
 public:
  const std::string& method() const final { return method_; }
  const Peer& peer() const final { return peer_; }
  const Metadata& metadata() const final { return metadata_; }
  // The endpoint it is for, as the caller says it.
  const std::string& authority() const { return authority_; }
  Instant deadline() const { return deadline_; }
  const std::string& connection() const { return peer_.address; }  // ip:port

  // Delivers one message, or all, to `observer`, and at last OnClosed.
  // REQUIRES: called once, on the Loop.
  enum class Messages { kOne, kAll };
  virtual void Serve(std::shared_ptr<StreamObserver> observer,
                     Messages messages) = 0;

  // From now on open on behalf of `owner`, and calls `ended` after OnClosed.
  // REQUIRES: before Serve.
  void SetOwner(const void* owner, absl::AnyInvocable<void() &&> ended) {
    core_->SetOwner(this, owner);
    ended_ = std::move(ended);
  }

  // Its owner has destroyed the stream.
  virtual void OnHandleDestroyed() = 0;

  // Write and Close(Ok) in one.
  virtual void Answer(Slices response) = 0;

 protected:
  explicit ServerCall(std::shared_ptr<Loop::Core> core)
      : core_(std::move(core)) {}

  const std::shared_ptr<Loop::Core> core_;
  // Set as the call arrives, before the Loop routes it.
  std::string method_;
  std::string authority_;
  Peer peer_;
  Metadata metadata_;
  Instant deadline_ = Instant::Infinite();
  absl::AnyInvocable<void() &&> ended_;  // null: nobody set it
};

// For a write that is under way when its call is closed. Shorter than what
// shutting down waits for calls that were asked to end.
inline constexpr absl::Duration kLastWriteGrace = absl::Seconds(2);

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_SERVER_CALL_H_
