#include "weft/net/loop/memory_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

// Looks of one Next() that does not wait: about a microsecond, so that the
// poller's own looks at the clock and its yields are few beside them.
constexpr int kLooks = 24;

// After an event of a socket each of so many looks asks the kernel for further
// ones; then every 64th: a look at memory takes a fraction of such a call.
constexpr int kLooksAtSockets = 64;

// What epoll says of eventfds: they only wake.
constexpr uint64_t kEventFdTag = 0;
constexpr uint32_t kSocketEvents = EPOLLIN | EPOLLRDHUP | EPOLLET;

// Tells the core that this thread spins: the other thread of the core, if it
// has one, then runs faster.
void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

absl::Status Failed(const char* call) {
  return absl::ResourceExhaustedError(
      absl::StrCat("memory queue: ", call, ": ", strerror(errno)));
}

absl::Status Watch(int epoll, int fd) {
  epoll_event event = {};
  // Edges: a eventfd need not be read to be heard again.
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kEventFdTag;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return Failed("epoll_ctl");
  }
  return absl::OkStatus();
}

// Rounded up, so that nobody looks again before the time has come.
int MillisecondsUntil(Instant deadline) {
  if (deadline.is_infinite()) return -1;
  const absl::Duration left = deadline - SteadyClock().Now();
  if (left <= absl::ZeroDuration()) return 0;
  constexpr absl::Duration kLongest = absl::Hours(1);
  return static_cast<int>(absl::ToInt64Milliseconds(
      absl::Ceil(std::min(left, kLongest), absl::Milliseconds(1))));
}

}  // namespace

absl::StatusOr<EventFd> EventFd::Create() {
  Descriptor fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.get() < 0) return Failed("eventfd");
  return EventFd(std::move(fd));
}

// Anything else that can be written to might block, or send signals.
absl::StatusOr<EventFd> EventFd::FromDescriptor(Descriptor descriptor) {
  const std::string name = absl::StrCat("/proc/self/fd/", descriptor.get());
  char target[64];
  const ssize_t size = readlink(name.c_str(), target, sizeof target);
  const absl::string_view found(target, std::max<ssize_t>(size, 0));
  const int flags = fcntl(descriptor.get(), F_GETFL);
  if (found != "anon_inode:[eventfd]" || flags < 0 ||
      (flags & O_NONBLOCK) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("wants an eventfd that does not block, found ", found));
  }
  return EventFd(std::move(descriptor));
}

void EventFd::Ring() const {
  const uint64_t one = 1;
  // It fails only when it was rung 2^64 times: that was heard.
  (void)!write(fd_.get(), &one, sizeof one);
}

absl::StatusOr<std::unique_ptr<MemoryQueue>> MemoryQueue::Create() {
  WEFT_ASSIGN_OR_RETURN(EventFd event_fd, EventFd::Create());
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (epoll.get() < 0) return Failed("epoll_create1");
  WEFT_RETURN_IF_ERROR(Watch(epoll.get(), event_fd.fd()));
  return std::unique_ptr<MemoryQueue>(
      new MemoryQueue(std::move(event_fd), std::move(epoll)));
}

MemoryQueue::MemoryQueue(EventFd event_fd, Descriptor epoll)
    : event_fd_(std::move(event_fd)), epoll_(std::move(epoll)) {}

absl::Status MemoryQueue::Add(std::shared_ptr<MemorySource> source) {
  if (ended_.load()) {
    return absl::FailedPreconditionError("the memory queue has ended");
  }
  WEFT_RETURN_IF_ERROR(Watch(epoll_.get(), source->event_fd().fd()));
  {
    MutexLock lock(mu_);
    sources_.push_back(std::move(source));
    version_.fetch_add(1);
  }
  Wake();
  return absl::OkStatus();
}

void MemoryQueue::Remove(const MemorySource* source) {
  std::shared_ptr<MemorySource> removed;  // dies without the lock
  {
    MutexLock lock(mu_);
    const auto it =
        std::find_if(sources_.begin(), sources_.end(),
                     [source](const auto& s) { return s.get() == source; });
    if (it == sources_.end()) return;
    removed = std::move(*it);
    sources_.erase(it);
    version_.fetch_add(1);
  }
  // The other process holds the same file, so closing ours is not enough.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, removed->event_fd().fd(), nullptr);
  Wake();  // so that a sleeping poller releases it
}

absl::Status MemoryQueue::AddSocket(std::shared_ptr<SocketSource> source) {
  MutexLock lock(mu_);
  if (ended_.load()) {
    return absl::FailedPreconditionError("the memory queue has ended");
  }
  const SocketSource* const key = source.get();
  const uint64_t id = next_socket_++;
  epoll_event event = {};
  event.events = kSocketEvents;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, source->fd(), &event) != 0) {
    return Failed("epoll_ctl");
  }
  sockets_.emplace(id, std::move(source));
  socket_ids_.emplace(key, id);
  socket_count_.fetch_add(1);
  return absl::OkStatus();
}

void MemoryQueue::RemoveSocket(const SocketSource* source) {
  std::shared_ptr<SocketSource> removed;  // dies without the lock
  MutexLock lock(mu_);
  const auto id = socket_ids_.find(source);
  if (id == socket_ids_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source->fd(), nullptr);
  const auto it = sockets_.find(id->second);
  removed = std::move(it->second);
  sockets_.erase(it);
  socket_ids_.erase(id);
  socket_count_.fetch_sub(1);
}

void MemoryQueue::WatchRoom(const SocketSource& source, bool watch) {
  MutexLock lock(mu_);
  const auto id = socket_ids_.find(&source);
  if (id == socket_ids_.end()) return;
  epoll_event event = {};
  event.events = watch ? kSocketEvents | EPOLLOUT : kSocketEvents;
  event.data.u64 = id->second;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, source.fd(), &event);
}

void MemoryQueue::TickSockets(Instant now) {
  std::vector<std::shared_ptr<SocketSource>> sockets;
  {
    MutexLock lock(mu_);
    sockets.reserve(sockets_.size());
    for (const auto& [id, source] : sockets_) sockets.push_back(source);
  }
  for (const auto& source : sockets) source->OnTick(now);
}

void MemoryQueue::DropSockets() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<SocketSource>> dropped;
  MutexLock lock(mu_);
  dropped.swap(sockets_);
  socket_ids_.clear();
  socket_count_.store(0);
}

void MemoryQueue::End() {
  {
    MutexLock lock(mu_);
    ended_.store(true);
  }
  Wake();
}

void MemoryQueue::Wake() { event_fd_.Ring(); }

EventQueue::Outcome MemoryQueue::Next(Instant deadline) {
  // Also at the end: releases sources that were removed.
  if (version_.load(std::memory_order_acquire) != seen_version_) TakeSources();
  if (ended_.load()) return Outcome::kEnd;
  // The poller's "do not wait" is a time long past, which needs no clock.
  const bool sleeps = deadline.nanoseconds() != 0;
  // Not where it may sleep: it would miss Wake().
  if (!sleeps && IsTimeForSockets()) PollSockets(0);
  // In turns, so that neither kind hides the other.
  sockets_first_ = !sockets_first_;
  if (sockets_first_ && LookAtSockets()) return Outcome::kEvent;
  for (int i = sleeps || !ready_.empty() ? kLooks - 1 : 0; i < kLooks; ++i) {
    if (Look()) return Outcome::kEvent;
    Pause();
  }
  if (LookAtSockets()) return Outcome::kEvent;
  if (sleeps) Sleep(deadline);
  return Look() || LookAtSockets() ? Outcome::kEvent : Outcome::kTimeout;
}

bool MemoryQueue::IsTimeForSockets() {
  if (socket_count_.load(std::memory_order_relaxed) == 0) return false;
  if (--looks_to_sockets_ > 0) return false;
  looks_to_sockets_ = empty_looks_left_ > 0 ? 1 : kLooksAtSockets;
  return true;
}

void MemoryQueue::PollSockets(int timeout_ms) {
  epoll_event events[64];
  const int count = epoll_wait(epoll_.get(), events, 64, timeout_ms);
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kEventFdTag) continue;
    constexpr uint32_t kEnds = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    ready_.push_back({events[i].data.u64, (events[i].events & kEnds) != 0});
    any = true;
  }
  if (any) {
    empty_looks_left_ = kLooksAtSockets;
    looks_to_sockets_ = 1;
  } else if (empty_looks_left_ > 0) {
    --empty_looks_left_;
  }
}

bool MemoryQueue::LookAtSockets() {
  while (!ready_.empty()) {
    taken_ready_ = ready_.front();
    ready_.pop_front();
    MutexLock lock(mu_);
    const auto found = sockets_.find(taken_ready_.id);
    if (found == sockets_.end()) continue;  // it has ended
    taken_socket_ = found->second;
    return true;
  }
  return false;
}

void MemoryQueue::TakeSources() {
  std::vector<std::shared_ptr<MemorySource>> old;  // dies without the lock
  MutexLock lock(mu_);
  old.swap(seen_);
  seen_ = sources_;
  seen_version_ = version_.load();
}

bool MemoryQueue::Look() {
  for (size_t i = 0; i < seen_.size(); ++i) {
    // Each in turn, so that a busy one does not hide the others.
    if (++next_ >= seen_.size()) next_ = 0;
    if (!seen_[next_]->HasWork()) continue;
    taken_ = seen_[next_].get();
    return true;
  }
  return false;
}

void MemoryQueue::Sleep(Instant deadline) {
  bool has_work = false;
  for (const auto& source : seen_) has_work |= source->BeginSleep();
  if (!has_work) PollSockets(MillisecondsUntil(deadline));
  for (const auto& source : seen_) source->EndSleep();
}

void MemoryQueue::Handle() {
  InlineScope scope;
  if (taken_socket_ == nullptr) {
    taken_->Handle();
    taken_ = nullptr;
    return;
  }
  const auto socket = std::move(taken_socket_);
  taken_socket_ = nullptr;
  if (socket->OnReady(taken_ready_.ends)) ready_.push_back(taken_ready_);
}

}  // namespace weft::net
