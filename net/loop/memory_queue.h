// MemoryQueue: events that other processes of the host put into memory which
// they share with this one.
//
// To look costs no system call. A reader that is about to sleep announces it in
// each memory, looks once more, and then sleeps until an EventFd is signalled:
// a writer signals it if the reader sleeps.

#ifndef WEFT_NET_LOOP_MEMORY_QUEUE_H_
#define WEFT_NET_LOOP_MEMORY_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
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
  // Next returns kEnd from now on.
  void End();

  Outcome Next(Instant deadline) override ABSL_LOCKS_EXCLUDED(mu_);
  void Handle() override;
  void Wake() override;

 private:
  MemoryQueue(EventFd event_fd, Descriptor epoll);

  void TakeSources() ABSL_LOCKS_EXCLUDED(mu_);
  // True if one has work: it is taken_.
  bool Look();
  void Sleep(Instant deadline);

  const EventFd event_fd_;  // of the queue itself
  const Descriptor epoll_;
  std::atomic<bool> ended_{false};

  Mutex mu_;
  std::vector<std::shared_ptr<MemorySource>> sources_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> version_{0};  // of sources_

  // Only the thread that polls uses these; the poller orders one after the
  // other.
  std::vector<std::shared_ptr<MemorySource>> seen_;
  uint64_t seen_version_ = 0;
  size_t next_ = 0;                // index of the source to be polled first
  MemorySource* taken_ = nullptr;  // one of seen_
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_MEMORY_QUEUE_H_
