// Leak, LeakList, OpenHandles: which objects and streams nobody has let
// go of, for the report of a worker that ends.

#ifndef WEFT_RPC_DIAGNOSTICS_LEAKS_H_
#define WEFT_RPC_DIAGNOSTICS_LEAKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/gone_epochs.h"

namespace weft::rpc {

// Those that calls of one function have left between this worker and another.
struct Leak {
  bool is_stream = false;  // else objects and results (handle.h)
  bool is_here = false;    // the other has made them here; else this one there
  std::string peer;        // the other
  std::string what;        // the function; empty: of whatever kind and peer
  int64_t count = 0;
  std::vector<uint64_t> ids = {};  // of the calls; the first kMaxIds
  static constexpr size_t kMaxIds = 8;

  // "2 Embedding::new at ps0 (calls 3, 7)", "1 Tokens of trainer0 (call 9)".
  std::string ToString() const;
};

// Thread-safety: one thread at a time.
class LeakList {
 public:
  // Those of further kinds are counted together.
  static constexpr size_t kMaxKinds = 32;

  // `kind` without ids and count.
  void Add(const Leak& kind, uint64_t id);
  void Add(const LeakList& other);
  // Sorted, what was counted together last.
  std::vector<Leak> Sorted() const;

 private:
  Leak& Find(const Leak& kind);

  std::vector<Leak> all_;
};

// The handles that this worker has made and that were not released.
//
// Thread-safety: thread-safe.
class OpenHandles {
 public:
  // So many keepers that have left are remembered.
  static constexpr size_t kMaxOfLeft = 4096;

  // The call `id` of `function`, which must outlive this, has left one at
  // `keeper`.
  void Add(const Worker& keeper, uint64_t id, absl::string_view function)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Unknown ones are ignored.
  void Remove(WorkerKey keeper, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the objects that `keeper` and its earlier incarnations kept. A
  // keeper that has `left` in good order had not released them: they are leaks;
  // those of one that died are not.
  void KeeperGone(WorkerKey keeper, bool left) ABSL_LOCKS_EXCLUDED(mu_);

  void AddTo(LeakList* list) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Kept {
    std::string keeper;
    std::map<uint64_t, absl::string_view> functions;  // by call
  };

  mutable Mutex mu_;
  std::map<WorkerKey, Kept> kept_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<WorkerKey> left_ ABSL_GUARDED_BY(mu_);  // keys of kept_
  GoneEpochs gone_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_DIAGNOSTICS_LEAKS_H_
