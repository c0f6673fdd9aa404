#include "weft/tests/outside/coordinator/job_of_ranks.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

// Empty for what has ended.
std::string Proc(pid_t pid, const char* file) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/", file));
  // Its iterators would throw where the process ends while it is read.
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Whether `entry` is one of the words of `text`, each of which a 0 ends.
bool Has(const std::string& text, absl::string_view entry) {
  const std::string zero(1, '\0');
  return absl::StrContains(zero + text, absl::StrCat(zero, entry, zero));
}

// 0: it has ended, reaped or not.
pid_t ParentOf(pid_t pid) {
  const std::string stat = Proc(pid, "stat");
  const size_t end = stat.rfind(')');
  if (end == stat.npos) return 0;
  const std::vector<std::string> words = absl::StrSplit(stat.substr(end), ' ');
  int parent = 0;
  if (words.size() < 3 || words[1] == "Z" ||
      !absl::SimpleAtoi(words[2], &parent)) {
    return 0;
  }
  return parent;
}

std::vector<pid_t> All() {
  std::vector<pid_t> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid)) {
      all.push_back(pid);
    }
  }
  return all;
}

}  // namespace

JobOfRanks::JobOfRanks() { EXPECT_EQ(mkdir(Path("run").c_str(), 0700), 0); }

void JobOfRanks::TearDown() {
  // docs/cli.md: "Each rank leads a process group that ends with it; if `weft
  // run` itself is killed, all groups are."
  EXPECT_TRUE(Becomes([&] { return Running().empty(); }))
      << ::testing::PrintToString(Running());
}

void JobOfRanks::Touch(const std::string& name) const {
  std::ofstream(Path(name)).flush();
}

bool JobOfRanks::IsThere(const std::string& name) const {
  return access(Path(name).c_str(), F_OK) == 0;
}

std::unique_ptr<Process> JobOfRanks::Start(Words words,
                                           Words environment) const {
  for (std::string& word : words) {
    if (word == "weft") word = RunfilePath("launch/weft");
    if (word == "rank") word = RunfilePath("tests/outside/coordinator/rank");
  }
  environment.push_back("XDG_RUNTIME_DIR=" + Path("run"));
  environment.push_back("MARK_OF_THIS_TEST=" + dir_.path());
  auto started = Process::Start({std::move(words), std::move(environment)});
  EXPECT_THAT(started, IsOk());
  return *std::move(started);
}

std::unique_ptr<Process> JobOfRanks::Run(const Words& flags, const Words& words,
                                         const Words& environment) const {
  Words all = {"weft", "run"};
  all.insert(all.end(), flags.begin(), flags.end());
  for (const char* word : {"--nproc-per-node=2", "rank"}) all.push_back(word);
  all.push_back("--dump-dir=" + dir_.path());
  all.insert(all.end(), words.begin(), words.end());
  return Start(std::move(all), environment);
}

JobOfRanks::Ended JobOfRanks::Finish(Process& process) const {
  const absl::Time began = absl::Now();
  const auto code = process.Wait(kLong);
  EXPECT_THAT(code, IsOk()) << process.output();
  return {code.ok() ? *code : -1, process.output(), absl::Now() - began};
}

JobOfRanks::Ended JobOfRanks::Do(Words words, Words environment) const {
  const auto process = Start(std::move(words), std::move(environment));
  return Finish(*process);
}

pid_t JobOfRanks::CoordinatorOf(const Process& launcher, pid_t but) const {
  pid_t found = 0;
  EXPECT_TRUE(Becomes([&] {
    found = CoordinatorNow(launcher, but);
    return found != 0;
  })) << launcher.output();
  return found;
}

pid_t JobOfRanks::CoordinatorNow(const Process& launcher, pid_t but) const {
  pid_t found = 0;
  for (const pid_t pid : All()) {
    if (pid != but && ParentOf(pid) == launcher.pid() &&
        Has(Proc(pid, "cmdline"), "coordinator")) {
      found = pid;
    }
  }
  return found;
}

pid_t JobOfRanks::RankOf(const Process& launcher, int rank) const {
  for (const pid_t pid : All()) {
    if (ParentOf(pid) == launcher.pid() &&
        Has(Proc(pid, "environ"), absl::StrCat("WEFT_RANK=", rank)) &&
        !Has(Proc(pid, "cmdline"), "coordinator")) {
      return pid;
    }
  }
  ADD_FAILURE() << "no rank " << rank << ": " << launcher.output();
  return 0;
}

std::vector<pid_t> JobOfRanks::Running() const {
  std::vector<pid_t> running;
  for (const pid_t pid : All()) {
    if (ParentOf(pid) != 0 &&
        Has(Proc(pid, "environ"), "MARK_OF_THIS_TEST=" + dir_.path())) {
      running.push_back(pid);
    }
  }
  return running;
}

std::vector<std::string> JobOfRanks::Left() const {
  using Walk = std::filesystem::recursive_directory_iterator;
  std::error_code gone;
  for (int walk = 0; walk < 1000; ++walk) {
    // What is removed meanwhile ends a walk, which then begins anew.
    std::vector<std::string> left;
    for (Walk at(Path("run"), gone); !gone && at != Walk();
         at.increment(gone)) {
      left.push_back(at->path());
    }
    if (!gone) return left;
  }
  ADD_FAILURE() << Path("run") << ": " << gone.message();
  return {};
}

}  // namespace weft::testing
