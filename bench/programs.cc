#include "weft/bench/programs.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"

namespace weft::bench {

Figures RunProgram(const std::string& command) {
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  Figures figures;
  char line[256];
  while (fgets(line, sizeof line, pipe) != nullptr) {
    const std::vector<std::string> words =
        absl::StrSplit(absl::StripAsciiWhitespace(line), '\t');
    if (words.size() == 2) figures[words[0]] = std::atof(words[1].c_str());
  }
  return pclose(pipe) == 0 ? figures : Figures();
}

Figures RunServerAndClient(
    const std::string& server,
    const std::function<std::string(const std::string& address)>& client) {
  // The shell prints its process number, which becomes the server's.
  FILE* pipe = popen(absl::StrCat("echo $$; exec ", server).c_str(), "r");
  if (pipe == nullptr) return {};
  char pid[64], address[256];
  Figures figures;
  if (fgets(pid, sizeof pid, pipe) != nullptr) {
    if (fgets(address, sizeof address, pipe) != nullptr) {
      figures =
          RunProgram(client(std::string(absl::StripAsciiWhitespace(address))));
    }
    if (std::atoi(pid) > 0) kill(std::atoi(pid), SIGKILL);
  }
  pclose(pipe);
  return figures;
}

std::optional<double> Find(const Figures& figures, const std::string& name) {
  const auto it = figures.find(name);
  if (it == figures.end()) return std::nullopt;
  return it->second;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::optional<double> Median(const std::vector<Figures>& rounds,
                             const std::string& name) {
  std::vector<double> values;
  for (const Figures& figures : rounds) {
    const std::optional<double> value = Find(figures, name);
    if (!value.has_value()) return std::nullopt;
    values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  return Median(std::move(values));
}

ScratchDirectory::ScratchDirectory() {
  char pattern[] = "/tmp/weft-bench-XXXXXX";
  WEFT_CHECK(mkdtemp(pattern) != nullptr);
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;  // a temporary directory that stays harms nobody
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchDirectory::NewPath() {
  return absl::StrCat(path_, "/", ++paths_);
}

}  // namespace weft::bench
