#include "weft/ps/export/saved_checkpoint.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

std::vector<absl::Status> ProblemsOf(const std::string& directory,
                                     const std::string& name) {
  std::vector<absl::Status> problems;
  SavedCheckpoint::Examine(directory, name, {}, problems);
  return problems;
}

TEST(SavedCheckpoint, TablesOfAllServersAndTheModelAreThere) {
  const testing::TempDir dir;
  const std::string name =
      SaveTables(dir.path(), 12, {Words(100), Vector(5000)}, 3);
  EXPECT_THAT(ProblemsOf(dir.path(), name), IsEmpty());
  const auto opened = SavedCheckpoint::Open(dir.path(), name);
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ((*opened)->manifest().step, 12);
  EXPECT_THAT((*opened)->files(), SizeIs(7));
  const SavedTable& words = (*opened)->tables().at("words");
  EXPECT_EQ(words.rows, 100);
  EXPECT_EQ(words.version, 9);
  EXPECT_EQ(words.places.size(), 8u);
  EXPECT_EQ(words.files.size(), 3u);
  EXPECT_EQ((*opened)->tables().at("vector").rows, 5);
  EXPECT_THAT((*opened)->Table("none"),
              StatusIs(absl::StatusCode::kNotFound, "it has words, vector"));
}

TEST(SavedCheckpoint, NamesAreThoseLabelsThatThereAreOrTheLatest) {
  const testing::TempDir dir;
  const std::string first = SaveTables(dir.path(), 1, {Words(3)}, 1);
  const std::string second = SaveTables(dir.path(), 2, {Words(3)}, 1);
  ASSERT_THAT((*checkpoint::CheckpointDirectory::Open({dir.path()}))
                  ->SetName("best", first),
              IsOk());
  EXPECT_THAT(SavedCheckpoint::List(dir.path()),
              IsOkAndHolds(ElementsAre(first, second)));
  EXPECT_THAT(SavedCheckpoint::Resolve(dir.path(), "best"),
              IsOkAndHolds(first));
  EXPECT_THAT(SavedCheckpoint::Resolve(dir.path(), "latest"),
              IsOkAndHolds(second));
  EXPECT_THAT(SavedCheckpoint::Resolve(dir.path(), "../x"),
              StatusIs(absl::StatusCode::kNotFound, second));
  EXPECT_THAT(SavedCheckpoint::List(dir.Path("none")),
              StatusIs(absl::StatusCode::kNotFound, dir.Path("none")));
  EXPECT_FALSE(std::filesystem::exists(dir.Path("none")));
}

TEST(SavedCheckpoint, AnyByteThatIsAnotherIsFoundAndItsFileNamed) {
  const testing::TempDir dir;
  const std::string name = SaveTables(dir.path(), 1, {Words(6)}, 2);
  for (const auto& entry :
       std::filesystem::directory_iterator(dir.Path(name))) {
    const std::string path = entry.path();
    const std::string good = FileBytes(path);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string damaged = good;
      damaged[at] ^= 1 << (at % 8);
      PutBytes(path, damaged);
      const auto problems = ProblemsOf(dir.path(), name);
      ASSERT_THAT(problems, SizeIs(1)) << path << " at " << at;
      ASSERT_THAT(std::string(problems[0].message()), HasSubstr(path));
    }
    for (size_t bytes = 0; bytes < good.size(); bytes += 7) {
      PutBytes(path, good.substr(0, bytes));
      const auto problems = ProblemsOf(dir.path(), name);
      ASSERT_THAT(problems, SizeIs(1)) << path << " cut at " << bytes;
      ASSERT_THAT(std::string(problems[0].message()), HasSubstr(path));
    }
    PutBytes(path, good);
  }
}

TEST(SavedCheckpoint, DamageSaysWhatWasWantedAndFound) {
  const testing::TempDir dir;
  const std::string name = SaveTables(dir.path(), 1, {Words(6)}, 2);
  const std::string path = dir.Path(name + "/shard-00001.safetensors");
  std::string bytes = FileBytes(path);
  bytes.back() ^= 1;
  PutBytes(path, bytes);
  EXPECT_THAT(ProblemsOf(dir.path(), name),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "writer \"ps1\" has SHA-256 ")));
  std::filesystem::remove(path);
  EXPECT_THAT(ProblemsOf(dir.path(), name),
              ElementsAre(StatusIs(absl::StatusCode::kNotFound, path)));
}

// A checkpoint whose files are as they were written, and yet are no tables.
class Miswritten : public ::testing::Test {
 protected:
  // The problems of a checkpoint of these files.
  std::vector<absl::Status> Of(
      const std::vector<checkpoint::Safetensors>& shards) {
    const auto opened = *checkpoint::CheckpointDirectory::Open({dir_.path()});
    const std::string attempt = *opened->Begin(1);
    std::vector<checkpoint::FileRecord> files;
    for (size_t i = 0; i < shards.size(); ++i) {
      files.push_back(*opened->AddShard(attempt, i, "ps", shards[i]));
    }
    return ProblemsOf(dir_.path(), *opened->Commit(attempt, files, {}));
  }
  checkpoint::Safetensors Shard(int server, const TableContent& table) {
    return *ToShard(server, table.spec, ImageOf(table, server, 2));
  }

  testing::TempDir dir_;
};

TEST_F(Miswritten, PartitionsThatAreMissingOrThereTwiceAreFound) {
  const auto first = Shard(0, Words(20));
  EXPECT_THAT(Of({first}),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "'words' lacks 4 of its 8 partitions")));
  EXPECT_THAT(Of({first, first}),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "shard-00001.safetensors: table 'words' "
                                   "partition 0 is in ")));
}

TEST_F(Miswritten, KeysElsewhereOrOutOfOrderAreFound) {
  auto shard = Shard(0, Words(40));
  auto* const keys = shard.tensors["key"].data<int64_t>();
  std::swap(keys[0], keys[1]);
  EXPECT_THAT(Of({shard, Shard(1, Words(40))}),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "partition 0: keys do not ascend")));
  std::swap(keys[0], keys[1]);
  std::swap(keys[0], keys[shard.tensors["key"].numel() - 1]);
  EXPECT_THAT(Of({shard, Shard(1, Words(40))}),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "of row 0 is in partition 0, wanted 6")));
}

TEST_F(Miswritten, TensorsThatDoNotFitEachOtherAreFound) {
  const auto good = Shard(0, Words(20));
  for (const auto& [name, tensor] : good.tensors) {
    auto shard = good;
    shard.tensors.erase(name);
    EXPECT_THAT(Of({shard}),
                ElementsAre(StatusIs(absl::StatusCode::kDataLoss, name)));
    shard.tensors[name] = Tensor::Zeros({1, 2}, tensor.dtype());
    EXPECT_THAT(Of({shard}), ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                                  "shard-00000.safetensors")))
        << name;
  }
}

TEST_F(Miswritten, ServersOfOtherVersionsOrSpecsAreFound) {
  TableContent late = Vector(5000);
  ++late.version;
  EXPECT_THAT(Of({Shard(0, Vector(5000)), Shard(1, late)}),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "at version 4, wanted 3 as in")));
  TableContent other = Words(20);
  other.spec.mutable_rule()->mutable_adagrad()->set_lr(0.2);
  EXPECT_THAT(Of({Shard(0, Words(20)), Shard(1, other)}),
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   "has another spec than in")));
}

TEST(SavedCheckpoint, OfOneTableOnlyItsFilesAreRead) {
  const testing::TempDir dir;
  const std::string name = SaveTables(dir.path(), 1, {Words(6), Vector(10)}, 1);
  SavedCheckpoint::Options options;
  options.table = "words";
  std::string path = dir.Path(name + "/shard-00001.safetensors");
  std::string bytes = FileBytes(path);
  bytes.back() ^= 1;
  PutBytes(path, bytes);  // of the other table
  EXPECT_THAT(SavedCheckpoint::Open(dir.path(), name, options), IsOk());
  // Its metadata name another table: so this one is not whole.
  path = dir.Path(name + "/shard-00000.safetensors");
  bytes = FileBytes(path);
  bytes[bytes.find("\"name\":\"words\"") + 8] ^= 1;
  PutBytes(path, bytes);
  EXPECT_THAT(SavedCheckpoint::Open(dir.path(), name, options).status(),
              StatusIs(absl::StatusCode::kDataLoss, "it is damaged"));
}

}  // namespace
}  // namespace weft::ps
