// What process_group.h says of Exchange and ExchangeAsync: parts in any order
// on any rank, one error as its result, the others going on, and no order with
// collective operations.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
using ::testing::HasSubstr;
using ::weft::collectives::CallOptions;
using ::weft::collectives::PointToPoint;
using ::weft::collectives::ProcessGroup;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

constexpr auto kCancelled = absl::StatusCode::kCancelled;
constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

PointToPoint To(int peer, Tensor tensor, uint64_t tag = 0) {
  return {PointToPoint::kSend, std::move(tensor), peer, tag};
}
PointToPoint From(int peer, Tensor tensor, uint64_t tag = 0) {
  return {PointToPoint::kReceive, std::move(tensor), peer, tag};
}
CallOptions In(absl::Duration timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

class Exchanges : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(All, Exchanges, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

// "All parts at once, in any order on any rank."
TEST_P(Exchanges, HundredPartsInAnotherOrderOnEachRank) {
  constexpr int kSize = 3, kTags = 25;
  const auto statuses =
      RunGroups(GetParam(), kSize, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank();
        for (int round = 0; round < 5; ++round) {
          std::vector<PointToPoint> parts;
          const auto value = [&](int from, int to, int tag) {
            return 10'000.0 * from + 1000.0 * to + tag + 0.25 * round;
          };
          std::vector<std::pair<Tensor, double>> wanted;
          for (int peer = 0; peer < kSize; ++peer) {
            if (peer == r) continue;
            for (int tag = 0; tag < kTags; ++tag) {
              const int64_t n = (tag * 7 + round) % 40;
              parts.push_back(To(peer, Tensor::Full({n}, value(r, peer, tag)),
                                 ~uint64_t{0} - tag));
              const Tensor in = Tensor::Full({n}, -1);
              parts.push_back(From(peer, in, ~uint64_t{0} - tag));
              wanted.emplace_back(in, value(peer, r, tag));
            }
          }
          std::mt19937 random(100 * round + r);
          std::shuffle(parts.begin(), parts.end(), random);
          if (round % 2 == 0) {
            WEFT_RETURN_IF_ERROR(group.ExchangeAsync(parts).Wait(kPatience));
          } else {
            WEFT_RETURN_IF_ERROR(group.Exchange(parts));
          }
          for (const auto& [tensor, all] : wanted) {
            EXPECT_EQ(
                tensor.ToVector<float>(),
                std::vector<float>(tensor.numel(), static_cast<float>(all)));
          }
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// `each`: elements of a part.
void ExchangeInOppositeOrders(const Kind& kind, int64_t each) {
  constexpr int kTags = 100;
  const auto statuses =
      RunGroups(kind, 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank();
        std::vector<PointToPoint> parts;
        std::vector<Tensor> in(kTags);
        for (int i = 0; i < kTags; ++i) {
          const int sent = r == 0 ? i : kTags - 1 - i;
          parts.push_back(To(1 - r, Tensor::Full({each}, sent), sent));
          in[sent] = Tensor::Zeros({each});
          parts.push_back(From(1 - r, in[sent], sent));
        }
        WEFT_RETURN_IF_ERROR(group.ExchangeAsync(parts).Wait(kPatience));
        for (int tag = 0; tag < kTags; ++tag) {
          EXPECT_EQ(in[tag].data<float>()[0], tag);
          EXPECT_EQ(in[tag].data<float>()[each - 1], tag);
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(Exchanges, PartsInOppositeOrdersDoNotWaitForEachOther) {
  ExchangeInOppositeOrders(GetParam(), 2000);
}

// The bytes in each direction are six times the limit for messages that nobody
// asks for; but here all are asked for.
TEST_P(Exchanges, LargePartsInOppositeOrdersDoNotWaitForEachOther) {
  ExchangeInOppositeOrders(GetParam(), 16 << 10);
}

// The same, where all of one rank's parts have come before the other asks for
// them, by two Exchanges: the first has no part in what fills the room.
TEST_P(Exchanges, PartsThatFillTheRoomAreTakenByWhoAsksForThem) {
  constexpr int kTags = 40;
  constexpr int64_t kEach = 16 << 10;  // 40 are more than twice what is kept
  Gate is_sent;
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        if (group.rank() == 0) {
          std::vector<PointToPoint> parts;
          for (int tag = kTags - 1; tag >= 0; --tag) {
            parts.push_back(To(1, Tensor::Full({kEach}, tag), tag));
          }
          const Future<void> sent = group.ExchangeAsync(parts);
          is_sent.Open();
          WEFT_RETURN_IF_ERROR(sent.Wait(kPatience));
          return group.Barrier();
        }
        is_sent.Wait();
        // Nothing is asked for, and the room is full soon.
        const Tensor none = Tensor::Zeros({1});
        EXPECT_THAT(
            group.ExchangeAsync({From(0, none, kTags)}).Wait(kPatience),
            StatusIs(absl::StatusCode::kResourceExhausted, "max_unasked"));
        std::vector<PointToPoint> parts;
        std::vector<Tensor> in;
        for (int tag = 0; tag < kTags; ++tag) {
          in.push_back(Tensor::Zeros({kEach}));
          parts.push_back(From(0, in.back(), tag));
        }
        WEFT_RETURN_IF_ERROR(group.Exchange(parts));
        for (int tag = 0; tag < kTags; ++tag) {
          EXPECT_EQ(in[tag].data<float>()[kEach - 1], tag);
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "The tensors of one sender with one tag arrive in the order of sending".
TEST_P(Exchanges, PartsOfOnePeerAndTagKeepTheOrderOfTheList) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank();
        std::vector<Future<void>> exchanges;
        std::vector<Tensor> in;
        for (int i = 0; i < 10; ++i) {
          std::vector<PointToPoint> parts;
          for (int k = 0; k < 10; ++k) {
            in.push_back(Tensor::Zeros({5}));
            parts.push_back(From(1 - r, in.back(), 3));
            parts.push_back(To(1 - r, Tensor::Full({5}, 10 * i + k), 3));
          }
          exchanges.push_back(group.ExchangeAsync(parts));
        }
        for (int i = 9; i >= 0; --i) {
          WEFT_RETURN_IF_ERROR(exchanges[i].Wait(kPatience));
        }
        for (int i = 0; i < 100; ++i) {
          EXPECT_EQ(in[i].data<float>()[4], i);
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "Counts of 0 are allowed everywhere." "One that is not contiguous is copied."
TEST_P(Exchanges, NothingAndEmptyAndStridedTensorsAreExchanged) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int peer = 1 - group.rank();
        const Future<void> nothing =
            group.ExchangeAsync({}, In(absl::Seconds(5)));
        WEFT_RETURN_IF_ERROR(nothing.Wait(kPatience));
        WEFT_RETURN_IF_ERROR(group.Exchange({}));
        const Tensor empty = Tensor::Zeros({3, 0, 2});
        WEFT_RETURN_IF_ERROR(
            group.ExchangeAsync({To(peer, empty, 1), From(peer, empty, 1)})
                .Wait(kPatience));
        const Tensor matrix = Tensor::Zeros({2, 3});
        const Tensor sent = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
        WEFT_RETURN_IF_ERROR(
            group
                .ExchangeAsync(
                    {From(peer, matrix.Transpose(0, 1).Slice(0, 1, 3), 2),
                     To(peer, sent.Transpose(0, 1), 2), To(peer, empty, 9),
                     From(peer, empty, 9)})
                .Wait(kPatience));
        // Rows 1 and 2 of the transpose, in its order: 1 3 / 2 4.
        EXPECT_EQ(matrix.ToVector<float>(),
                  std::vector<float>({0, 1, 2, 0, 3, 4}));
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "kInvalidArgument for `to` == rank()"; "wrong tensor ...: at once on this
// rank ... The group goes on."
TEST_P(Exchanges, WrongPartsAreRefusedAtOnceAndTheGroupGoesOn) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank(), peer = 1 - r;
        const Tensor one = Tensor::Ones({2});
        const std::vector<std::vector<PointToPoint>> wrong = {
            {To(r, one)},
            {From(r, one)},
            {To(r, one), From(r, one)},
            {To(-1, one)},
            {From(-1, one)},
            {From(2, one)},
            {To(std::numeric_limits<int>::max(), one)},
            {From(std::numeric_limits<int>::min(), one)},
            {To(peer, Tensor())},
            {From(peer, Tensor())},
        };
        for (size_t i = 0; i < wrong.size(); ++i) {
          SCOPED_TRACE(absl::StrCat(i));
          const Future<void> refused = group.ExchangeAsync(wrong[i]);
          EXPECT_TRUE(refused.IsReady());
          EXPECT_THAT(refused.Wait(kPatience), StatusIs(kInvalidArgument));
          EXPECT_THAT(group.Exchange(wrong[i]), StatusIs(kInvalidArgument));
          WEFT_RETURN_IF_ERROR(group.health());
        }
        const Tensor in = Tensor::Zeros({2});
        WEFT_RETURN_IF_ERROR(
            group
                .ExchangeAsync({To(peer, Tensor::Full({2}, r)), From(peer, in)})
                .Wait(kPatience));
        EXPECT_EQ(in.data<float>()[1], peer);
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "they must have the dtype and the number of elements of `tensor`, else
// kInvalidArgument, and the group goes on"; "The first error is its result, as
// soon as it comes; the other parts go on."
TEST_P(Exchanges, PartsThatDoNotFitAreErrorsAndTheOthersGoOn) {
  Gate is_told;
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank(), peer = 1 - r;
        for (int i = 0; i < 4; ++i) {
          SCOPED_TRACE(absl::StrCat(i));
          const Tensor sent = i == 0   ? Tensor::Ones({4})
                              : i == 1 ? Tensor::Ones({2}, DType::kF64)
                              : i == 2 ? Tensor::Ones({0})
                                       : Tensor::Ones({70'000});
          const Tensor wanted =
              i == 3 ? Tensor::Zeros({69'999}) : Tensor::Zeros({2});
          const Tensor good = Tensor::Zeros({3});
          const Future<void> both = group.ExchangeAsync(
              {From(peer, wanted, 1), From(peer, good, 2), To(peer, sent, 1),
               To(peer, Tensor::Full({3}, 7), 2)});
          EXPECT_THAT(both.Wait(kPatience), StatusIs(kInvalidArgument));
          EXPECT_EQ(wanted.ToVector<float>(),
                    std::vector<float>(wanted.numel(), 0));
          // What did not fit is dropped: the next of that tag is another.
          const Tensor next = Tensor::Zeros({2});
          WEFT_RETURN_IF_ERROR(
              group
                  .ExchangeAsync({From(peer, next, 1),
                                  To(peer, Tensor::Full({2}, 5 + i), 1)})
                  .Wait(kPatience));
          EXPECT_EQ(next.data<float>()[1], 5 + i);
          WEFT_RETURN_IF_ERROR(group.Barrier());
          EXPECT_TRUE(weft::testing::Becomes(
              [&] { return good.data<float>()[2] == 7; }));
        }
        // The error comes although the other part never will.
        const Tensor late = Tensor::Zeros({2});
        if (r == 0) {
          EXPECT_THAT(group
                          .ExchangeAsync({From(1, late, 77),
                                          From(1, Tensor::Zeros({2}), 78)})
                          .Wait(kPatience),
                      StatusIs(kInvalidArgument));
          is_told.Open();
          // Of one tag and in turn: the other part is received too then. A
          // group that ends before would fail on the other rank.
          WEFT_RETURN_IF_ERROR(group.Receive(Tensor::Zeros({2}), 1, 77));
          EXPECT_EQ(late.ToVector<float>(), std::vector<float>({1, 1}));
        } else {
          WEFT_RETURN_IF_ERROR(
              group.ExchangeAsync({To(0, Tensor::Ones({1}), 78)})
                  .Wait(kPatience));
          is_told.Wait();
          WEFT_RETURN_IF_ERROR(group.Send(Tensor::Ones({2}), 0, 77));
          WEFT_RETURN_IF_ERROR(group.Send(Tensor::Ones({2}), 0, 77));
        }
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// One tensor is sent to all, and parts of one tensor are received: nothing
// overlaps that must not.
TEST_P(Exchanges, OneTensorIsSentOftenAndPartsOfOneAreReceived) {
  constexpr int kSize = 4;
  const auto statuses =
      RunGroups(GetParam(), kSize, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank();
        const Tensor all = Tensor::Full({kSize, 3}, -1);
        const Tensor mine = all.Slice(0, r, r + 1);
        mine.Fill(r);
        std::vector<PointToPoint> parts;
        for (int p = 0; p < kSize; ++p) {
          if (p == r) continue;
          parts.push_back(To(p, mine));
          parts.push_back(From(p, all.Slice(0, p, p + 1)));
        }
        WEFT_RETURN_IF_ERROR(group.ExchangeAsync(parts).Wait(kPatience));
        for (int p = 0; p < kSize; ++p) {
          EXPECT_EQ(all.data<float>()[3 * p + 2], p);
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Outputs that overlap are the caller's mistake. Whatever they become, it is
// one of what was sent, and the group goes on.
TEST_P(Exchanges, OverlappingBuffersEndNothing) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int peer = 1 - group.rank();
        const Tensor shared = Tensor::Full({4}, 9);
        const absl::Status found =
            group
                .ExchangeAsync({To(peer, shared, 1), From(peer, shared, 1),
                                To(peer, Tensor::Full({4}, 8), 2),
                                From(peer, shared, 2),
                                From(peer, shared.Slice(0, 1, 4), 3),
                                To(peer, Tensor::Full({3}, 7), 3)})
                .Wait(kPatience);
        EXPECT_THAT(found, AnyOf(IsOk(), StatusIs(kInvalidArgument)));
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "Send and Receive are matched by peer and tag, not by that order": a rank
// whose Exchange waits goes on with collective operations that come after it.
TEST_P(Exchanges, CollectivesPassAnExchangeThatWaits) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank();
        const Tensor in = Tensor::Zeros({2});
        Future<void> exchanged = MakeReady();
        const std::vector<PointToPoint> parts = {
            To((r + 1) % 3, Tensor::Full({2}, r)), From((r + 2) % 3, in)};
        if (r != 2) exchanged = group.ExchangeAsync(parts);
        WEFT_RETURN_IF_ERROR(Works(group));
        WEFT_ASSIGN_OR_RETURN(
            const Part part,
            group.SplitAsync(0, 0, WithArena(0)).Wait(kPatience));
        WEFT_RETURN_IF_ERROR(Works(*part));
        EXPECT_TRUE(r != 0 || !exchanged.IsReady());
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (r == 2) exchanged = group.ExchangeAsync(parts);
        WEFT_RETURN_IF_ERROR(exchanged.Wait(kPatience));
        EXPECT_EQ(in.data<float>()[0], (r + 2) % 3);
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// The same the other way round: a collective that waits for a rank does not
// keep that rank's Exchange from being met.
TEST_P(Exchanges, ExchangePassesACollectiveThatWaits) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank(), peer = 1 - r;
        const Tensor sum = Tensor::Ones({1}), in = Tensor::Zeros({1});
        Future<void> reduced = MakeReady();
        if (r == 0) reduced = group.AllReduceAsync(sum);
        WEFT_RETURN_IF_ERROR(
            group.ExchangeAsync({From(peer, in), To(peer, Tensor::Ones({1}))})
                .Wait(kPatience));
        if (r == 1) reduced = group.AllReduceAsync(sum);
        WEFT_RETURN_IF_ERROR(reduced.Wait(kPatience));
        EXPECT_EQ(sum.item<float>(), 2);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "Ending a Future early (Future::Cancel) does not withdraw this rank's part."
TEST_P(Exchanges, DroppedAndCancelledExchangesAreDoneAllTheSame) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank(), peer = 1 - r;
        const Tensor dropped = Tensor::Zeros({2}), taken = Tensor::Zeros({2});
        WEFT_RETURN_IF_ERROR(group.Barrier());
        {
          auto first = group.ExchangeAsync(
              {To(peer, Tensor::Full({2}, 4), 1), From(peer, dropped, 1)});
          auto second = group.ExchangeAsync(
              {To(peer, Tensor::Full({2}, 5), 2), From(peer, taken, 2)});
          second.Cancel(absl::CancelledError("no more"));
          EXPECT_THAT(second.Wait(kPatience),
                      AnyOf(IsOk(), StatusIs(kCancelled, "no more")));
        }
        EXPECT_TRUE(weft::testing::Becomes([&] {
          return dropped.data<float>()[1] == 4 && taken.data<float>()[1] == 5;
        }));
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "A Send or Receive without time moves what can be moved at once"; one "that
// passes its deadline leaves the group as it is".
TEST_P(Exchanges, TimeThatIsUpLeavesTheGroupAsItIs) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const int r = group.rank(), peer = 1 - r;
        const Tensor in = Tensor::Zeros({2});
        for (const absl::Duration timeout :
             {absl::ZeroDuration(), absl::Seconds(-3),
              -absl::InfiniteDuration(), absl::Milliseconds(20)}) {
          EXPECT_THAT(group.ExchangeAsync({From(peer, in, 5)}, In(timeout))
                          .Wait(kPatience),
                      StatusIs(kDeadlineExceeded, absl::StrCat("rank ", peer)));
          EXPECT_THAT(group.Exchange({From(peer, in, 5)}, In(timeout)),
                      StatusIs(kDeadlineExceeded));
          WEFT_RETURN_IF_ERROR(group.health());
        }
        WEFT_RETURN_IF_ERROR(group.Barrier());
        WEFT_RETURN_IF_ERROR(group.Send(Tensor::Full({2}, 6 + r), peer, 5));
        WEFT_RETURN_IF_ERROR(group.Barrier());
        // It is there by now, so no time is needed; on any backend a little.
        WEFT_RETURN_IF_ERROR(group.Exchange({From(peer, in, 5)}));
        EXPECT_EQ(in.data<float>()[0], 6 + peer);
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "kUnavailable: a rank has ended ...; its number is named."
TEST_P(Exchanges, RankThatLeavesIsNamed) {
  std::atomic<int> past{0}, told{0};
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        ++past;
        EXPECT_TRUE(weft::testing::Becomes([&] { return past >= 3; }));
        if (group.rank() == 1) return absl::OkStatus();
        const absl::Status found =
            group
                .ExchangeAsync({From(1, Tensor::Zeros({2})),
                                To(2 - group.rank(), Tensor::Ones({2}), 4),
                                From(2 - group.rank(), Tensor::Ones({2}), 4)})
                .Wait(kPatience);
        // Its end would end what goes on here, in kCancelled.
        ++told;
        EXPECT_TRUE(weft::testing::Becomes([&] { return told >= 2; }));
        return found;
      });
  EXPECT_THAT(statuses[0], StatusIs(kUnavailable, "rank 1"));
  EXPECT_THAT(statuses[2], StatusIs(kUnavailable, "rank 1"));
}

// "Ends all operations in flight and queued, on every rank, with `reason`".
TEST_P(Exchanges, RevokeAndTheEndOfTheGroupEndExchanges) {
  const auto world = GetParam().make(2, Quiet());
  std::atomic<int> waits{0}, ends{0};
  const auto statuses =
      weft::testing::RunRanks(2, [&](int rank) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
        auto group = ProcessGroup::Create(std::move(backend));
        WEFT_RETURN_IF_ERROR(group->Barrier());
        const Tensor in = Tensor::Zeros({2});
        std::vector<Future<void>> waiting;
        for (int i = 0; i < 10; ++i) {
          waiting.push_back(group->ExchangeAsync(
              {From(1 - rank, in, 100 + i), To(1 - rank, in, 200 + i)}));
        }
        ++waits;
        EXPECT_TRUE(weft::testing::Becomes([&] { return waits >= 2; }));
        if (rank == 0) group->Revoke(absl::CancelledError("all of it"));
        for (const Future<void>& one : waiting) {
          EXPECT_THAT(one.Wait(kPatience), StatusIs(kCancelled, "all of it"));
        }
        EXPECT_THAT(group->ExchangeAsync({From(1 - rank, in)}).Wait(kPatience),
                    StatusIs(kCancelled, "all of it"));
        WEFT_RETURN_IF_ERROR(group->Shrink({1, 0}));
        // What the broken group had sent is not received after it.
        EXPECT_THAT(group->Exchange({From(1 - group->rank(), in, 200)},
                                    In(absl::Milliseconds(50))),
                    StatusIs(kDeadlineExceeded));
        WEFT_RETURN_IF_ERROR(group->Barrier());
        ++ends;
        EXPECT_TRUE(weft::testing::Becomes([&] { return ends >= 2; }));
        const Future<void> last =
            group->ExchangeAsync({From(1 - group->rank(), in, 1)});
        group = nullptr;
        EXPECT_TRUE(last.IsReady());
        EXPECT_THAT(last.Wait(kPatience),
                    AnyOf(StatusIs(kCancelled), StatusIs(kUnavailable)));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// An error of an Exchange names operation, site, group and rank.
TEST_P(Exchanges, ErrorsNameWhatTheyAreOf) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        const absl::Status found =
            group
                .ExchangeAsync({From(1 - group.rank(), Tensor::Ones({2}))},
                               In(absl::Milliseconds(10)))
                .Wait(kPatience);
        EXPECT_THAT(found.message(), HasSubstr("exchange_test.cc:"));
        EXPECT_THAT(found.message(), HasSubstr("world"));
        EXPECT_THAT(found.message(), HasSubstr("Receive"));
        EXPECT_THAT(found.message(),
                    HasSubstr(absl::StrCat("rank ", group.rank())));
        const absl::Status refused =
            group.ExchangeAsync({To(group.rank(), Tensor::Ones({2}))})
                .Wait(kPatience);
        EXPECT_THAT(refused.message(), HasSubstr("exchange_test.cc:"));
        EXPECT_THAT(refused.message(), HasSubstr("world"));
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::outside
