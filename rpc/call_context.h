// CallContext: what a registered function may know of the call that it serves.
//
// A function that takes `CallContext&` first gets it. Calls made through To()
// inherit the caller's deadline, trace and cancellation.

#ifndef WEFT_RPC_CALL_CONTEXT_H_
#define WEFT_RPC_CALL_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/object_id.h"
#include "weft/rpc/session/directory.h"
#include "weft/telemetry/trace_context.h"

namespace weft::rpc {

class Agent;
class ReceivedAttachment;
class Target;

namespace internal {
// One address for each type: the key of Local<T>().
template <typename T>
inline const char kTypeKey = 0;
}  // namespace internal

// What a call hands down to those that it makes.
struct Lineage {
  Instant deadline = Instant::Infinite();
  int depth = 0;      // calls above this one
  std::string chain;  // "trainer0 > ps0:Push > ps1:Merge", the nearest of it
  telemetry::TraceContext trace;
  CancelToken cancel;
  // The call itself: whose it is, and its id. An id of 0: none is known.
  std::string caller;
  uint64_t call = 0;
};

// Lives until the function has returned and a Future returned by it is ready.
//
// Thread-safety: thread-safe.
class CallContext {
 public:
  virtual ~CallContext() = default;
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  Agent& agent() const { return *agent_; }
  // The caller: proven by the connection where that is secured, else as it
  // claims.
  const Worker& peer() const { return peer_; }

  Instant deadline() const { return inherited_.deadline; }
  // What the caller still waits; never negative.
  absl::Duration Remaining() const;
  // Fires when the caller has given up or is gone, or the deadline has passed.
  // A worker is gone when the membership says so. A client, which is no member,
  // is gone when it has been without a connection for 2 s.
  const CancelToken& cancel() const { return inherited_.cancel; }
  const telemetry::TraceContext& trace() const { return inherited_.trace; }
  // What calls made from here inherit. Put together when it is asked for.
  virtual Lineage lineage() const = 0;

  // Where to call from here. `timeout` counts from each call and is cut to what
  // remains of this one.
  Target To(absl::string_view name,
            std::optional<absl::Duration> timeout = std::nullopt) const;
  Target To(WorkerKey key,
            std::optional<absl::Duration> timeout = std::nullopt) const;
  Target To(const Worker& worker,  // that incarnation, such as peer()
            std::optional<absl::Duration> timeout = std::nullopt) const;

  // What came with the request beside its arguments (attachment.h); null if no
  // attachment of this kind did. Lives until the call has ended.
  virtual ReceivedAttachment* attachment(absl::string_view kind) const = 0;

  // What Agent::SetLocal attached, or null. Lives until the call has ended.
  template <typename T>
  T* Local() const {
    return static_cast<T*>(FindLocal(&internal::kTypeKey<T>));
  }

  // The object `id` of this worker (handle.h), which the caller holds.
  // kNotFound; kInvalidArgument if it is no T. Lives until the call has ended.
  template <typename T>
  absl::StatusOr<T*> FindObject(const ObjectId& id) const {
    absl::StatusOr<void*> object = FindObject(id, &internal::kTypeKey<T>);
    if (!object.ok()) return object.status();
    return static_cast<T*>(*object);
  }

 protected:
  // Both must outlive it.
  CallContext(Agent* agent, const Worker& peer, Lineage&& inherited)
      : agent_(agent), peer_(peer), inherited_(std::move(inherited)) {}

  // What the call itself came with, and its own trace and cancellation.
  const Lineage& inherited() const { return inherited_; }

 private:
  void* FindLocal(const void* type_key) const ABSL_LOCKS_EXCLUDED(mu_);
  void* Hold(std::shared_ptr<void> object) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<void*> FindObject(const ObjectId& id,
                                   const void* type_key) const
      ABSL_LOCKS_EXCLUDED(mu_);

  Agent* const agent_;
  const Worker& peer_;
  const Lineage inherited_;
  mutable Mutex mu_;
  mutable std::vector<std::shared_ptr<void>> used_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_CALL_CONTEXT_H_
