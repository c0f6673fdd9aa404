#include "weft/ps/export/served_exports.h"

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class Served : public ::testing::Test {
 protected:
  void Export(const TableContent& table) {
    const std::string saved = dir_.Path("saved");
    const auto opened =
        SavedCheckpoint::Open(saved, SaveTables(saved, 1, {table}, 2));
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(ExportTable(**opened, table.spec.name(), path_), IsOk());
  }
  // Every weight of it is its version.
  void ExportVersion(int64_t version) {
    TableContent words = Words(500);
    words.version = version;
    for (auto& [key, row] : words.rows) row = {1.0f * version, 1.0f * version};
    Export(words);
  }
  std::unique_ptr<ServedExports> Open() {
    auto served = ServedExports::Open({path_});
    EXPECT_THAT(served, IsOk());
    return served.ok() ? *std::move(served) : nullptr;
  }

  testing::TempDir dir_;
  const std::string path_ = dir_.Path("words.safetensors");
};

TEST_F(Served, NewFileIsTakenAndTheOldOneKeptByWhoHasIt) {
  ExportVersion(1);
  const auto served = Open();
  ASSERT_NE(served, nullptr);
  EXPECT_THAT(served->Poll(), IsEmpty());
  const auto old = served->Find("words");
  ASSERT_THAT(old, IsOk());
  ExportVersion(2);
  const auto changes = served->Poll();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_THAT(changes[0].status, IsOk());
  EXPECT_EQ((*served->Find("words"))->version(), 2);
  EXPECT_THAT(served->Poll(), IsEmpty());
  std::vector<float> values(2);
  std::vector<uint8_t> found(1);
  ASSERT_THAT((*old)->LookUp({WordKey(4)}, absl::MakeSpan(values),
                             absl::MakeSpan(found)),
              IsOk());
  EXPECT_THAT(values, ElementsAre(1, 1));
}

TEST_F(Served, NewFileThatIsNoneOrOfAnotherTableIsToldOnceAndTheOldOneStays) {
  ExportVersion(1);
  const auto served = Open();
  ASSERT_NE(served, nullptr);
  const auto refused = [&](absl::StatusCode code, const char* why) {
    const auto changes = served->Poll();
    ASSERT_THAT(changes, SizeIs(1));
    EXPECT_THAT(changes[0].status, StatusIs(code, why));
    EXPECT_THAT(served->Poll(), IsEmpty());
    EXPECT_EQ((*served->Find("words"))->version(), 1);
  };
  PutBytes(dir_.Path("other"), "nonsense");
  std::filesystem::rename(dir_.Path("other"), path_);
  refused(absl::StatusCode::kInvalidArgument, "words.safetensors");
  TableContent other = Words(5);
  other.spec.set_name("other");
  Export(other);
  refused(absl::StatusCode::kFailedPrecondition,
          "table 'other' of dim 2, wanted the sparse table 'words'");
  std::filesystem::remove(path_);
  refused(absl::StatusCode::kNotFound, "words.safetensors");
  ExportVersion(7);
  EXPECT_THAT(served->Poll(), SizeIs(1));
  EXPECT_EQ((*served->Find("words"))->version(), 7);
}

TEST_F(Served, TableThatIsNotThereNamesThoseThatAre) {
  ExportVersion(1);
  const auto served = Open();
  ASSERT_NE(served, nullptr);
  EXPECT_THAT(served->Find("none"),
              StatusIs(absl::StatusCode::kNotFound, "there are words"));
  EXPECT_THAT(
      ServedExports::Open({path_, path_}),
      StatusIs(absl::StatusCode::kAlreadyExists,
               absl::StrCat("'words' is in ", path_, " and in ", path_)));
}

TEST_F(Served, EachAnswerIsOfOneFileWhileFilesAreReplaced) {
  ExportVersion(1);
  const auto served = Open();
  ASSERT_NE(served, nullptr);
  std::vector<uint64_t> keys;
  for (int i = 0; i < 500; ++i) keys.push_back(WordKey(i));
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      std::vector<float> values(1000);
      std::vector<uint8_t> found(500);
      while (!is_over) {
        const auto table = served->Find("words");
        EXPECT_THAT((*table)->LookUp(keys, absl::MakeSpan(values),
                                     absl::MakeSpan(found)),
                    IsOk());
        for (const float value : values) {
          ASSERT_EQ(value, (*table)->version());
        }
      }
    });
  }
  for (int version = 2; version < 30; ++version) {
    ExportVersion(version);
    EXPECT_THAT(served->Poll(), SizeIs(1));
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace weft::ps
