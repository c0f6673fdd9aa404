// SigpipeScope: no SIGPIPE reaches this thread. gloo writes to sockets that its
// peers may have closed, with calls that send the signal, whose default ends
// the process.

#ifndef WEFT_COLLECTIVES_BACKENDS_GLOO_SIGPIPE_SCOPE_H_
#define WEFT_COLLECTIVES_BACKENDS_GLOO_SIGPIPE_SCOPE_H_

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace weft::collectives {

// Blocks the signal on this thread, and on threads that it starts meanwhile; at
// its end it discards what is pending and restores the mask.
class SigpipeScope {
 public:
  SigpipeScope() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before);
    was_blocked_ = sigismember(&before, SIGPIPE) == 1;
  }
  ~SigpipeScope() {
    if (was_blocked_) return;
    const timespec now = {0, 0};
    while (sigtimedwait(&sigpipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_UNBLOCK, &sigpipe_, nullptr);
  }
  SigpipeScope(const SigpipeScope&) = delete;
  SigpipeScope& operator=(const SigpipeScope&) = delete;

 private:
  sigset_t sigpipe_;
  bool was_blocked_ = false;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_GLOO_SIGPIPE_SCOPE_H_
