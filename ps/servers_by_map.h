// ServersByMap: a client's calls to all servers of a job with two replicas, as
// the newest map names them: the calls that are not about one table's rows.
//
// A server that dies meanwhile is no error: the call is made again, by the next
// map. Such an error is returned only when the time-out has passed; these two
// are returned at once:
//   kDataLoss            all copies of a partition are lost: Restore
//   kFailedPrecondition  servers have one replica
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_SERVERS_BY_MAP_H_
#define WEFT_PS_SERVERS_BY_MAP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/restoring.h"
#include "weft/ps/replicated/replica_session.h"
#include "weft/ps/waits/server_waits.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"

namespace weft::ps {

class ServersByMap {
 public:
  struct Options {
    rpc::Agent* agent = nullptr;       // outlives this
    std::vector<std::string> servers;  // names
    absl::Duration timeout;            // of each operation
    // ClientOptions::is_asked_to_stop: of Open, and of what begins the session.
    std::function<bool()> is_asked_to_stop = nullptr;
  };
  explicit ServersByMap(Options options) : options_(std::move(options)) {}

  // Makes the table on all servers, or finds it there; it has the same
  // generation on all of them. kCancelled: Options::is_asked_to_stop.
  absl::StatusOr<std::vector<v1::TableStats>> Open(const v1::TableSpec& spec,
                                                   uint64_t opening,
                                                   uint64_t opened_at);
  // `request(index)`: the request to the server of that index.
  absl::StatusOr<std::vector<v1::SaveReply>> Save(
      absl::FunctionRef<v1::SaveRequest(int index)> request);
  // Returns once all have frozen their tables. The Future has the replies to
  // their Save, by the same map.
  absl::StatusOr<Future<std::vector<v1::SaveReply>>> Snapshot(
      absl::FunctionRef<v1::SaveRequest(int index)> request,
      absl::Duration write_timeout);
  absl::Status CheckCheckpointDirectory(const std::string& path);
  // Works also if the job has lost all copies of a partition.
  absl::Status Restore(const std::string& path, const std::string& name);
  absl::StatusOr<std::vector<v1::ServerStats>> Describe();

  // Null until one of the above has been OK.
  const std::shared_ptr<const OpenSession>& open_session() const {
    return open_;
  }

 private:
  absl::Status Begin();
  // Waits until another map may be tried; false at once if it is too late.
  bool AwaitNewerMap(Instant give_up);

  // Whether the worker is asked to stop.
  bool IsAskedToStop() const {
    return options_.is_asked_to_stop != nullptr && options_.is_asked_to_stop();
  }

  // kLive: whatever is lost. kAll: no partition may be. kOpening: the same, and
  // nothing is waited for once IsAskedToStop().
  enum class Scope { kLive, kAll, kOpening };
  template <typename T>
  using CallServer = absl::FunctionRef<Future<T>(const rpc::Target& server,
                                                 int index, uint64_t epoch)>;
  // Makes `call` to each live server, with its index.
  template <typename T>
  absl::StatusOr<std::vector<T>> OnLive(Scope scope, CallServer<T> call);
  // The same by the newest map, once.
  template <typename T>
  absl::StatusOr<std::vector<T>> Try(Scope scope, Instant give_up,
                                     CallServer<T> call);
  absl::StatusOr<std::vector<v1::TableStats>> OpenOnAll(
      const v1::TableSpec& spec, uint64_t opening, uint64_t opened_at);
  std::vector<std::string> Awaited() const;  // names of awaited_

  // The greatest generation that the map or a server has: of a restore that was
  // abandoned only the servers know that had loaded it.
  uint64_t NewestGeneration();

  // One step of a restore.
  absl::Status Take(const Restoring::Step& step, const PartitionMap& map,
                    const std::string& path, const std::string& name,
                    absl::Duration timeout, Restoring& restoring);

  const Options options_;
  // Null: nobody was asked yet.
  std::shared_ptr<const OpenSession> open_;
  ReplicaSession* session_ = nullptr;  // of open_
  // Of Open: what says for whom it waits, and those that have not answered it.
  std::unique_ptr<ServerWaits::Wait> wait_;
  std::vector<WorkerKey> awaited_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_SERVERS_BY_MAP_H_
