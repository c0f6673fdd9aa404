// Servers that die while pushes and pulls travel as int8, with error feedback.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/ps/test_job.h"
#include "weft/ps/wire/wire_values.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using v1::TableSpec;
using v1::WireValues;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

TableSpec In(TableSpec spec, WireDtype push, WireDtype pull) {
  spec.mutable_wire()->set_push(push);
  spec.mutable_wire()->set_pull(pull);
  return spec;
}

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

// The weights after rounds of two trainers, with or without deaths of servers.
std::vector<float> Trained(bool kills) {
  TestJob job(3, 2, nullptr, "", /*replicas=*/2);
  constexpr int kRounds = 45;
  constexpr int64_t kKeys = 40;
  std::atomic<int> round{0};
  std::vector<float> end;
  const TableSpec spec =
      In(SparseSpec(TableSpec::SYNC, 2), WireValues::INT8, WireValues::INT8);
  const Tensor keys = Tensor::Arange(kKeys, DType::kI64);
  std::thread killer([&] {
    for (int victim = 0; kills && victim < 3; ++victim) {
      EXPECT_TRUE(Becomes([&] { return round >= 12 * (victim + 1); }));
      EXPECT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    Tensor rows = Tensor::Zeros({kKeys, 2});
    for (int r = 0; r < kRounds; ++r) {
      for (int64_t i = 0; i < 2 * kKeys; ++i) {
        rows.data<float>()[i] =
            std::sin(static_cast<float>(i * 31 + r * 7 + trainer));
      }
      const auto pulled = (*table)->PushPull(keys, rows, keys).Wait(kTimeout);
      ASSERT_THAT(pulled, IsOk()) << "round " << r;
      if (trainer == 0) end = ValuesOf(*pulled);
      round = r;
    }
    round = 1000;
  });
  killer.join();
  return end;
}

TEST(WireFailover, SynchronousTrainingHasTheSameBitsWithAndWithoutKills) {
  const std::vector<float> undisturbed = Trained(/*kills=*/false);
  EXPECT_EQ(undisturbed.size(), 80u);
  EXPECT_EQ(Trained(/*kills=*/true), undisturbed);
}

// Each push once, though servers die: the sum is within one quantum.
TEST(WireFailover, AsynchronousPushesCountOnceThroughKills) {
  TestJob job(3, 2, nullptr, "", /*replicas=*/2);
  constexpr int kPushes = 200;
  std::atomic<int> pushes{0};
  const TableSpec spec =
      In(SparseSpec(TableSpec::ASYNC, 2), WireValues::INT8, WireValues::F32);
  const Tensor keys = Tensor::FromVector<int64_t>({7, 900, 12345});
  const Tensor rows =
      Tensor::FromVector<float>({-1270, -1, -3, -1270, -1270, 0}, {3, 2});
  std::thread killer([&] {
    for (int victim = 0; victim < 3; ++victim) {
      EXPECT_TRUE(Becomes([&] { return pushes >= 80 * (victim + 1); }));
      EXPECT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    for (int i = 0; i < kPushes; ++i) {
      ASSERT_THAT((*table)->Push(keys, rows).Wait(kTimeout), IsOk()) << i;
      ++pushes;
    }
    pushes += 1000;
  });
  killer.join();
  const auto client = job.MakeClient(0);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(pulled, IsOk());
  const std::vector<float> found = ValuesOf(*pulled);
  for (int i = 0; i < 6; ++i) {
    // Each of the two clients may be off by half a quantum of 10.
    EXPECT_NEAR(found[i], -2 * kPushes * rows.data<float>()[i], 10.1) << i;
  }
}

}  // namespace
}  // namespace weft::ps
