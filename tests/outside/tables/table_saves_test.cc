// Checkpoints of tables that change meanwhile, and their paths.

#include <atomic>
#include <climits>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/service.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tests/outside/tables/cluster.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// ---- A save while pushes go on.

// Whatever it was asked while rounds went on: a checkpoint that loads has one
// version of the whole table.
TEST(TableSaves, SaveWhileRoundsGoOnIsOneVersionOfAllServersOrRefused) {
  constexpr int kRounds = 60;
  constexpr int64_t kElements = 20 * kMinSliceElements;
  const TempDir temp;
  Directory directory(temp);
  const v1::TableSpec spec = Dense(v1::TableSpec::SYNC, 2, kElements);
  std::vector<std::string> saved;
  {
    Cluster cluster(2, 3, temp.path());
    std::atomic<int> training{2};
    std::vector<std::thread> trainers;
    for (int t = 0; t < 2; ++t) {
      trainers.emplace_back([&, t] {
        const auto client = cluster.MakeClient(t);
        auto table = client->Dense(spec);
        ASSERT_THAT(table, IsOk());
        ASSERT_THAT(
            (*table)->Initialize(Tensor::Zeros({kElements})).Wait(kLong),
            IsOk());
        for (int round = 0; round < kRounds; ++round) {
          const auto values =
              (*table)->PushPull(Tensor::Full({kElements}, -0.5)).Wait(kLong);
          ASSERT_THAT(values, IsOk());
          ASSERT_EQ(values->data<float>()[0], round + 1);
        }
        --training;
      });
    }
    const auto saver = cluster.MakeClient(2);
    ASSERT_THAT(saver->Describe(), IsOk());
    int saves = 0;
    while (training > 0 && saves < 40) {
      const auto name = directory.Save(*saver, -1);
      ++saves;
      if (name.ok()) {
        saved.push_back(*name);
      } else {
        EXPECT_THAT(name.status(),
                    StatusIs(absl::StatusCode::kFailedPrecondition));
      }
    }
    for (std::thread& trainer : trainers) trainer.join();
    const auto last = directory.Save(*saver, kRounds);
    ASSERT_THAT(last, IsOk());
    saved.push_back(*last);
    EXPECT_THAT(directory.Save(*saver, kRounds + 1),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  const auto kept = directory.files->List();
  ASSERT_THAT(kept, IsOk());
  for (const std::string& name : *kept) {
    Cluster cluster(3, 1, temp.path());
    const auto client = cluster.MakeClient(0);
    const absl::Status restored = client->Restore(directory.path, name);
    if (!restored.ok()) {
      EXPECT_NE(name, saved.back()) << restored;
      EXPECT_THAT(restored, Not(StatusIs(absl::StatusCode::kInternal)));
      continue;
    }
    auto table = client->Dense(spec);
    ASSERT_THAT(table, IsOk());
    const auto values = (*table)->Pull().Wait(kLong);
    ASSERT_THAT(values, IsOk());
    EXPECT_THAT(values->ToVector<float>(),
                Each(static_cast<float>((*table)->round())))
        << name;
  }
}

TEST(TableSaves, SaveWhilePushesGoOnHasWholeRowsAndLosesNone) {
  const TempDir temp;
  Directory directory(temp);
  const v1::TableSpec spec = Sparse(v1::TableSpec::ASYNC);
  const Tensor keys = Tensor::Arange(500, DType::kI64);
  std::string during, after;
  {
    Cluster cluster(2, 2, temp.path());
    std::atomic<bool> stop{false};
    std::atomic<int> pushed{0};
    std::thread trainer([&] {
      const auto client = cluster.MakeClient(0);
      auto table = client->Sparse(spec);
      ASSERT_THAT(table, IsOk());
      while (!stop) {
        std::vector<Future<void>> pushes;
        for (int i = 0; i < 70; ++i) {
          pushes.push_back((*table)->Push(keys, Tensor::Full({500, 2}, -1)));
        }
        ASSERT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
        pushed += 70;
      }
    });
    EXPECT_TRUE(Becomes([&] { return pushed >= 70; }));
    const auto saver = cluster.MakeClient(1);
    for (int i = 0; i < 5; ++i) {
      const int before = pushed;
      const auto name = directory.Save(*saver, -1);
      ASSERT_THAT(name, IsOk());
      during = *name;
      EXPECT_TRUE(Becomes([&] { return pushed > before; }));
    }
    stop = true;
    trainer.join();
    const auto name = directory.Save(*saver, -1);
    ASSERT_THAT(name, IsOk());
    after = *name;
    auto table = saver->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    EXPECT_THAT((*table)->Pull(keys).Wait(kLong)->ToVector<float>(),
                Each(static_cast<float>(pushed)));
  }
  Cluster cluster(3, 1, temp.path());
  const auto client = cluster.MakeClient(0);
  float wanted = 0;
  for (const std::string& name : {after, during}) {
    ASSERT_THAT(client->Restore(directory.path, name), IsOk());
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    const auto rows = (*table)->Pull(keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    const std::vector<float> values = rows->ToVector<float>();
    for (size_t i = 0; i < values.size(); i += 2) {
      ASSERT_EQ(values[i], values[i + 1]);
      ASSERT_EQ(values[i], std::floor(values[i]));
      ASSERT_GE(values[i], 70.0f);
    }
    if (name == after) wanted = values[0];
    EXPECT_LE(values[0], wanted);
    EXPECT_THAT((*table)->Push(keys, Tensor::Ones({500, 2})).Wait(kLong),
                IsOk());
  }
}

// ---- Checkpoint paths.

TEST(CheckpointPaths, NoWordingLeadsOutOfTheServersDirectory) {
  const TempDir temp;
  const std::string root = temp.Path("root");
  const std::string attempt = "tmp-000001-1-0123456789abcdef";
  for (const char* made : {"root/run", "root2", "root/deep/er"}) {
    std::filesystem::create_directories(temp.Path(made) + "/" + attempt);
  }
  std::filesystem::create_directory_symlink(root + "/loop", root + "/loop");
  std::filesystem::create_directory_symlink("../../root2", root + "/deep/out");
  std::filesystem::create_directory_symlink("../run", root + "/deep/in");
  Cluster cluster(1, 1, root);
  const auto client = cluster.MakeClient(0);
  ASSERT_THAT(client->Sparse(Sparse(v1::TableSpec::ASYNC)), IsOk());
  for (const std::string& good :
       {root, root + "/", root + "//run/", root + "/run/../run/.",
        root + "/deep/in", root + "/deep/../run"}) {
    EXPECT_THAT(client->CheckCheckpointDirectory(good), IsOk()) << good;
  }
  std::string with_zero = root + "/run";
  with_zero.push_back('\0');
  with_zero += "/../../root2";
  const auto before = [&] {
    std::set<std::string> all;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(temp.path())) {
      all.insert(entry.path());
    }
    return all;
  };
  const std::set<std::string> there = before();
  for (const std::string& bad :
       {temp.Path("root2"), root + "2", root + "/../root2", root + "/deep/out",
        root + "/deep/out/../root2", root + "/loop", std::string(),
        std::string("."), std::string(".."), std::string("root/run"), with_zero,
        root + std::string(1, '\0'), root + "/" + std::string(5000, 'x'),
        root + "/run/\n", "file://" + root, std::string("~")}) {
    EXPECT_THAT(client->CheckCheckpointDirectory(bad), Not(IsOk())) << bad;
    EXPECT_THAT(client->Save(bad, attempt, -1).status(), Not(IsOk())) << bad;
    EXPECT_THAT(client->Restore(bad, "ckpt-000001-step-1"), Not(IsOk())) << bad;
  }
  std::string name_with_zero = attempt;
  name_with_zero.push_back('\0');
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), "../run/" + attempt,
        "./" + attempt, attempt + "/", attempt + "/../../../root2/" + attempt,
        name_with_zero, std::string("tmp-"), std::string("ckpt-000001-step-1"),
        "/" + temp.Path("root2"), std::string(5000, 't')}) {
    EXPECT_THAT(client->Save(root + "/run", bad, -1).status(), Not(IsOk()))
        << bad;
    EXPECT_THAT(client->Restore(root + "/run", bad), Not(IsOk())) << bad;
  }
  EXPECT_EQ(before(), there);
}

TEST(CheckpointPaths, ShardNumbersThatCannotBeAreRefused) {
  const TempDir temp;
  Directory directory(temp);
  Cluster cluster(1, 1, temp.path());
  const auto client = cluster.MakeClient(0);
  ASSERT_THAT(client->Sparse(Sparse(v1::TableSpec::ASYNC)), IsOk());
  const auto attempt = directory.files->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  for (const int32_t first : {-1, INT_MIN, INT_MAX, 100000000}) {
    v1::SaveRequest request;
    request.set_directory(directory.path);
    request.set_attempt(*attempt);
    request.set_first_shard(first);
    request.set_version(-1);
    const auto saved =
        rpc::Call(cluster.trainer(0).To("ps0", kLong), &ps::Save, request);
    if (saved.ok()) {
      // Then each file lies where it says.
      for (const auto& file : saved->files()) {
        EXPECT_TRUE(std::filesystem::exists(directory.path + "/" + *attempt +
                                            "/" + file.name()))
            << file.name();
      }
    } else {
      EXPECT_THAT(saved.status(), Not(StatusIs(absl::StatusCode::kInternal)))
          << first;
    }
  }
}

}  // namespace
}  // namespace weft::ps
