// A job of both kinds: tables on parameter servers with two replicas (SYNC,
// D1), and elastic trainers that hold the dense part of the model, on three
// hosts, each with a `weft run` of one server and one trainer. Every kind of
// process is killed and stopped at random times: servers, trainers, the
// coordinator, `weft run` of a host with all that it has started, and others
// while the last one is being mended; the link of a host to the coordinator is
// cut for less than silence is borne. The test starts nothing again but the
// `weft run` of a lost host, as a host's supervisor does. Parameters and rows
// equal, by hash, those of a job that nobody touched.
//
// What holds the only copy of something is spared (docs/reliability.md): the
// last trainer that has the model, a server while some partition has one copy,
// and the host of the coordinator.

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/tests/chaos/chaos_job.h"
#include "weft/tests/chaos/link.h"
#include "weft/tests/chaos/table_job.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

constexpr int kNodes = 3;
// Within it servers that were stopped are taken for silent, or are not.
constexpr absl::Duration kToNotice = absl::Seconds(4);
// Steps that are taken after the last fault.
constexpr int64_t kMoreSteps = 60;

// --- The faults. -------------------------------------------------------------

enum class Kind {
  kKillServer,
  kKillTrainer,
  kKillCoordinator,
  kKillHost,
  kKillServerAndTrainer,  // at once: a primary, and whoever has pushed to it
  kKillServerThenCoordinator,
  kKillServerThenTrainer,
  kKillTrainerThenServer,
  kKillHostThenCoordinator,
  kStopForAWhile,
  kCutLink,  // of a host to the coordinator
};
constexpr int kKinds = 11;

struct Fault {
  Kind kind = Kind::kKillServer;
  FaultTimes times;
  int node = 0;
  int other = 0;     // another node
  int host = 1;      // not that of the coordinator
  std::string role;  // of whom is stopped
};

std::vector<Fault> DrawFaults(uint64_t seed, int count) {
  sim::Random random(seed);
  std::vector<Fault> faults;
  for (const int kind : DrawKinds(kKinds, count, random)) {
    Fault& fault = faults.emplace_back();
    fault.kind = static_cast<Kind>(kind);
    fault.times = FaultTimes::Draw(random);
    fault.node = static_cast<int>(random.Below(kNodes));
    fault.other =
        (fault.node + 1 + static_cast<int>(random.Below(kNodes - 1))) % kNodes;
    fault.host = 1 + static_cast<int>(random.Below(kNodes - 1));
    const char* const roles[] = {"ps", "trainer", "coordinator"};
    fault.role = roles[random.Below(3)];
    if (fault.role == "coordinator") fault.node = 0;
  }
  return faults;
}

// --- The job. ----------------------------------------------------------------

class BothChaos : public ChaosJob {
 protected:
  BothChaos() : ChaosJob(kKinds) {
    for (int node = 1; node < kNodes; ++node) {
      links_[node] = std::make_unique<Link>(port_);
    }
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job_.Path("certs"), "--job=both",
                                    absl::StrCat("--servers=", kNodes),
                                    absl::StrCat("--trainers=", kNodes)});
    EXPECT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
  }

  std::string EndFile() const { return job_.Path("end"); }

  std::string WorkerCommand(const Flags& more) const {
    std::string command =
        absl::StrCat(RunfilePath("tests/chaos/table_worker"),
                     " --end=", EndFile(), " --dump-dir=", job_.Path(""));
    for (const std::string& flag : more) absl::StrAppend(&command, " ", flag);
    return command;
  }

  std::string ServerCommand() const {
    return absl::StrCat(Program("parameter_server"),
                        " --dump-dir=", job_.Path(""));
  }

  // `weft run` of a host, of one server and one trainer.
  void StartNode(int node) {
    const int port = node == 0 ? port_ : links_[node]->port();
    nodes_[node] = &Start(
        absl::StrCat("node", node), job_.Path(absl::StrCat("node", node)),
        {Program("weft"), "run", absl::StrCat("--nnodes=", kNodes),
         absl::StrCat("--node-rank=", node), "--job=both",
         absl::StrCat("--coordinator=127.0.0.1:", port),
         "--certs=" + job_.Path("certs"), absl::StrCat("--elastic=1:", kNodes),
         "--replicas=2", "--role", "ps=1:" + ServerCommand(), "--role",
         "trainer=1:" + WorkerCommand({"--durability=D1"})},
        {absl::StrCat("WEFT_HOST_ID=node", node)});
  }

  Process& StartUndisturbed() {
    return Start("undisturbed", job_.Path("undisturbed"),
                 {Program("weft"), "run", "--job=calm", "--elastic=1:2",
                  "--replicas=2", "--role", "ps=2:" + ServerCommand(), "--role",
                  "trainer=1:" + WorkerCommand({"--durability=D2"})});
  }

  // --- What is so now. ---

  bool Awaits(absl::string_view what, absl::FunctionRef<bool()> condition) {
    const auto all_run = [&] {
      return std::all_of(std::begin(nodes_), std::end(nodes_),
                         [](Process* node) {
                           return absl::IsDeadlineExceeded(
                               node->Wait(absl::ZeroDuration()).status());
                         });
    };
    return ChaosJob::Awaits(what, all_run, [&] {
      Look();
      return condition();
    });
  }

  void Look() {
    for (int node = 0; node < kNodes; ++node) {
      See(*nodes_[node], "ps", node);
      See(*nodes_[node], "trainer", node);
    }
    See(*nodes_[0], "coordinator", 0);
  }

  // The last step that the trainer of a node has told; -1: none since its
  // start.
  int64_t StepOf(int node) {
    return LastStep(nodes_[node]->output(),
                    seen(absl::StrCat("trainer", node)).offset);
  }

  int CountTraining() {
    int count = 0;
    for (int node = 0; node < kNodes; ++node) count += StepOf(node) >= 0;
    return count;
  }

  // The newest map that any server has told of.
  std::pair<int64_t, std::string> NewestMap() const {
    std::pair<int64_t, std::string> newest = {-1, ""};
    const std::string made = "partition map: made epoch ";
    for (const std::string& output : Outputs()) {
      for (size_t at = 0; (at = output.find(made, at)) != output.npos;) {
        at += made.size();
        const int64_t epoch = std::strtoll(output.c_str() + at, nullptr, 10);
        if (epoch <= newest.first) continue;
        newest = {epoch, output.substr(at, output.find('\n', at) - at)};
      }
    }
    return newest;
  }

  // Whether each partition is on two servers, as far as the servers know: since
  // the last fault they have noticed it.
  bool IsReplicated() const {
    const auto [epoch, map] = NewestMap();
    return epoch > fault_epoch_ && SteadyClock().Now() >= noticed_at_ &&
           absl::StrContains(map, absl::StrCat(kNodes, " servers (0 silent")) &&
           absl::StrContains(map, " 0 without a backup in sync") &&
           absl::StrContains(map, " 0 lost");
  }

  // --- Faults. ---

  // Once they may be hit: their processes; empty if that does not come.
  std::vector<pid_t> AwaitVictims(const std::vector<std::string>& names) {
    const bool has_server = std::any_of(
        names.begin(), names.end(),
        [](const std::string& name) { return absl::StartsWith(name, "ps"); });
    const bool has_trainer =
        std::any_of(names.begin(), names.end(), [](const std::string& name) {
          return absl::StartsWith(name, "trainer");
        });
    std::vector<pid_t> found;
    const std::string what =
        absl::StrCat(absl::StrJoin(names, ", "), " to be older than 2.5 s",
                     has_server ? ", and two copies of each partition" : "",
                     has_trainer ? ", and another trainer that trains" : "");
    const bool all = Awaits(what, [&] {
      found = OldEnough(names);
      return !found.empty() && (!has_server || IsReplicated()) &&
             (!has_trainer || CountTraining() >= 2);
    });
    return all ? found : std::vector<pid_t>();
  }

  void NoteFaultOfServer(absl::Duration to_notice) {
    fault_epoch_ = NewestMap().first - (to_notice > absl::ZeroDuration());
    noticed_at_ = SteadyClock().Now() + to_notice;
  }

  // Kills all of them at once.
  bool Kill(const std::vector<std::string>& names) {
    const std::vector<pid_t> victims = AwaitVictims(names);
    for (const std::string& name : names) {
      if (absl::StartsWith(name, "ps")) NoteFaultOfServer(absl::ZeroDuration());
    }
    for (const pid_t victim : victims) kill(victim, SIGKILL);
    Note(absl::StrCat("killed ", absl::StrJoin(names, " and "), ", process ",
                      absl::StrJoin(victims, " and ")));
    return !victims.empty();
  }

  // Kills both, the second one while the first is being mended.
  bool KillThen(const std::string& first, const std::string& second,
                double part) {
    const std::vector<pid_t> victims = AwaitVictims({first, second});
    if (victims.empty()) return false;
    NoteFaultOfServer(absl::ZeroDuration());
    kill(victims[0], SIGKILL);
    Note(absl::StrCat("killed ", first, ", process ", victims[0]));
    absl::SleepFor(part * absl::Seconds(2));
    kill(victims[1], SIGKILL);
    Note(absl::StrCat("then killed ", second, ", process ", victims[1]));
    return true;
  }

  // The host's supervisor starts it again.
  bool KillHost(int node) {
    if (AwaitVictims({absl::StrCat("ps", node), absl::StrCat("trainer", node)})
            .empty()) {
      return false;
    }
    NoteFaultOfServer(absl::ZeroDuration());
    nodes_[node]->Signal(SIGKILL);
    Note(absl::StrCat("killed weft run of node ", node));
    if (!nodes_[node]->Wait(kLong).ok()) return false;
    StartNode(node);
    return true;
  }

  bool Stop(const Fault& fault) {
    const std::string name = absl::StrCat(fault.role, fault.node);
    const std::vector<pid_t> found = AwaitVictims({name});
    if (found.empty()) return false;
    const absl::Duration time = fault.times.part * absl::Seconds(3);
    kill(found[0], SIGSTOP);
    Note(absl::StrCat("stopped ", name, ", process ", found[0], ", for ",
                      absl::FormatDuration(time)));
    absl::SleepFor(time);
    kill(found[0], SIGCONT);
    if (fault.role == "ps") NoteFaultOfServer(kToNotice);
    return true;
  }

  bool CutLink(const Fault& fault) {
    const std::vector<std::string> cut_off = {
        absl::StrCat("ps", fault.host), absl::StrCat("trainer", fault.host)};
    if (AwaitVictims(cut_off).empty()) return false;
    const absl::Duration time = fault.times.part * absl::Seconds(3);
    links_[fault.host]->Cut(true);
    Note(absl::StrCat("cut the link of node ", fault.host,
                      " to the coordinator for ", absl::FormatDuration(time)));
    absl::SleepFor(time);
    links_[fault.host]->Cut(false);
    NoteFaultOfServer(kToNotice);
    return true;
  }

  bool Do(const Fault& fault) {
    const std::string server = absl::StrCat("ps", fault.node);
    const std::string trainer = absl::StrCat("trainer", fault.other);
    const std::string coordinator = "coordinator0";
    switch (fault.kind) {
      case Kind::kKillServer:
        return Kill({server});
      case Kind::kKillTrainer:
        return Kill({trainer});
      case Kind::kKillCoordinator:
        return Kill({coordinator});
      case Kind::kKillHost:
        return KillHost(fault.host);
      case Kind::kKillServerAndTrainer:
        return Kill({server, trainer});
      case Kind::kKillServerThenCoordinator:
        return KillThen(server, coordinator, fault.times.part);
      case Kind::kKillServerThenTrainer:
        return KillThen(server, trainer, fault.times.part);
      case Kind::kKillTrainerThenServer:
        return KillThen(trainer, server, fault.times.part);
      case Kind::kKillHostThenCoordinator:
        if (!KillHost(fault.host)) return false;
        absl::SleepFor(fault.times.part * absl::Seconds(2));
        return Kill({coordinator});
      case Kind::kStopForAWhile:
        return Stop(fault);
      case Kind::kCutLink:
        return CutLink(fault);
    }
    return false;
  }

  // --- Results. ---

  void EndAfterMoreSteps() {
    int64_t furthest = 0;
    for (int node = 0; node < kNodes; ++node) {
      furthest = std::max(furthest, StepOf(node));
    }
    WriteEnd(EndFile(), furthest + kMoreSteps);
    Note(absl::StrCat("the training is to end after ", furthest + kMoreSteps,
                      " steps"));
  }

  const int port_ = FreePort();          // of the coordinator
  std::unique_ptr<Link> links_[kNodes];  // to it, but for its own host
  Process* nodes_[kNodes] = {};
  int64_t fault_epoch_ = -1;  // of the map when a server was hit last
  Instant noticed_at_;
};

TEST_F(BothChaos, AnyProcessOfServersAndElasticTrainersMayBeKilledAtAnyTime) {
  for (int node = 0; node < kNodes; ++node) StartNode(node);
  ASSERT_TRUE(Awaits("all to train", [&] {
    return CountTraining() == kNodes && IsReplicated();
  }));
  Note("all train");
  for (const Fault& fault : DrawFaults(seed(), faults())) {
    // The moment is what is tested: nothing is waited for.
    absl::SleepFor(fault.times.pause);
    ASSERT_TRUE(Do(fault));
  }
  ASSERT_TRUE(Awaits("all to train after the last fault", [&] {
    return CountTraining() == kNodes && IsReplicated();
  }));
  EndAfterMoreSteps();
  std::set<std::string> results;
  for (Process* node : nodes_) {
    EXPECT_THAT(node->Wait(kLong), IsOkAndHolds(0));
    results.merge(ResultsIn(node->output()));
  }
  Process& undisturbed = StartUndisturbed();
  EXPECT_THAT(undisturbed.Wait(5 * kLong), IsOkAndHolds(0));
  EXPECT_EQ(results.size(), 1);
  EXPECT_EQ(results, ResultsIn(undisturbed.output()));
  for (int node = 0; node < kNodes; ++node) {
    ExpectNothingLeft(job_.Path(absl::StrCat("node", node)));
  }
}

}  // namespace
}  // namespace weft::testing
