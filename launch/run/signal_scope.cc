// SignalScope: see the header.

#include "weft/launch/run/signal_scope.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace weft::launch {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

bool IsIgnored(int signal) {
  struct sigaction now;
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

SignalScope::SignalScope() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kPassedOn) {
    if (signal == SIGHUP && IsIgnored(signal)) continue;  // by nohup
    sigaddset(&set, signal);
  }
  sigaddset(&set, SIGUSR2);
  sigprocmask(SIG_BLOCK, &set, &before_);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

SignalScope::~SignalScope() {
  if (fd_ >= 0) close(fd_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalScope::Take() {
  signalfd_siginfo info;
  return read(fd_, &info, sizeof(info)) == sizeof(info)
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

}  // namespace weft::launch
