// Ranks: agents of one process, joined by a local network, for tests.

#ifndef WEFT_RPC_TESTING_AGENT_FIXTURE_H_
#define WEFT_RPC_TESTING_AGENT_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/limits.h"
#include "weft/telemetry/telemetry.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/testing/counting_transport.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

struct RanksOptions {
  int threads = 4;
  int max_threads = 4096;
  absl::Duration give_up_after = absl::Seconds(10);
  Limits limits;
  std::vector<const Registry*> registries;  // by rank; none: the global one
  std::vector<std::string> jobs;            // by rank; none: "job"
  std::vector<WorkerKey> keys;              // by rank; none: as below
  telemetry::Telemetry* telemetry = nullptr;
  std::vector<telemetry::Telemetry*> telemetries;  // by rank; none: that one
  transport::MessageCounts* counts = nullptr;      // of all ranks; null: none
};

// w0, w1, ... with the keys {0, 1}, {1, 1}, ...
class Ranks {
 public:
  explicit Ranks(int n, const RanksOptions& options = {}) {
    for (int i = 0; i < n; ++i) {
      const std::string name = absl::StrCat("w", i);
      const WorkerKey key = options.keys.empty()
                                ? WorkerKey{static_cast<uint32_t>(i), 1}
                                : options.keys[i];
      directory_.Put(Worker{name, key, name});
      transports_.push_back(MakeTransport(name, options.counts));
      AgentOptions agent;
      agent.job = options.jobs.empty() ? "job" : options.jobs[i];
      agent.name = name;
      agent.key = key;
      agent.transport = transports_.back().get();
      agent.directory = &directory_;
      agent.telemetry = options.telemetries.empty() ? options.telemetry
                                                    : options.telemetries[i];
      agent.threads = options.threads;
      agent.max_threads = options.max_threads;
      agent.give_up_after = options.give_up_after;
      agent.limits = options.limits;
      agent.build = absl::StrCat("b", i);
      if (!options.registries.empty()) agent.registry = options.registries[i];
      auto made = Agent::Create(std::move(agent));
      WEFT_CHECK(made.ok()) << made.status().ToString();
      agents_.push_back(*std::move(made));
    }
  }

  Agent& operator[](int rank) { return *agents_[rank]; }
  FixedDirectory& directory() { return directory_; }
  transport::LocalNetwork& network() { return network_; }

 private:
  std::unique_ptr<transport::Transport> MakeTransport(
      const std::string& name, transport::MessageCounts* counts) {
    auto made = network_.MakeTransport(name).value();
    if (counts == nullptr) return made;
    return std::make_unique<transport::CountingTransport>(std::move(made),
                                                          *counts);
  }

  transport::LocalNetwork network_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_AGENT_FIXTURE_H_
