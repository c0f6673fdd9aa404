// Stream: one end of a long-lived bidirectional call that carries messages both
// ways.
//
// Both ends are the same type. A StreamObserver receives the events, one at a
// time and in order: OnMessage and OnWritten any number of times, then OnClosed
// once, after which the observer is released.

#ifndef WEFT_NET_STREAM_H_
#define WEFT_NET_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/net/tls/peer.h"

namespace weft::net {

class Stream;

// Runs on the Loop's polling thread, under InlineScope.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;

  // One whole message. Its slices are the transport's memory: holding them
  // holds that memory, and nothing else.
  virtual void OnMessage(Slices message) = 0;
  // The message given to Write has been taken: the next may be written. Its
  // slices may still be held.
  virtual void OnWritten() {}
  // The other end will write no more. By default this end closes too; one that
  // still has an answer to write overrides it. (A client's OnHalfClosed never
  // comes: there, OnClosed does.)
  virtual void OnHalfClosed(Stream& stream);
  // The last event. Ok if both ends closed in peace; else the peer's status,
  // what cut the connection (kUnavailable, naming the address), or what Close()
  // was given here.
  virtual void OnClosed(absl::Status status) = 0;
};

// Owned by who opened or accepted it; closed with kCancelled when it is
// destroyed.
//
// Thread-safety: thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;

  // Starts sending; the slices' memory is not copied and is held until
  // OnWritten. One at a time: false (and nothing sent) while one is in flight,
  // or once the stream is closing.
  virtual bool Write(Slices message) = 0;

  // For a message that is being handled: true if more messages of this stream
  // are likely to be at hand, as the one before came with no pause between.
  // Then `fn` runs once no more come, or many have come, on the polling thread;
  // so answers to all of them can be written together. In OnMessage only.
  virtual bool RunAfterBurst(absl::AnyInvocable<void() &&> /*fn*/) {
    return false;
  }

  // At the serving end: ends the call with `status`, after a write in flight.
  // At the calling end: Ok says that no more will be written and waits for the
  // peer's status; an error ends the call at once with it.
  virtual void Close(absl::Status status) = 0;

  virtual const Peer& peer() const = 0;
  virtual const std::string& method() const = 0;
  // What the caller sent along; empty at the calling end.
  virtual const Metadata& metadata() const = 0;
};

// For net itself: what the owner of a stream has of its `Call`, a Stream which
// lives until its last event, and which OnHandleDestroyed() closes.
template <typename Call>
class StreamHandle final : public Stream {
 public:
  explicit StreamHandle(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  ~StreamHandle() override { call_->OnHandleDestroyed(); }

  bool Write(Slices message) override {
    return call_->Write(std::move(message));
  }
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    return call_->RunAfterBurst(std::move(fn));
  }
  void Close(absl::Status status) override { call_->Close(std::move(status)); }
  const Peer& peer() const override { return call_->peer(); }
  const std::string& method() const override { return call_->method(); }
  const Metadata& metadata() const override { return call_->metadata(); }

 private:
  const std::shared_ptr<Call> call_;
};

}  // namespace weft::net

#endif  // WEFT_NET_STREAM_H_
