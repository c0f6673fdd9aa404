// SimulatedAgents: workers with your functions, under a seeded simulation of
// clock, network, threads and crashes. For tests.
//
//   rpc::SimulatedAgents::Options options;
//   options.faults = rpc::SimulatedAgents::AllFaults(0.05);
//   rpc::SimulatedAgents agents(seed, options);
//   agents.OnStart([&](int worker, rpc::Agent& agent) { agent.SetLocal(...);
//   }); auto statuses = agents.Run(2, [&](int worker) -> absl::Status {
//     return rpc::Call(agents[worker].To("w2"), Push, 1).status();
//   });
//   EXPECT_THAT(statuses, Each(IsOk())) << "seed " << seed;
//
// After the last seed, CheckHits() of the sums of faults() and transitions()
// says whether all that can go wrong has, and each row of the state tables of
// sessions was reached; else the run shows less than it seems to. A planted bug
// shows whether your test would notice one.
//
// A test that fails says faults().Replay(): the seed and the plan. One seed is
// one run, bit for bit: trace_hash() of two runs is the same unless
// the code looks at a real clock, an address or another thread. Code may wait
// for Futures, in functions too, and for nothing else: no locks held over a
// wait, no sleeping but in Sleep(), no Promise without the agent's driver.

#ifndef WEFT_RPC_TESTING_SIMULATED_AGENTS_H_
#define WEFT_RPC_TESTING_SIMULATED_AGENTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/executor.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/session_coverage.h"
#include "weft/sim/baton_scheduler.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/simulator.h"
#include "weft/transport/simulated_transport.h"

namespace weft::rpc {

// What may be broken in the sessions of simulated agents, to see that a test
// finds it.
enum class PlantedBug {
  kNone,
  kNoDedupe,       // a request that comes again runs again
  kNoFence,        // a new incarnation goes on with the calls of the last
  kEpochIgnored,   // it takes what was meant for the last one
  kSendOrderLost,  // what makes room for a request is sent after it
  kNoMemory,       // who has forgotten a session goes on with it
};

// Thread-safety: for the thread that made it, and within Run.
class SimulatedAgents {
 public:
  struct Options {
    int workers = 3;  // w0, w1, ...
    // Kinds as SimulatedNetwork has them, struck at each message; kOneWay- and
    // kTwoWayPartition and kCrash are struck at each `chaos_every`, kClockSkew
    // at each start of a worker. Its rules are of messages, as SimulatedNetwork
    // names them.
    sim::FaultPlan::Options faults;
    absl::Duration chaos_every = absl::Milliseconds(20);
    absl::Duration max_partition = absl::Milliseconds(200);
    // How long a crashed worker is away, and when each other is notified: it
    // may meet the next incarnation first, at the same address.
    absl::Duration max_down = absl::Milliseconds(100);
    absl::Duration max_detection = absl::Milliseconds(100);
    // How far a skewed clock is from the simulation's, and how much it gains or
    // loses.
    absl::Duration max_clock_offset = absl::Hours(1);
    double max_clock_drift = 0.1;
    PlantedBug planted = PlantedBug::kNone;
    transport::SimulatedNetwork::Options network;  // without faults and driver
    absl::Duration default_timeout = absl::Seconds(60);
    absl::Duration give_up_after = absl::Seconds(10);
    // Few sessions: a worker forgets callers that a fault keeps away.
    Limits limits;
    const Registry* registry = nullptr;         // null: the global one
    telemetry::Telemetry* telemetry = nullptr;  // of all workers
  };
  // Every kind that can strike agents, at `rate`.
  static sim::FaultPlan::Options AllFaults(double rate, int min_hits = 0);

  SimulatedAgents(uint64_t seed, Options options);
  SimulatedAgents(const SimulatedAgents&) = delete;
  SimulatedAgents& operator=(const SimulatedAgents&) = delete;
  ~SimulatedAgents();

  // `start(worker, agent)` runs for each incarnation of each worker before it
  // is reached: the place for SetLocal. To be called before Run.
  void OnStart(std::function<void(int, Agent&)> start);

  // Runs main(0), ..., main(mains - 1) on the first workers at once, and faults
  // meanwhile; returns what each came to. Only the other workers crash.
  std::vector<absl::Status> Run(int mains,
                                const std::function<absl::Status(int)>& main);

  // The incarnation of now. REQUIRES: within Run; the worker is not down.
  Agent& operator[](int worker) { return *nodes_[worker].agent; }

  // What `faults` does by itself. Within Run, not in a function that is called
  // of the worker. A crash ends when the worker is back; its functions are
  // cancelled, and what they say is not heard.
  void CrashAndRestart(int worker);
  void Cut(int a, int b);
  void Heal(int a, int b);
  void Sleep(absl::Duration time) { scheduler_.SleepFor(time); }

  sim::Simulator& simulator() { return simulator_; }
  // Runs each task on a simulated thread of its own, which may wait.
  Executor& executor() { return scheduler_.executor(); }
  // What all workers know of one another.
  FixedDirectory& directory() { return directory_; }
  sim::FaultPlan& faults() { return faults_; }
  // What the calls between the workers went through.
  const SessionCoverage& transitions() const;
  // A hash of what happened: equal in two runs of a seed.
  uint64_t trace_hash() const { return simulator_.trace_hash(); }

 private:
  class Hook;
  struct Node {
    std::string name;  // and its address
    uint64_t epoch = 0;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<Agent> agent;
  };

  void Start(int worker);
  void End(int worker);
  void Chaos();
  void Partition(bool one_way);
  int RandomWorker(int first);
  sim::ClockSkew RandomSkew();
  void TellSoon(WorkerKey dead);

  const Options options_;
  sim::Simulator simulator_;
  sim::FaultPlan faults_;
  sim::BatonScheduler scheduler_;
  transport::SimulatedNetwork network_;
  const std::unique_ptr<Hook> hook_;
  FixedDirectory directory_;
  std::function<void(int, Agent&)> on_start_;
  std::vector<Node> nodes_;
  // The transports of ended incarnations: the network may still know them.
  std::vector<std::unique_ptr<transport::Transport>> former_;
  int mains_ = 0;
  int running_mains_ = 0;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_SIMULATED_AGENTS_H_
