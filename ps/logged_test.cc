// Tables of durability LOGGED whose copies all die: the servers come back with
// their logs, and nothing that was acknowledged is lost or doubled.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

v1::TableSpec Logged(v1::TableSpec spec) {
  spec.set_durability(v1::TableSpec::LOGGED);
  return spec;
}

class LoggedTest : public ::testing::Test {
 protected:
  TestJob Make(int servers, int trainers) const {
    return TestJob(servers, trainers, nullptr, dir_.Path("saved"),
                   /*replicas=*/2, 0, kSilence, RebalanceMode::kOff,
                   dir_.Path("logs"));
  }
  testing::TempDir dir_;
};

// All servers at once, and they return in one order and in the other.
TEST_F(LoggedTest, DeathOfAllServersLosesAndDoublesNoPush) {
  auto made = Make(3, 2);
  TestJob& job = made;
  constexpr int kPushes = 240;
  constexpr int kKeys = 50;
  std::atomic<int> pushes{0};
  std::thread killer([&] {
    for (int time = 0; time < 3; ++time) {
      ASSERT_TRUE(Becomes([&] { return pushes >= 100 * (time + 1); }));
      job.KillServers({0, 1, 2});
      for (int i = 0; i < 3; ++i) job.StartServer(time == 1 ? 2 - i : i);
    }
  });
  Tensor keys = Tensor::Empty({kKeys}, DType::kI64);
  for (int i = 0; i < kKeys; ++i) keys.data<int64_t>()[i] = i * 7919;
  const v1::TableSpec spec = Logged(SparseSpec(v1::TableSpec::ASYNC, 2));
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    for (int i = 0; i < kPushes; ++i) {
      ASSERT_THAT(
          (*table)->Push(keys, Tensor::Full({kKeys, 2}, -1)).Wait(kTimeout),
          IsOk())
          << "push " << i;
      ++pushes;
    }
    pushes += 1000;
  });
  killer.join();
  const auto client = job.MakeClient(0);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(2 * kPushes));
}

TEST_F(LoggedTest, RoundsGoOnAfterTheDeathOfAllServers) {
  auto made = Make(2, 2);
  TestJob& job = made;
  constexpr int kRounds = 60;
  std::atomic<int> round{0};
  std::vector<std::vector<float>> ends(2);
  std::thread killer([&] {
    for (int time = 0; time < 2; ++time) {
      ASSERT_TRUE(Becomes([&] { return round >= 20 * (time + 1); }));
      job.KillServers({0, 1});
      for (int i = 0; i < 2; ++i) job.StartServer(i);
    }
  });
  const v1::TableSpec spec = Logged(DenseSpec(v1::TableSpec::SYNC, 2, 9000));
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Dense(spec);
    ASSERT_THAT(table.status(), IsOk());
    ASSERT_THAT((*table)->Initialize(Tensor::Full({9000}, 0)).Wait(kTimeout),
                IsOk());
    for (int r = 0; r < kRounds; ++r) {
      const auto pulled =
          (*table)
              ->PushPull(Tensor::Full({9000}, static_cast<float>(r + trainer)))
              .Wait(kTimeout);
      ASSERT_THAT(pulled.status(), IsOk()) << "round " << r;
      ends[trainer] = ValuesOf(*pulled);
      round = r;
    }
    round = 1000;
  });
  killer.join();
  float sum = 0;
  for (int r = 0; r < kRounds; ++r) sum -= static_cast<float>(2 * r + 1);
  EXPECT_THAT(ends, Each(Each(sum)));
}

// One server comes back, the other one never does.
TEST_F(LoggedTest, OneOfBothServersIsEnough) {
  for (const int back : {0, 1}) {
    testing::TempDir dir;
    TestJob job(2, 1, nullptr, "", 2, 0, kSilence, RebalanceMode::kOff,
                dir.Path("logs"));
    const auto client = job.MakeClient(0);
    const auto table =
        client->Sparse(Logged(SparseSpec(v1::TableSpec::ASYNC, 1)));
    ASSERT_THAT(table.status(), IsOk());
    const Tensor keys = Tensor::FromVector<int64_t>({1, 2, 3});
    ASSERT_THAT((*table)->Push(keys, Tensor::Full({3, 2}, -1)).Wait(kTimeout),
                IsOk());
    job.KillServers({0, 1});
    job.StartServer(back);
    const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
    ASSERT_THAT(pulled.status(), IsOk()) << back;
    EXPECT_THAT(ValuesOf(*pulled), Each(1));
  }
}

TEST_F(LoggedTest, RestoredTableIsLoggedToo) {
  auto made = Make(2, 1);
  TestJob& job = made;
  const Tensor keys = Tensor::FromVector<int64_t>({1, 2, 3});
  const v1::TableSpec spec = Logged(SparseSpec(v1::TableSpec::ASYNC, 1));
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto push = [&] {
    return (*table)->Push(keys, Tensor::Full({3, 2}, -1)).Wait(kTimeout);
  };
  ASSERT_THAT(push(), IsOk());
  const std::string path = dir_.Path("saved");
  auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory.status(), IsOk());
  const auto attempt = (*directory)->Begin(1);
  const auto files = client->Save(path, *attempt, -1);
  ASSERT_THAT(files.status(), IsOk());
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name.status(), IsOk());
  ASSERT_THAT(push(), IsOk());
  ASSERT_THAT(client->Restore(path, *name), IsOk());
  job.KillServers({0, 1});
  for (int i = 0; i < 2; ++i) job.StartServer(i);
  table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT(push(), IsOk());
  const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(2));
}

// A table below LOGGED is not served empty because another one is logged.
TEST_F(LoggedTest, TableThatIsNotLoggedIsLostAsBefore) {
  auto made = Make(2, 1);
  TestJob& job = made;
  const auto client = job.MakeClient(0, absl::Seconds(20));
  v1::TableSpec plain = SparseSpec(v1::TableSpec::ASYNC, 1);
  plain.set_name("plain");
  const auto table = client->Sparse(plain);
  ASSERT_THAT(table.status(), IsOk());
  const auto logged =
      client->Sparse(Logged(SparseSpec(v1::TableSpec::ASYNC, 1)));
  ASSERT_THAT(logged.status(), IsOk());
  const Tensor keys = Tensor::FromVector<int64_t>({1, 2, 3});
  for (SparseTable* one : {table->get(), logged->get()}) {
    ASSERT_THAT(one->Push(keys, Tensor::Full({3, 2}, -1)).Wait(kTimeout),
                IsOk());
  }
  job.KillServers({0, 1});
  for (int i = 0; i < 2; ++i) job.StartServer(i);
  EXPECT_THAT((*table)->Pull(keys).Wait(kTimeout).status(),
              StatusIs(absl::StatusCode::kDataLoss, "restore a checkpoint"));
  EXPECT_THAT((*logged)->Pull(keys).Wait(kTimeout).status(),
              StatusIs(absl::StatusCode::kDataLoss, "restore a checkpoint"));
}

TEST_F(LoggedTest, ServersWithoutALogRefuseTheTableAndNameTheFlag) {
  for (const int replicas : {1, 2}) {
    TestJob job(2, 1, nullptr, "", replicas);
    const auto client = job.MakeClient(0);
    EXPECT_THAT(
        client->Sparse(Logged(SparseSpec(v1::TableSpec::ASYNC, 1))).status(),
        StatusIs(absl::StatusCode::kFailedPrecondition, "--table-log-dir"));
  }
}

}  // namespace
}  // namespace weft::ps
