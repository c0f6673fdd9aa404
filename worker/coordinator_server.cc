// CoordinatorServer: see the header.

#include "weft/worker/coordinator_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/net/loop/descriptor_limit.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

// How long the server waits, as it ends, for its last answers to be sent.
constexpr absl::Duration kAnswersTimeout = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Options options) {
  std::unique_ptr<CoordinatorServer> server(
      new CoordinatorServer(std::move(options)));
  const absl::Status opened = server->Open();
  if (!opened.ok()) return OfPart(server->options_.name(), opened);
  return server;
}

absl::Status CoordinatorServer::Open() {
  telemetry::Telemetry::Options telemetry;
  telemetry.job = options_.job;
  telemetry.role = options_.role;
  telemetry.rank = options_.rank;
  telemetry.log_format = options_.log_format;
  telemetry.log_level = options_.log_level;
  telemetry_ = std::make_unique<telemetry::Telemetry>(std::move(telemetry));
  net::RaiseDescriptorLimit();
  net::LoopOptions loop = options_.limits.loop;
  absl::StatusOr<net::Credentials> credentials = CredentialsFor(options_);
  if (!credentials.ok()) {
    return WithExitCode(OfPart("--certs", credentials.status()),
                        ExitCode::kAuth);
  }
  loop.credentials = *std::move(credentials);
  loop.telemetry = telemetry_.get();
  // It shares the host with the ranks, so that its threads sleep.
  loop.ranks_on_host = options_.ranks_on_host;
  WEFT_ASSIGN_OR_RETURN(loop_, net::Loop::Create(std::move(loop)));
  timers_ = rendezvous::MakeLoopTimers(*loop_);
  WEFT_RETURN_IF_ERROR(Listen());
  WEFT_ASSIGN_OR_RETURN(coordinator_,
                        HostedCoordinator::Create(options_, *timers_, *loop_,
                                                  *endpoint_, *telemetry_));
  return endpoint_->Start();
}

absl::Status CoordinatorServer::Listen() {
  net::EndpointOptions endpoint;
  endpoint.name = options_.name();
  endpoint.listen = options_.listen;
  endpoint.advertise = options_.advertise;
  endpoint.probe_every = options_.probe_every;
  endpoint.limits = options_.limits.admission;
  auto opened = net::Endpoint::Open(*loop_, endpoint);
  if (opened.ok()) {
    endpoint_ = *std::move(opened);
    return absl::OkStatus();
  }
  if (absl::IsFailedPrecondition(opened.status())) {
    return WithExitCode(opened.status(), ExitCode::kAuth);
  }
  if (!absl::IsUnavailable(opened.status())) {
    return WithExitCode(opened.status(), ExitCode::kConfig);
  }
  return WithExitCode(
      absl::UnavailableError(absl::StrCat(
          opened.status().message(), ": job ", options_.job,
          " may have a coordinator there already; end what listens there, or "
          "choose another address for all workers by --coordinator, or another "
          "--job")),
      ExitCode::kConfig);
}

bool CoordinatorServer::AwaitNoMembers(absl::Duration timeout) {
  const auto link = coordinator_->LocalLink();
  const Instant deadline = SteadyClock().Now() + timeout;
  rendezvous::v1::WatchRequest request;
  request.set_job(options_.job);
  for (;;) {
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) return false;
    // Held until the view changes; the first is answered at once.
    request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(left)));
    const absl::StatusOr<std::string> bytes =
        link->Call("Watch", request.SerializeAsString(), left).Wait(left);
    rendezvous::v1::WatchReply reply;
    if (!bytes.ok() || !reply.ParseFromString(*bytes)) return false;
    // The answer to one that waited in vain has no members, but that version.
    if (reply.view().version() == request.known_version()) continue;
    if (reply.view().members().empty()) return true;
    request.set_known_version(reply.view().version());
  }
}

CoordinatorServer::~CoordinatorServer() {
  // The last member that leaves waits for its answer: with a log behind it,
  // this coordinator would be asked again until it is started again.
  if (endpoint_ != nullptr) {
    (void)endpoint_->Shutdown(kAnswersTimeout);
  }
  if (coordinator_ != nullptr) coordinator_->Shutdown();
}

}  // namespace weft::worker
