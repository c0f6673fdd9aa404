// What process_group.h says, at the edges: groups of one rank and of 65,
// tensors without elements, arguments that are none, calls after Revoke, and
// groups that go on with others.

#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Body = std::function<absl::Status(ProcessGroup&)>;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<absl::Status> RunGroup(int size, const Body& body) {
  LocalWorld world(size);
  return testing::RunRanks(size, [&](int rank) {
    return body(*ProcessGroup::Create(world.Connect(rank)));
  });
}

Tensor One(double value) { return Tensor::Full({1}, value); }

std::vector<Tensor> Lists(int size, int64_t count) {
  std::vector<Tensor> list;
  for (int r = 0; r < size; ++r) list.push_back(Tensor::Zeros({count}));
  return list;
}

float At(const Tensor& tensor, int64_t i) { return tensor.data<float>()[i]; }

// 0 + 1 + ... + n - 1.
float SumOfRanks(int n) { return static_cast<float>(n * (n - 1) / 2); }

// --- How many ranks. ---------------------------------------------------------

absl::Status ReduceByRank(ProcessGroup& group) {
  const int n = group.size(), rank = group.rank(), root = n - 1;
  const Tensor all = One(rank);
  WEFT_RETURN_IF_ERROR(group.AllReduce(all));
  EXPECT_EQ(At(all, 0), SumOfRanks(n));
  const Tensor input = One(rank), output = One(-1);
  WEFT_RETURN_IF_ERROR(group.AllReduceInto(input, output, ReduceOp::kMax));
  EXPECT_EQ(At(output, 0), static_cast<float>(n - 1));
  EXPECT_EQ(At(input, 0), static_cast<float>(rank));
  const Tensor a = One(rank), b = Tensor::Full({3}, rank);
  WEFT_RETURN_IF_ERROR(group.AllReduceCoalesced({a, b}, ReduceOp::kMin));
  EXPECT_EQ(At(a, 0) + At(b, 2), 0.0f);
  const Tensor reduced = One(rank);
  WEFT_RETURN_IF_ERROR(group.Reduce(reduced, root));
  EXPECT_EQ(At(reduced, 0),
            rank == root ? SumOfRanks(n) : static_cast<float>(rank));
  const Tensor parts = Tensor::Full({n}, rank), part = One(-1);
  WEFT_RETURN_IF_ERROR(group.ReduceScatter(parts, part));
  EXPECT_EQ(At(part, 0), SumOfRanks(n));
  std::vector<Tensor> lists;
  for (int r = 0; r < n; ++r) lists.push_back(Tensor::Full({r % 2}, rank));
  const Tensor own = Tensor::Zeros({rank % 2});
  WEFT_RETURN_IF_ERROR(group.ReduceScatterList(lists, own));
  if (rank % 2 == 1) {
    EXPECT_EQ(At(own, 0), SumOfRanks(n));
  }
  return absl::OkStatus();
}

absl::Status MoveByRank(ProcessGroup& group) {
  const int n = group.size(), rank = group.rank(), root = n / 2;
  const Tensor sent = One(rank);
  WEFT_RETURN_IF_ERROR(group.Broadcast(sent, root));
  EXPECT_EQ(At(sent, 0), static_cast<float>(root));
  const Tensor gathered = Tensor::Zeros({n});
  WEFT_RETURN_IF_ERROR(group.AllGather(One(rank), gathered));
  EXPECT_EQ(At(gathered, n - 1), static_cast<float>(n - 1));
  const std::vector<Tensor> each = Lists(n, 1);
  WEFT_RETURN_IF_ERROR(group.AllGatherList(One(rank), each));
  EXPECT_EQ(At(each[n - 1], 0), static_cast<float>(n - 1));
  const std::vector<Tensor> at_root =
      rank == root ? Lists(n, 1) : std::vector<Tensor>();
  WEFT_RETURN_IF_ERROR(group.Gather(One(rank), at_root, root));
  if (rank == root) {
    EXPECT_EQ(At(at_root[n - 1], 0), static_cast<float>(n - 1));
  }
  std::vector<Tensor> from_root;
  for (int r = 0; rank == root && r < n; ++r) from_root.push_back(One(2 * r));
  const Tensor scattered = One(-1);
  WEFT_RETURN_IF_ERROR(group.Scatter(from_root, scattered, root));
  EXPECT_EQ(At(scattered, 0), static_cast<float>(2 * rank));
  const Tensor to = Tensor::Full({n}, rank), from = Tensor::Zeros({n});
  WEFT_RETURN_IF_ERROR(group.AllToAll(to, from));
  for (int r = 0; r < n; ++r) EXPECT_EQ(At(from, r), static_cast<float>(r));
  std::vector<Tensor> out, in;
  for (int r = 0; r < n; ++r) {
    out.push_back(Tensor::Full({r % 3}, rank));
    in.push_back(Tensor::Zeros({rank % 3}));
  }
  WEFT_RETURN_IF_ERROR(group.AllToAllList(out, in));
  if (rank % 3 > 0) {
    EXPECT_EQ(At(in[n - 1], 0), static_cast<float>(n - 1));
  }
  return group.Barrier();
}

absl::Status BytesByRank(ProcessGroup& group) {
  const int n = group.size(), rank = group.rank();
  WEFT_ASSIGN_OR_RETURN(const auto all,
                        group.AllGatherBytes(std::string(rank % 4, 'x')));
  EXPECT_EQ(all.size(), static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) EXPECT_EQ(all[r], std::string(r % 4, 'x'));
  WEFT_ASSIGN_OR_RETURN(const std::string from_last,
                        group.BroadcastBytes(absl::StrCat("of ", rank), n - 1));
  EXPECT_EQ(from_last, absl::StrCat("of ", n - 1));
  WEFT_ASSIGN_OR_RETURN(const std::string nothing, group.BroadcastBytes("", 0));
  EXPECT_EQ(nothing, std::string());
  return absl::OkStatus();
}

absl::Status GroupsByRank(ProcessGroup& group) {
  const int n = group.size(), rank = group.rank();
  // The other way round.
  WEFT_ASSIGN_OR_RETURN(const auto split, group.Split(7, -rank));
  EXPECT_EQ(split->rank(), n - 1 - rank);
  EXPECT_EQ(split->size(), n);
  const Tensor sum = One(rank);
  WEFT_RETURN_IF_ERROR(split->AllReduce(sum));
  EXPECT_EQ(At(sum, 0), SumOfRanks(n));
  WEFT_ASSIGN_OR_RETURN(const auto first, group.Subgroup({0}));
  EXPECT_EQ(first != nullptr, rank == 0);
  if (first != nullptr) WEFT_RETURN_IF_ERROR(first->Barrier());
  return group.Barrier();
}

class GroupSizes : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(GroupEdges, GroupSizes, ::testing::Values(1, 2, 65));

TEST_P(GroupSizes, ReductionsAreRight) {
  EXPECT_THAT(RunGroup(GetParam(), ReduceByRank), Each(IsOk()));
}

TEST_P(GroupSizes, MovementsAreRight) {
  EXPECT_THAT(RunGroup(GetParam(), MoveByRank), Each(IsOk()));
}

TEST_P(GroupSizes, BytesAreRight) {
  EXPECT_THAT(RunGroup(GetParam(), BytesByRank), Each(IsOk()));
}

TEST_P(GroupSizes, GroupsOfThemAreRight) {
  EXPECT_THAT(RunGroup(GetParam(), GroupsByRank), Each(IsOk()));
}

TEST_P(GroupSizes, AllMayShrinkToThemselves) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const int n = group.size(), rank = group.rank();
    std::vector<int> reversed(n);
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    WEFT_RETURN_IF_ERROR(group.Shrink(reversed));
    EXPECT_EQ(group.rank(), n - 1 - rank);
    return ReduceByRank(group);
  };
  EXPECT_THAT(RunGroup(GetParam(), body), Each(IsOk()));
}

TEST_P(GroupSizes, MessagesGoRoundTheRing) {
  EXPECT_THAT(RunGroup(GetParam(),
                       [](ProcessGroup& group) -> absl::Status {
                         const int n = group.size(), rank = group.rank();
                         if (n == 1) return absl::OkStatus();
                         const Tensor token = One(0);
                         if (rank > 0) {
                           WEFT_RETURN_IF_ERROR(group.Receive(token, rank - 1));
                         }
                         EXPECT_EQ(At(token, 0), static_cast<float>(rank));
                         const Tensor next = One(rank + 1);
                         WEFT_RETURN_IF_ERROR(group.Send(next, (rank + 1) % n));
                         if (rank > 0) return absl::OkStatus();
                         WEFT_ASSIGN_OR_RETURN(const int from,
                                               group.ReceiveAny(token));
                         EXPECT_EQ(from, n - 1);
                         EXPECT_EQ(At(token, 0), static_cast<float>(n));
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

// --- How many elements. ------------------------------------------------------

TEST(NoElements, PassEachOperation) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const int n = group.size(), rank = group.rank();
    const Tensor none = Tensor::Zeros({0}), flat = Tensor::Zeros({0, 5});
    const std::vector<Tensor> lists = Lists(n, 0);
    const std::vector<Tensor> at_root =
        rank == 0 ? lists : std::vector<Tensor>();
    WEFT_RETURN_IF_ERROR(group.AllReduce(flat));
    WEFT_RETURN_IF_ERROR(group.AllReduceInto(none, Tensor::Zeros({0})));
    WEFT_RETURN_IF_ERROR(group.AllReduceCoalesced({}));
    WEFT_RETURN_IF_ERROR(group.AllReduceCoalesced({none, flat}));
    WEFT_RETURN_IF_ERROR(group.Broadcast(none, 1));
    WEFT_RETURN_IF_ERROR(group.Reduce(none, 1));
    WEFT_RETURN_IF_ERROR(group.AllGather(none, Tensor::Zeros({0})));
    WEFT_RETURN_IF_ERROR(group.AllGatherList(none, lists));
    WEFT_RETURN_IF_ERROR(group.Gather(none, at_root, 0));
    WEFT_RETURN_IF_ERROR(group.Scatter(at_root, none, 0));
    WEFT_RETURN_IF_ERROR(group.ReduceScatter(none, Tensor::Zeros({0})));
    WEFT_RETURN_IF_ERROR(group.ReduceScatterList(lists, none));
    WEFT_RETURN_IF_ERROR(group.AllToAll(none, Tensor::Zeros({0})));
    WEFT_RETURN_IF_ERROR(group.AllToAllList(lists, Lists(n, 0)));
    const Future<void> sent = group.SendAsync(none, (rank + 1) % n);
    WEFT_RETURN_IF_ERROR(group.Receive(none, (rank + n - 1) % n));
    WEFT_RETURN_IF_ERROR(sent.Wait(kPatience));
    return group.health();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

// --- Arguments that are none. ------------------------------------------------

TEST(Peers, ThatAreNoneAreNamedAsTheyWereGiven) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const Tensor tensor = One(0);
    for (const int peer : {-2, -1, 2, 1 << 30}) {
      const auto refused = StatusIs(
          kInvalid, absl::StrCat("wants a rank from 0 to 1, found ", peer));
      EXPECT_THAT(group.Send(tensor, peer), refused);
      EXPECT_THAT(group.Receive(tensor, peer), refused);
      PointToPoint part;
      part.kind = PointToPoint::kReceive;
      part.tensor = tensor;
      part.peer = peer;
      EXPECT_THAT(group.Exchange({part}), refused);
    }
    const auto own = StatusIs(kInvalid, "is this rank: copy the tensor");
    EXPECT_THAT(group.Send(tensor, group.rank()), own);
    EXPECT_THAT(group.Receive(tensor, group.rank()), own);
    EXPECT_THAT(group.Send(Tensor(), 1 - group.rank()),
                StatusIs(kInvalid, "undefined"));
    EXPECT_THAT(group.ReceiveAny(Tensor()).status(),
                StatusIs(kInvalid, "undefined"));
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(Roots, ThatAreNoneAreRefusedByEachOperation) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const Tensor tensor = One(0);
    for (const int root : {-1, 3, 1 << 30}) {
      const auto refused = AllOf(
          StatusIs(kInvalid,
                   absl::StrCat("wants a root from 0 to 2, found ", root)),
          StatusIs(kInvalid, absl::StrCat("rank ", group.rank())));
      EXPECT_THAT(group.Broadcast(tensor, root), refused);
      EXPECT_THAT(group.Reduce(tensor, root), refused);
      EXPECT_THAT(group.Gather(tensor, {}, root), refused);
      EXPECT_THAT(group.Scatter({}, tensor, root), refused);
      EXPECT_THAT(group.BroadcastBytes("x", root).status(), refused);
      EXPECT_THAT(group.BroadcastAsync(tensor, root).Wait(kPatience), refused);
    }
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(ListsOfTensors, OfAnotherLengthAreRefusedByEachOperation) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const Tensor tensor = One(0);
    for (const int length : {0, 1, 2, 4}) {
      const std::vector<Tensor> list = Lists(length, 1);
      const std::string found =
          absl::StrCat(" for each of 3 ranks, found ", length);
      const auto refused = StatusIs(kInvalid, found);
      EXPECT_THAT(group.AllGatherList(tensor, list), refused);
      EXPECT_THAT(group.ReduceScatterList(list, tensor), refused);
      EXPECT_THAT(group.AllToAllList(list, Lists(3, 1)), refused);
      EXPECT_THAT(group.AllToAllList(Lists(3, 1), list), refused);
    }
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(ListsOfTensors, OfARootAreForTheRootAlone) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const Tensor tensor = One(0);
    const bool is_root = group.rank() == 0;
    // The root has one tensor too few, so the others hear of that.
    const std::vector<Tensor> list =
        is_root ? Lists(2, 1) : std::vector<Tensor>();
    const absl::Status gathered = group.Gather(tensor, list, 0);
    const absl::Status scattered = group.Scatter(list, tensor, 0);
    for (const absl::Status& status : {gathered, scattered}) {
      if (is_root) {
        EXPECT_THAT(status, StatusIs(kInvalid, "found 2"));
      } else {
        // A rank's part in a Gather needs nobody, so it may succeed.
        EXPECT_TRUE(absl::IsAborted(status) || status.ok()) << status;
      }
    }
    WEFT_RETURN_IF_ERROR(group.Barrier());
    // Another rank has a list.
    const std::vector<Tensor> here = Lists(3, 1);
    const std::vector<Tensor> nowhere;
    const absl::Status wrong =
        group.Scatter(group.rank() == 2 ? nowhere : here, tensor, 0);
    if (group.rank() == 1) {
      EXPECT_THAT(wrong, StatusIs(kInvalid, "at the root, rank 0, only"));
    } else {
      EXPECT_TRUE(wrong.ok() || absl::IsAborted(wrong)) << wrong;
    }
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(CoalescedTensors, ThatDoNotFitTogetherAreRefused) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const Tensor f32 = One(1);
    const Tensor i64 = Tensor::Zeros({1}, DType::kI64);
    EXPECT_THAT(group.AllReduceCoalesced({f32, i64}),
                StatusIs(kInvalid, "one dtype"));
    EXPECT_THAT(group.AllReduceCoalesced({f32, Tensor()}),
                StatusIs(kInvalid, "undefined"));
    EXPECT_THAT(group.AllReduceCoalesced({One(1).Expand({4})}),
                StatusIs(kInvalid, "expanded"));
    EXPECT_THAT(group.AllReduceCoalesced({i64}, {ReduceOp::kSum, 0.5}),
                StatusIs(kInvalid));
    EXPECT_EQ(At(f32, 0), 1);  // nothing was reduced
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

// --- Groups that are broken. -------------------------------------------------

// Each operation that waits for another rank.
std::vector<std::pair<std::string, Body>> AllOperations() {
  return {
      {"AllReduce", [](ProcessGroup& g) { return g.AllReduce(One(1)); }},
      {"AllReduceCoalesced",
       [](ProcessGroup& g) { return g.AllReduceCoalesced({One(1)}); }},
      {"Broadcast", [](ProcessGroup& g) { return g.Broadcast(One(1), 0); }},
      {"Reduce", [](ProcessGroup& g) { return g.Reduce(One(1), 0); }},
      {"AllGather",
       [](ProcessGroup& g) {
         return g.AllGather(One(1), Tensor::Zeros({g.size()}));
       }},
      {"ReduceScatter",
       [](ProcessGroup& g) {
         return g.ReduceScatter(Tensor::Zeros({g.size()}), One(1));
       }},
      {"AllToAll",
       [](ProcessGroup& g) {
         return g.AllToAll(Tensor::Zeros({g.size()}),
                           Tensor::Zeros({g.size()}));
       }},
      {"Barrier", [](ProcessGroup& g) { return g.Barrier(); }},
      {"BarrierAsync",
       [](ProcessGroup& g) { return g.BarrierAsync().Wait(kPatience); }},
      {"AllGatherBytes",
       [](ProcessGroup& g) { return g.AllGatherBytes("x").status(); }},
      {"BroadcastBytes",
       [](ProcessGroup& g) { return g.BroadcastBytes("x", 1).status(); }},
      {"Split", [](ProcessGroup& g) { return g.Split(0).status(); }},
      {"SplitAsync",
       [](ProcessGroup& g) {
         return g.SplitAsync(0).Wait(kPatience).status();
       }},
      {"Subgroup",
       [](ProcessGroup& g) {
         return g.Subgroup({0, 1}).status();
       }},
  };
}

// Calls for groups of two ranks.
std::vector<std::pair<std::string, Body>> AllMessages() {
  return {
      {"Send", [](ProcessGroup& g) { return g.Send(One(1), 1 - g.rank()); }},
      {"Receive",
       [](ProcessGroup& g) { return g.Receive(One(1), 1 - g.rank()); }},
      {"ReceiveAny",
       [](ProcessGroup& g) { return g.ReceiveAny(One(1)).status(); }},
  };
}

TEST(Revoke, EndsWhateverIsCalledAfterItOnEveryRank) {
  // Rank 1 has ended what it called before the group is broken.
  std::atomic<bool> is_behind{false};
  const auto body = [&](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Barrier());
    if (group.rank() == 1) is_behind = true;
    EXPECT_TRUE(Becomes([&] { return is_behind.load(); }));
    if (group.rank() == 0) group.Revoke(absl::AbortedError("enough of it"));
    const auto revoked =
        StatusIs(absl::StatusCode::kCancelled,
                 "group world was revoked by rank 0: enough of it");
    EXPECT_THAT(group.Barrier(), revoked);
    for (const auto& [name, call] : AllOperations()) {
      EXPECT_THAT(call(group), revoked) << name;
    }
    for (const auto& [name, call] : AllMessages()) {
      EXPECT_THAT(call(group), revoked) << name;
    }
    EXPECT_THAT(group.health(), revoked);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(Revoke, WithoutAReasonSaysThatNoneIsGiven) {
  const auto body = [](ProcessGroup& group) {
    group.Revoke(absl::OkStatus());
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(StatusIs(absl::StatusCode::kCancelled,
                                               ": no reason is given")));
}

TEST(Revoke, KeepsTheFirstReasonAndItsPayloads) {
  absl::Status first = absl::UnavailableError("the first");
  first.SetPayload("why", absl::Cord("because"));
  const auto body = [&](ProcessGroup& group) {
    group.Revoke(first);
    group.Revoke(absl::InternalError("the second"));
    return group.Barrier();
  };
  const std::vector<absl::Status> ends = RunGroup(1, body);
  EXPECT_THAT(ends, Each(StatusIs(absl::StatusCode::kCancelled, "the first")));
  EXPECT_EQ(ends[0].GetPayload("why"), absl::Cord("because"));
}

TEST(BrokenGroup, SaysTheFirstReasonToEachLaterOperation) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const absl::Status first = group.rank() == 0
                                   ? group.AllReduce(One(1))
                                   : group.AllReduce(Tensor::Ones({2}));
    const auto broken =
        StatusIs(absl::StatusCode::kFailedPrecondition, "different operations");
    EXPECT_THAT(first, broken);
    for (const auto& [name, call] : AllOperations()) {
      EXPECT_THAT(call(group),
                  AllOf(broken, StatusIs(absl::StatusCode::kFailedPrecondition,
                                         "the group is broken")))
          << name;
    }
    for (const auto& [name, call] : AllMessages()) {
      EXPECT_FALSE(call(group).ok()) << name;
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

// --- Groups that go on with others. ------------------------------------------

TEST(Shrink, MembersMayComeInAnyOrderAndBeTheSame) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const int before = group.rank();
    WEFT_RETURN_IF_ERROR(group.Shrink({2, 0, 1}));
    EXPECT_THAT(group.parent_ranks(), ElementsAre(2, 0, 1));
    EXPECT_EQ(group.rank(), (before + 1) % 3);
    WEFT_RETURN_IF_ERROR(group.Shrink({1, 2, 0}));  // and back
    EXPECT_EQ(group.rank(), before);
    EXPECT_THAT(group.parent_ranks(), ElementsAre(0, 1, 2));
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(Shrink, ToOneGoesOnWithoutTheOthers) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Shrink({group.rank()}));
    EXPECT_EQ(group.size(), 1);
    EXPECT_THAT(group.health(), IsOk());
    const Tensor own = One(3);
    WEFT_RETURN_IF_ERROR(group.AllReduce(own));
    EXPECT_EQ(At(own, 0), 3);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(Shrink, EndsOperationsInFlight) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    // It calls none of what follows.
    if (group.rank() == 2) return absl::OkStatus();
    const Future<void> reduced = group.AllReduceAsync(One(1));
    const Future<void> received = group.ReceiveAsync(One(1), 2);
    WEFT_RETURN_IF_ERROR(group.Shrink({0, 1}));
    for (const Future<void>& operation : {reduced, received}) {
      EXPECT_FALSE(operation.Wait(kPatience).ok());
      EXPECT_TRUE(operation.IsReady());
    }
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(Reconfigure, WithoutABackendIsRefusedAndTheGroupGoesOn) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    EXPECT_THAT(group.Reconfigure(nullptr),
                StatusIs(kInvalid, "the backend is null"));
    return group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(Reconfigure, EndsWhatIsInFlightAndGoesOnWithOtherRanks) {
  LocalWorld next(3);
  const auto body = [&](ProcessGroup& group) -> absl::Status {
    // Nobody else calls it.
    const Future<void> received = group.ReceiveAsync(One(1), 1 - group.rank());
    const int rank = group.rank() == 0 ? 2 : 1;
    WEFT_RETURN_IF_ERROR(group.Reconfigure(next.Connect(rank)));
    EXPECT_THAT(received.Wait(kPatience),
                StatusIs(absl::StatusCode::kCancelled));
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), 3);
    const Tensor sum = One(rank);
    WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
    EXPECT_EQ(At(sum, 0), 3);
    return absl::OkStatus();
  };
  std::thread third([&] {
    const auto group = ProcessGroup::Create(next.Connect(0));
    EXPECT_THAT(group->AllReduce(One(0)), IsOk());
  });
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
  third.join();
}

// --- Other promises. ---------------------------------------------------------

TEST(ProcessGroup, SaysWhatItIs) {
  LocalWorld world(2);
  GroupOptions options;
  options.name = "mine";
  options.timeout = absl::Seconds(7);
  const auto group = ProcessGroup::Create(world.Connect(1), options);
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->size(), 2);
  EXPECT_EQ(group->name(), "mine");
  EXPECT_EQ(group->backend_name(), "local");
  EXPECT_EQ(group->timeout(), absl::Seconds(7));
  EXPECT_THAT(group->health(), IsOk());
}

TEST(ProcessGroup, OperationsOfDroppedFuturesAreDone) {
  const auto body = [](ProcessGroup& group) -> absl::Status {
    const Tensor sum = One(1);
    for (int i = 0; i < 3; ++i) (void)group.AllReduceAsync(sum);
    (void)group.SendAsync(One(5), 1 - group.rank());
    WEFT_RETURN_IF_ERROR(group.Barrier());
    EXPECT_EQ(At(sum, 0), 8);
    const Tensor received = One(0);
    WEFT_RETURN_IF_ERROR(group.Receive(received, 1 - group.rank()));
    EXPECT_EQ(At(received, 0), 5);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(ProcessGroup, CallsOfSeveralThreadsAreWhole) {
  constexpr int kThreads = 4, kEach = 50;
  const auto body = [](ProcessGroup& group) -> absl::Status {
    std::vector<absl::Status> ends(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&group, &end = ends[t]] {
        for (int i = 0; i < kEach && end.ok(); ++i) {
          // All operations are alike, so that any may meet any.
          const Tensor sum = Tensor::Ones({100});
          end = group.AllReduce(sum);
          if (end.ok() && At(sum, 99) != static_cast<float>(group.size())) {
            end = absl::InternalError(absl::StrCat("found ", At(sum, 99)));
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(ends, Each(IsOk()));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(3, body), Each(IsOk()));
}

TEST(ProcessGroup, MessagesOfSeveralThreadsAreMatchedByTheirTags) {
  constexpr uint64_t kTags[] = {0, 1, ~uint64_t{0}, uint64_t{1} << 63};
  const auto body = [&](ProcessGroup& group) -> absl::Status {
    const int other = 1 - group.rank();
    std::vector<absl::Status> ends(std::size(kTags));
    std::vector<std::thread> threads;
    for (size_t t = 0; t < std::size(kTags); ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50 && ends[t].ok(); ++i) {
          const double value = static_cast<double>(t) * 1000 + i;
          const Tensor received = One(-1);
          const Future<void> sent =
              group.SendAsync(One(value), other, kTags[t]);
          ends[t] = group.Receive(received, other, kTags[t]);
          if (ends[t].ok()) ends[t] = sent.Wait(kPatience);
          if (ends[t].ok() && At(received, 0) != value) {
            ends[t] = absl::InternalError(
                absl::StrCat("wanted ", value, ", found ", At(received, 0)));
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(ends, Each(IsOk()));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, body), Each(IsOk()));
}

TEST(IsAvailable, NamesTheBackendsOfThisBinaryForOneThatItLacks) {
  EXPECT_THAT(IsAvailable("local"), IsOk());
  for (const char* backend : {"", "LOCAL", "local ", "ucc"}) {
    EXPECT_THAT(IsAvailable(backend),
                AllOf(StatusIs(absl::StatusCode::kUnimplemented, "local"),
                      StatusIs(absl::StatusCode::kUnimplemented, "host")))
        << backend;
  }
}

}  // namespace
}  // namespace weft::collectives
