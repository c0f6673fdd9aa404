#include "weft/worker/test_functions.h"

#include "absl/time/clock.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/patience.h"

namespace weft::worker {

int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

int64_t Half(int64_t x) { return x / 2; }
WEFT_RPC(Half);

int64_t SleepThen(double seconds, int64_t x) {
  absl::SleepFor(absl::Seconds(seconds));
  return x;
}
WEFT_RPC(SleepThen);

absl::StatusOr<int64_t> HalfAt(rpc::CallContext& context,
                               const std::string& worker, int64_t x) {
  return rpc::Call(context.agent().To(worker).Within(context), Half, x);
}
WEFT_RPC(HalfAt);

absl::StatusOr<int64_t> PassGate(rpc::CallContext& context) {
  Gate* const gate = context.Local<Gate>();
  if (gate == nullptr)
    return absl::FailedPreconditionError("the test set no gate");
  gate->entered.Unpark();
  if (!testing::IsWoken(gate->may_leave))
    return absl::DeadlineExceededError("the test never opened the gate");
  return 1;
}
WEFT_RPC(PassGate);

absl::StatusOr<int64_t> PassGateAt(rpc::CallContext& context,
                                   const std::string& worker) {
  return rpc::Call(context.To(worker), PassGate);
}
WEFT_RPC(PassGateAt);

}  // namespace weft::worker
