// RankMark: see the header.

#include "weft/launch/run/rank_mark.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"

namespace weft::launch {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLongest = absl::Seconds(2);
constexpr int kPauseMicroseconds = 2000;

// Empty for a process that has ended or is another user's.
std::string EnvironmentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"), std::ios::binary);
  // Its iterators would throw where the process ends while it is read.
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool HasMark(absl::string_view environment,
             const std::vector<std::string>& marks) {
  const std::string name = absl::StrCat(kRankMark, "=");
  for (absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (!absl::ConsumePrefix(&variable, name)) continue;
    return std::any_of(marks.begin(), marks.end(),
                       [&](const std::string& mark) {
                         return absl::StartsWith(variable, mark);
                       });
  }
  return false;
}

// Whether there was one.
bool KillOnce(const std::vector<std::string>& marks) {
  bool found = false;
  std::error_code error;
  fs::directory_iterator it("/proc", error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(it->path().filename().string(), &pid) ||
        pid == getpid()) {
      continue;
    }
    // First, so that who is killed is whose environment is read.
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0) continue;
    if (HasMark(EnvironmentOf(pid), marks)) {
      found = true;
      syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
    }
    close(fd);
  }
  return found;
}

}  // namespace

std::string DrawLauncherId() {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return absl::StrCat(getpid(), "-", absl::Hex(number));
}

std::string MarkOf(absl::string_view launcher, int restart,
                   absl::string_view rank) {
  // The mark ends in a slash, so that trainer1 is not taken for trainer10.
  return absl::StrCat(launcher, "/", restart, "/", rank, "/");
}

std::string MarkOfAll(absl::string_view launcher) {
  return absl::StrCat(launcher, "/");
}

void KillMarked(const std::vector<std::string>& marks) {
  const Instant deadline = SteadyClock().Now() + kLongest;
  // The next round finds processes that a killed one has started meanwhile.
  while (KillOnce(marks) && SteadyClock().Now() < deadline) {
    usleep(kPauseMicroseconds);
  }
}

}  // namespace weft::launch
