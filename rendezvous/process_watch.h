// ProcessWatch: sees that a process of this host has ended, or that it runs,
// without a word from it or from whoever started it.

#ifndef WEFT_RENDEZVOUS_PROCESS_WATCH_H_
#define WEFT_RENDEZVOUS_PROCESS_WATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "weft/net/edge/descriptor.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::rendezvous {

// Nothing where /proc does not tell.
std::optional<v1::Process> ThisProcess();

// Thread-safety: one thread at a time.
class ProcessWatch {
 public:
  // Nothing: it is of another host or pid namespace, or is this one, or may not
  // be looked at.
  static std::optional<ProcessWatch> Of(const v1::Process& process);

  // Never waits. Also if it had ended before the watch began.
  bool HasEnded() const;
  // Whether it has used the processor since the last call (at first: since the
  // watch began), to the 10 ms that the kernel counts by. One that is stopped
  // has not. False where that cannot be told.
  bool HasRun();

 private:
  friend class ExitWatch;
  ProcessWatch(net::Descriptor pidfd, uint32_t pid, uint64_t run_ticks)
      : pidfd_(std::move(pidfd)), pid_(pid), run_ticks_(run_ticks) {}

  net::Descriptor pidfd_;  // -1: it has ended
  uint32_t pid_ = 0;
  uint64_t run_ticks_ = 0;  // when HasRun was called last
};

// ExitWatch: runs a callback when one of the processes that it was given has
// ended, as soon as the system says so, and sleeps until then.
//
// Thread-safety: thread-safe; destroyed by any thread but its own.
class ExitWatch {
 public:
  // `on_exit` runs on the watch's own thread, at least once after each end; it
  // must not wait, and asks each ProcessWatch which it was. Null: the system
  // has no thread or descriptor left.
  static std::unique_ptr<ExitWatch> Create(std::function<void()> on_exit);
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  // Watches the process as long as `process` lives. False: it is not watched,
  // because the system has no memory left or the process had ended before.
  bool Add(const ProcessWatch& process);

 private:
  ExitWatch(net::Descriptor events, net::Descriptor stop,
            std::function<void()> on_exit);
  void Run();

  const net::Descriptor events_;  // epoll
  const net::Descriptor stop_;    // an eventfd, readable at the end
  const std::function<void()> on_exit_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_PROCESS_WATCH_H_
