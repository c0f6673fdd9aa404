#include "weft/tests/chaos/chaos_job.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

// `weft run` does not restart a process that ends within 2 s of its start three
// times in a row. So a fault waits until its victim is older than that.
constexpr absl::Duration kMinLifetime = absl::Milliseconds(2500);
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

uint64_t NumberOf(const char* variable, uint64_t default_value) {
  const char* const value = getenv(variable);
  uint64_t number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number
                                                              : default_value;
}

// A different seed on each call, so that --gtest_repeat tries other faults.
uint64_t NextSeed() {
  static uint64_t seed = NumberOf("WEFT_CHAOS_SEED", 1);
  return seed++;
}

}  // namespace

FaultTimes FaultTimes::Draw(sim::Random& random) {
  FaultTimes times;
  times.pause = random.Between(absl::Milliseconds(50), absl::Milliseconds(600));
  times.part = static_cast<double>(random.Below(1001)) / 1000;
  if (random.Chance(0.3)) times.part *= times.part * times.part;
  return times;
}

std::vector<int> DrawKinds(int kinds, int count, sim::Random& random) {
  std::vector<int> drawn;
  std::vector<int> remaining;
  while (static_cast<int>(drawn.size()) < count) {
    if (remaining.empty()) {
      remaining.resize(kinds);
      std::iota(remaining.begin(), remaining.end(), 0);
    }
    const auto at = remaining.begin() + random.Below(remaining.size());
    drawn.push_back(*at);
    remaining.erase(at);
  }
  return drawn;
}

ChaosJob::ChaosJob(int faults)
    : seed_(NextSeed()),
      faults_(static_cast<int>(NumberOf("WEFT_CHAOS_FAULTS", faults))) {}

void ChaosJob::TearDown() {
  if (!HasFailure()) return;
  std::cerr << "WEFT_CHAOS_SEED=" << seed_ << " WEFT_CHAOS_FAULTS=" << faults_
            << "\n"
            << absl::StrJoin(events_, "\n") << "\n";
  for (const auto& [name, process] : processes_) {
    std::cerr << "--- " << name << "\n" << process->output() << "\n";
  }
}

Process& ChaosJob::Start(const std::string& name, const std::string& directory,
                         Flags argv, std::vector<std::string> env) {
  std::filesystem::create_directory(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  Command command;
  command.env = std::move(env);
  command.env.push_back("XDG_RUNTIME_DIR=" + directory);
  command.env.push_back("OMP_NUM_THREADS=1");
  command.argv = std::move(argv);
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  processes_.emplace_back(name, *std::move(process));
  return *processes_.back().second;
}

std::vector<std::string> ChaosJob::Outputs() const {
  std::vector<std::string> outputs;
  for (const auto& [name, process] : processes_) {
    outputs.push_back(process->output());
  }
  return outputs;
}

void ChaosJob::Note(absl::string_view what) {
  events_.push_back(absl::StrFormat(
      "%s (%7.3f s) %s",
      absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()),
      absl::ToDoubleSeconds(SteadyClock().Now() - begin_), what));
}

bool ChaosJob::Awaits(absl::string_view what,
                      absl::FunctionRef<bool()> is_running,
                      absl::FunctionRef<bool()> condition) {
  const Instant deadline = SteadyClock().Now() + kLong;
  while (!condition()) {
    const bool runs = is_running();
    if (!runs || SteadyClock().Now() > deadline) {
      Note(absl::StrCat(runs ? "timed out" : "a weft run ended",
                        " waiting for ", what));
      return false;
    }
    absl::SleepFor(kPollInterval);
  }
  return true;
}

void ChaosJob::See(const Process& run, const std::string& role, int rank) {
  Seen& seen = seen_[absl::StrCat(role, rank)];
  const pid_t pid = FindWorker(run, role, rank);
  if (pid == seen.pid) return;
  seen = {pid, SteadyClock().Now(), run.output().size()};
}

std::vector<pid_t> ChaosJob::OldEnough(const std::vector<std::string>& names) {
  std::vector<pid_t> found;
  for (const std::string& name : names) {
    const Seen& seen = seen_[name];
    if (seen.pid <= 0 || SteadyClock().Now() - seen.since < kMinLifetime) {
      return {};
    }
    found.push_back(seen.pid);
  }
  return found;
}

}  // namespace weft::testing
