#include "weft/collectives/backends/device/device_agreement.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/device/runtime.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::_;
using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr int kRanks = 3;

Operation OperationOf(Verb verb, std::vector<int64_t> in = {},
                      std::vector<int64_t> out = {}) {
  Operation operation;
  operation.verb = verb;
  operation.dtype = DType::kF32;
  operation.deadline = SteadyClock().Now() + absl::Seconds(60);
  // Only counts are looked at.
  for (const int64_t count : in) operation.inputs.push_back({nullptr, count});
  for (const int64_t count : out) operation.outputs.push_back({nullptr, count});
  return operation;
}

// What three ranks find of the operation that each calls, `times` in a row.
std::vector<absl::Status> Agree(
    const std::function<Operation(int rank)>& of, int times = 1,
    const std::function<void(DeviceAgreement)>& found = nullptr) {
  LocalWorld world(kRanks);
  std::vector<std::unique_ptr<Backend>> hosts;
  for (int r = 0; r < kRanks; ++r) hosts.push_back(world.Connect(r));
  return RunRanks(kRanks, [&](int rank) -> absl::Status {
    const Operation operation = of(rank);
    for (int number = 0; number < times; ++number) {
      const absl::StatusOr<DeviceAgreement> agreed =
          AgreeOnOperation(*hosts[rank], operation, number);
      if (!agreed.ok()) return agreed.status();
      if (found != nullptr) found(*agreed);
    }
    return absl::OkStatus();
  });
}

TEST(DeviceAgreement, OperationsOfTheHostHaveNoFlags) {
  for (const Verb verb :
       {Verb::kAllReduce, Verb::kBroadcast, Verb::kAllToAll}) {
    const bool is_pairs = verb == Verb::kAllToAll;
    EXPECT_THAT(Agree(
                    [&](int) {
                      return is_pairs ? OperationOf(verb, {4, 4, 4}, {4, 4, 4})
                                      : OperationOf(verb, {4}, {4});
                    },
                    /*times=*/2,
                    [](DeviceAgreement agreed) {
                      EXPECT_FALSE(agreed.any_on_device);
                      EXPECT_FALSE(agreed.any_factor);
                    }),
                Each(IsOk()));
  }
}

TEST(DeviceAgreement, FlagsOfOneRankAreKnownToAll) {
  const device::Event ready;
  for (const Verb verb : {Verb::kAllReduce, Verb::kAllToAll}) {
    const bool is_pairs = verb == Verb::kAllToAll;
    EXPECT_THAT(Agree(
                    [&](int rank) {
                      Operation operation =
                          is_pairs ? OperationOf(verb, {4, 4, 4}, {4, 4, 4})
                                   : OperationOf(verb, {4}, {4});
                      if (rank == 1) operation.ready = &ready;
                      if (rank == 2) operation.reduction.factor = 0.5;
                      return operation;
                    },
                    /*times=*/2,
                    [](DeviceAgreement agreed) {
                      EXPECT_TRUE(agreed.any_on_device);
                      EXPECT_TRUE(agreed.any_factor);
                    }),
                Each(IsOk()));
  }
}

TEST(DeviceAgreement, CountsOfEachPairFit) {
  // Rank r sends r + s to rank s, nothing to itself.
  const auto of = [](int rank) {
    std::vector<int64_t> counts;
    for (int r = 0; r < kRanks; ++r) counts.push_back(r == rank ? 0 : r + rank);
    return OperationOf(Verb::kAllToAll, counts, counts);
  };
  EXPECT_THAT(Agree(of, /*times=*/2), Each(IsOk()));
  const auto gather = [](int rank) {
    return rank == 2 ? OperationOf(Verb::kGather, {0}, {5, 7, 0})
                     : OperationOf(Verb::kGather, {rank == 0 ? 5 : 7});
  };
  EXPECT_THAT(Agree([&](int rank) {
                Operation operation = gather(rank);
                operation.root = 2;
                return operation;
              }),
              Each(IsOk()));
}

// Both ranks of a pair find it, and name who sends and who wants how much.
TEST(DeviceAgreement, CountsThatDifferAreNamedByBothRanksOfThePair) {
  const std::vector<absl::Status> found = Agree([](int rank) {
    return rank == 1 ? OperationOf(Verb::kAllToAll, {4, 4, 4}, {4, 4, 9})
                     : OperationOf(Verb::kAllToAll, {4, 4, 4}, {4, 4, 4});
  });
  const auto differs =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "rank 2 sends 4 elements to rank 1, which wants 9");
  EXPECT_THAT(found, ElementsAre(_, differs, differs));
}

TEST(DeviceAgreement, RootThatScattersAnotherCountIsNamed) {
  const std::vector<absl::Status> found = Agree([](int rank) {
    return rank == 0 ? OperationOf(Verb::kScatter, {2, 2, 3}, {2})
                     : OperationOf(Verb::kScatter, {}, {2});
  });
  const auto differs =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "rank 0 sends 3 elements to rank 2, which wants 2");
  EXPECT_THAT(found[0], differs);
  EXPECT_THAT(found[2], differs);
}

TEST(DeviceAgreement, RanksThatCalledDifferentOperationsHearOfBoth) {
  const std::vector<absl::Status> found = Agree([](int rank) {
    return OperationOf(rank == 1 ? Verb::kReduce : Verb::kAllReduce, {4}, {4});
  });
  for (const absl::Status& status : found) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, "Reduce"));
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, "AllReduce"));
  }
}

}  // namespace
}  // namespace weft::collectives
