// Options: see the header.

#include "weft/worker/options.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/device/open.h"
#include "weft/net/address.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/net/tls/identity.h"
#include "weft/telemetry/stderr_line.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/silence.h"

namespace weft::worker {
namespace {

absl::Status Config(absl::string_view message) {
  return WithExitCode(absl::InvalidArgumentError(message), ExitCode::kConfig);
}

absl::Status Usage(absl::string_view message) {
  return WithExitCode(absl::InvalidArgumentError(message), ExitCode::kUsage);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

absl::Status SetLogFormat(const std::string& text,
                          telemetry::LogFormat* format) {
  if (text != "text" && text != "json") {
    return absl::InvalidArgumentError("wanted text or json");
  }
  *format = text == "json" ? telemetry::LogFormat::kJson
                           : telemetry::LogFormat::kText;
  return absl::OkStatus();
}

absl::Status SetLogLevel(const std::string& text, telemetry::Level* level) {
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error",
                                          "off"};
  for (int i = 0; i < 5; ++i) {
    if (text != kNames[i]) continue;
    *level = static_cast<telemetry::Level>(i);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "wanted debug, info, warning, error or off");
}

absl::Status SetWorkers(const std::string& text, int* min, int* max) {
  const std::pair<absl::string_view, absl::string_view> bounds =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (absl::SimpleAtoi(bounds.first, min) &&
      absl::SimpleAtoi(bounds.second, max) && *min >= 1 && *max >= *min &&
      *max <= rendezvous::kMaxWorkers) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("wanted MIN:MAX, as in 2:8, MIN at least 1 and MAX from MIN "
                   "to ",
                   rendezvous::kMaxWorkers));
}

absl::Status SetLabels(const std::string& text,
                       std::map<std::string, std::string>* labels) {
  labels->clear();
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> label =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const bool is_own = label.first == "role" || label.first == "rank" ||
                        label.first == "name" ||
                        label.first == kMemorySocketLabel;
    if (label.first.empty() || label.second.empty() || is_own ||
        absl::StrContains(label.second, '=')) {
      return absl::InvalidArgumentError(
          "wanted NAME=VALUE,... with names other than role, rank, name and "
          "memory_socket, and one '=' each");
    }
    labels->emplace(label.first, label.second);
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const Options& options) {
  const absl::Status known = device::CheckDeviceText(options.device);
  if (!known.ok()) return Usage(absl::StrCat("--device: ", known.message()));
  if (options.local_rank >= 0) return absl::OkStatus();
  return Usage(absl::StrCat("--local-rank=", options.local_rank,
                            " (or LOCAL_RANK): wanted 0 or more"));
}

absl::Status CheckReplicas(const Options& options) {
  if (options.replicas != 1 && options.replicas != 2) {
    return Usage(
        absl::StrCat("--replicas=", options.replicas, ": wanted 1 or 2"));
  }
  if (options.replicas > 1 && options.servers == 1) {
    return Usage(absl::StrCat(
        "--replicas=", options.replicas,
        " wants at least 2 servers, found --servers=", options.servers));
  }
  return absl::OkStatus();
}

absl::Status CheckListen(const Options& options) {
  const absl::Status read = net::ParseAddress(options.listen).status();
  if (read.ok()) return read;
  if (!options.listens_by_default) {
    return Usage(absl::StrCat("--listen: ", read.message()));
  }
  return Config(absl::StrCat("--listen: ", read.message(),
                             " (chosen from --job, --role and --rank: shorten "
                             "them, or say --listen=)"));
}

// Whether the job has room for a worker of this role and rank.
absl::Status CheckPlace(const Options& options) {
  const rendezvous::World world = options.world();
  if (const absl::Status fit = world.Validate(); !fit.ok()) {
    return Config(absl::StrCat("--servers, --trainers: ", fit.message()));
  }
  const std::string& role = options.role;
  const bool is_server_beyond = options.is_elastic() && options.servers > 0 &&
                                role == "ps" && options.rank >= options.servers;
  if (is_server_beyond) {
    return Config(absl::StrCat("--rank=", options.rank,
                               " (or WEFT_RANK, RANK): there is no ",
                               options.name(), " in a job of ", options.servers,
                               " servers; ranks count from 0"));
  }
  if (role == rendezvous::kAdminRole || role == kCoordinatorRole ||
      options.is_elastic()) {
    return absl::OkStatus();
  }
  if (role != "ps" && role != "trainer") {
    return Usage(
        absl::StrCat("--role=", role, ": wanted ps, trainer or admin"));
  }
  if (world.Place(role, options.rank).has_value()) return absl::OkStatus();
  const bool has_none =
      (role == "ps" ? options.servers : options.trainers) == 0;
  return Config(absl::StrCat(
      "--rank=", options.rank, " (or WEFT_RANK, RANK): there is no ",
      options.name(), " in a job of ", options.servers, " servers and ",
      options.trainers, " trainers; ",
      has_none ? absl::StrCat("say how many there are by --",
                              role == "ps" ? "servers" : "trainers", "=N")
               : "ranks count from 0"));
}

absl::Status CheckLimits(const Options& options) {
  if (options.ranks_on_host < 1) {
    return Usage(absl::StrCat("--ranks-on-host=", options.ranks_on_host,
                              ": wanted at least 1, this one"));
  }
  if (options.shared_memory_budget < 0) {
    return Usage(
        absl::StrCat("--shared-memory-budget=", options.shared_memory_budget,
                     ": wanted bytes, or 0 for half of the memory"));
  }
  if (options.shared_memories < 0) {
    return Usage(absl::StrCat("--shared-memories=", options.shared_memories,
                              ": wanted a number from 0 on"));
  }
  if (options.handler_threads < 0) {
    return Usage(absl::StrCat("--handler-threads=", options.handler_threads,
                              ": wanted a number from 0 on"));
  }
  if (options.max_handler_threads < std::max(options.handler_threads, 1)) {
    return Usage(
        absl::StrCat("--max-handler-threads=", options.max_handler_threads,
                     ": wanted no fewer than --handler-threads, ",
                     std::max(options.handler_threads, 1)));
  }
  return absl::OkStatus();
}

absl::Status ResolveSilence(Options& options) {
  const SilenceTimes times = {options.limits, options.rpc_timeout,
                              options.join_timeout};
  DeriveFromSilence(times);
  const absl::Status order = CheckSilence(times);
  return order.ok() ? order : Config(order.message());
}

// Who this worker is, and of which job.
void AddIdentityFlags(Options& options, Flags& flags) {
  flags.Add("job", &options.job, "the job's name, equal in all its workers",
            {"WEFT_JOB"});
  flags.Add("role", &options.role, "ps, trainer or admin", {"WEFT_ROLE"});
  flags.Add("rank", &options.rank,
            "this worker's number within its role, from 0",
            {"WEFT_RANK", "RANK"});
  flags.Add("servers", &options.servers,
            "how many parameter servers the job has", {"WEFT_SERVERS"});
  flags.Add("trainers", &options.trainers, "how many trainers the job has",
            {"WEFT_TRAINERS"});
  flags.Add("replicas", &options.replicas,
            "servers that have each partition of the tables: 1, or 2, with "
            "which the job outlives a server",
            {"WEFT_REPLICAS"});
  flags.Add("rejoin", &options.rejoins,
            "in place of a worker that has died: do not wait for those who "
            "have been in the job and are gone",
            {"WEFT_REJOIN"});
  flags.AddWith(
      "workers",
      [&options](const std::string& text) {
        return SetWorkers(text, &options.min_workers, &options.max_workers);
      },
      "",
      "MIN:MAX workers, which may come and go, in place of those two; with "
      "--servers MIN:MAX trainers",
      {"WEFT_WORKERS"});
  flags.AddWith("labels",
                [&options](const std::string& text) {
                  return SetLabels(text, &options.labels);
                },
                "", "NAME=VALUE,... by which others select this worker",
                {"WEFT_LABELS"});
}

// Where the job meets, where this worker is reached, and whom it trusts.
void AddMeetingFlags(Options& options, Flags& flags) {
  flags.Add("init", &options.init,
            "how the workers meet: env://, tcp://HOST:PORT, file:///PATH, "
            "etcd://HOST:PORT[/PREFIX] or etcd+unix:///PATH",
            {"WEFT_INIT"});
  flags.Add("coordinator", &options.coordinator,
            "where the job meets: HOST:PORT or unix:PATH",
            {"WEFT_COORDINATOR"});
  flags.Add("coordinator-host", &options.coordinator_host,
            "who hosts the coordinator: ps0 by default, or trainer0 in a job "
            "without servers",
            {"WEFT_COORDINATOR_HOST"});
  flags.Add("coordinator-log", &options.coordinator_log,
            "file by which the coordinator survives its host's restart",
            {"WEFT_COORDINATOR_LOG"});
  flags.Add("coordinator-log-survives-host",
            &options.coordinator_log_survives_host,
            "wait until the disk has what is written to it");
  flags.Add("listen", &options.listen, "where this worker listens",
            {"WEFT_LISTEN"});
  flags.Add("advertise", &options.advertise,
            "where the others reach it, if elsewhere", {"WEFT_ADVERTISE"});
  flags.Add("certs", &options.certs, "directory made by `weft certs init`",
            {"WEFT_CERTS"});
  flags.Add("insecure", &options.insecure,
            "TCP without certificates, on a network that you trust",
            {"WEFT_INSECURE"});
}

// The seed, and what is reported.
void AddReportFlags(Options& options, Flags& flags) {
  flags.Add("seed", &options.seed, "of all random numbers", {"WEFT_SEED"});
  flags.Add("metrics-port", &options.metrics_port,
            "serve Prometheus at 127.0.0.1 there; 0: off",
            {"WEFT_METRICS_PORT"});
  flags.Add(
      "metrics-listen", &options.metrics_listen,
      "serve Prometheus at host:port, with --certs where others can reach "
      "it",
      {"WEFT_METRICS_LISTEN"});
  flags.AddWith("log",
                [&options](const std::string& t) {
                  return SetLogFormat(t, &options.log_format);
                },
                "text", "format of the log: text or json", {"WEFT_LOG"});
  flags.AddWith("log-level",
                [&options](const std::string& t) {
                  return SetLogLevel(t, &options.log_level);
                },
                "info", "debug, info, warning, error or off",
                {"WEFT_LOG_LEVEL"});
  flags.Add("dump-dir", &options.dump_dir,
            "where a worker that fails or gets SIGUSR2 writes what it did last",
            {"WEFT_DUMP_DIR"});
  flags.Add("trace", &options.trace,
            "file for spans of calls, for Perfetto; {name} in it: the worker's",
            {"WEFT_TRACE"});
  flags.Add("json", &options.json, "results as JSON, one object a line");
  flags.Add("device", &options.device,
            "cpu, cuda, cuda:N, simulated or auto: where a model is trained",
            {"WEFT_DEVICE"});
  flags.Add("local-rank", &options.local_rank,
            "of the workers of this host, for --device=cuda", {"LOCAL_RANK"});
}

// Time-outs, limits, and the resources of the host.
void AddLimitFlags(Options& options, Flags& flags) {
  flags.Add("join-timeout", &options.join_timeout, "for all workers to join",
            {"WEFT_JOIN_TIMEOUT"});
  flags.Add("rpc-timeout", &options.rpc_timeout, "of a remote call",
            {"WEFT_RPC_TIMEOUT"});
  flags.AddWith(
      "silence",
      [&options](const std::string& t) {
        return ParseSilence(t, &options.limits.silence);
      },
      "",
      "how long another may be silent before it is dead, the same in all "
      "workers; other times follow from it (docs/reliability.md)",
      {"WEFT_SILENCE"});
  flags.AddWith(
      "limits",
      [&options](const std::string& t) {
        return SetLimits(t, &options.limits);
      },
      "", "NAME=VALUE,... of docs/security.md, such as max_connections=200",
      {"WEFT_LIMITS"});
  flags.Add("ranks-on-host", &options.ranks_on_host,
            "workers that share this host",
            {"WEFT_RANKS_ON_HOST", "LOCAL_WORLD_SIZE"});
  flags.Add("host-id", &options.host_id,
            "which host this is, for process groups: workers of different ones "
            "share no memory; empty: those that can share it do",
            {"WEFT_HOST_ID"});
  flags.Add("exit-if-unreachable", &options.exit_if_unreachable,
            "end, for a supervisor to start another, if its own address stays "
            "dead",
            {"WEFT_EXIT_IF_UNREACHABLE"});
  flags.Add("shared-memories", &options.shared_memories,
            "connections within the host that share memory (0.5 MiB each, "
            "8.5 MiB with large tensors); 0: none",
            {"WEFT_SHARED_MEMORIES"});
  flags.Add("shared-memory-budget", &options.shared_memory_budget,
            "bytes of shared memory that the job's workers on this host may "
            "have together; 0: half of its memory",
            {"WEFT_SHARED_MEMORY_BUDGET"});
  flags.Add("handler-threads", &options.handler_threads,
            "functions that run at once for remote calls; 0: one a core, at "
            "least 16",
            {"WEFT_HANDLER_THREADS"});
  flags.Add("max-handler-threads", &options.max_handler_threads,
            "threads for remote calls, those that wait in functions included",
            {"WEFT_MAX_HANDLER_THREADS"});
}

}  // namespace

absl::Status CheckTrust(const std::string& certs, bool insecure) {
  if (certs.empty() || !insecure) return absl::OkStatus();
  return Usage(
      absl::StrCat("--certs=", certs,
                   " (or WEFT_CERTS) and --insecure (or WEFT_INSECURE) "
                   "mean opposite things: give one of them"));
}

std::string Options::name() const { return absl::StrCat(role, rank); }

std::string Options::host_of_coordinator() const {
  if (!coordinator_host.empty()) return coordinator_host;
  return servers > 0 ? "ps0" : "trainer0";
}

bool Options::hosts_coordinator() const {
  return name() == host_of_coordinator();
}

rendezvous::World Options::world() const {
  rendezvous::World world =
      is_elastic() ? rendezvous::World::Elastic(servers + min_workers,
                                                servers + max_workers)
                   : rendezvous::World::Fixed(servers, trainers);
  world.origin = world_origin;
  return world;
}

void Options::AddTo(Flags& flags) {
  flags.WarnOfUnknown("WEFT_",
                      {"WEFT_FAILPOINTS", "WEFT_REBALANCE", "WEFT_START",
                       kNoRestartFile, "WEFT_WORLD_ORIGIN"});
  AddIdentityFlags(*this, flags);
  AddMeetingFlags(*this, flags);
  AddReportFlags(*this, flags);
  AddLimitFlags(*this, flags);
}

absl::Status Options::Resolve() {
  WEFT_RETURN_IF_ERROR(ReadEnvironment());
  WEFT_RETURN_IF_ERROR(ResolveSize());
  WEFT_RETURN_IF_ERROR(CheckReplicas(*this));
  // A wrong name would be refused by the first part that uses it; say it once
  // and here.
  if (const absl::Status named = net::ValidateIdentity({job, role, rank});
      !named.ok()) {
    return Usage(absl::StrCat("--job, --role or --rank: ", named.message()));
  }
  WEFT_RETURN_IF_ERROR(CheckPlace(*this));
  WEFT_RETURN_IF_ERROR(CheckDevice(*this));
  WEFT_RETURN_IF_ERROR(ResolveMetrics());
  WEFT_RETURN_IF_ERROR(ResolveSilence(*this));
  WEFT_RETURN_IF_ERROR(CheckLimits(*this));
  WEFT_RETURN_IF_ERROR(CheckTrust(certs, insecure));
  WEFT_RETURN_IF_ERROR(ResolveInit());
  WEFT_RETURN_IF_ERROR(ResolveCoordinator());
  if (!advertise.empty()) {
    const absl::Status read = net::ParseAddress(advertise).status();
    if (!read.ok()) return Usage(absl::StrCat("--advertise: ", read.message()));
  }
  if (only_asks) return absl::OkStatus();
  if (listen.empty()) WEFT_RETURN_IF_ERROR(ResolveListen());
  return CheckListen(*this);
}

absl::Status Options::ReadEnvironment() {
  // The environment names the host of the address there, not of another one.
  if (role != kCoordinatorRole &&
      coordinator_host == Environment("WEFT_COORDINATOR_HOST") &&
      coordinator != Environment("WEFT_COORDINATOR")) {
    coordinator_host = "";
  }
  if (const std::string number = Environment("WEFT_START");
      !number.empty() && !absl::SimpleAtoi(number, &start)) {
    return Config(absl::StrCat("environment WEFT_START = ", number,
                               ": wanted a number from 0 on"));
  }
  world_origin = Environment("WEFT_WORLD_ORIGIN");
  if (log_format == telemetry::LogFormat::kJson) {
    telemetry::SetStderrFormat(log_format);
  }
  if (is_elastic()) {
    // A launcher counts the ranks that it starts; others may come.
    if (absl::StrCat(trainers) == Environment("WEFT_TRAINERS")) trainers = 0;
  }
  return absl::OkStatus();
}

absl::Status Options::ResolveSize() {
  if (is_elastic() && trainers > 0) {
    return Usage(absl::StrCat(
        "--workers=", min_workers, ":", max_workers,
        " is an elastic job, --trainers=", trainers,
        " makes a fixed one: give either. --servers=N may be given with both"));
  }
  if (servers < 0 || trainers < 0) {
    return Usage(absl::StrCat("--servers=", servers, ", --trainers=", trainers,
                              ": wanted numbers from 0 on"));
  }
  if (is_elastic() || servers > 0 || trainers > 0) return absl::OkStatus();
  int size = rank + 1;
  const std::string world_size = Environment("WORLD_SIZE");
  if (!world_size.empty() && !absl::SimpleAtoi(world_size, &size)) {
    return Config(absl::StrCat("environment WORLD_SIZE = ", world_size,
                               ": wanted an integer"));
  }
  (role == "ps" ? servers : trainers) = size;
  return absl::OkStatus();
}

absl::Status Options::ResolveMetrics() {
  if (metrics_port < 0 || metrics_port > 65535) {
    return Usage(
        absl::StrCat("--metrics-port=", metrics_port,
                     ": wanted a port from 1 to 65535, or 0 for none"));
  }
  if (metrics_port == 0) return absl::OkStatus();
  if (!metrics_listen.empty()) {
    return Usage(absl::StrCat("--metrics-port=", metrics_port,
                              " and --metrics-listen=", metrics_listen,
                              ": wanted one of them"));
  }
  metrics_listen = absl::StrCat("127.0.0.1:", metrics_port);
  return absl::OkStatus();
}

absl::Status Options::ResolveInit() {
  const bool is_read = init_url.kind != rendezvous::InitUrl::Kind::kNone;
  if (init.empty() || is_read) return absl::OkStatus();
  if (!coordinator.empty()) {
    return Usage(absl::StrCat("--init=", init, " and --coordinator=",
                              coordinator, " both say where the job meets"));
  }
  const auto url = rendezvous::ParseInitUrl(init);
  if (!url.ok()) return Usage(absl::StrCat("--init: ", url.status().message()));
  init_url = *url;
  coordinator =
      init_url.kind == rendezvous::InitUrl::Kind::kTcp ? init_url.address : "";
  if (init_url.kind == rendezvous::InitUrl::Kind::kEtcd &&
      !coordinator_log.empty()) {
    return Usage(absl::StrCat("--init=", init,
                              " keeps the coordinator's log; "
                              "--coordinator-log=",
                              coordinator_log, " is one too many"));
  }
  if (init_url.kind != rendezvous::InitUrl::Kind::kEnv) return absl::OkStatus();
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (!Environment(name).empty()) continue;
    return Config(absl::StrCat("--init=env:// wants ", name,
                               " in the environment; it is not set"));
  }
  return absl::OkStatus();
}

absl::Status Options::ResolveCoordinator() {
  if (init_url.is_found()) return absl::OkStatus();
  if (coordinator.empty() && !Environment("MASTER_ADDR").empty() &&
      !Environment("MASTER_PORT").empty()) {
    coordinator = absl::StrCat(Environment("MASTER_ADDR"), ":",
                               Environment("MASTER_PORT"));
  }
  if (coordinator.empty()) {
    const auto directory = only_asks ? net::SocketDirectoryPath(job)
                                     : net::DefaultSocketDirectory(job);
    if (!directory.ok()) {
      return WithExitCode(directory.status(), ExitCode::kConfig);
    }
    coordinator = absl::StrCat("unix:", *directory, "/coordinator.sock");
    if (const auto fits = net::ParseAddress(coordinator); !fits.ok()) {
      return Config(absl::StrCat(
          fits.status().message(), "; it follows from --job=", job,
          " and XDG_RUNTIME_DIR: make one of them shorter, or give a "
          "--coordinator"));
    }
  }
  const absl::StatusOr<net::Address> address = net::ParseAddress(coordinator);
  if (!address.ok()) {
    return Usage(absl::StrCat("--coordinator: ", address.status().message()));
  }
  const bool is_any_port =
      address->kind == net::Address::Kind::kTcp && address->port == 0;
  if (is_any_port && world().max_size() > 1) {
    return Usage(absl::StrCat(
        "--coordinator=", coordinator,
        ": the other workers cannot know which port that will be; give one "
        "that is free, or let all meet by --init=file:///PATH"));
  }
  return absl::OkStatus();
}

absl::Status Options::ResolveListen() {
  listens_by_default = true;
  if (!coordinator.empty() && hosts_coordinator()) {
    listen = coordinator;
    return absl::OkStatus();
  }
  std::string meet = coordinator;
  if (init_url.kind == rendezvous::InitUrl::Kind::kEtcd) {
    meet = init_url.address;
  }
  net::Address address;  // a unix socket, if nothing says other
  if (!meet.empty()) {
    WEFT_ASSIGN_OR_RETURN(address, net::ParseAddress(meet));
  }
  if (address.kind == net::Address::Kind::kTcp) {
    listen = address.IsLocal() ? "127.0.0.1:0" : "0.0.0.0:0";
    if (!address.IsLocal() && advertise.empty()) {
      advertise = absl::StrCat(HostName(), ":0");
    }
    return absl::OkStatus();
  }
  std::string directory = address.path.substr(0, address.path.rfind('/'));
  if (coordinator.empty()) {
    WEFT_ASSIGN_OR_RETURN(directory, net::DefaultSocketDirectory(job));
  }
  listen = absl::StrCat("unix:", directory, "/", name(), ".sock");
  // The job may meet at a socket of this name, which another process hosts.
  if (listen == coordinator) {
    listen = absl::StrCat("unix:", directory, "/", name(), "-worker.sock");
  }
  return absl::OkStatus();
}

Options Options::FromFlags(int argc, char** argv) {
  return Read(argv[0], [&](Flags& flags) { return flags.Parse(argc, argv); });
}

Options Options::FromFlags(int* argc, char** argv) {
  return Read(argv[0],
              [&](Flags& flags) { return flags.ParseKnown(argc, argv); });
}

Options Options::Read(const char* program,
                      absl::FunctionRef<absl::Status(Flags&)> parse) {
  Options options;
  Flags flags(program, "");
  options.AddTo(flags);
  ExitIfError(parse(flags));
  ExitIfError(options.Resolve());
  return options;
}

}  // namespace weft::worker
