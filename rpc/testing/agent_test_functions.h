// What the ranks of tests of the agent can do.

#ifndef WEFT_RPC_TESTING_AGENT_TEST_FUNCTIONS_H_
#define WEFT_RPC_TESTING_AGENT_TEST_FUNCTIONS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/parker.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/testing/agent_fixture.h"

namespace weft::rpc {

inline int64_t Add(int64_t a, int64_t b) { return a + b; }
WEFT_RPC_INLINE(Add);

// What handlers share with a test. As all that they use, before the ranks: the
// last call may run after the test's last line.
struct Counters {
  std::atomic<int> runs{0};
  std::atomic<int> lingered{0};
  std::atomic<int> cancelled{0};
  Parker began;
  Mutex mu;
  std::vector<Promise<int64_t>> parked ABSL_GUARDED_BY(mu);
};

inline int64_t Count(CallContext& context) {
  return ++context.Local<Counters>()->runs;
}
WEFT_RPC(Count);

// Runs until it is cancelled.
inline absl::Status Linger(CallContext& context) {
  auto* counters = context.Local<Counters>();
  ++counters->lingered;
  counters->began.Unpark();
  Promise<void> stopped;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status& why) { stopped.Set(why); });
  const absl::Status why = stopped.future().Wait(absl::Seconds(60));
  ++counters->cancelled;
  return why;
}
WEFT_RPC(Linger);

// Answers when the test says so; holds no thread meanwhile.
inline Future<int64_t> Later(CallContext& context) {
  auto* counters = context.Local<Counters>();
  auto [promise, future] = MakePromise<int64_t>();
  {
    MutexLock lock(counters->mu);
    counters->parked.push_back(std::move(promise));
  }
  counters->began.Unpark();
  return future;
}
WEFT_RPC(Later);

inline std::string CallerName(CallContext& context) {
  return context.peer().name;
}
WEFT_RPC(CallerName);

inline double RemainingSeconds(CallContext& context) {
  return absl::ToDoubleSeconds(context.Remaining());
}
WEFT_RPC(RemainingSeconds);

inline std::vector<std::string> GreetAll(
    const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) all.push_back("hello " + name);
  return all;
}
WEFT_RPC_BATCHED(GreetAll, 1000, absl::Milliseconds(20));

// A function that waits keeps the others from running.
inline RanksOptions OneThread() {
  RanksOptions options;
  options.threads = options.max_threads = 1;
  return options;
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_AGENT_TEST_FUNCTIONS_H_
