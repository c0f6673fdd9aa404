// Stuck: who keeps a job from going on, and how: a pure function of what each
// rank says that it waits for and of what its launcher sees of its process.
//
// A rank that waits is a victim; who it waits for may be one too. So the waits
// are followed to ranks that wait for nobody, or round a circle.

#ifndef WEFT_LAUNCH_STUCK_STUCK_H_
#define WEFT_LAUNCH_STUCK_STUCK_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace weft::launch {

struct AwaitedRank {
  std::string name;  // trainer1; or "rank 1", where no name is known
  // Whether it is in the operation, too, as far as who waits for it knows.
  bool has_called = false;
  // False: it was asked what it does and has said nothing since.
  bool has_answered = true;
  // It was asked, has answered, and waits for nobody: so it runs, also where
  // nothing is seen of its process.
  bool is_known_to_run = false;
};

// What a rank says of an operation that does not end.
struct RankWait {
  enum class Of {
    kGroup,     // a collective operation
    kTransfer,  // a Send or a Receive
    kTable,     // of parameter servers
    kStore,     // for a key of the job's store: for nobody that is known, or
                // for the coordinator
    kBarrier,   // of the coordinator
  };

  std::string operation;  // "AllReduce #12", "Receive of tag 7", "Pull"
  std::string group;      // the same at all its ranks; or table, key, barrier
  absl::Duration waited;
  // How long ago it said so: who was awaited then may have come meanwhile.
  absl::Duration said_ago;
  std::vector<AwaitedRank> awaited;
  Of of = Of::kGroup;
  // The same of those waits that end together: of the Send and the Receive of
  // one message, or of one collective operation. Empty: the group.
  std::string meeting = {};
};

// "AllReduce #12 of group G", "Receive of tag 7 in group G", "Pull on table T",
// "Wait for key K of the store", "Barrier B of the coordinator".
std::string TextOf(const RankWait& wait);

// Whether it is for a key of the store, which any rank may set.
bool IsForAKey(const RankWait& wait);
// Whether who waits so may do it for as long as it likes, where nobody waits
// for it: for a key, or at a barrier, as at that of the end, where servers are
// while trainers train.
bool MayLast(const RankWait& wait);

// Whether it is the name of a server of tables: "ps3".
bool IsServer(absl::string_view name);

struct RankFacts {
  enum class Process {
    kUnknown,  // nothing is seen of it
    kRuns,
    kStopped,  // by a signal or a debugger
    kGone,
  };

  std::string name;
  Process process = Process::kUnknown;
  // Where its process is; empty: on this host.
  std::string host = {};
  // Facts of a process that its launcher sees.
  pid_t pid = 0;
  char state = '?';        // of its main thread, as /proc says
  absl::Duration cpu;      // that it used
  absl::Duration over;     // in the last time of this length
  absl::Duration stopped;  // since when, if it is
  // Whether what it says is heard: who says nothing waits for nobody.
  bool is_heard = false;
  std::vector<RankWait> waits;  // of different groups, messages and tables
};

enum class StuckClass {
  kGone,     // a process has ended
  kStopped,  // one is stopped
  kBusy,     // one runs, and is not in the call; a server: has not done it
  kDifferentCalls,  // each waits for the other, in operations of its own
  kCutLink,         // they run, and do not hear each other
  kStoreKey,        // one waits for a key of the store that nobody sets
  kUnknown,         // facts are missing
};

struct StuckCause {
  StuckClass why = StuckClass::kUnknown;
  // One; of kDifferentCalls and kCutLink at least two; by name.
  std::vector<std::string> ranks;
};

// What was said longer ago does not show that a rank which runs is not in a
// call.
inline constexpr absl::Duration kFresh = absl::Milliseconds(1500);

// Whether `rank` is stopped, and keeps the job from going on as far as is seen
// though nobody waits for it: not a server of tables, for who wants something
// of one waits for it, and with two replicas others serve in its place; and
// nobody where another rank trains on.
bool IsStoppedAndMissed(const RankFacts& rank,
                        absl::Span<const RankFacts> ranks);

// Each cause once: what keeps those from going on that have waited for at least
// `after`, and who has been IsStoppedAndMissed for so long. Empty: nobody waits
// so long.
// Who waits for a key of the store is a cause where others wait for it. Who is
// missing at a barrier of the coordinator is one where others wait for a rank
// that is there.
// A name of which there are no facts is a rank of which nothing is known.
std::vector<StuckCause> FindStuck(absl::Span<const RankFacts> ranks,
                                  absl::Duration after);

// "stopped": one word, for programs.
absl::string_view NameOf(StuckClass why);

// The ranks that wait for a rank of `cause`, directly or through others; by
// name.
std::vector<std::string> VictimsOf(const StuckCause& cause,
                                   absl::Span<const RankFacts> ranks);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_STUCK_H_
