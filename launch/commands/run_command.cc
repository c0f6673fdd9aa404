// weft run: starts the ranks of a job on this host.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/flight_report.h"
#include "weft/launch/commands/torchrun_flags.h"
#include "weft/launch/run/coordinator_channel.h"
#include "weft/launch/run/exit_reporter.h"
#include "weft/launch/run/facts_exchange.h"
#include "weft/launch/run/launcher.h"
#include "weft/launch/run/plan.h"
#include "weft/launch/run/role_spec.h"
#include "weft/launch/run/run_directory.h"
#include "weft/launch/run/run_lock.h"
#include "weft/net/address.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/identity.h"
#include "weft/ps/server.h"
#include "weft/rendezvous/membership.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"
#include "weft/worker/silence.h"

namespace weft::launch {
namespace {

using worker::ExitCode;
using worker::WithExitCode;

constexpr char kAbout[] =
    "Starts the ranks of a job on this host, shows their output, and ends them "
    "together.\n\n"
    "  weft run --role ps=2:bin/parameter_server --role "
    "trainer=2:'bin/trainer --epochs=3'\n"
    "  weft run --nproc-per-node=4 PROGRAM ARGS\n";

// As worker::Options checks it in each rank.
absl::Status CheckReplicas(const LaunchOptions& options) {
  if (options.replicas != 1 && options.replicas != 2) {
    return RunUsage(
        absl::StrCat("--replicas=", options.replicas, ": wanted 1 or 2"));
  }
  for (const RoleSpec& role : options.roles) {
    const int servers = role.count * options.nodes;
    if (role.role != "ps" || options.replicas <= servers) continue;
    return RunUsage(absl::StrCat("--replicas=", options.replicas,
                                 " wants at least 2 servers, found ", servers));
  }
  return absl::OkStatus();
}

// "MIN:MAX", with room for those that are started here.
absl::Status CheckElastic(const LaunchOptions& options) {
  if (options.workers.empty()) return absl::OkStatus();
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(options.workers, absl::MaxSplits(':', 1));
  int min = 0;
  int max = 0;
  // As --workers of each of them, which this becomes.
  constexpr int kMostWorkers = 65536;
  if (!absl::SimpleAtoi(parts.first, &min) ||
      !absl::SimpleAtoi(parts.second, &max) || min < 1 || max < min ||
      max > kMostWorkers) {
    return RunUsage(absl::StrCat("--elastic=", options.workers,
                                 ": wanted MIN:MAX, as in 2:8, from 1 on, MAX ",
                                 kMostWorkers, " at most"));
  }
  int ranks = 0;
  for (const RoleSpec& role : options.roles) {
    if (role.role == kTrainer) {
      ranks += role.count * options.nodes;
      continue;
    }
    // A job goes on without a server only where others have its tables.
    if (role.role == kServer && options.replicas > 1) continue;
    return RunUsage(absl::StrCat(
        "--elastic=", options.workers,
        ": wanted the role trainer, and with --replicas=2 the role ps; found "
        "role ",
        role.role,
        role.role == kServer
            ? absl::StrCat(" and --replicas=", options.replicas)
            : ""));
  }
  if (ranks == 0) {
    return RunUsage(absl::StrCat("--elastic=", options.workers,
                                 ": wanted trainers, found none"));
  }
  if (ranks > max) {
    return RunUsage(absl::StrCat("--elastic=", options.workers,
                                 ": wanted at most ", max, " trainers, found ",
                                 ranks));
  }
  if (options.allowed_trainer_exits > 0) {
    return RunUsage(
        "--elastic starts a trainer that fails again, as often as it takes: it "
        "goes without --allow-trainer-exits");
  }
  if (options.max_restarts > 0 && options.nodes > 1) {
    return RunUsage(absl::StrCat(
        "--max-restarts=", options.max_restarts,
        " starts all ranks of one host again; the others of an elastic job on "
        "several hosts go on, so it is wanted on one host alone, found "
        "--nnodes=",
        NodesText(options)));
  }
  return absl::OkStatus();
}

// A port that is free now: for programs that want MASTER_PORT.
absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  const absl::Cleanup closer = [fd] { close(fd); };
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* general = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, general, size) != 0 || getsockname(fd, general, &size) != 0) {
    return absl::ErrnoToStatus(errno, "no free port");
  }
  return ntohs(address.sin_port);
}

// The name of the rank of `roles` that hosts the coordinator.
std::string HostOf(const std::vector<RoleSpec>& roles) {
  for (const RoleSpec& role : roles) {
    if (role.role == "ps") return "ps0";
  }
  return "trainer0";
}

// An id of a process is also that of others, who see the same directory from
// another container.
std::string NameOfOwnJob() {
  return absl::StrCat(
      "run-", getpid(), "-",
      absl::Hex(static_cast<uint32_t>(rendezvous::DrawIncarnation())));
}

// What the recordings that ranks have left say together: who waits for whom in
// which collective operation.
void TellOfRecordings(const std::vector<std::string>& paths) {
  std::vector<FlightFile> files;
  for (const std::string& path : paths) {
    absl::StatusOr<std::string> text = input::ReadFile(path);
    if (text.ok() && IsRecording(*text)) {
      files.push_back({path, *std::move(text)});
    }
  }
  if (files.empty()) return;
  const absl::StatusOr<std::string> report = FlightReport(files);
  if (!report.ok() || !absl::StartsWith(*report, "group ")) return;
  std::fprintf(stderr, "weft: the recordings say:\n%s", report->c_str());
}

// The keeper has done so where the ranks were started.
void Sweep(const std::string& directory, bool is_own_job) {
  if (directory.empty()) return;
  RemoveOldRecordings(directory, absl::Now());
  if (!net::CheckSocketDirectory(directory).ok()) return;
  if (!is_own_job) return SweepJobDirectory(directory);
  const std::vector<std::string> recordings = SweepRunDirectory(directory);
  TellOfRecordings(recordings);
  for (const std::string& path : recordings) {
    std::fprintf(stderr,
                 "weft: a flight recording is kept: %s (for a day; weft dump "
                 "reads it)\n",
                 path.c_str());
  }
}

absl::Status MakeLogDir(const std::string& directory) {
  if (directory.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error && access(directory.c_str(), W_OK | X_OK) == 0) {
    return absl::OkStatus();
  }
  return WithExitCode(absl::FailedPreconditionError(absl::StrCat(
                          "weft run: --log-dir=", directory,
                          ": wanted a directory to write in, found: ",
                          error ? error.message() : std::strerror(errno))),
                      ExitCode::kConfig);
}

// The error of a command that could not run its ranks.
absl::Status NotRun(const absl::Status& why) {
  const bool is_limit = absl::IsResourceExhausted(why);
  return WithExitCode(
      absl::Status(why.code(),
                   absl::StrCat("weft run: ", why.message(),
                                is_limit ? "; raise the limit, of open files "
                                           "by `ulimit -n`, of processes by "
                                           "`ulimit -u`, of memory by "
                                           "`ulimit -v`"
                                         : "")),
      is_limit ? ExitCode::kResource : ExitCode::kConfig);
}

// The command line.
struct Arguments {
  LaunchOptions options;
  CoordinatorChannelOptions reporting;
  std::string init;
  std::string directory;  // of the job's sockets; empty: none
  bool is_own_job = false;
  bool has_own_coordinator = true;  // a process of its own hosts it
};

// Which ranks are started, and what becomes of those that fail.
void AddRankFlags(worker::Flags& flags, LaunchOptions& options,
                  TorchrunFlags& torchrun) {
  flags.AddRepeated(
      "role",
      [&options](const std::string& text) {
        absl::StatusOr<RoleSpec> role = ParseRole(text);
        if (!role.ok()) return role.status();
        for (const RoleSpec& other : options.roles) {
          if (other.role != role->role) continue;
          return absl::InvalidArgumentError(
              absl::StrCat("role ", role->role,
                           " is there twice; wanted each role once, "
                           "with the number of all its ranks"));
        }
        options.roles.push_back(*std::move(role));
        return absl::OkStatus();
      },
      "ROLE=COUNT:'PROGRAM ARGS', any number of times");
  AddTorchrunFlags(flags, torchrun, options);
  flags.Add("allow-trainer-exits", &options.allowed_trainer_exits,
            "the job goes on after so many trainers of this host have failed");
  flags.Add("replicas", &options.replicas,
            "servers that have each partition of the tables: 1, or 2, with "
            "which a server that fails is started again alone",
            {"WEFT_REPLICAS"});
  flags.AddWith(
      "rebalance",
      [&options](const std::string& text) {
        WEFT_RETURN_IF_ERROR(ps::RebalanceModeOf(text).status());
        options.environment["WEFT_REBALANCE"] = text;
        return absl::OkStatus();
      },
      "off",
      "with --replicas=2, on: the servers even out what they have to do; "
      "dry-run: they log what they would move",
      {"WEFT_REBALANCE"});
  flags.AddWith(
      "table-log-dir",
      [&options](const std::string& text) {
        options.environment["WEFT_TABLE_LOG_DIR"] = text;
        return absl::OkStatus();
      },
      "",
      "with --replicas=2: directory for what servers log of tables of "
      "durability LOGGED, in DIR/ps0 and so on",
      {"WEFT_TABLE_LOG_DIR"});
  flags.Add("elastic", &options.workers,
            "MIN:MAX trainers, of which this starts --nproc-per-node or those "
            "of --role: one that fails is started again alone, and others may "
            "come, while the program goes on (bin/trainer --strategy=ddp "
            "--virtual-shards=N). With --replicas=2 also beside parameter "
            "servers, whose number is fixed");
  flags.AddWith(
      "silence",
      [&options](const std::string& text) {
        absl::Duration silence;
        WEFT_RETURN_IF_ERROR(worker::ParseSilence(text, &silence));
        options.environment["WEFT_SILENCE"] = text;
        return absl::OkStatus();
      },
      "", "how long a rank may be silent before it is dead; for all ranks",
      {"WEFT_SILENCE"});
}

absl::StatusOr<Arguments> ParseFlags(int argc, char** argv) {
  Arguments arguments;
  LaunchOptions& options = arguments.options;
  CoordinatorChannelOptions& reporting = arguments.reporting;
  TorchrunFlags torchrun;
  options.master_port = 0;
  worker::Flags flags("weft run", kAbout);
  AddRankFlags(flags, options, torchrun);
  flags.Add("job", &options.job, "the job's name; one of its own by default",
            {"WEFT_JOB"});
  flags.Add("coordinator", &options.coordinator,
            "where the job meets; a socket of this user's by default",
            {"WEFT_COORDINATOR"});
  flags.Add("init", &arguments.init,
            "how the ranks meet, in place of --coordinator; by etcd a "
            "coordinator0 on each host stands by to host it, else rank 0 of "
            "the servers, or of the trainers, does",
            {"WEFT_INIT"});
  flags.Add("own-coordinator", &arguments.has_own_coordinator,
            "start the coordinator in a process of its own, coordinator0, and "
            "start that again if it ends; --no-own-coordinator: rank 0 hosts "
            "it. The same on all nodes");
  flags.Add("coordinator-log", &options.coordinator_log,
            "file in which the coordinator's records outlive this weft run: "
            "one of the same job that is started after a power loss goes on "
            "with them, and with --table-log-dir. By default they end with it",
            {"WEFT_COORDINATOR_LOG"});
  flags.Add("certs", &reporting.certs,
            "directory made by `weft certs init`, for the ranks",
            {"WEFT_CERTS"});
  flags.Add("insecure", &reporting.insecure, "TCP without certificates",
            {"WEFT_INSECURE"});
  flags.Add("shutdown-timeout", &options.shutdown_timeout,
            "between asking ranks to end and killing them",
            {"PET_SHUTDOWN_TIMEOUT"});
  flags.Add("log-dir", &options.log_dir,
            "directory, made if it is not there, for all output of each rank: "
            "DIR/trainer0.log",
            {"PET_LOG_DIR"});
  flags.Add("events", &options.events_file,
            "file to which the events of the job are appended, a JSON object "
            "a line");
  flags.Add("prefix", &options.prefix, "begin lines with the rank's name");
  flags.AllowPositional("PROGRAM ARGS");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_RETURN_IF_ERROR(ReadTorchrunFlags(flags, torchrun, options));
  if (options.allowed_trainer_exits < 0) {
    return RunUsage(
        absl::StrCat("--allow-trainer-exits=", options.allowed_trainer_exits,
                     ": wanted a number of at least 0"));
  }
  WEFT_RETURN_IF_ERROR(worker::CheckTrust(reporting.certs, reporting.insecure));
  WEFT_RETURN_IF_ERROR(AddProgram(torchrun, flags.positional(), options));
  WEFT_RETURN_IF_ERROR(CheckReplicas(options));
  WEFT_RETURN_IF_ERROR(ReadElasticNodes(torchrun, options));
  WEFT_RETURN_IF_ERROR(CheckElastic(options));
  if (!arguments.init.empty() && !options.coordinator.empty()) {
    return RunUsage("give either --init or --coordinator");
  }
  if (!absl::StartsWith(options.coordinator, "unix:") &&
      absl::EndsWith(options.coordinator, ":0")) {
    return RunUsage(absl::StrCat(
        "--coordinator=", options.coordinator,
        ": the ranks cannot know which port that will be; give one that is "
        "free"));
  }
  WEFT_RETURN_IF_ERROR(CompleteNodes(arguments.init, options));
  return arguments;
}

// The command of coordinator0, and its name for the ranks. It runs on node 0;
// where its records are in etcd on each node, of which one hosts the job.
absl::Status PlanOwnCoordinator(const std::string& certs,
                                LaunchOptions& options) {
  options.coordinator_host = worker::kCoordinatorName;
  if (options.node != 0 && !options.coordinator_in_etcd) {
    return absl::OkStatus();
  }
  if (!certs.empty() &&
      !net::HasMember(certs, {options.job, worker::kCoordinatorRole, 0})) {
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "weft run: --certs=", certs, ": wanted a certificate of ",
            worker::kCoordinatorName,
            ", found none; make it by `weft certs init`, which keeps those "
            "that are there, or let rank 0 host the coordinator by "
            "--no-own-coordinator on all nodes")),
        ExitCode::kAuth);
  }
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return absl::InternalError(absl::StrCat(
        "weft run: /proc/self/exe cannot be read: ", error.message()));
  }
  options.coordinator_argv = {self.string(), "coordinator",
                              "--log-level=warning"};
  if (options.coordinator_in_etcd) {
    options.coordinator_argv.push_back("--standby");
  }
  return absl::OkStatus();
}

// Names the job and its coordinator's address, if the command line does not,
// and puts both into the environment of the ranks.
absl::Status CompleteOptions(Arguments& arguments) {
  LaunchOptions& options = arguments.options;
  const CoordinatorChannelOptions& reporting = arguments.reporting;
  const bool is_own_job = options.job.empty();
  if (is_own_job && !reporting.certs.empty()) {
    return RunUsage(absl::StrCat("--certs=", reporting.certs,
                                 " is of one job: give its name by --job"));
  }
  if (is_own_job) options.job = NameOfOwnJob();
  if (absl::Status named = net::ValidateJob(options.job); !named.ok()) {
    return RunUsage(absl::StrCat("--job: ", named.message()));
  }
  if (!arguments.init.empty()) {
    options.environment["WEFT_INIT"] = arguments.init;
  }
  if (!reporting.certs.empty()) {
    options.environment["WEFT_CERTS"] = reporting.certs;
  }
  if (reporting.insecure) options.environment["WEFT_INSECURE"] = "true";
  WEFT_ASSIGN_OR_RETURN(arguments.directory,
                        net::SocketDirectoryPath(options.job));
  arguments.is_own_job = is_own_job;
  const bool meets_there =
      arguments.init.empty() && options.coordinator.empty();
  if (meets_there) {
    options.coordinator =
        absl::StrCat("unix:", arguments.directory, "/coordinator.sock");
    if (const auto fits = net::ParseAddress(options.coordinator); !fits.ok()) {
      return worker::WithExitCode(
          absl::InvalidArgumentError(absl::StrCat(
              "weft run: ", fits.status().message(),
              "; it follows from --job and XDG_RUNTIME_DIR: make one of them "
              "shorter, or give a --coordinator")),
          ExitCode::kConfig);
    }
  }
  options.make_directory = [job = options.job,
                            meets_there]() -> absl::StatusOr<std::string> {
    absl::StatusOr<std::string> made = net::DefaultSocketDirectory(job);
    // Ranks that meet elsewhere do without.
    return made.ok() || meets_there ? std::move(made) : "";
  };
  options.coordinator_in_etcd = absl::StartsWith(arguments.init, "etcd");
  if (!arguments.init.empty() && !options.coordinator_in_etcd) {
    arguments.has_own_coordinator = false;
  }
  if (arguments.has_own_coordinator) {
    WEFT_RETURN_IF_ERROR(PlanOwnCoordinator(reporting.certs, options));
  } else if (!options.coordinator_log.empty()) {
    options.environment["WEFT_COORDINATOR_LOG"] = options.coordinator_log;
  }
  options.sweep = [path = arguments.directory, is_own_job] {
    Sweep(path, is_own_job);
  };
  return absl::OkStatus();
}

// Where the launcher itself meets the job.
CoordinatorChannelOptions ChannelOf(const Arguments& arguments) {
  const LaunchOptions& options = arguments.options;
  CoordinatorChannelOptions channel = arguments.reporting;
  channel.job = options.job;
  channel.coordinator = options.coordinator;
  channel.init = arguments.init;
  if (arguments.init == "env://") {  // which the ranks are given
    channel.coordinator =
        absl::StrCat(options.master_addr, ":", options.master_port);
    channel.init = "";
  }
  channel.host = options.coordinator_host.empty() ? HostOf(options.roles)
                                                  : options.coordinator_host;
  return channel;
}

// Null where another `weft run` cannot start the same coordinator, or may.
absl::StatusOr<std::unique_ptr<RunLock>> LockJob(const Arguments& arguments) {
  const LaunchOptions& options = arguments.options;
  if (arguments.is_own_job || options.coordinator_argv.empty() ||
      options.coordinator_in_etcd) {
    return nullptr;
  }
  return RunLock::Take(options.make_directory, options.job,
                       options.coordinator);
}

}  // namespace

absl::StatusOr<int> RunCommand(int argc, char** argv) {
  WEFT_ASSIGN_OR_RETURN(Arguments arguments, ParseFlags(argc, argv));
  WEFT_RETURN_IF_ERROR(CompleteOptions(arguments));
  LaunchOptions& options = arguments.options;
  if (arguments.is_own_job && !options.coordinator_log.empty()) {
    std::fprintf(stderr,
                 "weft: warning: --coordinator-log without --job: the records "
                 "are of job %s, which has that name in this start alone; give "
                 "--job=NAME, by which another start goes on with them\n",
                 options.job.c_str());
  }
  // A `weft run` around this one may have set it: for its own ranks.
  if (options.coordinator_host.empty()) unsetenv("WEFT_COORDINATOR_HOST");
  unsetenv("WEFT_REJOIN");
  absl::StatusOr<std::unique_ptr<RunLock>> lock = LockJob(arguments);
  if (!lock.ok()) return NotRun(lock.status());
  const absl::Cleanup sweeper = [&] {
    lock->reset();
    Sweep(arguments.directory, arguments.is_own_job);
  };
  WEFT_RETURN_IF_ERROR(MakeLogDir(options.log_dir));
  if (options.master_port == 0) {
    WEFT_ASSIGN_OR_RETURN(options.master_port, FreePort());
  }
  CoordinatorChannel channel(ChannelOf(arguments));
  ExitReporter reporter(channel);
  options.on_exit = [&](const Child& child, const Exit& exit) {
    // Without a certificate of admin0 this fails, and the silence of the worker
    // tells the coordinator of its end.
    (void)reporter.Report(child.name(), child.pid(), exit);
  };
  FactsExchange facts(channel, options.node);
  if (options.nodes > 1) {
    options.share_facts = [&](const std::vector<RankFacts>& own,
                              const std::set<int>& nodes) {
      return facts.Exchange(own, nodes);
    };
  }
  absl::StatusOr<int> code = Run(options);
  if (!code.ok()) return NotRun(code.status());
  return code;
}

}  // namespace weft::launch
