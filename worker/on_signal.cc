#include "weft/worker/on_signal.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <system_error>
#include <utility>

namespace weft::worker {
namespace {

constexpr uint64_t kEnd = uint64_t{1} << 32;

// Global, as a handler is given nothing else. The eventfd is made once and
// never closed: a handler may be about to write to it at any time.
std::atomic<int> told_fd{-1};
std::atomic<bool> is_taken{false};
static_assert(std::atomic<int>::is_always_lock_free);

void Tell(int fd, uint64_t count) {
  while (write(fd, &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

void HandleSignal(int) {
  const int saved_errno = errno;
  if (const int fd = told_fd.load(); fd >= 0) Tell(fd, 1);
  errno = saved_errno;
}

}  // namespace

std::unique_ptr<OnSignal> OnSignal::Create(int signal,
                                           std::function<void()> callback) {
  struct sigaction current = {};
  if (sigaction(signal, nullptr, &current) != 0 ||
      current.sa_handler != SIG_DFL) {
    return nullptr;
  }
  if (is_taken.exchange(true)) return nullptr;
  std::unique_ptr<OnSignal> made(new OnSignal(signal, std::move(callback)));
  if (told_fd < 0) told_fd = eventfd(0, EFD_CLOEXEC);
  if (told_fd < 0) return nullptr;
  try {
    made->thread_ = std::thread([self = made.get()] { self->Run(); });
  } catch (const std::system_error&) {
    return nullptr;
  }
  struct sigaction handle = {};
  handle.sa_handler = HandleSignal;
  handle.sa_flags = SA_RESTART;
  sigaction(signal, &handle, nullptr);
  return made;
}

OnSignal::OnSignal(int signal, std::function<void()> callback)
    : signal_(signal), callback_(std::move(callback)) {}

OnSignal::~OnSignal() {
  if (thread_.joinable()) {
    struct sigaction normal = {};
    normal.sa_handler = SIG_DFL;
    sigaction(signal_, &normal, nullptr);
    Tell(told_fd, kEnd);
    thread_.join();
  }
  is_taken = false;
}

void OnSignal::Run() {
  for (;;) {
    uint64_t count = 0;
    if (read(told_fd, &count, sizeof(count)) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (count >= kEnd) return;
    callback_();
  }
}

}  // namespace weft::worker
