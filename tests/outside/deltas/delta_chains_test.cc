// Checkpoints of what has changed in clumsy hands: chains in two directories by
// turns, writers that give up, rows that go and come back, servers that are
// lost, parents that are another one's or are gone. What is promised is quoted
// from docs/parameter_server.md ("the page") or the header that is named.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
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

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;

class Deltas : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

// --- Any order of what may happen --------------------------------------------

// A job whose tables are pushed to, saved and lost at random.
class Program {
 public:
  Program(const std::string& root, uint64_t seed, int servers)
      : root_(root),
        random_(seed),
        servers_(servers),
        job_(servers, 1, nullptr, root),
        here_(root + "/here"),
        there_(root + "/there"),
        full_(root + "/full") {
    const auto mode = seed % 2 == 0 ? kSync : kAsync;
    rows_ = SparseSpec(mode, 1);
    rows_.set_partitions(8);
    rows_.mutable_rule()->mutable_adagrad()->set_lr(0.5);
    v1::RowLife& life = *rows_.mutable_life();
    switch (seed / 2 % 5) {
      case 0:
        rows_.clear_life();
        break;
      case 1:
        life.set_max_rows(40);
        break;
      case 2:
        life.set_idle_versions(4);
        life.set_drop_versions(2);
        break;
      case 3:
        life.set_max_rows(60);
        life.set_admit_after(2);
        break;
      case 4:
        life.set_idle_versions(3);
        life.set_admit_probability(0.5);
        break;
    }
    vector_ = DenseSpec(kAsync, 1, 3000);
    vector_.set_name("v");
    vector_.set_partitions(2);
    OpenTables();
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(absl::StrCat("step ", i));
      switch (Draw(10)) {
        case 0:
        case 1:
        case 2:
        case 3:
          PushSome();
          break;
        case 4:
          PushDense();
          break;
        case 5:
          GiveUp();
          break;
        case 6:
          if (Draw(3) == 0) GoBack();
          break;
        case 7:
          if (Draw(3) == 0) LoseServer();
          break;
        default:
          SaveOne();
          break;
      }
    }
  }
  int64_t deltas() const { return deltas_; }

 private:
  int Draw(int below) { return static_cast<int>(random_() % below); }

  void OpenTables() {
    table_.reset();
    dense_.reset();
    if (client_ == nullptr) client_ = job_.MakeClient(0);
    auto table = client_->Sparse(rows_);
    auto dense = client_->Dense(vector_);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT(dense, IsOk());
    table_ = *std::move(table);
    dense_ = *std::move(dense);
    ASSERT_THAT(dense_->Initialize(Tensor::Zeros({3000})).Wait(kTimeout),
                IsOk());
  }
  void PushSome() {
    std::vector<int64_t> keys;
    const int n = Draw(12);
    for (int i = 0; i < n; ++i) keys.push_back(Draw(200));
    ASSERT_THAT(Push(*table_, Keys(keys), 1 + Draw(4)), IsOk());
  }
  void PushDense() {
    ASSERT_THAT(dense_->Push(Tensor::Full({3000}, 1)).Wait(kTimeout), IsOk());
  }
  Where& Any() { return Draw(2) == 0 ? here_ : there_; }
  SaveAs Next(Where& where) {
    const auto parent = where.files->FindParent(2 + Draw(6));
    EXPECT_THAT(parent, IsOk());
    return SaveAs::Delta(parent.ok() ? *parent : std::nullopt);
  }

  void SaveOne() {
    Where& where = Any();
    const auto name = where.Save(*client_, Next(where));
    ASSERT_THAT(name, IsOk());
    deltas_ += where.links(*name) > 0;
    const auto full = full_.Save(*client_, SaveAs());
    ASSERT_THAT(full, IsOk());
    ExpectSame(where.path, *name, full_.path, *full, root_ + "/scratch");
    newest_ = {where.path, *name};
    newest_full_ = *full;
  }
  // Files are written and not committed; or not even written.
  void GiveUp() {
    Where& where = Any();
    const auto attempt = where.files->Begin(1);
    ASSERT_THAT(attempt, IsOk());
    ASSERT_THAT(client_->Save(where.path, *attempt, -1, Next(where)), IsOk());
    if (Draw(2) == 0) {
      where.files->Abandon(*attempt);
      ASSERT_FALSE(client_->Save(where.path, *attempt, -1, Next(where)).ok());
    }
  }
  void GoBack() {
    if (newest_.first.empty()) return;
    ASSERT_THAT(client_->Restore(newest_.first, newest_.second), IsOk());
    OpenTables();
    const auto again = full_.Save(*client_, SaveAs());
    ASSERT_THAT(again, IsOk());
    ExpectSame(full_.path, *again, full_.path, newest_full_,
               root_ + "/scratch");
  }
  void LoseServer() {
    if (newest_.first.empty()) return;
    job_.RestartServer(Draw(servers_));
    table_.reset();
    dense_.reset();
    client_.reset();
    client_ = job_.MakeClient(0);
    GoBack();
  }

  const std::string root_;
  std::mt19937_64 random_;
  const int servers_;
  TestJob job_;
  Where here_, there_, full_;
  v1::TableSpec rows_, vector_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SparseTable> table_;
  std::unique_ptr<DenseTable> dense_;
  std::pair<std::string, std::string> newest_;  // directory and name
  std::string newest_full_;
  int64_t deltas_ = 0;
};

// G16: "A checkpoint of what has changed, with those that it needs, is to the
// byte a full one of that moment, whatever was pushed, evicted, given up or
// restored between".
TEST_F(Deltas, AnyProgramSavesToTheByteWhatAFullCheckpointHas) {
  int64_t deltas = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const std::string root = dir_.Path(absl::StrCat("one", seed));
    fs::create_directories(root);
    Program program(root, seed, 1 + static_cast<int>(seed % 3));
    program.Run(40);
    deltas += program.deltas();
    fs::remove_all(root);
    if (HasFailure()) break;
  }
  EXPECT_GT(deltas, 20);
}

// --- Single cases ------------------------------------------------------------

// checkpoint_directory.h: "it is time for one that holds all: each
// `full_every`-th is".
TEST_F(Deltas, EachSoManythHasAll) {
  One one(dir_, Plain());
  Where where(dir_.Path("c"));
  std::vector<int64_t> links;
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 200)), -1), IsOk());
  for (int i = 0; i < 8; ++i) {
    ASSERT_THAT(Push(*one.table, Keys({i}), -1), IsOk());
    const auto name = where.SaveNext(*one.client, 3);
    ASSERT_THAT(name, IsOk());
    links.push_back(where.links(*name));
  }
  EXPECT_THAT(links, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  for (const int every : {1, 0, -1}) {
    const auto parent = where.files->FindParent(every);
    ASSERT_THAT(parent, IsOk());
    EXPECT_FALSE(parent->has_value()) << every;
  }
}

// "Restore reads the chain from the one that has all", on other servers too; a
// chain of 65 is one like any other.
TEST_F(Deltas, ChainOf65IsRestoredVerifiedFollowedAndMergedOnAnyServers) {
  Where where(dir_.Path("c")), full(dir_.Path("f"));
  std::string last, whole;
  std::vector<float> wanted;
  {
    One one(dir_, Plain(), 2);
    ASSERT_THAT(Push(*one.table, Keys(Range(0, 500)), -1), IsOk());
    for (int i = 0; i < 65; ++i) {
      ASSERT_THAT(Push(*one.table, Keys({i, 7 * i, 1000 + i}), -1), IsOk());
      const auto name = where.SaveNext(*one.client);
      ASSERT_THAT(name, IsOk());
      last = *name;
    }
    EXPECT_EQ(where.links(last), 64);
    whole = *full.Save(*one.client, SaveAs());
    wanted = Pull(*one.table, Keys(Range(0, 1100)));
  }
  EXPECT_THAT(where.files->Verify(last), IsOk());
  ExpectSame(where.path, last, full.path, whole, dir_.Path("scratch"));
  const auto served = ServedExports::Open({}, {{where.path, {"t"}}});
  ASSERT_THAT(served, IsOk());
  std::vector<uint64_t> keys;
  for (const int64_t key : Range(0, 1100)) keys.push_back(key);
  std::vector<float> values(2200);
  std::vector<uint8_t> found(1100);
  const auto table = (*served)->Find("t");
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT(
      (*table)->LookUp(keys, absl::MakeSpan(values), absl::MakeSpan(found)),
      IsOk());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(values[2 * i], wanted[i]) << i;
  }
  for (const int servers : {1, 3}) {
    One one(dir_, Plain(), servers);
    ASSERT_THAT(one.client->Restore(where.path, last), IsOk());
    one.Open(Plain());
    EXPECT_EQ(Pull(*one.table, Keys(Range(0, 1100))), wanted) << servers;
  }
}

// A checkpoint between which nothing was pushed is one, and has no rows.
TEST_F(Deltas, WithoutAPushThereIsNothingInIt) {
  for (const auto mode : {kSync, kAsync}) {
    One one(dir_, Plain(mode));
    Where where(dir_.Path(absl::StrCat("c", mode)));
    Where full(dir_.Path(absl::StrCat("f", mode)));
    ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
    ASSERT_THAT(where.SaveNext(*one.client), IsOk());
    for (int64_t i = 1; i <= 3; ++i) {
      const auto name = where.SaveNext(*one.client);
      ASSERT_THAT(name, IsOk());
      EXPECT_EQ(where.links(*name), i);
      const auto saved = SavedCheckpoint::Open(where.path, *name);
      ASSERT_THAT(saved, IsOk());
      EXPECT_EQ((*saved)->tables().at("t").own_rows, 0);
      EXPECT_EQ((*saved)->tables().at("t").rows, 100);
      const auto whole = full.Save(*one.client, SaveAs());
      ASSERT_THAT(whole, IsOk());
      ExpectSame(where.path, *name, full.path, *whole, dir_.Path("scratch"));
    }
    // A part without keys ends a round, and changes no row.
    ASSERT_THAT(Push(*one.table, Keys({}), -1), IsOk());
    const auto name = where.SaveNext(*one.client);
    ASSERT_THAT(name, IsOk());
    ASSERT_THAT(one.client->Restore(where.path, *name), IsOk());
    one.Open(Plain(mode));
    if (mode == kSync) {
      EXPECT_EQ(one.table->round(), 2);
    }
    EXPECT_EQ(Pull(*one.table, Keys({0, 99, 100})),
              (std::vector<float>{1, 1, 0}));
  }
}

// "A row that comes back begins anew, slots and step count included", also
// where it went and came back between two checkpoints; a key that went and
// stays gone is not found in any later one.
TEST_F(Deltas, RowThatWentAndCameBackIsAsItCameBack) {
  v1::TableSpec spec = Plain();
  spec.set_partitions(1);
  spec.mutable_life()->set_max_rows(4);
  One one(dir_, spec, 1);
  Where where(dir_.Path("c")), full(dir_.Path("f"));
  ASSERT_THAT(Push(*one.table, Keys({1, 2, 3, 4}), -5), IsOk());
  ASSERT_THAT(where.SaveNext(*one.client), IsOk());
  // 1 goes and comes back, which lets 2 go; 3 stays as it was.
  ASSERT_THAT(Push(*one.table, Keys({3, 4, 9}), 0), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({3, 4, 9}), 0), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({1}), -1), IsOk());
  const auto second = where.SaveNext(*one.client);
  ASSERT_THAT(second, IsOk());
  const auto full_second = full.Save(*one.client, SaveAs());
  ASSERT_THAT(full_second, IsOk());
  ExpectSame(where.path, *second, full.path, *full_second, dir_.Path("s"));
  // 9 goes and 2 comes back: neither was in the last one so.
  ASSERT_THAT(Push(*one.table, Keys({1, 3, 4}), 0), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({2}), -2), IsOk());
  const auto third = where.SaveNext(*one.client);
  ASSERT_THAT(third, IsOk());
  const auto full_third = full.Save(*one.client, SaveAs());
  ASSERT_THAT(full_third, IsOk());
  ExpectSame(where.path, *third, full.path, *full_third, dir_.Path("s"));
  const auto served = ServedExports::Open({}, {{where.path, {}}});
  ASSERT_THAT(served, IsOk());
  const std::vector<uint64_t> keys = {1, 2, 3, 4, 9};
  std::vector<float> values(10);
  std::vector<uint8_t> found(5);
  const auto table = (*served)->Find("t");
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT(
      (*table)->LookUp(keys, absl::MakeSpan(values), absl::MakeSpan(found)),
      IsOk());
  EXPECT_THAT(found, ElementsAre(1, 1, 1, 1, 0));
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[2], 2);
  EXPECT_EQ(values[4], 5);
}

// saved_checkpoint.h: "ASYNC: pushes, of the server that had applied the most";
// so a table that is restored does not go back behind what was saved of it.
TEST_F(Deltas, RestoredAsyncTableGoesOnAtTheMostPushesOfAServer) {
  One one(dir_, Plain(), 3);
  Where where(dir_.Path("c"));
  for (int64_t key = 0; key < 4; ++key) {
    // Each key is on one server.
    for (int i = 0; i < 5; ++i) {
      ASSERT_THAT(Push(*one.table, Keys({key}), -1), IsOk());
    }
    const auto name = where.SaveNext(*one.client);
    ASSERT_THAT(name, IsOk());
    const auto saved = SavedCheckpoint::Open(where.path, *name);
    ASSERT_THAT(saved, IsOk());
    ASSERT_THAT(one.client->Restore(where.path, *name), IsOk());
    one.Open(Plain());
    const auto servers = one.client->Describe();
    ASSERT_THAT(servers, IsOk());
    for (const v1::ServerStats& server : *servers) {
      ASSERT_EQ(server.tables_size(), 1);
      EXPECT_EQ(server.tables(0).version(), (*saved)->tables().at("t").version)
          << server.server();
    }
  }
}

// A table that is made after the parent, and one that nobody pushes to.
TEST_F(Deltas, TableThatIsMadeAfterTheParentIsInTheNextOne) {
  One one(dir_, Plain());
  Where where(dir_.Path("c")), full(dir_.Path("f"));
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 50)), -1), IsOk());
  ASSERT_THAT(where.SaveNext(*one.client), IsOk());
  v1::TableSpec second = Plain();
  second.set_name("second");
  v1::TableSpec empty = Plain();
  empty.set_name("empty");
  const auto made = one.client->Sparse(second);
  ASSERT_THAT(made, IsOk());
  ASSERT_THAT(one.client->Sparse(empty), IsOk());
  ASSERT_THAT(Push(**made, Keys(Range(0, 30)), -2), IsOk());
  for (int i = 0; i < 3; ++i) {
    const auto name = where.SaveNext(*one.client);
    ASSERT_THAT(name, IsOk());
    EXPECT_GT(where.links(*name), 0);
    const auto whole = full.Save(*one.client, SaveAs());
    ASSERT_THAT(whole, IsOk());
    ExpectSame(where.path, *name, full.path, *whole, dir_.Path("scratch"));
    ASSERT_THAT(Push(**made, Keys({i}), -2), IsOk());
  }
}

// "The first to find a table that was restored may change the numbers of its
// rule, its life": a chain that goes on after that is restored, too.
TEST_F(Deltas, ChainGoesOnAfterARestoreWithAnotherRuleAndLife) {
  One one(dir_, Plain(kSync));
  Where where(dir_.Path("c")), full(dir_.Path("f"));
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
  ASSERT_THAT(where.SaveNext(*one.client), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({1}), -1), IsOk());
  const auto before = where.SaveNext(*one.client);
  ASSERT_THAT(before, IsOk());
  EXPECT_EQ(where.links(*before), 1);
  ASSERT_THAT(one.client->Restore(where.path, *before), IsOk());
  v1::TableSpec spec = Plain(kSync);
  spec.mutable_rule()->mutable_sgd()->set_lr(2);
  spec.mutable_life()->set_max_rows(1000);
  // Nothing is opened or pushed yet: the restored tables are what they were.
  const auto untouched = where.SaveNext(*one.client);
  ASSERT_THAT(untouched, IsOk());
  ExpectSame(where.path, *untouched, where.path, *before, dir_.Path("s"));
  one.Open(spec);
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(Push(*one.table, Keys({i, 200 + i}), -1), IsOk());
    const auto name = where.SaveNext(*one.client);
    ASSERT_THAT(name, IsOk());
    const auto whole = full.Save(*one.client, SaveAs());
    ASSERT_THAT(whole, IsOk());
    ExpectSame(where.path, *name, full.path, *whole, dir_.Path("s"));
    EXPECT_THAT(where.files->Verify(*name), IsOk());
  }
}

}  // namespace
}  // namespace weft::ps
