// ObjectTable: what peers keep at this worker, each under the id of the call
// that made it.
//
// An object lives until it is released, or until the session of its maker has
// ended: its incarnation is gone, or its session was forgotten.

#ifndef WEFT_RPC_OBJECT_TABLE_H_
#define WEFT_RPC_OBJECT_TABLE_H_

#include <cstdint>
#include <functional>
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
#include "weft/rendezvous/worker_key.h"
#include "weft/rpc/diagnostics/leftovers.h"

namespace weft::rpc {

// Thread-safety: thread-safe. Objects end without its lock.
class ObjectTable {
 public:
  using Maker = rendezvous::WorkerKey;
  struct Object {
    std::shared_ptr<void> value;
    const void* type = nullptr;  // internal::kTypeKey of it
    // The value as a call carries it; null if it has no Codec.
    absl::StatusOr<Slices> (*encode)(const void* value) = nullptr;
    // By a call of which function, which outlives it, and of whom. Empty of the
    // buffers of a stream, which go with its call.
    absl::string_view function;
    std::string maker;
  };

  // A maker may keep `most_per_maker` objects.
  explicit ObjectTable(int64_t most_per_maker) : most_(most_per_maker) {}

  // kResourceExhausted beyond the limit; kAlreadyExists.
  absl::Status Add(Maker maker, uint64_t id, Object object)
      ABSL_LOCKS_EXCLUDED(mu_);
  // kNotFound; kInvalidArgument if it is of another type. Null: any type.
  absl::StatusOr<Object> Find(Maker maker, uint64_t id, const void* type) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // As Find, but makes what is not there.
  absl::StatusOr<Object> FindOrAdd(Maker maker, uint64_t id, const void* type,
                                   const std::function<Object()>& make)
      ABSL_LOCKS_EXCLUDED(mu_);
  // kNotFound if it was released before.
  absl::Status Release(Maker maker, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // `was_left`: the maker has left in peace, and what there was is counted as
  // left behind.
  void ReleaseAll(Maker maker, bool was_left = false) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t size() const ABSL_LOCKS_EXCLUDED(mu_);
  // Adds what others than `self` keep here, and what they left.
  void AddTo(LeftoverList* list, Maker self) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Objects = absl::btree_map<uint64_t, Object>;

  static void AddTo(LeftoverList* list, const Objects& objects);
  absl::Status AddLocked(Maker maker, uint64_t id, const Object& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Object> FindLocked(Maker maker, uint64_t id,
                                    const void* type) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t most_;
  mutable Mutex mu_;
  absl::flat_hash_map<Maker, Objects> objects_ ABSL_GUARDED_BY(mu_);
  LeftoverList left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_OBJECT_TABLE_H_
