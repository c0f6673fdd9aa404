// LocalStream: a stream to an endpoint of this host over a unix socket of its
// own, without gRPC: its calling end.

#ifndef WEFT_NET_CALL_LOCAL_STREAM_H_
#define WEFT_NET_CALL_LOCAL_STREAM_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/net/call/client_call.h"
#include "weft/net/loop/local_end.h"
#include "weft/net/loop/loop.h"
#include "weft/net/stream.h"

namespace weft::net {

// Connects to the unix socket `address` and opens a stream of `method` there,
// at the endpoint `name` (empty: the one there is). It costs a fraction of what
// Channel::OpenStream does, and ends with its connection. What opens it leaves
// with the first message, or with the next turn of the Loop. Otherwise as
// Channel::OpenStream.
//   kUnimplemented       the address is not a unix socket's
//   kUnavailable         it cannot be connected to without a wait, or the Loop
//                        was shut down: a Channel tries on, and says why
//   kInvalidArgument, kResourceExhausted  of the metadata: see ToBody
absl::StatusOr<std::unique_ptr<Stream>> OpenLocalStream(
    Loop& loop, absl::string_view address, const std::string& name,
    absl::string_view method, std::shared_ptr<StreamObserver> observer,
    const Metadata& metadata = {});

// Thread-safety: thread-safe.
class LocalStream final : public Stream,
                          public OpenCall,
                          private LocalEnd,
                          public std::enable_shared_from_this<LocalStream> {
 public:
  LocalStream(Target target, std::string method,
              std::shared_ptr<StreamObserver> observer,
              std::shared_ptr<LocalSockets> sockets, Descriptor socket);

  void Begin(const std::string& opening) ABSL_LOCKS_EXCLUDED(mu_);

  // Its owner has destroyed the stream.
  void OnHandleDestroyed() {
    Close(absl::CancelledError("the stream was destroyed"));
  }

  bool Write(Slices message) override ABSL_LOCKS_EXCLUDED(mu_);
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    return LocalEnd::RunAfterBurst(std::move(fn));
  }
  void Close(absl::Status status) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(absl::Status reason) override { Close(std::move(reason)); }
  const Peer& peer() const override { return peer_; }
  const std::string& method() const override { return method_; }
  const Metadata& metadata() const override { return metadata_; }

 private:
  void OnFrame(Frame frame) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnLost(absl::Status why) override;

  void EndWrite() ABSL_LOCKS_EXCLUDED(mu_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  const Target target_;
  const std::string method_;
  Peer peer_;
  const Metadata metadata_;  // none at this end

  bool has_heard_ = false;  // a message has come; on the thread that polls

  std::shared_ptr<StreamObserver> observer_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool waits_to_be_written_ ABSL_GUARDED_BY(mu_) = false;  // for OnSent()
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
  // An error given to Close().
  std::optional<absl::Status> closed_here_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_CALL_LOCAL_STREAM_H_
