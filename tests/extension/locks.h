// Locks: named locks that a worker keeps for others: a library above rpc as
// somebody outside of Weft would write it, against the headers of rpc/ and of
// rpc/extension/.

#ifndef WEFT_TESTS_EXTENSION_LOCKS_H_
#define WEFT_TESTS_EXTENSION_LOCKS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/extension/library.h"
#include "weft/rpc/extension/tasks.h"

namespace locks {

using weft::rpc::WorkerKey;

// One worker's locks. A lock is held by a worker, until that releases it or is
// gone.
//
// Thread-safety: thread-safe. May outlive its agent.
class Locks final : public weft::rpc::extension::Library,
                    public std::enable_shared_from_this<Locks> {
 public:
  static constexpr absl::string_view kKind = "locks";

  // kAlreadyExists if the agent has some.
  static absl::StatusOr<std::shared_ptr<Locks>> Open(weft::rpc::Agent& agent);

  // Ready once this worker holds the lock `lock` of `keeper`. kCancelled once
  // one of the two agents has ended.
  weft::Future<void> Acquire(WorkerKey keeper, const std::string& lock);
  // kNotFound if this worker does not hold it.
  weft::Future<void> Release(WorkerKey keeper, const std::string& lock);
  // The same worker; its calls are refused there with kFailedPrecondition
  // unless this worker holds `lock` as they come.
  weft::rpc::Target Guarded(const weft::rpc::Target& target,
                            const std::string& lock);

  // The guarded calls that came there, and that did not.
  int64_t delivered() const { return delivered_; }
  int64_t refused() const { return refused_; }
  // How many wait for a lock here.
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);

  weft::Future<void> ServeAcquire(WorkerKey peer, const std::string& lock)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ServeRelease(WorkerKey peer, const std::string& lock)
      ABSL_LOCKS_EXCLUDED(mu_);

  explicit Locks(weft::rpc::Agent& agent);

 private:
  class Claim;
  using Tasks = weft::rpc::extension::Tasks;
  struct Waiting {
    WorkerKey peer;
    weft::Promise<void> promise;
  };
  struct Lock {
    std::optional<WorkerKey> holder;
    std::vector<Waiting> waiting;
  };

  absl::StatusOr<std::unique_ptr<weft::rpc::ReceivedAttachment>> Take(
      absl::string_view kind, const weft::rpc::CodecContext& message,
      const weft::Bytes& bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnPeerGone(const weft::rpc::Agent::GonePeer& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnAgentEnd() override ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the lock to the first that waits, if one does.
  void GiveOn(Lock* lock, Tasks* tasks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  weft::Driver& driver_;
  std::atomic<int64_t> delivered_{0};
  std::atomic<int64_t> refused_{0};
  mutable weft::Mutex mu_;
  std::map<std::string, Lock> locks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace locks

#endif  // WEFT_TESTS_EXTENSION_LOCKS_H_
