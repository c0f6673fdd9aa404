// ReplicaSession: what the tables of one client of a job with two replicas
// share: the newest map, and a thread that calls OnTick of each table.
//
// That thread and the answers of servers may hold the last reference to a
// session, or to a table, after the client has dropped both and has destroyed
// its agent. So a client and its tables hold the session by an OpenSession:
// once the last of these is gone, or the agent has ended, the session calls
// nobody, and what its tables have under way ends with kCancelled.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_REPLICATED_REPLICA_SESSION_H_
#define WEFT_PS_REPLICATED_REPLICA_SESSION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/waits/server_waits.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/extension/weak_agent.h"

namespace weft::ps {

// A table, which the session tells of newer maps, of the time, and of its end.
class MapFollower {
 public:
  virtual ~MapFollower() = default;
  virtual void OnMap(const PartitionMap& map) = 0;
  virtual void OnTick(Instant now) = 0;  // about every 20 ms
  // The session is closed, and calls nobody any more: `why`.
  virtual void OnClose(const absl::Status& why) = 0;
};

class ReplicaSession : public EndsWithAgent,
                       public std::enable_shared_from_this<ReplicaSession> {
 public:
  struct Options {
    rpc::Agent* agent = nullptr;
    std::vector<std::string> servers;  // names
    // Begin: no longer waits once this is true. Null: until its time-out.
    std::function<bool()> is_asked_to_stop = nullptr;
  };
  // Waits for a map, which a server gives once all have joined.
  // kCancelled: is_asked_to_stop. kUnavailable or kDeadlineExceeded says what
  // the last that was asked said; kResourceExhausted: the system has no thread
  // for it.
  static absl::StatusOr<std::shared_ptr<ReplicaSession>> Begin(
      Options options, absl::Duration timeout);
  ~ReplicaSession() override;

  // What reports the waits of the agent's threads.
  const std::shared_ptr<ServerWaits>& waits() const { return waits_; }
  // The name of a worker that the agent knows; also after its end.
  std::string NameOf(WorkerKey worker) const { return agent_->NameOf(worker); }

  // The key of the agent.
  WorkerKey key() const { return agent_->key(); }
  PartitionMap map() const ABSL_LOCKS_EXCLUDED(mu_);

  // As rpc::CallAsync; kCancelled, and nothing is sent, after Close().
  template <typename F, typename... A>
  auto CallAsync(WorkerKey server, absl::Duration timeout, F function,
                 const A&... arguments) const {
    return agent_->CallOnce(server, timeout, function, arguments...);
  }

  // Calls no server from now on; waits for the calls that are being begun, and
  // tells all followers. The agent may end after it.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  void OnAgentEnd() override { Close(); }

  // Operations that wait for a server which has ended, and which no other
  // server has replaced, end kGiveUpAfter later: each table asks gives_up().
  void GiveUpOnGoneServers() ABSL_LOCKS_EXCLUDED(mu_);
  bool gives_up(Instant now) const ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr absl::Duration kGiveUpAfter = absl::Seconds(2);

  // How long a table that is destroyed waits until what it has pushed is
  // stable: 2 s; 20 ms if another table has just waited for so long without
  // success (NoteUnstable), because the pushes of this one have had the same
  // time.
  absl::Duration StableWithin() const ABSL_LOCKS_EXCLUDED(mu_);
  void NoteUnstable() ABSL_LOCKS_EXCLUDED(mu_);

  // Asks a server for a newer map, and tells all followers. While one has been
  // asked and has not answered for less than 200 ms, nothing is asked; then the
  // next one is. Returns at once.
  void Learn() ABSL_LOCKS_EXCLUDED(mu_);

  // Asks all servers, and waits for those that answer within a second.
  void LearnFromAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Tells `follower` of maps until it is gone.
  void Add(const std::weak_ptr<MapFollower>& follower) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ReplicaSession(Options options);
  const std::string& NextToAsk() ABSL_LOCKS_EXCLUDED(mu_);
  // kCancelled after Close().
  Future<v1::MapReply> AskForMap(const std::string& server) const;
  absl::Status TakeMap(const std::string& encoded) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<MapFollower>> Followers()
      ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const std::shared_ptr<rpc::extension::WeakAgent> agent_;
  const std::shared_ptr<ServerWaits> waits_;

  mutable Mutex mu_;
  PartitionMap map_ ABSL_GUARDED_BY(mu_);
  bool is_asking_ ABSL_GUARDED_BY(mu_) = false;  // the last question
  Instant asked_at_ ABSL_GUARDED_BY(mu_);
  uint64_t last_question_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // which server is asked next
  std::vector<std::weak_ptr<MapFollower>> followers_ ABSL_GUARDED_BY(mu_);
  Instant gives_up_at_ ABSL_GUARDED_BY(mu_) = Instant::Infinite();
  std::optional<Instant> unstable_at_ ABSL_GUARDED_BY(mu_);
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

// A session as a client and its tables hold it, by shared pointers.
class OpenSession {
 public:
  explicit OpenSession(std::shared_ptr<ReplicaSession> session)
      : session_(std::move(session)) {}
  ~OpenSession() { session_->Close(); }
  OpenSession(const OpenSession&) = delete;
  OpenSession& operator=(const OpenSession&) = delete;

  const std::shared_ptr<ReplicaSession>& session() const { return session_; }

 private:
  const std::shared_ptr<ReplicaSession> session_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_REPLICA_SESSION_H_
