// ClientUnary and ClientStream: calls that this process issued, from their
// start to their last event.

#ifndef WEFT_NET_CALL_CLIENT_CALL_H_
#define WEFT_NET_CALL_CLIENT_CALL_H_

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/net/loop/loop_core.h"
#include "weft/net/stream.h"

namespace weft::net {

// Where the calls of a channel go, for the calls themselves.
struct Target {
  std::shared_ptr<Loop::Core> core;
  std::shared_ptr<grpc::Channel> channel;  // null: a socket of its own
  std::string name;                        // ps0, or empty
  std::string address;                     // as the user gave it
  bool wait_for_ready = false;

  std::string ToString() const;  // ps0 at unix:/run/x
  // Adds where it happened to what the transport says.
  absl::Status Explain(absl::Status status) const;
  // Likewise, for a stream over a unix socket of its own on which nothing has
  // come.
  absl::Status ExplainUnanswered(absl::Status status) const;
};

// Thread-safety: thread-safe.
class ClientUnary final : public OpenCall,
                          public std::enable_shared_from_this<ClientUnary> {
 public:
  static Future<Slices> Start(const void* owner, const Target& target,
                              std::string method, Slices request,
                              absl::Duration timeout, const Metadata& metadata);

  ClientUnary(const Target& target, std::string method, absl::Duration timeout);

  void Abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Begin(Slices request, const Metadata& metadata);
  void OnFinished(bool ok);

  const Target target_;
  const std::string method_;
  const absl::Duration timeout_;
  Promise<Slices> promise_;
  // None once it is over: before the Loop may believe that nothing is left.
  std::optional<grpc::ClientContext> context_{std::in_place};
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  MemberTag<ClientUnary, &ClientUnary::OnFinished> finished_{this};

  Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> aborted_ ABSL_GUARDED_BY(mu_);
};

// Thread-safety: thread-safe.
class ClientStream final : public Stream,
                           public OpenCall,
                           public std::enable_shared_from_this<ClientStream> {
 public:
  static std::unique_ptr<Stream> Open(const void* owner, const Target& target,
                                      std::string method,
                                      std::shared_ptr<StreamObserver> observer,
                                      const Metadata& metadata);

  ClientStream(const Target& target, std::string method,
               std::shared_ptr<StreamObserver> observer);
  ~ClientStream() override;

  // Its owner has destroyed the stream.
  void OnHandleDestroyed() {
    Close(absl::CancelledError("the stream was destroyed"));
  }

  bool Write(Slices message) override;
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    if (!in_burst_) return false;
    target_.core->AfterBurst(std::move(fn));
    return true;
  }
  void Close(absl::Status status) override;
  void Abort(absl::Status reason) override { Close(std::move(reason)); }
  const Peer& peer() const override { return peer_; }
  const std::string& method() const override { return method_; }
  const Metadata& metadata() const override { return metadata_; }

 private:
  struct Grpc;

  void Begin(const Metadata& metadata);
  void Refuse();
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void OnWritesDone(bool ok);
  void OnFinished(bool ok);
  void StartRead();
  void EndIfOver() ABSL_LOCKS_EXCLUDED(mu_);

  const Target target_;
  const std::string method_;
  Peer peer_;
  const Metadata metadata_;  // none at this end

  // Only the thread that polls uses these; see GrpcQueue::NoteMessage.
  uint64_t looks_ = 0;
  bool in_burst_ = false;

  Mutex mu_;
  std::shared_ptr<Grpc> grpc_ ABSL_GUARDED_BY(mu_);  // null when over
  std::shared_ptr<StreamObserver> observer_ ABSL_GUARDED_BY(mu_);
  // Written before the call had started.
  std::optional<Slices> first_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closing_ ABSL_GUARDED_BY(mu_) = false;
  bool half_close_sent_ ABSL_GUARDED_BY(mu_) = false;
  // Its event has not come yet.
  bool half_close_open_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  // An error given to Close().
  std::optional<absl::Status> closed_here_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_CALL_CLIENT_CALL_H_
