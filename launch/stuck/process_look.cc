#include "weft/launch/stuck/process_look.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft::launch {

std::optional<ProcessLook> ParseProcessStat(absl::string_view text,
                                            int64_t ticks) {
  // pid (name) state ...: the name may have anything in it.
  const size_t name_end = text.rfind(')');
  if (name_end == absl::string_view::npos || ticks <= 0) return std::nullopt;
  const std::vector<absl::string_view> fields = absl::StrSplit(
      text.substr(name_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  // state is the third field of proc(5), utime and stime are 14 and 15.
  constexpr size_t kUser = 14 - 3;
  int64_t user = 0;
  int64_t system = 0;
  if (fields.size() <= kUser + 1 || fields[0].size() != 1 ||
      !absl::SimpleAtoi(fields[kUser], &user) ||
      !absl::SimpleAtoi(fields[kUser + 1], &system) || user < 0 || system < 0) {
    return std::nullopt;
  }
  ProcessLook look;
  look.state = fields[0][0];
  look.cpu = absl::Seconds(static_cast<double>(user) / ticks) +
             absl::Seconds(static_cast<double>(system) / ticks);
  return look;
}

namespace {

// A rank is a shell and its program; more is not looked at.
constexpr size_t kMostChildren = 16;
constexpr int kMostDepth = 3;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<ProcessLook> LookAt(pid_t pid, int depth) {
  std::optional<ProcessLook> look = ParseProcessStat(
      FirstLine(absl::StrCat("/proc/", pid, "/stat")), sysconf(_SC_CLK_TCK));
  if (!look.has_value()) return look;
  look->pid = pid;
  if (look->state != 'S' || depth == kMostDepth) return look;
  const std::string children =
      FirstLine(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  size_t seen = 0;
  for (const absl::string_view word :
       absl::StrSplit(children, ' ', absl::SkipEmpty())) {
    int child = 0;
    if (++seen > kMostChildren || !absl::SimpleAtoi(word, &child)) break;
    const std::optional<ProcessLook> other = LookAt(child, depth + 1);
    if (!other.has_value()) continue;
    look->cpu += other->cpu;
    if (!other->is_stopped()) continue;
    look->pid = other->pid;
    look->state = other->state;
  }
  return look;
}

}  // namespace

std::optional<ProcessLook> LookAt(pid_t pid) { return LookAt(pid, 0); }

}  // namespace weft::launch
