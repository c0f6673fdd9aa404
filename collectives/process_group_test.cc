#include "weft/collectives/process_group.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Optional;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::vector<absl::Status> RunGroup(
    int size, const std::function<absl::Status(ProcessGroup&)>& body) {
  LocalWorld world(size);
  return testing::RunRanks(size, [&](int rank) {
    return body(*ProcessGroup::Create(world.Connect(rank)));
  });
}

// --- Ranks in the parent. ----------------------------------------------------

TEST(ParentRanks, OfAGroupOfCreateAreItsOwn) {
  EXPECT_THAT(RunGroup(3,
                       [](ProcessGroup& group) {
                         EXPECT_THAT(group.parent_ranks(),
                                     ElementsAre(0, 1, 2));
                         EXPECT_THAT(group.RankOfParent(2), Optional(2));
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

TEST(ParentRanks, OfASubgroupAreInTheOrderOfItsList) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto part, group.Subgroup({3, 0, 2}));
    EXPECT_EQ(part == nullptr, group.rank() == 1);
    if (part == nullptr) return absl::OkStatus();
    EXPECT_THAT(part->parent_ranks(), ElementsAre(3, 0, 2));
    EXPECT_EQ(part->parent_ranks()[part->rank()], group.rank());
    EXPECT_THAT(part->RankOfParent(0), Optional(1));
    EXPECT_THAT(part->RankOfParent(1), Eq(absl::nullopt));
    EXPECT_THAT(part->RankOfParent(-1), Eq(absl::nullopt));
    EXPECT_THAT(part->RankOfParent(4), Eq(absl::nullopt));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(4, body), Each(IsOk()));
}

// A group made from a subgroup has the ranks of that subgroup, not of the first
// group.
TEST(ParentRanks, AreThoseOfTheNearestGroup) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto odd, group.Split(group.rank() % 2));
    WEFT_ASSIGN_OR_RETURN(const auto last, odd->Subgroup({2}));
    EXPECT_EQ(last != nullptr, group.rank() >= 4);
    if (last == nullptr) return absl::OkStatus();
    EXPECT_THAT(last->parent_ranks(), ElementsAre(2));
    EXPECT_EQ(odd->parent_ranks()[2], group.rank());
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(6, body), Each(IsOk()));
}

TEST(ParentRanks, OfMembersAreKeptByShrinkAndNotByReconfigure) {
  LocalWorld next(2);
  const auto body = [&](ProcessGroup& group) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto part, group.Subgroup({4, 3, 1, 0}));
    if (part == nullptr || part->rank() == 1) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(part->Shrink({3, 0, 2}));
    EXPECT_THAT(part->parent_ranks(), ElementsAre(0, 4, 1));
    EXPECT_THAT(part->RankOfParent(3), Eq(absl::nullopt));
    EXPECT_EQ(part->parent_ranks()[part->rank()], group.rank());
    if (part->rank() == 2) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(part->Reconfigure(next.Connect(part->rank())));
    EXPECT_THAT(part->parent_ranks(), ElementsAre(0, 1));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(5, body), Each(IsOk()));
}

TEST(ParentRanks, OfSixtyFiveMembersAreAllKnown) {
  constexpr int kSize = 65;
  const auto body = [](ProcessGroup& group) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto reversed, group.Split(0, -group.rank()));
    for (int r = 0; r < kSize; ++r) {
      EXPECT_EQ(reversed->parent_ranks()[r], kSize - 1 - r);
      EXPECT_THAT(reversed->RankOfParent(r), Optional(kSize - 1 - r));
    }
    return reversed->Barrier();
  };
  EXPECT_THAT(RunGroup(kSize, body), Each(IsOk()));
}

// --- Groups that are made without blocking. ----------------------------------

TEST(SplitAsync, GroupIsMadeWhileTheCallerGoesOn) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    Future<std::unique_ptr<ProcessGroup>> future =
        group.SplitAsync(group.rank() % 2, -group.rank());
    const Tensor ones = Tensor::Ones({8});
    Future<void> reduced = group.AllReduceAsync(ones);
    WEFT_ASSIGN_OR_RETURN(const auto part, std::move(future).Wait(kPatience));
    EXPECT_EQ(part->size(), 2);
    EXPECT_THAT(part->parent_ranks(),
                ElementsAre(group.rank() % 2 + 2, group.rank() % 2));
    const Tensor sum = Tensor::Ones({1});
    WEFT_RETURN_IF_ERROR(part->AllReduce(sum));
    EXPECT_EQ(sum.item<float>(), 2);
    WEFT_RETURN_IF_ERROR(reduced.Wait(kPatience));
    EXPECT_EQ(ones.data<float>()[7], 4);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(4, body), Each(IsOk()));
}

// Many at once, of which each rank is in some.
TEST(SplitAsync, ManyGroupsAreMadeAtOnce) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    std::vector<Future<std::unique_ptr<ProcessGroup>>> futures;
    for (int r = 0; r < group.size(); ++r) {
      futures.push_back(group.SubgroupAsync({r, (r + 1) % group.size()}));
    }
    int member_of = 0;
    for (auto& future : futures) {
      WEFT_ASSIGN_OR_RETURN(const auto pair, std::move(future).Wait(kPatience));
      if (pair == nullptr) continue;
      ++member_of;
      WEFT_RETURN_IF_ERROR(pair->Barrier());
    }
    EXPECT_EQ(member_of, 2);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(SplitAsync, RanksWithoutAColorGetNull) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        const auto part,
        group.SplitAsync(group.rank() == 0 ? 0 : -1).Wait(kPatience));
    EXPECT_EQ(part == nullptr, group.rank() != 0);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(SubgroupAsync, ListThatIsWrongIsRefusedAtOnceAndTheGroupGoesOn) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    for (const std::vector<int>& wrong :
         {std::vector<int>{}, {0, 0}, {-1}, {0, 2}}) {
      auto refused = group.SubgroupAsync(wrong);
      EXPECT_TRUE(refused.IsReady());
      EXPECT_THAT(std::move(refused).Wait(kPatience).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           "wants different ranks from 0 to 1"));
    }
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(SubgroupAsync, RankMayBeAGroupOfItsOwn) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    for (int r = 0; r < group.size(); ++r) {
      WEFT_ASSIGN_OR_RETURN(const auto self,
                            group.SubgroupAsync({r}).Wait(kPatience));
      EXPECT_EQ(self != nullptr, r == group.rank());
      if (self != nullptr) {
        EXPECT_THAT(self->parent_ranks(), ElementsAre(r));
      }
    }
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(SplitAsync, EndsWithTheReasonOfABrokenGroup) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    group.Revoke(absl::CancelledError("enough"));
    return group.SplitAsync(0).Wait(kPatience).status();
  };
  EXPECT_THAT(RunGroup(2, body),
              Each(StatusIs(absl::StatusCode::kCancelled, "was revoked")));
}

TEST(Split, ArenaOfAnotherSizeIsRefusedOnAllRanks) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    SubgroupOptions options;
    if (group.rank() != 0) options.arena_bytes = 1 << 20;
    EXPECT_THAT(group.Split(0, 0, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wants one arena_bytes of all members"));
    options.arena_bytes = -1;
    EXPECT_THAT(group.Split(0, 0, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wants arena_bytes of 0 or more, found -1"));
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

// --- Exchange. ---------------------------------------------------------------

PointToPoint Part(PointToPoint::Kind kind, const Tensor& tensor, int peer,
                  uint64_t tag = 0) {
  PointToPoint part;
  part.kind = kind;
  part.tensor = tensor;
  part.peer = peer;
  part.tag = tag;
  return part;
}

TEST(ExchangeAsync, OfNothingIsDoneAtOnce) {
  LocalWorld world(2);
  const auto group = ProcessGroup::Create(world.Connect(0));
  const Future<void> exchanged = group->ExchangeAsync({});
  ASSERT_TRUE(exchanged.IsReady());
  EXPECT_THAT(exchanged.Wait(kPatience), IsOk());
}

TEST(ExchangeAsync, CallerGoesOnUntilTheOthersCome) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const int next = (group.rank() + 1) % 3, before = (group.rank() + 2) % 3;
    const Tensor mine = Tensor::Full({2}, group.rank());
    const Tensor theirs = Tensor::Zeros({2}), again = Tensor::Zeros({2});
    // Twice to one rank, each with a tag of its own, the later one first.
    const Future<void> exchanged =
        group.ExchangeAsync({Part(PointToPoint::kReceive, again, before, 9),
                             Part(PointToPoint::kReceive, theirs, before),
                             Part(PointToPoint::kSend, mine, next),
                             Part(PointToPoint::kSend, mine, next, 9)});
    WEFT_RETURN_IF_ERROR(group.Barrier());  // it needs this thread for nothing
    WEFT_RETURN_IF_ERROR(exchanged.Wait(kPatience));
    EXPECT_EQ(theirs.ToVector<float>(), std::vector<float>(2, before));
    EXPECT_EQ(again.ToVector<float>(), std::vector<float>(2, before));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(ExchangeAsync, FirstErrorIsItsResult) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const int other = 1 - group.rank();
    const Tensor tensor = Tensor::Zeros({1});
    const absl::Status refused =
        group
            .ExchangeAsync({Part(PointToPoint::kSend, tensor, other),
                            Part(PointToPoint::kSend, tensor, group.rank())})
            .Wait(kPatience);
    EXPECT_THAT(refused,
                StatusIs(absl::StatusCode::kInvalidArgument, "is this rank"));
    return group.Receive(tensor, other);  // the other part went on
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

}  // namespace
}  // namespace weft::collectives
