// FrameSender: sends frames over a socket that does not block, and keeps what
// does not fit.

#ifndef WEFT_NET_LOCAL_FRAME_SENDER_H_
#define WEFT_NET_LOCAL_FRAME_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/base/bytes.h"
#include "weft/net/local/local_frames.h"

namespace weft::net {

// Thread-safety: one thread at a time.
class FrameSender {
 public:
  enum class Sent {
    kAll,
    kSome,    // the socket is full: Flush() once it has room
    kBroken,  // the other end reads no more
  };

  // Keeps `bytes` for the next of the others.
  void Keep(Bytes bytes);
  // What is kept, then a frame. The memory of `body` is held until it is sent,
  // and not copied.
  Sent Send(int fd, FrameKind kind, Slices body = {});
  Sent Flush(int fd);

  bool is_empty() const { return kept_.empty(); }
  uint64_t sent_bytes() const { return sent_bytes_; }  // in all

 private:
  void DropSent(size_t* sent);

  uint64_t sent_bytes_ = 0;
  std::vector<Bytes> kept_;  // none of them is empty
};

}  // namespace weft::net

#endif  // WEFT_NET_LOCAL_FRAME_SENDER_H_
