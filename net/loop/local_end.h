// LocalEnd: what both ends of a stream over a unix socket have in common: the
// socket among the events of a Loop, and whether the other end lives.

#ifndef WEFT_NET_LOOP_LOCAL_END_H_
#define WEFT_NET_LOOP_LOCAL_END_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/local/frame_sender.h"
#include "weft/net/local/local_frames.h"
#include "weft/net/loop/memory_queue.h"
#include "weft/net/loop/poller.h"

namespace weft::net {

// What the local ends of a Loop share. Its queue and poller live until the last
// of them has closed its socket.
struct LocalSockets {
  MemoryQueue& queue;
  Poller& poller;  // of `queue`
  // As LoopOptions has them.
  LocalFrameReader::Limits limits;
  int64_t max_buffered_bytes;
  absl::Duration keepalive_interval;
  absl::Duration keepalive_timeout;
  absl::Duration opening_timeout;

  // The memory of messages that are not whole.
  std::atomic<int64_t> buffered_bytes{0};
  // Where sockets are read to. The thread that polls uses it.
  std::vector<uint8_t> scratch = std::vector<uint8_t>(64 << 10);

  // How often OnTick of each is wanted.
  absl::Duration tick() const;
};

// The functions of SocketSource, and those that it calls here, are called by
// the thread that polls.
class LocalEnd : public SocketSource {
 public:
  int fd() const override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return socket_.get();
  }
  bool OnReady(bool ends) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnTick(Instant now) override ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  LocalEnd(std::shared_ptr<LocalSockets> sockets, Descriptor socket,
           LocalFrameReader::End end);
  ~LocalEnd() override;

  virtual void OnFrame(Frame frame) = 0;
  // All that was to be sent has been, which it was not before.
  virtual void OnSent() = 0;
  // Nothing more comes: kUnavailable if the other end has closed its socket, or
  // gives no sign of life; else it has sent what it must not. To be followed by
  // CloseSocket().
  virtual void OnLost(absl::Status why) = 0;

  // Nothing is called any more. On the thread that polls.
  void CloseSocket() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_closed() const { return closed_; }  // likewise

  // True if all that was to be sent has been; else OnSent() or OnLost() comes.
  bool Send(FrameKind kind, Slices body = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With the next frame, or with Flush().
  void Keep(Bytes bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    sender_.Keep(std::move(bytes));
  }
  // As Stream's.
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn);
  // On the thread that polls.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  LocalSockets& sockets() { return *sockets_; }

  Mutex mu_;

 private:
  bool Read(bool ends);
  void TakeFrame();
  void Pong() ABSL_LOCKS_EXCLUDED(mu_);
  bool CountBuffered();
  void WatchRoomAfter(FrameSender::Sent sent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<LocalSockets> sockets_;

  // The thread that polls uses these.
  LocalFrameReader reader_;
  int64_t buffered_ = 0;  // counted in sockets_
  bool closed_ = false;
  int frames_ = 0;          // in this turn
  bool more_came_ = false;  // behind the frame that is being handled
  std::vector<absl::AnyInvocable<void() &&>> after_burst_;
  bool heard_ = false;  // since the last tick
  Instant heard_at_;
  Instant pinged_at_ = Instant::Infinite();  // if it was, and nothing came

  Descriptor socket_ ABSL_GUARDED_BY(mu_);
  FrameSender sender_ ABSL_GUARDED_BY(mu_);
  bool waits_for_room_ ABSL_GUARDED_BY(mu_) = false;
  bool owes_pong_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_LOCAL_END_H_
