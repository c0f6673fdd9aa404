// The conformance suite of process groups: what every backend does.
//
//   INSTANTIATE_TEST_SUITE_P(Local, ProcessGroupConformance,
//                            ::testing::Values(TestBackend{...}));

#ifndef WEFT_COLLECTIVES_TESTING_CONFORMANCE_H_
#define WEFT_COLLECTIVES_TESTING_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/collectives/diagnosis.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::collectives {

// The ranks of one test.
class TestWorld {
 public:
  virtual ~TestWorld() = default;
  // Called once on the thread of each rank.
  virtual absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) = 0;
};

struct TestBackend {
  std::string name;
  std::function<std::unique_ptr<TestWorld>(int size,
                                           const DiagnosisOptions& diagnosis)>
      make_world;
  // Runs `body` as each rank and returns the statuses of all.
  std::function<std::vector<absl::Status>(
      int size, const std::function<absl::Status(int rank)>& body)>
      run_ranks = testing::RunRanks;
  // Whether the bodies of all ranks run in this process: those tests that pace
  // ranks by shared variables are skipped otherwise.
  bool ranks_share_memory = true;
  // Whether the root of a broadcast, and a rank that refuses its part, go on
  // while other ranks have not come: those of 3 ranks that wait for the last
  // one have false.
  bool ranks_run_ahead = false;
  // Whether an average of floating elements is their sum divided by the number
  // of ranks, to the bit; else each is multiplied by 1 / n first.
  bool averages_exactly = true;
  // What its worlds set as max_unasked_bytes.
  static constexpr int64_t kMaxUnaskedBytes = 4 << 20;
  std::vector<int> sizes = {1, 2, 3, 4};

  friend void PrintTo(const TestBackend& backend, std::ostream* out) {
    *out << backend.name;
  }
};

class ProcessGroupConformance : public ::testing::TestWithParam<TestBackend> {
 protected:
  using Body = std::function<absl::Status(ProcessGroup& group)>;

  // Runs `body` on each of `size` ranks of a new group; their statuses.
  std::vector<absl::Status> Run(int size, const Body& body);
  // As Run, for each of the backend's sizes; expects OK of all.
  void RunSizes(const Body& body);

  GroupOptions options_;
  DiagnosisOptions diagnosis_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TESTING_CONFORMANCE_H_
