#include "weft/ps/export/exported_table.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class Exports : public ::testing::Test {
 protected:
  // Exports a table of that name from a checkpoint of `tables`.
  void Export(const std::vector<TableContent>& tables, const std::string& name,
              const std::string& path) {
    const auto saved = SavedCheckpoint::Open(
        dir_.Path("saved"), SaveTables(dir_.Path("saved"), 4, tables, 3));
    ASSERT_THAT(saved, IsOk());
    ASSERT_THAT(ExportTable(**saved, name, path), IsOk());
  }
  std::shared_ptr<const ExportedTable> Opened(const TableContent& table) {
    Export({table}, table.spec.name(), path_);
    const auto opened = ExportedTable::Open(path_);
    EXPECT_THAT(opened, IsOk());
    return opened.ok() ? *opened : nullptr;
  }

  testing::TempDir dir_;
  const std::string path_ = dir_.Path("table.safetensors");
};

struct Rows {
  std::vector<float> values;
  std::vector<uint8_t> found;
};

Rows LookUp(const ExportedTable& table, const std::vector<uint64_t>& keys) {
  Rows rows;
  rows.values.resize(keys.size() * table.dim());
  rows.found.resize(keys.size());
  EXPECT_THAT(table.LookUp(keys, absl::MakeSpan(rows.values),
                           absl::MakeSpan(rows.found)),
              IsOk());
  return rows;
}

TEST_F(Exports, EveryRowIsFoundAndOthersHaveTheirFirstValues) {
  for (const int n : {0, 1, 2, 63, 64, 65, 128, 1000}) {
    const TableContent words = Words(n);
    const auto table = Opened(words);
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->name(), "words");
    EXPECT_EQ(table->version(), 9);
    EXPECT_EQ(table->rows(), n);
    std::vector<uint64_t> keys;
    for (int i = n - 1; i >= 0; --i) keys.push_back(WordKey(i));
    // None of these is there: beside those that are, and the ends.
    for (int i = 0; i < n; ++i) keys.push_back(WordKey(i) + 1);
    keys.push_back(0);
    keys.push_back(~uint64_t{0});
    const Rows rows = LookUp(*table, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = words.rows.find(keys[i]);
      const std::vector<float> wanted = row != words.rows.end()
                                            ? row->second
                                            : FirstWeights(words.spec, keys[i]);
      ASSERT_EQ(rows.found[i], row != words.rows.end()) << keys[i];
      ASSERT_THAT(
          std::vector<float>(&rows.values[2 * i], &rows.values[2 * i] + 2),
          ElementsAre(wanted[0], wanted[1]));
    }
  }
}

TEST_F(Exports, ElementsOfADenseTableAreInTheirOrder) {
  const auto table = Opened(Vector(70000));
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->dim(), 1);
  const Rows rows = LookUp(*table, {69999, 0, 1024, 70000});
  EXPECT_THAT(rows.values, ElementsAre(69999, 0, 1024, 0));
  EXPECT_THAT(rows.found, ElementsAre(1, 1, 1, 0));
}

TEST_F(Exports, AnIndependentReaderAgrees) {
  TableContent words;
  words.spec = WordsSpec();
  words.version = 9;
  words.rows = {{7, {0.5f, -2.0f}}, {3, {1.0f, 4.0f}}, {uint64_t{1} << 63, {}}};
  words.rows[uint64_t{1} << 63] = {8.0f, 9.0f};
  Export({words, Vector(5)}, "words", path_);
  Export({words, Vector(5)}, "vector", dir_.Path("vector"));
  const auto read = [](const std::string& path) {
    FILE* const pipe = popen(
        ("/usr/bin/python3 checkpoint/read_safetensors.py " + path + " 2>&1")
            .c_str(),
        "r");
    std::string output;
    char part[256];
    while (fgets(part, sizeof(part), pipe) != nullptr) output += part;
    EXPECT_EQ(pclose(pipe), 0);
    return output;
  };
  const std::string sparse = read(path_);
  // As numbers with a sign, the third key is -2^63.
  EXPECT_THAT(sparse,
              HasSubstr("\nkeys int64 [3] [3, 7, -9223372036854775808]\n"
                        "weight float32 [3, 2] [1.0, 4.0, 0.5, -2.0, 8.0, "
                        "9.0]\n"));
  for (const char* line :
       {"# name=words\n", "# version=9\n", "# dim=2\n", "# step=4\n",
        "# initializer=UNIFORM scale=0.5 seed=7\n", "# rows=3\n"}) {
    EXPECT_THAT(sparse, HasSubstr(line));
  }
  EXPECT_THAT(read(dir_.Path("vector")),
              HasSubstr("\nweight float32 [5] [0.0, 1.0, 2.0, 3.0, 4.0]\n"));
}

// Each bit, one of a byte: the file does not open, or (spaces of its header)
// says the same.
TEST_F(Exports, AnyDamageIsFoundOrChangesNothing) {
  const TableContent words = Words(5);
  const auto good = Opened(words);
  ASSERT_NE(good, nullptr);
  const std::string bytes = FileBytes(path_);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[at] ^= 1 << bit;
      const auto table = ExportedTable::Parse(damaged, "the file", {});
      if (!table.ok()) {
        ASSERT_THAT(std::string(table.status().message()),
                    HasSubstr("the file"));
        continue;
      }
      ASSERT_EQ(LookUp(**table, {WordKey(3)}).values,
                (std::vector<float>{3, -3}));
      ASSERT_EQ((*table)->version(), 9) << at;
    }
  }
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    ASSERT_FALSE(
        ExportedTable::Parse(bytes.substr(0, cut), "the file", {}).ok());
  }
}

TEST_F(Exports, WhatIsNoExportSaysSo) {
  Export({Words(3)}, "words", path_);
  const std::string shard =
      dir_.Path("saved/") +
      *SavedCheckpoint::Resolve(dir_.Path("saved"), "latest") +
      "/shard-00000.safetensors";
  EXPECT_THAT(ExportedTable::Open(shard),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted an export, of format weft.ps.export/1"));
  EXPECT_THAT(ExportedTable::Open(dir_.Path("none")),
              StatusIs(absl::StatusCode::kNotFound, dir_.Path("none")));
}

TEST_F(Exports, FileThatIsCutInPlaceIsRefusedAtTheNextLookUp) {
  const auto table = Opened(Words(1000));
  ASSERT_NE(table, nullptr);
  ASSERT_EQ(truncate(path_.c_str(), 100), 0);
  std::vector<float> values(2);
  std::vector<uint8_t> found(1);
  EXPECT_THAT(table->LookUp({WordKey(1)}, absl::MakeSpan(values),
                            absl::MakeSpan(found)),
              StatusIs(absl::StatusCode::kDataLoss, "was written to"));
}

TEST_F(Exports, ExportThatFailsLeavesTheOldFile) {
  Export({Words(3)}, "words", path_);
  const std::string before = FileBytes(path_);
  const auto saved = SavedCheckpoint::Open(
      dir_.Path("saved"),
      *SavedCheckpoint::Resolve(dir_.Path("saved"), "latest"));
  ASSERT_THAT(saved, IsOk());
  EXPECT_THAT(ExportTable(**saved, "none", path_),
              StatusIs(absl::StatusCode::kNotFound, "it has words"));
  EXPECT_THAT(ExportTable(**saved, "words", dir_.Path("none/file")),
              StatusIs(absl::StatusCode::kNotFound, "none/file"));
  EXPECT_EQ(FileBytes(path_), before);
  // Nothing else was left beside it.
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    entries += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(entries, 1);
}

TEST_F(Exports, ThreadsLookUpAtOnce) {
  const auto table = Opened(Words(2000));
  ASSERT_NE(table, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 2000; i += 4) {
        const Rows rows = LookUp(*table, {WordKey(i)});
        EXPECT_EQ(rows.values[0], i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weft::ps
