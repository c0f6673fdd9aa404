// Worker: see the header.

#include "weft/worker/worker.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/over_net.h"
#include "weft/rpc/grpc_transport.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

// The membership, as the agent asks it.
class MembershipDirectory final : public rpc::Directory {
 public:
  explicit MembershipDirectory(rendezvous::Membership& membership)
      : membership_(membership) {}

  absl::StatusOr<rpc::Worker> Find(absl::string_view name) const override {
    const auto view = membership_.view();
    if (const rendezvous::Member* member = view->Find(name)) {
      return rpc::Worker{member->name, member->key, member->address};
    }
    return absl::NotFoundError(absl::StrCat(
        "there is no worker \"", name, "\" now; there are: ",
        absl::StrJoin(view->members(), ", ",
                      [](std::string* out, const rendezvous::Member& m) {
                        out->append(m.name);
                      })));
  }

  absl::StatusOr<rpc::Worker> Find(rpc::WorkerKey key) const override {
    const auto view = membership_.view();
    if (const rendezvous::Member* member = view->Find(key)) {
      return rpc::Worker{member->name, member->key, member->address};
    }
    return absl::NotFoundError(
        absl::StrCat("worker ", key.ToString(),
                     view->IsGone(key) ? " is gone" : " is unknown"));
  }

 private:
  rendezvous::Membership& membership_;
};

absl::StatusOr<net::Credentials> CredentialsOf(const Options& options) {
  if (options.insecure) return net::Credentials::Insecure();
  if (options.certs.empty()) return net::Credentials::LocalOnly();
  return net::Credentials::ForMember(options.certs, options.name());
}

// The same error, saying which part it is of, and with its exit code.
absl::Status In(absl::string_view part, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status named(status.code(), absl::StrCat(part, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    named.SetPayload(url, payload);
  });
  return named;
}

}  // namespace

absl::Status ShutdownReport::status() const {
  for (const Phase& phase : phases) {
    if (!phase.status.ok()) return In(phase.name, phase.status);
  }
  return absl::OkStatus();
}

std::string ShutdownReport::ToString() const {
  return absl::StrJoin(phases, "; ", [](std::string* out, const Phase& phase) {
    absl::StrAppend(
        out, phase.name, " ", phase.status.ok() ? "ok" : phase.status.message(),
        " (",
        absl::FormatDuration(absl::Trunc(phase.took, absl::Milliseconds(1))),
        ")");
  });
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(Options options) {
  if (options.listen.empty()) WEFT_RETURN_IF_ERROR(options.Resolve());
  std::unique_ptr<Worker> worker(new Worker(std::move(options)));
  const absl::Status status = worker->StartParts();
  if (status.ok()) return worker;
  return In(worker->options_.name(), status);
}

absl::Status Worker::StartParts() {
  telemetry::Telemetry::Options telemetry;
  telemetry.job = options_.job;
  telemetry.role = options_.role;
  telemetry.rank = options_.rank;
  telemetry.log_format = options_.log_format;
  telemetry.log_level = options_.log_level;
  telemetry_ = std::make_unique<telemetry::Telemetry>(std::move(telemetry));
  if (options_.metrics_port != 0) {
    const auto port =
        telemetry_->metrics().Serve("127.0.0.1", options_.metrics_port);
    if (!port.ok()) {
      return WithExitCode(In("--metrics-port", port.status()),
                          ExitCode::kConfig);
    }
  }
  ThreadPool::Options pool;
  pool.name = "handlers";
  pool.threads = options_.handler_threads > 0
                     ? options_.handler_threads
                     : std::max(2u, std::thread::hardware_concurrency());
  pool.max_threads = std::max(pool.threads, 256);
  WEFT_ASSIGN_OR_RETURN(executor_, ThreadPool::Create(std::move(pool)));
  WEFT_RETURN_IF_ERROR(OpenNetwork());
  WEFT_RETURN_IF_ERROR(Join());
  WEFT_RETURN_IF_ERROR(MakeAgent());
  return membership_->AwaitWorld(options_.join_timeout);
}

absl::Status Worker::OpenNetwork() {
  net::LoopOptions loop;
  absl::StatusOr<net::Credentials> credentials = CredentialsOf(options_);
  if (!credentials.ok()) {
    return WithExitCode(In("--certs", credentials.status()), ExitCode::kAuth);
  }
  loop.credentials = *std::move(credentials);
  loop.telemetry = telemetry_.get();
  loop.ranks_on_host = options_.ranks_on_host;
  loop.world_size = options_.world().size();
  WEFT_ASSIGN_OR_RETURN(loop_, net::Loop::Create(std::move(loop)));
  timers_ = rendezvous::MakeLoopTimers(*loop_);

  net::EndpointOptions endpoint;
  endpoint.name = options_.name();
  endpoint.listen = options_.listen;
  endpoint.advertise = options_.advertise;
  auto opened = net::Endpoint::Open(*loop_, std::move(endpoint));
  if (!opened.ok()) {
    // An address in use is the user's to change; no peer is lost.
    return WithExitCode(
        In(absl::StrCat("cannot listen at ", options_.listen), opened.status()),
        absl::IsFailedPrecondition(opened.status()) ? ExitCode::kAuth
                                                    : ExitCode::kConfig);
  }
  endpoint_ = *std::move(opened);
  transport_ = rpc::MakeGrpcTransport(*loop_, *endpoint_);
  if (options_.hosts_coordinator()) WEFT_RETURN_IF_ERROR(HostCoordinator());
  return endpoint_->Start();
}

absl::Status Worker::HostCoordinator() {
  // Of its own, as it waits for the disk and must not wait for handlers.
  WEFT_ASSIGN_OR_RETURN(coordinator_executor_,
                        ThreadPool::Create({.name = "coordinator"}));
  rendezvous::CoordinatorOptions options;
  options.core.job = options_.job;
  options.log_path = options_.coordinator_log;
  options.telemetry = telemetry_.get();
  auto coordinator = rendezvous::Coordinator::Create(
      *timers_, *coordinator_executor_, std::move(options));
  if (!coordinator.ok()) {
    return WithExitCode(In("--coordinator-log", coordinator.status()),
                        absl::IsResourceExhausted(coordinator.status())
                            ? ExitCode::kResource
                            : ExitCode::kConfig);
  }
  coordinator_ = *std::move(coordinator);
  rendezvous::Serve(*coordinator_, *endpoint_);
  return absl::OkStatus();
}

absl::Status Worker::Join() {
  std::unique_ptr<rendezvous::CoordinatorLink> link;
  if (coordinator_ != nullptr) {
    link = coordinator_->LocalLink();
  } else {
    WEFT_ASSIGN_OR_RETURN(link, rendezvous::MakeNetLink(
                                    *loop_, options_.coordinator,
                                    options_.servers > 0 ? "ps0" : "trainer0"));
  }
  rendezvous::JoinOptions join;
  join.job = options_.job;
  join.role = options_.role;
  join.rank = options_.rank;
  join.labels = options_.labels;
  join.address = endpoint_->address();
  join.world = options_.world();
  join.timeout = options_.join_timeout;
  // The others will call as soon as they see this rank, so the agent comes
  // before the wait for all.
  join.wait_for_world = false;
  join.executor = executor_.get();
  join.telemetry = telemetry_.get();
  WEFT_ASSIGN_OR_RETURN(
      membership_,
      rendezvous::Membership::Join(*timers_, std::move(link), std::move(join)));
  return absl::OkStatus();
}

absl::Status Worker::MakeAgent() {
  directory_ = std::make_unique<MembershipDirectory>(*membership_);
  rpc::AgentOptions agent;
  agent.job = options_.job;
  agent.name = options_.name();
  agent.key = membership_->self().key;
  agent.transport = transport_.get();
  agent.directory = directory_.get();
  agent.telemetry = telemetry_.get();
  agent.executor = executor_.get();
  agent.default_timeout = options_.rpc_timeout;
  WEFT_ASSIGN_OR_RETURN(agent_, rpc::Agent::Create(std::move(agent)));
  follow_ = membership_->OnChange(
      [agent = agent_.get(), told = std::set<rendezvous::WorkerKey>()](
          const std::shared_ptr<const rendezvous::View>& view) mutable {
        for (const rendezvous::Departed& departed : view->departed()) {
          if (!told.insert(departed.key).second) continue;
          agent->PeerGone(departed.key, departed.reason);
        }
      });
  return absl::OkStatus();
}

absl::Status Worker::AwaitAll(absl::string_view tag, absl::Duration timeout) {
  return membership_->Barrier(tag, {}, timeout);
}

ShutdownReport Worker::Shutdown(absl::Duration timeout) {
  ShutdownReport report;
  if (std::exchange(is_shut_, true)) return report;
  const Instant deadline = SteadyClock().Now() + timeout;
  const auto phase =
      [&](const char* name,
          absl::FunctionRef<absl::Status(absl::Duration left)> run) {
        const Instant start = SteadyClock().Now();
        const absl::Duration left =
            std::max(deadline - start, absl::ZeroDuration());
        const absl::Status status = run(left);
        report.phases.push_back({name, status, SteadyClock().Now() - start});
      };
  phase("calls", [&](absl::Duration left) { return agent_->Shutdown(left); });
  if (coordinator_ != nullptr) {
    phase("others", [&](absl::Duration left) {
      return membership_
          ->WaitFor(
              [](const rendezvous::View& view) {
                return view.members().size() <= 1;
              },
              left)
          .status();
    });
  }
  phase("leave", [&](absl::Duration left) { return membership_->Leave(left); });
  if (coordinator_ != nullptr) coordinator_->Shutdown();
  phase("endpoint",
        [&](absl::Duration left) { return endpoint_->Shutdown(left); });
  WEFT_LOG(telemetry_->logger(), Info, "shut down: ") << report.ToString();
  return report;
}

Worker::~Worker() {
  if (coordinator_ != nullptr) coordinator_->Shutdown();
  // The endpoint calls into the coordinator, which is made before it.
}

}  // namespace weft::worker
