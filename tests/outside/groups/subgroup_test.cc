// What process_group.h and call_options.h say of groups that are made from
// others: their ranks both ways, the Async forms, their time and memory.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/outside/groups/parts.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::collectives::CallOptions;
using ::weft::collectives::ProcessGroup;
using ::weft::collectives::SubgroupOptions;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

constexpr auto kAborted = absl::StatusCode::kAborted;
constexpr auto kCancelled = absl::StatusCode::kCancelled;
constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kResourceExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

constexpr int kLeast = std::numeric_limits<int>::min();
constexpr int kMost = std::numeric_limits<int>::max();

class Subgroups : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(All, Subgroups, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

// --- Ranks both ways. --------------------------------------------------------

// "[size()]: the rank of each in the group from which this one was made";
// "The rank here of rank `parent_rank` there; none: it is no member."
void ExpectInverse(const ProcessGroup& group, int parent_size) {
  const std::vector<int> ranks = group.parent_ranks();
  ASSERT_EQ(static_cast<int>(ranks.size()), group.size());
  for (int p = -3; p < parent_size + 3; ++p) {
    int here = -1;
    for (int r = 0; r < group.size(); ++r) {
      if (ranks[r] == p) here = r;
    }
    const absl::optional<int> found = group.RankOfParent(p);
    EXPECT_EQ(found.has_value(), here >= 0) << p;
    if (found.has_value()) {
      EXPECT_EQ(*found, here);
    }
  }
  EXPECT_FALSE(group.RankOfParent(kLeast).has_value());
  EXPECT_FALSE(group.RankOfParent(kMost).has_value());
}

TEST_P(Subgroups, RankMapsOfSubgroupsOfSubgroupsLeadBackToTheWorld) {
  constexpr int kSize = 6;
  const auto statuses =
      RunGroups(GetParam(), kSize, [&](ProcessGroup& world) -> absl::Status {
        ExpectInverse(world, kSize);
        EXPECT_THAT(world.parent_ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
        std::mt19937 random(7);  // equal on all ranks
        std::vector<Part> nest;
        ProcessGroup* group = &world;
        std::vector<int> in_world = world.parent_ranks();
        for (int depth = 0; group->size() > 1; ++depth) {
          std::vector<int> members(group->size());
          for (size_t i = 0; i < members.size(); ++i) {
            members[i] = static_cast<int>(i);
          }
          std::shuffle(members.begin(), members.end(), random);
          if (depth % 2 == 1) members.pop_back();
          absl::StatusOr<Part> part = absl::InternalError("not made");
          if (depth % 3 == 0) {
            part = group->Subgroup(members, WithArena(0));
          } else if (depth % 3 == 1) {
            part = group->SubgroupAsync(members, WithArena(0)).Wait(kPatience);
          } else {
            int key = -1;
            for (size_t i = 0; i < members.size(); ++i) {
              if (members[i] == group->rank()) key = static_cast<int>(i);
            }
            part = group->SplitAsync(key < 0 ? -1 : 4, key, WithArena(0))
                       .Wait(kPatience);
          }
          WEFT_RETURN_IF_ERROR(part.status());
          if (*part == nullptr) return absl::OkStatus();
          ExpectInverse(**part, group->size());
          EXPECT_EQ((*part)->parent_ranks(), members);
          std::vector<int> next;
          for (const int p : (*part)->parent_ranks()) {
            next.push_back(in_world[p]);
          }
          in_world = next;
          nest.push_back(*std::move(part));
          group = nest.back().get();
          EXPECT_EQ(in_world[group->rank()], world.rank());
          WEFT_ASSIGN_OR_RETURN(
              const std::vector<std::string> said,
              group->AllGatherBytes(absl::StrCat(world.rank())));
          for (int r = 0; r < group->size(); ++r) {
            EXPECT_EQ(said[r], absl::StrCat(in_world[r]));
          }
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "Shrink keeps those of its members."; the ranks of a part are those of its
// parent "as that group was then".
TEST_P(Subgroups, RankMapsAreThoseOfTheTimeOfTheCall) {
  std::atomic<int> made{0}, worked{0};
  const auto statuses =
      RunGroups(GetParam(), 4, [&](ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const Part before, group.Subgroup({3, 1, 2}));
        // Shrink ends what others still do, so it waits for them.
        ++made;
        EXPECT_TRUE(weft::testing::Becomes([&] { return made >= 4; }));
        if (group.rank() == 0) return absl::OkStatus();
        WEFT_RETURN_IF_ERROR(group.Shrink({3, 2, 1}));
        EXPECT_THAT(group.parent_ranks(), ElementsAre(3, 2, 1));
        ExpectInverse(group, 4);
        WEFT_ASSIGN_OR_RETURN(const Part after, group.Subgroup({2, 0, 1}));
        EXPECT_THAT(after->parent_ranks(), ElementsAre(2, 0, 1));
        EXPECT_THAT(before->parent_ranks(), ElementsAre(3, 1, 2));
        WEFT_RETURN_IF_ERROR(Works(*before));
        ++worked;
        EXPECT_TRUE(weft::testing::Becomes([&] { return worked >= 3; }));
        WEFT_RETURN_IF_ERROR(before->Shrink({2, 0, 1}));
        EXPECT_THAT(before->parent_ranks(), ElementsAre(2, 3, 1));
        WEFT_RETURN_IF_ERROR(before->Shrink({1, 0, 2}));
        EXPECT_THAT(before->parent_ranks(), ElementsAre(3, 2, 1));
        ExpectInverse(*before, 4);
        WEFT_RETURN_IF_ERROR(Works(*before));
        return Works(*after);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "ordered by `key`, then by rank. Null where color < 0."
TEST_P(Subgroups, ColorsAndKeysMayBeAnyNumbers) {
  const auto statuses =
      RunGroups(GetParam(), 5, [&](ProcessGroup& group) -> absl::Status {
        constexpr int kColors[] = {kMost, kMost, kMost, 0, kMost};
        constexpr int kKeys[] = {kMost, 0, kLeast, kLeast, kLeast};
        const int r = group.rank();
        WEFT_ASSIGN_OR_RETURN(const Part part,
                              group.Split(kColors[r], kKeys[r]));
        if (r == 3) {
          EXPECT_THAT(part->parent_ranks(), ElementsAre(3));
        } else {
          EXPECT_THAT(part->parent_ranks(), ElementsAre(2, 4, 1, 0));
        }
        WEFT_RETURN_IF_ERROR(Works(*part));
        for (const int none : {-1, kLeast}) {
          WEFT_ASSIGN_OR_RETURN(const Part null,
                                group.SplitAsync(none).Wait(kPatience));
          EXPECT_EQ(null, nullptr);
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// --- The Async forms. --------------------------------------------------------

// "makes the group on the thread of this group's operations, before those that
// are called later"
TEST_P(Subgroups, GroupsAreMadeInTheOrderOfTheCallsAmongOperations) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        std::vector<Future<Part>> parts;
        std::vector<Future<void>> sums;
        std::vector<Tensor> tensors;
        for (int i = 0; i < 12; ++i) {
          parts.push_back(i % 2 == 0
                              ? group.SplitAsync(i, -group.rank(), WithArena(0))
                              : group.SubgroupAsync({2, 0, 1}, WithArena(0)));
          tensors.push_back(Tensor::Full({i + 1}, group.rank()));
          sums.push_back(group.AllReduceAsync(tensors.back()));
        }
        WEFT_RETURN_IF_ERROR(sums.back().Wait(kPatience));
        for (const Future<Part>& part : parts) EXPECT_TRUE(part.IsReady());
        for (int i = 11; i >= 0; --i) {
          WEFT_ASSIGN_OR_RETURN(const Part part,
                                std::move(parts[i]).Wait(kPatience));
          EXPECT_THAT(part->parent_ranks(),
                      i % 2 == 0 ? ElementsAre(2, 1, 0) : ElementsAre(2, 0, 1));
          EXPECT_EQ(tensors[i].ToVector<float>(), std::vector<float>(i + 1, 3));
          WEFT_RETURN_IF_ERROR(Works(*part));
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Whether a rank waits is its own matter: both forms are one operation.
TEST_P(Subgroups, AsyncAndSynchronousFormsMeet) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        for (int i = 0; i < 4; ++i) {
          const bool waits = (group.rank() + i) % 2 == 0;
          auto one =
              waits ? group.Split(0) : group.SplitAsync(0).Wait(kPatience);
          WEFT_RETURN_IF_ERROR(one.status());
          auto other = waits ? group.SubgroupAsync({1, 0, 2}).Wait(kPatience)
                             : group.Subgroup({1, 0, 2});
          WEFT_RETURN_IF_ERROR(other.status());
          WEFT_RETURN_IF_ERROR(Works(**one));
          WEFT_RETURN_IF_ERROR(Works(**other));
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "On a thread under InlineScope ... X() is kFailedPrecondition: call XAsync".
// A group is made, used and dropped there without a wait.
TEST_P(Subgroups, GroupIsMadeAndUsedWithinACallback) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        const Tensor tensor = Tensor::Ones({2});
        absl::Status refused;
        Future<Part> part =
            group.AllReduceAsync(tensor).Then([&]() -> Future<Part> {
              // Where the sum is there already, Then runs it on this thread,
              // which may wait.
              if (InlineScope::IsActive()) refused = group.Split(0).status();
              return group.SplitAsync(0, -group.rank());
            });
        WEFT_ASSIGN_OR_RETURN(const Part made, std::move(part).Wait(kPatience));
        EXPECT_THAT(made->parent_ranks(), ElementsAre(2, 1, 0));
        EXPECT_THAT(refused, AnyOf(StatusIs(kFailedPrecondition), IsOk()));
        return Works(*made);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "Ending a Future early (Future::Cancel) does not withdraw this rank's part."
// The group that nobody takes leaves: others "go on until they wait for this
// rank (kUnavailable)".
TEST_P(Subgroups, PartOfADroppedFutureIsMadeAndLeft) {
  for (const bool cancels : {false, true}) {
    SCOPED_TRACE(cancels ? "cancelled" : "dropped");
    const auto statuses =
        RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
          if (group.rank() == 1) {
            auto future = group.SplitAsync(0);
            if (cancels) future.Cancel();
          } else {
            WEFT_ASSIGN_OR_RETURN(const Part part, group.Split(0));
            EXPECT_EQ(part->size(), 3);
            EXPECT_THAT(Works(*part), StatusIs(kUnavailable, "rank 1"));
          }
          return Works(group);
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST_P(Subgroups, GroupOutlivesTheOneThatItWasMadeFrom) {
  const auto world = GetParam().make(3, Quiet());
  const auto statuses =
      weft::testing::RunRanks(3, [&](int rank) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
        Part group = ProcessGroup::Create(std::move(backend));
        for (int i = 0; i < 4; ++i) {
          WEFT_ASSIGN_OR_RETURN(
              Part part, i % 2 == 0
                             ? group->SubgroupAsync({1, 2, 0}).Wait(kPatience)
                             : group->Split(3, -group->rank()));
          WEFT_RETURN_IF_ERROR(part->Barrier());
          group = std::move(part);  // ends the former
          WEFT_RETURN_IF_ERROR(Works(*group));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "the end of this group waits for that, at most for the call's timeout"; "If
// operations are in flight here, they end in kCancelled on all ranks."
TEST_P(Subgroups, EndOfTheGroupEndsASplitThatNobodyElseCalls) {
  const auto world = GetParam().make(3, Quiet());
  Gate has_left;
  const auto statuses =
      weft::testing::RunRanks(3, [&](int rank) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
        Part group = ProcessGroup::Create(std::move(backend));
        if (rank == 0) {
          Future<Part> part =
              group->SplitAsync(0, 0, Within(absl::Seconds(20)));
          Future<Part> other =
              group->SubgroupAsync({0, 1}, Within(absl::Seconds(20)));
          const absl::Time began = absl::Now();
          group = nullptr;
          EXPECT_LT(absl::Now() - began, absl::Seconds(45));
          has_left.Open();
          EXPECT_TRUE(part.IsReady());
          EXPECT_TRUE(other.IsReady());
          EXPECT_THAT(std::move(part).Wait(kPatience).status(),
                      StatusIs(kCancelled));
          EXPECT_THAT(
              std::move(other).Wait(kPatience).status(),
              AnyOf(StatusIs(kCancelled), StatusIs(kFailedPrecondition)));
          return absl::OkStatus();
        }
        has_left.Wait();
        return group->Barrier();
      });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], StatusIs(kCancelled));
  EXPECT_THAT(statuses[2], StatusIs(kCancelled));
}

// All end the group at once, at any moment of the making of a part: each part
// is there or is not, and nobody hangs or crashes.
TEST_P(Subgroups, EndsOfTheGroupAmidSplitsLeaveGroupsOrErrors) {
  for (int round = 0; round < 12; ++round) {
    const auto world = GetParam().make(3, Quiet());
    std::atomic<int> past{0};
    const auto statuses =
        weft::testing::RunRanks(3, [&](int rank) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
          Part group = ProcessGroup::Create(std::move(backend));
          WEFT_RETURN_IF_ERROR(group->Barrier());
          ++past;
          EXPECT_TRUE(weft::testing::Becomes([&] { return past >= 3; }));
          Future<Part> part = group->SplitAsync(0, 0, WithArena(0));
          if ((round + rank) % 3 == 1) {
            absl::SleepFor(absl::Microseconds(200 * round));
          }
          group = nullptr;
          EXPECT_TRUE(part.IsReady());
          absl::StatusOr<Part> made = std::move(part).Wait(kPatience);
          if (!made.ok()) {
            EXPECT_THAT(made.status(),
                        AnyOf(StatusIs(kCancelled), StatusIs(kUnavailable),
                              StatusIs(kDeadlineExceeded)));
            return absl::OkStatus();
          }
          EXPECT_EQ((*made)->size(), 3);
          EXPECT_THAT(Works(**made),
                      AnyOf(IsOk(), StatusIs(kUnavailable, "rank"),
                            StatusIs(kCancelled)));
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

// --- Time. -------------------------------------------------------------------

// "Where no time is left as it is to begin (a timeout of 0 or less ...), it is
// not begun"; "The last four break the group: on each rank one operation ends
// in that error, and later ones in kFailedPrecondition with the first reason".
TEST_P(Subgroups, SplitWithoutTimeIsNotBegun) {
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), absl::Seconds(-1), -absl::InfiniteDuration()}) {
    for (const bool splits : {true, false}) {
      SCOPED_TRACE(absl::StrCat(absl::FormatDuration(timeout), splits));
      const auto statuses =
          RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
            Future<Part> part =
                splits ? group.SplitAsync(0, 0, Within(timeout))
                       : group.SubgroupAsync({0, 1, 2}, Within(timeout));
            EXPECT_THAT(std::move(part).Wait(kPatience).status(),
                        StatusIs(kDeadlineExceeded));
            EXPECT_THAT(group.health(), ::testing::Not(IsOk()));
            EXPECT_THAT(group.Split(0).status(), StatusIs(kFailedPrecondition));
            WEFT_RETURN_IF_ERROR(group.Shrink({2, 1, 0}));
            WEFT_ASSIGN_OR_RETURN(const Part again,
                                  group.SplitAsync(0).Wait(kPatience));
            return Works(*again);
          });
      EXPECT_THAT(statuses, Each(IsOk()));
    }
  }
}

TEST_P(Subgroups, SplitWithTimeWithoutEndIsMade) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const SubgroupOptions options = Within(absl::InfiniteDuration());
        WEFT_ASSIGN_OR_RETURN(const Part one,
                              group.SplitAsync(0, 0, options).Wait(kPatience));
        WEFT_ASSIGN_OR_RETURN(
            const Part other,
            group.SubgroupAsync({1, 0}, options).Wait(kPatience));
        WEFT_RETURN_IF_ERROR(Works(*one));
        return Works(*other);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "kDeadlineExceeded: `timeout` has passed; the ranks waited for are named."
TEST_P(Subgroups, RankThatDoesNotSplitIsNamed) {
  Gate all_know;
  std::atomic<int> past{0}, know{0};
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        // A rank that is still in the barrier would fail there, and not know.
        ++past;
        EXPECT_TRUE(weft::testing::Becomes([&] { return past >= 3; }));
        if (group.rank() == 1) {
          all_know.Wait();
          return absl::OkStatus();
        }
        const absl::Status found =
            group.SplitAsync(0, 0, Within(absl::Milliseconds(400)))
                .Wait(kPatience)
                .status();
        if (++know == 2) all_know.Open();
        all_know.Wait();
        return found;
      });
  EXPECT_THAT(statuses[0], StatusIs(kDeadlineExceeded, "rank 1"));
  EXPECT_THAT(statuses[2], StatusIs(kDeadlineExceeded, "rank 1"));
}

// --- Memory. -----------------------------------------------------------------

bool HasArena(const Kind& kind) {
  return kind.name != "local" && kind.name != "stream";
}

// "What ProcessGroup::Allocate of the new group may hand out on each rank ...;
// none: as much as in the group that it is made from. 0: nothing."
TEST_P(Subgroups, ArenaIsAsLargeAsWasAsked) {
  const bool has_arena = HasArena(GetParam());
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const auto gives = [&](ProcessGroup& part, int64_t bytes,
                               bool is_given) {
          const auto tensor = part.Allocate({bytes}, DType::kU8);
          if (is_given || !has_arena) {
            EXPECT_THAT(tensor.status(), IsOk()) << bytes;
          } else {
            EXPECT_THAT(tensor.status(), StatusIs(kResourceExhausted)) << bytes;
          }
        };
        for (const int64_t bytes : {int64_t{64} << 10, int64_t{1} << 20,
                                    int64_t{3} << 20, int64_t{4096}}) {
          SCOPED_TRACE(absl::StrCat(bytes));
          WEFT_ASSIGN_OR_RETURN(
              const Part part,
              group.SplitAsync(0, 0, WithArena(bytes)).Wait(kPatience));
          gives(*part, bytes, true);
          gives(*part, bytes + 4096, false);
          WEFT_RETURN_IF_ERROR(Works(*part));
          WEFT_ASSIGN_OR_RETURN(const Part same, part->Subgroup({1, 0}));
          gives(*same, bytes, true);
          gives(*same, bytes + 4096, false);
          WEFT_RETURN_IF_ERROR(Works(*same));
        }
        WEFT_ASSIGN_OR_RETURN(const Part none,
                              group.Subgroup({1, 0}, WithArena(0)));
        gives(*none, 1, false);
        gives(*none, 0, true);
        WEFT_ASSIGN_OR_RETURN(const Tensor empty,
                              none->Allocate({3, 0}, DType::kF64));
        EXPECT_EQ(empty.shape(), Shape({3, 0}));
        EXPECT_EQ(empty.dtype(), DType::kF64);
        WEFT_RETURN_IF_ERROR(none->AllReduce(empty));
        WEFT_RETURN_IF_ERROR(none->AllGather(empty, empty));
        WEFT_RETURN_IF_ERROR(Works(*none));
        WEFT_ASSIGN_OR_RETURN(const Part child, none->Split(0));
        gives(*child, 1, false);
        WEFT_ASSIGN_OR_RETURN(const Part grandchild,
                              child->Split(0, 0, WithArena(1 << 20)));
        gives(*grandchild, 1 << 20, true);
        WEFT_RETURN_IF_ERROR(Works(*grandchild));
        // What the parent has is its own.
        gives(group, 1 << 20, true);
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "kInvalidArgument on all of them if they want arenas of different sizes."
// Those of another color are not concerned, and the group goes on.
TEST_P(Subgroups, DifferentArenasAreRefusedOnAllOfThatColorOnly) {
  const auto statuses =
      RunGroups(GetParam(), 5, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank();
        for (const bool async : {false, true}) {
          SubgroupOptions options;
          if (r == 0) options.arena_bytes = 4096;
          if (r == 1) options.arena_bytes = 8192;
          if (r == 3) options.arena_bytes = 12'288;  // without a color
          const int color = r == 3 ? -1 : r < 2 ? 0 : 1;
          absl::StatusOr<Part> part =
              async ? group.SplitAsync(color, 0, options).Wait(kPatience)
                    : group.Split(color, 0, options);
          if (r < 2) {
            EXPECT_THAT(part.status(), StatusIs(kInvalidArgument));
          } else {
            WEFT_RETURN_IF_ERROR(part.status());
            EXPECT_EQ(*part == nullptr, r == 3);
            if (*part != nullptr) WEFT_RETURN_IF_ERROR(Works(**part));
          }
          WEFT_RETURN_IF_ERROR(Works(group));
        }
        // "none" is not a size: it differs from any, also from what it means.
        absl::StatusOr<Part> part =
            group.Split(0, 0, r == 4 ? SubgroupOptions() : WithArena(0));
        EXPECT_THAT(part.status(), StatusIs(kInvalidArgument));
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// No size ends a process, on any backend; the group goes on ("wrong arguments
// ... The group goes on").
TEST_P(Subgroups, AbsurdArenasAreErrorsOrGroups) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        for (const int64_t bytes :
             {int64_t{-1}, std::numeric_limits<int64_t>::min(),
              std::numeric_limits<int64_t>::max(), int64_t{1} << 62,
              int64_t{1} << 46, int64_t{1}, int64_t{1000}}) {
          SCOPED_TRACE(absl::StrCat(bytes));
          absl::StatusOr<Part> part =
              group.SplitAsync(0, 0, WithArena(bytes)).Wait(kPatience);
          if (bytes < 0) {
            EXPECT_THAT(part.status(), StatusIs(kInvalidArgument));
          }
          if (bytes == 1000 || bytes == 1) {
            EXPECT_THAT(part.status(), IsOk());
          }
          if (part.ok()) {
            EXPECT_THAT(Works(**part), IsOk());
            if (bytes == 1000) {
              EXPECT_THAT((*part)->Allocate({1000}, DType::kU8).status(),
                          IsOk());
            }
          } else {
            EXPECT_THAT(part.status(), AnyOf(StatusIs(kInvalidArgument),
                                             StatusIs(kResourceExhausted)));
          }
          WEFT_RETURN_IF_ERROR(Works(group));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::outside
