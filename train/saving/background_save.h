// BackgroundSave: a checkpoint that is written while the training goes on, one
// at a time.
//
// Thread-safety: one thread at a time. The destructor waits for the one that is
// being written.

#ifndef WEFT_TRAIN_BACKGROUND_SAVE_H_
#define WEFT_TRAIN_BACKGROUND_SAVE_H_

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::train {

class BackgroundSave {
 public:
  // The name of the checkpoint.
  using Saved = absl::StatusOr<std::string>;

  BackgroundSave() = default;
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Whether one was begun and its end not taken.
  bool is_begun() const { return thread_.joinable(); }
  // Runs `save` on a thread of its own; what it throws becomes its status.
  // kResourceExhausted if there can be no more threads. REQUIRES: !is_begun().
  absl::Status Begin(std::function<Saved()> save);
  // Its end, once: null while it is being written, or if none was begun.
  std::optional<Saved> TakeIfDone();
  // The same, but waits for it.
  std::optional<Saved> Take();

 private:
  std::thread thread_;
  std::atomic<bool> is_done_{false};
  Saved saved_ = absl::UnknownError("not saved yet");  // of thread_, until done
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_BACKGROUND_SAVE_H_
