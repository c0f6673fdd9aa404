// ProcessMetrics: see the header.

#include "weft/worker/telemetry/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace weft::worker {
namespace {

namespace fs = std::filesystem;

using telemetry::Counter;
using telemetry::Gauge;
using telemetry::Metrics;

double CpuSeconds() {
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t CountOf(const char* directory) {
  int64_t count = 0;
  std::error_code error;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return count;
}

// Seconds since 1970; field 22 of its stat file (proc(5)), counted from behind
// the name, is in ticks since the boot.
double StartSeconds() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  double up = 0;
  std::ifstream uptime("/proc/uptime");
  if (!(fields >> ticks) || !(uptime >> up)) return 0;
  const double since = up - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - since;
}

class Process {
 public:
  explicit Process(Metrics& metrics)
      : cpu_(metrics.CounterFor(
            "weft_process_cpu_seconds_total", {},
            "CPU time of the process, user and system, in seconds")),
        resident_(metrics.GaugeFor("weft_process_resident_memory_bytes", {},
                                   "Memory of the process that is in RAM")),
        virtual_(metrics.GaugeFor("weft_process_virtual_memory_bytes", {},
                                  "Address space of the process")),
        open_(metrics.GaugeFor("weft_process_open_descriptors", {},
                               "File descriptors that are open")),
        most_(metrics.GaugeFor("weft_process_max_descriptors", {},
                               "File descriptors that may be open")),
        threads_(metrics.GaugeFor("weft_process_running_threads", {},
                                  "Threads of the process")) {
    metrics
        .GaugeFor("weft_process_start_seconds", {},
                  "When the process started, in seconds since 1970")
        .Set(StartSeconds());
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      most_.Set(static_cast<double>(limit.rlim_cur));
    }
  }

  void Refresh() {
    cpu_.Increment(CpuSeconds() - cpu_.Value());
    std::ifstream statm("/proc/self/statm");
    double size = 0;
    double resident = 0;
    if (statm >> size >> resident) {
      const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
      virtual_.Set(size * page);
      resident_.Set(resident * page);
    }
    open_.Set(static_cast<double>(CountOf("/proc/self/fd")));
    threads_.Set(static_cast<double>(CountOf("/proc/self/task")));
  }

 private:
  Counter& cpu_;
  Gauge& resident_;
  Gauge& virtual_;
  Gauge& open_;
  Gauge& most_;
  Gauge& threads_;
};

}  // namespace

std::unique_ptr<Metrics::Refresher> ShowProcess(Metrics& metrics) {
  const auto process = std::make_shared<Process>(metrics);
  return metrics.BeforeReading([process] { process->Refresh(); });
}

}  // namespace weft::worker
