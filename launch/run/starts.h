// Starts: whether a process that is started again when it ends may be, and how
// long after its end.

#ifndef WEFT_LAUNCH_RUN_STARTS_H_
#define WEFT_LAUNCH_RUN_STARTS_H_

#include "absl/time/time.h"
#include "weft/base/clock.h"

namespace weft::launch {

// A process that ends within so long after its start, kMostQuickEnds times in a
// row, cannot run.
inline constexpr absl::Duration kQuickEnd = absl::Seconds(2);
inline constexpr int kMostQuickEnds = 3;

// The starts of one process. Times do not go back.
//
// Thread-safety: one thread at a time.
class Starts {
 public:
  void Begin(Instant now);
  // It takes part in what the others do, as far as that is known.
  void Join(Instant now) { joined_at_ = now; }
  void End(Instant now);

  // Whether it cannot run.
  bool is_hopeless() const { return quick_ends_ >= kMostQuickEnds; }
  // The same of one that may be killed as soon as it takes part: it has not
  // taken part in any of those lives.
  bool never_takes_part() const { return idle_ends_ >= kMostQuickEnds; }
  int quick_ends() const { return quick_ends_; }  // in a row
  // How often in a row it has ended within kQuickEnd of taking part, or within
  // a minute of its start without that.
  int futile_starts() const { return futile_; }
  // Between its last end and the next start: nothing at first; from the third
  // futile start in a row on 1 s, 2 s, 4 s and so on, at most a minute.
  absl::Duration Pause() const { return PauseAfter(futile_); }
  // The same from the third quick end in a row on.
  absl::Duration PauseOfQuickEnds() const { return PauseAfter(quick_ends_); }
  // Whether it has run for longer than one that cannot; it has not ended.
  bool HasStayed(Instant now) const { return now - began_at_ >= kQuickEnd; }

 private:
  static absl::Duration PauseAfter(int ends);

  Instant began_at_;
  Instant joined_at_ = Instant::Infinite();
  int quick_ends_ = 0;  // in a row
  int idle_ends_ = 0;   // of them, since it has last taken part
  int futile_ = 0;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_STARTS_H_
