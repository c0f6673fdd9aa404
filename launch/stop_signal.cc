#include "weft/launch/stop_signal.h"

#include <signal.h>

#include <csignal>

namespace weft::launch {
namespace {

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
  // On the stack that a thread may have for it: see tensor/ops/onednn.h.
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

bool AskedToStop() { return stop_signal != 0; }

int StopSignal() { return stop_signal; }

}  // namespace weft::launch
