// Send, Receive and Exchange of tensors of devices that are given up at their
// deadline, whose Futures nobody keeps, or that come late; and the transfers
// after them. What is expected is what collectives/process_group.h and
// docs/collectives.md say; a sentence of theirs stands above each test.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_world.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/backends/same_device/same_device_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using collectives::CallOptions;
using collectives::DeviceRank;
using collectives::DeviceWorld;
using collectives::PointToPoint;
using ::testing::Each;
using weft::testing::Becomes;
using weft::testing::BytesOf;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;
constexpr absl::Duration kSoon = absl::Milliseconds(20);
constexpr absl::Duration kTime = absl::Seconds(30);
constexpr int64_t kLarge = 20'000;  // 80 KB: from device to device
constexpr int64_t kSmall = 20;      // over the host

enum class Kind { kNccl, kThreads, kProcesses };

std::unique_ptr<DeviceWorld> MakeWorld(Kind kind, uint64_t seed) {
  if (kind == Kind::kNccl) {
    return std::make_unique<collectives::NcclWorld>(2, seed);
  }
  return std::make_unique<collectives::SameDeviceWorld>(
      2, seed,
      kind == Kind::kThreads ? collectives::Sharers::kThreads
                             : collectives::Sharers::kProcesses);
}

CallOptions Within(absl::Duration timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}
Tensor Marked(const DeviceRank& r, int64_t n, int mark) {
  return r.Place(Tensor::Full({n}, mark));
}
int MarkOf(const Tensor& x) {
  const std::vector<float> found = x.To(Device::Cpu()).ToVector<float>();
  for (const float y : found) {
    EXPECT_EQ(y, found.front());
  }
  return static_cast<int>(found.front());
}

class GivenUp : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  using Body = std::function<absl::Status(const DeviceRank&)>;
  void Run(const Body& body) {
    const auto [kind, seed] = GetParam();
    const auto world = MakeWorld(kind, static_cast<uint64_t>(seed));
    EXPECT_THAT(world->Run([&](const DeviceRank& r) -> absl::Status {
      WEFT_RETURN_IF_ERROR(body(r));
      return AllIsWell(r);
    }),
                Each(IsOk()));
    world->ExpectSound();
  }
  // All that a group can do goes on.
  static absl::Status AllIsWell(const DeviceRank& r) {
    WEFT_RETURN_IF_ERROR(r.group.health());
    WEFT_RETURN_IF_ERROR(r.group.Barrier());
    const int own = r.group.rank();
    for (const int64_t n : {kLarge, kSmall}) {
      const Tensor y = Marked(r, n, -1);
      WEFT_RETURN_IF_ERROR(r.group.Exchange(
          {{PointToPoint::kSend, Marked(r, n, 40 + own), 1 - own, 77},
           {PointToPoint::kReceive, y, 1 - own, 77}}));
      EXPECT_EQ(MarkOf(y), 41 - own);
    }
    const Tensor sum = Marked(r, kLarge, 1);
    WEFT_RETURN_IF_ERROR(r.group.AllReduce(sum));
    EXPECT_EQ(MarkOf(sum), 2);
    return absl::OkStatus();
  }
  void Reach(int step) { step_ = step; }
  bool Await(int step) {
    return bool(Becomes([&] { return step_.load() >= step; }));
  }

  std::atomic<int> step_{0};
};
INSTANTIATE_TEST_SUITE_P(All, GivenUp,
                         ::testing::Combine(::testing::Values(Kind::kNccl,
                                                              Kind::kThreads,
                                                              Kind::kProcesses),
                                            ::testing::Range(0, 3)));

// "A Send or Receive whose other rank does not call ends at its deadline, which
// names it, and the group goes on; what was given up is not received".
TEST_P(GivenUp, SendsOneAfterTheOtherAreNotReceivedByWhoComesLate) {
  Run([&](const DeviceRank& r) -> absl::Status {
    // In the two directions, one after the other.
    for (int from = 0; from < 2; ++from) {
      if (r.group.rank() == from) {
        for (int i = 1; i <= 4; ++i) {
          EXPECT_THAT(
              r.group.Send(Marked(r, kLarge, i), 1 - from, 3, Within(kSoon)),
              StatusIs(kLate));
          EXPECT_THAT(r.group.health(), IsOk());
        }
        Reach(10 * from + 1);
        WEFT_RETURN_IF_ERROR(r.group.Send(Marked(r, kLarge, 9), 1 - from, 3));
        WEFT_RETURN_IF_ERROR(r.group.Send(Marked(r, kSmall, 8), 1 - from, 3));
      } else {
        EXPECT_TRUE(Await(10 * from + 1));
        const Tensor y = Marked(r, kLarge, -1), z = Marked(r, kSmall, -1);
        WEFT_RETURN_IF_ERROR(r.group.Receive(y, from, 3));
        EXPECT_EQ(MarkOf(y), 9);
        WEFT_RETURN_IF_ERROR(r.group.Receive(z, from, 3));
        EXPECT_EQ(MarkOf(z), 8);
      }
    }
    return absl::OkStatus();
  });
}

// The same of Receives: what is sent afterwards is for the next ones.
TEST_P(GivenUp, ReceivesTakeNothingOfWhatIsSentLater) {
  Run([&](const DeviceRank& r) -> absl::Status {
    if (r.group.rank() == 1) {
      const Tensor never = Marked(r, kLarge, -1);
      for (int i = 0; i < 4; ++i) {
        EXPECT_THAT(r.group.Receive(never, 0, 3, Within(kSoon)),
                    StatusIs(kLate));
      }
      EXPECT_THAT(r.group.ReceiveAny(never, 4, Within(kSoon)), StatusIs(kLate));
      Reach(1);
      for (const int mark : {5, 6}) {
        const Tensor y = Marked(r, kLarge, -1);
        WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0, 3));
        EXPECT_EQ(MarkOf(y), mark);
      }
      const Tensor y = Marked(r, kLarge, -1);
      WEFT_ASSIGN_OR_RETURN(const int from, r.group.ReceiveAny(y, 4));
      EXPECT_EQ(from, 0);
      EXPECT_EQ(MarkOf(y), 7);
      EXPECT_EQ(MarkOf(never), -1);
      return absl::OkStatus();
    }
    EXPECT_TRUE(Await(1));
    WEFT_RETURN_IF_ERROR(r.group.Send(Marked(r, kLarge, 5), 1, 3));
    WEFT_RETURN_IF_ERROR(r.group.Send(Marked(r, kLarge, 6), 1, 3));
    return r.group.Send(Marked(r, kLarge, 7), 1, 4);
  });
}

// An Exchange of which the other rank comes only once it was given up finds
// nobody; the next one of both is whole.
TEST_P(GivenUp, ExchangesOfEachRankAloneLeaveTheNextWhole) {
  Run([&](const DeviceRank& r) -> absl::Status {
    const int own = r.group.rank();
    const auto exchange = [&](int mark, int64_t n, absl::Duration time,
                              const Tensor& y) {
      return r.group.Exchange(
          {{PointToPoint::kSend, Marked(r, n, mark + own), 1 - own, 5},
           {PointToPoint::kReceive, y, 1 - own, 5}},
          Within(time));
    };
    const Tensor never = Marked(r, kLarge, -1);
    for (int round = 0; round < 2; ++round) {
      for (int who = 0; who < 2; ++who) {
        if (own == who) {
          EXPECT_THAT(exchange(1, kLarge, kSoon, never), StatusIs(kLate));
        }
        WEFT_RETURN_IF_ERROR(r.group.Barrier());
      }
      EXPECT_EQ(MarkOf(never), -1);
      const Tensor y = Marked(r, kLarge, -1);
      WEFT_RETURN_IF_ERROR(exchange(20, kLarge, kTime, y));
      EXPECT_EQ(MarkOf(y), 21 - own);
    }
    return absl::OkStatus();
  });
}

// "Ending a Future early (Future::Cancel) does not withdraw this rank's part.";
// "the group holds the handles until then": nor does a Future that ends.
TEST_P(GivenUp, FuturesThatNobodyKeepsAreSentAndReceivedAllTheSame) {
  Run([&](const DeviceRank& r) -> absl::Status {
    if (r.group.rank() == 0) {
      for (int i = 1; i <= 4; ++i) {
        Future<void> sent = r.group.SendAsync(Marked(r, kLarge, i), 1, 2);
        if (i % 2 == 0) sent.Cancel();
      }
      Reach(1);
      return absl::OkStatus();
    }
    EXPECT_TRUE(Await(1));
    std::vector<Tensor> all;
    for (int i = 1; i <= 4; ++i) {
      all.push_back(Marked(r, kLarge, -1));
      if (i == 4) {
        WEFT_RETURN_IF_ERROR(r.group.Receive(all.back(), 0, 2));
      } else {
        Future<void> received = r.group.ReceiveAsync(all.back(), 0, 2);
        if (i % 2 == 1) received.Cancel();
      }
    }
    // Those before are complete with the last of the same sender and tag, or
    // soon after.
    for (int i = 1; i <= 4; ++i) {
      EXPECT_TRUE(Becomes([&] { return MarkOf(all[i - 1]) == i; })) << i;
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::outside
