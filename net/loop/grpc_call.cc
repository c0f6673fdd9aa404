#include "weft/net/loop/grpc_call.h"

#include <grpc/support/time.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/base/check.h"

namespace weft::net {
struct GrpcCall::Grpc {
  explicit Grpc(GrpcCall* call)
      : arrived(call), read(call), write(call), done(call), finished(call) {}

  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
  grpc::ByteBuffer incoming;
  MemberTag<GrpcCall, &GrpcCall::OnArrived> arrived;
  MemberTag<GrpcCall, &GrpcCall::OnRead> read;
  MemberTag<GrpcCall, &GrpcCall::OnWrite> write;
  MemberTag<GrpcCall, &GrpcCall::OnDone> done;
  MemberTag<GrpcCall, &GrpcCall::OnFinished> finished;
  std::shared_ptr<GrpcCall> self;  // until it arrived, or did not
};

GrpcCall::GrpcCall(std::shared_ptr<Loop::Core> core)
    : ServerCall(std::move(core)) {}
GrpcCall::~GrpcCall() = default;

void GrpcCall::Request(Loop::Core& core) {
  auto call = std::make_shared<GrpcCall>(core.shared_from_this());
  auto grpc = std::make_shared<Grpc>(call.get());
  grpc->self = call;
  {
    MutexLock lock(call->mu_);
    call->grpc_ = grpc;
  }
  grpc->context.AsyncNotifyWhenDone(&grpc->done);
  core.service().RequestCall(&grpc->context, &grpc->stream, core.queue(),
                             core.queue(), &grpc->arrived);
}

void GrpcCall::OnArrived(bool ok) {
  std::shared_ptr<Grpc> grpc;
  {
    MutexLock lock(mu_);
    grpc = grpc_;
    if (!ok) grpc_ = nullptr;
  }
  // Outlives this function, in which `self` is released.
  const auto self = std::move(grpc->self);
  if (!ok) return;  // the server is shutting down; no other event will come
  const bool open = core_->AddCall(nullptr, self);
  // Those that wait behind it end with the server: a flood would last on.
  if (open) core_->RequestCall();
  method_ = grpc->context.method();
  authority_ = grpc->context.host();
  ReadPeer(grpc->context);
  if (open) {
    core_->Route(*this);
  } else {
    Close(absl::UnavailableError("this process is shutting down"));
  }
}

void GrpcCall::ReadPeer(const grpc::GenericServerContext& context) {
  const std::string uri = context.peer();
  peer_.is_local = absl::StartsWith(uri, "unix");
  peer_.address = peer_.is_local ? "unix" : AddressOfUri(uri);
  for (const grpc::string_ref& san : context.auth_context()->FindPropertyValues(
           "x509_subject_alternative_name")) {
    absl::StatusOr<Identity> identity = ParseIdentity({san.data(), san.size()});
    if (identity.ok()) peer_.identity = *std::move(identity);
  }
  for (const auto& [key, value] : context.client_metadata()) {
    metadata_.emplace_back(std::string(key.data(), key.size()),
                           std::string(value.data(), value.size()));
  }
  const gpr_timespec deadline =
      gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) != 0) {
    const gpr_timespec left =
        gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
    deadline_ = SteadyClock().Now() + absl::Seconds(left.tv_sec) +
                absl::Nanoseconds(left.tv_nsec);
  }
}

void GrpcCall::Serve(std::shared_ptr<StreamObserver> observer,
                     Messages messages) {
  messages_ = messages;
  bool let_go = false;
  {
    MutexLock lock(mu_);
    WEFT_CHECK(observer_ == nullptr);
    observer_ = std::move(observer);
    if (finishing_) return;
    reading_ = true;
    let_go = let_go_;
  }
  StartRead();
  if (let_go) OnHandleDestroyed();
}

// Before Serve, its acceptor may yet refuse it, with a status of its own.
void GrpcCall::OnHandleDestroyed() {
  {
    MutexLock lock(mu_);
    if (observer_ == nullptr) {
      let_go_ = true;
      return;
    }
  }
  Close(absl::CancelledError("the stream was destroyed"));
}

// REQUIRES: reading_ was set by the caller, who saw the call not finishing: so
// grpc_ stays.
void GrpcCall::StartRead() {
  Grpc* grpc;
  {
    MutexLock lock(mu_);
    grpc = grpc_.get();
  }
  ReadNext(*grpc);
}

void GrpcCall::OnRead(bool ok) {
  const auto self = shared_from_this();
  // Released by EndIfOver only, on this thread, and not while reading_.
  StreamObserver* observer;
  Grpc* grpc;
  bool deaf;
  {
    MutexLock lock(mu_);
    grpc = grpc_.get();
    observer = observer_.get();
    deaf = finishing_ || closing_.has_value() || cancelled_;
  }
  if (!deaf && ok) {
    Slices message = FromByteBuffer(grpc->incoming);
    in_burst_ = core_->NoteMessage(&looks_);
    // As in ClientStream::OnRead: the announcement of window travels with the
    // reply, unless it is to wake the peer while this message is handled.
    const bool at_once =
        messages_ == Messages::kAll && core_->slept() > kPeerSleepsAfter;
    if (at_once) ReadNext(*grpc);
    observer->OnMessage(std::move(message));
    if (at_once) return;
  }
  if (!deaf && !ok) observer->OnHalfClosed(*this);
  bool again;
  {
    MutexLock lock(mu_);
    again = ok && messages_ == Messages::kAll && !finishing_;
    reading_ = again;
  }
  if (again) {
    ReadNext(*grpc);
  } else {
    EndIfOver();
  }
}

void GrpcCall::ReadNext(Grpc& grpc) {
  grpc.incoming.Clear();
  grpc.stream.Read(&grpc.incoming, &grpc.read);
}

bool GrpcCall::Write(Slices message) {
  std::shared_ptr<Grpc> grpc;
  {
    MutexLock lock(mu_);
    if (writing_ || finishing_ || closing_.has_value() || cancelled_)
      return false;
    writing_ = true;
    grpc = grpc_;
  }
  grpc->stream.Write(ToByteBuffer(message), &grpc->write);
  return true;
}

bool GrpcCall::RunAfterBurst(absl::AnyInvocable<void() &&> fn) {
  if (!in_burst_) return false;
  core_->AfterBurst(std::move(fn));
  return true;
}

void GrpcCall::OnWrite(bool ok) {
  const auto self = shared_from_this();
  StreamObserver* observer = nullptr;  // as in OnRead
  absl::Status status;
  bool finish = false;
  {
    MutexLock lock(mu_);
    writing_ = false;
    if (closing_.has_value()) {
      finish = TakeFinish();
      status = *closing_;
    } else if (ok) {
      observer = observer_.get();
    }
  }
  if (finish) FinishWith(std::move(status), std::nullopt);
  if (observer != nullptr) observer->OnWritten();
  EndIfOver();
}

// True for the one caller that may start to finish.
bool GrpcCall::TakeFinish() {
  if (finishing_) return false;
  finishing_ = true;
  return true;
}

void GrpcCall::Close(absl::Status status) {
  bool under_way = false;
  {
    MutexLock lock(mu_);
    if (closing_.has_value() || finishing_) return;
    closing_ = status;
    under_way = writing_;
    if (!under_way) TakeFinish();
  }
  if (under_way) {  // OnWrite goes on
    return CancelIfStill(&GrpcCall::writing_);
  }
  FinishWith(std::move(status), std::nullopt);
}

// An answer or an end before this may not have been sent either.
void GrpcCall::Abort(absl::Status reason) {
  Close(std::move(reason));
  CancelIfStill(&GrpcCall::finishing_);
}

// A peer that does not read would keep the write, or what ends the call, and
// with it the call, for as long as its connection lives.
void GrpcCall::CancelIfStill(bool GrpcCall::*under_way) {
  core_->poller().RunAt(SteadyClock().Now() + kLastWriteGrace,
                        [under_way, weak = weak_from_this()] {
                          const auto self =
                              std::static_pointer_cast<GrpcCall>(weak.lock());
                          if (self == nullptr) return;
                          std::shared_ptr<Grpc> grpc;
                          {
                            MutexLock lock(self->mu_);
                            if (*self.*under_way) grpc = self->grpc_;
                          }
                          if (grpc != nullptr) grpc->context.TryCancel();
                        });
}

void GrpcCall::Answer(Slices response) {
  {
    MutexLock lock(mu_);
    if (closing_.has_value() || finishing_) return;
    WEFT_CHECK(!writing_);
    closing_ = absl::OkStatus();
    TakeFinish();
  }
  FinishWith(absl::OkStatus(), ToByteBuffer(response));
}

// REQUIRES: TakeFinish() gave the caller leave: so grpc_ stays until
// OnFinished.
void GrpcCall::FinishWith(absl::Status status,
                          std::optional<grpc::ByteBuffer> last) {
  std::shared_ptr<Grpc> grpc;
  {
    MutexLock lock(mu_);
    grpc = grpc_;
  }
  if (last.has_value()) {
    grpc->stream.WriteAndFinish(*last, grpc::WriteOptions(), grpc::Status::OK,
                                &grpc->finished);
  } else {
    grpc->stream.Finish(ToGrpc(status), &grpc->finished);
  }
}

// The call is over for gRPC, by our status or because the caller went away.
void GrpcCall::OnDone(bool) {
  const auto self = shared_from_this();
  bool finish;
  {
    MutexLock lock(mu_);
    done_ = true;
    cancelled_ = grpc_->context.IsCancelled();
    // The read of a stream fails first, and its observer may close it then: so
    // whether it was closed says nothing.
    taken_back_ = cancelled_ && SteadyClock().Now() < deadline_;
    // Even a call that was cancelled must be finished, once the write in flight
    // has come back.
    finish = !writing_ && TakeFinish();
    if (!finish && writing_ && !closing_.has_value())
      closing_ = absl::CancelledError();
  }
  if (finish) FinishWith(absl::CancelledError(), std::nullopt);
  EndIfOver();
}

void GrpcCall::OnFinished(bool) {
  const auto self = shared_from_this();
  {
    MutexLock lock(mu_);
    finished_ = true;
  }
  EndIfOver();
}

void GrpcCall::EndIfOver() {
  std::shared_ptr<Grpc> over;
  std::shared_ptr<StreamObserver> observer;
  absl::Status status;
  bool is_wasted;
  {
    MutexLock lock(mu_);
    if (grpc_ == nullptr || !finished_ || !done_ || reading_ || writing_)
      return;
    over = std::move(grpc_);
    grpc_ = nullptr;
    observer = std::move(observer_);
    observer_ = nullptr;
    is_wasted = taken_back_;
    status = cancelled_ ? absl::UnavailableError(
                              absl::StrCat(peer_.ToString(), " ended ", method_,
                                           " or its connection was lost"))
                        : closing_.value_or(absl::OkStatus());
  }
  if (is_wasted) core_->CountUselessCall(*this);
  if (observer != nullptr) observer->OnClosed(std::move(status));
  if (ended_ != nullptr) std::move(ended_)();
  over = nullptr;  // before the Loop may believe that nothing is left
  core_->RemoveCall(this);
}

}  // namespace weft::net
