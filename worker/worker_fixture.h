// WorkerTest: ranks of a job in one process.

#ifndef WEFT_WORKER_WORKER_FIXTURE_H_
#define WEFT_WORKER_WORKER_FIXTURE_H_

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/loop/loop.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"

namespace weft::worker {

inline constexpr absl::Duration kLong = absl::Seconds(60);
// A coordinator that was killed, after it was started again: 5 s on a machine
// that has the time, and as much again and more on one that is stopped now and
// then. How long it was is the test's property back_ms.
inline constexpr absl::Duration kBackWithin = absl::Seconds(60);

// An object that a program may forget to release.
class Counter {
 public:
  explicit Counter(int64_t n) : n_(n) { ++living; }
  ~Counter() { --living; }
  int64_t Value() const { return n_; }

  static inline std::atomic<int> living{0};

 private:
  const int64_t n_;
};
WEFT_RPC_CLASS(Counter, int64_t);
WEFT_RPC_METHOD(Counter, Value);

using Workers = std::vector<std::unique_ptr<Worker>>;

// All at once, as each waits for the others. Empty if one could not.
inline Workers StartAll(const std::vector<Options>& ranks) {
  Workers workers(ranks.size());
  const auto statuses = testing::RunRanks(ranks.size(), [&](int i) {
    auto worker = Worker::Start(ranks[i]);
    if (worker.ok()) workers[i] = *std::move(worker);
    return worker.status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, ::weft::testing::IsOk());
    if (!status.ok()) workers.clear();
  }
  return workers;
}

// Each by a thread of its own, as each may wait for the others.
inline void EndAll(Workers workers) {
  const auto statuses = testing::RunRanks(workers.size(), [&](int i) {
    const ShutdownReport report = workers[i]->Shutdown(kLong);
    workers[i].reset();
    return report.status();
  });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(status, ::weft::testing::IsOk());
}

inline absl::StatusOr<int64_t> CallTwice(Worker& caller,
                                         const std::string& peer) {
  return rpc::Call(caller.agent().To(peer, kLong), Twice, int64_t{21});
}

// Calls `peer` over and over, from its making to its end.
class Traffic {
 public:
  Traffic(Worker& caller, std::string peer)
      : thread_([this, &caller, peer = std::move(peer)] {
          while (!is_over_) {
            const auto reply = CallTwice(caller, peer);
            if (!reply.ok()) failures_.push_back(reply.status());
            ++calls_;
          }
        }) {}
  ~Traffic() { (void)End(); }

  int64_t calls() const { return calls_; }
  ::testing::AssertionResult GoesOn() {
    return ::weft::testing::Becomes(
        [this, before = calls()] { return calls() > before; });
  }
  // Ends it, and returns the errors of all its calls.
  std::vector<absl::Status> End() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
    return failures_;
  }

 private:
  std::atomic<bool> is_over_{false};
  std::atomic<int64_t> calls_{0};
  std::vector<absl::Status> failures_;
  std::thread thread_;
};

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    chmod(dir_.path().c_str(), 0700);
    // Where default sockets go.
    setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
  }

  Options OptionsOf(const std::string& role, int rank) {
    Options options;
    options.job = "job";
    options.role = role;
    options.rank = rank;
    options.servers = 1;
    options.trainers = 2;
    options.coordinator = absl::StrCat("unix:", dir_.Path("c.sock"));
    options.join_timeout = kLong;
    options.log_level = telemetry::Level::kWarning;
    return options;
  }

  Options ElasticOf(int rank, int min, int max) {
    Options options = OptionsOf("trainer", rank);
    options.servers = options.trainers = 0;
    options.min_workers = min;
    options.max_workers = max;
    return options;
  }

  // Tells the coordinator that `name` has ended, as a witness does.
  void DeclareGone(const std::string& name) {
    const auto loop = net::Loop::Create();
    ASSERT_THAT(loop, ::weft::testing::IsOk());
    const auto link =
        rendezvous::MakeGrpcLink(**loop, OptionsOf("ps", 0).coordinator, "ps0");
    ASSERT_THAT(link, ::weft::testing::IsOk());
    rendezvous::v1::ReportExitRequest report;
    report.set_job("job");
    report.set_name(name);
    // All that is started here is of this group of processes.
    const auto self = rendezvous::ThisProcess();
    ASSERT_TRUE(self.has_value());
    report.mutable_process()->set_pid(self->group());
    report.mutable_process()->set_space(self->space());
    report.set_reason("a test says so");
    EXPECT_THAT((*link)
                    ->Call("ReportExit", report.SerializeAsString(), kLong)
                    .Wait(kLong),
                ::weft::testing::IsOk());
  }

  // ps0, trainer0 and trainer1.
  Workers StartThree() {
    return StartAll(
        {OptionsOf("ps", 0), OptionsOf("trainer", 0), OptionsOf("trainer", 1)});
  }

  testing::TempDir dir_;
};

inline bool IsGone(const rendezvous::View& view, const std::string& name,
                   const std::string& reason) {
  return std::any_of(view.departed().begin(), view.departed().end(),
                     [&](const rendezvous::Departed& departed) {
                       return departed.name == name &&
                              absl::StrContains(departed.reason, reason);
                     });
}

}  // namespace weft::worker

#endif  // WEFT_WORKER_WORKER_FIXTURE_H_
