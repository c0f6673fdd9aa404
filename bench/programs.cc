#include "weft/bench/programs.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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

Dialogue::Dialogue(const std::vector<std::string>& command) {
  int ends[2];
  WEFT_CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = fork();
  WEFT_CHECK_GE(pid_, 0);
  if (pid_ == 0) {
    dup2(ends[1], STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  socket_ = fdopen(ends[0], "r");
  WEFT_CHECK(socket_ != nullptr);
}

Dialogue::~Dialogue() {
  shutdown(fileno(socket_), SHUT_WR);
  fclose(socket_);
  waitpid(pid_, nullptr, 0);
}

std::optional<std::string> Dialogue::Read() {
  char line[4096];
  if (fgets(line, sizeof line, socket_) == nullptr) return std::nullopt;
  return std::string(absl::StripTrailingAsciiWhitespace(line));
}

std::optional<std::string> Dialogue::Ask(const std::string& line) {
  const std::string text = line + "\n";
  const auto size = static_cast<ssize_t>(text.size());
  if (send(fileno(socket_), text.data(), text.size(), MSG_NOSIGNAL) != size) {
    return std::nullopt;
  }
  return Read();
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
