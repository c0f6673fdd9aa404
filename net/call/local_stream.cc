#include "weft/net/call/local_stream.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/net/address.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/loop/loop_core.h"

namespace weft::net {
namespace {

// Never waits: a unix socket is connected at once, or not.
absl::StatusOr<Descriptor> ConnectTo(const Address& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, address.path.data(),
         address.path.size());  // ParseAddress bounds it
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0 ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&name),
              sizeof name) != 0) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), ": connect: ", strerror(errno)));
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> OpenLocalStream(
    Loop& loop, absl::string_view address, const std::string& name,
    absl::string_view method, std::shared_ptr<StreamObserver> observer,
    const Metadata& metadata) {
  WEFT_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  if (parsed.kind != Address::Kind::kUnix) {
    return absl::UnimplementedError(
        absl::StrCat("wanted a unix socket to connect to, found ", address));
  }
  WEFT_ASSIGN_OR_RETURN(auto sockets, loop.core().UseLocalSockets());
  WEFT_ASSIGN_OR_RETURN(
      const std::string opening,
      ToBody({name, std::string(method), metadata},
             static_cast<size_t>(sockets->limits.max_opening_bytes)));
  WEFT_ASSIGN_OR_RETURN(Descriptor socket, ConnectTo(parsed));
  Target target;
  target.core = loop.core().shared_from_this();
  target.name = name;
  target.address = parsed.ToString();
  const auto stream = std::make_shared<LocalStream>(
      std::move(target), std::string(method), std::move(observer),
      std::move(sockets), std::move(socket));
  auto handle = std::make_unique<StreamHandle<LocalStream>>(stream);
  stream->Begin(opening);
  return handle;
}

LocalStream::LocalStream(Target target, std::string method,
                         std::shared_ptr<StreamObserver> observer,
                         std::shared_ptr<LocalSockets> sockets,
                         Descriptor socket)
    : LocalEnd(std::move(sockets), std::move(socket),
               LocalFrameReader::End::kCaller),
      target_(std::move(target)),
      method_(std::move(method)),
      observer_(std::move(observer)) {
  peer_.address = target_.ToString();
}

void LocalStream::Begin(const std::string& opening) {
  if (!target_.core->AddCall(nullptr, shared_from_this())) {
    return Close(absl::UnavailableError(
        absl::StrCat(target_.ToString(), ": this process is shutting down")));
  }
  absl::Status added;
  {
    const FrameHeader header = HeaderOf(FrameKind::kOpening, opening.size());
    MutexLock lock(mu_);
    if (closed_here_.has_value()) return;  // the Loop ends
    Keep(Bytes::Own(absl::StrCat(
        kLocalPreface,
        absl::string_view(reinterpret_cast<const char*>(header.data()),
                          header.size()),
        opening)));
    added = sockets().queue.AddSocket(std::shared_ptr<SocketSource>(
        shared_from_this(), static_cast<LocalEnd*>(this)));
  }
  if (!added.ok()) {
    return Close(absl::UnavailableError(
        absl::StrCat(target_.ToString(), ": ", added.message())));
  }
  // A message that is written by then takes it along.
  sockets().poller.Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Flush();
  });
}

void LocalStream::OnFrame(Frame frame) {
  StreamObserver* observer;  // released by End() only, on this thread
  {
    MutexLock lock(mu_);
    if (closed_here_.has_value()) return;
    observer = observer_.get();
  }
  if (frame.kind == FrameKind::kMessage) {
    has_heard_ = true;
    return observer->OnMessage(std::move(frame.body));
  }
  absl::Status said;
  const absl::Status parsed = ParseClosing(Flatten(frame.body).view(), &said);
  if (!parsed.ok()) return OnLost(parsed);
  End(target_.Explain(std::move(said)));
}

void LocalStream::OnLost(absl::Status why) {
  if (absl::IsInvalidArgument(why)) {
    why = absl::UnavailableError(absl::StrCat(
        "it does not answer as ", absl::StripAsciiWhitespace(kLocalPreface),
        " does (", why.message(),
        "): another program has this address, or a worker of another build"));
  }
  End(has_heard_ ? target_.Explain(std::move(why))
                 : target_.ExplainUnanswered(std::move(why)));
}

bool LocalStream::Write(Slices message) {
  const uint64_t size = TotalSize(message);
  if (size > sockets().limits.max_message_bytes) {
    Close(absl::ResourceExhaustedError(absl::StrCat(
        "a message of ", size, " bytes, larger than max (",
        sockets().limits.max_message_bytes, ", max_message_bytes)")));
    return true;
  }
  MutexLock lock(mu_);
  if (writing_ || half_closed_ || closed_here_.has_value() || fd() < 0)
    return false;
  writing_ = true;
  waits_to_be_written_ = !Send(FrameKind::kMessage, std::move(message));
  if (!waits_to_be_written_) {
    sockets().poller.Post([self = shared_from_this()] { self->EndWrite(); });
  }
  return true;
}

void LocalStream::EndWrite() {
  StreamObserver* observer = nullptr;
  {
    MutexLock lock(mu_);
    writing_ = waits_to_be_written_ = false;
    if (!half_closed_ && !closed_here_.has_value()) observer = observer_.get();
  }
  if (observer != nullptr) observer->OnWritten();
}

void LocalStream::OnSent() {
  bool written;
  {
    MutexLock lock(mu_);
    written = waits_to_be_written_;
  }
  if (written) EndWrite();
}

void LocalStream::Close(absl::Status status) {
  {
    MutexLock lock(mu_);
    if (closed_here_.has_value() || fd() < 0) return;
    if (status.ok()) {
      if (!std::exchange(half_closed_, true)) Send(FrameKind::kHalfClose);
      return;
    }
    closed_here_ = std::move(status);
  }
  // Run or dropped: where the poller has ended, it is dropped here.
  sockets().poller.Post([end = absl::MakeCleanup([self = shared_from_this()] {
                           self->End({});
                         })] {});
}

void LocalStream::End(absl::Status status) {
  if (is_closed()) return;
  const auto self = shared_from_this();
  CloseSocket();
  std::shared_ptr<StreamObserver> observer;
  {
    MutexLock lock(mu_);
    observer = std::exchange(observer_, nullptr);
    if (closed_here_.has_value()) status = *closed_here_;
  }
  observer->OnClosed(std::move(status));
  target_.core->RemoveCall(this);
}

}  // namespace weft::net
