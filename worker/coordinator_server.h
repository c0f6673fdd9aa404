// CoordinatorServer: the job's coordinator in a process that is none of its
// workers, as `weft coordinator` runs it.
//
// The end of a worker takes nothing of the coordinator along, and the
// coordinator may be killed and started again from its log while the workers go
// on (docs/rendezvous.md, "A coordinator of its own").

#ifndef WEFT_WORKER_COORDINATOR_SERVER_H_
#define WEFT_WORKER_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/telemetry/telemetry.h"
#include "weft/worker/hosted_coordinator.h"
#include "weft/worker/options.h"

namespace weft::worker {

// Thread-safety: thread-safe.
class CoordinatorServer {
 public:
  // Serves at the address where the job meets (`coordinator`, or what `init`
  // names), with the log, limits, certificates and telemetry of `options`;
  // over TCP with the certificate of options.name(). REQUIRES:
  // options.Resolve() has returned OK, and options.hosts_coordinator().
  //
  // With Options::stands_by it waits until no other hosts the job.
  //
  // Errors have an exit code: kAuth for certificates, kConfig for an address
  // that is in use (it names the address and what to change) or a log that
  // cannot be used, kResource for a full disk.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(
      Options options);

  // Answers what members wait for with kUnavailable, and ends.
  ~CoordinatorServer();

  // Waits until no worker is in the job any more, `timeout` at most; returns
  // whether none is. Workers that leave need the coordinator until then.
  bool AwaitNoMembers(absl::Duration timeout);

  // Whether it decides nothing any more, and never will: another has taken its
  // place, or its journal has failed.
  bool has_stopped() const { return coordinator_->has_stopped(); }

  // unix:PATH, or HOST:PORT with the real port.
  const std::string& address() const { return endpoint_->address(); }

 private:
  explicit CoordinatorServer(Options options) : options_(std::move(options)) {}
  absl::Status Open();
  absl::Status Listen();

  const Options options_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<rendezvous::TimerSource> timers_;
  std::unique_ptr<HostedCoordinator> coordinator_;
  std::unique_ptr<net::Endpoint> endpoint_;  // refers to the coordinator
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_COORDINATOR_SERVER_H_
