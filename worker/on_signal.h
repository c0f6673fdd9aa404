// OnSignal: runs a callback when the process gets SIGUSR2.

#ifndef WEFT_WORKER_ON_SIGNAL_H_
#define WEFT_WORKER_ON_SIGNAL_H_

#include <functional>
#include <memory>
#include <utility>

namespace weft::worker {

// Any number may live at a time. One thread, which is there as long as any of
// them, runs their callbacks one after another, the oldest first. Signals that
// come meanwhile count as one.
//
// Thread-safety: made and destroyed by any thread but in a callback.
class OnSignal {
 public:
  // Null where the program treats SIGUSR2 in its own way, or the system has no
  // thread or descriptor left.
  static std::unique_ptr<OnSignal> Create(std::function<void()> callback);

  // Waits for its callback if that runs. With the last of them the signal does
  // again what it did before.
  ~OnSignal();
  OnSignal(const OnSignal&) = delete;
  OnSignal& operator=(const OnSignal&) = delete;

 private:
  friend class SignalThread;
  explicit OnSignal(std::function<void()> callback)
      : callback_(std::move(callback)) {}

  const std::function<void()> callback_;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_ON_SIGNAL_H_
