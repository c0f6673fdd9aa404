// Driver: how a thread waits, whether by parking, polling or pumping.
//
// A Future made by a net::Loop is waited for by polling that Loop, one of the
// simulation by pumping its events; any other by parking the thread.

#ifndef WEFT_BASE_DRIVER_H_
#define WEFT_BASE_DRIVER_H_

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"

namespace weft {

// Something that becomes ready once and stays so; the base of a Future's state.
//
// Thread-safety: thread-safe.
class Waitable {
 public:
  Waitable() = default;
  Waitable(const Waitable&) = delete;
  Waitable& operator=(const Waitable&) = delete;

  bool IsReady() const { return ready_.load(std::memory_order_acquire); }

  // Unparks `parker` when this becomes ready; at once if it is. `parker` must
  // live until RemoveWaiter, after which it is not touched.
  void AddWaiter(Parker* parker) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveWaiter(Parker* parker) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  ~Waitable() = default;

  void MarkReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;

 private:
  std::atomic<bool> ready_{false};
  absl::InlinedVector<Parker*, 2> waiters_ ABSL_GUARDED_BY(mu_);
};

// Thread-safety: thread-safe.
class Driver {
 public:
  virtual ~Driver() = default;

  // The clock of the deadlines given to Wait. By default the SteadyClock().
  virtual Clock& clock() { return SteadyClock(); }

  // Returns once `what` is ready (true) or clock() reaches `deadline` (false).
  virtual bool Wait(Waitable& what, Instant deadline) = 0;
};

// The Driver that parks the thread.
Driver& ParkingDriver();

// Notified when the code that a worker thread runs blocks.
class BlockingListener {
 public:
  virtual ~BlockingListener() = default;
  virtual void BeginBlocking() = 0;
  virtual void EndBlocking() = 0;

  // Makes `listener` the one of this thread while it lives.
  class Scope {
   public:
    explicit Scope(BlockingListener& listener);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    BlockingListener* const previous_;
  };
};

// Stands around code that blocks its thread: an executor replaces the worker
// meanwhile. Only the outermost scope of a thread counts.
class BlockingScope {
 public:
  BlockingScope();
  ~BlockingScope();
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;
};

// Marks a thread that must not block, because others wait for it: within it a
// Future that is not ready refuses to be waited for.
class InlineScope {
 public:
  InlineScope();
  ~InlineScope();
  InlineScope(const InlineScope&) = delete;
  InlineScope& operator=(const InlineScope&) = delete;

  static bool IsActive();
};

}  // namespace weft

#endif  // WEFT_BASE_DRIVER_H_
