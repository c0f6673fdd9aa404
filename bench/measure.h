// Measure: the time that has passed, and a core to spend it on.

#ifndef WEFT_BENCH_MEASURE_H_
#define WEFT_BENCH_MEASURE_H_

#include <sched.h>

#include <chrono>

namespace weft::bench {

// In seconds, since some time.
inline double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
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
