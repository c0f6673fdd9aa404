// Gate: threads of a test wait until another opens it.

#ifndef WEFT_TESTS_OUTSIDE_GROUPS_GATE_H_
#define WEFT_TESTS_OUTSIDE_GROUPS_GATE_H_

#include <condition_variable>
#include <mutex>

namespace weft::outside {

// Thread-safety: thread-safe.
class Gate {
 public:
  void Open() {
    // Under the lock, for who waits may destroy it.
    const std::lock_guard<std::mutex> lock(mu_);
    is_open_ = true;
    opened_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    opened_.wait(lock, [&] { return is_open_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_GROUPS_GATE_H_
