#include "weft/net/call/client_call.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/net/call/connection_reset.h"

namespace weft::net {
namespace {

// gRPC's message for a connection that could not be made begins with one of
// these, a code and the address.
constexpr absl::string_view kNotConnected =
    "failed to connect to all addresses; last error: ";

// What the user may look at where a unix socket was closed, at which nobody
// wants a certificate.
constexpr absl::string_view kClosedIt =
    "; it closed the connection: another program has this address, or the log "
    "of the worker there says why";

bool IsOfClosedConnection(absl::string_view message) {
  return absl::StrContains(message, "Connection reset") ||
         absl::StrContains(message, "Socket closed") ||
         absl::StrContains(message, "Broken pipe") ||
         absl::StrContains(message, "Transport closed");
}

// The rest of it, and what the user may look at.
absl::Status WhyNotConnected(const Target& target, absl::string_view message) {
  for (int i = 0; i < 2; ++i) {
    const size_t at = message.find(": ");
    if (at != message.npos) message.remove_prefix(at + 2);
  }
  constexpr absl::string_view kNobody =
      "nobody listens there: is it running, and is this its address?";
  constexpr absl::string_view kReset =
      "it closed the connection: its log says why; it wants a certificate of "
      "its job that has neither expired nor been revoked";
  constexpr absl::string_view kForeign =
      "another program has this address and speaks no gRPC, or the worker "
      "there is stopped: is this its address?";
  constexpr std::pair<absl::string_view, absl::string_view> kHints[] = {
      {"Connection refused", kNobody},
      {"No such file", kNobody},
      {"wrong version number",
       "it speaks no TLS: another program, or one with --insecure"},
      {"Failed parsing HTTP/2", "another program answers there, no worker"},
      {"SETTINGS frame", kForeign},
      {"Connection reset", kReset},
      {"Socket closed", kReset},
  };
  const std::string text = absl::StrCat(target.ToString(), ": ", message);
  const bool is_unix = absl::StartsWith(target.address, "unix:");
  if (is_unix && IsOfClosedConnection(message)) {
    return absl::UnavailableError(absl::StrCat(text, kClosedIt));
  }
  for (const auto& [words, hint] : kHints) {
    if (!absl::StrContains(message, words)) continue;
    const absl::Status why =
        absl::UnavailableError(absl::StrCat(text, "; ", hint));
    return hint == kReset ? MarkConnectionReset(why) : why;
  }
  return absl::UnavailableError(text);
}

void AddMetadata(const Metadata& metadata, grpc::ClientContext& context) {
  for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
}

}  // namespace

std::string Target::ToString() const {
  return name.empty() ? address : absl::StrCat(name, " at ", address);
}

absl::Status Target::ExplainUnanswered(absl::Status status) const {
  const absl::Status explained = Explain(std::move(status));
  if (!absl::IsUnavailable(explained) ||
      !IsOfClosedConnection(explained.message())) {
    return explained;
  }
  return absl::UnavailableError(absl::StrCat(explained.message(), kClosedIt));
}

absl::Status Target::Explain(absl::Status status) const {
  if (!absl::IsUnavailable(status)) return status;
  // gRPC says in words only that the one who answers is the wrong one, which no
  // further attempt changes.
  for (const absl::string_view words :
       {"certificate verify failed", "is not in peer certificate"}) {
    if (!absl::StrContains(status.message(), words)) continue;
    if (absl::StrContains(status.message(), "mismatch")) {
      const std::string who =
          name.empty() ? "over TLS it must be said which worker is wanted"
                       : absl::StrCat("another than ", name,
                                      " answers there, or one of another job");
      return absl::UnauthenticatedError(
          absl::StrCat(ToString(), ": ", status.message(), "; ", who));
    }
    return absl::UnauthenticatedError(absl::StrCat(
        ToString(), ": ", status.message(), "; wanted the certificate of ",
        name.empty() ? "a member" : name,
        " of this job, by the same authority as one's own: give all its "
        "workers the folder of one `weft certs init`"));
  }
  absl::string_view message = status.message();
  if (absl::ConsumePrefix(&message, kNotConnected)) {
    return WhyNotConnected(*this, message);
  }
  return absl::UnavailableError(absl::StrCat(ToString(), ": ", message));
}

ClientUnary::ClientUnary(const Target& target, std::string method,
                         absl::Duration timeout)
    : target_(target),
      method_(std::move(method)),
      timeout_(timeout),
      promise_(target.core->poller()) {}

Future<Slices> ClientUnary::Start(const void* owner, const Target& target,
                                  std::string method, Slices request,
                                  absl::Duration timeout,
                                  const Metadata& metadata) {
  auto call = std::make_shared<ClientUnary>(target, std::move(method), timeout);
  Future<Slices> future = call->promise_.future();
  if (!target.core->AddCall(owner, call)) {
    call->promise_.Set(absl::UnavailableError(
        absl::StrCat(target.ToString(), ": this process is shutting down")));
    target.core->RemoveCall(call.get());
    return future;
  }
  call->promise_.OnCancel(
      [weak = std::weak_ptr<ClientUnary>(call)](const absl::Status& reason) {
        if (auto alive = weak.lock()) alive->Abort(reason);
      });
  call->Begin(std::move(request), metadata);
  return future;
}

void ClientUnary::Begin(Slices request, const Metadata& metadata) {
  context_->set_deadline(ToGpr(SteadyClock().Now() + timeout_));
  context_->set_wait_for_ready(target_.wait_for_ready);
  AddMetadata(metadata, *context_);
  grpc::GenericStub stub(target_.channel);
  reader_ = stub.PrepareUnaryCall(&*context_, method_, ToByteBuffer(request),
                                  target_.core->queue());
  reader_->StartCall();
  // From here on the call may end on another thread.
  reader_->Finish(&response_, &status_, &finished_);
}

// A context that is cancelled before its call has started cancels the call when
// it starts.
void ClientUnary::Abort(absl::Status reason) {
  MutexLock lock(mu_);
  if (over_ || aborted_.has_value()) return;
  aborted_ = std::move(reason);
  context_->TryCancel();  // the queue says what becomes of it
}

void ClientUnary::OnFinished(bool) {
  const auto self = shared_from_this();
  absl::Status status = FromGrpc(status_);
  {
    MutexLock lock(mu_);
    over_ = true;
    if (aborted_.has_value() && absl::IsCancelled(status)) status = *aborted_;
  }
  if (absl::IsDeadlineExceeded(status)) {
    status = absl::DeadlineExceededError(
        absl::StrCat(method_, " to ", target_.ToString(), ": no answer within ",
                     absl::FormatDuration(timeout_)));
  }
  Result<Slices> result = status.ok()
                              ? Result<Slices>(FromByteBuffer(response_))
                              : target_.Explain(status);
  reader_ = nullptr;
  {
    MutexLock lock(mu_);
    context_.reset();
  }
  promise_.Set(std::move(result));
  target_.core->RemoveCall(this);
}

struct ClientStream::Grpc {
  explicit Grpc(ClientStream* call)
      : started(call),
        read(call),
        write(call),
        writes_done(call),
        finished(call) {}

  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  grpc::ByteBuffer incoming;
  grpc::Status status;
  MemberTag<ClientStream, &ClientStream::OnStarted> started;
  MemberTag<ClientStream, &ClientStream::OnRead> read;
  MemberTag<ClientStream, &ClientStream::OnWrite> write;
  MemberTag<ClientStream, &ClientStream::OnWritesDone> writes_done;
  MemberTag<ClientStream, &ClientStream::OnFinished> finished;
};

ClientStream::ClientStream(const Target& target, std::string method,
                           std::shared_ptr<StreamObserver> observer)
    : target_(target),
      method_(std::move(method)),
      grpc_(std::make_shared<Grpc>(this)),
      observer_(std::move(observer)) {
  peer_.address = target_.ToString();
}

ClientStream::~ClientStream() = default;

std::unique_ptr<Stream> ClientStream::Open(
    const void* owner, const Target& target, std::string method,
    std::shared_ptr<StreamObserver> observer, const Metadata& metadata) {
  auto call = std::make_shared<ClientStream>(target, std::move(method),
                                             std::move(observer));
  auto handle = std::make_unique<StreamHandle<ClientStream>>(call);
  if (target.core->AddCall(owner, call)) {
    call->Begin(metadata);
    return handle;
  }
  {
    MutexLock lock(call->mu_);
    call->grpc_ = nullptr;
  }
  // Run or dropped: where the Loop has ended, it is dropped here.
  target.core->poller().Post(
      [refuse = absl::MakeCleanup([call] { call->Refuse(); })] {});
  return handle;
}

void ClientStream::Refuse() {
  std::shared_ptr<StreamObserver> refused;
  {
    MutexLock lock(mu_);
    refused = std::exchange(observer_, nullptr);
  }
  refused->OnClosed(absl::UnavailableError(
      absl::StrCat(target_.ToString(), ": this process is shutting down")));
  target_.core->RemoveCall(this);
}

void ClientStream::Begin(const Metadata& metadata) {
  std::shared_ptr<Grpc> grpc;
  {
    MutexLock lock(mu_);
    grpc = grpc_;
  }
  grpc->context.set_wait_for_ready(target_.wait_for_ready);
  AddMetadata(metadata, grpc->context);
  grpc::GenericStub stub(target_.channel);
  grpc->stream =
      stub.PrepareCall(&grpc->context, method_, target_.core->queue());
  grpc->stream->StartCall(&grpc->started);
}

void ClientStream::OnStarted(bool ok) {
  const auto self = shared_from_this();
  Grpc* grpc;  // as in OnRead
  std::optional<Slices> first;
  bool half_close = false;
  {
    MutexLock lock(mu_);
    grpc = grpc_.get();
    started_ = true;
    if (!ok) {
      writing_ = false;
      first_.reset();
    }
    first = std::exchange(first_, std::nullopt);
    if (ok && half_closing_ && !first.has_value())
      half_close = half_close_sent_ = half_close_open_ = true;
  }
  if (!ok) {
    grpc->stream->Finish(&grpc->status, &grpc->finished);
    return;
  }
  StartRead();
  if (first.has_value())
    grpc->stream->Write(ToByteBuffer(*first), &grpc->write);
  if (half_close) grpc->stream->WritesDone(&grpc->writes_done);
}

// REQUIRES: no read is under way, so that the call cannot be over, and grpc_
// stays.
void ClientStream::StartRead() {
  Grpc* grpc;
  {
    MutexLock lock(mu_);
    grpc = grpc_.get();
  }
  grpc->incoming.Clear();
  grpc->stream->Read(&grpc->incoming, &grpc->read);
}

void ClientStream::OnRead(bool ok) {
  // Released by EndIfOver only: on this thread, and not before the Finish that
  // follows the last read.
  StreamObserver* observer = nullptr;
  Grpc* grpc;
  {
    MutexLock lock(mu_);
    grpc = grpc_.get();
    if (!closed_here_.has_value()) observer = observer_.get();
  }
  if (!ok) {
    grpc->stream->Finish(&grpc->status, &grpc->finished);
    return;
  }
  Slices message = FromByteBuffer(grpc->incoming);
  in_burst_ = target_.core->NoteMessage(&looks_);
  // To ask for the next message makes gRPC announce window, in a packet of its
  // own unless something is being written. The thread that this message was for
  // may write before it looks at the queue again, and then both travel
  // together. Only where both ends sleep does the packet pay: it wakes the
  // peer's core for what may be written next.
  const bool at_once = target_.core->slept() > kPeerSleepsAfter;
  if (at_once) StartRead();
  if (observer != nullptr) observer->OnMessage(std::move(message));
  if (!at_once) target_.core->BeforeNextEvent([this] { StartRead(); });
}

bool ClientStream::Write(Slices message) {
  std::shared_ptr<Grpc> grpc;
  {
    MutexLock lock(mu_);
    if (grpc_ == nullptr || writing_ || half_closing_ ||
        closed_here_.has_value() || finished_)
      return false;
    writing_ = true;
    if (!started_) {
      first_ = std::move(message);
      return true;
    }
    grpc = grpc_;
  }
  grpc->stream->Write(ToByteBuffer(message), &grpc->write);
  return true;
}

void ClientStream::OnWrite(bool ok) {
  const auto self = shared_from_this();
  StreamObserver* observer = nullptr;  // both as in OnRead
  Grpc* grpc;
  bool half_close = false;
  {
    MutexLock lock(mu_);
    grpc = grpc_.get();
    writing_ = false;
    if (half_closing_ && !half_close_sent_)
      half_close = half_close_sent_ = half_close_open_ = true;
    if (ok && !half_closing_ && !closed_here_.has_value())
      observer = observer_.get();
  }
  if (half_close) grpc->stream->WritesDone(&grpc->writes_done);
  if (observer != nullptr) observer->OnWritten();
  EndIfOver();
}

void ClientStream::Close(absl::Status status) {
  std::shared_ptr<Grpc> grpc;
  const bool half = status.ok();
  {
    MutexLock lock(mu_);
    if (grpc_ == nullptr || finished_ || closed_here_.has_value() ||
        (half && half_closing_))
      return;
    grpc = grpc_;
    if (half) {
      half_closing_ = true;
      if (writing_ || !started_) return;  // OnWrite or OnStarted goes on
      half_close_sent_ = half_close_open_ = true;
    } else {
      closed_here_ = std::move(status);
    }
  }
  if (half) {
    grpc->stream->WritesDone(&grpc->writes_done);
  } else {
    grpc->context.TryCancel();
  }
}

void ClientStream::OnWritesDone(bool) {
  const auto self = shared_from_this();
  {
    MutexLock lock(mu_);
    half_close_open_ = false;
  }
  EndIfOver();
}

void ClientStream::OnFinished(bool) {
  const auto self = shared_from_this();
  {
    MutexLock lock(mu_);
    finished_ = true;
  }
  EndIfOver();
}

void ClientStream::EndIfOver() {
  std::shared_ptr<Grpc> over;
  std::shared_ptr<StreamObserver> observer;
  absl::Status status;
  {
    MutexLock lock(mu_);
    if (grpc_ == nullptr || !finished_ || writing_ || half_close_open_) return;
    over = std::exchange(grpc_, nullptr);
    observer = std::exchange(observer_, nullptr);
    status = closed_here_.has_value() ? *closed_here_
                                      : target_.Explain(FromGrpc(over->status));
  }
  observer->OnClosed(std::move(status));
  over = nullptr;  // before the Loop may believe that nothing is left
  target_.core->RemoveCall(this);
}

}  // namespace weft::net
