// RunRanks: runs one function as every rank of a group, in one process.

#ifndef WEFT_TESTS_SUPPORT_RUN_RANKS_H_
#define WEFT_TESTS_SUPPORT_RUN_RANKS_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/catch_to_status.h"

namespace weft::testing {

// Calls `body(rank)` for each rank in [0, size) on a thread of its own and
// returns their statuses in rank order. What a body throws becomes its status.
inline std::vector<absl::Status> RunRanks(
    int size, const std::function<absl::Status(int rank)>& body) {
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = CatchToStatus([&] { return body(rank); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_RUN_RANKS_H_
