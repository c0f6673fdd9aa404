// Worker: one rank: it makes the parts in order, hands them down, and ends them
// in order.
//
//   auto options = worker::Options::FromFlags(argc, argv);
//   auto worker = worker::Worker::Start(options);
//   ExitIfError(worker.status());
//   rpc::Agent& agent = (*worker)->agent();

#ifndef WEFT_WORKER_WORKER_H_
#define WEFT_WORKER_WORKER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/executor.h"
#include "weft/base/thread_pool.h"
#include "weft/collectives/abort_source.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/roll_call.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/gateway/untyped_call_service.h"
#include "weft/rpc/session/directory.h"
#include "weft/rref/references.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/status_page.h"
#include "weft/telemetry/telemetry.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/transport.h"
#include "weft/worker/hosted_coordinator.h"
#include "weft/worker/on_signal.h"
#include "weft/worker/options.h"
#include "weft/worker/shutdown.h"
#include "weft/worker/telemetry/metrics_server.h"
#include "weft/worker/telemetry/status.h"
#include "weft/worker/telemetry/trace_file.h"

namespace weft::worker {

// Thread-safety: thread-safe, but for Shutdown, which one thread calls.
class Worker {
 public:
  // Telemetry, loop, endpoint, coordinator (if this rank hosts it), membership,
  // agent, references, contexts. Returns once all workers of the world have
  // joined (Options::rejoins: but for those who have gone since). The error
  // names the part that failed.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(Options options);

  // Ends what Shutdown() has not, without waiting for peers, in 2 s at most:
  // they see this rank fall silent. (It does wait for a handler that waits for
  // anything but Weft, and for a write of the coordinator's log.)
  ~Worker();

  const Options& options() const { return options_; }
  const rendezvous::Member& self() const { return membership_->self(); }
  telemetry::Telemetry& telemetry() { return *telemetry_; }
  net::Loop& loop() { return *loop_; }
  net::Endpoint& endpoint() { return *endpoint_; }
  rendezvous::Membership& membership() { return *membership_; }
  rpc::Agent& agent() { return *agent_; }
  // The agent's references (rref/rref.h) and its distributed contexts
  // (dist_autograd/scope.h). The worker opens and closes them; handles and
  // scopes that outlive it do nothing.
  rref::References& references() { return *references_; }
  dist_autograd::Contexts& contexts() { return *contexts_; }
  Executor& executor() { return *executor_; }
  // The budget of shared memory of the job's workers on this host; null if the
  // job's socket directory cannot be used.
  std::shared_ptr<transport::MemoryBudget> memory_budget() const {
    return memory_budget_;
  }
  // Connects process groups to ranks of other hosts (worker/join_group.h).
  collectives::Streams& group_streams() { return *group_streams_; }
  // The roll calls by which JoinGroup finds the members of a group in an
  // elastic job.
  rendezvous::RollCalls& roll_calls() { return *roll_calls_; }
  // Ends the process groups of a worker that is out of its job.
  const std::shared_ptr<collectives::AbortSource>& group_abort() const {
    return group_abort_;
  }

  // Writes the flight recorder to a file in --dump-dir and logs its name; and
  // the spans, if they are kept, to --trace. SIGUSR2 does the same for every
  // Worker of a process that has no SIGUSR2 handler of its own; so does a
  // Start that fails once the worker has joined.
  void DumpFlightRecorder();

  // Waits until every worker of the world has called it with this tag.
  absl::Status AwaitAll(absl::string_view tag, absl::Duration timeout);

  // Ends this worker, also if a step fails: after the first failure, or once
  // the deadline has passed, the remaining steps are done without waiting, and
  // the report names them. The program must begin no calls once it has been
  // called; handlers still may. Idempotent. Handles and streams that were not
  // released are a warning in the log, or an error: see shutdown.h.
  ShutdownReport Shutdown(const ShutdownOptions& options = {});
  ShutdownReport Shutdown(absl::Duration deadline);

 private:
  explicit Worker(Options options) : options_(std::move(options)) {}
  absl::Status StartParts();
  absl::Status ServeMetrics(const net::Credentials& credentials);
  absl::Status OpenNetwork();
  void OpenMemoryBudget();
  absl::StatusOr<std::unique_ptr<net::Endpoint>> Listen();
  absl::Status Join();
  absl::Status MakeAgent();
  absl::Status OpenReferencesAndPasses();
  telemetry::Fields DescribeMembership() const;
  void OutOfJob(const absl::Status& why);
  // Ends the program, for a supervisor that starts another.
  void EndProgram(const absl::Status& why);

  absl::Status Quiesce(const std::string& together, absl::Duration timeout);
  absl::Status Drain(const std::string& together, absl::Duration timeout);
  // Ends the passes and releases the references of this worker, and waits until
  // the workers that end together have released theirs to objects here.
  absl::Status CloseReferencesAndPasses(const std::string& together,
                                        absl::Duration timeout);
  absl::Status Leave(absl::Duration timeout);
  absl::Status AwaitPhase(rendezvous::Phase phase, const std::string& together,
                          absl::Duration timeout);

  const Options options_;
  // In the order of their making; each may use those above it.
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  std::unique_ptr<telemetry::Metrics::Refresher> process_metrics_;
  std::unique_ptr<MetricsServer> metrics_server_;  // after what it reads
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<OnSignal> dump_on_signal_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<rendezvous::TimerSource> timers_;
  std::unique_ptr<HostedCoordinator> coordinator_;  // null: another has it
  std::unique_ptr<net::Endpoint> endpoint_;
  std::shared_ptr<transport::MemoryBudget> memory_budget_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<collectives::Streams> group_streams_;
  const std::shared_ptr<collectives::AbortSource> group_abort_ =
      std::make_shared<collectives::AbortSource>();
  std::unique_ptr<rpc::UntypedCallService> untyped_call_service_;
  std::unique_ptr<rendezvous::Membership> membership_;
  std::unique_ptr<rendezvous::RollCalls> roll_calls_;
  telemetry::StatusPage::Registration membership_page_;
  std::unique_ptr<ThreadPool> status_executor_;
  StatusSource status_source_;
  std::unique_ptr<rpc::Directory> directory_;
  std::unique_ptr<rpc::Agent> agent_;
  std::shared_ptr<rref::References> references_;
  std::shared_ptr<dist_autograd::Contexts> contexts_;
  telemetry::StatusPage::Registration references_page_;
  telemetry::StatusPage::Registration passes_page_;
  rendezvous::Membership::Subscription follow_;
  bool is_shut_ = false;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_WORKER_H_
