#include "weft/net/loop/local_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"

namespace weft::net {

void LocalCall::Accept(Loop::Core& core, Descriptor socket) {
  absl::StatusOr<std::shared_ptr<LocalSockets>> sockets =
      core.UseLocalSockets();
  absl::Status status = sockets.status();
  if (status.ok()) {
    const auto call = std::make_shared<LocalCall>(core.shared_from_this(),
                                                  *sockets, std::move(socket));
    status = (*sockets)->queue.AddSocket(std::shared_ptr<SocketSource>(
        call, static_cast<LocalEnd*>(call.get())));
  }
  // Its caller finds the socket closed.
  if (!status.ok()) {
    core.refusal_log().Refused("connection", "unix", "to connect",
                               status.message());
  }
}

LocalCall::LocalCall(std::shared_ptr<Loop::Core> core,
                     std::shared_ptr<LocalSockets> sockets, Descriptor socket)
    : ServerCall(std::move(core)),
      LocalEnd(std::move(sockets), std::move(socket),
               LocalFrameReader::End::kCallee),
      came_(SteadyClock().Now()) {
  peer_.is_local = true;
  peer_.address = "unix";
}

void LocalCall::Serve(std::shared_ptr<StreamObserver> observer,
                      Messages messages) {
  messages_ = messages;
  bool let_go = false;
  {
    MutexLock lock(mu_);
    WEFT_CHECK(observer_ == nullptr);
    observer_ = std::move(observer);
    let_go = let_go_;
  }
  if (let_go) OnHandleDestroyed();
}

// Before Serve, its acceptor may yet refuse it, with a status of its own.
void LocalCall::OnHandleDestroyed() {
  {
    MutexLock lock(mu_);
    if (observer_ == nullptr) {
      let_go_ = true;
      return;
    }
  }
  Close(absl::CancelledError("the stream was destroyed"));
}

// ------------------------------------------------------------------- reading

void LocalCall::OnFrame(Frame frame) {
  if (frame.kind == FrameKind::kOpening) return OnOpening(frame.body);
  if (frame.kind == FrameKind::kMessage)
    return OnMessage(std::move(frame.body));
  OnHalfClose();
}

void LocalCall::OnOpening(const Slices& body) {
  absl::StatusOr<Opening> opening = ParseOpening(Flatten(body).view());
  if (!opening.ok()) return OnLost(opening.status());
  method_ = std::move(opening->method);
  authority_ = std::move(opening->endpoint);
  metadata_ = std::move(opening->metadata);
  is_open_ = true;
  if (core_->AddCall(nullptr, Self())) return core_->Route(*this);
  const absl::Status why =
      absl::UnavailableError("this process is shutting down");
  {
    MutexLock lock(mu_);
    BeginClose(why);
  }
  End(why);  // it is not waited for
}

void LocalCall::OnMessage(Slices message) {
  // Released by End() only, on this thread.
  StreamObserver* observer;
  {
    MutexLock lock(mu_);
    if (closing_.has_value()) return;
    observer = observer_.get();
  }
  if (messages_ == Messages::kOne && std::exchange(has_request_, true)) return;
  if (observer != nullptr) observer->OnMessage(std::move(message));
}

void LocalCall::OnHalfClose() {
  StreamObserver* observer;
  {
    MutexLock lock(mu_);
    if (closing_.has_value()) return;
    observer = observer_.get();
  }
  if (observer != nullptr && !has_request_) observer->OnHalfClosed(*this);
}

// It has sent nothing that may be served, for long enough.
void LocalCall::OnTick(Instant now) {
  if (!is_open_ && now - came_ >= sockets().opening_timeout) {
    return OnLost(absl::DeadlineExceededError(
        absl::StrCat("said too little for ", absl::FormatDuration(now - came_),
                     "; handshake_timeout is ",
                     absl::FormatDuration(sockets().opening_timeout))));
  }
  LocalEnd::OnTick(now);
}

void LocalCall::OnLost(absl::Status why) {
  const bool is_refused = !absl::IsUnavailable(why);
  if (is_refused) {
    core_->refusal_log().Refused(
        "connection", peer_.ToString(),
        is_open_ ? method_.substr(0, 256) : "to connect", why.message());
    MutexLock lock(mu_);
    BeginClose(why);
  }
  absl::Status status = absl::UnavailableError(
      absl::StrCat(peer_.ToString(), " ended ", method_,
                   " or its connection was lost (", why.message(), ")"));
  End(std::move(status));
}

// ------------------------------------------------------------------- writing

bool LocalCall::Write(Slices message) {
  const uint64_t size = TotalSize(message);
  if (size > sockets().limits.max_message_bytes) {
    Close(absl::ResourceExhaustedError(absl::StrCat(
        "a message of ", size, " bytes, larger than max (",
        sockets().limits.max_message_bytes, ", max_message_bytes)")));
    return true;
  }
  MutexLock lock(mu_);
  if (writing_ || closing_.has_value() || fd() < 0) return false;
  writing_ = true;
  waits_to_be_written_ = !Send(FrameKind::kMessage, std::move(message));
  if (!waits_to_be_written_)
    sockets().poller.Post([self = Self()] { self->EndWrite(); });
  return true;
}

void LocalCall::EndWrite() {
  StreamObserver* observer = nullptr;  // as in OnMessage
  {
    MutexLock lock(mu_);
    writing_ = waits_to_be_written_ = false;
    if (!closing_.has_value()) observer = observer_.get();
  }
  if (observer != nullptr) observer->OnWritten();
}

void LocalCall::OnSent() {
  std::optional<absl::Status> closing;
  bool written;
  {
    MutexLock lock(mu_);
    closing = closing_;
    written = waits_to_be_written_;
  }
  if (closing.has_value()) return End(*std::move(closing));
  if (written) EndWrite();
}

void LocalCall::Close(absl::Status status) {
  MutexLock lock(mu_);
  if (!closing_.has_value()) BeginClose(std::move(status));
}

void LocalCall::Answer(Slices response) {
  {
    MutexLock lock(mu_);
    if (closing_.has_value()) return;
    WEFT_CHECK(!writing_);
    Send(FrameKind::kMessage, std::move(response));
    BeginClose(absl::OkStatus());
  }
}

// A peer that does not read would keep what ends the call, and with it the
// call, for as long as it lives.
void LocalCall::BeginClose(absl::Status status) {
  closing_ = status;
  if (fd() < 0) return;
  const std::string body = ToClosingBody(status);
  if (Send(FrameKind::kClosing, {Bytes::Own(body)})) {
    sockets().poller.Post([self = Self(), status] { self->End(status); });
  } else {
    sockets().poller.RunAt(
        SteadyClock().Now() + kLastWriteGrace, [weak = weak_from_this()] {
          const auto self = std::static_pointer_cast<LocalCall>(weak.lock());
          if (self == nullptr) return;
          self->OnLost(absl::UnavailableError("it does not read"));
        });
  }
}

void LocalCall::End(absl::Status status) {
  if (is_closed()) return;
  const auto self = Self();
  CloseSocket();
  std::shared_ptr<StreamObserver> observer;
  {
    MutexLock lock(mu_);
    if (!closing_.has_value()) closing_ = status;
    observer = std::exchange(observer_, nullptr);
  }
  if (observer != nullptr) observer->OnClosed(std::move(status));
  if (ended_ != nullptr) std::move(ended_)();
  if (is_open_) core_->RemoveCall(this);
}

}  // namespace weft::net
