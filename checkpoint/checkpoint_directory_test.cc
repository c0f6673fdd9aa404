#include "weft/checkpoint/checkpoint_directory.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;
using Failure = FakeFileSystem::Failure;

std::unique_ptr<CheckpointDirectory> OpenOn(FakeFileSystem& files,
                                            int keep_last = 3) {
  CheckpointDirectory::Options options;
  options.path = "/ck";
  options.keep_last = keep_last;
  options.files = &files;
  auto directory = CheckpointDirectory::Open(options);
  EXPECT_TRUE(directory.ok()) << directory.status();
  return *std::move(directory);
}

NamedTensors Weights(float value) {
  return {{"layer.bias", Tensor::FromVector<float>({value})},
          {"layer.weight", Tensor::FromVector<float>({value, -value, 0.5f})}};
}

float BiasOf(const CheckpointDirectory::Loaded& loaded) {
  return loaded.tensors.at("layer.bias").item<float>();
}

TEST(CheckpointDirectory, RoundTripsOnARealDisk) {
  const TempDir dir;
  CheckpointDirectory::Options options;
  options.path = dir.Path("a/b");
  const auto directory = CheckpointDirectory::Open(options);
  WEFT_ASSERT_OK(directory);
  EXPECT_THAT((*directory)->LoadLatest(),
              StatusIs(absl::StatusCode::kNotFound, "no checkpoint in"));
  WEFT_ASSERT_OK((*directory)->Save(10, Weights(1), {{"epoch", "2"}}));
  const auto name = (*directory)->Save(20, Weights(2), {{"epoch", "4"}});
  WEFT_ASSERT_OK(name);
  EXPECT_EQ(*name, "ckpt-000002-step-20");
  const auto loaded = (*directory)->LoadLatest();
  WEFT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->name, *name);
  EXPECT_EQ(loaded->manifest.step, 20);
  EXPECT_EQ(loaded->manifest.metadata, Metadata({{"epoch", "4"}}));
  EXPECT_THAT(loaded->tensors, SizeIs(2));
  EXPECT_EQ(BiasOf(*loaded), 2.0f);
  EXPECT_THAT(loaded->skipped, IsEmpty());
  EXPECT_EQ(*LocalFiles().Read(options.path + "/LATEST", 100), *name + "\n");
}

TEST(CheckpointDirectory, SeveralWritersMakeOneCheckpoint) {
  FakeFileSystem files;
  const auto trainer = OpenOn(files);
  const auto server = OpenOn(files);
  const auto attempt = trainer->Begin(5);
  WEFT_ASSERT_OK(attempt);
  std::vector<FileRecord> records;
  for (int shard : {1, 0}) {
    const auto record = server->AddShard(
        *attempt, shard, absl::StrCat("ps", shard),
        {{{absl::StrCat("table/", shard), Tensor::Scalar<float>(shard)}}, {}});
    WEFT_ASSERT_OK(record);
    records.push_back(*record);
  }
  EXPECT_THAT(trainer->LoadLatest(), StatusIs(absl::StatusCode::kNotFound));
  WEFT_ASSERT_OK(trainer->Commit(*attempt, records, {}));
  const auto loaded = server->LoadLatest();
  WEFT_ASSERT_OK(loaded);
  EXPECT_THAT(loaded->tensors, SizeIs(2));
  EXPECT_EQ(loaded->tensors.at("table/1").item<float>(), 1.0f);
  EXPECT_EQ(loaded->manifest.files[0].writer, "ps0");
}

TEST(CheckpointDirectory, UnfinishedWritersKeepItUncommitted) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const auto attempt = directory->Begin(5);
  WEFT_ASSERT_OK(attempt);
  auto record = directory->AddShard(*attempt, 0, "ps0", {Weights(1), {}});
  WEFT_ASSERT_OK(record);
  FileRecord absent = *record;
  absent.name = ShardName(1);
  EXPECT_THAT(directory->Commit(*attempt, {*record, absent}, {}),
              StatusIs(absl::StatusCode::kNotFound, "shard-00001"));
  ++record->digest.bytes;
  EXPECT_THAT(directory->Commit(*attempt, {*record}, {}),
              StatusIs(absl::StatusCode::kDataLoss, "ps0"));
  EXPECT_THAT(*directory->List(), IsEmpty());
}

TEST(CheckpointDirectory, RefusesNamesThatLeadElsewhere) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  for (const char* name :
       {"../x", "tmp-1-2-3", "tmp-000001-5-../../../../etc0",
        "tmp-000001-5-0123456789abcdeg", "tmp-+00001-5-0123456789abcdef",
        "ckpt-000001-step-5", ""}) {
    EXPECT_THAT(directory->AddShard(name, 0, "ps0", {}),
                StatusIs(absl::StatusCode::kInvalidArgument, "no attempt"))
        << name;
  }
  EXPECT_THAT(directory->ReadManifest("../ckpt-000001-step-5"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const auto attempt = directory->Begin(5);
  WEFT_ASSERT_OK(attempt);
  // As records of other processes may have them; nothing is touched.
  const int64_t spent = files.spent();
  for (const char* name : {"../x", "../shard-00000.safetensors", "/x", ""}) {
    const FileRecord record = {name, "ps0", DigestOf("")};
    EXPECT_THAT(directory->Commit(*attempt, {record}, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, "shard-NNNNN"))
        << name;
  }
  EXPECT_EQ(files.spent(), spent);
}

TEST(CheckpointDirectory, RefusesATensorThatIsInTwoShards) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const auto attempt = directory->Begin(5);
  WEFT_ASSERT_OK(attempt);
  std::vector<FileRecord> records;
  for (int shard : {0, 1}) {
    const auto record =
        directory->AddShard(*attempt, shard, "ps", {Weights(1), {}});
    WEFT_ASSERT_OK(record);
    records.push_back(*record);
  }
  WEFT_ASSERT_OK(directory->Commit(*attempt, records, {}));
  EXPECT_THAT(directory->LoadLatest(),
              StatusIs(absl::StatusCode::kDataLoss, "earlier shard"));
}

TEST(CheckpointDirectory, KeepsTheLastGoodOnesAndMilestones) {
  FakeFileSystem files;
  CheckpointDirectory::Options options;
  options.path = "/ck";
  options.keep_last = 2;
  options.keep_every_steps = 30;
  options.files = &files;
  const auto directory = CheckpointDirectory::Open(options);
  WEFT_ASSERT_OK(directory);
  for (const int step : {10, 20, 30, 40, 50, 60}) {
    WEFT_ASSERT_OK((*directory)->Save(step, Weights(step), {}));
  }
  EXPECT_THAT(*(*directory)->List(),
              ElementsAre("ckpt-000003-step-30", "ckpt-000005-step-50",
                          "ckpt-000006-step-60"));
  EXPECT_THAT(*files.List("/ck"), SizeIs(4));  // and LATEST
}

TEST(CheckpointDirectory, DamagedOnesDoNotCountAsKept) {
  FakeFileSystem files;
  const auto directory = OpenOn(files, /*keep_last=*/2);
  WEFT_ASSERT_OK(directory->Save(1, Weights(1), {}));
  WEFT_ASSERT_OK(directory->Save(2, Weights(2), {}));
  files.Content("/ck/ckpt-000002-step-2/shard-00000.safetensors").pop_back();
  WEFT_ASSERT_OK(directory->Save(3, Weights(3), {}));
  EXPECT_THAT(*directory->List(),
              ElementsAre("ckpt-000001-step-1", "ckpt-000002-step-2",
                          "ckpt-000003-step-3"));
}

TEST(CheckpointDirectory, GoesBackToAnOlderOneAndSaysWhy) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  WEFT_ASSERT_OK(directory->Save(1, Weights(1), {}));
  WEFT_ASSERT_OK(directory->Save(2, Weights(2), {}));
  files.Content("/ck/ckpt-000002-step-2/shard-00000.safetensors")[100] ^= 1;
  const auto loaded = directory->LoadLatest();
  WEFT_ASSERT_OK(loaded);
  EXPECT_EQ(BiasOf(*loaded), 1.0f);
  ASSERT_THAT(loaded->skipped, SizeIs(1));
  EXPECT_THAT(loaded->skipped[0],
              StatusIs(absl::StatusCode::kDataLoss, "cut or damaged"));
  files.Content("/ck/ckpt-000001-step-1/manifest.json").clear();
  EXPECT_THAT(directory->LoadLatest(),
              StatusIs(absl::StatusCode::kDataLoss, "all 2 checkpoints"));
}

TEST(CheckpointDirectory, AStepGoneBackToIsTheNewestAgain) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  WEFT_ASSERT_OK(directory->Save(20, Weights(1), {}));
  WEFT_ASSERT_OK(directory->Save(10, Weights(2), {}));
  EXPECT_EQ(directory->LoadLatest()->manifest.step, 10);
}

TEST(CheckpointDirectory, NamedOnesStayUntilTheirNameIsGivenToAnother) {
  FakeFileSystem files;
  const auto directory = OpenOn(files, /*keep_last=*/1);
  const auto first = directory->Save(1, Weights(1), {});
  WEFT_ASSERT_OK(first);
  WEFT_ASSERT_OK(directory->SetName("best", *first));
  EXPECT_EQ(*directory->Named("best"), *first);
  WEFT_ASSERT_OK(directory->Save(2, Weights(2), {}));
  const auto third = directory->Save(3, Weights(3), {});
  WEFT_ASSERT_OK(third);
  EXPECT_EQ(*directory->List(), std::vector<std::string>({*first, *third}));
  WEFT_ASSERT_OK(directory->SetName("best", *third));
  const auto fourth = directory->Save(4, Weights(4), {});
  WEFT_ASSERT_OK(fourth);
  EXPECT_EQ(*directory->List(), std::vector<std::string>({*third, *fourth}));
  EXPECT_THAT(directory->SetName("../x", *third),
              StatusIs(absl::StatusCode::kInvalidArgument, "[a-z0-9-]"));
  EXPECT_THAT(directory->SetName("mine", *first),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(directory->Named("mine"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(Manifest, DamagedChecksumIsNotEchoedAsRawBytes) {
  std::string text = *FormatManifest({});
  text[15] = '\x1b';  // a digit of the checksum; a terminal obeys it
  const absl::Status damaged = ParseManifest(text, "m").status();
  EXPECT_THAT(damaged, StatusIs(absl::StatusCode::kDataLoss,
                                "wanted 64 digits, which are damaged"));
  EXPECT_EQ(damaged.message().find('\x1b'), absl::string_view::npos);
}

TEST(Manifest, NumberThatIsNoIntegerIsRefused) {
  const std::string text = *FormatManifest({});
  const size_t body_at = text.find(",\n") + 2;
  const std::string body = text.substr(body_at);
  const std::string step = "\"step\":0";
  ASSERT_NE(body.find(step), std::string::npos) << body;
  for (const char* number :
       {"12444444444444444444444444444444444444444", "1.5", "1e999", "true",
        "9223372036854775808", "-9223372036854775809", "\"1\"", "null"}) {
    std::string changed = body;
    changed.replace(body.find(step), step.size(),
                    absl::StrCat("\"step\":", number));
    const std::string manifest = absl::StrCat(
        "{\"checksum\":\"", DigestOf(changed).sha256, "\",\n", changed);
    EXPECT_THAT(ParseManifest(manifest, "m").status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << number;
  }
}

// Every bit of the manifest and of the shard, one at a time.
TEST(CheckpointDirectory, EveryBitFlipAndEveryCutIsFound) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const auto name = directory->Save(1, Weights(1), {{"epoch", "1"}});
  WEFT_ASSERT_OK(name);
  int64_t flips = 0;
  for (const char* file : {"manifest.json", "shard-00000.safetensors"}) {
    std::string& bytes = files.Content(absl::StrCat("/ck/", *name, "/", file));
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit, ++flips) {
        bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
        EXPECT_FALSE(directory->Load(*name).ok()) << file << " byte " << i;
        bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
      }
    }
    const std::string whole = bytes;
    for (size_t size = 0; size < whole.size(); ++size) {
      bytes = whole.substr(0, size);
      EXPECT_FALSE(directory->Load(*name).ok()) << file << " cut at " << size;
    }
    bytes = whole;
  }
  WEFT_EXPECT_OK(directory->Load(*name));
  EXPECT_GT(flips, 3000);
}

// What Save and what follows it spend when nothing fails.
int64_t CostOfASecondSave() {
  FakeFileSystem files;
  const auto directory = OpenOn(files, /*keep_last=*/1);
  EXPECT_TRUE(directory->Save(1, Weights(1), {}).ok());
  const int64_t before = files.spent();
  EXPECT_TRUE(directory->Save(2, Weights(2), {}).ok());
  return files.spent() - before;
}

class FailingDiskTest : public ::testing::TestWithParam<Failure> {};

// The disk fails at each byte and each operation of a second save in turn.
TEST_P(FailingDiskTest, LeavesAWholeCheckpointWhereverItFails) {
  const int64_t cost = CostOfASecondSave();
  ASSERT_GT(cost, 400);
  int64_t old_ones = 0, new_ones = 0;
  for (int64_t budget = 0; budget <= cost; ++budget) {
    const bool cuts = GetParam() == Failure::kPowerCut;
    for (uint64_t seed = 0; seed < (cuts ? 8u : 1u); ++seed) {
      FakeFileSystem files;
      auto directory = OpenOn(files, /*keep_last=*/1);
      WEFT_ASSERT_OK(directory->Save(1, Weights(1), {}));
      files.FailAfter(budget, GetParam());
      const absl::StatusOr<std::string> saved =
          directory->Save(2, Weights(2), {});
      if (saved.ok()) {
        EXPECT_GE(budget, cost - 20);  // only removing the old one failed
      } else {
        EXPECT_FALSE(absl::StrContains(saved.status().message(), "\n"));
        EXPECT_EQ(saved.status().code(),
                  GetParam() == Failure::kFull
                      ? absl::StatusCode::kResourceExhausted
                      : absl::StatusCode::kDataLoss);
        EXPECT_THAT(std::string(saved.status().message()),
                    ::testing::StartsWith("checkpoint "));
      }
      files.Restart(seed);
      directory = OpenOn(files);
      const auto loaded = directory->LoadLatest();
      WEFT_ASSERT_OK(loaded) << "budget " << budget << " seed " << seed;
      EXPECT_THAT(loaded->skipped, IsEmpty());
      EXPECT_EQ(BiasOf(*loaded), static_cast<float>(loaded->manifest.step));
      EXPECT_TRUE(!saved.ok() || loaded->manifest.step == 2);
      ++(loaded->manifest.step == 1 ? old_ones : new_ones);
      // The job goes on, and nothing stays behind.
      WEFT_ASSERT_OK(OpenOn(files, /*keep_last=*/1)->Save(3, Weights(3), {}));
      EXPECT_THAT(*files.List("/ck"), SizeIs(2));
    }
  }
  EXPECT_GT(old_ones, 300);
  EXPECT_GT(new_ones, 5);
}

INSTANTIATE_TEST_SUITE_P(Failures, FailingDiskTest,
                         ::testing::Values(Failure::kFull, Failure::kBroken,
                                           Failure::kPowerCut),
                         [](const auto& test) -> std::string {
                           switch (test.param) {
                             case Failure::kFull:
                               return "Full";
                             case Failure::kBroken:
                               return "Broken";
                             case Failure::kPowerCut:
                               return "PowerCut";
                           }
                           return "";
                         });

TEST(CheckpointDirectory, FullDiskIsCleanedUpAndTheErrorSaysWhatToDo) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  WEFT_ASSERT_OK(directory->Save(1, Weights(1), {}));
  files.FailAfter(100, Failure::kFull);
  EXPECT_THAT(directory->Save(2, Weights(2), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "older ones stay: cannot write /ck/tmp-000002-2-"));
  EXPECT_THAT(directory->Save(2, Weights(2), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "No space left on device; free space there or choose "
                       "another directory"));
  EXPECT_THAT(*files.List("/ck"), SizeIs(2));  // the first, and LATEST
}

TEST(CheckpointDirectory, AFailureBeforeTheRenameCommitsNothing) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const ScopedFailpoint failpoint("checkpoint/before_rename",
                                  "error(UNAVAILABLE)");
  EXPECT_THAT(directory->Save(1, Weights(1), {}),
              StatusIs(absl::StatusCode::kUnavailable, "was not committed"));
  EXPECT_THAT(*directory->List(), IsEmpty());
}

TEST(CheckpointDirectory, RefusesAPathThatIsAFile) {
  const testing::TempDir dir;
  WEFT_ASSERT_OK(LocalFiles().Create(dir.Path("file")));
  CheckpointDirectory::Options options;
  options.path = dir.Path("file");
  EXPECT_THAT(CheckpointDirectory::Open(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, options.path));
}

TEST(LocalFiles, RefusesLinksAndExistingFiles) {
  const TempDir dir;
  FileSystem& files = LocalFiles();
  {
    const auto file = files.Create(dir.Path("f"));
    WEFT_ASSERT_OK(file);
    WEFT_ASSERT_OK((*file)->Append("bytes"));
    WEFT_ASSERT_OK((*file)->Sync());
  }
  EXPECT_THAT(files.Create(dir.Path("f")),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(files.Read(dir.Path("f"), 4),
              StatusIs(absl::StatusCode::kResourceExhausted, "5 bytes"));
  ASSERT_EQ(symlink(dir.Path("f").c_str(), dir.Path("link").c_str()), 0);
  EXPECT_FALSE(files.Read(dir.Path("link"), 100).ok());
  EXPECT_THAT(files.Read(dir.Path("absent"), 100),
              StatusIs(absl::StatusCode::kNotFound, "absent"));
  WEFT_EXPECT_OK(files.Remove(dir.Path("absent")));
}

}  // namespace
}  // namespace weft::checkpoint
