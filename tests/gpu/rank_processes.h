// RankProcesses: the ranks of a test as processes of one machine, which meet in
// a folder, each with a deadline for all that it does.

#ifndef WEFT_TESTS_GPU_RANK_PROCESSES_H_
#define WEFT_TESTS_GPU_RANK_PROCESSES_H_

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/testing/children.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/device/open.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {

// How a rank ends: `status` OK; or, `is_absent`, `status` says what its machine
// lacks.
struct RankEnd {
  absl::Status status;
  bool is_absent = false;
};

// What `status` of OpenDevice or LoadNccl is to a test.
inline RankEnd AbsentOrFailed(const absl::Status& status) {
  return {status, absl::IsUnimplemented(status) || absl::IsUnavailable(status)};
}

// Thread-safety: one thread at a time.
class RankProcesses {
 public:
  // Sends SIGALRM to a rank that takes longer, which ends it.
  static constexpr unsigned kMostSeconds = 45;

  // Runs `body(rank)` in a process for each rank, and expects that all end
  // well; skips the test where one lacks what it needs. REQUIRES: this process
  // has neither used CUDA nor has threads, since it forks.
  void Run(int size, const std::function<RankEnd(int rank)>& body) {
    collectives::Children children(size, [&](int rank) {
      alarm(kMostSeconds);
      RankEnd end;
      const absl::Status thrown = CatchToStatus([&] {
        end = body(rank);
        return absl::OkStatus();
      });
      if (!thrown.ok()) end.status = thrown;
      if (!end.status.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank,
                     end.status.ToString().c_str());
      }
      std::fflush(nullptr);
      if (end.is_absent) return kAbsent;
      return end.status.ok() && !::testing::Test::HasFailure() ? 0 : 1;
    });
    bool is_absent = false;
    for (int rank = 0; rank < size; ++rank) {
      const int code = children.Wait(rank);
      is_absent |= code == kAbsent;
      EXPECT_TRUE(code == 0 || code == kAbsent)
          << "rank " << rank << " ended with " << code
          << (code == 128 + SIGALRM ? ": it took too long" : "");
    }
    if (is_absent) GTEST_SKIP() << "a rank says above what is not there";
  }

  // The host's group of these processes, called in each of them.
  absl::StatusOr<std::unique_ptr<collectives::Backend>> Connect(int rank,
                                                                int size) {
    collectives::HostOptions options;
    options.store = &store_;
    options.rank = rank;
    options.size = size;
    options.directory = sockets_.path();
    options.arena_bytes = 1 << 20;
    return collectives::ConnectHost(options);
  }

  collectives::DirectoryStore& store() { return store_; }

 private:
  static constexpr int kAbsent = 77;

  TempDir sockets_, keys_;
  collectives::DirectoryStore store_{keys_.path()};
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_GPU_RANK_PROCESSES_H_
