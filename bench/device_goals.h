// DeviceGoals: the goals of device_bench, that no GPU is needed for.
//
//   V1  what the test of the device in each operation costs those of the CPU:
//       beside the same functions without it
//   V2  pairs of CachingAllocator::Allocate and Free in a second
//   V3  the share of the time of gradients' reductions that backward hides, on
//       simulated devices and links

#ifndef WEFT_BENCH_DEVICE_GOALS_H_
#define WEFT_BENCH_DEVICE_GOALS_H_

#include "weft/bench/goals.h"

namespace weft::bench {

// Measures those that `report` wants.
void AddDeviceGoals(GoalReport& report);

}  // namespace weft::bench

#endif  // WEFT_BENCH_DEVICE_GOALS_H_
