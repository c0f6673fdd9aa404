// StreamTable: the buffers of the streams that this worker serves, by caller
// and id of the stream's call. They end with the call, or with the session of
// the caller.

#ifndef WEFT_RPC_STREAM_TABLE_H_
#define WEFT_RPC_STREAM_TABLE_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/stream_buffer.h"

namespace weft::rpc {

// Thread-safety: thread-safe. Buffers end without its lock.
class StreamTable {
 public:
  // A caller may have `most_per_caller` streams open.
  explicit StreamTable(int64_t most_per_caller) : most_(most_per_caller) {}

  // Those of the stream `id` of `caller`; new ones if there are none, as either
  // end may be first. kResourceExhausted, naming the caller, beyond its quota;
  // kFailedPrecondition for id 0: the call has no session.
  absl::StatusOr<std::shared_ptr<StreamBuffers>> FindOrAdd(const Worker& caller,
                                                           uint64_t id,
                                                           Driver& driver)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Does nothing if there are none.
  void Remove(WorkerKey caller, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // The session of the caller has ended.
  void RemoveAll(WorkerKey caller) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Streams = absl::flat_hash_map<uint64_t, std::shared_ptr<StreamBuffers>>;

  const int64_t most_;
  mutable Mutex mu_;
  absl::flat_hash_map<WorkerKey, Streams> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_STREAM_TABLE_H_
