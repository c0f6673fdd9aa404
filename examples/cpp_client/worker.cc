// worker: serves the functions of functions.h until it is told to end.
//
//   worker --listen=unix:/tmp/example/worker.sock

#include <csignal>
#include <cstdio>

#include "examples/cpp_client/functions.h"
#include "weft/weft.h"

int main(int argc, char** argv) {
  sigset_t to_end;
  sigemptyset(&to_end);
  sigaddset(&to_end, SIGTERM);
  sigaddset(&to_end, SIGINT);
  sigprocmask(SIG_BLOCK, &to_end, nullptr);  // before threads are started

  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker.status());
  std::printf("serving at %s\n", (*worker)->endpoint().address().c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&to_end, &signal);
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
