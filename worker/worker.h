// Worker: one rank: it makes the parts in order, hands them down, and ends them
// in order.
//
//   auto worker = worker::Worker::Start(worker::Options::FromFlags(&argc,
//   argv)); ExitIfError(worker.status()); rpc::Agent& agent =
//   (*worker)->agent();

#ifndef WEFT_WORKER_WORKER_H_
#define WEFT_WORKER_WORKER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/executor.h"
#include "weft/base/thread_pool.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/membership.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/directory.h"
#include "weft/rpc/transport.h"
#include "weft/telemetry/telemetry.h"
#include "weft/worker/options.h"

namespace weft::worker {

// What a Shutdown did, phase by phase.
struct ShutdownReport {
  struct Phase {
    std::string name;
    absl::Status status;
    absl::Duration took;
  };
  std::vector<Phase> phases;

  // The first error of a phase.
  absl::Status status() const;
  std::string ToString() const;
};

// Thread-safety: thread-safe, but for Shutdown, which one thread calls.
class Worker {
 public:
  // Telemetry, loop, endpoint, coordinator (if this rank hosts it), membership,
  // agent. Returns once all workers of the world have joined. The error names
  // the part that failed.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(Options options);

  // Ends what Shutdown() has not, waits for no one: peers see this rank fall
  // silent.
  ~Worker();

  const Options& options() const { return options_; }
  const rendezvous::Member& self() const { return membership_->self(); }
  telemetry::Telemetry& telemetry() { return *telemetry_; }
  net::Loop& loop() { return *loop_; }
  net::Endpoint& endpoint() { return *endpoint_; }
  rendezvous::Membership& membership() { return *membership_; }
  rpc::Agent& agent() { return *agent_; }
  Executor& executor() { return *executor_; }

  // Waits until every worker of the world has called it with this tag.
  absl::Status AwaitAll(absl::string_view tag, absl::Duration timeout);

  // Refuses new work, waits for calls in progress, leaves the job (the host of
  // the coordinator last of all), and stops. One deadline for all phases: what
  // is not done by then is cut, and the report says so. Idempotent.
  ShutdownReport Shutdown(absl::Duration timeout = absl::Seconds(30));

 private:
  explicit Worker(Options options) : options_(std::move(options)) {}
  absl::Status StartParts();
  absl::Status OpenNetwork();
  absl::Status HostCoordinator();
  absl::Status Join();
  absl::Status MakeAgent();

  const Options options_;
  // In the order of their making; each may use those above it.
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<ThreadPool> coordinator_executor_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<rendezvous::TimerSource> timers_;
  std::unique_ptr<rendezvous::Coordinator> coordinator_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<rpc::Transport> transport_;
  std::unique_ptr<rendezvous::Membership> membership_;
  std::unique_ptr<rpc::Directory> directory_;
  std::unique_ptr<rpc::Agent> agent_;
  rendezvous::Membership::Subscription follow_;
  bool is_shut_ = false;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_WORKER_H_
