// Test functions: what tests of workers call, in this process or another.

#ifndef WEFT_WORKER_TEST_FUNCTIONS_H_
#define WEFT_WORKER_TEST_FUNCTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "weft/base/parker.h"
#include "weft/rpc/call_context.h"

namespace weft::worker {

int64_t Twice(int64_t x);
int64_t Half(int64_t x);

// Half, called at `worker` within the call.
absl::StatusOr<int64_t> HalfAt(rpc::CallContext& context,
                               const std::string& worker, int64_t x);

// x, after a sleep which holds its thread.
int64_t SleepThen(double seconds, int64_t x);

// Holds a call until the test lets it end: the callee's Local<Gate>.
struct Gate {
  Parker entered;
  Parker may_leave;
};

// 1, once it may leave; kDeadlineExceeded after half a minute, without a gate
// kFailedPrecondition.
absl::StatusOr<int64_t> PassGate(rpc::CallContext& context);
// PassGate, called at `worker` within the call.
absl::StatusOr<int64_t> PassGateAt(rpc::CallContext& context,
                                   const std::string& worker);

}  // namespace weft::worker

#endif  // WEFT_WORKER_TEST_FUNCTIONS_H_
