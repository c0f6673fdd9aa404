#include "weft/launch/failure/memory_verdict.h"

#include <signal.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "weft/launch/failure/how_it_ended.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

std::string Bytes(int64_t bytes) {
  constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
  if (bytes >= kGiB) return absl::StrFormat("%.1f GiB", bytes / kGiB);
  return absl::StrFormat("%.0f MiB", bytes / kMiB);
}

bool IsKilled(const RankReport& rank) {
  return SignalOf(rank.exit) == SIGKILL && !rank.was_killed;
}

// The counter of the group where there is one: others of the host are not in
// it.
int64_t KillsBeside(const RankReport& rank) {
  return rank.oom_kills.cgroup >= 0 ? rank.oom_kills.cgroup
                                    : rank.oom_kills.host;
}

}  // namespace

bool IsOomKill(const RankReport& rank, const FailureFacts& facts) {
  if (!IsKilled(rank) || KillsBeside(rank) <= 0) return false;
  int64_t larger = 0;
  for (const RankReport& other : facts.ranks) {
    if (other.look != rank.look || !IsKilled(other)) continue;
    if (std::tie(other.peak_bytes, other.name) >
        std::tie(rank.peak_bytes, rank.name)) {
      ++larger;
    }
  }
  return larger < KillsBeside(rank);
}

bool SaysOutOfMemory(const RankReport& rank) {
  const int signal = SignalOf(rank.exit);
  const bool may_be = signal == SIGABRT ||
                      Is(rank.exit, worker::ExitCode::kResource) ||
                      (signal == 0 && !IsOwnCode(rank.exit));
  if (!may_be) return false;
  const std::string error = absl::AsciiStrToLower(ErrorOf(rank.tail));
  for (const char* words :
       {"std::bad_alloc", "cannot allocate memory", "out of memory"}) {
    if (absl::StrContains(error, words)) return true;
  }
  return false;
}

std::string MemoryOf(const RankReport& rank, const FailureFacts& facts) {
  std::vector<std::string> parts;
  if (rank.peak_bytes > 0) {
    parts.push_back(absl::StrCat(Bytes(rank.peak_bytes), " at most"));
  }
  const int64_t kills = KillsBeside(rank);
  if (IsKilled(rank) && kills >= 0) {
    const std::string whose = rank.oom_kills.cgroup >= 0
                                  ? " of this control group (oom_kill)"
                                  : " of this host";
    parts.push_back(kills == 0
                        ? absl::StrCat("the kernel killed no process", whose,
                                       " for want of memory meanwhile")
                        : absl::StrCat("the kernel killed ", kills, whose,
                                       " for want of memory meanwhile",
                                       IsOomKill(rank, facts)
                                           ? ": most likely this one"
                                           : ""));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace weft::launch
