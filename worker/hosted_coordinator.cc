#include "weft/worker/hosted_coordinator.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "weft/base/status_macros.h"
#include "weft/rendezvous/discovery/resolving_link.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/init_url.h"
#include "weft/rendezvous/journal/coordinator_log.h"
#include "weft/rendezvous/journal/etcd_journal.h"
#include "weft/rendezvous/journal/journal.h"
#include "weft/rendezvous/membership.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

// How long to wait for a program that has the address to say who it is.
constexpr absl::Duration kWhoIsThere = absl::Seconds(4);

// Null: what the coordinator decides is kept in memory.
absl::StatusOr<std::unique_ptr<rendezvous::Journal>> OpenJournal(
    const Options& options, rendezvous::TimerSource& timers, net::Loop& loop,
    const net::Endpoint& endpoint) {
  const rendezvous::InitUrl& url = options.init_url;
  if (url.kind == rendezvous::InitUrl::Kind::kEtcd) {
    auto etcd = rendezvous::MakeEtcdLink(loop, url.address);
    if (!etcd.ok()) return OfPart("--init", etcd.status());
    rendezvous::EtcdJournalOptions etcd_options;
    etcd_options.prefix = url.prefix;
    etcd_options.job = options.job;
    etcd_options.address = endpoint.address();
    etcd_options.stands_by = options.stands_by;
    etcd_options.cancel = options.cancel;
    auto journal = rendezvous::OpenEtcdJournal(timers, *std::move(etcd),
                                               std::move(etcd_options));
    if (journal.ok()) return journal;
    return WithExitCode(OfPart("--init", journal.status()), ExitCode::kConfig);
  }
  if (options.coordinator_log.empty()) return nullptr;
  auto log = rendezvous::CoordinatorLog::Open(
      options.coordinator_log,
      options.coordinator_log_survives_host
          ? rendezvous::CoordinatorLog::Survives::kHost
          : rendezvous::CoordinatorLog::Survives::kProcess);
  if (log.ok()) return *std::move(log);
  return WithExitCode(OfPart("--coordinator-log", log.status()),
                      absl::IsResourceExhausted(log.status())
                          ? ExitCode::kResource
                          : ExitCode::kConfig);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostedCoordinator>> HostedCoordinator::Create(
    const Options& options, rendezvous::TimerSource& timers, net::Loop& loop,
    net::Endpoint& endpoint, telemetry::Telemetry& telemetry) {
  std::unique_ptr<HostedCoordinator> hosted(new HostedCoordinator());
  WEFT_ASSIGN_OR_RETURN(hosted->executor_,
                        ThreadPool::Create({.name = "coordinator"}));
  rendezvous::CoordinatorOptions coordinator_options;
  coordinator_options.core.job = options.job;
  coordinator_options.core.suspect_after = options.limits.suspect_after;
  coordinator_options.core.dead_after = options.limits.dead_after;
  // One that runs is borne for longer, as much as by default.
  coordinator_options.core.busy_dead_after = std::max(
      coordinator_options.core.busy_dead_after, 6 * options.limits.dead_after);
  const Limits by_default;
  coordinator_options.core.takes_silence_limits =
      options.role == kCoordinatorRole &&
      options.limits.suspect_after == by_default.suspect_after &&
      options.limits.dead_after == by_default.dead_after;
  coordinator_options.core.start = options.start;
  coordinator_options.telemetry = &telemetry;
  WEFT_ASSIGN_OR_RETURN(coordinator_options.journal,
                        OpenJournal(options, timers, loop, endpoint));
  coordinator_options.term = rendezvous::TermOfNow();
  auto coordinator = rendezvous::Coordinator::Create(
      timers, *hosted->executor_, std::move(coordinator_options));
  if (!coordinator.ok()) {
    return WithExitCode(OfPart("--coordinator-log", coordinator.status()),
                        absl::IsResourceExhausted(coordinator.status())
                            ? ExitCode::kResource
                            : ExitCode::kConfig);
  }
  hosted->coordinator_ = *std::move(coordinator);
  if (options.init_url.kind == rendezvous::InitUrl::Kind::kFile) {
    auto file = rendezvous::RendezvousFile::Create(
        options.init_url.path, options.job, endpoint.address());
    if (!file.ok()) {
      return WithExitCode(OfPart("--init", file.status()), ExitCode::kConfig);
    }
    hosted->file_ = *std::move(file);
  }
  // Last: the endpoint refers to it from here on.
  rendezvous::Serve(*hosted->coordinator_, endpoint);
  return hosted;
}

absl::Status CheckNoCoordinator(const Options& options,
                                rendezvous::TimerSource& timers,
                                net::Loop& loop) {
  const auto link =
      rendezvous::MakeGrpcLink(loop, options.listen, options.name());
  if (!link.ok()) return absl::OkStatus();
  return rendezvous::CheckNobodyIsThere(timers, **link, options.job,
                                        options.name(), options.world(),
                                        kWhoIsThere);
}

absl::StatusOr<net::Credentials> CredentialsFor(const Options& options) {
  WEFT_RETURN_IF_ERROR(CheckTrust(options.certs, options.insecure));
  if (options.insecure) return net::Credentials::Insecure();
  if (options.certs.empty()) return net::Credentials::LocalOnly();
  WEFT_ASSIGN_OR_RETURN(
      net::Credentials credentials,
      net::Credentials::ForMember(options.certs, options.name()));
  WEFT_RETURN_IF_ERROR(credentials.CheckJob(options.job));
  return credentials;
}

absl::StatusOr<std::unique_ptr<rendezvous::CoordinatorLink>> LinkToCoordinator(
    const Options& options, net::Loop& loop) {
  const std::string host = options.host_of_coordinator();
  const rendezvous::InitUrl& url = options.init_url;
  if (!url.is_found()) {
    return rendezvous::MakeGrpcLink(loop, options.coordinator, host);
  }
  std::function<Future<std::string>()> find;
  if (url.kind == rendezvous::InitUrl::Kind::kFile) {
    find = [&options, &loop] {
      return MakeReady<std::string>(
          rendezvous::ReadRendezvousFile(options.init_url.path, options.job),
          loop.driver());
    };
  } else {
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<rendezvous::CoordinatorLink> etcd,
                          rendezvous::MakeEtcdLink(loop, url.address));
    find = [&options, etcd] {
      return rendezvous::FindByEtcd(*etcd, options.init_url.prefix,
                                    options.job);
    };
  }
  return rendezvous::MakeResolvingLink(
      options.init, loop.driver(), std::move(find),
      [&loop, host](const std::string& address) {
        return rendezvous::MakeGrpcLink(loop, address, host);
      });
}

}  // namespace weft::worker
