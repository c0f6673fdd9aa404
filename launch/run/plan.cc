// Plan: see the header.

#include "weft/launch/run/plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/launch/run/rank_mark.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"

namespace weft::launch {
namespace {

using Environment = std::map<std::string, std::string>;

// The variables that tell a rank its place within its role, with torchrun's
// names.
Environment PlaceOf(const LaunchOptions& options, const RoleSpec& role,
                    int local, int restart) {
  const std::string rank = absl::StrCat(options.node * role.count + local);
  const std::string size = absl::StrCat(options.nodes * role.count);
  return {
      {"RANK", rank},
      {"LOCAL_RANK", absl::StrCat(local)},
      {"ROLE_RANK", rank},
      {"GROUP_RANK", absl::StrCat(options.node)},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", absl::StrCat(role.count)},
      {"ROLE_WORLD_SIZE", size},
      {"GROUP_WORLD_SIZE", absl::StrCat(options.nodes)},
      {"ROLE_NAME", role.role},
      {"MASTER_ADDR", options.master_addr},
      {"MASTER_PORT", absl::StrCat(options.master_port)},
      {"TORCHELASTIC_RUN_ID", options.job},
      {"TORCHELASTIC_RESTART_COUNT", absl::StrCat(restart)},
      {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(options.max_restarts)},
      // Rank 0 hosts the store at MASTER_ADDR and MASTER_PORT, not a launcher.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"WEFT_JOB", options.job},
      {"WEFT_ROLE", role.role},
      {"WEFT_RANK", rank},
  };
}

// What all ranks of this node are told of the job.
Environment JobOf(const LaunchOptions& options, int restart) {
  int total = 0;
  for (const RoleSpec& role : options.roles) total += role.count;
  Environment job = {{"WEFT_RANKS_ON_HOST", absl::StrCat(total)}};
  if (options.nodes > 1) {
    job["WEFT_START"] = absl::StrCat(restart + 1);
    job["WEFT_WORLD_ORIGIN"] = absl::StrCat(
        "weft run --nnodes=", NodesText(options), " on node ", options.node);
  }
  if (!options.coordinator.empty()) {
    job["WEFT_COORDINATOR"] = options.coordinator;
  }
  if (!options.coordinator_host.empty()) {
    job["WEFT_COORDINATOR_HOST"] = options.coordinator_host;
  }
  if (!options.workers.empty()) job["WEFT_WORKERS"] = options.workers;
  for (const RoleSpec& role : options.roles) {
    const std::string all = absl::StrCat(options.nodes * role.count);
    if (role.role == kServer) {
      job["WEFT_SERVERS"] = all;
      job["WEFT_REPLICAS"] = absl::StrCat(options.replicas);
    }
    if (role.role == kTrainer) job["WEFT_TRAINERS"] = all;
  }
  if (getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr) {
    job["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  }
  // Ranks that share a host share its cores.
  if (total > 1 && getenv("OMP_NUM_THREADS") == nullptr) {
    const int cores = std::max(1u, std::thread::hardware_concurrency());
    job["OMP_NUM_THREADS"] = absl::StrCat(std::max(1, cores / total));
  }
  return job;
}

// Where all that a process writes is kept; empty: nowhere.
std::string LogFile(const LaunchOptions& options, const std::string& name) {
  if (options.log_dir.empty()) return "";
  return absl::StrCat(options.log_dir, "/", name, ".log");
}

// What the user has set wins.
void AddOwn(const LaunchOptions& options, ChildSpec& child) {
  for (const auto& [name, value] : options.environment) {
    child.environment[name] = value;
  }
}

}  // namespace

std::string NoRestartFile(const LaunchOptions& options,
                          const std::string& rank) {
  if (options.directory.empty()) return "";
  return absl::StrCat(options.directory, "/", rank, ".no-restart");
}

std::string CoordinatorLog(const LaunchOptions& options, int restart,
                           const std::string& launcher) {
  if (options.directory.empty() || !options.coordinator_log.empty() ||
      options.coordinator_in_etcd) {
    return "";
  }
  return absl::StrCat(options.directory, "/coordinator-", launcher, "-",
                      restart, ".log");
}

ChildSpec PlanCoordinator(const LaunchOptions& options, int restart,
                          const std::string& launcher) {
  ChildSpec spec;
  spec.name = worker::kCoordinatorName;
  spec.role = worker::kCoordinatorRole;
  spec.argv = options.coordinator_argv;
  if (const std::string log = CoordinatorLog(options, restart, launcher);
      !log.empty()) {
    spec.argv.push_back(absl::StrCat("--coordinator-log=", log));
    spec.argv.push_back("--no-coordinator-log-survives-host");
  } else if (!options.coordinator_log.empty()) {
    spec.argv.push_back(
        absl::StrCat("--coordinator-log=", options.coordinator_log));
  }
  spec.environment = {{"WEFT_JOB", options.job},
                      {"WEFT_COORDINATOR", options.coordinator},
                      {kRankMark, MarkOf(launcher, restart, spec.name)}};
  if (options.nodes > 1) {
    spec.environment["WEFT_START"] = absl::StrCat(restart + 1);
  }
  spec.log_file = LogFile(options, spec.name);
  AddOwn(options, spec);
  return spec;
}

std::vector<ChildSpec> PlanChildren(const LaunchOptions& options, int restart,
                                    const std::string& launcher) {
  const Environment job = JobOf(options, restart);
  std::vector<ChildSpec> children;
  for (const RoleSpec& role : options.roles) {
    for (int local = 0; local < role.count; ++local) {
      ChildSpec child;
      child.name = absl::StrCat(role.role, options.node * role.count + local);
      child.role = role.role;
      child.argv = role.argv;
      child.environment = PlaceOf(options, role, local, restart);
      child.environment.insert(job.begin(), job.end());
      if (!launcher.empty()) {
        child.environment[kRankMark] = MarkOf(launcher, restart, child.name);
      }
      if (const std::string file = NoRestartFile(options, child.name);
          !file.empty()) {
        child.environment[worker::kNoRestartFile] = file;
      }
      child.log_file = LogFile(options, child.name);
      AddOwn(options, child);
      children.push_back(std::move(child));
    }
  }
  return children;
}

std::string NodesText(const LaunchOptions& options) {
  return options.nodes_text.empty() ? absl::StrCat(options.nodes)
                                    : options.nodes_text;
}

std::optional<int> NodeOf(const LaunchOptions& options,
                          absl::string_view rank) {
  for (const RoleSpec& role : options.roles) {
    absl::string_view digits = rank;
    int number = 0;
    if (!absl::ConsumePrefix(&digits, role.role) || role.count < 1 ||
        !absl::SimpleAtoi(digits, &number) || number < 0) {
      continue;
    }
    const int node = number / role.count;
    if (node < options.nodes) return node;
  }
  return std::nullopt;
}

std::string CoresWarning(const LaunchOptions& options, int cores) {
  int ranks = 0;
  for (const RoleSpec& role : options.roles) ranks += role.count;
  if (ranks <= cores) return "";
  const auto own = options.environment.find("WEFT_SILENCE");
  const char* const set = getenv("WEFT_SILENCE");
  const std::string silence = own != options.environment.end() ? own->second
                              : set != nullptr                 ? set
                                                               : "10s";
  return absl::StrCat(
      "warning: ", ranks, " ranks share the ", cores,
      cores == 1 ? " core" : " cores",
      " of this host and run in turns: a step takes as long as all of them "
      "compute one after another, waits for others are longer, and a rank "
      "that gets no core for ",
      silence, " counts as dead; start fewer, or raise --silence");
}

}  // namespace weft::launch
