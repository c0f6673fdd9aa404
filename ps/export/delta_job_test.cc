// Jobs that save what has changed: what is restored is what a full checkpoint
// of that moment has, to the byte.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/ps/client.h"
#include "weft/ps/export/merge.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using checkpoint::CheckpointDirectory;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

v1::TableSpec BoundedSpec(v1::TableSpec::Mode mode) {
  v1::TableSpec spec = SparseSpec(mode, 1);
  spec.mutable_rule()->mutable_adam()->set_lr(0.1);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.5);
  spec.mutable_life()->set_max_rows(1600);
  spec.mutable_life()->set_drop_versions(3);
  return spec;
}

// A safetensors file without its header.
std::string ElementsOf(const std::string& file) {
  return file.substr(8 + checkpoint::LoadLittleEndian64(file.data()));
}

class DeltaJob : public ::testing::Test {
 protected:
  DeltaJob()
      : directory_(*CheckpointDirectory::Open(
            {path_, CheckpointDirectory::Options::kKeepAll})) {}

  void Start(int servers, int replicas = 1) {
    table_ = nullptr;
    client_ = nullptr;
    job_ =
        std::make_unique<TestJob>(servers, 1, nullptr, temp_.path(), replicas);
    if (replicas == 2) {
      ASSERT_TRUE(job_->BecomesReplicated());
    }
    client_ = job_->MakeClient(0);
  }
  void Open(const v1::TableSpec& spec) {
    auto table = client_->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    table_ = *std::move(table);
  }
  // Pushes to so many keys of `range`.
  void Push(int64_t n, uint64_t range) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < n; ++i) {
      keys.push_back(static_cast<int64_t>(random_() % range));
    }
    std::vector<float> values(2 * keys.size());
    for (float& value : values) value = 1.0f * (random_() % 9) - 4.0f;
    ASSERT_THAT(table_
                    ->Push(Tensor::FromVector(keys),
                           Tensor::FromVector(values).Reshape({n, 2}))
                    .Wait(kTimeout),
                IsOk());
  }

  // A checkpoint since the newest one if there is one: its name.
  absl::StatusOr<std::string> Save(int full_every = 100) {
    auto parent = directory_->FindParent(full_every);
    if (!parent.ok()) return parent.status();
    const auto attempt = directory_->Begin(++steps_);
    if (!attempt.ok()) return attempt.status();
    auto files = client_->Save(path_, *attempt, -1, SaveAs::Delta(*parent));
    if (!files.ok()) {
      directory_->Abandon(*attempt);
      return files.status();
    }
    return directory_->Commit(*attempt, *files, {}, *parent);
  }
  // Begun and given up, before or after servers have written.
  void GiveUp(bool is_written) {
    const auto parent = *directory_->FindParent(100);
    const std::string attempt = *directory_->Begin(++steps_);
    auto files =
        client_->Snapshot(path_, attempt, -1, kTimeout, SaveAs::Delta(parent));
    if (is_written && files.ok()) {
      EXPECT_THAT(files->Wait(kTimeout), IsOk());
    }
    directory_->Abandon(attempt);
    if (!is_written && files.ok()) (void)files->Wait(kTimeout);
  }
  int64_t LinksOf(const std::string& name) {
    return directory_->ReadManifest(name)->links;
  }
  int64_t BytesOf(const std::string& name) {
    int64_t bytes = 0;
    const auto manifest = directory_->ReadManifest(name);
    EXPECT_THAT(manifest, IsOk());
    if (!manifest.ok()) return bytes;
    for (const auto& file : manifest->files) {
      bytes += file.digest.bytes;
    }
    return bytes;
  }

  // The one file of the table, when `name` is merged.
  std::string Merged(const std::string& path, const std::string& name) {
    const auto opened = SavedCheckpoint::Open(path, name);
    EXPECT_THAT(opened, IsOk());
    if (!opened.ok()) return "";
    const std::string to = temp_.Path(absl::StrCat("merged", ++merged_));
    const auto merged = Merge(**opened, to);
    EXPECT_THAT(merged, IsOk());
    return FileBytes(absl::StrCat(to, "/", merged.value_or("none"),
                                  "/shard-00000.safetensors"));
  }
  // The same of all that servers have now.
  std::string MergedNow() {
    const std::string full = temp_.Path("full");
    const auto directory = *CheckpointDirectory::Open({full});
    const std::string attempt = *directory->Begin(1);
    const auto files = client_->Save(full, attempt, -1);
    EXPECT_THAT(files, IsOk());
    const auto name = directory->Commit(attempt, *files, {});
    EXPECT_THAT(name, IsOk());
    return Merged(full, *name);
  }

  const TempDir temp_;
  const std::string path_ = temp_.Path("ckpt");
  const std::unique_ptr<CheckpointDirectory> directory_;
  std::mt19937_64 random_{1};
  std::unique_ptr<TestJob> job_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SparseTable> table_;
  int64_t steps_ = 0;
  int merged_ = 0;
};

TEST_F(DeltaJob, ChainIsToTheByteAFullCheckpointAndRestoredOnAnyServers) {
  for (const auto mode : {v1::TableSpec::ASYNC, v1::TableSpec::SYNC}) {
    SCOPED_TRACE(mode);
    const std::vector<std::string> old = *directory_->List();
    for (const std::string& name : old) {
      std::filesystem::remove_all(path_ + "/" + name);
    }
    Start(2);
    Open(BoundedSpec(mode));
    for (int i = 0; i < 20; ++i) Push(200, 3000);
    auto name = Save();
    ASSERT_THAT(name, IsOk());
    const int64_t all = BytesOf(*name);
    for (int i = 1; i <= 4; ++i) {
      if (i == 2) GiveUp(true);
      if (i == 3) GiveUp(false);
      Push(20, 3000);
      name = Save();
      ASSERT_THAT(name, IsOk());
      EXPECT_EQ(LinksOf(*name), i);
      EXPECT_LT(BytesOf(*name), all / 2);
      ASSERT_EQ(Merged(path_, *name), MergedNow());
    }
    // Other servers restore it, and save the same.
    std::string before = MergedNow();
    Push(5, 3000);
    ASSERT_NE(MergedNow(), before);
    ASSERT_THAT(client_->Restore(path_, *name), IsOk());
    EXPECT_EQ(MergedNow(), before);
    for (const int servers : {1, 3}) {
      Start(servers);
      ASSERT_THAT(client_->Restore(path_, *name), IsOk());
      EXPECT_EQ(MergedNow(), before) << servers;
      // The servers know no base, so the next checkpoint holds all, and the one
      // after it does not.
      Open(BoundedSpec(mode));
      const auto next = Save();
      ASSERT_THAT(next, IsOk());
      EXPECT_EQ(LinksOf(*next), 0);
      Push(20, 3000);
      const auto after = Save();
      ASSERT_THAT(after, IsOk());
      EXPECT_EQ(LinksOf(*after), 1);
      EXPECT_EQ(Merged(path_, *after), MergedNow());
      before = MergedNow();
      name = after;
    }
  }
}

TEST_F(DeltaJob, FullOnesComeInTurn) {
  Start(2);
  Open(BoundedSpec(v1::TableSpec::ASYNC));
  for (int i = 0; i < 20; ++i) Push(200, 3000);
  std::vector<int64_t> links;
  for (int i = 0; i < 7; ++i) {
    Push(10, 3000);
    const auto name = Save(/*full_every=*/3);
    ASSERT_THAT(name, IsOk());
    links.push_back(LinksOf(*name));
    EXPECT_EQ(Merged(path_, *name), MergedNow());
  }
  EXPECT_THAT(links, ::testing::ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

// One server has frozen and written, another dies before the commit.
TEST_F(DeltaJob, ServerThatDiesBetweenFreezeAndCommitLosesNoChange) {
  Start(2);
  Open(BoundedSpec(v1::TableSpec::ASYNC));
  for (int i = 0; i < 20; ++i) Push(200, 3000);
  const auto first = Save();
  ASSERT_THAT(first, IsOk());
  Push(50, 3000);
  const auto second = Save();
  ASSERT_THAT(second, IsOk());
  const std::string saved = MergedNow();
  Push(50, 3000);
  const auto parent = *directory_->FindParent(100);
  const std::string attempt = *directory_->Begin(++steps_);
  auto files =
      client_->Snapshot(path_, attempt, -1, kTimeout, SaveAs::Delta(parent));
  ASSERT_THAT(files, IsOk());
  job_->RestartServer(1);
  (void)files->Wait(kTimeout);  // it may have written before it died
  directory_->Abandon(attempt);
  table_ = nullptr;
  ASSERT_THAT(client_->Restore(path_, *second), IsOk());
  EXPECT_EQ(MergedNow(), saved);
  Open(BoundedSpec(v1::TableSpec::ASYNC));
  Push(50, 3000);
  const auto third = Save();
  ASSERT_THAT(third, IsOk());
  EXPECT_EQ(LinksOf(*third), 0) << "no server knows a base";
  EXPECT_EQ(Merged(path_, *third), MergedNow());
}

// What a server that takes over has is written whole, and counts.
TEST_F(DeltaJob, ServersWithReplicasWriteWholeWhatTheyHaveTakenOver) {
  Start(3, /*replicas=*/2);
  Open(BoundedSpec(v1::TableSpec::ASYNC));
  for (int i = 0; i < 20; ++i) Push(200, 3000);
  ASSERT_THAT(Save(), IsOk());
  Push(20, 3000);
  const auto second = Save();
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(LinksOf(*second), 1);
  EXPECT_EQ(Merged(path_, *second), MergedNow());
  Push(20, 3000);
  ASSERT_TRUE(job_->BecomesReplicated());
  job_->KillServer(1);
  ASSERT_TRUE(job_->BecomesReplicated());
  Push(20, 3000);
  const auto third = Save();
  ASSERT_THAT(third, IsOk());
  EXPECT_EQ(LinksOf(*third), 2) << "other partitions stayed where they were";
  EXPECT_EQ(Merged(path_, *third), MergedNow());
  SavedCheckpoint::Options options;
  const auto opened = SavedCheckpoint::Open(path_, *third, options);
  ASSERT_THAT(opened, IsOk());
  const SavedTable& table = **(*opened)->Table("t");
  EXPECT_GT(table.deltas, 0);
  EXPECT_LT(table.deltas, table.spec.partitions());
  Push(20, 3000);
  const auto fourth = Save();
  ASSERT_THAT(fourth, IsOk());
  EXPECT_EQ(Merged(path_, *fourth), MergedNow());
  const std::string wanted = MergedNow();
  Start(2, /*replicas=*/2);
  ASSERT_THAT(client_->Restore(path_, *fourth), IsOk());
  // Such servers count the pushes of an ASYNC table anew.
  EXPECT_EQ(ElementsOf(MergedNow()), ElementsOf(wanted));
}

TEST_F(DeltaJob, BrokenChainIsNamedAndNothingIsRestored) {
  Start(2);
  Open(BoundedSpec(v1::TableSpec::ASYNC));
  for (int i = 0; i < 5; ++i) Push(200, 3000);
  const auto first = Save();
  Push(20, 3000);
  const auto second = Save();
  Push(20, 3000);
  const auto third = Save();
  ASSERT_THAT(third, IsOk());
  ASSERT_EQ(LinksOf(*third), 2);
  Push(20, 3000);
  const std::string now = MergedNow();
  const std::string file =
      absl::StrCat(path_, "/", *second, "/shard-00000.safetensors");
  const std::string good = FileBytes(file);
  std::string damaged = good;
  damaged[good.size() / 2] ^= 1;
  PutBytes(file, damaged);
  EXPECT_THAT(client_->Restore(path_, *third),
              StatusIs(absl::StatusCode::kDataLoss, file));
  EXPECT_EQ(MergedNow(), now);
  PutBytes(file, good);
  const std::string elsewhere = temp_.Path("elsewhere");
  std::filesystem::rename(path_ + "/" + *second, elsewhere);
  EXPECT_THAT(client_->Restore(path_, *third),
              StatusIs(absl::StatusCode::kDataLoss, *second));
  EXPECT_EQ(MergedNow(), now);
  Push(1, 3000);  // the table is open as before
  std::filesystem::rename(elsewhere, path_ + "/" + *second);
  EXPECT_THAT(client_->Restore(path_, *third), IsOk());
}

}  // namespace
}  // namespace weft::ps
