// TestWorkers: several real workers in one process, for tests of programs that
// use Weft.
//
//   worker::TestWorkers::Options options;
//   options.servers = 1;
//   options.trainers = 2;
//   auto workers = worker::TestWorkers::Start(options);
//   ASSERT_TRUE(workers.ok()) << workers.status();
//   rpc::Agent& agent = (*workers)->Get("trainer0").agent();
//   EXPECT_EQ(rpc::Call(agent.To("ps0"), Twice, int64_t{21}).value(), 42);
//   EXPECT_TRUE((*workers)->Shutdown().ok());
//
// Each worker has its own agent, connections and handler threads, and meets the
// others as in production: over unix sockets, in a directory that is removed at
// the end. Any number of groups may run at a time. For faults that a seed
// reproduces, use rpc::SimulatedAgents.

#ifndef WEFT_WORKER_TEST_WORKERS_H_
#define WEFT_WORKER_TEST_WORKERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::worker {

// Thread-safety: one thread at a time; the workers themselves are thread-safe.
class TestWorkers {
 public:
  struct Options {
    int servers = 0;   // ps0, ps1, ...
    int trainers = 2;  // trainer0, trainer1, ...
    // How long all of them together may take to find each other.
    absl::Duration start_timeout = absl::Seconds(60);
    // Changes the options of each worker before it starts: limits, threads,
    // labels, certificates. Job, names and addresses are set already.
    std::function<void(worker::Options& options)> configure = nullptr;
  };

  // Starts all at once, and returns when each sees all the others. The error
  // names the worker that could not start, and then none is left.
  // kInvalidArgument if there would be none.
  static absl::StatusOr<std::unique_ptr<TestWorkers>> Start(
      const Options& options);

  // Ends those that are left, without waiting for their calls.
  ~TestWorkers();
  TestWorkers(const TestWorkers&) = delete;
  TestWorkers& operator=(const TestWorkers&) = delete;

  // The names of those that live: servers first, each role by rank.
  std::vector<std::string> names() const;
  // REQUIRES: a worker of this name lives.
  Worker& Get(const std::string& name);

  // Runs `main(worker)` for every living worker, each on a thread of its own,
  // and returns when all have returned: the error that came first, with the
  // name of its worker. An exception of a main is an error too.
  absl::Status Run(const std::function<absl::Status(Worker& worker)>& main);

  // Ends one worker without notifying the others, as a crash does: they see its
  // connections end, and learn after Limits::dead_after that it is gone. The
  // host of the coordinator (ps0, or trainer0 where there are no servers) takes
  // the coordinator with it. REQUIRES: a worker of this name lives.
  void Kill(const std::string& name);

  // Ends all as their programs would, together: each waits for its calls, and
  // for the others. The first error, with the name of its worker; all have
  // ended in any case, after `timeout` by force. Idempotent.
  absl::Status Shutdown(absl::Duration timeout = absl::Seconds(60));

 private:
  using ByName = std::map<std::string, std::unique_ptr<Worker>>;

  TestWorkers();
  absl::Status StartAll(const Options& options);

  std::string directory_;           // of the sockets
  std::vector<std::string> order_;  // of all names, ended ones too
  ByName workers_;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_TEST_WORKERS_H_
