// ObjectTable: what this worker keeps for others, and who holds it.
//
// An object lives while somebody holds it: its creator, and whoever it was
// passed on to. What a member of the job holds ends when it releases it or when
// its incarnation is gone; forgetting an idle session of a member frees
// nothing. A client is known by its session only: what it holds ends with that.
// A Handle (handle.h) is the case of one holder, its creator.

#ifndef WEFT_RPC_OBJECT_TABLE_H_
#define WEFT_RPC_OBJECT_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/mutex.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/diagnostics/leaks.h"
#include "weft/rpc/object_id.h"
#include "weft/rpc/session/directory.h"

namespace weft::rpc {

// Thread-safety: thread-safe. Objects end without its lock.
class ObjectTable {
 public:
  struct Object {
    std::shared_ptr<void> value;
    const void* type = nullptr;  // internal::kTypeKey of it
    // The value as a call carries it; null if it has no Codec.
    absl::StatusOr<Slices> (*encode)(const void* value,
                                     Encoder& encoder) = nullptr;
    // By a call of which function, which outlives it; for reports.
    absl::string_view function;
  };

  // Keeps the objects of the worker `owner`; each holder may hold
  // `most_per_holder` of them.
  ObjectTable(WorkerKey owner, int64_t most_per_holder)
      : owner_(owner), most_(most_per_holder) {}

  // Keeps `object`, which `holder` holds once. kAlreadyExists;
  // kResourceExhausted, naming the holder, beyond its quota; kUnavailable of a
  // holder that is gone; kFailedPrecondition for an id without a call, as calls
  // without a session are.
  absl::Status Add(const ObjectId& id, const Worker& holder, Object object)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `holder` holds the object once more: as often as it may release it.
  // kNotFound if there is no such object; else as Add.
  absl::Status Hold(const ObjectId& id, const Worker& holder)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes back one Add or Hold; the last of all holders ends the object.
  // kNotFound if `holder` does not hold it.
  absl::Status Release(const ObjectId& id, WorkerKey holder)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The object, if `holder` holds it. kNotFound if not, or if there is none;
  // kInvalidArgument if it is of another type. A null type is any.
  absl::StatusOr<Object> Find(const ObjectId& id, WorkerKey holder,
                              const void* type) const ABSL_LOCKS_EXCLUDED(mu_);

  // The incarnation `key` is gone, and of a member all earlier ones: what they
  // hold is released, and they hold nothing any more. `left`: in peace, and
  // what there was is counted as left behind.
  void HolderGone(WorkerKey key, bool left = false) ABSL_LOCKS_EXCLUDED(mu_);
  // The session of one that is no member has ended; it may begin another.
  void SessionEnded(WorkerKey client) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t size() const ABSL_LOCKS_EXCLUDED(mu_);
  // Adds what others than the owner hold here, and what they left.
  void AddTo(LeakList* list) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Object object;
    int64_t holders = 0;
  };
  struct Holder {
    std::string name;
    absl::btree_map<ObjectId, int64_t> times;
  };
  using Holders = absl::btree_map<WorkerKey, Holder>;
  using Ended = std::vector<Object>;  // whose destructors run without the lock

  absl::Status CheckHolder(const Worker& holder) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AddHolding(const ObjectId& id, const Worker& holder,
                          Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropHolding(const ObjectId& id, Ended* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next holder.
  Holders::iterator DropHolder(Holders::iterator it, bool left, Ended* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddTo(LeakList* list, const Holder& holder) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NoObject(const ObjectId& id) const;

  const WorkerKey owner_;
  const int64_t most_;
  mutable Mutex mu_;
  absl::flat_hash_map<ObjectId, Entry> objects_ ABSL_GUARDED_BY(mu_);
  Holders holders_ ABSL_GUARDED_BY(mu_);
  // Up to which epoch the incarnations of a member are gone, by id.
  absl::flat_hash_map<uint32_t, uint64_t> gone_ ABSL_GUARDED_BY(mu_);
  LeakList left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_OBJECT_TABLE_H_
