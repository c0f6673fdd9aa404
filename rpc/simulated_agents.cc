#include "weft/rpc/simulated_agents.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"

namespace weft::rpc {
namespace {

// How often the end of an agent's functions is looked for.
constexpr absl::Duration kPoll = absl::Milliseconds(1);

SimulatedNetwork::Options WithFaults(SimulatedNetwork::Options options,
                                     sim::FaultPlan* faults, Driver* driver) {
  options.faults = faults;
  options.driver = driver;
  return options;
}

}  // namespace

sim::FaultPlan::Options SimulatedAgents::AllFaults(double rate, int min_hits) {
  using sim::Fault;
  return sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kLostReply, Fault::kDuplication, Fault::kDelay,
       Fault::kReordering, Fault::kReset, Fault::kHalfOpen,
       Fault::kOneWayPartition, Fault::kTwoWayPartition, Fault::kCrash},
      rate, min_hits);
}

SimulatedAgents::SimulatedAgents(uint64_t seed, Options options)
    : options_(std::move(options)),
      simulator_(seed),
      faults_(seed, options_.faults),
      scheduler_(simulator_),
      network_(simulator_,
               WithFaults(options_.network, &faults_, &scheduler_.driver())),
      nodes_(options_.workers) {}

SimulatedAgents::~SimulatedAgents() = default;

void SimulatedAgents::OnStart(std::function<void(int, Agent&)> start) {
  on_start_ = std::move(start);
}

std::vector<absl::Status> SimulatedAgents::Run(
    int mains, const std::function<absl::Status(int)>& main) {
  WEFT_CHECK_LE(mains, options_.workers);
  mains_ = running_mains_ = mains;
  for (int worker = 0; worker < options_.workers; ++worker) Start(worker);
  // The last rank is the adversary, and ends the workers when all is done.
  std::vector<absl::Status> statuses =
      scheduler_.Run(mains + 1, [&](int rank) -> absl::Status {
        if (rank < mains) {
          const absl::Status status = CatchToStatus([&] { return main(rank); });
          --running_mains_;
          return status;
        }
        Chaos();
        for (int worker = 0; worker < options_.workers; ++worker) End(worker);
        return absl::OkStatus();
      });
  statuses.pop_back();
  return statuses;
}

void SimulatedAgents::Start(int worker) {
  Node& node = nodes_[worker];
  node.name = absl::StrCat("w", worker);
  ++node.epoch;
  // Each incarnation has its own, so that nothing of the last one is heard.
  node.address = absl::StrCat(node.name, ".", node.epoch);
  node.transport = network_.MakeTransport(node.address);
  const WorkerKey key{static_cast<uint32_t>(worker), node.epoch};
  AgentOptions agent;
  agent.job = "simulation";
  agent.name = node.name;
  agent.key = key;
  agent.transport = node.transport.get();
  agent.directory = &directory_;
  agent.telemetry = options_.telemetry;
  agent.executor = &scheduler_.executor();
  agent.default_timeout = options_.default_timeout;
  agent.limits = options_.limits;
  agent.registry = options_.registry;
  auto made = Agent::Create(std::move(agent));
  WEFT_CHECK(made.ok()) << made.status().ToString();
  node.agent = *std::move(made);
  if (on_start_) on_start_(worker, *node.agent);
  directory_.Put(Worker{node.name, key, node.address});
}

void SimulatedAgents::End(int worker) {
  Node& node = nodes_[worker];
  // Its functions run on threads of the simulation, so they end only while it
  // goes on.
  while (!node.agent->Shutdown(absl::ZeroDuration()).ok()) Sleep(kPoll);
  node.agent.reset();
  former_.push_back(std::move(node.transport));
}

void SimulatedAgents::CrashAndRestart(int worker) {
  const WorkerKey dead = nodes_[worker].agent->key();
  simulator_.Note(absl::StrCat("crash of ", nodes_[worker].name));
  const std::string address = nodes_[worker].address;
  for (Node& node : nodes_) {
    if (&node != &nodes_[worker]) network_.Cut(address, node.address);
  }
  End(worker);
  Sleep(simulator_.random().Between(absl::ZeroDuration(),
                                    options_.max_detection));
  for (Node& node : nodes_) {
    if (node.agent != nullptr) node.agent->PeerGone(dead, "it crashed");
  }
  Sleep(simulator_.random().Between(absl::ZeroDuration(), options_.max_down));
  Start(worker);
  faults_.Count(sim::Fault::kRestart);
}

void SimulatedAgents::Cut(int a, int b) {
  network_.Cut(nodes_[a].address, nodes_[b].address);
}

void SimulatedAgents::Heal(int a, int b) {
  network_.Heal(nodes_[a].address, nodes_[b].address);
}

void SimulatedAgents::Chaos() {
  while (running_mains_ > 0) {
    Sleep(options_.chaos_every);
    if (mains_ < options_.workers && faults_.Strikes(sim::Fault::kCrash)) {
      CrashAndRestart(RandomWorker(mains_));
    }
    if (options_.workers < 2) continue;
    if (faults_.Strikes(sim::Fault::kOneWayPartition)) Partition(true);
    if (faults_.Strikes(sim::Fault::kTwoWayPartition)) Partition(false);
  }
}

void SimulatedAgents::Partition(bool one_way) {
  const int a = RandomWorker(0);
  const int b =
      (a + 1 +
       static_cast<int>(simulator_.random().Below(options_.workers - 1))) %
      options_.workers;
  const std::string from = nodes_[a].address;
  const std::string to = nodes_[b].address;
  simulator_.Note(absl::StrCat("partition of ", from, " and ", to));
  if (one_way) {
    network_.CutOneWay(from, to);
  } else {
    network_.Cut(from, to);
  }
  simulator_.After(
      simulator_.random().Between(absl::ZeroDuration(), options_.max_partition),
      [this, from, to] { network_.Heal(from, to); }, "heal");
}

int SimulatedAgents::RandomWorker(int first) {
  return first +
         static_cast<int>(simulator_.random().Below(options_.workers - first));
}

}  // namespace weft::rpc
