// Measure: the time that has passed, a core to spend it on, and quantiles of
// what was measured.

#ifndef WEFT_BENCH_MEASURE_H_
#define WEFT_BENCH_MEASURE_H_

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace weft::bench {

// In seconds, since some time.
inline double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What a share `q` of `values`, from 0 to 1, does not exceed. REQUIRES: there
// are some.
inline double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q *
                                    static_cast<double>(values.size() - 1))];
}

// Keeps the calling thread, and what it starts, on `core`; below 0: nowhere.
inline void Pin(int core) {
  if (core < 0) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

}  // namespace weft::bench

#endif  // WEFT_BENCH_MEASURE_H_
