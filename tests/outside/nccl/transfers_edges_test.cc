// Send, Receive and Exchange of tensors of devices over NCCL: sizes about
// NcclOptions::host_bytes, tensors of another kind, orders, ends in flight.
// What is expected is what collectives/process_group.h, nccl_backend.h and
// docs/collectives.md say.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::weft::collectives::CallOptions;
using ::weft::collectives::DeviceRank;
using ::weft::collectives::NcclWorld;
using ::weft::collectives::PointToPoint;
using ::weft::collectives::ProcessGroup;
using ::weft::testing::BytesOf;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kDeadline = absl::StatusCode::kDeadlineExceeded;
constexpr int64_t kLimit = int64_t{64} << 10;  // NcclOptions::host_bytes
constexpr PointToPoint::Kind kSend = PointToPoint::kSend;
constexpr PointToPoint::Kind kReceive = PointToPoint::kReceive;

using Body = std::function<absl::Status(const DeviceRank&)>;

void ExpectWell(NcclWorld& world, const Body& body) {
  const std::vector<absl::Status> statuses = world.Run(body);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_THAT(statuses[rank], IsOk()) << "rank " << rank;
  }
  EXPECT_EQ(world.nccl().misuses(), 0);
  EXPECT_EQ(world.nccl().mismatches(), 0);
  EXPECT_EQ(world.nccl().communicators(), 0);
}

void RunWell(int size, uint64_t seed, const Body& body) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  NcclWorld world(size, seed);
  ExpectWell(world, body);
}

// [n] of numbers that differ from one `mark` to the next.
Tensor Marked(int64_t n, int mark, DType dtype = DType::kF32) {
  const int most = dtype == DType::kBool ? 1 : 100;
  return Tensor::Full({n}, static_cast<double>(mark % most + 1), dtype);
}

CallOptions Within(absl::Duration timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

// Send on rank 0 and Receive on rank 1 of `count` elements; the bits are equal.
absl::Status Pass(const DeviceRank& r, int64_t count, DType dtype, int mark) {
  const Tensor x = Marked(count, mark, dtype);
  if (r.group.rank() == 0) return r.group.Send(r.Place(x), 1);
  const Tensor y = Tensor::Zeros({count}, dtype, r.device());
  WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0));
  EXPECT_TRUE(BytesOf(y) == BytesOf(x)) << count << " of " << Name(dtype);
  return absl::OkStatus();
}

// --- Sizes. ------------------------------------------------------------------

// "Send of more than NcclOptions::host_bytes (64 KiB)" goes by NCCL.
TEST(Transfers, OneByteDecidesWhatMovesThem) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const int64_t bytes :
         {int64_t{0}, int64_t{1}, kLimit - 1, kLimit, kLimit + 1}) {
      SCOPED_TRACE(absl::StrCat(bytes, " bytes, seed ", seed));
      NcclWorld world(2, seed);
      ExpectWell(world, [&](const DeviceRank& r) {
        return Pass(r, bytes, DType::kU8, 3);
      });
      EXPECT_EQ(world.nccl().launches() > 0, bytes > kLimit);
    }
  }
}

TEST(Transfers, OfEveryDTypeAboutTheLimitHaveTheirBits) {
  RunWell(2, 1, [](const DeviceRank& r) -> absl::Status {
    int mark = 0;
    for (const DType dtype : kAllDTypes) {
      const int64_t most = kLimit / ItemSize(dtype);
      for (const int64_t count : {most - 1, most, most + 1, 2 * most + 1}) {
        WEFT_RETURN_IF_ERROR(Pass(r, count, dtype, ++mark));
      }
    }
    return absl::OkStatus();
  });
}

// The limit is of the sender alone: what is sent says how it comes.
TEST(Transfers, RanksMayHaveLimitsOfTheirOwn) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    NcclWorld world(2, seed);
    const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
      collectives::NcclOptions options = world.OptionsOf(rank);
      options.host_bytes = rank == 0 ? 0 : std::numeric_limits<int64_t>::max();
      WEFT_ASSIGN_OR_RETURN(
          auto backend,
          collectives::ConnectNccl(options, world.host().Connect(rank)));
      collectives::GroupOptions limits;
      limits.timeout = absl::Seconds(30);
      const auto group = ProcessGroup::Create(std::move(backend), limits);
      const DeviceRank r{*group, world.devices(rank)};
      for (const int64_t count : {0, 1, 20000}) {
        const Tensor x = Marked(count, rank), y = r.Place(Marked(count, 50));
        WEFT_RETURN_IF_ERROR(group->Exchange(
            {{kSend, r.Place(x), 1 - rank, 1}, {kReceive, y, 1 - rank, 1}}));
        EXPECT_TRUE(BytesOf(y) == BytesOf(Marked(count, 1 - rank))) << count;
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, ::testing::Each(IsOk()));
    EXPECT_GT(world.nccl().launches(), 0);
  }
}

// --- Misuse. -----------------------------------------------------------------

TEST(Transfers, ToOneselfAndToNobodyAreRefusedAtOnceAndTheGroupGoesOn) {
  RunWell(2, 2, [](const DeviceRank& r) -> absl::Status {
    const int own = r.group.rank();
    for (const int64_t count : {int64_t{0}, int64_t{4}, kLimit}) {
      const Tensor x = r.Place(Marked(count, 1));
      for (const int peer : {own, -1, 2, std::numeric_limits<int>::max(),
                             std::numeric_limits<int>::min()}) {
        EXPECT_THAT(r.group.Send(x, peer), StatusIs(kInvalid)) << peer;
        EXPECT_THAT(r.group.Receive(x, peer), StatusIs(kInvalid)) << peer;
        EXPECT_THAT(r.group.SendAsync(x, peer).Wait(absl::Minutes(1)),
                    StatusIs(kInvalid));
        EXPECT_THAT(r.group.ReceiveAsync(x, peer).Wait(absl::Minutes(1)),
                    StatusIs(kInvalid));
        EXPECT_THAT(r.group.Exchange({{kSend, x, peer}}), StatusIs(kInvalid));
        EXPECT_THAT(
            r.group.Exchange({{kReceive, x, peer}, {kSend, x, peer, 5}}),
            StatusIs(kInvalid));
      }
    }
    WEFT_RETURN_IF_ERROR(Pass(r, kLimit, DType::kF32, 7));
    return r.group.Barrier();
  });
}

TEST(Transfers, TensorsThatCannotBeMovedAreRefusedAndTheGroupGoesOn) {
  RunWell(2, 3, [](const DeviceRank& r) -> absl::Status {
    const int other = 1 - r.group.rank();
    const Tensor one = r.Place(Marked(1, 1));
    EXPECT_THAT(r.group.Send(Tensor(), other), StatusIs(kInvalid));
    EXPECT_THAT(r.group.Receive(Tensor(), other), StatusIs(kInvalid));
    EXPECT_THAT(r.group.ReceiveAny(Tensor()), StatusIs(kInvalid));
    EXPECT_THAT(r.group.Receive(one.Expand({kLimit}), other),
                StatusIs(kInvalid));
    EXPECT_THAT(r.group.ReceiveAny(one.Expand({kLimit})), StatusIs(kInvalid));
    // The CPU, NCCL's device and the other one in one call.
    const Tensor cpu = Marked(kLimit, 2), there = r.Place(cpu),
                 elsewhere = r.Place(cpu, 1);
    for (const auto& [sent, received] :
         std::vector<std::pair<Tensor, Tensor>>{{cpu, there},
                                                {there, cpu},
                                                {there, elsewhere},
                                                {elsewhere, there}}) {
      EXPECT_THAT(r.group.Exchange(
                      {{kSend, sent, other, 1}, {kReceive, received, other, 1}},
                      Within(absl::Seconds(10))),
                  StatusIs(kInvalid));
    }
    WEFT_RETURN_IF_ERROR(Pass(r, kLimit, DType::kF32, 7));
    return r.group.Barrier();
  });
}

// An input may be one element that is read many times.
TEST(Transfers, OfViewsIntoViewsTouchNothingElse) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    RunWell(2, seed, [](const DeviceRank& r) -> absl::Status {
      constexpr int64_t kSide = 160;  // 100 KiB
      if (r.group.rank() == 0) {
        const Tensor all =
            r.Place(Tensor::Arange(2 * kSide * kSide).To(DType::kF32));
        const Tensor square =
            all.View({kSide, 2 * kSide}).Slice(1, kSide, 2 * kSide);
        WEFT_RETURN_IF_ERROR(r.group.Send(square.Transpose(0, 1), 1));
        return r.group.Send(r.Place(Marked(1, 5)).Expand({kSide, kSide}), 1);
      }
      const Tensor into = r.Place(Tensor::Full({kSide, 3 * kSide}, -1));
      const Tensor column = into.Slice(1, kSide, 2 * kSide);
      WEFT_RETURN_IF_ERROR(r.group.Receive(column, 0));
      const Tensor wanted = Tensor::Arange(2 * kSide * kSide)
                                .To(DType::kF32)
                                .View({kSide, 2 * kSide})
                                .Slice(1, kSide, 2 * kSide)
                                .Transpose(0, 1);
      EXPECT_TRUE(BytesOf(column) == BytesOf(wanted));
      WEFT_RETURN_IF_ERROR(r.group.Receive(column.Transpose(0, 1), 0));
      EXPECT_TRUE(BytesOf(column) == BytesOf(Tensor::Full({kSide, kSide}, 6)));
      for (const int64_t begin : {int64_t{0}, 2 * kSide}) {
        EXPECT_TRUE(BytesOf(into.Slice(1, begin, begin + kSide)) ==
                    BytesOf(Tensor::Full({kSide, kSide}, -1)));
      }
      return absl::OkStatus();
    });
  }
}

// "they must have the dtype and the number of elements of `tensor`, else
// kInvalidArgument, and the group goes on": also where the one would go by NCCL
// and the other over the host.
TEST(Transfers, OfAnotherKindAcrossTheLimitAreDroppedAndTheNextIsReceived) {
  struct Kind {
    int64_t count;
    DType dtype;
  };
  const std::vector<std::array<Kind, 2>> kinds = {
      {{{kLimit + 1, DType::kU8}, {kLimit, DType::kU8}}},
      {{{kLimit, DType::kU8}, {kLimit + 1, DType::kU8}}},
      {{{0, DType::kF32}, {kLimit, DType::kF32}}},
      {{{kLimit, DType::kF32}, {0, DType::kF32}}},
      {{{kLimit, DType::kF32}, {kLimit / 2, DType::kF64}}},  // equal bytes
      {{{kLimit, DType::kF16}, {kLimit, DType::kBF16}}},
      {{{2, DType::kF32}, {1, DType::kF64}}},
      {{{0, DType::kF32}, {0, DType::kF64}}},
  };
  for (uint64_t seed = 0; seed < 3; ++seed) {
    RunWell(2, seed, [&](const DeviceRank& r) -> absl::Status {
      for (size_t i = 0; i < kinds.size(); ++i) {
        const auto& [sent, wanted] = kinds[i];
        const auto what = absl::StrCat("kind ", i);
        if (r.group.rank() == 0) {
          // Whether the sender hears of it is not said; it ends.
          EXPECT_THAT(
              r.group.Send(r.Place(Marked(sent.count, 1, sent.dtype)), 1),
              AnyOf(IsOk(), StatusIs(kInvalid)))
              << what;
          WEFT_RETURN_IF_ERROR(
              r.group.Send(r.Place(Marked(wanted.count, 2, wanted.dtype)), 1));
          continue;
        }
        const Tensor y = r.Place(Marked(wanted.count, 9, wanted.dtype));
        EXPECT_THAT(r.group.Receive(y, 0), StatusIs(kInvalid)) << what;
        EXPECT_TRUE(BytesOf(y) ==
                    BytesOf(Marked(wanted.count, 9, wanted.dtype)))
            << what;
        WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0));
        EXPECT_TRUE(BytesOf(y) ==
                    BytesOf(Marked(wanted.count, 2, wanted.dtype)))
            << what;
      }
      return r.group.Barrier();
    });
  }
}

// Shapes may differ where the numbers of elements do not.
TEST(Transfers, KnowNoShapes) {
  RunWell(2, 5, [](const DeviceRank& r) -> absl::Status {
    const Tensor x = Marked(2 * kLimit, 4);
    if (r.group.rank() == 0) {
      return r.group.Send(r.Place(x).View({2, kLimit}), 1);
    }
    const Tensor y = r.Place(Marked(2 * kLimit, 9)).View({kLimit, 1, 2});
    WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0));
    EXPECT_TRUE(BytesOf(y) == BytesOf(x));
    return absl::OkStatus();
  });
}

TEST(Transfers, HaveTagsUpToTheBackendsOwn) {
  RunWell(2, 6, [](const DeviceRank& r) -> absl::Status {
    constexpr uint64_t kOwn = std::numeric_limits<uint64_t>::max();
    const Tensor big = r.Place(Marked(kLimit, 1));
    const int other = 1 - r.group.rank();
    EXPECT_THAT(r.group.Send(big, other, kOwn), StatusIs(kInvalid));
    EXPECT_THAT(r.group.Receive(big, other, kOwn), StatusIs(kInvalid));
    EXPECT_THAT(r.group.ReceiveAny(big, kOwn), StatusIs(kInvalid));
    EXPECT_THAT(r.group.Exchange({{kSend, big, other, kOwn}}),
                StatusIs(kInvalid));
    for (const uint64_t tag :
         {kOwn - 1, kOwn / 2, kOwn / 2 + 1, uint64_t{1} << 32}) {
      const Tensor y = r.Place(Marked(kLimit, 9));
      WEFT_RETURN_IF_ERROR(r.group.Exchange(
          {{kSend, big, other, tag}, {kReceive, y, other, tag}}));
      EXPECT_TRUE(BytesOf(y) == BytesOf(Marked(kLimit, 1)));
    }
    return r.group.Barrier();
  });
}

// --- Orders. -----------------------------------------------------------------

// "The tensors of one sender with one tag arrive in the order of sending",
// whatever moves them.
TEST(Transfers, LargeSmallAndEmptyOfOneTagKeepTheirOrder) {
  const std::vector<int64_t> counts = {20000, 1,     0, 30000, 3,
                                       0,     20000, 5, 20001};
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RunWell(2, seed, [&](const DeviceRank& r) -> absl::Status {
      const int n = static_cast<int>(counts.size());
      if (r.group.rank() == 0) {
        std::vector<Future<void>> sent;
        for (int i = 0; i < n; ++i) {
          sent.push_back(
              r.group.SendAsync(r.Place(Marked(counts[i], i)), 1, 4));
        }
        for (const auto& future : sent) {
          WEFT_RETURN_IF_ERROR(future.Wait(absl::Minutes(1)));
        }
        return absl::OkStatus();
      }
      for (int i = 0; i < n; ++i) {
        const Tensor y = r.Place(Marked(counts[i], 90));
        if (i % 2 == 0) {
          WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0, 4));
        } else {
          WEFT_ASSIGN_OR_RETURN(const int from, r.group.ReceiveAny(y, 4));
          EXPECT_EQ(from, 0);
        }
        EXPECT_TRUE(BytesOf(y) == BytesOf(Marked(counts[i], i))) << i;
      }
      return absl::OkStatus();
    });
  }
}

// "Send and Receive are matched by peer and tag, not by that order."
TEST(Transfers, AreReceivedInTheReverseOrderByTag) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RunWell(3, seed, [](const DeviceRank& r) -> absl::Status {
      constexpr int kTags = 6;
      const int own = r.group.rank();
      std::vector<Future<void>> sent;
      for (int tag = 0; tag < kTags; ++tag) {
        for (const int to : {(own + 1) % 3, (own + 2) % 3}) {
          sent.push_back(r.group.SendAsync(
              r.Place(Marked(tag % 3 == 2 ? 3 : 20000, 10 * own + tag)), to,
              tag));
        }
      }
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (const int from : {(own + 1) % 3, (own + 2) % 3}) {
          const Tensor y = r.Place(Marked(tag % 3 == 2 ? 3 : 20000, 90));
          WEFT_RETURN_IF_ERROR(r.group.Receive(y, from, tag));
          EXPECT_TRUE(BytesOf(y) ==
                      BytesOf(Marked(y.numel(), 10 * from + tag)));
        }
      }
      for (const auto& future : sent) {
        WEFT_RETURN_IF_ERROR(future.Wait(absl::Minutes(1)));
      }
      return absl::OkStatus();
    });
  }
}

// An Exchange "runs all parts at once, in any order on any rank".
TEST(Transfers, ExchangeHasManyPartsOfOnePeerAndTag) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    RunWell(3, seed, [](const DeviceRank& r) -> absl::Status {
      const int own = r.group.rank();
      std::vector<PointToPoint> parts;
      std::vector<std::pair<Tensor, Tensor>> received;  // and wanted
      for (int i = 0; i < 4; ++i) {
        const int64_t count = i % 2 == 0 ? 17000 : 7;
        for (const int peer : {(own + 1) % 3, (own + 2) % 3}) {
          // The parts of one peer and tag have one kind, so that whichever
          // comes first fits.
          const uint64_t tag = i % 2;
          parts.push_back({kSend, r.Place(Marked(count, 10 * own)), peer, tag});
          const Tensor y = r.Place(Marked(count, 90));
          parts.push_back({kReceive, y, peer, tag});
          received.emplace_back(y, Marked(count, 10 * peer));
        }
      }
      if (own == 1) std::reverse(parts.begin(), parts.end());
      WEFT_RETURN_IF_ERROR(r.group.Exchange(parts));
      WEFT_RETURN_IF_ERROR(r.group.Exchange({}));
      for (const auto& [found, wanted] : received) {
        EXPECT_TRUE(BytesOf(found) == BytesOf(wanted));
      }
      return r.group.Barrier();
    });
  }
}

TEST(Transfers, ThreadsOfOneRankDoNotMixTheirs) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    RunWell(2, seed, [](const DeviceRank& r) -> absl::Status {
      constexpr int kThreads = 6, kTimes = 5;
      const int other = 1 - r.group.rank();
      const auto statuses =
          testing::RunRanks(kThreads, [&](int thread) -> absl::Status {
            for (int i = 0; i < kTimes; ++i) {
              const int64_t count = (thread + i) % 3 == 0 ? 9 : 17000 + thread;
              const int mark = 10 * thread + i;
              const Tensor x = r.Place(Marked(count, mark)),
                           y = r.Place(Marked(count, 99));
              const uint64_t tag = 100 + thread;
              Future<void> sent = r.group.SendAsync(x, other, tag);
              WEFT_RETURN_IF_ERROR(r.group.Receive(y, other, tag));
              WEFT_RETURN_IF_ERROR(sent.Wait(absl::Minutes(1)));
              EXPECT_TRUE(BytesOf(y) == BytesOf(Marked(count, mark)));
            }
            return absl::OkStatus();
          });
      for (const absl::Status& status : statuses) {
        WEFT_RETURN_IF_ERROR(status);
      }
      return absl::OkStatus();
    });
  }
}

// Collective operations of the group, and transfers of a group made of it, are
// under way beside those of the group.
TEST(Transfers, OfAGroupAndOfOneMadeOfItAreTwoWorlds) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    RunWell(3, seed, [](const DeviceRank& r) -> absl::Status {
      const int own = r.group.rank();
      // Ranks 2, 0 of the group are 0, 1 of the part.
      WEFT_ASSIGN_OR_RETURN(const auto part, r.group.Subgroup({2, 0}));
      std::vector<Future<void>> under_way;
      const Tensor outer = r.Place(Marked(20000, 90)),
                   inner = r.Place(Marked(20000, 90)),
                   sum = r.Place(Marked(20000, own));
      if (own == 0) {
        under_way.push_back(r.group.SendAsync(r.Place(Marked(20000, 1)), 2, 8));
        under_way.push_back(part->SendAsync(r.Place(Marked(20000, 2)), 0, 8));
      } else if (own == 2) {
        under_way.push_back(part->ReceiveAsync(inner, 1, 8));
      }
      WEFT_RETURN_IF_ERROR(r.group.AllReduce(sum));
      EXPECT_TRUE(BytesOf(sum) == BytesOf(Marked(20000, 5)));
      if (own == 2) under_way.push_back(r.group.ReceiveAsync(outer, 0, 8));
      for (const auto& future : under_way) {
        WEFT_RETURN_IF_ERROR(future.Wait(absl::Minutes(1)));
      }
      if (own == 2) {
        EXPECT_TRUE(BytesOf(outer) == BytesOf(Marked(20000, 1)));
        EXPECT_TRUE(BytesOf(inner) == BytesOf(Marked(20000, 2)));
      }
      return r.group.Barrier();
    });
  }
}

// --- Ends. -------------------------------------------------------------------

// "the group holds the handles until then": what takes their memory after the
// last handle of the caller has gone does not reach the other rank.
TEST(Transfers, TensorsThatEndInFlightArriveAsTheyWere) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RunWell(2, seed, [](const DeviceRank& r) -> absl::Status {
      constexpr int64_t kCount = 20000;
      std::vector<Future<void>> under_way;
      if (r.group.rank() == 0) {
        for (int i = 0; i < 4; ++i) {
          under_way.push_back(
              r.group.SendAsync(r.Place(Marked(kCount, i)), 1, i));
          // Takes the memory of the one that has ended, if it is free.
          const Tensor other =
              Tensor::Full({kCount}, -7, DType::kF32, r.device());
        }
      } else {
        std::vector<Tensor> received;
        for (int i = 3; i >= 1; --i) {
          received.push_back(r.Place(Marked(kCount, 90)));
          under_way.push_back(r.group.ReceiveAsync(received.back(), 0, i));
        }
        // Nobody has the tensor that this one goes into.
        under_way.push_back(
            r.group.ReceiveAsync(r.Place(Marked(kCount, 90)), 0, 0));
        const Tensor other = r.Place(Marked(kCount, 77));
        for (const auto& future : under_way) {
          WEFT_RETURN_IF_ERROR(future.Wait(absl::Minutes(1)));
        }
        EXPECT_TRUE(BytesOf(other) == BytesOf(Marked(kCount, 77)));
        for (int i = 3; i >= 1; --i) {
          EXPECT_TRUE(BytesOf(received[3 - i]) == BytesOf(Marked(kCount, i)));
        }
      }
      for (const auto& future : under_way) {
        WEFT_RETURN_IF_ERROR(future.Wait(absl::Minutes(1)));
      }
      return r.group.Barrier();
    });
  }
}

// "A Send or Receive without time moves what can be moved at once", and its
// deadline leaves the group as it is.
TEST(Transfers, WithoutTimeEndAtOnceAndTheGroupGoesOn) {
  RunWell(2, 4, [](const DeviceRank& r) -> absl::Status {
    const Tensor big = r.Place(Marked(20000, 1)), small = r.Place(Marked(3, 1));
    const int other = 1 - r.group.rank();
    for (const absl::Duration timeout :
         {absl::ZeroDuration(), absl::Seconds(-5), -absl::InfiniteDuration()}) {
      // The other does not receive any of tag 1 with time.
      EXPECT_THAT(r.group.Send(big, other, 1, Within(timeout)),
                  StatusIs(kDeadline));
      EXPECT_THAT(r.group.Receive(big, other, 2, Within(timeout)),
                  StatusIs(kDeadline));
      EXPECT_THAT(r.group.Receive(small, other, 2, Within(timeout)),
                  StatusIs(kDeadline));
      EXPECT_THAT(r.group.ReceiveAny(big, 2, Within(timeout)),
                  StatusIs(kDeadline));
    }
    WEFT_RETURN_IF_ERROR(r.group.Barrier());
    // What was given up is not received.
    const Tensor y = r.Place(Marked(20000, 90));
    WEFT_RETURN_IF_ERROR(
        r.group.Exchange({{kSend, r.Place(Marked(20000, 2)), other, 1},
                          {kReceive, y, other, 1}}));
    EXPECT_TRUE(BytesOf(y) == BytesOf(Marked(20000, 2)));
    return r.group.Barrier();
  });
}

// Deadlines of both ranks that pass at about the same time: a tensor is sent
// if, and only if, it was received.
TEST(Transfers, DeadlinesThatMeetLeaveBothRanksOfOneMind) {
  constexpr int kTimes = 60;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    NcclWorld world(2, seed);
    std::vector<bool> sent(kTimes), received(kTimes);
    std::array<int, 2> times = {};  // before the group was broken, if it was
    const auto statuses = world.Run([&](const DeviceRank& r) -> absl::Status {
      const int own = r.group.rank();
      int i = 0;
      for (; i < kTimes; ++i) {
        // A transfer that NCCL has as the deadline passes breaks the group.
        if (!r.group.Barrier().ok()) break;
        const Tensor x = r.Place(Marked(20000, own == 0 ? i : 99));
        absl::Status status;
        if (own == 0) {
          // The other's deadline passes before or after this one's begin.
          absl::SleepFor(absl::Microseconds(i * 37 % 400));
          status = r.group.Send(x, 1, 3, Within(absl::Milliseconds(i % 3)));
          sent[i] = status.ok();
        } else {
          status = r.group.Receive(x, 0, 3, Within(absl::Milliseconds(i % 2)));
          received[i] = status.ok();
          if (status.ok()) {
            EXPECT_TRUE(BytesOf(x) == BytesOf(Marked(20000, i))) << i;
          }
        }
        if (!status.ok() && !absl::IsDeadlineExceeded(status)) break;
      }
      times[own] = i;
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, ::testing::Each(IsOk()));
    const int both = std::min(times[0], times[1]);
    // The last one of a group that was broken may have ended on one rank.
    for (int i = 0; i + (both < kTimes ? 1 : 0) < both; ++i) {
      EXPECT_EQ(sent[i], received[i]) << "transfer " << i << " of " << both;
    }
    EXPECT_EQ(world.nccl().misuses(), 0);
    EXPECT_EQ(world.nccl().communicators(), 0);
  }
}

// Nobody receives: the sender takes no memory of the other rank, and a group
// that ends with transfers under way ends them.
TEST(Transfers, ThatNobodyReceivesEndWithTheGroup) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    NcclWorld world(2, seed);
    std::array<std::vector<Future<void>>, 2> under_way;
    std::atomic<int> begun{0};
    const auto statuses = world.Run([&](const DeviceRank& r) -> absl::Status {
      const int own = r.group.rank();
      for (int i = 0; i < 5; ++i) {
        under_way[own].push_back(
            r.group.SendAsync(r.Place(Marked(20000, i)), 1 - own, i));
        under_way[own].push_back(
            r.group.ReceiveAsync(r.Place(Marked(20000, i)), 1 - own, 100 + i));
      }
      ++begun;
      EXPECT_TRUE(weft::testing::Becomes([&] { return begun == 2; }));
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, ::testing::Each(IsOk()));
    for (const auto& futures : under_way) {
      for (const auto& future : futures) {
        EXPECT_THAT(future.Wait(absl::Minutes(1)),
                    AnyOf(StatusIs(absl::StatusCode::kCancelled),
                          StatusIs(absl::StatusCode::kUnavailable),
                          StatusIs(absl::StatusCode::kFailedPrecondition)));
      }
    }
    EXPECT_EQ(world.nccl().communicators(), 0);
    EXPECT_EQ(world.nccl().misuses(), 0);
    EXPECT_EQ(world.nccl().launches(), 0);
  }
}

// A rank that waits for many dies: each of the others' transfers with it ends,
// and those between the others go on until then.
TEST(Transfers, OfAnExchangeWithARankThatDiesEndOnTheOthers) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    NcclWorld world(3, seed);
    std::atomic<int> past{0}, ended{0};
    const auto statuses = world.Run([&](const DeviceRank& r) -> absl::Status {
      const int own = r.group.rank();
      WEFT_RETURN_IF_ERROR(r.group.Barrier());
      // A rank that is still in the barrier would fail there.
      ++past;
      EXPECT_TRUE(weft::testing::Becomes([&] { return past == 3; }));
      if (own == 2) {
        world.host().Kill(2);
        return absl::OkStatus();
      }
      std::vector<PointToPoint> parts;
      for (const int peer : {(own + 1) % 3, (own + 2) % 3}) {
        parts.push_back({kSend, r.Place(Marked(20000, own)), peer, 1});
        parts.push_back({kReceive, r.Place(Marked(20000, 9)), peer, 1});
      }
      const absl::Status status = r.group.Exchange(parts);
      // The end of this rank's group would be what the other hears of.
      ++ended;
      EXPECT_TRUE(weft::testing::Becomes([&] { return ended == 2; }));
      return status;
    });
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, "2"));
    EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, "2"));
    EXPECT_EQ(world.nccl().communicators(), 0);
    EXPECT_EQ(world.nccl().misuses(), 0);
  }
}

// Device memory runs short for the copy of a view: this rank is told, and the
// group goes on.
TEST(Transfers, WithoutMemoryForACopyOfAViewTheGroupGoesOn) {
  RunWell(2, 7, [](const DeviceRank& r) -> absl::Status {
    constexpr int64_t kSide = 200;
    const Tensor view =
        r.Place(Tensor::Full({kSide, 2 * kSide}, 3)).Slice(1, 0, kSide);
    if (r.group.rank() == 0) {
      r.devices.runtime().FailAllocations(r.device().id(), 1000);
      const absl::Status status =
          r.group.Send(view.Transpose(0, 1), 1, 1, Within(absl::Seconds(5)));
      r.devices.runtime().FailAllocations(r.device().id(), 0);
      // Memory that the allocator keeps may be enough for it.
      if (status.ok()) return r.group.Send(r.Place(Marked(1, 1)), 1, 2);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
      WEFT_RETURN_IF_ERROR(r.group.Send(view, 1, 1));
      return r.group.Send(r.Place(Marked(1, 1)), 1, 2);
    }
    const Tensor y = r.Place(Marked(kSide * kSide, 90));
    WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0, 1));
    EXPECT_TRUE(BytesOf(y) == BytesOf(Tensor::Full({kSide * kSide}, 3)));
    return r.group.Receive(r.Place(Marked(1, 1)), 0, 2);
  });
}

}  // namespace
}  // namespace weft::outside
