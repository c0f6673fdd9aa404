// SignalScope: the signals that a launcher passes on to its ranks, as readable
// events.

#ifndef WEFT_LAUNCH_RUN_SIGNAL_SCOPE_H_
#define WEFT_LAUNCH_RUN_SIGNAL_SCOPE_H_

#include <signal.h>

namespace weft::launch {

// SIGINT, SIGTERM, SIGHUP unless it is ignored, SIGQUIT and SIGUSR2, from its
// making to its end. On a process's only thread.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  int fd() const { return fd_; }
  // The next that came; 0 if none.
  int Take();

 private:
  sigset_t before_;
  int fd_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_SIGNAL_SCOPE_H_
