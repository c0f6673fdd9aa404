#include "weft/net/loop/local_end.h"

#include <errno.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::net {
namespace {

// Then others have their turn: about 5 MB, or a thousand small messages.
constexpr int kReadsInARow = 16;

}  // namespace

absl::Duration LocalSockets::tick() const {
  const absl::Duration shortest =
      std::min({keepalive_interval, keepalive_timeout, opening_timeout});
  return std::max(shortest / 2, absl::Milliseconds(5));
}

LocalEnd::LocalEnd(std::shared_ptr<LocalSockets> sockets, Descriptor socket,
                   LocalFrameReader::End end)
    : sockets_(std::move(sockets)),
      reader_(end, sockets_->limits),
      heard_at_(SteadyClock().Now()),
      socket_(std::move(socket)) {}

LocalEnd::~LocalEnd() { sockets_->buffered_bytes.fetch_sub(buffered_); }

bool LocalEnd::OnReady(bool ends) {
  if (closed_) return false;
  Flush();
  bool more = true;
  frames_ = 0;
  for (int i = 0; i < kReadsInARow && more && !closed_; ++i) more = Read(ends);
  // None of them adds another: only a message does.
  for (auto& fn : std::exchange(after_burst_, {})) std::move(fn)();
  return more && !closed_;
}

bool LocalEnd::RunAfterBurst(absl::AnyInvocable<void() &&> fn) {
  if (frames_ < 2 && !more_came_) return false;
  after_burst_.push_back(std::move(fn));
  return true;
}

// True if there may be more. What is short of the room is all there was, but
// for the end, if that is there.
bool LocalEnd::Read(bool ends) {
  const absl::Span<uint8_t> room = reader_.Room();
  const iovec parts[] = {{room.data(), room.size()},
                         {sockets_->scratch.data(), sockets_->scratch.size()}};
  const ssize_t read = readv(fd(), parts, 2);
  if (read < 0 && errno == EINTR) return true;
  if (read < 0 && errno == EAGAIN) return false;
  if (read <= 0) {
    OnLost(absl::UnavailableError(
        read == 0 ? "Socket closed"
                  : absl::StrCat("Socket closed: ", strerror(errno))));
    return false;
  }
  heard_ = true;
  const size_t bytes = static_cast<size_t>(read);
  const size_t in_room = std::min(bytes, room.size());
  if (in_room > 0) {
    reader_.Filled(in_room);
    more_came_ = bytes > in_room;
    TakeFrame();
  }
  absl::Span<const uint8_t> rest(sockets_->scratch.data(), bytes - in_room);
  while (!closed_ && !rest.empty()) {
    const absl::StatusOr<size_t> taken = reader_.Take(rest);
    if (!taken.ok()) {
      OnLost(taken.status());
      return false;
    }
    rest.remove_prefix(*taken);
    more_came_ = !rest.empty();
    TakeFrame();
  }
  const bool is_full = bytes == room.size() + sockets_->scratch.size();
  return CountBuffered() && (is_full || ends);
}

void LocalEnd::TakeFrame() {
  std::optional<Frame> frame = reader_.TakeFrame();
  if (!frame.has_value() || frame->kind == FrameKind::kPong) return;
  if (frame->kind == FrameKind::kPing) return Pong();
  ++frames_;
  OnFrame(*std::move(frame));
}

// One is enough for all that ask meanwhile.
void LocalEnd::Pong() {
  MutexLock lock(mu_);
  owes_pong_ = true;
  if (!sender_.is_empty()) return;  // Flush() goes on
  owes_pong_ = false;
  Send(FrameKind::kPong);
}

// False: it has ended.
bool LocalEnd::CountBuffered() {
  if (closed_) return false;
  const int64_t now = static_cast<int64_t>(reader_.held_bytes());
  const int64_t more = now - std::exchange(buffered_, now);
  if (more == 0) return true;
  const int64_t all = sockets_->buffered_bytes.fetch_add(more) + more;
  if (more < 0 || all <= sockets_->max_buffered_bytes) return true;
  OnLost(absl::ResourceExhaustedError(absl::StrCat(
      "messages that are not whole hold ", all,
      " bytes, and max_buffered_bytes is ", sockets_->max_buffered_bytes,
      "; raise it by --limits=max_buffered_bytes=VALUE")));
  return false;
}

bool LocalEnd::Send(FrameKind kind, Slices body) {
  if (socket_.get() < 0) return false;
  const FrameSender::Sent sent =
      sender_.Send(socket_.get(), kind, std::move(body));
  WatchRoomAfter(sent);
  return sent == FrameSender::Sent::kAll;
}

// Where the other end reads no more, what it said before is read, and then its
// end.
void LocalEnd::WatchRoomAfter(FrameSender::Sent sent) {
  const bool waits = sent == FrameSender::Sent::kSome;
  if (std::exchange(waits_for_room_, waits) == waits) return;
  sockets_->queue.WatchRoom(*this, waits);
}

void LocalEnd::Flush() {
  {
    MutexLock lock(mu_);
    if (sender_.is_empty() || socket_.get() < 0) return;
    const uint64_t before = sender_.sent_bytes();
    const FrameSender::Sent sent = sender_.Flush(socket_.get());
    // Who makes room lives.
    heard_ |= waits_for_room_ && sender_.sent_bytes() > before;
    WatchRoomAfter(sent);
    if (!sender_.is_empty()) return;
    if (std::exchange(owes_pong_, false)) Send(FrameKind::kPong);
  }
  OnSent();
}

void LocalEnd::OnTick(Instant now) {
  if (closed_) return;
  if (std::exchange(heard_, false)) {
    heard_at_ = now;
    pinged_at_ = Instant::Infinite();
  } else if (!pinged_at_.is_infinite()) {
    if (now - pinged_at_ < sockets_->keepalive_timeout) return;
    // What came while this process had no turn counts.
    OnReady(/*ends=*/true);
    if (closed_ || heard_) return;
    OnLost(absl::UnavailableError(absl::StrCat(
        "keepalive: no sign of life for ",
        absl::FormatDuration(now - heard_at_),
        ": its process is stopped, or has had no turn for so long")));
  } else if (now - heard_at_ >= sockets_->keepalive_interval) {
    pinged_at_ = now;
    MutexLock lock(mu_);
    Send(FrameKind::kPing);
  }
}

void LocalEnd::CloseSocket() {
  if (std::exchange(closed_, true)) return;
  sockets_->queue.RemoveSocket(this);
  sockets_->buffered_bytes.fetch_sub(std::exchange(buffered_, 0));
  FrameSender unsent;  // dies without the lock
  MutexLock lock(mu_);
  std::swap(unsent, sender_);
  Descriptor closing;
  std::swap(closing, socket_);
}

}  // namespace weft::net
