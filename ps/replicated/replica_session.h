// ReplicaSession: what the tables of one client of a job with two replicas
// share: the newest map, and a thread that keeps the time.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_REPLICATED_REPLICA_SESSION_H_
#define WEFT_PS_REPLICATED_REPLICA_SESSION_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/ps/core/partition_map.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"

namespace weft::ps {

// What is told of a newer map and of the time.
class MapFollower {
 public:
  virtual ~MapFollower() = default;
  virtual void OnMap(const PartitionMap& map) = 0;
  virtual void OnTick(Instant now) = 0;  // about every 20 ms
};

class ReplicaSession : public std::enable_shared_from_this<ReplicaSession> {
 public:
  struct Options {
    rpc::Agent* agent = nullptr;       // outlives the session
    std::vector<std::string> servers;  // names
  };
  // Waits for a map, which a server gives once all have joined.
  // kUnavailable or kDeadlineExceeded says what the last that was asked said;
  // kResourceExhausted: the system has no thread for it.
  static absl::StatusOr<std::shared_ptr<ReplicaSession>> Begin(
      Options options, absl::Duration timeout);
  ~ReplicaSession();

  rpc::Agent& agent() const { return *options_.agent; }
  PartitionMap map() const ABSL_LOCKS_EXCLUDED(mu_);

  // Asks a server for a newer map, and tells all followers; one question at a
  // time. Returns at once.
  void Learn() ABSL_LOCKS_EXCLUDED(mu_);

  // Asks all servers, and waits for those that answer within a second.
  void LearnFromAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Until it is gone.
  void Add(const std::weak_ptr<MapFollower>& follower) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ReplicaSession(Options options);
  rpc::Target NextToAsk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeMap(const std::string& encoded) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<MapFollower>> Followers()
      ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;

  mutable Mutex mu_;
  PartitionMap map_ ABSL_GUARDED_BY(mu_);
  bool is_asking_ ABSL_GUARDED_BY(mu_) = false;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // which server is asked next
  std::vector<std::weak_ptr<MapFollower>> followers_ ABSL_GUARDED_BY(mu_);
  // Shared with the thread, which may hold the last reference to this.
  struct End {
    Mutex mu;
    CondVar changed;
    bool is_over ABSL_GUARDED_BY(mu) = false;
  };
  const std::shared_ptr<End> end_ = std::make_shared<End>();
  std::thread thread_;

  static void Run(const std::weak_ptr<ReplicaSession>& weak, End& end);
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_REPLICA_SESSION_H_
