// GrpcCall: a ServerCall that came by gRPC.

#ifndef WEFT_NET_LOOP_GRPC_CALL_H_
#define WEFT_NET_LOOP_GRPC_CALL_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/net/loop/loop_core.h"
#include "weft/net/loop/server_call.h"
#include "weft/net/stream.h"

namespace weft::net {

// gRPC's objects live until the status is sent and every operation has
// returned; this object, as long as anyone holds it. Thread-safety:
// thread-safe.
class GrpcCall final : public ServerCall {
 public:
  // Waits for one call to arrive.
  static void Request(Loop::Core& core);

  explicit GrpcCall(std::shared_ptr<Loop::Core> core);
  ~GrpcCall() override;

  void Serve(std::shared_ptr<StreamObserver> observer,
             Messages messages) override;
  void OnHandleDestroyed() override ABSL_LOCKS_EXCLUDED(mu_);

  bool Write(Slices message) override;
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override;
  void Close(absl::Status status) override;
  void Answer(Slices response) override;
  void Abort(absl::Status reason) override;

 private:
  struct Grpc;

  void OnArrived(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void OnDone(bool ok);
  void OnFinished(bool ok);

  void ReadPeer(const grpc::GenericServerContext& context);
  void StartRead();
  static void ReadNext(Grpc& grpc);
  void FinishWith(absl::Status status, std::optional<grpc::ByteBuffer> last);
  void CancelIfStill(bool GrpcCall::*under_way);
  bool TakeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndIfOver() ABSL_LOCKS_EXCLUDED(mu_);

  Messages messages_ = Messages::kAll;

  // Only the thread that polls uses these; see GrpcQueue::NoteMessage.
  uint64_t looks_ = 0;
  bool in_burst_ = false;

  Mutex mu_;
  std::shared_ptr<Grpc> grpc_ ABSL_GUARDED_BY(mu_);  // null when over
  std::shared_ptr<StreamObserver> observer_ ABSL_GUARDED_BY(mu_);
  // What Close() was given.
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool let_go_ ABSL_GUARDED_BY(mu_) = false;  // before Serve, or after the end
  // The status is on its way, or was.
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // Before its status was sent, and before its deadline.
  bool taken_back_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_GRPC_CALL_H_
