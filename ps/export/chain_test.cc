// Checkpoints that have only what has changed, read with those that they need:
// as if they had all.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/export/checkpoint_table.h"
#include "weft/ps/export/difference.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/merge.h"
#include "weft/ps/export/row_walk.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/export/served_exports.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// `table` after some rows have changed, come and gone.
TableContent After(const TableContent& table, std::mt19937_64& random) {
  TableContent after = table;
  ++after.version;
  const bool is_dense = table.spec.kind() == v1::TableSpec::DENSE;
  for (auto it = after.rows.begin(); it != after.rows.end();) {
    const uint64_t what = random() % 10;
    if (what == 0 && !is_dense) {
      it = after.rows.erase(it);
      continue;
    }
    if (what < 3) it->second[0] += 1.0f;
    ++it;
  }
  for (int i = 0; i < 5 && !is_dense; ++i) {
    after.rows[WordKey(static_cast<int>(random() % 300))] = {0.5f, 0.25f};
  }
  return after;
}

void ExpectRows(const SavedTable& saved, const TableContent& wanted) {
  std::map<uint64_t, std::vector<float>> found;
  for (const SavedTable::Place& place : saved.places) {
    for (RowWalk walk(&place); !walk.AtEnd(); walk.Next()) {
      std::vector<float> row(static_cast<size_t>(walk.length()));
      std::memcpy(row.data(), walk.weights().data(), walk.weights().size());
      EXPECT_TRUE(found.emplace(walk.key(), row).second);
    }
  }
  EXPECT_EQ(found, wanted.rows);
  EXPECT_EQ(saved.rows, static_cast<int64_t>(wanted.rows.size()));
  EXPECT_EQ(saved.version, wanted.version);
}

std::shared_ptr<const SavedCheckpoint> Opened(const std::string& directory,
                                              const std::string& name) {
  auto opened = SavedCheckpoint::Open(directory, name);
  EXPECT_THAT(opened, IsOk());
  return opened.ok() ? *std::move(opened) : nullptr;
}

// The files of a checkpoint by their names, but for the manifest.
std::map<std::string, std::string> BytesOf(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    const std::string name = file.path().filename();
    if (name != "manifest.json") files[name] = FileBytes(file.path());
  }
  return files;
}

TEST(Chain, IsWhatAFullCheckpointOfThatMomentIs) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const TempDir dir;
    const std::string deltas = dir.Path("deltas");
    std::vector<TableContent> tables = {
        seed % 2 == 0 ? BoundedWords(100) : Words(100), Vector(5000)};
    std::string name =
        SaveTables(deltas, 1, tables, 1 + static_cast<int>(random() % 3));
    for (int i = 2; i < 2 + static_cast<int>(1 + random() % 5); ++i) {
      std::vector<TableContent> next;
      for (const TableContent& table : tables) {
        next.push_back(After(table, random));
      }
      name = SaveChanges(deltas, i, tables, next,
                         1 + static_cast<int>(random() % 3),
                         2 + static_cast<int>(random() % 6));
      tables = next;
    }
    const auto chain = Opened(deltas, name);
    ASSERT_NE(chain, nullptr);
    ASSERT_NE(chain->parent(), nullptr);
    ExpectRows(**chain->Table("words"), tables[0]);
    ExpectRows(**chain->Table("vector"), tables[1]);

    const std::string full = dir.Path("full");
    const auto whole =
        Opened(full, SaveTables(full, chain->manifest().step, tables, 2));
    ASSERT_NE(whole, nullptr);
    const auto difference = DifferenceBetween(*chain, *whole);
    ASSERT_THAT(difference, IsOk());
    EXPECT_TRUE(difference->IsNone());
    // Merged, to the byte.
    const auto merged_chain = Merge(*chain, dir.Path("a"));
    const auto merged_whole = Merge(*whole, dir.Path("b"));
    ASSERT_THAT(merged_chain, IsOk());
    ASSERT_THAT(merged_whole, IsOk());
    EXPECT_EQ(BytesOf(dir.Path("a/" + *merged_chain)),
              BytesOf(dir.Path("b/" + *merged_whole)));
    EXPECT_EQ(Opened(dir.Path("a"), *merged_chain)->parent(), nullptr);
    // Exported: but for the name of the checkpoint.
    for (const char* table : {"words", "vector"}) {
      ASSERT_THAT(ExportTable(*chain, table, dir.Path("x")), IsOk());
      ASSERT_THAT(ExportTable(*whole, table, dir.Path("y")), IsOk());
      const std::string x = FileBytes(dir.Path("x"));
      const std::string y = FileBytes(dir.Path("y"));
      EXPECT_EQ(x.substr(x.find("data_offsets")).size(),
                y.substr(y.find("data_offsets")).size());
      EXPECT_THAT(ExportedTable::Open(dir.Path("x")), IsOk());
      EXPECT_EQ(x.substr(x.size() / 2), y.substr(y.size() / 2));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Chain, TableLookedUpInItIsThatOfAFullExport) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const TempDir dir;
    const std::string deltas = dir.Path("deltas");
    std::vector<TableContent> tables = {Words(200), Vector(5000)};
    std::string name = SaveTables(deltas, 1, tables, 2);
    for (int i = 2; i < 6; ++i) {
      const std::vector<TableContent> next = {After(tables[0], random),
                                              After(tables[1], random)};
      name = SaveChanges(deltas, i, tables, next, 2, 5);
      tables = next;
    }
    const auto chain = Opened(deltas, name);
    ASSERT_NE(chain, nullptr);
    std::vector<uint64_t> words;
    for (int i = 0; i < 400; ++i) words.push_back(WordKey(i));
    std::vector<uint64_t> elements;
    for (uint64_t i = 0; i < 5005; ++i) elements.push_back(i);
    for (const auto& [table, keys] :
         std::map<std::string, std::vector<uint64_t>>{{"words", words},
                                                      {"vector", elements}}) {
      ASSERT_THAT(ExportTable(*chain, table, dir.Path("x")), IsOk());
      const auto exported = ExportedTable::Open(dir.Path("x"));
      const auto in_chain = CheckpointTable::Create(chain, table);
      ASSERT_THAT(exported, IsOk());
      ASSERT_THAT(in_chain, IsOk());
      EXPECT_EQ((*exported)->rows(), (*in_chain)->rows());
      EXPECT_EQ((*exported)->version(), (*in_chain)->version());
      const size_t n = keys.size() * static_cast<size_t>((*in_chain)->dim());
      std::vector<float> a(n), b(n);
      std::vector<uint8_t> found_a(keys.size()), found_b(keys.size());
      const auto count_a =
          (*exported)->LookUp(keys, absl::MakeSpan(a), absl::MakeSpan(found_a));
      const auto count_b =
          (*in_chain)->LookUp(keys, absl::MakeSpan(b), absl::MakeSpan(found_b));
      ASSERT_THAT(count_a, IsOk());
      ASSERT_THAT(count_b, IsOk());
      EXPECT_EQ(*count_a, *count_b);
      EXPECT_EQ(a, b);
      EXPECT_EQ(found_a, found_b);
    }
  }
}

TEST(Chain, CountsOfListAreThoseOfTheFilesWhereRowsAreNotRead) {
  const TempDir dir;
  const std::vector<TableContent> before = {Words(50)};
  std::vector<TableContent> after = before;
  after[0].rows.erase(WordKey(3));
  after[0].rows[WordKey(4)] = {8, 8};
  after[0].rows[WordKey(99)] = {9, 9};
  SaveTables(dir.path(), 1, before, 2);
  const std::string name = SaveChanges(dir.path(), 2, before, after, 2);
  SavedCheckpoint::Options options;
  options.check_digests = options.check_rows = false;
  const auto listed = SavedCheckpoint::Open(dir.path(), name, options);
  ASSERT_THAT(listed, IsOk());
  const SavedTable& words = **(*listed)->Table("words");
  EXPECT_EQ(words.rows, -1);
  EXPECT_EQ(words.own_rows, 2);
  EXPECT_EQ(words.own_removed, 1);
  EXPECT_EQ(words.deltas, 8);
  EXPECT_EQ(Opened(dir.path(), name)->Table("words").value()->rows, 50);
}

TEST(Chain, ParentOfAnotherSpecOrWithoutTheTableIsRefused) {
  for (const bool is_other_spec : {true, false}) {
    const TempDir dir;
    TableContent before = Words(50);
    TableContent after = before;
    after.rows[WordKey(4)] = {8, 8};
    if (is_other_spec) {
      before.spec.mutable_rule()->mutable_adagrad()->set_lr(0.7);
    } else {
      before.spec.set_name("other");
    }
    SaveTables(dir.path(), 1, {before}, 2);
    const std::string name = SaveChanges(dir.path(), 2, {before}, {after}, 2);
    EXPECT_THAT(SavedCheckpoint::Open(dir.path(), name),
                StatusIs(absl::StatusCode::kDataLoss,
                         is_other_spec ? "another spec than in its parent"
                                       : "its parent has no such table"));
  }
}

TEST(Chain, AnyByteOfAnyLinkThatIsAnotherIsFoundAndItsFileNamed) {
  const TempDir dir;
  const std::vector<TableContent> before = {BoundedWords(6)};
  std::vector<TableContent> after = before;
  after[0].rows.erase(WordKey(3));
  after[0].rows[WordKey(4)] = {8, 8};
  const std::string first = SaveTables(dir.path(), 1, before, 1);
  const std::string second = SaveChanges(dir.path(), 2, before, after, 1);
  ASSERT_THAT(SavedCheckpoint::Open(dir.path(), second), IsOk());
  for (const std::string& name : {first, second}) {
    const std::string path =
        dir.Path(absl::StrCat(name, "/shard-00000.safetensors"));
    const std::string good = FileBytes(path);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string damaged = good;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      for (const std::string& bytes : {damaged, good.substr(0, at)}) {
        PutBytes(path, bytes);
        EXPECT_THAT(SavedCheckpoint::Open(dir.path(), second).status(),
                    StatusIs(absl::StatusCode::kDataLoss, path))
            << at;
        // Where hashes are not looked at it opens, or says why not.
        SavedCheckpoint::Options unread;
        unread.check_digests = false;
        (void)SavedCheckpoint::Open(dir.path(), second, unread);
      }
    }
    PutBytes(path, good);
  }
}

// --- Followed by who serves it. ---------------------------------------------

// Row i of `version` holds it twice; every (i + version) % 5 th is not there.
TableContent OfVersion(int64_t version) {
  TableContent words = Words(0);
  words.version = version;
  for (int i = 0; i < 200; ++i) {
    if ((i + version) % 5 == 0) continue;
    words.rows[WordKey(i)] = {1.0f * version, 1.0f * version};
  }
  return words;
}

std::vector<uint64_t> AllKeys() {
  std::vector<uint64_t> keys;
  for (int i = 0; i < 200; ++i) keys.push_back(WordKey(i));
  return keys;
}

// Whether an answer is wholly of its version.
void ExpectOneVersion(const ServedTable& table) {
  std::vector<float> values(400);
  std::vector<uint8_t> found(200);
  ASSERT_THAT(
      table.LookUp(AllKeys(), absl::MakeSpan(values), absl::MakeSpan(found)),
      IsOk());
  for (int i = 0; i < 200; ++i) {
    const bool is_there = (i + table.version()) % 5 != 0;
    ASSERT_EQ(found[i] != 0, is_there) << i;
    if (!is_there) continue;
    ASSERT_EQ(values[2 * i], table.version());
    ASSERT_EQ(values[2 * i + 1], table.version());
  }
}

TEST(Followed, DeltasAreTakenInAndEachAnswerIsOfOneVersion) {
  const TempDir dir;
  SaveTables(dir.path(), 1, {OfVersion(1)}, 2);
  auto served = ServedExports::Open({}, {{dir.path(), {}}});
  ASSERT_THAT(served, IsOk());
  EXPECT_THAT((*served)->Poll(), IsEmpty());
  std::atomic<bool> is_over{false};
  std::atomic<int> answers{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      int64_t last = 0;
      while (!is_over) {
        const auto table = (*served)->Find("words");
        ExpectOneVersion(**table);
        EXPECT_GE((*table)->version(), last);
        last = (*table)->version();
        ++answers;
      }
    });
  }
  for (int64_t version = 2; version < 25; ++version) {
    if (version % 8 == 0) {
      SaveTables(dir.path(), version, {OfVersion(version)}, 1);
    } else {
      SaveChanges(dir.path(), version, {OfVersion(version - 1)},
                  {OfVersion(version)}, 2, 3);
    }
    const auto changes = (*served)->Poll();
    ASSERT_THAT(changes, SizeIs(1));
    EXPECT_THAT(changes[0].status, IsOk());
    EXPECT_EQ((*(*served)->Find("words"))->version(), version);
    const int before = answers;
    while (answers < before + 2 && !::testing::Test::HasFailure()) {
      std::this_thread::yield();
    }
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
}

TEST(Followed, DamagedOneIsToldOnceAndTheOldOneStays) {
  const TempDir dir;
  SaveTables(dir.path(), 1, {OfVersion(1)}, 1);
  auto served = ServedExports::Open({}, {{dir.path(), {"words"}}});
  ASSERT_THAT(served, IsOk());
  const std::string bad =
      SaveChanges(dir.path(), 2, {OfVersion(1)}, {OfVersion(2)}, 1);
  const std::string path = dir.Path(bad + "/shard-00000.safetensors");
  const std::string good = FileBytes(path);
  std::string damaged = good;
  damaged[good.size() / 2] ^= 1;
  PutBytes(path, damaged);
  auto changes = (*served)->Poll();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_THAT(changes[0].status, StatusIs(absl::StatusCode::kDataLoss, bad));
  EXPECT_THAT((*served)->Poll(), IsEmpty());
  ExpectOneVersion(**(*served)->Find("words"));
  EXPECT_EQ((*(*served)->Find("words"))->version(), 1);
  // The next one that is whole is taken, and none before it any more.
  SaveTables(dir.path(), 3, {OfVersion(3)}, 1);
  changes = (*served)->Poll();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_THAT(changes[0].status, IsOk());
  PutBytes(path, good);
  EXPECT_THAT((*served)->Poll(), IsEmpty());
  EXPECT_EQ((*(*served)->Find("words"))->version(), 3);
}

TEST(Followed, ServesOnWhenItsCheckpointsAreRemoved) {
  const TempDir dir;
  const std::string first = SaveTables(dir.path(), 1, {OfVersion(1)}, 1);
  SaveChanges(dir.path(), 2, {OfVersion(1)}, {OfVersion(2)}, 1);
  auto served = ServedExports::Open({}, {{dir.path(), {}}});
  ASSERT_THAT(served, IsOk());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    std::filesystem::remove_all(entry.path());
  }
  EXPECT_THAT((*served)->Poll(), IsEmpty());
  ExpectOneVersion(**(*served)->Find("words"));
  EXPECT_EQ((*(*served)->Find("words"))->version(), 2);
}

TEST(Followed, DirectoryWithoutAnyOrWithoutTheTableIsAnError) {
  const TempDir dir;
  EXPECT_THAT(ServedExports::Open({}, {{dir.path(), {}}}),
              StatusIs(absl::StatusCode::kNotFound, "no checkpoints"));
  EXPECT_THAT(ServedExports::Open({}, {{dir.Path("none"), {}}}),
              StatusIs(absl::StatusCode::kNotFound, "none"));
  SaveTables(dir.path(), 1, {OfVersion(1)}, 1);
  EXPECT_THAT(ServedExports::Open({}, {{dir.path(), {"users"}}}),
              StatusIs(absl::StatusCode::kNotFound, "it has words"));
}

}  // namespace
}  // namespace weft::ps
