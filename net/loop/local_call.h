// LocalCall: a ServerCall that came by a unix socket of its own, without gRPC.

#ifndef WEFT_NET_LOOP_LOCAL_CALL_H_
#define WEFT_NET_LOOP_LOCAL_CALL_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/net/loop/local_end.h"
#include "weft/net/loop/loop_core.h"
#include "weft/net/loop/server_call.h"

namespace weft::net {

// Thread-safety: thread-safe.
class LocalCall final : public ServerCall, private LocalEnd {
 public:
  // Serves whoever has connected to `socket`, which begins with kLocalProtocol.
  static void Accept(Loop::Core& core, Descriptor socket);

  LocalCall(std::shared_ptr<Loop::Core> core,
            std::shared_ptr<LocalSockets> sockets, Descriptor socket);

  void Serve(std::shared_ptr<StreamObserver> observer,
             Messages messages) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnHandleDestroyed() override ABSL_LOCKS_EXCLUDED(mu_);

  bool Write(Slices message) override ABSL_LOCKS_EXCLUDED(mu_);
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    return LocalEnd::RunAfterBurst(std::move(fn));
  }
  void Close(absl::Status status) override ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(Slices response) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(absl::Status reason) override { Close(std::move(reason)); }

 private:
  void OnFrame(Frame frame) override;
  void OnSent() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnLost(absl::Status why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnTick(Instant now) override;

  void OnOpening(const Slices& body);
  void OnMessage(Slices message) ABSL_LOCKS_EXCLUDED(mu_);
  void OnHalfClose() ABSL_LOCKS_EXCLUDED(mu_);
  void EndWrite() ABSL_LOCKS_EXCLUDED(mu_);
  void BeginClose(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<LocalCall> Self() {
    return std::static_pointer_cast<LocalCall>(shared_from_this());
  }

  const Instant came_;

  // The thread that polls uses these.
  bool is_open_ = false;  // it is among the Loop's calls
  Messages messages_ = Messages::kAll;
  bool has_request_ = false;  // of a call with one message

  std::shared_ptr<StreamObserver> observer_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool waits_to_be_written_ ABSL_GUARDED_BY(mu_) = false;  // for OnSent()
  bool let_go_ ABSL_GUARDED_BY(mu_) = false;  // before Serve, or after the end
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_LOCAL_CALL_H_
