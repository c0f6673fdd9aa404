#include "weft/worker/on_signal.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"
#include "weft/base/start_thread.h"

namespace weft::worker {
namespace {

constexpr int kSignal = SIGUSR2;
constexpr uint64_t kEnd = uint64_t{1} << 32;

// Global, as a handler is given nothing else. The eventfd is made once and
// never closed: a handler may be about to write to it at any time.
std::atomic<int> told_fd{-1};
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

using Handler = void (*)(int);

Handler CurrentHandler() {
  struct sigaction current = {};
  sigaction(kSignal, nullptr, &current);
  return current.sa_handler;
}

void SetHandler(Handler handler) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // SA_ONSTACK: the handler runs on the stack that a thread may have for it,
  // see tensor/ops/onednn.h.
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(kSignal, &action, nullptr);
}

}  // namespace

// A process has one thread for its signal, as it has one handler of it.
class SignalThread {
 public:
  static SignalThread& OfProcess() {
    static auto* const only = new SignalThread();
    return *only;
  }

  // False: see OnSignal::Create.
  bool Add(OnSignal* listener) ABSL_LOCKS_EXCLUDED(change_mu_, mu_) {
    MutexLock change(change_mu_);
    if (!thread_.joinable() && !Begin()) return false;
    MutexLock lock(mu_);
    listeners_.push_back(listener);
    return true;
  }

  void Remove(OnSignal* listener) ABSL_LOCKS_EXCLUDED(change_mu_, mu_) {
    MutexLock change(change_mu_);
    if (RemoveListener(listener)) End();
  }

 private:
  bool Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) {
    if (CurrentHandler() != SIG_DFL) return false;
    if (told_fd < 0) told_fd = eventfd(0, EFD_CLOEXEC);
    if (told_fd < 0) return false;
    auto thread = StartThread("signals", [this] { Run(); });
    if (!thread.ok()) return false;
    thread_ = *std::move(thread);
    SetHandler(HandleSignal);
    return true;
  }

  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) {
    if (CurrentHandler() == HandleSignal) SetHandler(SIG_DFL);
    Tell(told_fd, kEnd);
    thread_.join();
  }

  // Whether it was the last; false if it was never added.
  bool RemoveListener(OnSignal* listener) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto found =
        std::find(listeners_.begin(), listeners_.end(), listener);
    if (found == listeners_.end()) return false;
    listeners_.erase(found);
    while (running_ == listener) has_run_.Wait(mu_);
    return listeners_.empty();
  }

  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    for (;;) {
      uint64_t count = 0;
      if (read(told_fd, &count, sizeof(count)) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (count >= kEnd) return;
      RunAll();
    }
  }

  void RunAll() ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<OnSignal*> todo;
    {
      MutexLock lock(mu_);
      todo = listeners_;
    }
    for (OnSignal* const listener : todo) {
      if (!BeginRun(listener)) continue;  // has ended since
      listener->callback_();
      MutexLock lock(mu_);
      running_ = nullptr;
      has_run_.NotifyAll();
    }
  }

  bool BeginRun(OnSignal* listener) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const bool lives = std::find(listeners_.begin(), listeners_.end(),
                                 listener) != listeners_.end();
    if (lives) running_ = listener;
    return lives;
  }

  // Held while the thread begins and ends, which itself takes `mu_` only.
  Mutex change_mu_;
  std::thread thread_ ABSL_GUARDED_BY(change_mu_);
  Mutex mu_;
  CondVar has_run_;
  std::vector<OnSignal*> listeners_ ABSL_GUARDED_BY(mu_);
  OnSignal* running_ ABSL_GUARDED_BY(mu_) = nullptr;
};

std::unique_ptr<OnSignal> OnSignal::Create(std::function<void()> callback) {
  std::unique_ptr<OnSignal> made(new OnSignal(std::move(callback)));
  if (!SignalThread::OfProcess().Add(made.get())) return nullptr;
  return made;
}

OnSignal::~OnSignal() { SignalThread::OfProcess().Remove(this); }

}  // namespace weft::worker
