// HostedCoordinator: the job's coordinator, where this worker hosts it; and how
// a worker reaches it elsewhere.

#ifndef WEFT_WORKER_HOSTED_COORDINATOR_H_
#define WEFT_WORKER_HOSTED_COORDINATOR_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/thread_pool.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/discovery/rendezvous_file.h"
#include "weft/telemetry/telemetry.h"
#include "weft/worker/options.h"

namespace weft::worker {

// Thread-safety: thread-safe.
class HostedCoordinator {
 public:
  // Hosts a coordinator with the journal that `options` name, serves it at
  // `endpoint`, and announces it where the workers look for it. The error has
  // an exit code. What is given must outlive it, but for `endpoint`, which ends
  // before.
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> Create(
      const Options& options, rendezvous::TimerSource& timers, net::Loop& loop,
      net::Endpoint& endpoint, telemetry::Telemetry& telemetry);

  std::unique_ptr<rendezvous::CoordinatorLink> LocalLink() {
    return coordinator_->LocalLink();
  }
  // Whether it has stopped for good: another has taken its place, or its
  // journal has failed.
  bool has_stopped() const { return coordinator_->has_stopped(); }
  // Takes no more calls.
  void Shutdown() { coordinator_->Shutdown(); }

 private:
  HostedCoordinator() = default;

  // The coordinator has threads of its own, as it waits for the disk and must
  // not wait for handlers.
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<rendezvous::Coordinator> coordinator_;
  std::unique_ptr<rendezvous::RendezvousFile> file_;  // if it is found by one
};

// Fails with the worker or job that has the address at which this one was to
// host the coordinator. Ok if nobody answers there.
absl::Status CheckNoCoordinator(const Options& options,
                                rendezvous::TimerSource& timers,
                                net::Loop& loop);

// What `certs` and `insecure` say, for a process with the name of `options`.
// kInvalidArgument: both are given; else what net::Credentials says.
absl::StatusOr<net::Credentials> CredentialsFor(const Options& options);

// A link to the coordinator of `options`, at its address or where it is found.
// Both must outlive the link.
absl::StatusOr<std::unique_ptr<rendezvous::CoordinatorLink>> LinkToCoordinator(
    const Options& options, net::Loop& loop);

}  // namespace weft::worker

#endif  // WEFT_WORKER_HOSTED_COORDINATOR_H_
