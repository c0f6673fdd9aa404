// HandoverWatch: notices that a newcomer hangs while it is given the state of
// others, who stand still until it has it.
//
// What counts is how long it does one thing by itself. While it waits for
// others, as for the parts that they send, it cannot be who keeps them: so a
// big state may take as long as it takes.

#ifndef WEFT_TRAIN_STATE_HANDOVER_WATCH_H_
#define WEFT_TRAIN_STATE_HANDOVER_WATCH_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::train {

// Thread-safety: one thread at a time.
class HandoverWatch {
 public:
  using OnHang = std::function<void(const std::string& what)>;

  // It waits for others until Works is called. `on_hang` is called at most
  // once, on a thread of its own, with what the rank has done for `patience`
  // without an end. kResourceExhausted: there can be no more threads.
  static absl::StatusOr<std::unique_ptr<HandoverWatch>> Start(
      absl::Duration patience, OnHang on_hang);
  // Waits for `on_hang`, if that runs.
  ~HandoverWatch();
  HandoverWatch(const HandoverWatch&) = delete;
  HandoverWatch& operator=(const HandoverWatch&) = delete;

  // From now on it does `what`: "hashing its state". The same again is
  // something new: what was before has ended.
  void Works(const std::string& what) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on it waits for others.
  void AwaitsOthers() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  HandoverWatch(absl::Duration patience, OnHang on_hang)
      : patience_(patience), on_hang_(std::move(on_hang)) {}
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration patience_;
  const OnHang on_hang_;
  std::thread thread_;

  Mutex mu_;
  CondVar changed_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::string what_ ABSL_GUARDED_BY(mu_);
  Instant since_ ABSL_GUARDED_BY(mu_) = Instant::Infinite();
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STATE_HANDOVER_WATCH_H_
