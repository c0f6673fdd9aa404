#include "weft/rpc/testing/simulated_agents.h"

#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/rpc/connection/frame_kinds.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/session/session_hook.h"

namespace weft::rpc {
namespace {

// How often the end of an agent's functions is looked for.
constexpr absl::Duration kPoll = absl::Milliseconds(1);

transport::SimulatedNetwork::Options WithFaults(
    transport::SimulatedNetwork::Options options, sim::FaultPlan* faults,
    Driver* driver) {
  options.faults = faults;
  options.classify = FramesOf;
  options.driver = driver;
  return options;
}

}  // namespace

// Counts what sessions do, and plants the bug.
class SimulatedAgents::Hook final : public SessionHook {
 public:
  explicit Hook(PlantedBug bug) : bug_(bug) {}

  const SessionCoverage& coverage() const { return coverage_; }

  void OnEvent(CallerSession& session, const CallerSession::Event& event,
               Instant now,
               std::vector<CallerSession::Action>* actions) override {
    coverage_.OnEvent(session, event, now, actions);
    if (bug_ == PlantedBug::kSendOrderLost) HoldClose(session, actions);
  }

  void OnEvent(CalleeSession& session, const CalleeSession::Event& event,
               Instant now,
               std::vector<CalleeSession::Action>* actions) override {
    const auto* arrived = std::get_if<CalleeSession::Arrived>(&event);
    const bool is_known =
        arrived != nullptr &&
        session.StateOf(arrived->request->id) != CalleeSession::State::kUnknown;
    coverage_.OnEvent(session, event, now, actions);
    if (bug_ == PlantedBug::kNoDedupe && is_known) {
      actions->push_back(CalleeSession::Run{arrived->request});
    }
  }

  void OnHello(WorkerKey self, Hello* hello) override {
    if (bug_ == PlantedBug::kEpochIgnored || bug_ == PlantedBug::kNoFence) {
      if (bug_ == PlantedBug::kNoFence && hello->to != self) {
        hello->resumes = false;
      }
      hello->to = self;
    }
    if (bug_ == PlantedBug::kNoMemory) hello->resumes = false;
  }

 private:
  // Delays the closings of this event until after the sends of the next one.
  void HoldClose(const CallerSession& session,
                 std::vector<CallerSession::Action>* actions) {
    std::vector<CallerSession::Action> kept;
    std::vector<CallerSession::Action> held = std::move(held_[&session]);
    held_[&session].clear();
    for (CallerSession::Action& action : *actions) {
      const bool is_close =
          std::holds_alternative<CallerSession::SendAck>(action) ||
          std::holds_alternative<CallerSession::SendCancel>(action);
      (is_close ? held_[&session] : kept).push_back(std::move(action));
    }
    if (session.is_connected()) {
      for (CallerSession::Action& close : held) {
        kept.push_back(std::move(close));
      }
    }
    actions->swap(kept);
  }

  const PlantedBug bug_;
  SessionCoverage coverage_;
  std::map<const CallerSession*, std::vector<CallerSession::Action>> held_;
};

sim::FaultPlan::Options SimulatedAgents::AllFaults(double rate, int min_hits) {
  using sim::Fault;
  return sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kLostReply, Fault::kDuplication, Fault::kDelay,
       Fault::kReordering, Fault::kReset, Fault::kHalfOpen,
       Fault::kOneWayPartition, Fault::kTwoWayPartition, Fault::kCrash,
       Fault::kCorruption, Fault::kClockSkew},
      rate, min_hits);
}

SimulatedAgents::SimulatedAgents(uint64_t seed, Options options)
    : options_(std::move(options)),
      simulator_(seed),
      faults_(seed, options_.faults),
      scheduler_(simulator_),
      network_(simulator_,
               WithFaults(options_.network, &faults_, &scheduler_.driver())),
      hook_(std::make_unique<Hook>(options_.planted)),
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
  node.transport = network_.MakeTransport(node.name, RandomSkew());
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
  agent.give_up_after = options_.give_up_after;
  agent.limits = options_.limits;
  agent.registry = options_.registry;
  agent.hook = hook_.get();
  auto made = Agent::Create(std::move(agent));
  WEFT_CHECK(made.ok()) << made.status().ToString();
  node.agent = *std::move(made);
  if (on_start_) on_start_(worker, *node.agent);
  directory_.Put(Worker{node.name, key, node.name});
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
  network_.Sever(nodes_[worker].name);
  End(worker);
  TellSoon(dead);
  Sleep(simulator_.random().Between(absl::ZeroDuration(), options_.max_down));
  Start(worker);
  faults_.Count(sim::Fault::kRestart);
}

void SimulatedAgents::TellSoon(WorkerKey dead) {
  for (Node& node : nodes_) {
    simulator_.After(
        simulator_.random().Between(absl::ZeroDuration(),
                                    options_.max_detection),
        [&node, dead] {
          if (node.agent != nullptr) node.agent->PeerGone(dead, "it crashed");
        },
        absl::StrCat(node.name, " is notified"));
  }
}

void SimulatedAgents::Cut(int a, int b) {
  network_.Cut(nodes_[a].name, nodes_[b].name);
}

void SimulatedAgents::Heal(int a, int b) {
  network_.Heal(nodes_[a].name, nodes_[b].name);
}

const SessionCoverage& SimulatedAgents::transitions() const {
  return hook_->coverage();
}

sim::ClockSkew SimulatedAgents::RandomSkew() {
  sim::ClockSkew skew;
  if (!faults_.Strikes(sim::Fault::kClockSkew)) return skew;
  const auto most = static_cast<int64_t>(1e6 * options_.max_clock_drift);
  skew.offset = simulator_.random().Between(absl::ZeroDuration(),
                                            options_.max_clock_offset);
  skew.millionths = simulator_.random().Below(2 * most + 1) - most;
  return skew;
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
  const std::string from = nodes_[a].name;
  const std::string to = nodes_[b].name;
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
