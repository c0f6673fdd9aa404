#include "weft/launch/failure/how_it_ended.h"

#include <signal.h>

#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

namespace weft::launch {
namespace {

using How = RankEnd::How;
using worker::ExitCode;

// Whether it is a signal by which the launcher asks a rank to end.
bool IsOfAnEnd(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
         signal == SIGQUIT;
}

// Whether the output has an error line as ExitIfError writes it.
bool HasError(const RankReport& rank) {
  return absl::c_any_of(rank.tail, [](const std::string& line) {
    return absl::StartsWith(line, "error: ");
  });
}

How HowBySignal(const RankReport& rank, int signal) {
  if (IsOfAnEnd(signal)) return rank.was_asked ? How::kWell : How::kCrashed;
  // SIGKILL may also come from the exit code of a shell whose program was
  // killed.
  if (signal == SIGKILL) return How::kCrashed;
  // A rank may fail while it ends as asked.
  if (rank.was_asked) return How::kFailedLate;
  // A library may abort, and a write may fail, since a peer is gone.
  return signal == SIGABRT || signal == SIGPIPE ? How::kUnclear : How::kCrashed;
}

}  // namespace

int SignalOf(const Exit& exit) {
  if (exit.signal != 0) return exit.signal;
  return exit.code > 128 && exit.code < 128 + 65 ? exit.code - 128 : 0;
}

bool Is(const Exit& exit, ExitCode code) {
  return exit.signal == 0 && exit.code == static_cast<int>(code);
}

bool IsRefusal(const Exit& exit) {
  return Is(exit, ExitCode::kUsage) || Is(exit, ExitCode::kConfig) ||
         Is(exit, ExitCode::kBadCheckpoint);
}

bool IsOwnCode(const Exit& exit) {
  return IsRefusal(exit) || Is(exit, ExitCode::kAuth) ||
         Is(exit, ExitCode::kResource) || Is(exit, ExitCode::kDiverged);
}

RankEnd::How HowOf(const RankReport& rank) {
  if (rank.was_stopped) return How::kStopped;
  if (rank.was_killed) return How::kHung;
  if (!rank.exit.is_failure()) return How::kWell;
  if (HasLostPeer(rank.exit)) return How::kLostPeer;
  if (const int signal = SignalOf(rank.exit)) return HowBySignal(rank, signal);
  if (rank.was_asked) return HasError(rank) ? How::kFailedLate : How::kWell;
  return IsOwnCode(rank.exit) ? How::kFailed : How::kUnclear;
}

bool HasLostPeer(const Exit& exit) {
  return Is(exit, ExitCode::kPeerLost) || Is(exit, ExitCode::kTimeout);
}

std::string ErrorOf(const std::vector<std::string>& tail) {
  for (size_t i = tail.size(); i-- > 0;) {
    if (!absl::StrContains(tail[i], "error: ")) continue;
    return absl::StrJoin(tail.begin() + i, tail.end(), "\n");
  }
  return tail.empty() ? "" : tail.back();
}

}  // namespace weft::launch
