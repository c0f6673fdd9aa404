// PsSides: the two processes that ps_bench measures: parameter servers on one
// core, and a worker on another one that times its calls and prints figures.

#ifndef WEFT_BENCH_PS_SIDES_H_
#define WEFT_BENCH_PS_SIDES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/bench/measure.h"

namespace weft::bench {

inline constexpr int kWorkerCore = 0;
inline constexpr int kServerCore = 1;
inline constexpr int kManyTables = 26;

struct PsOptions {
  std::string self;
  int rounds = 3;
  double seconds = 1;  // of one measurement
  // The main process sets these for those that it starts.
  std::string serve;    // an address to listen at
  std::string call;     // an address to call
  std::string measure;  // "sparse", "dense", "levels", "loop", ...
  int64_t keys = 0;
  int64_t dim = 1;
  int out = 1;  // operations under way
  bool other_keys = false;
  std::string wire = "f32";  // of pushes and pulls: f32, f16, bf16, int8
  int servers = 1;
  int replicas = 1;
  int64_t rows = 0;       // of a table that snapshots are taken of
  std::string directory;  // of its checkpoints
};

// Serves at options.serve, and prints the address, until it is killed.
int ServeTables(const PsOptions& options);
// Measures options.measure with those servers, and prints what RunProgram
// reads.
int CallTables(const PsOptions& options);

std::vector<int64_t> RandomKeys(int64_t n, uint64_t seed);

template <typename Step>
double StepsPerSecond(Step step, double seconds) {
  for (const double end = Now() + seconds / 5; Now() < end;) step();
  int64_t steps = 0;
  const double begin = Now();
  while (Now() < begin + seconds) {
    step();
    ++steps;
  }
  return static_cast<double>(steps) / (Now() - begin);
}

}  // namespace weft::bench

#endif  // WEFT_BENCH_PS_SIDES_H_
