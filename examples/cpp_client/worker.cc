// worker: serves the functions of functions.h until it is asked to end.
//
//   worker --listen=unix:/tmp/example/worker.sock

#include <semaphore.h>

#include <csignal>
#include <cstdio>

#include "examples/cpp_client/functions.h"
#include "weft/weft.h"

sem_t told_to_end;

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker.status());
  // Until here a signal just ends the program: nobody depends on it yet.
  sem_init(&told_to_end, 0, 0);
  struct sigaction action = {};
  action.sa_handler = [](int) { sem_post(&told_to_end); };
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // see docs/threading.md
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  std::printf("serving at %s\n", (*worker)->endpoint().address().c_str());
  std::fflush(stdout);
  while (sem_wait(&told_to_end) != 0) {
  }
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
