// HandlerThreads: the threads on which an agent runs functions.

#ifndef WEFT_RPC_AGENT_HANDLER_THREADS_H_
#define WEFT_RPC_AGENT_HANDLER_THREADS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"
#include "weft/base/thread_pool.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/function.h"
#include "weft/telemetry/logger.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

// Counts the functions that run, and ends calls for which no thread of the pool
// becomes free, since all of them wait in functions.
//
// Thread-safety: thread-safe.
class HandlerThreads final
    : public PendingSource,
      public std::enable_shared_from_this<HandlerThreads> {
 public:
  struct Options {
    std::string worker;  // for messages
    // As in AgentOptions.
    Executor* executor = nullptr;
    const ThreadPool* pool = nullptr;
    int threads = 0;
    int max_threads = 0;
    // Both must outlive it.
    transport::Transport* transport = nullptr;
    telemetry::Logger* logger = nullptr;
    // Visits the calls that wait for a thread now.
    std::function<void(absl::FunctionRef<void(ServedCall&)>)> for_each_waiting;
  };

  explicit HandlerThreads(Options options) : options_(std::move(options)) {}

  // Makes a pool unless there is an executor.
  absl::Status Start();
  Executor& executor() const { return *executor_; }
  // Runs the function on the call, unless the call has ended before a thread is
  // free.
  void Run(const Function& function, std::shared_ptr<ServedCall> call);
  // What the pool does; zeros without one, and after Stop().
  ThreadPool::Stats stats() const;

  void CallBegan() { running_.fetch_add(1); }
  void CallEnded() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no function runs. Those that begin later are not counted on.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the threads of its own pool. Once no timer of the transport runs.
  void EndPool() { own_pool_.reset(); }

  // A session, or nobody, names the calls that run.
  void AddPending(std::vector<PendingCall>*) override {}
  void AddActive(ActiveCalls*) override {}
  // Counts functions that run where nobody else has named their calls: those of
  // an agent that calls itself.
  void AddOpen(std::vector<std::string>* open) override;

 private:
  // Looks after a while whether the pool still begins the calls that wait for
  // one of its threads, until none waits.
  void WatchPool();
  void CheckPool();
  void EndStarvedCalls(const ThreadPool::Stats& stats, Instant now);

  const Options options_;
  std::unique_ptr<ThreadPool> own_pool_;
  Executor* executor_ = nullptr;
  const ThreadPool* pool_ = nullptr;  // if executor_ is one
  std::atomic<bool> watches_pool_{false};
  // CheckPool, which runs once at a time, uses these: how many tasks had begun
  // when it last looked, and since when none did while all threads were
  // blocked.
  int64_t pool_started_ = 0;
  Instant stuck_since_ = Instant::Infinite();
  bool has_warned_ = false;  // that it is stuck

  std::atomic<int64_t> running_{0};
  std::atomic<bool> has_stopped_{false};
  Mutex mu_;
  CondVar none_runs_;  // once has_stopped_
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_HANDLER_THREADS_H_
