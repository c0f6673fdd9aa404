// BatonScheduler: runs simulated ranks as threads of which one runs at a time;
// the seed picks which. So blocking code is simulated as it is, and the same
// seed gives the same interleaving.
//
//   Simulator simulator(seed);
//   BatonScheduler scheduler(simulator);
//   auto statuses = scheduler.Run(4, [&](int rank) { return AllReduce(rank);
//   });
//
// A rank gives the baton away where it waits through driver() for what is not
// ready, in Yield, and when it ends. Then the seed picks among the ranks that
// can go on and the events that are due; only if there are none does the clock
// move. A rank that blocks in any other way (a lock held over a wait, a real
// condition variable) blocks the run.

#ifndef WEFT_SIM_BATON_SCHEDULER_H_
#define WEFT_SIM_BATON_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/executor.h"
#include "weft/base/mutex.h"
#include "weft/sim/simulator.h"

namespace weft::sim {

// Thread-safety: for the thread that calls Run and those that it starts.
class BatonScheduler final : private Driver, private Executor {
 public:
  // `simulator` must outlive it.
  explicit BatonScheduler(Simulator& simulator) : simulator_(simulator) {}
  ~BatonScheduler() override;
  BatonScheduler(const BatonScheduler&) = delete;
  BatonScheduler& operator=(const BatonScheduler&) = delete;

  // Waits by giving the baton away. With nobody to take it, no event left and
  // no deadline to come, every waiting rank's Wait returns false: a deadlock
  // ends, and is counted.
  Driver& driver() { return *this; }

  // Runs each task on a simulated thread of its own, which may wait.
  Executor& executor() { return *this; }

  // Runs `rank_main(0 .. ranks - 1)` and all tasks of executor() to their end;
  // returns the status of each rank, a thrown error made into one.
  std::vector<absl::Status> Run(
      int ranks, const std::function<absl::Status(int)>& rank_main);

  // Lets others go first, if the seed says so. The clock does not move while
  // somebody yields: to poll, sleep. Not in an event.
  void Yield();
  // Not to be called in an event.
  void SleepFor(absl::Duration duration);

  int64_t deadlocks() const { return deadlocks_; }

 private:
  // One simulated thread. Touched by whoever has the baton only.
  struct SimThread {
    explicit SimThread(std::string name) : name(std::move(name)) {}

    const std::string name;
    std::thread thread;
    Waitable* awaited = nullptr;  // it can go on when this is ready...
    Instant deadline;             // ...or this has passed
    bool is_done = false;
    CondVar has_baton;  // goes with mu_
  };

  Clock& clock() override { return simulator_.clock(); }
  bool Wait(Waitable& what, Instant deadline) override;
  void Schedule(Task task) override;

  void Start(std::string name, Task main);
  // Gives the baton away until `self` is picked. For one that is done returns
  // at once; for null, the thread in Run, when all are done.
  void Dispatch(SimThread* self) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs events until a thread can go on; null once all are done.
  SimThread* PickNext();
  bool CanGoOn(const SimThread& thread) const;
  // Moves the clock to the next thing that happens, or ends a deadlock.
  void AdvanceClock();
  void Reap();  // joins those that are done, but for the calling one

  Simulator& simulator_;
  std::vector<std::unique_ptr<SimThread>> threads_;
  SimThread* current_ = nullptr;  // who has the baton, or null in Run's thread
  int64_t tasks_ = 0;
  int64_t deadlocks_ = 0;
  Mutex mu_;
  SimThread* baton_ ABSL_GUARDED_BY(mu_) = nullptr;
  CondVar all_done_;
};

}  // namespace weft::sim

#endif  // WEFT_SIM_BATON_SCHEDULER_H_
