// What simulated ranks can do, and what they have done.

#ifndef WEFT_RPC_TESTING_SIMULATED_CALLS_H_
#define WEFT_RPC_TESTING_SIMULATED_CALLS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/rpc/function.h"
#include "weft/rpc/testing/simulated_agents.h"

namespace weft::rpc {

// What is looked at from outside; only one simulated thread runs at a time.
struct Ledger {
  SimulatedAgents* agents = nullptr;
  std::map<int64_t, int> runs;             // of each call, in all incarnations
  std::map<int64_t, WorkerKey> meant_for;  // where it is to run, if known
  std::vector<int64_t> misled;             // that ran elsewhere
  int64_t cancelled = 0;

  void Ran(const CallContext& context, int64_t id) {
    ++runs[id];
    const auto it = meant_for.find(id);
    if (it != meant_for.end() && !(it->second == context.agent().key())) {
      misled.push_back(id);
    }
  }
};

inline int64_t Post(CallContext& context, int64_t id,
                    const std::string& padding) {
  context.Local<Ledger>()->Ran(context, id);
  return id + static_cast<int64_t>(padding.size());
}
WEFT_RPC(Post);

// Takes its time, as it is, but looks at its cancellation.
inline int64_t Work(CallContext& context, int64_t id) {
  auto* ledger = context.Local<Ledger>();
  ledger->Ran(context, id);
  for (int i = 0; i < 20; ++i) {
    if (context.cancel().IsCancelled()) {
      ++ledger->cancelled;
      break;
    }
    ledger->agents->Sleep(absl::Milliseconds(5));
  }
  return id;
}
WEFT_RPC(Work);

inline SimulatedAgents::Options Quiet(int workers) {
  SimulatedAgents::Options options;
  options.workers = workers;
  return options;
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_SIMULATED_CALLS_H_
