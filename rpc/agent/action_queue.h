// ActionQueue: what a core wants done without its lock, in the order in which
// it asked, by one thread at a time.

#ifndef WEFT_RPC_AGENT_ACTION_QUEUE_H_
#define WEFT_RPC_AGENT_ACTION_QUEUE_H_

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft::rpc {

// Thread-safety: Add and Claim under the lock of the state. Each function is
// given that lock, so that clang can prove it.
template <typename Action>
class ActionQueue {
 public:
  template <typename T>
  void Add([[maybe_unused]] Mutex& mu, T&& action)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    waiting_.emplace_back(std::forward<T>(action));
  }

  // True if there is something that nobody is at: the caller must then Do() it,
  // once it holds no lock.
  bool Claim([[maybe_unused]] Mutex& mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (is_busy_ || waiting_.empty()) return false;
    is_busy_ = true;
    under_way_.swap(waiting_);
    return true;
  }

  // Gives the actions to `run(Action&)` until none is left, also those that are
  // added meanwhile.
  template <typename Run>
  void Do(Mutex& mu, Run run) ABSL_LOCKS_EXCLUDED(mu) {
    for (bool more = true; more;) {
      for (Action& action : under_way_) run(action);
      under_way_.clear();  // what they hold ends without the lock
      MutexLock lock(mu);
      is_busy_ = false;
      more = Claim(mu);
    }
  }

 private:
  std::vector<Action> waiting_;
  std::vector<Action> under_way_;  // of the thread that is at it
  bool is_busy_ = false;           // somebody is
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_ACTION_QUEUE_H_
