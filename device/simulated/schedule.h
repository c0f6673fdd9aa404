// Schedule: which task of which stream runs next. The part of the simulated
// device that has no threads, clocks or memory.
//
// A stream is a queue of tasks and of waits for marks. A mark is a point in a
// stream: all that was in it when the mark was taken. A task is ready when it
// is at the head of its queue and the waits before it are over. Among the ready
// tasks the seed decides: each stream has a priority that is drawn, and drawn
// again at points that are drawn. So one stream may run far ahead of another
// that it is not ordered with, or far behind it.
//
// Source: Burckhardt et al., "A Randomized Scheduler with Probabilistic
// Guarantees of Finding Bugs", ASPLOS 2010 (PCT): of n threads and k steps, a
// bug of depth d shows in one run with a probability of at least 1/(n k^(d-1)).
// A missing event between two streams has depth 1: at least each second run.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DEVICE_SIMULATED_SCHEDULE_H_
#define WEFT_DEVICE_SIMULATED_SCHEDULE_H_

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "absl/types/optional.h"

namespace weft::device {

class Schedule {
 public:
  struct Mark {
    int stream = -1;
    int64_t position = 0;
  };
  struct Pick {
    int stream = -1;
    int64_t task = -1;
  };

  // The same seed and the same calls give the same picks, on every machine.
  explicit Schedule(uint64_t seed);

  // Streams count from 0.
  int AddStream();

  // `task` is a name that Next gives back.
  void Enqueue(int stream, int64_t task);
  // What comes after it on `stream` is ready only when `mark` is done.
  void Wait(int stream, Mark mark);

  // All that is on `stream` now.
  Mark MarkOf(int stream) const;
  bool IsDone(Mark mark) const;

  // A ready task, which must be finished before the next call; nothing if no
  // task is ready: all ran, or hang.
  absl::optional<Pick> Next();
  void Finish(Pick pick);

  // Whether, after something was put on a stream, a task should run at once: so
  // that some tasks run as early as they can, and others late.
  bool DrawEarly();

  // A stream that hangs has no ready task until it is resumed.
  void SetHangs(int stream, bool hangs);

  int64_t pending_tasks() const { return pending_tasks_; }

 private:
  struct Item {
    int64_t task = -1;  // or, if -1, a wait for `mark`
    Mark mark;
  };
  struct Queue {
    std::deque<Item> items;
    int64_t done = 0;  // items that were at the head and are over
    uint64_t priority = 0;
    bool hangs = false;
  };

  // True once in `one_in` draws; never if that is 0.
  bool Draw(uint64_t one_in);
  // Drops the waits at the heads that are over, so that IsDone need not look
  // beyond a queue's head.
  void DropWaits();

  std::mt19937_64 random_;
  uint64_t early_one_in_;
  uint64_t redraw_one_in_;
  std::vector<Queue> queues_;
  int64_t pending_tasks_ = 0;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_SCHEDULE_H_
