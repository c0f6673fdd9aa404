#include "weft/collectives/backends/device/device_suite.h"

#include <atomic>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_transfer_calls.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/current.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceTensors);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceTransfersTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceRefusals);

void DeviceTensors::RunAll(
    DeviceWorld& world,
    const std::function<absl::Status(const DeviceRank&)>& body) {
  EXPECT_THAT(world.Run(body), Each(IsOk()));
  world.ExpectSound();
}

// ----- each operation on tensors of the device, as on the CPU

TEST_P(DeviceTensors, GiveWhatThoseOfTheCpuGive) {
  const auto wanted = WantedOf(size());
  const auto world = Make(size());
  const bool is_async = seed() % 2 == 0;
  RunAll(*world, [&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    // Each rank has a stream of its own, or the default one.
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        seed() % 3 == 0
            ? rank.devices.context().CurrentStream(0)
            : rank.devices.runtime().CreateStream(rank.device().id()));
    const device::StreamScope scope(stream);
    WEFT_ASSIGN_OR_RETURN(
        const auto found,
        CallAll(
            group, [&](const Tensor& x) { return rank.Place(x); }, is_async));
    WANT_EQ(found == wanted[group.rank()], true);
    return absl::OkStatus();
  });
  EXPECT_TRUE(world->HasLaunched());
}

// Ranks of one group on the CPU, on the device that is moved, and on another.
TEST_P(DeviceTensors, OfOneCallAreTheCpuTheDeviceAndAnother) {
  if (seed() >= 6) GTEST_SKIP() << "6 seeds are enough for three places";
  const auto wanted = WantedOf(size());
  const auto world = Make(size());
  RunAll(*world, [&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const int place = (group.rank() + seed()) % 3;
    WEFT_ASSIGN_OR_RETURN(const auto found,
                          CallAll(
                              group,
                              [&](const Tensor& x) {
                                return place == 2 ? x.Clone()
                                                  : rank.Place(x, place);
                              },
                              /*is_async=*/true));
    WANT_EQ(found == wanted[group.rank()], true);
    return absl::OkStatus();
  });
}

// What the caller's stream has still to compute is in the input, and what it
// computes from the result sees all of it.
TEST_P(DeviceTensors, AreOrderedByEvents) {
  const auto world = Make(size());
  RunAll(*world, [&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        seed() % 2 == 0
            ? rank.devices.context().CurrentStream(0)
            : rank.devices.runtime().CreateStream(rank.device().id()));
    const device::StreamScope scope(stream);
    for (int round = 0; round < 5; ++round) {
      const Tensor x = rank.Place(Numbers(group.rank(), 100));
      Mul_(x, 2);
      Future<void> reduced = group.AllReduceAsync(x);
      WEFT_RETURN_IF_ERROR(reduced.Wait(kPatience));
      Mul_(x, 3);
      const Tensor wanted =
          Expected(ReduceOp::kSum, NumbersOfAll(group.size(), 100));
      Mul_(wanted, 6);
      WANT_EQ(BytesOf(x.To(Device::Cpu())), BytesOf(wanted));
    }
    return absl::OkStatus();
  });
}

// The caller drops its tensors at once, and allocates others.
TEST_P(DeviceTensors, AreKeptUntilTheirEvent) {
  const auto world = Make(size());
  RunAll(*world, [](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor kept = rank.Place(Tensor::Zeros({100}));
    std::vector<Future<void>> all;
    for (int i = 0; i < 8; ++i) {
      const Tensor x = rank.Place(Numbers(group.rank(), 100));
      all.push_back(i == 4 ? group.AllReduceIntoAsync(x, kept)
                           : group.AllReduceAsync(x));
    }
    WEFT_RETURN_IF_ERROR(WaitAll(std::move(all), kPatience));
    WANT_EQ(BytesOf(kept.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(group.size(), 100))));
    return absl::OkStatus();
  });
}

// What a rank writes, others still read: in place on some ranks, or on all.
TEST_P(DeviceTensors, AllToAllInPlaceGivesWhatItGivesElsewhere) {
  const auto world = Make(size());
  RunAll(*world, [&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const int n = group.size();
    const Tensor in = rank.Place(Numbers(group.rank(), 5 * n));
    const bool is_in_place = seed() % 2 == 0 || group.rank() == 0;
    const Tensor out = is_in_place ? in : rank.Place(Tensor::Zeros({5 * n}));
    WEFT_RETURN_IF_ERROR(group.AllToAll(in, out));
    const Tensor found = out.To(Device::Cpu());
    for (int r = 0; r < n; ++r) {
      const Tensor wanted =
          Numbers(r, 5 * n).Slice(0, 5 * group.rank(), 5 * (group.rank() + 1));
      WANT_EQ(BytesOf(found.Slice(0, 5 * r, 5 * (r + 1))), BytesOf(wanted));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceTensors, SplitSubgroupAndShrinkGoOnWithThem) {
  if (size() != 3 || seed() >= 5) GTEST_SKIP() << "5 seeds of 3 ranks";
  const auto world = Make(3);
  std::atomic<int> ready{0};
  const auto sum = [](const DeviceRank& rank, ProcessGroup& group) {
    const Tensor x = rank.Place(Tensor::Ones({4}));
    const absl::Status status = group.AllReduce(x);
    return status.ok() ? x.To(Device::Cpu()).ToVector<float>()[3] : -1;
  };
  RunAll(*world, [&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    WEFT_ASSIGN_OR_RETURN(const auto part, group.Split(group.rank() % 2));
    WANT_EQ(part->backend_name(), group.backend_name());
    WANT_EQ(sum(rank, *part), group.rank() == 1 ? 1.0f : 2.0f);
    WANT_EQ(sum(rank, group), 3.0f);
    WEFT_ASSIGN_OR_RETURN(const auto pair, group.Subgroup({2, 0}));
    if (pair != nullptr) WANT_EQ(sum(rank, *pair), 2.0f);
    ++ready;
    WANT_EQ(bool(Becomes([&] { return ready == 3; })), true);
    if (group.rank() == 1) {
      group.Revoke(absl::CancelledError("enough"));
      return absl::OkStatus();
    }
    WEFT_RETURN_IF_ERROR(group.Shrink({0, 2}));
    WANT_EQ(sum(rank, group), 2.0f);
    return group.Barrier();
  });
}

// ----- Send, Receive and Exchange

TEST_P(DeviceTransfersTest, AreMatchedByTagAndKeepTheirOrder) {
  const auto world = Make(2);
  world->host_bytes = 0;
  RunAll(*world, MatchByTagAndKeepTheOrder);
}

TEST_P(DeviceTransfersTest, OfAllPairsGoOnAtOnceInAnyOrder) {
  const auto world = Make(size());
  world->host_bytes = 0;
  RunAll(*world, [&](const DeviceRank& rank) {
    return SendBetweenAllPairsAtOnce(rank, seed());
  });
}

TEST_P(DeviceTransfersTest, ExchangeAndReceiveAny) {
  const auto world = Make(size());
  world->host_bytes = 0;
  RunAll(*world, ExchangeAndReceiveFromAny);
}

TEST_P(DeviceTransfersTest, TensorOfAnotherKindIsAnErrorAndIsDropped) {
  const auto world = Make(2);
  world->host_bytes = 0;
  RunAll(*world, RefuseTensorsOfAnotherKind);
}

TEST_P(DeviceTransfersTest, BetweenTheCpuAndDevices) {
  const auto world = Make(2);
  world->host_bytes = seed() % 2 == 0 ? 0 : 100;
  RunAll(*world, SendBetweenTheCpuAndDevices);
}

TEST_P(DeviceTransfersTest, AreOrderedByEventsAndKeptUntilThem) {
  const auto world = Make(2);
  world->host_bytes = 0;
  RunAll(*world, SendWhatIsNotComputedYet);
}

TEST_P(DeviceTransfersTest, PeerThatDoesNotCallIsNamedAndTheGroupGoesOn) {
  const auto world = Make(2);
  world->host_bytes = 0;
  std::atomic<bool> is_late{false};
  RunAll(*world, [&](const DeviceRank& rank) {
    return GiveUpWhatIsNotReceived(rank, is_late);
  });
}

// The other rank asks for what was given up before it hears of that.
TEST_P(DeviceTransfersTest, OneThatIsGivenUpIsNotInTheWayOfTheNext) {
  if (seed() >= 5 || size() > 2) GTEST_SKIP() << "5 seeds of 2 ranks";
  const auto world = Make(2);
  world->host_bytes = 0;
  std::atomic<int> step{0};
  RunAll(*world, [&](const DeviceRank& rank) {
    return SendAgainBesideOneThatIsGivenUp(rank, step);
  });
}

// The other rank would wait for it until its deadline.
TEST_P(DeviceTransfersTest, OneThatIsDroppedOnceItIsAgreedOnBreaksTheGroup) {
  if (seed() >= 5 || size() > 2) GTEST_SKIP() << "5 seeds of 2 ranks";
  const auto world = Make(2);
  world->host_bytes = 0;
  std::vector<std::unique_ptr<Backend>> backends(2);
  EXPECT_THAT(testing::RunRanks(2,
                                [&](int rank) -> absl::Status {
                                  WEFT_ASSIGN_OR_RETURN(backends[rank],
                                                        world->Connect(rank));
                                  return absl::OkStatus();
                                }),
              Each(IsOk()));
  std::vector<Tensor> tensors;
  std::vector<device::Event> ready(2);
  const auto transfer = [&](int rank) {
    Transfer made;
    made.is_send = rank == 0;
    made.peer = 1 - rank;
    made.tag = 3;
    made.dtype = DType::kF32;
    made.block = {static_cast<std::byte*>(tensors[rank].address()), 4};
    made.ready = &ready[rank];
    return made;
  };
  for (const int rank : {0, 1}) {
    const Device device(world->devices(rank).context(), 0);
    tensors.push_back(Tensor::Zeros({4}, DType::kF32, device));
    ready[rank] = *world->runtime(rank).CreateEvent(device.id());
  }
  Transfer sent = transfer(0), received = transfer(1), other = transfer(0);
  other.tag = 4;
  EXPECT_FALSE(*backends[0]->Advance(sent));
  EXPECT_FALSE(*backends[1]->Advance(received));  // says that it accepts it
  EXPECT_EQ(sent.moved_bytes, 0);
  EXPECT_FALSE(*backends[0]->Advance(other));  // hears that
  WEFT_EXPECT_OK(backends[0]->health());
  sent.state = nullptr;
  EXPECT_THAT(backends[0]->health(),
              StatusIs(kCancelled, "a Send to rank 1, tag 3, was given up"));
}

TEST_P(DeviceRefusals, TagOfTheBackendIsRefused) {
  const auto world = GetParam().make(2, 7);
  const auto statuses = world->Run([](const DeviceRank& rank) {
    return rank.group.Send(ZerosOf(rank, 4), 1 - rank.group.rank(),
                           ~uint64_t{0});
  });
  EXPECT_THAT(statuses, Each(StatusIs(kInvalid, "backend's own")));
}

// ----- before anything is on the device

TEST_P(DeviceRefusals, DifferentOperationsAreNamedAndNoneIsLaunched) {
  const std::vector<std::function<absl::Status(const DeviceRank&)>> others = {
      [](const DeviceRank& r) {
        return r.group.Broadcast(r.Place(Tensor::Zeros({4})), 0);
      },
      [](const DeviceRank& r) {
        return r.group.AllReduce(r.Place(Tensor::Zeros({5})));
      },
      // Over NCCL the host does it, where the others' is of the device.
      [](const DeviceRank& r) {
        return r.group.AllReduce(r.Place(Tensor::Zeros({4})), ReduceOp::kMax);
      },
      [](const DeviceRank& r) { return r.group.Barrier(); }};
  for (size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    const auto world = GetParam().make(3, i);
    const auto statuses = world->Run([&](const DeviceRank& rank) {
      return rank.group.rank() == 2
                 ? others[i](rank)
                 : rank.group.AllReduce(rank.Place(Tensor::Zeros({4})));
    });
    EXPECT_THAT(statuses,
                Each(AllOf(StatusIs(kDifferent, "different operations"),
                           StatusIs(kDifferent, "rank 2 called"))));
    EXPECT_FALSE(world->HasLaunched());
  }
}

TEST_P(DeviceRefusals, CountsThatOnlyPairsKnowAreComparedToo) {
  const auto world = GetParam().make(3, 1);
  const auto statuses = world->Run([](const DeviceRank& rank) {
    ProcessGroup& group = rank.group;
    std::vector<Tensor> parts;
    for (int r = 0; group.rank() == 0 && r < 3; ++r) {
      parts.push_back(rank.Place(Tensor::Zeros({4})));
    }
    const int64_t own = group.rank() == 2 ? 5 : 4;
    return group.Gather(rank.Place(Tensor::Zeros({own})), parts, 0);
  });
  EXPECT_THAT(statuses[0], StatusIs(kDifferent, "rank 2 sends 5 elements"));
  EXPECT_THAT(statuses[2], StatusIs(kDifferent, "which wants 4"));
  EXPECT_FALSE(statuses[1].ok());
  world->ExpectSound();
}

TEST_P(DeviceRefusals, RankThatDoesNotCallIsNamedAndNothingIsLaunched) {
  const auto world = GetParam().make(3, 1);
  std::atomic<int> passed{0}, failed{0};
  const auto statuses = world->Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    WEFT_RETURN_IF_ERROR(group.Barrier());
    // A rank that is still in the barrier would fail there, and not be counted.
    ++passed;
    WANT_EQ(bool(Becomes([&] { return passed == 3; })), true);
    if (group.rank() == 1) {
      WANT_EQ(bool(Becomes([&] { return failed == 2; })), true);
      return absl::OkStatus();
    }
    const absl::Status found =
        group.AllReduce(rank.Place(Numbers(group.rank(), 100)), {},
                        Within(absl::Milliseconds(200)));
    ++failed;
    return found;
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r], StatusIs(kLate, "rank 1"));
  }
  EXPECT_FALSE(world->HasLaunched());
}

TEST_P(DeviceRefusals, RefusalLeavesTheGroupAsItIs) {
  const auto world = GetParam().make(3, 1);
  const auto statuses = world->Run([](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    for (int round = 0; round < 3; ++round) {
      const Tensor wrong = rank.Place(Tensor::Zeros({4}));
      const absl::Status found = group.rank() == 1
                                     ? group.AllReduce(wrong, ReduceOp::kXor)
                                     : group.AllReduce(wrong);
      WANT_EQ(found.code(),
              group.rank() == 1 ? kInvalid : absl::StatusCode::kAborted);
      WEFT_RETURN_IF_ERROR(
          group.AllReduce(rank.Place(Numbers(group.rank(), 100))));
    }
    return group.health();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_TRUE(world->HasLaunched());
}

}  // namespace weft::collectives
