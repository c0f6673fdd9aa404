#include "weft/launch/stop_signal.h"

#include <signal.h>

#include <csignal>

namespace weft::launch {
namespace {

// Global, as a handler is given nothing else.
volatile std::sig_atomic_t asked_to_stop = 0;

void OnStop(int signal) {
  if (signal == SIGINT && asked_to_stop != 0) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);  // comes once this handler has returned
  }
  asked_to_stop = 1;
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

bool AskedToStop() { return asked_to_stop != 0; }

}  // namespace weft::launch
