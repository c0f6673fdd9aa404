#include "weft/launch/commands/torchrun_flags.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"
#include "weft/launch/run/plan.h"
#include "weft/launch/run/role_spec.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

constexpr int kMasterPort = 29500;  // torchrun's

absl::StatusOr<int> CountOf(const std::string& processes) {
  int count = 0;
  if (processes == "auto" || processes == "cpu") {
    return std::max(1u, std::thread::hardware_concurrency());
  }
  if (absl::SimpleAtoi(processes, &count) && count >= 1 && count <= 1024) {
    return count;
  }
  return RunUsage(
      absl::StrCat("--nproc-per-node=", processes,
                   ": wanted a number from 1 to 1024, auto or cpu"));
}

// "N", or torchrun's "MIN:MAX".
absl::StatusOr<std::pair<int, int>> ParseNodes(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int least = 0;
  int most = 0;
  if (parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &least) &&
      absl::SimpleAtoi(parts.back(), &most) && least >= 1 && least <= most &&
      most <= 1024) {
    return std::make_pair(least, most);
  }
  return RunUsage(absl::StrCat("--nnodes=", text,
                               ": wanted the number of hosts, from 1 to 1024, "
                               "or MIN:MAX of an elastic job"));
}

int PortBeside(int port) { return port < 65535 ? port + 1 : port - 1; }

// Takes "HOST:PORT" apart.
bool ParseHostPort(absl::string_view address, std::string* host, int* port) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), port)) {
    return false;
  }
  *host = std::string(address.substr(0, colon));
  return true;
}

// Where programs that are not Weft's meet, if the user has not said it.
void CompleteMaster(absl::string_view address, LaunchOptions& options) {
  if (options.master_port != 0) return;
  std::string host;
  int port = 0;
  if (ParseHostPort(address, &host, &port)) {
    options.master_addr = std::move(host);
    options.master_port = PortBeside(port);
  } else {
    options.master_port = kMasterPort;  // the same on all nodes
  }
}

// train.py is a program of Python's, as torchrun has it.
std::vector<std::string> CommandOf(const TorchrunFlags& torchrun,
                                   const std::vector<std::string>& words) {
  if (!torchrun.python || !absl::EndsWith(words.front(), ".py")) return words;
  const char* const python = std::getenv("PYTHON_EXEC");
  std::vector<std::string> command = {
      python != nullptr && *python != '\0' ? python : "python3", "-u"};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

// Sets `value`, of flag `name`, to what torchrun's flag `other` says, if that
// says anything. What the command line says goes before the environment; else
// both must say the same.
absl::Status TakeEither(const worker::Flags& parsed, const std::string& name,
                        const std::string& other, const std::string& said,
                        std::string& value) {
  if (said.empty() || said == value) return absl::OkStatus();
  const bool is_own_given = parsed.Origin(name) == "flag";
  const bool is_other_given = parsed.Origin(other) == "flag";
  if (value.empty() || (is_other_given && !is_own_given)) {
    value = said;
    return absl::OkStatus();
  }
  if (is_own_given && !is_other_given) return absl::OkStatus();
  return RunUsage(absl::StrCat("--", name, "=", value, " and --", other, "=",
                               said,
                               ": wanted one value, of which both are "
                               "names; give one of them"));
}

// For those who come from torchrun, whose command lines have them.
void AddUnusedFlags(worker::Flags& flags, TorchrunFlags& torchrun) {
  flags.Add("standalone", &torchrun.standalone,
            "as torchrun's; jobs of this command always are",
            {"PET_STANDALONE"});
  flags.AddWith(
      "rdzv-backend",
      [&torchrun](const std::string& text) {
        torchrun.rdzv_backend = text;
        if (text == "static" || text == "c10d") return absl::OkStatus();
        return absl::InvalidArgumentError(
            "wanted static or c10d, which mean the same here: workers meet at "
            "--coordinator; in etcd they do by --init=etcd://HOST:PORT");
      },
      torchrun.rdzv_backend, "as torchrun's: static or c10d",
      {"PET_RDZV_BACKEND"});
  for (const char* name : {"rdzv-conf", "monitor-interval", "start-method",
                           "local-addr", "redirects", "tee"}) {
    flags.Add(name, &torchrun.unused, "as torchrun's, without effect");
  }
}

}  // namespace

absl::Status RunUsage(absl::string_view message) {
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat("weft run: ", message)),
      worker::ExitCode::kUsage);
}

void AddTorchrunFlags(worker::Flags& flags, TorchrunFlags& torchrun,
                      LaunchOptions& options) {
  flags.Add("nproc-per-node", &torchrun.processes,
            "run so many of the program after the flags: a number, auto or cpu",
            {"PET_NPROC_PER_NODE"});
  flags.Add("nnodes", &torchrun.nodes,
            "hosts of the job, with a weft run on each; MIN:MAX: an elastic "
            "job, whose hosts may come and go (--elastic)",
            {"PET_NNODES"});
  flags.Add("node-rank", &torchrun.node,
            "this host's number, from 0; the coordinator is on 0",
            {"PET_NODE_RANK"});
  flags.Add("max-restarts", &options.max_restarts,
            "how often all ranks are started again after one has failed",
            {"PET_MAX_RESTARTS"});
  flags.Add("rdzv-id", &torchrun.job, "torchrun's name for --job",
            {"PET_RDZV_ID"});
  flags.Add("rdzv-endpoint", &torchrun.coordinator,
            "torchrun's name for --coordinator", {"PET_RDZV_ENDPOINT"});
  flags.Add("master-addr", &options.master_addr, "for MASTER_ADDR",
            {"PET_MASTER_ADDR"});
  flags.Add("master-port", &options.master_port,
            "for MASTER_PORT; a free one by default", {"PET_MASTER_PORT"});
  flags.Add("python", &torchrun.python,
            "run a program whose name ends with .py by python3 (PYTHON_EXEC)");
  AddUnusedFlags(flags, torchrun);
}

absl::Status ReadTorchrunFlags(const worker::Flags& parsed,
                               const TorchrunFlags& flags,
                               LaunchOptions& options) {
  WEFT_RETURN_IF_ERROR(
      TakeEither(parsed, "job", "rdzv-id", flags.job, options.job));
  WEFT_RETURN_IF_ERROR(TakeEither(parsed, "coordinator", "rdzv-endpoint",
                                  flags.coordinator, options.coordinator));
  WEFT_ASSIGN_OR_RETURN(const auto nodes, ParseNodes(flags.nodes));
  options.nodes = nodes.second;
  options.nodes_text = flags.nodes;
  options.node = flags.node;
  if (options.node < 0 || options.node >= options.nodes) {
    return RunUsage(absl::StrCat("--node-rank=", options.node, ": wanted 0 to ",
                                 options.nodes - 1,
                                 " of --nnodes=", flags.nodes));
  }
  if (options.max_restarts < 0) {
    return RunUsage(absl::StrCat("--max-restarts=", options.max_restarts,
                                 ": wanted a number of at least 0"));
  }
  if (options.master_port >= 0 && options.master_port <= 65535) {
    return absl::OkStatus();
  }
  return RunUsage(absl::StrCat("--master-port=", options.master_port,
                               ": wanted a port from 1 to 65535, or 0 for a "
                               "free one"));
}

absl::Status AddProgram(const TorchrunFlags& torchrun,
                        const std::vector<std::string>& words,
                        LaunchOptions& options) {
  if (words.empty() && torchrun.processes.empty()) {
    if (!options.roles.empty()) return absl::OkStatus();
    return RunUsage(
        "nothing to run; give --role, or --nproc-per-node and a "
        "program (see --help)");
  }
  if (!options.roles.empty()) {
    return RunUsage("give either --role or --nproc-per-node and a program");
  }
  if (words.empty()) {
    return RunUsage("--nproc-per-node wants a program after it");
  }
  RoleSpec role;
  role.role = "trainer";
  role.argv = CommandOf(torchrun, words);
  WEFT_ASSIGN_OR_RETURN(
      role.count,
      CountOf(torchrun.processes.empty() ? "1" : torchrun.processes));
  options.roles.push_back(std::move(role));
  return absl::OkStatus();
}

absl::Status ReadElasticNodes(const TorchrunFlags& flags,
                              LaunchOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const auto nodes, ParseNodes(flags.nodes));
  if (nodes.first == nodes.second) return absl::OkStatus();
  if (!options.workers.empty()) {
    return RunUsage(absl::StrCat("--nnodes=", flags.nodes,
                                 " and --elastic=", options.workers,
                                 ": wanted one of them with MIN:MAX; of a job "
                                 "with a fixed number of hosts, --nnodes=N"));
  }
  int trainers = 0;
  for (const RoleSpec& role : options.roles) {
    if (role.role != kTrainer) {
      return RunUsage(absl::StrCat("--nnodes=", flags.nodes,
                                   ": wanted --nnodes=N and --elastic=MIN:MAX "
                                   "with role ",
                                   role.role, ", whose number is fixed"));
    }
    trainers += role.count;
  }
  options.workers =
      absl::StrCat(nodes.first * trainers, ":", nodes.second * trainers);
  return absl::OkStatus();
}

absl::Status CompleteNodes(const std::string& init, LaunchOptions& options) {
  if (options.nodes == 1) return absl::OkStatus();
  std::string& coordinator = options.coordinator;
  if (init.empty() && coordinator.empty() && options.master_port != 0) {
    coordinator =
        absl::StrCat(options.master_addr, ":", PortBeside(options.master_port));
  }
  const bool is_remote =
      !coordinator.empty() && !absl::StartsWith(coordinator, "unix:");
  if (init.empty() && !is_remote) {
    return RunUsage(absl::StrCat(
        "--nnodes=", NodesText(options),
        ": wanted --coordinator=HOST:PORT, the same on all nodes, HOST being "
        "that of --node-rank=0; found ",
        coordinator.empty() ? "none" : coordinator));
  }
  if (options.job.empty()) {
    return RunUsage(absl::StrCat("--nnodes=", NodesText(options),
                                 ": wanted --job=NAME, the same on all nodes"));
  }
  absl::string_view address = init.empty() ? coordinator : init;
  const bool has_address =
      init.empty() || absl::ConsumePrefix(&address, "tcp://");
  CompleteMaster(has_address ? address : "", options);
  return absl::OkStatus();
}

}  // namespace weft::launch
