// Batcher: gathers the calls of one batched function.

#ifndef WEFT_RPC_AGENT_BATCHER_H_
#define WEFT_RPC_AGENT_BATCHER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"
#include "weft/rpc/function.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

// Thread-safety: thread-safe.
class Batcher final : public std::enable_shared_from_this<Batcher> {
 public:
  // All must outlive the calls that are added.
  Batcher(const Function& function, transport::Transport& transport,
          Executor& executor)
      : function_(function), transport_(transport), executor_(executor) {}

  void Add(std::shared_ptr<ServedCall> call) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs what has been gathered, now.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void FlushBatch(int64_t batch) ABSL_LOCKS_EXCLUDED(mu_);
  void Run(std::vector<std::shared_ptr<ServedCall>> calls);

  const Function& function_;
  transport::Transport& transport_;
  Executor& executor_;
  Mutex mu_;
  std::vector<std::shared_ptr<ServedCall>> calls_ ABSL_GUARDED_BY(mu_);
  int64_t batch_ ABSL_GUARDED_BY(mu_) = 0;  // how many were run
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_BATCHER_H_
