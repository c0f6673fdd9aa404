// What process_group.h says of ranks that call different operations, however
// far one of them is behind, and of operations that one rank refuses.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::collectives::CallOptions;
using ::weft::collectives::ProcessGroup;
using ::weft::collectives::ReduceOp;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

// A broadcast whose value says which one it is.
absl::Status Broadcast(ProcessGroup& group, int root, int number,
                       uint64_t label) {
  const float sent = 1000.0f * static_cast<float>(root) + number;
  const Tensor tensor = Tensor::Full({4}, group.rank() == root ? sent : -1.0);
  CallOptions options;
  options.label = label;
  WEFT_RETURN_IF_ERROR(group.Broadcast(tensor, root, options));
  return tensor.ToVector<float>() == std::vector<float>(4, sent)
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("broadcast ", number));
}

using Call = std::function<absl::Status(ProcessGroup& group, int number)>;

// What the late rank calls in place of a broadcast from rank 0.
struct Difference {
  std::string name;
  Call call;
};
std::vector<Difference> Differences() {
  return {
      {"root of its own",
       [](ProcessGroup& g, int i) { return Broadcast(g, g.rank(), i, i); }},
      {"another root",
       [](ProcessGroup& g, int i) { return Broadcast(g, 1, i, i); }},
      {"another label",
       [](ProcessGroup& g, int i) { return Broadcast(g, 0, i, i + 1); }},
      {"as many bytes of another dtype",
       [](ProcessGroup& g, int i) {
         CallOptions options;
         options.label = i;
         return g.Broadcast(Tensor::Zeros({2}, DType::kF64), 0, options);
       }},
      {"more elements",
       [](ProcessGroup& g, int i) {
         CallOptions options;
         options.label = i;
         return g.Broadcast(Tensor::Zeros({40}), 0, options);
       }},
      {"reduce, which needs nobody here",
       [](ProcessGroup& g, int) { return g.Reduce(Tensor::Zeros({4}), 0); }},
      {"all-reduce",
       [](ProcessGroup& g, int) { return g.AllReduce(Tensor::Zeros({4})); }},
      {"barrier", [](ProcessGroup& g, int) { return g.Barrier(); }},
      {"split", [](ProcessGroup& g, int) { return g.Split(0).status(); }},
      {"scatter", [](ProcessGroup& g,
                     int) { return g.Scatter({}, Tensor::Zeros({4}), 0); }},
  };
}

class Groups : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(All, Groups, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

// How often this file is named as a place of a call.
int CallSites(const absl::Status& status) {
  return static_cast<int>(
             std::vector<std::string>(
                 absl::StrSplit(status.message(), "late_rank_test.cc:"))
                 .size()) -
         1;
}

// The last of `size` ranks comes once the root has called all of `ahead`
// broadcasts, and calls something else in the place of number `at`.
void ExpectDifferenceIsHeard(const Kind& kind, int size, int ahead, int at,
                             const Call& differs) {
  Gate root_is_done;
  std::atomic<int> right{0};
  const auto statuses =
      RunGroups(kind, size, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        const bool is_late = group.rank() == size - 1;
        if (is_late && kind.runs_ahead) root_is_done.Wait();
        absl::Status found;
        for (int i = 0; i < ahead && found.ok(); ++i) {
          found = is_late && i == at ? differs(group, i)
                                     : Broadcast(group, 0, i, i);
          if (is_late && found.ok() && i < at) ++right;
        }
        if (group.rank() == 0 && kind.runs_ahead) {
          EXPECT_THAT(found, IsOk());
          root_is_done.Open();
        }
        WEFT_RETURN_IF_ERROR(found);
        return group.Barrier();
      });
  EXPECT_EQ(right, at);
  for (int r = 0; r < size; ++r) {
    EXPECT_THAT(statuses[r],
                StatusIs(kFailedPrecondition, "different operations"))
        << "rank " << r;
    EXPECT_GE(CallSites(statuses[r]), 2) << "rank " << r << statuses[r];
  }
}

TEST_P(Groups, EachDifferenceOfARankFarBehindIsHeardOnEveryRank) {
  for (const Difference& difference : Differences()) {
    SCOPED_TRACE(difference.name);
    ExpectDifferenceIsHeard(GetParam(), 3, 150, 70, difference.call);
  }
}

TEST_P(Groups, DifferenceIsHeardWhereverItStands) {
  for (const int at : {0, 1, 63, 64, 65, 127, 255, 256, 257, 511, 512, 599}) {
    SCOPED_TRACE(absl::StrCat("at ", at));
    ExpectDifferenceIsHeard(GetParam(), 2, 600, at, Differences()[0].call);
    ExpectDifferenceIsHeard(GetParam(), 3, 600, at, Differences()[2].call);
  }
}

// Two late ranks agree with each other, and not with those that are ahead.
TEST_P(Groups, TwoLateRanksThatAgreeWithEachOtherAreNotOk) {
  Gate root_is_done;
  const auto statuses =
      RunGroups(GetParam(), 4, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        const bool is_late = group.rank() >= 2;
        if (is_late && GetParam().runs_ahead) {
          root_is_done.Wait();
        }
        absl::Status found;
        for (int i = 0; i < 300 && found.ok(); ++i) {
          found = Broadcast(group, is_late && i >= 299 ? 3 : 0, i, i);
        }
        if (group.rank() == 0 && GetParam().runs_ahead) root_is_done.Open();
        WEFT_RETURN_IF_ERROR(found);
        return group.Barrier();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(kFailedPrecondition, "different operations")));
}

// Ranks 0 and 1 need nobody in reductions and gathers of rank 2.
TEST_P(Groups, RootThatComesLateComparesWhatTheOthersSent) {
  const std::vector<Difference> cases = {
      {"max for sum",
       [](ProcessGroup& g, int) {
         return g.Reduce(Tensor::Ones({4}), 2, ReduceOp::kMax);
       }},
      {"root 0",
       [](ProcessGroup& g, int) { return g.Reduce(Tensor::Ones({4}), 0); }},
      {"gather",
       [](ProcessGroup& g, int) {
         return g.Gather(
             Tensor::Ones({4}),
             {Tensor::Zeros({4}), Tensor::Zeros({4}), Tensor::Zeros({4})}, 2);
       }},
  };
  for (const Difference& difference : cases) {
    SCOPED_TRACE(difference.name);
    Gate is_done;
    const auto statuses =
        RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
          WEFT_RETURN_IF_ERROR(group.Barrier());
          const bool is_late = group.rank() == 2;
          if (is_late && GetParam().runs_ahead) is_done.Wait();
          absl::Status found;
          for (int i = 0; i < 200 && found.ok(); ++i) {
            const Tensor sum = Tensor::Ones({4});
            found = is_late && i == 123 ? difference.call(group, i)
                                        : group.Reduce(sum, 2);
            if (found.ok() && is_late && i != 123) {
              EXPECT_EQ(sum.ToVector<float>(), std::vector<float>(4, 3.0f));
            }
          }
          if (group.rank() == 0 && GetParam().runs_ahead) is_done.Open();
          WEFT_RETURN_IF_ERROR(found);
          return group.Barrier();
        });
    EXPECT_THAT(statuses,
                Each(StatusIs(kFailedPrecondition, "different operations")));
  }
}

// "The next operation of each ends in kFailedPrecondition", whatever it is.
TEST_P(Groups, AfterADifferenceEveryOperationFailsWithTheFirstReason) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const absl::Status first = group.rank() == 0
                                       ? group.AllReduce(Tensor::Ones({3}))
                                       : group.Barrier();
        EXPECT_THAT(first, StatusIs(kFailedPrecondition, "Barrier"));
        EXPECT_THAT(group.health(), StatusIs(kFailedPrecondition, "Barrier"));
        const Tensor one = Tensor::Ones({2});
        const int other = 1 - group.rank();
        const std::vector<absl::Status> later = {
            group.AllReduce(one),
            group.AllReduceAsync(one).Wait(absl::Seconds(30)),
            group.Broadcast(one, 0),
            group.Barrier(),
            group.AllGatherBytes("x").status(),
            group.BroadcastBytes("x", 0).status(),
            group.Split(0).status(),
            group.Subgroup({0}).status(),
            group.Send(one, other),
            group.Receive(one, other),
            group.ReceiveAny(one).status(),
            group.Exchange({{collectives::PointToPoint::kSend, one, other}})};
        EXPECT_THAT(later, Each(StatusIs(kFailedPrecondition, "Barrier")));
        return group.Shrink({1, 0});
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Both ranks take themselves for the root, need nobody, and end at once.
TEST_P(Groups, DifferenceInTheLastOperationIsHeardOnBothRanks) {
  for (int round = 0; round < 10; ++round) {
    struct Heard {
      Mutex mu;
      std::string text;
    } heard[2];
    const bool is_one_world = GetParam().name == "local";
    const auto diagnosis = [&](int rank) {
      collectives::DiagnosisOptions options;
      options.report_after = absl::Minutes(1);
      options.report = [&heard, rank](absl::string_view report) {
        MutexLock lock(heard[rank].mu);
        absl::StrAppend(&heard[rank].text, report, "\n");
      };
      return options;
    };
    const std::unique_ptr<World> world = GetParam().make(2, diagnosis);
    Gate first_has_left;
    weft::testing::RunRanks(2, [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
      auto group = ProcessGroup::Create(std::move(backend));
      // In every other round rank 1 begins when rank 0 has left.
      const bool in_turn = GetParam().runs_ahead && round % 2 == 1;
      if (in_turn && rank == 1) first_has_left.Wait();
      const absl::Status status = group->Broadcast(Tensor::Ones({4}), rank);
      if (!status.ok()) {
        MutexLock lock(heard[rank].mu);
        absl::StrAppend(&heard[rank].text, status.ToString(), "\n");
      }
      group.reset();
      if (in_turn && rank == 0) first_has_left.Open();
      return absl::OkStatus();
    });
    const auto has_heard = [&](int rank) {
      MutexLock lock(heard[rank].mu);
      return absl::StrContains(heard[rank].text, "different operations");
    };
    if (is_one_world) {  // Which has one diagnosis.
      EXPECT_TRUE(Becomes([&] { return has_heard(0) || has_heard(1); }));
    } else {
      EXPECT_TRUE(Becomes([&] { return has_heard(0); })) << "round " << round;
      EXPECT_TRUE(Becomes([&] { return has_heard(1); })) << "round " << round;
    }
  }
}

// --- Refusals. ---------------------------------------------------------------

// Rank 0 refuses each third operation, rank 1 each fifth; rank 2 comes when
// rank 0 has called all.
TEST_P(Groups, LateRankHearsExactlyTheRefusalsThatWere) {
  constexpr int kCalls = 400;
  Gate is_done;
  const auto refuses = [](int rank, int i) {
    return (rank == 0 && i % 3 == 0) || (rank == 1 && i % 5 == 1);
  };
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        const int rank = group.rank();
        if (rank == 2 && GetParam().runs_ahead) is_done.Wait();
        for (int i = 0; i < kCalls; ++i) {
          CallOptions options;
          options.label = i;
          const Tensor x = Tensor::Full({4}, rank == 0 ? i : -1);
          // An empty list of tensors at the root, or an undefined tensor.
          const absl::Status found = refuses(rank, i)
                                         ? group.Broadcast({}, 0, options)
                                         : group.Broadcast(x, 0, options);
          if (refuses(rank, i)) {
            EXPECT_EQ(found.code(), absl::StatusCode::kInvalidArgument) << i;
          } else if (refuses(0, i) && refuses(1, i)) {
            EXPECT_THAT(found,
                        StatusIs(absl::StatusCode::kAborted, "refused its"))
                << i;
          } else if (refuses(0, i)) {
            EXPECT_THAT(found,
                        StatusIs(absl::StatusCode::kAborted, "rank 0 refused"))
                << i;
          } else if (refuses(1, i) && !found.ok()) {
            // Where the operation needed that rank.
            EXPECT_THAT(found,
                        StatusIs(absl::StatusCode::kAborted, "rank 1 refused"))
                << i;
          } else {
            EXPECT_THAT(found, IsOk()) << i;
            EXPECT_EQ(x.ToVector<float>(), std::vector<float>(4, i));
          }
        }
        if (rank == 0) is_done.Open();
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A refusal is no excuse for what comes after it.
TEST_P(Groups, DifferenceAfterManyRefusalsIsHeard) {
  constexpr int kRefused = 300;
  Gate is_done;
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        const bool is_late = group.rank() == 2;
        if (is_late && GetParam().runs_ahead) is_done.Wait();
        for (int i = 0; i < kRefused; ++i) {
          const absl::Status found = group.Broadcast(
              group.rank() == 0 ? Tensor() : Tensor::Ones({2}), 0);
          // The slower one of ranks 1 and 2 may find the group broken already.
          if (found.code() == kFailedPrecondition) return found;
          EXPECT_EQ(found.code(), group.rank() == 0
                                      ? absl::StatusCode::kInvalidArgument
                                      : absl::StatusCode::kAborted);
        }
        absl::Status found = Broadcast(group, is_late ? 2 : 0, 7, 0);
        if (group.rank() == 0 && GetParam().runs_ahead) is_done.Open();
        WEFT_RETURN_IF_ERROR(found);
        return group.Barrier();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(kFailedPrecondition, "different operations")));
}

// All ranks refuse the same operation, each with its own reason.
TEST_P(Groups, OperationThatAllRefuseIsEachOnesOwnMistake) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        for (int i = 0; i < 300; ++i) {
          EXPECT_EQ(group.AllReduce(Tensor::Ones({2}), ReduceOp::kXor).code(),
                    absl::StatusCode::kInvalidArgument);
        }
        const Tensor sum = Tensor::Ones({2});
        WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
        EXPECT_EQ(sum.ToVector<float>(), std::vector<float>(2, 3.0f));
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// --- Groups made from it, and the way into one. ------------------------------

TEST_P(Groups, DifferenceInASubgroupLeavesItsParentWhole) {
  const auto statuses =
      RunGroups(GetParam(), 4, [&](ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto half, group.Split(group.rank() % 2));
        if (group.rank() % 2 == 0) {
          for (int i = 0; i < 200; ++i) {
            WEFT_RETURN_IF_ERROR(Broadcast(*half, 0, i, i));
          }
          absl::Status found = half->Broadcast(Tensor::Ones({1}), half->rank());
          if (found.ok()) found = half->Barrier();
          EXPECT_THAT(found,
                      StatusIs(kFailedPrecondition, "different operations"));
        } else {
          WEFT_RETURN_IF_ERROR(half->Barrier());
        }
        const Tensor sum = Tensor::Ones({1});
        WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
        EXPECT_EQ(sum.item<float>(), 4);
        return half->health().ok() == (group.rank() % 2 == 1)
                   ? group.Barrier()
                   : absl::InternalError("health");
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Ranks that have come differ while others are still on their way.
TEST_P(Groups, RanksThatDifferWhileOthersComeLeaveAGroupToShrink) {
  for (int round = 0; round < 8; ++round) {
    const auto statuses =
        RunGroups(GetParam(), 5, [&](ProcessGroup& group) -> absl::Status {
          const int rank = group.rank();
          absl::Status found = group.Broadcast(Tensor::Ones({4}), rank % 2);
          if (found.ok()) found = group.Barrier();
          // Also from a rank that has heard of it first and shrinks already.
          EXPECT_THAT(found,
                      StatusIs(kFailedPrecondition, "different operations"));
          WEFT_RETURN_IF_ERROR(group.Shrink({4, 2, 0, 1, 3}));
          const Tensor sum = Tensor::Full({1}, rank);
          WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
          EXPECT_EQ(sum.item<float>(), 10);
          EXPECT_EQ(group.rank(), (std::vector<int>{2, 3, 1, 4, 0})[rank]);
          EXPECT_THAT(group.health(), IsOk());
          return group.Barrier();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

// The group stays as it is after each refusal.
TEST_P(Groups, ShrinkRefusesListsThatAreNone) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int rank = group.rank();
        const std::vector<std::vector<int>> lists = {
            {}, {1 - rank}, {rank, rank}, {rank, 2}, {rank, -1}, {rank, 1000}};
        for (const std::vector<int>& members : lists) {
          EXPECT_EQ(group.Shrink(members).code(),
                    absl::StatusCode::kInvalidArgument)
              << ::testing::PrintToString(members);
          EXPECT_THAT(group.health(), IsOk());
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// --- What another rank says. -------------------------------------------------

// Rank 0 says that it will send bytes without end, or fewer than none: that is
// an error there, not the end of the process, and the group goes on.
TEST_P(Groups, CountOfBytesThatCannotBeIsAnError) {
  for (const int64_t count :
       {int64_t{-1}, std::numeric_limits<int64_t>::min(),
        std::numeric_limits<int64_t>::max(), int64_t{1} << 60}) {
    SCOPED_TRACE(absl::StrCat(count, " bytes"));
    const auto statuses =
        RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
          const Tensor claim = Tensor::Scalar<int64_t>(count);
          if (group.rank() == 0) {
            // BroadcastBytes and AllGatherBytes do the same.
            WEFT_RETURN_IF_ERROR(group.Broadcast(claim, 0));
            group.Broadcast(Tensor::Zeros({1}, DType::kU8), 0).IgnoreError();
            WEFT_RETURN_IF_ERROR(
                group.AllGather(claim, Tensor::Zeros({3}, DType::kI64)));
            const Tensor byte = Tensor::Zeros({1}, DType::kU8);
            EXPECT_FALSE(group
                             .AllGatherList(byte, {byte.Clone(), byte.Clone(),
                                                   byte.Clone()})
                             .ok());
            return group.Barrier();
          }
          const absl::Status broadcast = weft::CatchToStatus(
              [&] { return group.BroadcastBytes("", 0).status(); });
          EXPECT_THAT(std::string(broadcast.message()),
                      HasSubstr("rank 0 says"));
          const absl::Status gathered = weft::CatchToStatus(
              [&] { return group.AllGatherBytes("mine").status(); });
          EXPECT_THAT(std::string(gathered.message()),
                      HasSubstr("rank 0 says"));
          return group.Barrier();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

}  // namespace
}  // namespace weft::outside
