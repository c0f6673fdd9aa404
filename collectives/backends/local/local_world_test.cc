#include "weft/collectives/backends/local/local_world.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/sim/baton_scheduler.h"
#include "weft/sim/simulator.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class LocalTestWorld final : public TestWorld {
 public:
  LocalTestWorld(int size, LocalWorld::Options options)
      : world_(size, std::move(options)) {}

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    return world_.Connect(rank);
  }

 private:
  LocalWorld world_;
};

TestBackend Local(std::string name, LinkCost cost) {
  TestBackend backend;
  backend.name = std::move(name);
  backend.ranks_run_ahead = true;
  backend.make_world = [cost](int size, const DiagnosisOptions& diagnosis) {
    LocalWorld::Options options;
    options.diagnosis = diagnosis;
    options.cost = cost;
    options.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    return std::make_unique<LocalTestWorld>(size, options);
  };
  return backend;
}

LinkCost CostOf(double seconds_per_message, double bytes_per_second) {
  LinkCost cost;
  cost.seconds_per_message = seconds_per_message;
  cost.bytes_per_second = bytes_per_second;
  return cost;
}

LinkCost Halving() {
  LinkCost cost;
  cost.all_reduce = AllReduceScheme::kHalving;
  return cost;
}

// A message, or a byte, is so dear that one all-reduce is always chosen.
INSTANTIATE_TEST_SUITE_P(Local, ProcessGroupConformance,
                         ::testing::Values(Local("ring", CostOf(0, 1)),
                                           Local("doubling", CostOf(1, 1e30)),
                                           Local("halving", Halving())),
                         [](const auto& info) { return info.param.name; });

absl::Status AllReduceOnes(LocalWorld& world, int rank) {
  const auto group = ProcessGroup::Create(world.Connect(rank));
  const Tensor tensor = Tensor::Ones({100});
  WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
  return tensor.data<float>()[99] == group->size()
             ? absl::OkStatus()
             : absl::InternalError("wrong sum");
}

TEST(LocalWorld, KilledRankIsNamedOnAllOthers) {
  LocalWorld world(3);
  world.Hold(1);
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    if (rank != 1) return AllReduceOnes(world, rank);
    const auto group = ProcessGroup::Create(world.Connect(1));
    Future<void> reduced = group->AllReduceAsync(Tensor::Ones({100}));
    world.Kill(1);
    return reduced.Wait(testing::kPatience);
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
  EXPECT_THAT(statuses[2],
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
}

TEST(LocalWorld, RankIsKilledAtTheMessageThatIsNamed) {
  int deaths = 0;
  for (int64_t message = 0;; ++message) {
    LocalWorld world(3);
    world.KillAfter(1, message);
    const auto statuses = testing::RunRanks(
        3, [&](int rank) { return AllReduceOnes(world, rank); });
    if (statuses[1].ok()) break;
    ++deaths;
    EXPECT_THAT(statuses[1],
                StatusIs(absl::StatusCode::kCancelled, "rank 1 was killed"));
    // Others need not notice where they have all that they need.
    for (const int rank : {0, 2}) {
      if (statuses[rank].ok()) continue;
      EXPECT_THAT(statuses[rank],
                  StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
    }
  }
  // A peer that is ahead may have given it all before it sends its second.
  EXPECT_GE(deaths, 1);
}

TEST(LocalWorld, HeldMessagesArriveOnceReleased) {
  LocalWorld world(2);
  world.Hold(0);
  const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
    if (rank == 0) return AllReduceOnes(world, rank);
    const auto group = ProcessGroup::Create(world.Connect(1));
    Future<void> reduced = group->AllReduceAsync(Tensor::Ones({100}));
    const absl::Status held = reduced.Wait(absl::Milliseconds(20));
    world.Release(0);
    WEFT_RETURN_IF_ERROR(reduced.Wait(testing::kPatience));
    return held;
  });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
}

// They meet within a second where nothing else runs.
TEST(LocalWorld, ManyRanksOfOneProcessMeet) {
  constexpr int kSize = 256;
  LocalWorld world(kSize);
  const absl::Time begin = absl::Now();
  EXPECT_THAT(testing::RunRanks(
                  kSize, [&](int rank) { return AllReduceOnes(world, rank); }),
              Each(IsOk()));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
}

TEST(LocalWorld, GroupThatIsMadeAfterARankWasKilledFindsItEnded) {
  LocalWorld world(3);
  std::atomic<int> passed{0};
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    ++passed;
    EXPECT_TRUE(testing::Becomes([&] { return passed == 3; }));
    if (rank == 2) world.Kill(2);
    EXPECT_FALSE(group->Barrier().ok());
    WEFT_RETURN_IF_ERROR(group->Shrink({0, 1, 2}));
    return group->Barrier();
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kUnavailable, "rank 2 has ended"));
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kUnavailable, "rank 2 has ended"));
  EXPECT_THAT(statuses[2],
              StatusIs(absl::StatusCode::kCancelled, "rank 2 was killed"));
}

TEST(LocalWorld, SimulatedRanksReduceInAnyInterleaving) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    sim::Simulator simulator(seed);
    sim::BatonScheduler scheduler(simulator);
    for (const int size : {5, 64}) {
      LocalWorld::Options options;
      options.driver = &scheduler.driver();
      LocalWorld world(size, options);
      EXPECT_THAT(
          scheduler.Run(size,
                        [&](int rank) { return AllReduceOnes(world, rank); }),
          Each(IsOk()))
          << "seed " << seed;
    }
    EXPECT_EQ(scheduler.deadlocks(), 0);
  }
}

// --- The algorithms on many ranks, in virtual time. --------------------------

LinkModel SimulatedLink(sim::Simulator& simulator) {
  return {absl::Microseconds(20), 1.25e9,
          [&simulator](Instant at, std::function<void()> deliver) {
            simulator.Schedule(at, std::move(deliver), "message");
          }};
}
// A message of no bytes takes the latency.
const LinkCost kSimulatedCost = CostOf(20e-6, 1.25e9);

// What an all-reduce of so many elements takes on `size` simulated ranks.
absl::Duration SimulatedTime(int size, int64_t elements, const LinkCost& cost) {
  sim::Simulator simulator(7);
  sim::BatonScheduler scheduler(simulator);
  LocalWorld::Options options;
  options.driver = &scheduler.driver();
  options.link = SimulatedLink(simulator);
  options.cost = cost;
  LocalWorld world(size, options);
  const auto statuses = scheduler.Run(size, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    const Tensor tensor = Tensor::Full({elements}, rank % 3);
    WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
    float wanted = 0;
    for (int r = 0; r < size; ++r) wanted += r % 3;
    return tensor.data<float>()[0] == wanted &&
                   tensor.data<float>()[elements - 1] == wanted
               ? absl::OkStatus()
               : absl::InternalError("wrong sum");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(scheduler.deadlocks(), 0);
  return simulator.Now() - Instant();
}

TEST(SimulatedAllReduce, TakesAsLongAsItsFormulaSays) {
  for (const int size : {64, 96, 256}) {
    for (const AllReduceScheme scheme :
         {AllReduceScheme::kRing, AllReduceScheme::kDoubling,
          AllReduceScheme::kHalving}) {
      if (size == 256 && scheme == AllReduceScheme::kRing) continue;  // slow
      LinkCost cost = kSimulatedCost;
      cost.all_reduce = scheme;
      const int64_t elements = 16 * size;  // a cache line for each rank
      const double found =
          absl::ToDoubleSeconds(SimulatedTime(size, elements, cost));
      const double wanted =
          SecondsOf(scheme, kSimulatedCost, size, elements * 4);
      EXPECT_NEAR(found, wanted, 0.1 * wanted)
          << size << " ranks, scheme " << static_cast<int>(scheme);
    }
  }
}

TEST(SimulatedAllReduce, ChoosesTheSchemeThatIsFastest) {
  constexpr int kSize = 64;
  for (const int64_t elements : {16, 4096, 65536}) {
    absl::Duration best = absl::InfiniteDuration();
    for (const AllReduceScheme scheme :
         {AllReduceScheme::kRing, AllReduceScheme::kDoubling,
          AllReduceScheme::kHalving}) {
      LinkCost cost = kSimulatedCost;
      cost.all_reduce = scheme;
      best = std::min(best, SimulatedTime(kSize, elements, cost));
    }
    EXPECT_LE(SimulatedTime(kSize, elements, kSimulatedCost), 1.05 * best)
        << elements << " elements";
  }
}

// A rank ends at any moment of a run of operations: all others end too, and
// name it.
TEST(SimulatedAllReduce, RankThatEndsIsNamedByAllOthersAtAnyMoment) {
  constexpr int kSize = 64;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    sim::Simulator simulator(seed);
    sim::BatonScheduler scheduler(simulator);
    LocalWorld::Options options;
    options.driver = &scheduler.driver();
    options.link = SimulatedLink(simulator);
    LocalWorld world(kSize, options);
    const int victim = static_cast<int>(simulator.random().Below(kSize));
    simulator.After(
        absl::Microseconds(simulator.random().Below(4000)),
        [&] { world.Kill(victim); }, "kill");
    const auto statuses = scheduler.Run(kSize, [&](int rank) -> absl::Status {
      const auto group = ProcessGroup::Create(world.Connect(rank));
      const Tensor tensor = Tensor::Ones({1024});
      for (int round = 0; round < 1000; ++round) {
        WEFT_RETURN_IF_ERROR(group->AllReduce(tensor, ReduceOp::kAverage));
      }
      return absl::OkStatus();
    });
    for (int r = 0; r < kSize; ++r) {
      if (r == victim) continue;
      EXPECT_THAT(statuses[r],
                  StatusIs(absl::StatusCode::kUnavailable,
                           absl::StrCat("rank ", victim, " has ended")))
          << "seed " << seed;
    }
    EXPECT_EQ(scheduler.deadlocks(), 0);
  }
}

}  // namespace
}  // namespace weft::collectives
