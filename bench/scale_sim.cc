// What joining, meeting, failing and leaving costs a coordinator and its
// members as their number grows: in a simulation with a virtual clock, so that
// it can be 10,000 of them on one machine. Counts of messages and bytes, and
// virtual time, are those of the real cores; the processor time of the
// coordinator's core is of this machine.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "weft/rendezvous/testing/job_phases.h"

namespace weft::bench {
namespace {

using rendezvous::PhaseCosts;
using rendezvous::PhaseOptions;

struct Column {
  const char* name;
  double (*of)(const PhaseCosts&, int workers);
  int digits;
};

double Per(int64_t total, int workers) {
  return static_cast<double>(total) / workers;
}

constexpr Column kColumns[] = {
    {"virtual s",
     [](const PhaseCosts& c, int) { return absl::ToDoubleSeconds(c.time); }, 2},
    {"msg in", [](const PhaseCosts& c, int) { return double(c.in.messages); },
     0},
    {"msg out", [](const PhaseCosts& c, int) { return double(c.out.messages); },
     0},
    {"KB in", [](const PhaseCosts& c, int) { return c.in.bytes / 1e3; }, 1},
    {"KB out", [](const PhaseCosts& c, int) { return c.out.bytes / 1e3; }, 1},
    {"msg/worker",
     [](const PhaseCosts& c, int n) {
       return Per(c.in.messages + c.out.messages, n);
     },
     1},
    {"most", [](const PhaseCosts& c, int) { return double(c.member_messages); },
     0},
    {"B/worker",
     [](const PhaseCosts& c, int n) {
       return Per(c.in.bytes + c.out.bytes, n);
     },
     0},
    {"most B", [](const PhaseCosts& c, int) { return double(c.member_bytes); },
     0},
    {"records", [](const PhaseCosts& c, int) { return double(c.log.messages); },
     0},
    {"log KB", [](const PhaseCosts& c, int) { return c.log.bytes / 1e3; }, 1},
    {"core ms",
     [](const PhaseCosts& c, int) { return absl::ToDoubleMilliseconds(c.cpu); },
     1},
    {"beats/s",
     [](const PhaseCosts& c, int) {
       return c.heartbeats.messages / absl::ToDoubleSeconds(c.time);
     },
     0},
};

void PrintHead(const std::string& phase) {
  std::printf("\n%s\n%9s", phase.c_str(), "workers");
  for (const Column& column : kColumns) std::printf(" %10s", column.name);
  std::printf("\n");
}

void PrintRow(const PhaseCosts& costs, int workers) {
  std::printf("%9d", workers);
  for (const Column& column : kColumns) {
    std::printf(" %10.*f", column.digits, column.of(costs, workers));
  }
  std::printf("\n");
}

void PrintExponents(const PhaseCosts& small, int few, const PhaseCosts& large,
                    int many) {
  std::printf("%9s", "exponent");
  for (const Column& column : kColumns) {
    const double before = column.of(small, few);
    const double after = column.of(large, many);
    if (before <= 0 || after <= 0) {
      std::printf(" %10s", "-");
      continue;
    }
    std::printf(" %10.2f", std::log(after / before) /
                               std::log(static_cast<double>(many) / few));
  }
  std::printf("\n");
}

void Main(PhaseOptions options, const std::vector<int>& sizes) {
  std::vector<std::vector<PhaseCosts>> runs;
  for (const int workers : sizes) {
    options.workers = workers;
    runs.push_back(rendezvous::RunJobPhases(options));
    std::fprintf(stderr, "%d workers simulated\n", workers);
  }
  std::printf("Simulated, seed %llu. An exponent is between two rows.\n",
              static_cast<unsigned long long>(options.seed));
  for (size_t phase = 0; phase < runs.front().size(); ++phase) {
    PrintHead(runs.front()[phase].phase);
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0 && sizes[i - 1] != sizes[i]) {
        PrintExponents(runs[i - 1][phase], sizes[i - 1], runs[i][phase],
                       sizes[i]);
      }
      PrintRow(runs[i][phase], sizes[i]);
    }
  }
}

}  // namespace
}  // namespace weft::bench

// rendezvous::CoordinatorCore::Options::max_names.
constexpr int kMostWorkers = 16384;

int main(int argc, char** argv) {
  weft::rendezvous::PhaseOptions options;
  std::vector<int> sizes = {100, 1000, 10000};
  CLI::App app{"the costs of a job of many workers, simulated"};
  app.add_option("--workers", sizes, "numbers of workers")->delimiter(',');
  app.add_option("--rack", options.rack, "workers that fail together");
  app.add_option("--seed", options.seed, "of the simulation");
  CLI11_PARSE(app, argc, argv);
  for (const int workers : sizes) {
    if (workers > kMostWorkers) {
      std::fprintf(stderr,
                   "scale_sim: %d workers are more than the %d that a "
                   "coordinator takes\n",
                   workers, kMostWorkers);
      return 1;
    }
    if (options.rack > 0 && workers > 2 * int64_t{options.rack}) continue;
    std::fprintf(stderr,
                 "scale_sim: %d workers are not more than two racks of %d\n",
                 workers, options.rack);
    return 1;
  }
  weft::bench::Main(options, sizes);
  return 0;
}
