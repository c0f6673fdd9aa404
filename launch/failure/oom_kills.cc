#include "weft/launch/failure/oom_kills.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft::launch {
namespace {

constexpr char kMount[] = "/sys/fs/cgroup";

std::string TextOf(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::vector<std::string> CounterFiles(absl::string_view groups) {
  std::vector<std::string> first, second;
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    // number:controllers:path; number 0 without controllers is version 2.
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const absl::string_view path = absl::StripSuffix(parts[2], "/");
    if (parts[0] == "0" && parts[1].empty()) {
      second.push_back(absl::StrCat(kMount, path, "/memory.events"));
      continue;
    }
    const std::vector<absl::string_view> controllers =
        absl::StrSplit(parts[1], ',');
    if (!absl::c_linear_search(controllers, "memory")) continue;
    first.push_back(
        absl::StrCat(kMount, "/memory", path, "/memory.oom_control"));
    // The path in a container that sees its own group as the root.
    first.push_back(absl::StrCat(kMount, "/memory/memory.oom_control"));
  }
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

int64_t CounterIn(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") &&
        absl::SimpleAtoi(line, &count) && count >= 0) {
      return count;
    }
  }
  return -1;
}

OomKills ReadOomKills() {
  OomKills kills;
  for (const std::string& path : CounterFiles(TextOf("/proc/self/cgroup"))) {
    kills.cgroup = CounterIn(TextOf(path));
    if (kills.cgroup >= 0) break;
  }
  kills.host = CounterIn(TextOf("/proc/vmstat"));
  return kills;
}

OomKills Between(const OomKills& before, const OomKills& now) {
  const auto between = [](int64_t a, int64_t b) -> int64_t {
    return a < 0 || b < a ? -1 : b - a;
  };
  return {between(before.cgroup, now.cgroup), between(before.host, now.host)};
}

}  // namespace weft::launch
