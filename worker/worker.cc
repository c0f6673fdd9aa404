// Worker: see the header.

#include "weft/worker/worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/net/loop/descriptor_limit.h"
#include "weft/net/tls/identity.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/transport/grpc_transport.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/membership_directory.h"
#include "weft/worker/telemetry/flight_dump.h"
#include "weft/worker/telemetry/flight_recording.h"
#include "weft/worker/telemetry/process_metrics.h"

namespace weft::worker {
namespace {

// The time to tell the others that this worker leaves, where there is no time
// for anything else.
constexpr absl::Duration kGoodBye = absl::Seconds(1);
// The most references open at the end that are logged.
constexpr size_t kMostLogged = 20;

// The same number as in comparable systems: a function that sleeps, or waits
// for a file, holds its thread, and with one thread a core a few such functions
// would keep all others from running.
constexpr int kLeastHandlerThreads = 16;

int HandlerThreads(const Options& options) {
  if (options.handler_threads > 0) return options.handler_threads;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int own = std::max(kLeastHandlerThreads,
                           cores / std::max(options.ranks_on_host, 1));
  return std::min(own, std::max(options.max_handler_threads, 1));
}

// A call that follows another soon finds a handler thread awake. Not where
// ranks outnumber the cores (docs/rulings.md 3).
absl::Duration HandlerSpin(const Options& options) {
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  return static_cast<unsigned>(options.ranks_on_host) > cores
             ? absl::ZeroDuration()
             : absl::Microseconds(50);
}

// What a worker needs: a connection to each other worker and one from it, and
// where it hosts the coordinator that worker's stream and its process besides.
int64_t DescriptorsOf(const Options& options) {
  const int64_t others = options.world().size() - 1;
  return net::kFewestDescriptors +
         (options.hosts_coordinator() ? 4 : 2) * others;
}

// A worker that runs out of descriptors once it is in the job would blame the
// peers that it cannot reach.
absl::Status CheckDescriptors(const Options& options) {
  const int64_t wanted = DescriptorsOf(options);
  const int64_t free = net::FreeDescriptors();
  if (free >= wanted) return absl::OkStatus();
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      "wanted at least ", wanted, " free descriptors, as one of ",
      options.world().size(), " workers, found ", free, " of a limit of ",
      limit.rlim_cur, "; raise it by `ulimit -n`"));
}

// The number of connections with shared memory for which there are descriptors.
int SharedMemories(const Options& options, telemetry::Logger& logger) {
  constexpr int64_t kOfAMemory = 3;  // itself, and an eventfd for each end
  const int64_t spare =
      std::max<int64_t>(0, net::FreeDescriptors() - DescriptorsOf(options));
  const int64_t most =
      std::min<int64_t>(options.shared_memories, spare / kOfAMemory);
  const int64_t of_all = 2 * int64_t{options.world().size() - 1};
  if (most < std::min<int64_t>(options.shared_memories, of_all)) {
    WEFT_LOG(logger, Warning, "connections that share memory: ")
        << most << ", not " << options.shared_memories
        << " (--shared-memories), for want of descriptors; raise `ulimit -n`";
  }
  return static_cast<int>(most);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(Options options) {
  if (options.listen.empty()) WEFT_RETURN_IF_ERROR(options.Resolve());
  std::unique_ptr<Worker> worker(new Worker(std::move(options)));
  const absl::Status status = worker->StartParts();
  if (status.ok()) return worker;
  // The recording of a worker that was not admitted adds nothing to the error,
  // and one that was asked to stop has none.
  if (worker->membership_ != nullptr && !SignalOf(status).has_value()) {
    worker->DumpFlightRecorder();
  }
  return OfPart(worker->options_.name(), status);
}

absl::Status Worker::StartParts() {
  // Must come before any path is made of them: options that were not resolved
  // may hold anything.
  WEFT_RETURN_IF_ERROR(
      net::ValidateIdentity({options_.job, options_.role, options_.rank}));
  telemetry::Telemetry::Options telemetry;
  telemetry.job = options_.job;
  telemetry.role = options_.role;
  telemetry.rank = options_.rank;
  telemetry.log_format = options_.log_format;
  telemetry.log_level = options_.log_level;
  telemetry.tracing = !options_.trace.empty();
  telemetry_ = std::make_unique<telemetry::Telemetry>(std::move(telemetry));
  net::RaiseDescriptorLimit();
  // The file has no span yet: a file that cannot be written is reported before
  // the work.
  trace_ =
      std::make_unique<TraceFile>(options_.trace, options_.name(), *telemetry_);
  WEFT_RETURN_IF_ERROR(trace_->Open());
  if (const absl::Status dump = CheckDumpDirectory(options_.dump_dir);
      !dump.ok()) {
    return WithExitCode(dump, ExitCode::kConfig);
  }
  dump_on_signal_ = OnSignal::Create([this] { DumpFlightRecorder(); });
  process_metrics_ = ShowProcess(telemetry_->metrics());
  ThreadPool::Options pool;
  pool.name = "handlers";
  pool.threads = HandlerThreads(options_);
  pool.max_threads = std::max(pool.threads, options_.max_handler_threads);
  pool.max_threads_option = "--max-handler-threads";
  pool.spin = HandlerSpin(options_);
  WEFT_ASSIGN_OR_RETURN(executor_, ThreadPool::Create(std::move(pool)));
  WEFT_RETURN_IF_ERROR(OpenNetwork());
  WEFT_RETURN_IF_ERROR(Join());
  WEFT_RETURN_IF_ERROR(MakeAgent());
  return membership_->AwaitWorld(options_.join_timeout);
}

void Worker::DumpFlightRecorder() {
  const absl::StatusOr<std::string> path = WriteDump(
      telemetry_->recorder(), options_.dump_dir, options_.job, options_.name());
  if (path.ok()) {
    WEFT_LOG(telemetry_->logger(), Warning, "flight recorder written to ")
        << *path;
  } else {
    WEFT_LOG(telemetry_->logger(), Warning, "no flight recorder was written: ")
        << path.status().message();
  }
  trace_->WriteOrLog();
}

absl::Status Worker::ServeMetrics(const net::Credentials& credentials) {
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  MetricsServer::Options options;
  options.listen = options_.metrics_listen;
  options.credentials = credentials;
  options.page = [this] { return telemetry_->metrics().Text(); };
  auto server = MetricsServer::Start(std::move(options));
  if (!server.ok()) return WithExitCode(server.status(), ExitCode::kConfig);
  metrics_server_ = *std::move(server);
  WEFT_LOG(telemetry_->logger(), Info, "metrics are at ")
      << metrics_server_->url();
  return absl::OkStatus();
}

absl::Status Worker::OpenNetwork() {
  net::LoopOptions loop = options_.limits.loop;
  absl::StatusOr<net::Credentials> credentials = CredentialsFor(options_);
  if (!credentials.ok()) {
    return WithExitCode(OfPart("--certs", credentials.status()),
                        ExitCode::kAuth);
  }
  WEFT_RETURN_IF_ERROR(CheckDescriptors(options_));
  WEFT_RETURN_IF_ERROR(ServeMetrics(*credentials));
  loop.credentials = *std::move(credentials);
  loop.telemetry = telemetry_.get();
  loop.ranks_on_host = options_.ranks_on_host;
  loop.world_size = options_.world().max_size();
  WEFT_ASSIGN_OR_RETURN(loop_, net::Loop::Create(std::move(loop)));
  timers_ = rendezvous::MakeLoopTimers(*loop_);

  WEFT_ASSIGN_OR_RETURN(endpoint_, Listen());
  transport::GrpcTransportOptions transport;
  transport.max_shared_memories =
      SharedMemories(options_, telemetry_->logger());
  OpenMemoryBudget();
  transport.memory_budget = memory_budget_;
  if (options_.shared_memories > 0) {
    // Without it peers at TCP addresses share no memory: no error.
    transport.memory_directory =
        net::DefaultSocketDirectory(options_.job).value_or("");
  }
  transport_ = transport::MakeGrpcTransport(*loop_, *endpoint_, transport);
  transport_->Register(rpc::ConnectionPurpose());
  group_streams_ = std::make_unique<collectives::Streams>(*transport_);
  untyped_call_service_ =
      std::make_unique<rpc::UntypedCallService>(*endpoint_, *executor_);
  if (options_.hosts_coordinator()) {
    WEFT_ASSIGN_OR_RETURN(coordinator_,
                          HostedCoordinator::Create(options_, *timers_, *loop_,
                                                    *endpoint_, *telemetry_));
  }
  if (options_.register_services) options_.register_services(*endpoint_);
  return endpoint_->Start();
}

void Worker::OpenMemoryBudget() {
  const int64_t bytes = options_.shared_memory_budget > 0
                            ? options_.shared_memory_budget
                            : transport::MemoryBudget::DefaultBytes();
  const absl::StatusOr<std::string> directory =
      net::DefaultSocketDirectory(options_.job);
  absl::StatusOr<std::shared_ptr<transport::MemoryBudget>> budget =
      directory.ok() ? transport::MemoryBudget::Open(*directory, bytes)
                     : directory.status();
  if (budget.ok()) {
    memory_budget_ = *std::move(budget);
  } else {
    WEFT_LOG(telemetry_->logger(), Warning,
             "shared memory is not bounded by --shared-memory-budget: ")
        << budget.status().message();
  }
}

absl::StatusOr<std::unique_ptr<net::Endpoint>> Worker::Listen() {
  net::EndpointOptions endpoint;
  endpoint.name = options_.name();
  endpoint.listen = options_.listen;
  endpoint.advertise = options_.advertise;
  endpoint.probe_every = options_.probe_every;
  endpoint.limits = options_.limits.admission;
  if (options_.exit_if_unreachable) {
    endpoint.on_unreachable = [this](const auto& why) { EndProgram(why); };
  }
  auto opened = net::Endpoint::Open(*loop_, endpoint);
  if (absl::IsUnavailable(opened.status()) && options_.hosts_coordinator()) {
    WEFT_RETURN_IF_ERROR(CheckNoCoordinator(options_, *timers_, *loop_));
  } else if (absl::IsUnavailable(opened.status()) &&
             options_.listens_by_default &&
             absl::StartsWith(options_.listen, "unix:")) {
    // Another of this name may live: the coordinator knows, and says it better.
    endpoint.listen = absl::StrCat(options_.listen, ".", getpid());
    opened = net::Endpoint::Open(*loop_, endpoint);
  }
  if (opened.ok()) return opened;
  if (absl::IsFailedPrecondition(opened.status())) {
    return WithExitCode(opened.status(), ExitCode::kAuth);
  }
  // An address in use is the user's to change; no peer is lost.
  if (!absl::IsUnavailable(opened.status())) {
    return WithExitCode(opened.status(), ExitCode::kConfig);
  }
  const bool is_meeting =
      options_.hosts_coordinator() && options_.listens_by_default;
  return WithExitCode(
      absl::UnavailableError(absl::StrCat(
          opened.status().message(),
          is_meeting
              ? "; the job meets there: choose another address for all its "
                "workers by --coordinator (or --init, or MASTER_ADDR and "
                "MASTER_PORT)"
              : "; choose another by --listen=, or port 0 for any free one")),
      ExitCode::kConfig);
}

absl::Status Worker::Join() {
  std::unique_ptr<rendezvous::CoordinatorLink> link;
  if (coordinator_ != nullptr) {
    link = coordinator_->LocalLink();
  } else {
    WEFT_ASSIGN_OR_RETURN(link, LinkToCoordinator(options_, *loop_));
  }
  rendezvous::JoinOptions join;
  join.job = options_.job;
  join.role = options_.role;
  join.rank = options_.rank;
  join.name = options_.name();
  join.labels = options_.labels;
  if (const std::string socket = transport_->memory_socket(); !socket.empty()) {
    join.labels[kMemorySocketLabel] = socket;
  }
  join.address = endpoint_->address();
  join.world = options_.world();
  join.start = options_.start;
  join.host_of_coordinator = options_.host_of_coordinator();
  const Limits by_default;
  if (options_.limits.suspect_after != by_default.suspect_after ||
      options_.limits.dead_after != by_default.dead_after) {
    join.suspect_after = options_.limits.suspect_after;
    join.dead_after = options_.limits.dead_after;
  }
  join.heartbeat_interval = options_.limits.heartbeat_interval;
  join.timeout = options_.join_timeout;
  join.cancel = options_.cancel;
  // The others will call as soon as they see this rank, so the agent comes
  // before the wait for all.
  join.wait_for_world = false;
  join.rejoins = options_.rejoins;
  join.executor = executor_.get();
  join.telemetry = telemetry_.get();
  WEFT_ASSIGN_OR_RETURN(
      membership_,
      rendezvous::Membership::Join(*timers_, std::move(link), std::move(join)));
  roll_calls_ = std::make_unique<rendezvous::RollCalls>(*membership_);
  return absl::OkStatus();
}

telemetry::Fields Worker::DescribeMembership() const {
  const auto view = membership_->view();
  telemetry::Fields fields;
  fields.emplace_back("worker", self().name);
  fields.emplace_back("key", self().key.ToString());
  fields.emplace_back("status", membership_->status());
  fields.emplace_back("hosts_coordinator", coordinator_ != nullptr);
  fields.emplace_back("version", view->version());
  fields.emplace_back("world", view->Summary());
  for (const rendezvous::Member& member : view->members()) {
    fields.emplace_back(
        absl::StrCat("member ", member.name),
        absl::StrCat(
            member.key.ToString(), " at ", member.address,
            member.suspect ? ", silent" : "",
            member.phase != rendezvous::Phase::kActive ? ", ending" : ""));
  }
  for (const rendezvous::Departed& departed : view->departed()) {
    fields.emplace_back(
        absl::StrCat("gone ", departed.name, " ", departed.key.ToString()),
        departed.reason);
  }
  return fields;
}

absl::Status Worker::MakeAgent() {
  WEFT_ASSIGN_OR_RETURN(status_executor_,
                        ThreadPool::Create({.name = "status"}));
  status_source_ = {&telemetry_->status(), status_executor_.get()};
  membership_page_ = telemetry_->status().Register(
      "membership", [this] { return DescribeMembership(); });
  directory_ = std::make_unique<MembershipDirectory>(*membership_);
  rpc::AgentOptions agent;
  agent.job = options_.job;
  agent.name = options_.name();
  agent.key = membership_->self().key;
  agent.transport = transport_.get();
  agent.directory = directory_.get();
  agent.telemetry = telemetry_.get();
  agent.executor = executor_.get();
  agent.pool = executor_.get();
  agent.default_timeout = options_.rpc_timeout;
  agent.limits = options_.limits.rpc;
  agent.access = options_.access;
  agent.give_up_after = options_.limits.give_up_after;
  WEFT_ASSIGN_OR_RETURN(agent_, rpc::Agent::Create(std::move(agent)));
  // Must come before anybody can call the agent.
  agent_->SetLocal(&status_source_);
  agent_->SetLocal(std::make_shared<RecordingSource>(
      RecordingSource{&telemetry_->recorder(), status_executor_.get()}));
  WEFT_RETURN_IF_ERROR(OpenReferencesAndPasses());
  untyped_call_service_->Serve(*agent_);
  follow_ = membership_->OnChange(
      [agent = agent_.get(), told = std::set<rendezvous::WorkerKey>()](
          const std::shared_ptr<const rendezvous::View>& view) mutable {
        for (const rendezvous::Departed& departed : view->departed()) {
          if (!told.insert(departed.key).second) continue;
          agent->PeerGone(departed.key, departed.reason, departed.left);
        }
      },
      [this](const absl::Status& why) { OutOfJob(why); });
  return absl::OkStatus();
}

absl::Status Worker::OpenReferencesAndPasses() {
  WEFT_ASSIGN_OR_RETURN(references_, rref::References::Open(*agent_));
  WEFT_ASSIGN_OR_RETURN(contexts_, dist_autograd::Contexts::Open(*agent_));
  references_page_ = telemetry_->status().Register(
      kReferencesSection, [this] { return references_->Describe(); });
  passes_page_ = telemetry_->status().Register(
      kPassesSection, [this] { return contexts_->Describe(); });
  return absl::OkStatus();
}

void Worker::OutOfJob(const absl::Status& why) {
  endpoint_->SetServing(false);
  // kAborted would be of one operation, after which the group goes on.
  group_abort_->Abort(absl::UnavailableError(why.message()));
  agent_->OutOfJob(why);
  if (options_.on_out_of_job) options_.on_out_of_job(why);
  if (options_.exit_if_unreachable) EndProgram(why);
}

void Worker::EndProgram(const absl::Status& why) {
  DumpFlightRecorder();
  ExitIfError(WithExitCode(why, ExitCode::kPeerLost));
}

absl::Status Worker::AwaitAll(absl::string_view tag, absl::Duration timeout) {
  return membership_->Barrier(tag, {}, timeout);
}

absl::Status Worker::AwaitPhase(rendezvous::Phase phase,
                                const std::string& together,
                                absl::Duration timeout) {
  const auto behind = [&](const rendezvous::View& view) {
    std::vector<std::string> names;
    const auto members = view.Select(together);
    if (!members.ok()) return names;
    for (const rendezvous::Member* member : *members) {
      if (member->phase < phase) names.push_back(member->name);
    }
    return names;
  };
  const absl::Status status =
      membership_
          ->WaitFor([&](const auto& view) { return behind(view).empty(); },
                    timeout)
          .status();
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(absl::StrCat(
      "after ", absl::FormatDuration(timeout), ": ",
      absl::StrJoin(behind(*membership_->view()), ", "),
      phase == rendezvous::Phase::kQuiescing ? " did not begin to end"
                                             : " still had calls out"));
}

absl::Status Worker::Quiesce(const std::string& together,
                             absl::Duration timeout) {
  // A wrong selector is the caller's error, reported before anything is sent.
  WEFT_RETURN_IF_ERROR(membership_->view()->Select(together).status());
  const Instant deadline = SteadyClock().Now() + timeout;
  WEFT_RETURN_IF_ERROR(
      membership_->Announce(rendezvous::Phase::kQuiescing, timeout));
  return AwaitPhase(rendezvous::Phase::kQuiescing, together,
                    deadline - SteadyClock().Now());
}

absl::Status Worker::Drain(const std::string& together,
                           absl::Duration timeout) {
  // A call that still runs here may need any of those who end together, so none
  // of them refuses calls before all have seen the end of their own.
  const Instant deadline = SteadyClock().Now() + timeout;
  WEFT_RETURN_IF_ERROR(agent_->AwaitIdle(timeout));
  WEFT_RETURN_IF_ERROR(membership_->Announce(rendezvous::Phase::kDrained,
                                             deadline - SteadyClock().Now()));
  return AwaitPhase(rendezvous::Phase::kDrained, together,
                    deadline - SteadyClock().Now());
}

absl::Status Worker::CloseReferencesAndPasses(const std::string& together,
                                              absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  const auto left = [&] {
    return std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
  };
  contexts_->Close();
  if (const auto open = references_->ExplainLeaks(kMostLogged); !open.empty()) {
    WEFT_LOG(telemetry_->logger(), Info, "references are given up: ")
        << absl::StrJoin(open, "; ");
  }
  WEFT_RETURN_IF_ERROR(references_->Close(left()));
  const auto view = membership_->view();
  WEFT_ASSIGN_OR_RETURN(const auto others, view->Select(together));
  const auto ends_together = [&](const std::string& holder) {
    return std::any_of(others.begin(), others.end(),
                       [&](const rendezvous::Member* member) {
                         return member->name == holder;
                       });
  };
  return references_->AwaitNoHolder(ends_together, left());
}

absl::Status Worker::Leave(absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  const auto left = [&] {
    return std::max(deadline - SteadyClock().Now(), kGoodBye);
  };
  absl::Status others;
  if (coordinator_ != nullptr && timeout > absl::ZeroDuration()) {
    others = membership_
                 ->WaitFor(
                     [](const rendezvous::View& view) {
                       return view.members().size() <= 1;
                     },
                     timeout)
                 .status();
  }
  const absl::Status gone = membership_->Leave(left());
  if (coordinator_ != nullptr) coordinator_->Shutdown();
  const absl::Status ended = endpoint_->Shutdown(
      std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
  for (const absl::Status& status : {others, gone, ended}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

ShutdownReport Worker::Shutdown(const ShutdownOptions& options) {
  ShutdownReport report;
  if (std::exchange(is_shut_, true)) return report;
  const std::string together = options.together.value_or(
      absl::StrCat(options_.world().is_fixed() ? "role=" : "name=",
                   options_.world().is_fixed() ? options_.role : self().name));
  ShutdownSteps steps;
  steps.quiesce = [&](absl::Duration left) { return Quiesce(together, left); };
  steps.drain = [&](absl::Duration left) { return Drain(together, left); };
  steps.release = [&](absl::Duration left, ShutdownReport* to) {
    const Instant deadline = SteadyClock().Now() + left;
    absl::Status ended = CloseReferencesAndPasses(together, left);
    ended.Update(agent_->Shutdown(
        std::max(deadline - SteadyClock().Now(), absl::ZeroDuration())));
    to->pending_calls = agent_->CutCalls();
    to->AddLeaks(agent_->Leaks());
    return ended;
  };
  steps.leave = [&](absl::Duration left) { return Leave(left); };
  report = RunShutdown(options, SteadyClock(), steps);
  trace_->WriteOrLog();
  WEFT_LOG(telemetry_->logger(), Info, "shut down: ") << report.ToString();
  if (const absl::Status leaks = report.LeakStatus(); !leaks.ok()) {
    WEFT_LOG(telemetry_->logger(), Warning, "left open: ") << leaks.message();
  }
  return report;
}

ShutdownReport Worker::Shutdown(absl::Duration deadline) {
  ShutdownOptions options;
  options.deadline = deadline;
  return Shutdown(options);
}

Worker::~Worker() {
  if (contexts_ != nullptr) contexts_->Close();  // its threads use the agent
  if (coordinator_ != nullptr) coordinator_->Shutdown();
  // The endpoint calls into the coordinator, which is made before it.
}

}  // namespace weft::worker
