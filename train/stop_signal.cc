#include "weft/train/stop_signal.h"

#include <signal.h>

#include <chrono>
#include <csignal>
#include <utility>

namespace weft::train {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};

// Global, as a handler is given nothing else.
volatile std::sig_atomic_t stop_signal = 0;

void OnStop(int signal) {
  if (signal == SIGINT && stop_signal != 0) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);  // comes once this handler has returned
  }
  if (stop_signal == 0) stop_signal = signal;
}

}  // namespace

void AwaitStopSignals() {
  struct sigaction action = {};
  action.sa_handler = OnStop;
  // SA_ONSTACK: the handler runs on the stack that a thread may have for it,
  // see tensor/ops/onednn.h.
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  // The terminal has gone. Who started the program by nohup wants it to go on.
  struct sigaction before;
  if (sigaction(SIGHUP, nullptr, &before) == 0 &&
      before.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
}

bool AskedToStop() { return stop_signal != 0; }

int StopSignal() { return stop_signal; }

OnStopSignal::OnStopSignal(std::function<void()> stop)
    : watcher_([this, stop = std::move(stop)] { Watch(stop); }) {}

OnStopSignal::~OnStopSignal() {
  {
    MutexLock lock(mu_);
    is_over_ = true;
  }
  changed_.NotifyAll();
  watcher_.join();
}

// Polls, since a signal handler may notify nobody.
void OnStopSignal::Watch(const std::function<void()>& stop) {
  {
    MutexLock lock(mu_);
    while (!AskedToStop()) {
      if (is_over_) return;
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kLookEvery);
    }
    if (is_over_) return;
  }
  stop();
}

}  // namespace weft::train
