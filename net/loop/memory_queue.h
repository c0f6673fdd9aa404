// MemoryQueue: events that other processes of the host put into memory which
// they share with this one, or send over sockets.
//
// To look at memory costs no system call. A reader that is about to sleep
// announces it in each memory, looks once more, and then sleeps until an
// EventFd is signalled: a writer signals it if the reader sleeps. Sockets wake
// who sleeps by themselves. Who does not sleep looks for them with each look
// where they had an event lately, and else now and then.

#ifndef WEFT_NET_LOOP_MEMORY_QUEUE_H_
#define WEFT_NET_LOOP_MEMORY_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/loop/poller.h"

namespace weft::net {

// An eventfd, which another process may hold too.
//
// Thread-safety: thread-safe.
class EventFd {
 public:
  static absl::StatusOr<EventFd> Create();
  // What a process of this user handed over; kInvalidArgument if it is
  // something else.
  static absl::StatusOr<EventFd> FromDescriptor(Descriptor descriptor);

  // Wakes who sleeps at it, or the next who would. Never waits.
  void Ring() const;
  int fd() const { return fd_.get(); }

 private:
  explicit EventFd(Descriptor fd) : fd_(std::move(fd)) {}

  Descriptor fd_;
};

// Memory in which events appear. All but Handle() is called by the thread that
// polls and must be short; Handle() runs among the Loop's callbacks.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  virtual bool HasWork() = 0;
  // From now on the eventfd must ring when work comes. Returns HasWork() as it
  // is after that.
  virtual bool BeginSleep() = 0;
  virtual void EndSleep() = 0;
  // Does some of the work.
  virtual void Handle() = 0;
  // Where others ring for this source.
  virtual const EventFd& event_fd() const = 0;
};

// A connected socket that does not block. Its functions are called by the
// thread that polls, among the Loop's callbacks.
class SocketSource {
 public:
  virtual ~SocketSource() = default;

  // Open from AddSocket to RemoveSocket.
  virtual int fd() const = 0;
  // Reads what has come, and writes what has room. `ends`: the other end has
  // closed, or nearly so: nothing further tells of it. True: there may be more
  // to do; others have their turn first.
  virtual bool OnReady(bool ends) = 0;
  // Now and then, for its time-outs.
  virtual void OnTick(Instant now) = 0;
};

// Looks at memory among the events of a Loop.
//
// Thread-safety: thread-safe.
class MemoryWatch {
 public:
  virtual ~MemoryWatch() = default;
  // Handles what comes in `source` from now on, among the callbacks of the
  // Loop. kFailedPrecondition: the Loop has been shut down.
  virtual absl::Status AddMemory(std::shared_ptr<MemorySource> source) = 0;
  virtual void RemoveMemory(const MemorySource* source) = 0;
};

// Thread-safety: thread-safe, but for Next and Handle: see EventQueue.
class MemoryQueue final : public EventQueue {
 public:
  static absl::StatusOr<std::unique_ptr<MemoryQueue>> Create();

  absl::Status Add(std::shared_ptr<MemorySource> source)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Its Handle() may run once more, if that is being waited for.
  void Remove(const MemorySource* source) ABSL_LOCKS_EXCLUDED(mu_);
  // Has source->OnReady() run when something comes, and first for what is there
  // already. kFailedPrecondition: the queue has ended.
  absl::Status AddSocket(std::shared_ptr<SocketSource> source)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing of it runs any more, unless it is doing so. Its descriptor may be
  // closed then.
  void RemoveSocket(const SocketSource* source) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether OnReady() is to run also when there is room to write, and at once
  // if there is.
  void WatchRoom(const SocketSource& source, bool watch)
      ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: on the thread that polls, among callbacks.
  void TickSockets(Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  int sockets() const { return socket_count_.load(); }

  // Next returns kEnd from now on.
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  // Releases the sockets. REQUIRES: ended, and nobody polls.
  void DropSockets() ABSL_LOCKS_EXCLUDED(mu_);

  Outcome Next(Instant deadline) override ABSL_LOCKS_EXCLUDED(mu_);
  void Handle() override;
  void Wake() override;

 private:
  MemoryQueue(EventFd event_fd, Descriptor epoll);

  void TakeSources() ABSL_LOCKS_EXCLUDED(mu_);
  // True if one has work: it is taken_.
  bool Look();
  void Sleep(Instant deadline);
  // Takes the sockets' events.
  void PollSockets(int timeout_ms);
  bool IsTimeForSockets();
  // True if one has work: it is taken_socket_.
  bool LookAtSockets() ABSL_LOCKS_EXCLUDED(mu_);

  const EventFd event_fd_;  // of the queue itself
  const Descriptor epoll_;
  std::atomic<bool> ended_{false};

  Mutex mu_;
  std::vector<std::shared_ptr<MemorySource>> sources_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> version_{0};  // of sources_
  // By an id that no other had before: an event may be older than its end.
  absl::flat_hash_map<uint64_t, std::shared_ptr<SocketSource>> sockets_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const SocketSource*, uint64_t> socket_ids_
      ABSL_GUARDED_BY(mu_);
  uint64_t next_socket_ ABSL_GUARDED_BY(mu_) = 1;
  std::atomic<int> socket_count_{0};

  // Only the thread that polls uses these; the poller orders one after the
  // other.
  std::vector<std::shared_ptr<MemorySource>> seen_;
  uint64_t seen_version_ = 0;
  size_t next_ = 0;                // index of the source to be polled first
  MemorySource* taken_ = nullptr;  // one of seen_
  std::shared_ptr<SocketSource> taken_socket_;
  struct Ready {
    uint64_t id;
    bool ends;
  };
  Ready taken_ready_ = {};
  std::deque<Ready> ready_;  // sockets with events that wait
  bool sockets_first_ = false;
  int looks_to_sockets_ = 0;  // until it looks for their events
  int empty_looks_left_ = 0;  // that follow each other, as they had events
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_MEMORY_QUEUE_H_
