// CheckpointDirectory by its header, promise by promise: odd arguments, two
// attempts at a time, shards in parts, names, what is found later.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

class CheckpointEdges : public ::testing::Test {
 protected:
  CheckpointEdges() { options_.path = "/ck", options_.files = &files_; }

  std::unique_ptr<CheckpointDirectory> Open() {
    auto directory = CheckpointDirectory::Open(options_);
    EXPECT_THAT(directory, IsOk());
    return *std::move(directory);
  }

  void WriteFile(const std::string& path, const std::string& bytes) {
    const auto file = files_.Create(path);
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Append(bytes), IsOk());
  }

  FakeFileSystem files_;
  CheckpointDirectory::Options options_;
};

NamedTensors One(const std::string& name, float value = 1) {
  return {{name, Tensor::Scalar<float>(value)}};
}

std::vector<std::string> NamesOf(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST_F(CheckpointEdges, OptionsThatMakeNoSenseAreRefused) {
  options_.keep_last = 0;
  EXPECT_THAT(CheckpointDirectory::Open(options_),
              StatusIs(kInvalid, "keep_last 0"));
  options_.keep_last = 1;
  options_.keep_every_steps = -1;
  EXPECT_THAT(CheckpointDirectory::Open(options_),
              StatusIs(kInvalid, "keep_every_steps -1"));
  options_.keep_every_steps = 0;
  options_.path = "";
  EXPECT_THAT(CheckpointDirectory::Open(options_), StatusIs(kInvalid, "path"));
}

TEST_F(CheckpointEdges, StepsAreFromZeroToTheLargest) {
  const auto directory = Open();
  EXPECT_THAT(directory->Begin(-1), StatusIs(kInvalid, "step -1"));
  EXPECT_THAT(directory->Save(std::numeric_limits<int64_t>::min(), {}, {}),
              StatusIs(kInvalid));
  EXPECT_THAT(directory->Save(0, One("a"), {}),
              IsOkAndHolds("ckpt-000001-step-0"));
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto name = directory->Save(most, One("a"), {});
  ASSERT_THAT(name, IsOk());
  const auto loaded = directory->LoadLatest();
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->name, *name);
  EXPECT_EQ(loaded->manifest.step, most);
}

// Somebody may give a directory any name.
TEST_F(CheckpointEdges, NumbersThatHaveComeToTheirEndAreSaid) {
  const auto directory = Open();
  ASSERT_THAT(directory->Save(1, One("a"), {}), IsOk());
  for (const char* last : {"ckpt-9223372036854775807-step-1",
                           "tmp-9223372036854775807-1-0123456789abcdef"}) {
    const std::string path = absl::StrCat("/ck/", last);
    ASSERT_THAT(files_.MakeDirectories(path), IsOk());
    EXPECT_THAT(
        directory->Save(2, One("a"), {}),
        StatusIs(absl::StatusCode::kFailedPrecondition, "9223372036854775807"));
    EXPECT_THAT(directory->List(), IsOkAndHolds(SizeIs(1)));
    ASSERT_THAT(files_.Remove(path), IsOk());
  }
  // The one before is as good as any.
  ASSERT_THAT(files_.MakeDirectories("/ck/ckpt-9223372036854775806-step-1"),
              IsOk());
  EXPECT_THAT(directory->Save(2, One("a"), {}),
              IsOkAndHolds("ckpt-9223372036854775807-step-2"));
  EXPECT_EQ(directory->LoadLatest()->manifest.step, 2);
}

TEST_F(CheckpointEdges, OtherNamesInTheDirectoryAreNoCheckpoints) {
  const auto directory = Open();
  ASSERT_THAT(directory->Save(5, One("a"), {}), IsOk());
  for (const char* name :
       {"ckpt-1-step-5", "ckpt-000002-step-", "ckpt-000002-step--5",
        "ckpt-+00002-step-5", "ckpt-000002-step-05", "ckpt-000002-step-5.old",
        "ckpt-000002-steps-5", "Ckpt-000002-step-5", "other"}) {
    const std::string path = absl::StrCat("/ck/", name);
    ASSERT_THAT(files_.MakeDirectories(path), IsOk());
    WriteFile(path + "/manifest.json", "{}");
    EXPECT_THAT(directory->Load(name), StatusIs(kInvalid)) << name;
  }
  // A checkpoint's name, but no manifest.
  ASSERT_THAT(files_.MakeDirectories("/ck/ckpt-000009-step-5"), IsOk());
  EXPECT_THAT(directory->List(),
              IsOkAndHolds(ElementsAre("ckpt-000001-step-5")));
  EXPECT_THAT(directory->Load("ckpt-000009-step-5"), StatusIs(kNotFound));
  EXPECT_EQ(directory->LoadLatest()->name, "ckpt-000001-step-5");
}

TEST_F(CheckpointEdges, CheckpointWithoutTensorsOrWithoutFilesLoads) {
  const auto directory = Open();
  ASSERT_THAT(directory->Save(1, {}, {}), IsOk());
  EXPECT_THAT(directory->LoadLatest()->tensors, IsEmpty());
  const auto attempt = directory->Begin(2);
  ASSERT_THAT(attempt, IsOk());
  ASSERT_THAT(directory->Commit(*attempt, {}, {{"k", "v"}}), IsOk());
  const auto loaded = directory->LoadLatest();
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->manifest.step, 2);
  EXPECT_EQ(loaded->manifest.metadata, Metadata({{"k", "v"}}));
  EXPECT_THAT(loaded->tensors, IsEmpty());
}

TEST_F(CheckpointEdges, MetadataThatIsNoTextLeavesNothingBehind) {
  const auto directory = Open();
  EXPECT_THAT(directory->Save(1, One("a"), {{"k", "\xff"}}),
              StatusIs(kInvalid, "UTF-8"));
  EXPECT_THAT(directory->Save(1, {{"a", Tensor()}}, {}),
              StatusIs(kInvalid, "undefined"));
  EXPECT_THAT(files_.List("/ck"), IsOkAndHolds(IsEmpty()));
}

// --- Several writers. ------------------------------------------------------

TEST_F(CheckpointEdges, ShardNumbersHaveBoundsAndAreWrittenOnce) {
  const auto directory = Open();
  const auto attempt = directory->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  for (int shard : {-1, 100000}) {
    EXPECT_THAT(directory->AddShard(*attempt, shard, "ps0", {}),
                StatusIs(kInvalid, "[0, 99999]"));
  }
  const auto last = directory->AddShard(*attempt, 99999, "ps0", {One("a"), {}});
  ASSERT_THAT(last, IsOk());
  EXPECT_EQ(last->name, "shard-99999.safetensors");
  EXPECT_THAT(directory->AddShard(*attempt, 99999, "ps1", {One("b"), {}}),
              StatusIs(absl::StatusCode::kAlreadyExists, "shard-99999"));
  ASSERT_THAT(directory->Commit(*attempt, {*last}, {}), IsOk());
  EXPECT_THAT(NamesOf(directory->LoadLatest()->tensors), ElementsAre("a"));
}

TEST_F(CheckpointEdges, ShardInPartsIsThatOfOneWrite) {
  const auto directory = Open();
  const auto attempt = directory->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  const auto parts = directory->AddShard(
      *attempt, 0, "ps0", [](WritableFile& file) -> absl::Status {
        return WriteSafetensors({One("a", 3), {}}, file);
      });
  ASSERT_THAT(parts, IsOk());
  const auto whole = directory->AddShard(*attempt, 1, "ps0", {One("a", 3), {}});
  ASSERT_THAT(whole, IsOk());
  EXPECT_EQ(parts->digest, whole->digest);
  EXPECT_THAT(directory->AddShard(*attempt, 2, "ps0",
                                  [](WritableFile&) {
                                    return absl::UnavailableError("no rows");
                                  }),
              StatusIs(absl::StatusCode::kUnavailable, "no rows"));
}

TEST_F(CheckpointEdges, RecordsOfOtherBytesAreNotCommitted) {
  const auto directory = Open();
  const auto attempt = directory->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  const auto record = directory->AddShard(*attempt, 0, "ps0", {One("a"), {}});
  ASSERT_THAT(record, IsOk());
  EXPECT_THAT(directory->Commit(*attempt, {*record, *record}, {}),
              StatusIs(kInvalid, "each once"));
  FileRecord other = *record;
  other.digest.sha256.pop_back();
  EXPECT_THAT(directory->Commit(*attempt, {other}, {}), StatusIs(kInvalid));
  other = *record;
  other.writer = "\x1b[2J";
  --other.digest.bytes;
  const absl::Status shorter =
      directory->Commit(*attempt, {other}, {}).status();
  EXPECT_THAT(shorter, StatusIs(kDataLoss, "was not committed"));
  EXPECT_EQ(shorter.message().find('\x1b'), absl::string_view::npos);
  // After the refusals the attempt is as it was.
  EXPECT_THAT(directory->Commit(*attempt, {*record}, {}), IsOk());
  EXPECT_THAT(directory->LoadLatest(), IsOk());
}

// The size is right, so that only Verify and Load can tell.
TEST_F(CheckpointEdges, RecordOfAnotherHashIsFoundWhereItIsRead) {
  const auto directory = Open();
  ASSERT_THAT(directory->Save(1, One("a"), {}), IsOk());
  options_.keep_last = CheckpointDirectory::Options::kKeepAll;
  const auto careless = Open();
  const auto attempt = careless->Begin(2);
  auto record = careless->AddShard(*attempt, 0, "ps0", {One("a"), {}});
  ASSERT_THAT(record, IsOk());
  record->digest.sha256 = DigestOf("other").sha256;
  const auto name = careless->Commit(*attempt, {*record}, {});
  ASSERT_THAT(name, IsOk());
  EXPECT_THAT(careless->Verify(*name), StatusIs(kDataLoss, "SHA-256"));
  EXPECT_THAT(careless->Load(*name), StatusIs(kDataLoss, "shard-00000"));
  EXPECT_EQ(careless->LoadLatest()->manifest.step, 1);
}

TEST_F(CheckpointEdges, CommitTwiceMakesOneCheckpoint) {
  const auto directory = Open();
  for (const bool has_file : {true, false}) {
    const auto attempt = directory->Begin(1);
    ASSERT_THAT(attempt, IsOk());
    std::vector<FileRecord> records;
    if (has_file) {
      const auto record =
          directory->AddShard(*attempt, 0, "ps0", {One("a"), {}});
      ASSERT_THAT(record, IsOk());
      records.push_back(*record);
    }
    const auto name = directory->Commit(*attempt, records, {});
    ASSERT_THAT(name, IsOk());
    EXPECT_THAT(directory->Commit(*attempt, records, {}), StatusIs(kNotFound));
    EXPECT_THAT(directory->AddShard(*attempt, 1, "ps0", {}),
                StatusIs(kNotFound));
    EXPECT_THAT(directory->Verify(*name), IsOk());
  }
  EXPECT_THAT(directory->List(), IsOkAndHolds(SizeIs(2)));
}

TEST_F(CheckpointEdges, CommitRemovesWhatEarlierAttemptsLeftNotLaterOnes) {
  const auto directory = Open();
  const auto first = directory->Begin(1);
  const auto second = directory->Begin(2);
  const auto third = directory->Begin(3);
  ASSERT_THAT(third, IsOk());
  EXPECT_THAT(directory->AddShard(*first, 0, "ps0", {One("a"), {}}), IsOk());
  EXPECT_THAT(directory->Commit(*second, {}, {}), IsOk());
  EXPECT_THAT(directory->AddShard(*first, 1, "ps0", {}), StatusIs(kNotFound));
  EXPECT_THAT(directory->Commit(*first, {}, {}), StatusIs(kNotFound));
  EXPECT_THAT(directory->AddShard(*third, 0, "ps0", {One("a"), {}}), IsOk());
  EXPECT_THAT(files_.List("/ck"), IsOkAndHolds(ElementsAre(
                                      "LATEST", "ckpt-000002-step-2", *third)));
}

TEST_F(CheckpointEdges, AbandonedAttemptsAreGoneAndTheirNumbersFreeAgain) {
  const auto directory = Open();
  const auto attempt = directory->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  ASSERT_THAT(directory->AddShard(*attempt, 0, "ps0", {One("a"), {}}), IsOk());
  ASSERT_THAT(directory->AddShard(*attempt, 1, "ps1", {One("b"), {}}), IsOk());
  directory->Abandon(*attempt);
  directory->Abandon(*attempt);
  EXPECT_THAT(files_.List("/ck"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(directory->AddShard(*attempt, 2, "ps0", {}), StatusIs(kNotFound));
  EXPECT_THAT(directory->Save(1, One("a"), {}),
              IsOkAndHolds("ckpt-000001-step-1"));
  // What Begin did not return stays.
  const int64_t spent = files_.spent();
  for (const char* name : {"", ".", "..", "ckpt-000001-step-1", "LATEST",
                           "tmp-000001-1-../../../../../x"}) {
    directory->Abandon(name);
  }
  EXPECT_EQ(files_.spent(), spent);
  EXPECT_THAT(directory->LoadLatest(), IsOk());
}

// --- What stays. -----------------------------------------------------------

TEST_F(CheckpointEdges, KeepAllKeepsDamagedOnesAndOldOnes) {
  options_.keep_last = CheckpointDirectory::Options::kKeepAll;
  const auto directory = Open();
  for (int step = 1; step <= 6; ++step) {
    ASSERT_THAT(directory->Save(step, One("a", step), {}), IsOk());
    files_.Content("/ck/ckpt-000001-step-1/manifest.json").clear();
  }
  EXPECT_THAT(directory->List(), IsOkAndHolds(SizeIs(6)));
}

TEST_F(CheckpointEdges, NamesAreOfOneTo63LettersDigitsAndDashes) {
  const auto directory = Open();
  const auto checkpoint = directory->Save(1, One("a"), {});
  ASSERT_THAT(checkpoint, IsOk());
  const std::string longest(63, 'x');
  for (const std::string& name :
       {std::string("a"), std::string("-"), std::string("best-3"), longest}) {
    EXPECT_THAT(directory->SetName(name, *checkpoint), IsOk()) << name;
    EXPECT_THAT(directory->Named(name), IsOkAndHolds(*checkpoint)) << name;
  }
  for (const std::string& name :
       {std::string(), longest + "x", std::string("Best"), std::string("a_b"),
        std::string("a/b"), std::string("a.b"), std::string("a\0", 2)}) {
    EXPECT_THAT(directory->SetName(name, *checkpoint), StatusIs(kInvalid))
        << name;
  }
  EXPECT_THAT(directory->SetName("a", "../ck/ckpt-000001-step-1"),
              StatusIs(kInvalid));
  EXPECT_THAT(directory->SetName("a", "ckpt-000002-step-2"),
              StatusIs(kNotFound));
  EXPECT_THAT(directory->Named("a"), IsOkAndHolds(*checkpoint));
}

TEST_F(CheckpointEdges, NameThatWasWrittenByHandKeepsItsCheckpoint) {
  options_.keep_last = 1;
  const auto directory = Open();
  const auto first = directory->Save(1, One("a", 1), {});
  ASSERT_THAT(first, IsOk());
  WriteFile("/ck/NAME-mine", absl::StrCat("  ", *first, " \r\n\n"));
  EXPECT_THAT(directory->Named("mine"), IsOkAndHolds(*first));
  WriteFile("/ck/NAME-Not A Name", "ckpt-000001-step-1");
  ASSERT_THAT(directory->Save(2, One("a", 2), {}), IsOk());
  EXPECT_THAT(directory->List(), IsOkAndHolds(SizeIs(2)));
  ASSERT_THAT(files_.Remove("/ck/NAME-mine"), IsOk());
  ASSERT_THAT(directory->Save(3, One("a", 3), {}), IsOk());
  EXPECT_THAT(directory->List(),
              IsOkAndHolds(ElementsAre("ckpt-000003-step-3")));
}

// The name that cannot be read may be that of any checkpoint.
TEST_F(CheckpointEdges, NothingIsRemovedWhileANameCannotBeRead) {
  options_.keep_last = 1;
  const auto directory = Open();
  ASSERT_THAT(directory->Save(1, One("a", 1), {}), IsOk());
  WriteFile("/ck/NAME-huge", std::string(2000, 'x'));
  EXPECT_THAT(directory->Save(2, One("a", 2), {}),
              StatusIs(absl::StatusCode::kResourceExhausted, "is in place"));
  EXPECT_THAT(directory->List(), IsOkAndHolds(SizeIs(2)));
  EXPECT_EQ(directory->LoadLatest()->manifest.step, 2);
  ASSERT_THAT(files_.Remove("/ck/NAME-huge"), IsOk());
  ASSERT_THAT(directory->Save(3, One("a", 3), {}), IsOk());
  EXPECT_THAT(directory->List(), IsOkAndHolds(SizeIs(1)));
}

TEST_F(CheckpointEdges, LatestIsForPeopleAloneAndIsMendedBySaving) {
  const auto directory = Open();
  ASSERT_THAT(directory->Save(1, One("a", 1), {}), IsOk());
  files_.Content("/ck/LATEST") = "ckpt-000009-step-9\n";
  EXPECT_EQ(directory->LoadLatest()->manifest.step, 1);
  ASSERT_THAT(directory->Save(2, One("a", 2), {}), IsOk());
  EXPECT_EQ(files_.Content("/ck/LATEST"), "ckpt-000002-step-2\n");
}

// --- Reading. --------------------------------------------------------------

TEST_F(CheckpointEdges, ShardsOfOtherPlacesAreNotLoaded) {
  const auto directory = Open();
  const auto name = directory->Save(1, One("a"), {});
  ASSERT_THAT(name, IsOk());
  const FileRecord record = directory->ReadManifest(*name)->files[0];
  EXPECT_THAT(directory->LoadShard(*name, record), IsOk());
  ASSERT_THAT(files_.MakeDirectories("/other"), IsOk());
  WriteFile("/other/shard-00000.safetensors",
            files_.Content(absl::StrCat("/ck/", *name, "/", record.name)));
  for (const char* elsewhere : {"", ".", "../other", "/other"}) {
    EXPECT_THAT(directory->LoadShard(elsewhere, record),
                StatusIs(kInvalid, "no checkpoint's name"))
        << elsewhere;
  }
  FileRecord moved = record;
  moved.name = "../../other/shard-00000.safetensors";
  EXPECT_THAT(directory->LoadShard(*name, moved),
              StatusIs(kInvalid, "shard-NNNNN.safetensors"));
}

TEST_F(CheckpointEdges, EveryCutOfTheSecondShardNamesIt) {
  const auto directory = Open();
  const auto attempt = directory->Begin(1);
  std::vector<FileRecord> records;
  for (int shard : {0, 1}) {
    const auto record =
        directory->AddShard(*attempt, shard, absl::StrCat("ps", shard),
                            {One(absl::StrCat("t", shard)), {}});
    ASSERT_THAT(record, IsOk());
    records.push_back(*record);
  }
  const auto name = directory->Commit(*attempt, records, {});
  ASSERT_THAT(name, IsOk());
  std::string& bytes =
      files_.Content(absl::StrCat("/ck/", *name, "/shard-00001.safetensors"));
  const std::string whole = bytes;
  for (size_t size = 0; size <= whole.size() + 1; ++size) {
    if (size == whole.size()) continue;
    bytes = whole;
    bytes.resize(size);
    EXPECT_THAT(directory->Verify(*name), StatusIs(kDataLoss, "\"ps1\""))
        << size;
    EXPECT_THAT(directory->LoadLatest(), StatusIs(kDataLoss, "shard-00001"))
        << size;
    EXPECT_THAT(directory->LoadShard(*name, records[0]), IsOk());
  }
  bytes = whole;
  EXPECT_THAT(NamesOf(directory->LoadLatest()->tensors),
              ElementsAre("t0", "t1"));
  ASSERT_THAT(
      files_.Remove(absl::StrCat("/ck/", *name, "/shard-00001.safetensors")),
      IsOk());
  EXPECT_THAT(directory->Load(*name), StatusIs(kNotFound, "shard-00001"));
}

TEST_F(CheckpointEdges, SkippedOnesAreNamedFromTheNewestOn) {
  const auto directory = Open();
  for (int step = 1; step <= 3; ++step) {
    ASSERT_THAT(directory->Save(step, One("a", step), {}), IsOk());
  }
  files_.Content("/ck/ckpt-000003-step-3/manifest.json").clear();
  files_.Content("/ck/ckpt-000002-step-2/shard-00000.safetensors").clear();
  const auto loaded = directory->LoadLatest();
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->manifest.step, 1);
  EXPECT_THAT(loaded->skipped, ElementsAre(StatusIs(kDataLoss, "ckpt-000003"),
                                           StatusIs(kDataLoss, "ckpt-000002")));
}

TEST_F(CheckpointEdges, NamesOfOthersAreNotEchoedAsRawBytes) {
  const auto directory = Open();
  const auto attempt = directory->Begin(1);
  std::vector<FileRecord> records;
  for (int shard : {0, 1}) {
    const auto record =
        directory->AddShard(*attempt, shard, "ps", {One("\x1b[2J"), {}});
    ASSERT_THAT(record, IsOk());
    records.push_back(*record);
  }
  const auto name = directory->Commit(*attempt, records, {});
  ASSERT_THAT(name, IsOk());
  for (const absl::Status& status :
       {directory->Load(*name).status(),
        directory->ReadManifest("\x1b[2J").status(),
        directory->SetName("\x1b[2J", *name)}) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().find('\x1b'), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace weft::checkpoint
