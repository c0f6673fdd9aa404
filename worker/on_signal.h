// OnSignal: runs a callback on a thread of its own when the process gets a
// signal.

#ifndef WEFT_WORKER_ON_SIGNAL_H_
#define WEFT_WORKER_ON_SIGNAL_H_

#include <functional>
#include <memory>
#include <thread>

namespace weft::worker {

class OnSignal {
 public:
  // Null where there is an OnSignal already, or the program treats the signal
  // in its own way, or the system has no thread or descriptor left.
  static std::unique_ptr<OnSignal> Create(int signal,
                                          std::function<void()> callback);

  // Waits for a callback that runs. The signal does again what it did.
  ~OnSignal();
  OnSignal(const OnSignal&) = delete;
  OnSignal& operator=(const OnSignal&) = delete;

 private:
  OnSignal(int signal, std::function<void()> callback);
  void Run();

  const int signal_;
  const std::function<void()> callback_;
  std::thread thread_;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_ON_SIGNAL_H_
