// Servers and clients as ranks of one process: checkpoints, end to end.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

TEST(PsServiceCheckpoint, CheckpointOfTwoServersLoadsOnThree) {
  const TempDir temp;
  const std::string path = absl::StrCat(temp.path(), "/ckpt");
  auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory, IsOk());
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 1);
  spec.mutable_rule()->mutable_adam()->set_lr(0.1);
  const Tensor keys = Tensor::Arange(500, DType::kI64);
  std::string name;
  std::vector<float> after_two, after_three;
  {
    TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, temp.path());
    const auto client = job.MakeClient(0);
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    for (int i = 0; i < 2; ++i) {
      ASSERT_THAT((*table)->Push(keys, Tensor::Ones({500, 2})).Wait(kTimeout),
                  IsOk());
    }
    auto attempt = (*directory)->Begin(2);
    ASSERT_THAT(attempt, IsOk());
    EXPECT_THAT(client->Save(path, *attempt, 1),
                StatusIs(absl::StatusCode::kFailedPrecondition, "version 2"));
    attempt = (*directory)->Begin(2);
    ASSERT_THAT(attempt, IsOk());
    auto files = client->Save(path, *attempt, 2);
    ASSERT_THAT(files, IsOk());
    auto committed = (*directory)->Commit(*attempt, *files, {});
    ASSERT_THAT(committed, IsOk());
    name = *committed;
    after_two = (*table)->Pull(keys).Wait(kTimeout)->ToVector<float>();
    after_three = (*table)
                      ->PushPull(keys, Tensor::Ones({500, 2}), keys)
                      .Wait(kTimeout)
                      ->ToVector<float>();
  }
  TestJob job(/*servers=*/3, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Restore(path, name), IsOk());
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ((*table)->round(), 2);
  EXPECT_EQ((*table)->Pull(keys).Wait(kTimeout)->ToVector<float>(), after_two);
  // Adam's moments and step counts came along: the next step has the same bits.
  EXPECT_EQ((*table)
                ->PushPull(keys, Tensor::Ones({500, 2}), keys)
                .Wait(kTimeout)
                ->ToVector<float>(),
            after_three);
  EXPECT_THAT(client->Restore(path, "ckpt-000099-step-1"),
              StatusIs(absl::StatusCode::kNotFound, "ckpt-000099"));
}

// Rounds go on while it is written; it loads on another number of servers.
TEST(PsServiceCheckpoint, SnapshotIsOfTheRoundInWhichItWasTaken) {
  const TempDir temp;
  const std::string path = temp.Path("ckpt");
  const auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory, IsOk());
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 1);
  spec.mutable_rule()->mutable_adam()->set_lr(0.1);
  const Tensor keys = Tensor::Arange(500, DType::kI64);
  const Tensor ones = Tensor::Ones({500, 2});
  std::string name;
  std::vector<float> wanted;
  {
    TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, temp.path());
    const auto client = job.MakeClient(0);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    const auto step = [&] {
      const auto values = (*table)->PushPull(keys, ones, keys).Wait(kTimeout);
      EXPECT_THAT(values, IsOk());
      return values->ToVector<float>();
    };
    for (int i = 0; i < 2; ++i) wanted = step();
    const auto attempt = (*directory)->Begin(2);
    EXPECT_THAT(client->Snapshot(path, *attempt, 1, kTimeout),
                StatusIs(absl::StatusCode::kFailedPrecondition, "version 2"));
    const auto snapshot = client->Snapshot(path, *attempt, 2, kTimeout);
    ASSERT_THAT(snapshot, IsOk());
    for (int i = 0; i < 20; ++i) step();
    const auto files = snapshot->Wait(kTimeout);
    ASSERT_THAT(files, IsOk());
    const auto committed = (*directory)->Commit(*attempt, *files, {});
    ASSERT_THAT(committed, IsOk());
    name = *committed;
  }
  TestJob job(/*servers=*/3, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Restore(path, name), IsOk());
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ((*table)->round(), 2);
  EXPECT_EQ((*table)->Pull(keys).Wait(kTimeout)->ToVector<float>(), wanted);
}

TEST(PsServiceCheckpoint, RestoredTableTakesItsWorkersAndRatesFromTheNewSpec) {
  const TempDir temp;
  const std::string path = absl::StrCat(temp.path(), "/ckpt");
  auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory, IsOk());
  TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, 10);
  spec.mutable_rule()->mutable_adam()->set_lr(0.5);
  auto table = client->Dense(spec);
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Zeros({10})).Wait(kTimeout), IsOk());
  ASSERT_THAT((*table)->PushPull(Tensor::Ones({10})).Wait(kTimeout), IsOk());
  const auto attempt = (*directory)->Begin(1);
  const auto files = client->Save(path, *attempt, 1);
  ASSERT_THAT(files, IsOk());
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name, IsOk());

  v1::TableSpec changed = spec;
  changed.set_shards(2);
  changed.mutable_rule()->mutable_adam()->set_lr(0.25);
  // Not while it is in use.
  EXPECT_THAT(client->Dense(changed),
              StatusIs(absl::StatusCode::kFailedPrecondition, "lr"));
  ASSERT_THAT(client->Restore(path, *name), IsOk());
  table = client->Dense(changed);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ((*table)->round(), 1);
  const auto values = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_NEAR(values->ToVector<float>()[0], -0.5, 1e-5);  // Adam's first step
  // Two shards now, and the new rate; the moments and the step came along.
  const Tensor half = Tensor::Full({10}, 0.5f);  // the shards' sum is 1
  for (const int shard : {0, 1}) {
    ASSERT_THAT((*table)
                    ->PushShard({shard, 1, /*take_over=*/true}, half)
                    .Wait(kTimeout),
                IsOk());
  }
  (*table)->EndRound();
  const auto next = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(next, IsOk());
  EXPECT_NEAR(next->ToVector<float>()[0], -0.75, 1e-5);
  EXPECT_THAT(client->Dense(spec),
              StatusIs(absl::StatusCode::kFailedPrecondition, "shards"));

  // Settings on which the rows depend cannot change.
  ASSERT_THAT(client->Restore(path, *name), IsOk());
  v1::TableSpec other = spec;
  other.mutable_rule()->mutable_sgd()->set_lr(0.5);
  EXPECT_THAT(client->Dense(other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "a restored table may change its rule's numbers"));
  // What was refused has not used it.
  EXPECT_THAT(client->Dense(changed), IsOk());
}

// A table smaller than a slice is on one server; the others have no part in it.
TEST(PsServiceCheckpoint, CheckpointIsSavedThoughAServerHasNoSlice) {
  const TempDir temp;
  const std::string path = absl::StrCat(temp.path(), "/ckpt");
  auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory, IsOk());
  TestJob job(/*servers=*/3, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  const v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, 10);
  auto table = client->Dense(spec);
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Ones({10})).Wait(kTimeout), IsOk());
  ASSERT_THAT((*table)->PushPull(Tensor::Ones({10})).Wait(kTimeout), IsOk());
  const auto attempt = (*directory)->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  const auto files = client->Save(path, *attempt, 1);
  ASSERT_THAT(files, IsOk());
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(client->Restore(path, *name), IsOk());
  auto again = client->Dense(spec);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ((*again)->round(), 1);
  EXPECT_THAT((*again)->Pull().Wait(kTimeout)->ToVector<float>(), Each(0.0f));
}

absl::StatusOr<v1::SaveReply> SaveElsewhere(rpc::CallContext&,
                                            const v1::SaveRequest&) {
  v1::SaveReply reply;
  v1::SavedFile* file = reply.add_files();
  file->set_name("../x");
  file->set_writer("ps0");
  return reply;
}

TEST(PsServiceCheckpoint, FileNameOutsideTheCheckpointIsRefusedAndTheFileKept) {
  const TempDir temp;
  const std::string path = absl::StrCat(temp.path(), "/ckpt");
  auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory, IsOk());
  const auto attempt = (*directory)->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  const std::string elsewhere = absl::StrCat(path, "/x");
  std::ofstream(elsewhere) << "mine";
  rpc::Registry hostile;
  hostile.Add(rpc::internal::Describe<&SaveElsewhere>(rpc::RunsOn::kExecutor,
                                                      "weft::ps::Save"));
  TestJob job(/*servers=*/1, /*trainers=*/1, &hostile);
  const auto files = job.MakeClient(0)->Save(path, *attempt, 1);
  ASSERT_THAT(files, IsOk());
  EXPECT_THAT((*directory)->Commit(*attempt, *files, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "file \"../x\" of writer \"ps0\""));
  std::stringstream kept;
  kept << std::ifstream(elsewhere).rdbuf();
  EXPECT_EQ(kept.str(), "mine");
}

// Whatever a trainer asks, a server makes directories and files nowhere else.
TEST(PsServiceCheckpoint, CheckpointsOutsideTheServersDirectoryAreRefused) {
  const TempDir temp;
  const std::string root = temp.Path("root"), other = temp.Path("other");
  const std::string attempt = "tmp-000001-1-0123456789abcdef";
  std::filesystem::create_directories(root + "/run");
  std::filesystem::create_directories(other + "/" + attempt);
  std::filesystem::create_directory_symlink(other, root + "/link");
  std::filesystem::create_directory_symlink(other + "/" + attempt,
                                            root + "/run/" + attempt);
  TestJob job(/*servers=*/1, /*trainers=*/1, nullptr, root);
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)), IsOk());
  const auto is_refused = StatusIs(absl::StatusCode::kPermissionDenied,
                                   "is not in this server's --checkpoint-dir");
  for (const std::string& path :
       {other, root + "/link", root + "/../other", temp.Path("new"),
        std::string("new"), std::string("/")}) {
    EXPECT_THAT(client->CheckCheckpointDirectory(path), is_refused) << path;
    EXPECT_THAT(client->Save(path, attempt, -1), is_refused) << path;
    EXPECT_THAT(client->Restore(path, "ckpt-000001-step-1"), is_refused)
        << path;
  }
  EXPECT_THAT(client->CheckCheckpointDirectory(root + "/run"), IsOk());
  EXPECT_THAT(client->Save(root + "/run", attempt, -1), is_refused);
  EXPECT_THAT(client->Save(root + "/run", "../../other/" + attempt, -1),
              is_refused);
  EXPECT_THAT(client->Restore(root + "/run", "../../other"), is_refused);
  EXPECT_THAT(client->Save(root + "/new", attempt, -1),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(std::filesystem::exists(root + "/new"));
  EXPECT_TRUE(std::filesystem::is_empty(other + "/" + attempt));
}

TEST(PsServiceCheckpoint, CheckpointsAreRefusedWithoutADirectoryForThem) {
  const TempDir temp;
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const auto is_refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, "--checkpoint-dir=DIR");
  EXPECT_THAT(client->CheckCheckpointDirectory(temp.path()), is_refused);
  EXPECT_THAT(client->Save(temp.path(), "tmp-000001-1-0123456789abcdef", -1),
              is_refused);
  EXPECT_THAT(client->Restore(temp.path(), "ckpt-000001-step-1"), is_refused);
}

// Its table at the server is another one.
TEST(PsServiceCheckpoint, TableThatWasOpenBeforeARestoreMustBeOpenedAgain) {
  const TempDir temp;
  auto directory = checkpoint::CheckpointDirectory::Open({temp.Path("ckpt")});
  ASSERT_THAT(directory, IsOk());
  TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  ASSERT_THAT((*table)->Push(keys, Tensor::Ones({20, 2})).Wait(kTimeout),
              IsOk());
  const auto attempt = (*directory)->Begin(1);
  const auto files = client->Save(temp.Path("ckpt"), *attempt, -1);
  ASSERT_THAT(files, IsOk());
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(client->Restore(temp.Path("ckpt"), *name), IsOk());
  EXPECT_THAT((*table)->Pull(keys).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, "open it again"));
  EXPECT_THAT((*table)->Push(keys, Tensor::Ones({20, 2})).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, "open it again"));
  table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT((*table)->Pull(keys).Wait(kTimeout)->ToVector<float>(),
              Each(-1.0f));
}

// A checkpoint that a server without its rows took part in.
TEST(PsServiceCheckpoint, CheckpointThatLacksPartitionsIsRefused) {
  const TempDir temp;
  auto directory = checkpoint::CheckpointDirectory::Open({temp.Path("ckpt")});
  ASSERT_THAT(directory, IsOk());
  TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)), IsOk());
  const auto attempt = (*directory)->Begin(1);
  auto files = client->Save(temp.Path("ckpt"), *attempt, -1);
  ASSERT_THAT(files, IsOk());
  ASSERT_EQ(files->size(), 2u);
  files->pop_back();
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  EXPECT_THAT(client->Restore(temp.Path("ckpt"), *name),
              StatusIs(absl::StatusCode::kDataLoss,
                       "table 't' lacks 8 of its 16 partitions"));
}

}  // namespace
}  // namespace weft::ps
