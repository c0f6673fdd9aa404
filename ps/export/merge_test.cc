#include "weft/ps/export/merge.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/export/difference.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

TEST(Merge, HasAFileForEachTableAndTheSameContent) {
  const testing::TempDir dir;
  const auto from = SavedCheckpoint::Open(
      dir.Path("a"),
      SaveTables(dir.Path("a"), 5, {Words(200), Vector(9000)}, 3));
  ASSERT_THAT(from, IsOk());
  const auto name = Merge(**from, dir.Path("b"));
  ASSERT_THAT(name, IsOk());
  const auto merged = SavedCheckpoint::Open(dir.Path("b"), *name);
  ASSERT_THAT(merged, IsOk());
  std::vector<std::string> files;
  for (const auto& file : (*merged)->files()) files.push_back(file.record.name);
  EXPECT_THAT(files,
              ElementsAre("shard-00000.safetensors", "shard-00001.safetensors",
                          "shard-99999.safetensors"));
  EXPECT_EQ((*merged)->manifest().step, 5);
  EXPECT_EQ((*merged)->manifest().metadata.at("epoch"), "2");
  const auto difference = DifferenceBetween(**from, **merged);
  ASSERT_THAT(difference, IsOk());
  EXPECT_TRUE(difference->IsNone());
}

TEST(Merge, KeepsWhatIsKnownOfTheRowsOfABoundedTable) {
  const testing::TempDir dir;
  const auto from = SavedCheckpoint::Open(
      dir.Path("a"), SaveTables(dir.Path("a"), 5, {BoundedWords(100)}, 3));
  ASSERT_THAT(from, IsOk());
  const auto name = Merge(**from, dir.Path("b"));
  ASSERT_THAT(name, IsOk());
  const auto merged = SavedCheckpoint::Open(dir.Path("b"), *name);
  ASSERT_THAT(merged, IsOk());
  EXPECT_TRUE((*DifferenceBetween(**from, **merged)).IsNone());
  std::map<std::string, LoadedTable> tables;
  const std::string path = (*merged)->files()[0].path;
  const auto shard = checkpoint::ParseSafetensors(FileBytes(path), path);
  ASSERT_THAT(shard, IsOk());
  ASSERT_THAT(AddShard(*shard, path, tables), IsOk());
  for (const auto& [p, part] : tables.at("words").image.partitions) {
    EXPECT_EQ(part.life,
              ImageOf(BoundedWords(100), 0, 1).partitions[p].second.life);
    EXPECT_EQ(part.touched.size(), part.keys.size());
    EXPECT_EQ(part.slots.at(0).size(), part.keys.size());
  }
}

TEST(Merge, LeavesOtherCheckpointsThereAlone) {
  const testing::TempDir dir;
  const auto from = SavedCheckpoint::Open(
      dir.Path("a"), SaveTables(dir.Path("a"), 5, {Words(20)}, 2));
  ASSERT_THAT(from, IsOk());
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(Merge(**from, dir.Path("b")), IsOk());
  }
  const auto names = SavedCheckpoint::List(dir.Path("b"));
  ASSERT_THAT(names, IsOk());
  EXPECT_EQ(names->size(), 5u);
  EXPECT_THAT(Merge(**from, dir.Path("a") + "/."),
              StatusIs(absl::StatusCode::kInvalidArgument, "give another"));
}

// By whatever name, whether it is there yet or not, and nothing is made there.
TEST(Merge, IntoTheDirectoryOfItsCheckpointOrBelowIsRefused) {
  namespace fs = std::filesystem;
  const testing::TempDir dir;
  const std::string home = dir.Path("a");
  const std::string name = SaveTables(home, 5, {Words(20)}, 2);
  const auto from = SavedCheckpoint::Open(home, name);
  ASSERT_THAT(from, IsOk());
  fs::create_directory_symlink(home + "/" + name, dir.Path("link"));
  const auto all = [&] {
    std::set<std::string> paths;
    for (const auto& entry : fs::recursive_directory_iterator(home)) {
      paths.insert(entry.path());
    }
    return paths;
  };
  const std::set<std::string> before = all();
  const std::string relative = fs::relative(home + "/" + name);
  for (const std::string& to :
       {home + "/" + name, home + "/" + name + "/", home + "/" + name + "/new",
        home + "/new", home + "/new/..", home + "/new/../new/deep",
        dir.Path("none/../a"), dir.Path("link"), dir.Path("link/new/deep"),
        dir.Path("link/.."), relative, relative + "/new"}) {
    EXPECT_THAT(Merge(**from, to),
                StatusIs(absl::StatusCode::kInvalidArgument, to))
        << to;
    EXPECT_EQ(all(), before) << to;
  }
  EXPECT_FALSE(fs::exists(dir.Path("none")));
  // Beside it there is room, also under a name that begins alike.
  EXPECT_THAT(Merge(**from, home + "b"), IsOk());
  EXPECT_THAT(Merge(**from, dir.Path("link/../../c")), IsOk());
  EXPECT_EQ(all(), before);
}

// A directory may have links to checkpoints of others.
TEST(Merge, IntoTheDirectoryThatALinkOfItsCheckpointLeadsToIsRefused) {
  namespace fs = std::filesystem;
  const testing::TempDir dir;
  const std::string name = SaveTables(dir.Path("real"), 5, {Words(20)}, 2);
  fs::create_directory(dir.Path("view"));
  fs::create_directory_symlink(dir.Path("real/" + name),
                               dir.Path("view/" + name));
  const auto from = SavedCheckpoint::Open(dir.Path("view"), name);
  ASSERT_THAT(from, IsOk());
  for (const std::string& to :
       {dir.Path("real"), dir.Path("real/" + name),
        dir.Path("real/" + name + "/new"), dir.Path("view/new")}) {
    EXPECT_THAT(Merge(**from, to),
                StatusIs(absl::StatusCode::kInvalidArgument, to))
        << to;
  }
  EXPECT_THAT(SavedCheckpoint::List(dir.Path("real")),
              IsOkAndHolds(ElementsAre(name)));
  EXPECT_THAT(Merge(**from, dir.Path("merged")), IsOk());
}

// What servers saved comes back from the merged one on another number of them,
// and goes on to the same bits.
TEST(Merge, ServersRestoreItAndGoOnWithTheSameBits) {
  const testing::TempDir dir;
  TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, dir.path());
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 1);
  spec.mutable_rule()->mutable_adam()->set_lr(0.5);
  std::vector<int64_t> some;
  for (int64_t key = 0; key < 300; ++key) some.push_back(key * 7);
  const Tensor keys = Tensor::FromVector(some);
  const Tensor gradients = Tensor::Full({300, 2}, 0.25f);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->SetLearningRateScale(0.5, 0).Wait(kTimeout), IsOk());
  ASSERT_THAT((*table)->PushPull(keys, gradients, keys).Wait(kTimeout), IsOk());
  const std::string saved = dir.Path("saved");
  const auto directory = checkpoint::CheckpointDirectory::Open({saved});
  ASSERT_THAT(directory, IsOk());
  const auto attempt = (*directory)->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  const auto files = client->Save(saved, *attempt, 1);
  ASSERT_THAT(files, IsOk());
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  const auto undisturbed =
      (*table)->PushPull(keys, gradients, keys).Wait(kTimeout);
  ASSERT_THAT(undisturbed, IsOk());

  const auto opened = SavedCheckpoint::Open(saved, *name);
  ASSERT_THAT(opened, IsOk());
  const auto merged = Merge(**opened, dir.Path("merged"));
  ASSERT_THAT(merged, IsOk());
  TestJob other(/*servers=*/3, /*trainers=*/1, nullptr, dir.path());
  const auto next = other.MakeClient(0);
  ASSERT_THAT(next->Restore(dir.Path("merged"), *merged), IsOk());
  auto restored = next->Sparse(spec);
  ASSERT_THAT(restored, IsOk());
  EXPECT_EQ((*restored)->round(), 1);
  const auto values =
      (*restored)->PushPull(keys, gradients, keys).Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_EQ(values->ToVector<float>(), undisturbed->ToVector<float>());
}

}  // namespace
}  // namespace weft::ps
