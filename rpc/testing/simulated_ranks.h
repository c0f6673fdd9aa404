// SimulatedRanks: agents w0, w1, ... on one simulated network, whose functions
// run on the thread that waits.

#ifndef WEFT_RPC_TESTING_SIMULATED_RANKS_H_
#define WEFT_RPC_TESTING_SIMULATED_RANKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/executor.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/limits.h"
#include "weft/sim/simulator.h"
#include "weft/telemetry/telemetry.h"
#include "weft/transport/simulated_transport.h"

namespace weft::rpc {

// Their keys are {0, 1}, {1, 1}, ...
class SimulatedRanks {
 public:
  struct Options {
    uint64_t seed = 1;
    transport::SimulatedNetwork::Options network;
    Limits limits;
    int64_t result_bytes = AgentOptions().result_bytes;
    telemetry::Telemetry* telemetry = nullptr;
  };

  SimulatedRanks(int n, const Options& options)
      : simulator_(options.seed), network_(simulator_, options.network) {
    for (int i = 0; i < n; ++i) {
      const std::string name = absl::StrCat("w", i);
      const WorkerKey key{static_cast<uint32_t>(i), 1};
      directory_.Put(Worker{name, key, name});
      transports_.push_back(network_.MakeTransport(name));
      AgentOptions agent;
      agent.job = "job";
      agent.name = name;
      agent.key = key;
      agent.transport = transports_.back().get();
      agent.directory = &directory_;
      agent.executor = &executor_;
      agent.limits = options.limits;
      agent.result_bytes = options.result_bytes;
      agent.telemetry = options.telemetry;
      auto made = Agent::Create(std::move(agent));
      WEFT_CHECK(made.ok()) << made.status().ToString();
      agents_.push_back(*std::move(made));
    }
  }

  Agent& operator[](int rank) { return *agents_[rank]; }
  transport::Transport& transport(int rank) { return *transports_[rank]; }
  transport::SimulatedNetwork& network() { return network_; }
  sim::Simulator& simulator() { return simulator_; }

 private:
  sim::Simulator simulator_;
  transport::SimulatedNetwork network_;
  FixedDirectory directory_;
  InlineExecutor executor_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_SIMULATED_RANKS_H_
