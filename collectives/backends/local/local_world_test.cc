#include "weft/collectives/backends/local/local_world.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/sim/baton_scheduler.h"
#include "weft/sim/simulator.h"
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
  backend.make_world = [cost](int size, const DiagnosisOptions& diagnosis) {
    LocalWorld::Options options;
    options.diagnosis = diagnosis;
    options.cost = cost;
    options.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    return std::make_unique<LocalTestWorld>(size, options);
  };
  return backend;
}

// So dear a message, or byte, that one all-reduce is always chosen.
INSTANTIATE_TEST_SUITE_P(Local, ProcessGroupConformance,
                         ::testing::Values(Local("ring", {0, 1}),
                                           Local("doubling", {1, 1e30})),
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
  std::thread killer([&] {
    absl::SleepFor(absl::Milliseconds(20));
    world.Kill(1);
  });
  const auto statuses = testing::RunRanks(
      3, [&](int rank) { return AllReduceOnes(world, rank); });
  killer.join();
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
  EXPECT_THAT(statuses[2],
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
}

TEST(LocalWorld, HeldMessagesArriveOnceReleased) {
  LocalWorld world(2);
  world.Hold(0);
  std::thread releaser([&] {
    absl::SleepFor(absl::Milliseconds(10));
    world.Release(0);
  });
  EXPECT_THAT(testing::RunRanks(
                  2, [&](int rank) { return AllReduceOnes(world, rank); }),
              Each(IsOk()));
  releaser.join();
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

}  // namespace
}  // namespace weft::collectives
