// ProgressWatch: looks at the processes of this node, and says who keeps the
// job from going on, with what the launchers of other nodes see (launch/stuck).

#ifndef WEFT_LAUNCH_RUN_PROGRESS_WATCH_H_
#define WEFT_LAUNCH_RUN_PROGRESS_WATCH_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/launch/run/child.h"
#include "weft/launch/run/launcher.h"
#include "weft/launch/stuck/stuck_watch.h"
#include "weft/telemetry/field.h"

namespace weft::launch {

// Thread-safety: one thread at a time. Times do not go back.
class ProgressWatch {
 public:
  using TellEvent = std::function<void(absl::string_view event,
                                       const telemetry::Fields& fields)>;

  // Writes lines to `err`, and tells the same as events. `options` and `err`
  // must outlive it.
  ProgressWatch(const LaunchOptions& options, std::string host,
                std::ostream& err, TellEvent tell_event)
      : options_(options),
        host_(std::move(host)),
        err_(err),
        tell_event_(std::move(tell_event)) {}

  // StuckWatch's.
  void Start(const Child& child, bool joins_others, Instant now) {
    stuck_.Start(child.name(), child.pid(), joins_others, now);
  }
  void Joined(const std::string& name) { stuck_.Joined(name); }
  void End(const std::string& name) { stuck_.End(name); }
  void Line(const std::string& name, absl::string_view line, Instant now) {
    stuck_.Line(name, line, now);
  }

  // To be called after each line, and at next_at().
  void Check(const std::vector<const Child*>& children, Instant now);
  // All are ending: nothing more is said.
  void Stop() { next_look_ = Instant::Infinite(); }
  Instant next_at() const;

 private:
  void Look(const std::vector<const Child*>& children, Instant now);
  // Tells the launchers of other nodes what is seen here, and asks them.
  void ShareFacts(Instant now);

  const LaunchOptions& options_;
  const std::string host_;
  std::ostream& err_;
  const TellEvent tell_event_;
  StuckWatch stuck_;
  Instant next_look_;                 // at the processes
  Instant next_share_;                // of facts, with other nodes
  std::vector<RankFacts> elsewhere_;  // what is known of their ranks
  bool asks_ = false;                 // their launchers were asked
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_PROGRESS_WATCH_H_
