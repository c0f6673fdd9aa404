// test_worker: one worker in a process of its own, for tests to kill. It is
// told what it is by the flags of every worker; test_functions.h is what it
// answers.

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/time/time.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

int main(int argc, char** argv) {
  auto options = weft::worker::Options::FromFlags(argc, argv);
  if (options.exit_if_unreachable) {
    options.probe_every = absl::Milliseconds(20);  // a test waits for it
  }
  auto worker = weft::worker::Worker::Start(std::move(options));
  weft::ExitIfError(worker.status());
  std::puts("serving");
  std::fflush(stdout);
  for (;;) pause();
}
