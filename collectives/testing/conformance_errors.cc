// What goes wrong: the part of the conformance suite that is of errors.

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::StatusIs;

TEST_P(ProcessGroupConformance, RefusalOfOneRankIsHeardByAllAndTheGroupGoesOn) {
  const auto statuses = Run(3, [](ProcessGroup& group) -> absl::Status {
    for (int round = 0; round < 3; ++round) {
      const absl::Status found =
          group.AllReduce(Numbers(group.rank(), 10),
                          group.rank() == 1 ? ReduceOp::kXor : ReduceOp::kSum);
      WANT_EQ(found.code(), group.rank() == 1
                                ? absl::StatusCode::kInvalidArgument
                                : absl::StatusCode::kAborted);
      if (group.rank() != 1) {
        WANT_EQ(absl::StrContains(found.message(), "rank 1 refused"), true);
        WANT_EQ(absl::StrContains(found.message(), "found dtype f32"), true);
      }
      const Tensor sum = Tensor::Ones({5});
      WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
      WANT_EQ(sum.ToVector<float>(), std::vector<float>(5, 3.0f));
    }
    return group.health();
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

TEST_P(ProcessGroupConformance, WrongArgumentsAreRefusedOnEachRank) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const auto code = absl::StatusCode::kInvalidArgument;
    const Tensor f32 = Tensor::Zeros({4 * group.size()});
    const Tensor i64 = Tensor::Zeros({4 * group.size()}, DType::kI64);
    WANT_EQ(group.AllReduce(Tensor()).code(), code);
    WANT_EQ(group.AllReduce(f32, ReduceOp::kXor).code(), code);
    WANT_EQ(group.AllReduceInto(f32, i64).code(), code);
    WANT_EQ(group.AllReduceInto(f32.Slice(0, 0, 3), f32.Slice(0, 1, 4)).code(),
            code);
    WANT_EQ(group.AllReduce(Tensor::Zeros({1}).Expand({4})).code(), code);
    WANT_EQ(group.Broadcast(f32, -1).code(), code);
    WANT_EQ(group.AllGather(f32, Tensor::Zeros({1})).code(), code);
    WANT_EQ(group.AllGatherList(f32, {}).code(), code);
    WANT_EQ(group.ReduceScatter(f32, Tensor::Zeros({3})).code(), code);
    WANT_EQ(group.AllToAll(f32, Tensor::Zeros({0})).code(), code);
    return group.Barrier();
  });
}

// Each pair of calls that do not fit: every rank names both sites.
TEST_P(ProcessGroupConformance, DifferentOperationsAreReportedOnAllRanks) {
  const std::vector<std::pair<Body, Body>> cases = {
      {[](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({4})); },
       [](ProcessGroup& g) { return g.Broadcast(Tensor::Zeros({4}), 0); }},
      {[](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({4})); },
       [](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({5})); }},
      {[](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({400'000})); },
       [](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({5})); }},
      {[](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({4})); },
       [](ProcessGroup& g) {
         return g.AllReduce(Tensor::Zeros({2}, DType::kF64));
       }},
      {[](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({4})); },
       [](ProcessGroup& g) {
         return g.AllReduce(Tensor::Zeros({4}), ReduceOp::kMax);
       }},
      {[](ProcessGroup& g) { return g.Broadcast(Tensor::Zeros({4}), 0); },
       [](ProcessGroup& g) { return g.Broadcast(Tensor::Zeros({4}), 1); }},
      {[](ProcessGroup& g) { return g.Barrier(); },
       [](ProcessGroup& g) { return g.AllReduce(Tensor::Zeros({4})); }},
      {[](ProcessGroup& g) {
         CallOptions options;
         options.label = 1;
         return g.AllReduce(Tensor::Zeros({4}), {}, options);
       },
       [](ProcessGroup& g) {
         CallOptions options;
         options.label = 2;
         return g.AllReduce(Tensor::Zeros({4}), {}, options);
       }},
  };
  int number = 0;
  for (const auto& programs : cases) {
    // No structured binding: a lambda may not capture it.
    const auto& one = programs.first;
    const auto& other = programs.second;
    SCOPED_TRACE(absl::StrCat("case ", number++));
    const auto statuses = Run(3, [&](ProcessGroup& group) -> absl::Status {
      WEFT_RETURN_IF_ERROR(group.Barrier());
      // A rank whose part is done before the others' calls are known (a root's)
      // finds out in its next one.
      const absl::Status found = group.rank() == 2 ? other(group) : one(group);
      return found.ok() ? group.Barrier() : found;
    });
    EXPECT_THAT(statuses,
                Each(AllOf(StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "different operations"),
                           StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "rank 2 called"))));
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("conformance_errors.cc:"));
    }
  }
}

// Rank 2 calls something else than the first of many broadcasts, all of which
// the others have called before it comes, where they need not wait for it.
TEST_P(ProcessGroupConformance, LateRankThatDiffersIsReportedOnAllRanks) {
  constexpr int kAhead = 200;
  const auto broadcast = [](ProcessGroup& group, int root, uint64_t label) {
    CallOptions options;
    options.label = label;
    return group.Broadcast(Numbers(group.rank(), 4), root, options);
  };
  const std::vector<std::function<absl::Status(ProcessGroup&, int i)>> cases = {
      [](ProcessGroup& group, int) {
        return group.Reduce(Tensor::Zeros({4}), 0);
      },
      [&](ProcessGroup& group, int i) { return broadcast(group, 2, i); },
      [&](ProcessGroup& group, int i) {
        return broadcast(group, 0, i < 2 ? 1 - i : i);
      }};
  for (size_t number = 0; number < cases.size(); ++number) {
    SCOPED_TRACE(absl::StrCat("case ", number));
    const auto statuses = Run(3, [&](ProcessGroup& group) -> absl::Status {
      WEFT_RETURN_IF_ERROR(group.Barrier());
      const bool is_late = group.rank() == 2;
      const Tensor go = Tensor::Zeros({1});
      if (is_late && GetParam().ranks_run_ahead) {
        WEFT_RETURN_IF_ERROR(group.Receive(go, 0));
      }
      for (int i = 0; i < kAhead; ++i) {
        WEFT_RETURN_IF_ERROR(is_late ? cases[number](group, i)
                                     : broadcast(group, 0, i));
      }
      if (group.rank() == 0 && GetParam().ranks_run_ahead) {
        WEFT_RETURN_IF_ERROR(group.Send(go, 2));
      }
      return group.Barrier();
    });
    EXPECT_THAT(statuses,
                Each(AllOf(StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "different operations"),
                           StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "rank 2 called"))));
  }
}

TEST_P(ProcessGroupConformance, LateRankHearsOfEveryRefusal) {
  constexpr int kAhead = 200;
  const auto statuses = Run(3, [&](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Barrier());
    const Tensor go = Tensor::Zeros({1});
    const bool waits = GetParam().ranks_run_ahead;
    if (group.rank() == 2 && waits) WEFT_RETURN_IF_ERROR(group.Receive(go, 0));
    for (int i = 0; i < kAhead; ++i) {
      const absl::Status found =
          group.AllReduce(Numbers(group.rank(), 4),
                          group.rank() == 0 ? ReduceOp::kXor : ReduceOp::kSum);
      WANT_EQ(found.code(), group.rank() == 0
                                ? absl::StatusCode::kInvalidArgument
                                : absl::StatusCode::kAborted);
    }
    if (group.rank() == 0 && waits) WEFT_RETURN_IF_ERROR(group.Send(go, 2));
    return group.Barrier();
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

// The last rank has another root in mind. Ranks that need nobody may have gone
// on, but no further than a barrier.
TEST_P(ProcessGroupConformance, BarrierFindsADifferenceInARoot) {
  const auto parts = [](ProcessGroup& group, int root) {
    return group.rank() == root
               ? std::vector<Tensor>(group.size(), Tensor::Zeros({4}))
               : std::vector<Tensor>();
  };
  const std::vector<std::function<absl::Status(ProcessGroup&, int root)>>
      cases = {[](ProcessGroup& g, int root) {
                 return g.Broadcast(Tensor::Zeros({4}), root);
               },
               [](ProcessGroup& g, int root) {
                 return g.Reduce(Tensor::Zeros({4}), root);
               },
               [&](ProcessGroup& g, int root) {
                 std::vector<Tensor> outputs;
                 for (const Tensor& part : parts(g, root)) {
                   outputs.push_back(Tensor::ZerosLike(part));
                 }
                 return g.Gather(Tensor::Zeros({4}), outputs, root);
               },
               [&](ProcessGroup& g, int root) {
                 return g.Scatter(parts(g, root), Tensor::Zeros({4}), root);
               }};
  for (size_t number = 0; number < cases.size(); ++number) {
    for (int round = 0; round < 5; ++round) {
      for (const int size : {2, 3}) {
        SCOPED_TRACE(absl::StrCat("case ", number, ", ", size, " ranks"));
        const auto statuses =
            Run(size, [&](ProcessGroup& group) -> absl::Status {
              const int last = group.size() - 1;
              const bool is_last = group.rank() == last;
              // With two ranks, each takes the other for the root, or itself.
              const int root =
                  round % 2 == 0 ? (is_last ? 0 : 1) : (is_last ? last : 0);
              const absl::Status found = cases[number](group, root);
              return found.ok() ? group.Barrier() : found;
            });
        EXPECT_THAT(statuses,
                    Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                  "different operations")));
      }
    }
  }
}

// Each rank takes another for the root, needs nobody, and ends.
TEST_P(ProcessGroupConformance, DifferenceInTheLastOperationIsHeard) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  Mutex mu;
  std::string heard;
  diagnosis_.report = [&](absl::string_view report) {
    MutexLock lock(mu);
    absl::StrAppend(&heard, report, "\n");
  };
  for (const absl::Status& status :
       Run(2, [](ProcessGroup& group) -> absl::Status {
         return group.Gather(Tensor::Zeros({4}), {}, 1 - group.rank());
       })) {
    MutexLock lock(mu);
    absl::StrAppend(&heard, status.ToString(), "\n");
  }
  MutexLock lock(mu);
  EXPECT_THAT(heard, HasSubstr("different operations: rank 0 called Gather"));
}

TEST_P(ProcessGroupConformance, OperationWithoutTimeIsNotBegun) {
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), absl::Seconds(-1)}) {
    std::atomic<int> broken{0};
    options_.on_broken = [&](const absl::Status& why) {
      broken += absl::IsDeadlineExceeded(why);
    };
    RunSizes([&](ProcessGroup& group) -> absl::Status {
      CallOptions options;
      options.timeout = timeout;
      const auto code = absl::StatusCode::kDeadlineExceeded;
      // A rank may hear of another's first.
      WANT_EQ(group.Barrier(options).code(), code);
      WANT_EQ(group.Barrier(options).code(),
              absl::StatusCode::kFailedPrecondition);
      WANT_EQ(group.health().code(), code);
      return absl::OkStatus();
    });
    if (GetParam().ranks_share_memory) {
      int ranks = 0;
      for (const int size : GetParam().sizes) ranks += size;
      EXPECT_EQ(broken, ranks);
    }
  }
}

// A rank that is still on its way into the group has one to leave, too.
TEST_P(ProcessGroupConformance, RevokeWhileOthersComeLeavesAGroupToShrink) {
  for (int round = 0; round < 5; ++round) {
    const auto statuses = Run(3, [](ProcessGroup& group) -> absl::Status {
      if (group.rank() == 0) group.Revoke(absl::CancelledError("too early"));
      WEFT_RETURN_IF_ERROR(group.Shrink({0, 1, 2}));
      const Tensor sum = Tensor::Ones({4});
      WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
      WANT_EQ(sum.ToVector<float>(), std::vector<float>(4, 3.0f));
      return group.Barrier();
    });
    EXPECT_THAT(statuses, Each(testing::IsOk()));
  }
}

TEST_P(ProcessGroupConformance, RankThatDoesNotCallIsNamedAtTheDeadline) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  // Rank 1 stays until both others have failed: one that has left is named
  // otherwise.
  std::atomic<int> passed{0}, failed{0};
  const auto statuses = Run(3, [&](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Barrier());
    // A rank that is still in the barrier would fail there, and not be counted.
    ++passed;
    WANT_EQ(bool(Becomes([&] { return passed == 3; })), true);
    if (group.rank() == 1) {
      WANT_EQ(bool(Becomes([&] { return failed == 2; })), true);
      return absl::OkStatus();
    }
    CallOptions options;
    options.timeout = absl::Milliseconds(200);
    const absl::Status found =
        group.AllReduce(Numbers(group.rank(), 10), {}, options);
    ++failed;
    WANT_EQ(group.Barrier().code(), absl::StatusCode::kFailedPrecondition);
    return found;
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  }
}

TEST_P(ProcessGroupConformance, RankThatLeavesIsNamed) {
  const auto statuses = Run(3, [](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.AllReduce(Numbers(group.rank(), 10)));
    if (group.rank() == 1) return absl::OkStatus();
    return group.AllReduce(Numbers(group.rank(), 10));
  });
  WEFT_EXPECT_OK(statuses[1]);
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 has left"));
  }
}

TEST_P(ProcessGroupConformance, StuckRankIsReportedAndTheOperationGoesOn) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  diagnosis_.report_after = absl::Milliseconds(20);
  Mutex mu;
  std::string reports;
  std::atomic<bool> is_reported{false};
  diagnosis_.report = [&](absl::string_view report) {
    MutexLock lock(mu);
    absl::StrAppend(&reports, report, "\n");
    // On a machine that is busy, the barrier before may be late too.
    if (absl::StrContains(report, "AllReduce")) is_reported = true;
  };
  const auto statuses = Run(2, [&](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Barrier());
    if (group.rank() == 1) {
      WANT_EQ(bool(Becomes([&] { return is_reported.load(); })), true);
    }
    return group.AllReduce(Numbers(group.rank(), 10));
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
  MutexLock lock(mu);
  EXPECT_THAT(reports, HasSubstr("AllReduce #1"));
  EXPECT_THAT(reports, ContainsRegex("rank 1( [^;]*)? has not called it"));
  EXPECT_THAT(reports, HasSubstr("no longer waits, after "));
  EXPECT_THAT(reports, HasSubstr("Barrier #0"));
}

TEST_P(ProcessGroupConformance, ReceiveThatWaitsIsReportedWithPeerAndTag) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  diagnosis_.report_after = absl::Milliseconds(20);
  Mutex mu;
  std::string reports;
  std::atomic<bool> is_reported{false};
  diagnosis_.report = [&](absl::string_view report) {
    MutexLock lock(mu);
    absl::StrAppend(&reports, report, "\n");
    if (absl::StrContains(report, "Receive")) is_reported = true;
  };
  const auto statuses = Run(2, [&](ProcessGroup& group) -> absl::Status {
    // They report nothing.
    if (group.backend_name() == "nccl" ||
        group.backend_name() == "same_device") {
      return absl::OkStatus();
    }
    WEFT_RETURN_IF_ERROR(group.Barrier());
    if (group.rank() == 0) return group.Receive(Numbers(0, 10), 1, 7);
    WANT_EQ(bool(Becomes([&] { return is_reported.load(); })), true);
    return group.Send(Numbers(1, 10), 0, 7);
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
  MutexLock lock(mu);
  if (!is_reported) GTEST_SKIP() << "this backend reports nothing";
  EXPECT_THAT(reports,
              ContainsRegex("Receive at conformance_errors.cc:[0-9]+ of tag 7 "
                            "from rank 1: rank 0 of group [^ ]* still waits "
                            "after [^:]*: rank 1( [^;]*)? has not sent it and "
                            "last called Barrier #0"));
  EXPECT_THAT(reports, ContainsRegex("from rank 1: rank 0 of group [^ ]* no "
                                     "longer waits, after "));
}

TEST_P(ProcessGroupConformance, SynchronousCallInACallbackIsRefused) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    std::vector<Tensor> tensors;
    std::vector<Future<absl::StatusCode>> codes;
    // Each callback's call would wait for the operations behind its own.
    const std::thread::id own = std::this_thread::get_id();
    for (int i = 0; i < 5; ++i) {
      tensors.push_back(Numbers(group.rank(), 300'001));
      codes.push_back(group.AllReduceAsync(tensors.back()).Then([&group, own] {
        // If the operation was complete before Then, the callback runs here.
        if (std::this_thread::get_id() == own) {
          return absl::StatusCode::kFailedPrecondition;
        }
        CallOptions options;
        options.timeout = absl::Seconds(5);
        return group.Barrier(options).code();
      }));
    }
    for (const auto& code : codes) {
      WEFT_ASSIGN_OR_RETURN(const absl::StatusCode found,
                            code.Wait(absl::Seconds(30)));
      WANT_EQ(found, absl::StatusCode::kFailedPrecondition);
    }
    return group.Barrier();
  });
}

TEST_P(ProcessGroupConformance, OperationOnAThreadThatMustNotBlockIsRefused) {
  const auto statuses = Run(1, [](ProcessGroup& group) -> absl::Status {
    InlineScope scope;
    WANT_EQ(group.Barrier().code(), absl::StatusCode::kFailedPrecondition);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

}  // namespace
}  // namespace weft::collectives
