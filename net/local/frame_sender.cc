#include "weft/net/local/frame_sender.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/types/span.h"

namespace weft::net {
namespace {

constexpr size_t kMostParts = 64;  // of one system call

// What one call sends.
class Parts {
 public:
  // False: it has no place for more.
  bool Add(const uint8_t* bytes, size_t size) {
    if (count_ == kMostParts) return false;
    parts_[count_++] = {const_cast<uint8_t*>(bytes), size};
    total_ += size;
    return true;
  }
  size_t total() const { return total_; }

  // False: nobody will read it. Kernel memory that is short now is found later.
  bool Send(int fd, size_t* sent) {
    msghdr message = {};
    message.msg_iov = parts_.data();
    message.msg_iovlen = count_;
    ssize_t bytes;
    do {
      bytes = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (bytes < 0 && errno == EINTR);
    *sent = bytes > 0 ? static_cast<size_t>(bytes) : 0;
    return bytes >= 0 || errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
  }

 private:
  std::array<iovec, kMostParts> parts_;
  size_t count_ = 0;
  size_t total_ = 0;
};

}  // namespace

void FrameSender::Keep(Bytes bytes) {
  if (!bytes.empty()) kept_.push_back(std::move(bytes));
}

FrameSender::Sent FrameSender::Send(int fd, FrameKind kind, Slices body) {
  const FrameHeader header = HeaderOf(kind, TotalSize(body));
  const bool fits = kept_.size() + 1 + body.size() <= kMostParts;
  size_t sent = 0;
  if (fits) {
    Parts parts;
    for (const Bytes& bytes : kept_) parts.Add(bytes.data(), bytes.size());
    parts.Add(header.data(), header.size());
    for (const Bytes& bytes : body) parts.Add(bytes.data(), bytes.size());
    if (!parts.Send(fd, &sent)) return Sent::kBroken;
    sent_bytes_ += sent;
  }
  DropSent(&sent);
  if (sent >= header.size()) {
    sent -= header.size();
  } else {
    kept_.push_back(
        Bytes::Copy(absl::Span<const uint8_t>(header).subspan(sent)));
    sent = 0;
  }
  for (const Bytes& bytes : body) {
    const size_t gone = std::min(sent, bytes.size());
    sent -= gone;
    Keep(bytes.subspan(gone));
  }
  if (kept_.empty()) return Sent::kAll;
  return fits ? Sent::kSome : Flush(fd);
}

FrameSender::Sent FrameSender::Flush(int fd) {
  while (!kept_.empty()) {
    Parts parts;
    for (const Bytes& bytes : kept_) {
      if (!parts.Add(bytes.data(), bytes.size())) break;
    }
    size_t sent = 0;
    if (!parts.Send(fd, &sent)) return Sent::kBroken;
    sent_bytes_ += sent;
    const bool is_full = sent < parts.total();
    DropSent(&sent);
    if (is_full) return Sent::kSome;
  }
  return Sent::kAll;
}

// Takes what was sent of the kept off both.
void FrameSender::DropSent(size_t* sent) {
  size_t whole = 0;
  while (whole < kept_.size() && *sent >= kept_[whole].size())
    *sent -= kept_[whole++].size();
  kept_.erase(kept_.begin(), kept_.begin() + whole);
  if (kept_.empty() || *sent == 0) return;
  kept_.front() = kept_.front().subspan(*sent);
  *sent = 0;
}

}  // namespace weft::net
