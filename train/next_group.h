// NextGroup: a process group that is made while another one is at work.

#ifndef WEFT_TRAIN_NEXT_GROUP_H_
#define WEFT_TRAIN_NEXT_GROUP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "weft/collectives/process_group.h"

namespace weft::train {

// Thread-safety: one thread at a time, but for is_made.
class NextGroup {
 public:
  using Made = absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>>;

  NextGroup() = default;
  ~NextGroup();  // waits for what Begin has begun
  NextGroup(const NextGroup&) = delete;
  NextGroup& operator=(const NextGroup&) = delete;

  // Calls `make` on a thread of its own; where there is none to be had, that is
  // what Take gives (kResourceExhausted). REQUIRES: !has_begun().
  void Begin(std::function<Made()> make);
  bool has_begun() const { return has_begun_; }
  // Whether Take would not wait; also if it was an error.
  bool is_made() const { return is_made_.load(std::memory_order_acquire); }
  // What `make` has returned; waits for it, as long as `make` lasts. REQUIRES:
  // has_begun(), which is false after it.
  Made Take();

 private:
  bool has_begun_ = false;
  std::thread thread_;
  Made made_ = nullptr;  // written by the thread, until is_made_
  std::atomic<bool> is_made_{false};
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_NEXT_GROUP_H_
