// StuckWatch: when `weft run` says that its job is stuck, and when that it goes
// on: a pure state machine, fed with the lines that ranks write and with looks
// at their processes.
//
// A cause is said once the waits have lasted kStuckAfter, and again, while it
// lasts, after pauses that become longer. Nothing is ended. A rank that runs
// may only be slow: where waits for such a rank have ended by themselves, the
// next ones are borne for twice as long before they are said.

#ifndef WEFT_LAUNCH_STUCK_STUCK_WATCH_H_
#define WEFT_LAUNCH_STUCK_STUCK_WATCH_H_

#include <sys/types.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/base/clock.h"
#include "weft/launch/stuck/process_look.h"
#include "weft/launch/stuck/stuck.h"

namespace weft::launch {

inline constexpr absl::Duration kStuckAfter = absl::Seconds(4);
inline constexpr absl::Duration kToJoin = absl::Minutes(5);
// How long more it waits for what the launcher of another node says, before it
// says that nothing is known of a rank there.
inline constexpr absl::Duration kToHear = absl::Milliseconds(1500);

// Thread-safety: one thread at a time. Times do not go back.
class StuckWatch {
 public:
  // Start: a process of this node has been started, under a name that no other
  // has now. End: it has ended.
  // `joins_others`: they go on meanwhile, until it takes part (Joined) or
  // kToJoin is over. Until then its waits are its own: that it waits does not
  // show that the job is stuck.
  void Start(const std::string& name, pid_t pid, bool joins_others,
             Instant now);
  void Joined(const std::string& name);
  void End(const std::string& name);

  // The process has written this line.
  void Line(const std::string& name, absl::string_view line, Instant now);
  // What /proc says of the process now. To be called about once a second.
  void Look(const std::string& name, const ProcessLook& look, Instant now);

  struct News {
    std::vector<StuckCause> causes;  // to be said now
    bool is_over = false;            // the job goes on, after it was stuck
    absl::Duration lasted;           // then: since the first cause was said
  };
  // To be called after each line and look. `elsewhere`: what is known of ranks
  // of other nodes; `asks`: their launchers were asked. Said is what keeps
  // ranks of this node from going on, or what one of them keeps from it.
  News Check(Instant now, absl::Span<const RankFacts> elsewhere = {},
             bool asks = false);

  // The ranks that are none of this node and for which its own wait, directly
  // or through others of `elsewhere`.
  std::set<std::string> AwaitedElsewhere(
      absl::Span<const RankFacts> elsewhere) const;

  // What is known now of the ranks of this node; with `elsewhere`, what causes
  // are found in, for StuckText.
  std::vector<RankFacts> Facts(
      Instant now, absl::Span<const RankFacts> elsewhere = {}) const;

 private:
  struct Said {
    RankWait wait;
    Instant at;
  };
  struct Rank {
    pid_t seen_pid = 0;  // its own, or that of its program
    bool is_gone = false;
    Instant joins_until;  // its waits count from then on
    Instant stopped_since = Instant::Infinite();
    char state = '?';
    std::deque<std::pair<Instant, absl::Duration>> cpu;  // of the last seconds
    std::map<std::string, Said> waits;  // by group, message or table
  };
  struct Told {
    Instant next;  // when it may be said again
    absl::Duration pause;
  };
  using Key = std::pair<StuckClass, std::vector<std::string>>;

  void EndWait(Rank& rank, const RankWait& over, bool has_failed);
  // Whether a rank of this node has waited for so long, but for a wait that may
  // last (MayLast).
  bool HasWaited(const std::vector<RankFacts>& facts,
                 absl::Duration time) const;
  // Whether a rank of this node is part of it, or waits for it.
  bool IsOfThisNode(const StuckCause& cause,
                    const std::vector<RankFacts>& facts) const;

  std::map<std::string, Rank> ranks_;
  std::map<Key, Told> told_;
  std::optional<Instant> stuck_since_;  // of what was said and lasts
  bool is_only_busy_ = true;            // all that was said since then
  absl::Duration slow_;  // the longest wait for a busy rank that has ended
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_STUCK_WATCH_H_
