// worker_host: one worker in a process of its own, for tests to kill. It is
// told what it is by the flags of every worker.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::worker {

// As in observability_test.cc.
int64_t Half(int64_t x) { return x / 2; }
WEFT_RPC(Half);
absl::StatusOr<int64_t> HalfAt(rpc::CallContext& context,
                               const std::string& worker, int64_t x) {
  return rpc::Call(context.agent().To(worker).Within(context), Half, x);
}
WEFT_RPC(HalfAt);

namespace {

// As in worker_test.cc, by the same name.
int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto options = weft::worker::Options::FromFlags(&argc, argv);
  if (options.exit_if_unreachable) {
    options.probe_every = absl::Milliseconds(20);  // a test waits for it
  }
  auto worker = weft::worker::Worker::Start(std::move(options));
  weft::ExitIfError(worker.status());
  std::puts("serving");
  std::fflush(stdout);
  for (;;) pause();
}
