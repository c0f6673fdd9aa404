// StopSignal: SIGTERM, SIGINT and SIGHUP as a wish that a program ends in good
// order.

#ifndef WEFT_TRAIN_STOP_SIGNAL_H_
#define WEFT_TRAIN_STOP_SIGNAL_H_

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft::train {

// From here on SIGTERM, SIGINT and SIGHUP set AskedToStop(); not a SIGHUP that
// was ignored before, as nohup does. A SIGINT that comes after one of them ends
// the process at once, as it would without this.
void AwaitStopSignals();

bool AskedToStop();
// The first signal that came; 0 if none.
int StopSignal();

// While it lives, the first signal runs `stop`, once, on a thread of its own;
// also one that came before. REQUIRES: AwaitStopSignals() was called.
class OnStopSignal {
 public:
  explicit OnStopSignal(std::function<void()> stop);
  ~OnStopSignal();  // waits for `stop` if it runs
  OnStopSignal(const OnStopSignal&) = delete;
  OnStopSignal& operator=(const OnStopSignal&) = delete;

 private:
  void Watch(const std::function<void()>& stop);

  Mutex mu_;
  CondVar changed_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watcher_;
};

// For the message of a program that was asked to stop.
inline constexpr char kEndsAtOnce[] = "Ctrl-C again ends it at once";

}  // namespace weft::train

#endif  // WEFT_TRAIN_STOP_SIGNAL_H_
