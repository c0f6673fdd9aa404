// worker_host: one worker in a process of its own, for tests to kill. It is
// told what it is by the flags of every worker.

#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "weft/rpc/function.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

// As in worker_test.cc, by the same name.
int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker.status());
  std::puts("serving");
  std::fflush(stdout);
  for (;;) pause();
}
