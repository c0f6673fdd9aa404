#include "weft/collectives/backends/nccl/nccl_backend.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/current.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// ----- the conformance suite: tensors of the CPU pass through the devices

TestBackend Nccl(uint64_t seed) {
  TestBackend backend;
  backend.name = absl::StrCat("seed", seed);
  backend.averages_exactly = false;
  backend.make_world = [seed](int size, const DiagnosisOptions& diagnosis) {
    auto world = std::make_unique<NcclWorld>(size, seed, diagnosis);
    world->moves_host_tensors = true;
    return world;
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Nccl, ProcessGroupConformance,
                         ::testing::Values(Nccl(1), Nccl(2), Nccl(3)),
                         [](const auto& info) { return info.param.name; });

// Where all tensors are on the CPU, the group of the host does it all.
TestBackend OverTheHost() {
  TestBackend backend = Nccl(4);
  backend.name = "over_the_host";
  backend.averages_exactly = true;
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<NcclWorld>(size, 4, diagnosis);
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(OverTheHost, ProcessGroupConformance,
                         ::testing::Values(OverTheHost()),
                         [](const auto& info) { return info.param.name; });

// ----- each operation on tensors of devices, as on the CPU

using PlaceFn = std::function<Tensor(const Tensor&)>;

std::vector<Tensor> PlaceAll(const PlaceFn& place,
                             const std::vector<Tensor>& all) {
  std::vector<Tensor> placed;
  for (const Tensor& x : all) placed.push_back(place(x));
  return placed;
}

// What is begun, and what it writes.
class Calls {
 public:
  explicit Calls(bool is_async) : is_async_(is_async) {}

  void Add(Future<void> future, const std::vector<Tensor>& written) {
    if (!is_async_) future.Wait(kPatience).IgnoreError();
    futures_.push_back(std::move(future));
    written_.insert(written_.end(), written.begin(), written.end());
  }
  absl::StatusOr<std::vector<std::string>> Results() const {
    for (const Future<void>& future : futures_) {
      WEFT_RETURN_IF_ERROR(future.Wait(kPatience));
    }
    std::vector<std::string> all;
    for (const Tensor& x : written_) {
      all.push_back(BytesOf(x.To(Device::Cpu())));
    }
    return all;
  }

 private:
  const bool is_async_;
  std::vector<Future<void>> futures_;
  std::vector<Tensor> written_;
};

// Calls each operation with the same count on each rank.
void CallEven(ProcessGroup& group, const PlaceFn& place, int64_t count,
              Calls& calls) {
  const int n = group.size(), rank = group.rank(), root = n - 1;
  const auto input = [&](int64_t k) { return place(Numbers(rank, k)); };
  const auto output = [&](int64_t k) { return place(Tensor::Zeros({k})); };
  const Tensor x = input(count);
  calls.Add(group.AllReduceAsync(x), {x});
  const Tensor y = output(count);
  calls.Add(group.AllReduceIntoAsync(input(count), y,
                                     Reduction(ReduceOp::kSum, rank + 1)),
            {y});
  const Tensor b = rank == root ? input(count) : output(count);
  calls.Add(group.BroadcastAsync(b, root), {b});
  const Tensor r = input(count);
  calls.Add(group.ReduceAsync(r, root), {r});
  const Tensor all = output(count * n);
  calls.Add(group.AllGatherAsync(input(count), all), {all});
  const Tensor own = output(count * n);
  const Tensor mine = own.Slice(0, rank * count, (rank + 1) * count);
  mine.CopyFrom(input(count));
  calls.Add(group.AllGatherAsync(mine, own), {own});
  const Tensor part = output(count);
  calls.Add(group.ReduceScatterAsync(input(count * n), part), {part});
  const Tensor to = output(count * n);
  calls.Add(group.AllToAllAsync(input(count * n), to), {to});
  const Tensor whole = place(Numbers(rank, count, DType::kI64));
  calls.Add(group.AllReduceAsync(whole, ReduceOp::kMax), {whole});
  // Lists whose parts do not lie side by side.
  std::vector<Tensor> parts, sums;
  for (int k = 0; k < n; ++k) {
    parts.push_back(output(count));
    sums.push_back(input(count));
  }
  calls.Add(group.AllGatherListAsync(input(count), parts), parts);
  const Tensor sum = output(count);
  calls.Add(group.ReduceScatterListAsync(sums, sum), {sum});
}

// Calls each operation with counts that differ; some ranks have none.
void CallUneven(ProcessGroup& group, const PlaceFn& place, Calls& calls) {
  const int n = group.size(), rank = group.rank(), root = n - 1;
  const auto count = [](int r) { return int64_t{(r + 1) % 3}; };
  const auto own = [&] { return place(Numbers(rank, count(rank))); };
  const auto outputs = [&] {
    std::vector<Tensor> parts;
    for (int r = 0; r < n; ++r) parts.push_back(Tensor::Zeros({count(r)}));
    return PlaceAll(place, parts);
  };
  const auto inputs = [&] {
    std::vector<Tensor> parts;
    for (int r = 0; r < n; ++r) {
      parts.push_back(Numbers(rank * n + r, count(r)));
    }
    return PlaceAll(place, parts);
  };
  const std::vector<Tensor> gathered = outputs();
  calls.Add(group.AllGatherListAsync(own(), gathered), gathered);
  const std::vector<Tensor> at_root =
      rank == root ? outputs() : std::vector<Tensor>();
  calls.Add(group.GatherAsync(own(), at_root, root), at_root);
  const Tensor scattered = place(Tensor::Zeros({count(rank)}));
  calls.Add(group.ScatterAsync(rank == root ? inputs() : std::vector<Tensor>(),
                               scattered, root),
            {scattered});
  const Tensor sum = place(Tensor::Zeros({count(rank)}));
  calls.Add(group.ReduceScatterListAsync(inputs(), sum), {sum});
  std::vector<Tensor> received;
  for (int r = 0; r < n; ++r) received.push_back(Tensor::Zeros({count(rank)}));
  received = PlaceAll(place, received);
  calls.Add(group.AllToAllListAsync(inputs(), received), received);
  // Elements that do not lie side by side, and several tensors at once.
  const Tensor matrix = place(Numbers(rank, 12).View({4, 3}));
  calls.Add(group.AllReduceAsync(matrix.Select(1, 1)), {matrix});
  const Tensor a = place(Numbers(rank, 5)), b = place(Numbers(rank, 7));
  calls.Add(group.AllReduceCoalescedAsync({a, b}), {a, b});
}

absl::StatusOr<std::vector<std::string>> CallAll(ProcessGroup& group,
                                                 const PlaceFn& place,
                                                 bool is_async) {
  Calls calls(is_async);
  for (const int64_t count : {0, 1, 64, 1001}) {
    CallEven(group, place, count, calls);
  }
  CallUneven(group, place, calls);
  return calls.Results();
}

std::vector<std::vector<std::string>> WantedOf(int size) {
  LocalWorld world(size);
  std::vector<std::vector<std::string>> wanted(size);
  for (const absl::Status& status :
       testing::RunRanks(size, [&](int rank) -> absl::Status {
         const auto group = ProcessGroup::Create(world.Connect(rank));
         WEFT_ASSIGN_OR_RETURN(wanted[rank],
                               CallAll(
                                   *group, [](const Tensor& x) { return x; },
                                   /*is_async=*/false));
         return absl::OkStatus();
       })) {
    WEFT_EXPECT_OK(status);
  }
  return wanted;
}

// By seed, and ranks.
class NcclTensors : public ::testing::TestWithParam<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclTensors,
                         ::testing::Combine(::testing::Range(0, 20),
                                            ::testing::Values(2, 3)));

TEST_P(NcclTensors, GiveWhatThoseOfTheCpuGive) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  const auto wanted = WantedOf(size);
  NcclWorld world(size, seed);
  const bool is_async = seed % 2 == 0;
  const auto statuses = world.Run([&](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    // Some call with another current stream than the default one.
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        seed % 3 == 0 ? rank.devices.runtime().CreateStream(rank.device().id())
                      : rank.devices.context().CurrentStream(0));
    const device::StreamScope scope(stream);
    WEFT_ASSIGN_OR_RETURN(
        const auto found,
        CallAll(
            group, [&](const Tensor& x) { return rank.Place(x); }, is_async));
    WANT_EQ(found == wanted[group.rank()], true);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_GT(world.nccl().launches(), 0);
  EXPECT_EQ(world.nccl().mismatches(), 0);
  EXPECT_EQ(world.nccl().misuses(), 0);
  EXPECT_EQ(world.nccl().communicators(), 0);
  EXPECT_EQ(world.nccl().aborts(), 0);
}

// Ranks of one group on the CPU, on NCCL's device, and on another one.
class NcclPlaces : public NcclTensors {};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclPlaces,
                         ::testing::Combine(::testing::Range(0, 6),
                                            ::testing::Values(2, 3)));

TEST_P(NcclPlaces, OfOneCallAreTheCpuNcclsDeviceAndAnother) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  const auto wanted = WantedOf(size);
  NcclWorld world(size, seed);
  const auto statuses = world.Run([&](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const int place = (group.rank() + seed) % 3;
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
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().mismatches(), 0);
  EXPECT_EQ(world.nccl().misuses(), 0);
}

// What the caller's stream has still to compute is in the input, and what it
// computes from the result sees all of it; nobody waits for the device but the
// Future.
TEST_P(NcclTensors, AreOrderedByEvents) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  NcclWorld world(size, seed);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
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
  EXPECT_THAT(statuses, Each(IsOk()));
}

// The caller drops its tensors at once, and allocates others.
TEST_P(NcclTensors, AreKeptUntilTheirEvent) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  NcclWorld world(size, seed);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
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
  EXPECT_THAT(statuses, Each(IsOk()));
}

// ----- who moves what

TEST(NcclBackend, TensorsOfDevicesAreMovedByNcclAlone) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor tensor = rank.Place(Numbers(group.rank(), 1001));
    WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
    WANT_EQ(BytesOf(tensor.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(2, 1001))));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().launches(), 2);
}

TEST(NcclBackend, WhatNcclLacksPassesThroughTheHost) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor f32 = rank.Place(Numbers(group.rank(), 10));
    WEFT_RETURN_IF_ERROR(group.AllReduce(f32, ReduceOp::kMax));
    WANT_EQ(BytesOf(f32.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kMax, NumbersOfAll(2, 10))));
    const Tensor i64 = rank.Place(Numbers(group.rank(), 10, DType::kI64));
    WEFT_RETURN_IF_ERROR(group.AllReduce(i64, ReduceOp::kXor));
    WANT_EQ(
        BytesOf(i64.To(Device::Cpu())),
        BytesOf(Expected(ReduceOp::kXor, NumbersOfAll(2, 10, DType::kI64))));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().launches(), 0);
}

TEST(NcclBackend, FactorOfOneRankIsAppliedToItsElementsAlone) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor sum = rank.Place(Tensor::Ones({4}));
    const double factor = group.rank() == 1 ? 0.5 : 1;
    WEFT_RETURN_IF_ERROR(
        group.AllReduce(sum, Reduction(ReduceOp::kSum, factor)));
    WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
            std::vector<float>(4, 1.5f));
    WEFT_RETURN_IF_ERROR(
        group.AllReduce(sum, Reduction(ReduceOp::kAverage, factor)));
    WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
            std::vector<float>(4, 1.125f));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().mismatches(), 0);
}

TEST(NcclBackend, SplitAndShrinkGoOnWithTensorsOfDevices) {
  NcclWorld world(3, 1);
  std::atomic<int> ready{0};
  const auto sum = [](const NcclRank& rank, ProcessGroup& group) {
    const Tensor x = rank.Place(Tensor::Ones({4}));
    const absl::Status status = group.AllReduce(x);
    return status.ok() ? x.To(Device::Cpu()).ToVector<float>()[3] : -1;
  };
  const auto statuses = world.Run([&](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    WEFT_ASSIGN_OR_RETURN(const auto part, group.Split(group.rank() % 2));
    WANT_EQ(sum(rank, *part), group.rank() == 1 ? 1.0f : 2.0f);
    WANT_EQ(sum(rank, group), 3.0f);
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
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().communicators(), 0);
  EXPECT_EQ(world.nccl().mismatches(), 0);
}

TEST(NcclBackend, IsInBinariesThatLinkIt) {
  WEFT_EXPECT_OK(IsAvailable("nccl"));
}

TEST(IsAvailable, UnknownBackendIsUnimplemented) {
  EXPECT_THAT(IsAvailable("ucc"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "backend ucc is not in this binary"));
  WEFT_EXPECT_OK(IsAvailable("host"));
}

}  // namespace
}  // namespace weft::collectives
