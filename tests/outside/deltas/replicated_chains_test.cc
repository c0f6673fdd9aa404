// Checkpoints of ASYNC tables with two replicas against those with one: any
// program of pushes, saves of what has changed and restores leaves the same
// rows and versions, whoever dies in between; and a table that is served from a
// file and from a directory at once. What is promised is quoted from
// ps/client.h, ps/export/saved_checkpoint.h and docs/parameter_server.md.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/export/served_exports.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/deltas/chains.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int64_t kKeys = 40;

// Servers of so many replicas with a table of rows and one of numbers, each of
// which is pushed to by one client that waits.
class Tables {
 public:
  Tables(const testing::TempDir& dir, int replicas, const v1::TableSpec& rows,
         int servers = 3)
      : replicas_(replicas),
        rows_spec_(rows),
        job_(servers, 1, nullptr, dir.path(), replicas),
        client_(job_.MakeClient(0)),
        where_(dir.Path(absl::StrCat("replicas", replicas))) {
    dense_spec_ = DenseSpec(kAsync, 1, 5000);
    dense_spec_.set_name("d");
    Open();
    EXPECT_THAT(dense_->Initialize(Tensor::Zeros({5000})).Wait(kTimeout),
                IsOk());
  }
  void Open() {
    rows_.reset();
    dense_.reset();
    auto rows = client_->Sparse(rows_spec_);
    auto dense = client_->Dense(dense_spec_);
    ASSERT_THAT(GetStatus(rows), IsOk());
    ASSERT_THAT(GetStatus(dense), IsOk());
    rows_ = *std::move(rows);
    dense_ = *std::move(dense);
  }
  absl::Status PushRows(const std::vector<int64_t>& keys, double gradient) {
    return Push(*rows_, Keys(keys), gradient);
  }
  absl::Status PushDense(double gradient) {
    return GetStatus(
        dense_->Push(Tensor::Full({5000}, gradient)).Wait(kTimeout));
  }
  std::vector<float> Values() {
    std::vector<float> values = Pull(*rows_, Keys(Range(0, kKeys)));
    const auto dense = dense_->Pull().Wait(kTimeout);
    EXPECT_THAT(dense, IsOk());
    if (dense.ok()) {
      const auto all = dense->ToVector<float>();
      values.insert(values.end(), {all.front(), all[2500], all.back()});
      EXPECT_THAT(all, Each(all.front()));
    }
    return values;
  }
  std::string Save(bool of_changes) {
    const auto name = of_changes ? where_.SaveNext(*client_)
                                 : where_.Save(*client_, SaveAs());
    EXPECT_THAT(name, IsOk());
    return name.ok() ? *name : "";
  }
  void Restore(const std::string& name) {
    ASSERT_THAT(client_->Restore(where_.path, name), IsOk()) << name;
    Open();
  }
  // Any server dies, and another one takes its place.
  void Replace(int server) {
    if (replicas_ == 1) return;
    ASSERT_TRUE(job_.BecomesReplicated());
    job_.KillServer(server);
    job_.StartServer(server);
    ASSERT_TRUE(job_.BecomesReplicated());
  }
  // Of each server that is the primary of any of its rows; others say 0.
  std::vector<int64_t> VersionsOf(const std::string& table) {
    std::vector<int64_t> versions;
    const auto servers = client_->Describe();
    EXPECT_THAT(servers, IsOk());
    if (!servers.ok()) return versions;
    for (const v1::ServerStats& server : *servers) {
      for (const v1::TableStats& one : server.tables()) {
        if (one.spec().name() == table && one.rows() > 0) {
          versions.push_back(one.version());
        }
      }
    }
    return versions;
  }
  int64_t VersionOf(const std::string& table) {
    const std::vector<int64_t> versions = VersionsOf(table);
    return versions.empty()
               ? -1
               : *std::max_element(versions.begin(), versions.end());
  }
  int64_t SavedVersion(const std::string& name, const std::string& table) {
    const auto saved = SavedCheckpoint::Open(where_.path, name);
    EXPECT_THAT(saved, IsOk());
    return saved.ok() ? (*saved)->tables().at(table).version : -1;
  }
  const std::string& path() const { return where_.path; }
  Client& client() { return *client_; }
  TestJob& job() { return job_; }

 private:
  const int replicas_;
  const v1::TableSpec rows_spec_;
  v1::TableSpec dense_spec_;
  TestJob job_;
  std::unique_ptr<Client> client_;
  Where where_;
  std::unique_ptr<SparseTable> rows_;
  std::unique_ptr<DenseTable> dense_;
};

// Of rows that go, and are let in by their second push, all of which is "a
// function of the pushes that a partition applied, and of their order".
v1::TableSpec Bounded() {
  v1::TableSpec spec = Plain();
  spec.mutable_life()->set_max_rows(24);
  spec.mutable_life()->set_idle_versions(9);
  spec.mutable_life()->set_drop_versions(2);
  return spec;
}

TEST(ReplicatedChains, AnyProgramLeavesTheRowsOfOneReplica) {
  for (const bool is_bounded : {false, true}) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(absl::StrCat(is_bounded ? "bounded, " : "", "seed ", seed));
      const testing::TempDir dir;
      const v1::TableSpec spec = is_bounded ? Bounded() : Plain();
      Tables one(dir, 1, spec), two(dir, 2, spec);
      std::vector<std::pair<std::string, std::string>> names;
      std::mt19937 random(seed);
      for (int i = 0; i < 40 && !HasFailure(); ++i) {
        SCOPED_TRACE(absl::StrCat("operation ", i));
        const uint32_t what = random() % 16;
        if (what < 8) {
          std::vector<int64_t> keys;
          for (int64_t key = random() % 5; key < kKeys;
               key += 1 + random() % 9) {
            keys.push_back(key);
          }
          EXPECT_THAT(one.PushRows(keys, -1), IsOk());
          EXPECT_THAT(two.PushRows(keys, -1), IsOk());
        } else if (what < 10) {
          EXPECT_THAT(one.PushDense(-1), IsOk());
          EXPECT_THAT(two.PushDense(-1), IsOk());
        } else if (what < 13) {
          const bool of_changes = what != 12;
          names.emplace_back(one.Save(of_changes), two.Save(of_changes));
        } else if (what < 15 && !names.empty()) {
          const auto& [of_one, of_two] = names[random() % names.size()];
          one.Restore(of_one);
          two.Restore(of_two);
          for (const char* table : {"t", "d"}) {
            EXPECT_THAT(two.VersionsOf(table),
                        Each(two.SavedVersion(of_two, table)));
          }
        } else if (what == 15) {
          two.Replace(static_cast<int>(random() % 3));
        }
        EXPECT_EQ(one.Values(), two.Values());
      }
    }
  }
}

// "ASYNC: pushes": the version of a table that is restored is the saved one,
// and each push that all servers apply adds one to it; whichever of its servers
// die.
TEST(ReplicatedChains, VersionGoesOnFromTheSavedOneWhoeverDies) {
  const testing::TempDir dir;
  Tables two(dir, 2, Plain());
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(two.PushRows(Range(0, kKeys), -1), IsOk());
    ASSERT_THAT(two.PushDense(-1), IsOk());
  }
  const std::string first = two.Save(true);
  const int64_t rows = two.SavedVersion(first, "t"),
                dense = two.SavedVersion(first, "d");
  EXPECT_GE(rows, 5);
  EXPECT_GE(dense, 5);
  for (int i = 0; i < 2; ++i) {  // twice: it is not added to
    two.Restore(first);
    EXPECT_EQ(two.VersionOf("t"), rows);
    EXPECT_EQ(two.VersionOf("d"), dense);
  }
  int64_t last = rows;
  for (int server = 0; server < 3; ++server) {
    SCOPED_TRACE(server);
    two.Replace(server);
    EXPECT_GE(two.VersionOf("t"), last);
    ASSERT_THAT(two.PushRows(Range(0, kKeys), -1), IsOk());
    EXPECT_GT(two.VersionOf("t"), last);
    last = two.VersionOf("t");
    const std::string name = two.Save(true);
    EXPECT_GE(two.SavedVersion(name, "t"), last);
    two.Restore(name);
    EXPECT_GE(two.VersionOf("t"), last);
    last = two.VersionOf("t");
  }
  // An older one is gone back to.
  two.Restore(first);
  EXPECT_EQ(two.VersionOf("t"), rows);
  EXPECT_EQ(two.VersionOf("d"), dense);
}

// "it loads on any number of servers"; and on any number of replicas.
TEST(ReplicatedChains, VersionMovesBetweenOneAndTwoReplicas) {
  const testing::TempDir dir;
  Tables one(dir, 1, Plain(), 2), two(dir, 2, Plain(), 4);
  for (int i = 0; i < 7; ++i) {
    ASSERT_THAT(one.PushRows(Range(0, kKeys), -1), IsOk());
  }
  const std::string name = one.Save(false);
  const int64_t version = one.SavedVersion(name, "t");
  EXPECT_EQ(version, 7);
  ASSERT_THAT(two.client().Restore(one.path(), name), IsOk());
  two.Open();
  EXPECT_THAT(two.VersionsOf("t"), Each(version));
  EXPECT_EQ(one.Values(), two.Values());
  ASSERT_THAT(two.PushRows(Range(0, kKeys), -1), IsOk());
  const std::string back = two.Save(false);
  EXPECT_GE(two.SavedVersion(back, "t"), version + 1);
  ASSERT_THAT(one.client().Restore(two.path(), back), IsOk());
  one.Open();
  EXPECT_THAT(one.VersionsOf("t"), Each(two.SavedVersion(back, "t")));
  EXPECT_EQ(one.Values(), two.Values());
}

// --- Served from two places. -------------------------------------------------

TableContent Named(const std::string& name, int version) {
  TableContent words = Words(50);
  words.spec.set_name(name);
  words.version = version;
  return words;
}

class TwoPlaces : public ::testing::Test {
 protected:
  // A file of table `name` of that version.
  std::string Export(const std::string& name, int version) {
    const std::string from = dir_.Path(absl::StrCat("from", version));
    const std::string checkpoint =
        SaveTables(from, version, {Named(name, version)}, 2);
    const auto opened = SavedCheckpoint::Open(from, checkpoint);
    EXPECT_THAT(opened, IsOk());
    const std::string path = dir_.Path(absl::StrCat(name, version));
    EXPECT_THAT(ExportTable(**opened, name, path), IsOk());
    return path;
  }
  static int64_t VersionOf(const ServedExports& served,
                           const std::string& name) {
    const auto table = served.Find(name);
    return table.ok() ? (*table)->version() : -1;
  }
  testing::TempDir dir_;
  const std::string saved_ = dir_.Path("saved");
};

// "ends with 2 for a table that is in two places, which it names": by any way
// to them.
TEST_F(TwoPlaces, TableOfTwoPlacesIsRefusedAndBothAreNamed) {
  const std::string words = Export("words", 3), other = Export("other", 4);
  SaveTables(saved_, 1, {Named("words", 1), Named("more", 1)}, 2);
  const std::string link = dir_.Path("link");
  std::filesystem::create_symlink(words, link);
  const auto refused = [&](const std::vector<std::string>& files,
                           const std::vector<ServedExports::Followed>& followed,
                           const std::string& second) {
    const auto served = ServedExports::Open(files, followed);
    EXPECT_THAT(GetStatus(served),
                StatusIs(absl::StatusCode::kAlreadyExists, "words"));
    EXPECT_THAT(GetStatus(served),
                StatusIs(absl::StatusCode::kAlreadyExists, second));
  };
  refused({words, words}, {}, words);
  refused({words, link}, {}, link);
  refused({words, Export("words", 9)}, {}, words);
  refused({words}, {{saved_, {}}}, saved_);
  refused({words, other}, {{saved_, {"words"}}}, saved_);
  refused({}, {{saved_, {}}, {saved_, {"words"}}}, saved_);
  // Other tables of that directory may be followed beside the file.
  const auto served = ServedExports::Open({words, other}, {{saved_, {"more"}}});
  ASSERT_THAT(GetStatus(served), IsOk());
  EXPECT_EQ(VersionOf(**served, "words"), 3);
  EXPECT_EQ(VersionOf(**served, "more"), 1);
}

// A directory all of which is followed gets a table that a file has: the file
// stays, and it is told.
TEST_F(TwoPlaces, TableThatComesToTheDirectoryLaterDoesNotTakeTheFilesPlace) {
  const std::string words = Export("words", 3);
  SaveTables(saved_, 1, {Named("more", 1)}, 2);
  const auto served = ServedExports::Open({words}, {{saved_, {}}});
  ASSERT_THAT(GetStatus(served), IsOk());
  for (int version = 2; version < 4; ++version) {
    SaveTables(saved_, version,
               {Named("words", version * 10), Named("more", version)}, 2);
    const auto changes = (*served)->Poll();
    EXPECT_EQ(VersionOf(**served, "words"), 3);
    const bool is_told =
        std::any_of(changes.begin(), changes.end(),
                    [](const auto& change) { return !change.status.ok(); });
    EXPECT_TRUE(VersionOf(**served, "more") == version || is_told);
  }
  // The file is still watched.
  const std::string newer = Export("words", 8);
  std::filesystem::rename(newer, words);
  (*served)->Poll();
  EXPECT_EQ(VersionOf(**served, "words"), 8);
}

// A file that becomes one of a table that the directory has.
TEST_F(TwoPlaces, FileThatBecomesATableOfTheDirectoryIsRefused) {
  const std::string other = Export("other", 4);
  SaveTables(saved_, 1, {Named("words", 1)}, 2);
  const auto served = ServedExports::Open({other}, {{saved_, {}}});
  ASSERT_THAT(GetStatus(served), IsOk());
  std::filesystem::rename(Export("words", 5), other);
  const auto changes = (*served)->Poll();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_FALSE(changes[0].status.ok());
  EXPECT_EQ(VersionOf(**served, "words"), 1);
  EXPECT_EQ(VersionOf(**served, "other"), 4);
}

// Rows that went are not found by who follows, whether it reads what has
// changed or all, and stay away.
TEST_F(TwoPlaces, RowsThatWereEvictedGoFromWhatIsFollowed) {
  const testing::TempDir dir;
  for (const int replicas : {1, 2}) {
    SCOPED_TRACE(replicas);
    v1::TableSpec spec = Plain();
    spec.mutable_life()->set_idle_versions(3);
    Tables tables(dir, replicas, spec);
    ASSERT_THAT(tables.PushRows(Range(0, kKeys), -1), IsOk());
    tables.Save(true);
    const auto served = ServedExports::Open({}, {{tables.path(), {"t"}}});
    ASSERT_THAT(GetStatus(served), IsOk());
    const auto found = [&] {
      std::vector<uint64_t> keys;
      for (int64_t key = 0; key < kKeys; ++key) keys.push_back(key);
      std::vector<float> values(2 * keys.size());
      std::vector<uint8_t> is_there(keys.size());
      const auto table = (*served)->Find("t");
      EXPECT_THAT(GetStatus(table), IsOk());
      const auto count = (*table)->LookUp(keys, absl::MakeSpan(values),
                                          absl::MakeSpan(is_there));
      EXPECT_THAT(GetStatus(count), IsOk());
      for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(is_there[i] != 0, values[2 * i] != 0) << i;
      }
      return count.ok() ? *count : -1;
    };
    EXPECT_EQ(found(), kKeys);
    // Half of the rows are named by no push.
    std::vector<int64_t> named;
    for (int64_t key = 0; key < kKeys; key += 2) named.push_back(key);
    for (int round = 0; round < 6; ++round) {
      ASSERT_THAT(tables.PushRows(named, -1), IsOk());
      if (round == 3) {
        tables.Save(true);
        for (const auto& change : (*served)->Poll()) {
          EXPECT_THAT(change.status, IsOk());
        }
      }
    }
    tables.Save(true);
    for (const auto& change : (*served)->Poll()) {
      EXPECT_THAT(change.status, IsOk());
    }
    EXPECT_EQ(found(), kKeys / 2);
    const std::string whole = tables.Save(false);
    for (const auto& change : (*served)->Poll()) {
      EXPECT_THAT(change.status, IsOk());
    }
    EXPECT_EQ(found(), kKeys / 2);
    tables.Restore(whole);
    const auto values = tables.Values();
    for (int64_t key = 0; key < kKeys; ++key) {
      EXPECT_EQ(values[key] != 0, key % 2 == 0) << key;
    }
  }
}

}  // namespace
}  // namespace weft::ps
