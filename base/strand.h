// Strand: runs tasks one at a time, in the order in which they were scheduled.

#ifndef WEFT_BASE_STRAND_H_
#define WEFT_BASE_STRAND_H_

#include <memory>

#include "weft/base/executor.h"

namespace weft {

// A queue in front of `executor`, which must outlive it. The order is that of
// the calls to Schedule: who calls it under a lock fixes the order under that
// lock. A task sees what the one before it did. No thread is held while the
// queue is empty, and a long queue lets others have their turn.
//
// Tasks scheduled before its end still run after it. Where the executor drops
// tasks, so does the Strand.
//
// Thread-safety: thread-safe.
class Strand final : public Executor {
 public:
  explicit Strand(Executor& executor);

  void Schedule(Task task) override;

 private:
  class Queue;
  struct Turn;

  const std::shared_ptr<Queue> queue_;
};

}  // namespace weft

#endif  // WEFT_BASE_STRAND_H_
