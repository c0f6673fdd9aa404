// Chains of checkpoints that are broken: parents that are another one's, made
// up or gone, bytes that are others, writers that do not know of each other,
// and those who follow a directory meanwhile. What is promised is quoted from
// docs/parameter_server.md or the header that is named.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/export/served_exports.h"
#include "weft/tests/outside/deltas/chains.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

namespace fs = std::filesystem;
using checkpoint::Parent;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class BrokenChains : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

// --- Parents that do not fit -------------------------------------------------

// checkpoint_directory.h: "kFailedPrecondition if a file is a delta and the
// parent is not there any more." "After an error nothing has changed".
TEST_F(BrokenChains, DeltaIsNotCommittedWithoutItsParent) {
  One one(dir_, Plain());
  Where where(dir_.Path("c")), other(dir_.Path("o"));
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
  const auto first = where.SaveNext(*one.client);
  ASSERT_THAT(first, IsOk());
  const auto parent = *where.files->FindParent(16);
  ASSERT_TRUE(parent.has_value());
  const auto write = [&](Where& to, std::string& attempt) {
    EXPECT_THAT(Push(*one.table, Keys({1}), -1), IsOk());
    attempt = *to.files->Begin(9);
    auto files = one.client->Save(to.path, attempt, -1, SaveAs::Delta(parent));
    EXPECT_THAT(files, IsOk());
    EXPECT_TRUE(files->at(0).is_delta);
    return *files;
  };
  std::string attempt;
  const auto expect_refused = [&](Where& to, auto files,
                                  const std::optional<Parent>& wrong,
                                  const std::string& what) {
    const auto names = *to.files->List();
    EXPECT_THAT(to.files->Commit(attempt, files, {}, wrong),
                testing::StatusIs(absl::StatusCode::kFailedPrecondition))
        << what;
    EXPECT_EQ(*to.files->List(), names) << what;
    to.files->Abandon(attempt);
  };
  {
    const auto files = write(other, attempt);
    expect_refused(other, files, parent, "another directory");
  }
  {
    const auto files = write(where, attempt);
    Parent wrong = *parent;
    wrong.checksum[0] = wrong.checksum[0] == '0' ? '1' : '0';
    expect_refused(where, files, wrong, "another checksum");
  }
  {
    const auto files = write(where, attempt);
    Parent wrong = *parent;
    wrong.name = "../c/" + *first;
    const auto result = where.files->Commit(attempt, files, {}, wrong);
    EXPECT_FALSE(result.ok()) << "a path for a name";
    where.files->Abandon(attempt);
  }
  {
    // No parent at all: manifest.h: "kInvalidArgument [...] if files and parent
    // do not fit".
    const auto files = write(where, attempt);
    EXPECT_FALSE(where.files->Commit(attempt, files, {}).ok());
    EXPECT_THAT(*where.files->List(), SizeIs(1));
    where.files->Abandon(attempt);
  }
  {
    // It goes while the servers write.
    const auto files = write(where, attempt);
    fs::rename(where.path + "/" + *first, dir_.Path("aside"));
    expect_refused(where, files, parent, "gone");
    fs::rename(dir_.Path("aside"), where.path + "/" + *first);
  }
  // All of these were given up; the next has all that they had.
  const auto next = where.SaveNext(*one.client);
  ASSERT_THAT(next, IsOk());
  ASSERT_THAT(one.client->Restore(where.path, *next), IsOk());
  one.Open(Plain());
  EXPECT_EQ(Pull(*one.table, Keys({0, 1})), (std::vector<float>{1, 6}));
}

// A parent that nobody has written is one whose changes no server knows: all is
// written whole, and "If all are whole, the checkpoint has no parent."
TEST_F(BrokenChains, ParentThatServersDoNotKnowMakesOneThatHasAll) {
  One one(dir_, Plain());
  Where where(dir_.Path("c"));
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
  ASSERT_THAT(where.SaveNext(*one.client), IsOk());
  for (const std::string& attempt :
       {std::string("nothing"), std::string(100000, 'x'), std::string("\xff\n"),
        std::string("../../x"), std::string()}) {
    Parent made_up = **where.files->FindParent(16);
    made_up.attempt = attempt;
    const auto name = where.Save(*one.client, SaveAs::Delta(made_up));
    if (!name.ok()) continue;  // refused is as good
    EXPECT_EQ(where.links(*name), 0) << attempt;
    EXPECT_THAT(where.files->Verify(*name), IsOk());
  }
  // Without may_be_parent servers need not track it: what comes out is whole or
  // a delta that fits.
  const auto parent = *where.files->FindParent(16);
  ASSERT_THAT(Push(*one.table, Keys({5}), -1), IsOk());
  SaveAs as;
  as.parent = parent;
  const auto name = where.Save(*one.client, as);
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(one.client->Restore(where.path, *name), IsOk());
  one.Open(Plain());
  EXPECT_EQ(Pull(*one.table, Keys({4, 5})), (std::vector<float>{1, 2}));
}

// "One attempt at a time: a Commit removes what other attempts left." Two
// writers that do not know of each other, with the same parent: whatever is
// committed is right.
TEST_F(BrokenChains, TwoWritersWithOneParentLeaveWhatIsRight) {
  One one(dir_, Plain());
  Where a(dir_.Path("c")), b(dir_.Path("c")), full(dir_.Path("f"));
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
  ASSERT_THAT(a.SaveNext(*one.client), IsOk());
  for (int i = 0; i < 4; ++i) {
    const auto parent_a = *a.files->FindParent(16);
    const auto parent_b = *b.files->FindParent(16);
    ASSERT_TRUE(parent_a.has_value() && parent_b.has_value());
    ASSERT_THAT(Push(*one.table, Keys({2 * i}), -1), IsOk());
    const std::string attempt_a = *a.files->Begin(i);
    auto files_a =
        one.client->Save(a.path, attempt_a, -1, SaveAs::Delta(parent_a));
    ASSERT_THAT(files_a, IsOk());
    const auto full_a = full.Save(*one.client, SaveAs());
    ASSERT_THAT(Push(*one.table, Keys({2 * i + 1}), -1), IsOk());
    const std::string attempt_b = *b.files->Begin(i);
    auto files_b =
        one.client->Save(b.path, attempt_b, -1, SaveAs::Delta(parent_b));
    ASSERT_THAT(files_b, IsOk());
    const auto full_b = full.Save(*one.client, SaveAs());
    // By turns the first or the second is first.
    const auto commit = [&](Where& where, const std::string& attempt,
                            const auto& files, const auto& parent,
                            const auto& whole) {
      const auto name = where.files->Commit(attempt, *files, {}, parent);
      if (!name.ok()) return;
      ExpectSame(where.path, *name, full.path, *whole, dir_.Path("scratch"));
    };
    if (i % 2 == 0) {
      commit(a, attempt_a, files_a, parent_a, full_a);
      commit(b, attempt_b, files_b, parent_b, full_b);
    } else {
      commit(b, attempt_b, files_b, parent_b, full_b);
      commit(a, attempt_a, files_a, parent_a, full_a);
    }
    const auto names = *a.files->List();
    ASSERT_THAT(a.files->Verify(names.back()), IsOk());
  }
}

// --- Damage ------------------------------------------------------------------

// "What is missing, damaged or another one is named, and nothing is restored."
TEST_F(BrokenChains, AnyDamageInTheMiddleOfAChainIsNamedAndNothingIsRestored) {
  One one(dir_, Plain());
  Where where(dir_.Path("c"));
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(Push(*one.table, Keys({i}), -1), IsOk());
    const auto name = where.SaveNext(*one.client);
    ASSERT_THAT(name, IsOk());
    names.push_back(*name);
  }
  ASSERT_EQ(where.links(names[3]), 3);
  const auto expect_named = [&](const std::string& what,
                                const std::string& named) {
    EXPECT_THAT(where.files->Verify(names[3]).ToString(), HasSubstr(named))
        << what;
    EXPECT_THAT(SavedCheckpoint::Open(where.path, names[3]).status().ToString(),
                HasSubstr(named))
        << what;
    const absl::Status restored = one.client->Restore(where.path, names[3]);
    EXPECT_THAT(restored.ToString(), HasSubstr(named)) << what;
    EXPECT_THAT(restored.code(),
                AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kNotFound))
        << what << restored;
    EXPECT_EQ(Pull(*one.table, Keys({0, 3, 4})), (std::vector<float>{2, 2, 1}))
        << what;
  };
  for (size_t link = 0; link < 3; ++link) {
    const std::string folder = where.path + "/" + names[link];
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string path = entry.path().string();
      const std::string bytes = FileBytes(path);
      for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
        std::string flipped = bytes;
        flipped[at] = static_cast<char>(flipped[at] ^ 1);
        PutBytes(path, flipped);
        expect_named(absl::StrCat(path, " at ", at), names[link]);
      }
      PutBytes(path, bytes);
    }
    fs::rename(folder, dir_.Path("aside"));
    expect_named("gone", names[link]);
    fs::create_directory(folder);
    expect_named("empty", names[link]);
    fs::remove(folder);
    // Another checkpoint under its name.
    fs::copy(where.path + "/" + names[link + 1], folder,
             fs::copy_options::recursive);
    expect_named("another one", names[link]);
    fs::remove_all(folder);
    fs::rename(dir_.Path("aside"), folder);
    EXPECT_THAT(where.files->Verify(names[3]), IsOk());
  }
  // FindParent: "null if [...] one that it needs cannot be read or is not
  // whole": the next one has all.
  fs::remove_all(where.path + "/" + names[1]);
  const auto parent = where.files->FindParent(16);
  ASSERT_THAT(parent, IsOk());
  EXPECT_FALSE(parent->has_value());
  const auto next = where.SaveNext(*one.client);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(where.links(*next), 0);
  EXPECT_THAT(where.files->Verify(*next), IsOk());
}

// "Retention keeps what a checkpoint that stays needs, whatever it stays for".
TEST_F(BrokenChains, RetentionKeepsWhatAStayingOneNeedsAndNoMore) {
  One one(dir_, Plain());
  Where where(dir_.Path("c"), 1);
  ASSERT_THAT(Push(*one.table, Keys(Range(0, 100)), -1), IsOk());
  std::vector<std::string> names;
  for (int i = 0; i < 9; ++i) {
    ASSERT_THAT(Push(*one.table, Keys({i}), -1), IsOk());
    const auto name = where.SaveNext(*one.client, 3);
    ASSERT_THAT(name, IsOk());
    names.push_back(*name);
    if (i == 1) {
      ASSERT_THAT(where.files->SetName("best", *name), IsOk());
    }
    const std::vector<std::string> all = *where.files->List();
    for (const std::string& there : all) {
      EXPECT_THAT(where.files->Verify(there), IsOk()) << i;
    }
  }
  // The last chain of three, and that which has the name: 0 and 1.
  EXPECT_THAT(*where.files->List(),
              ElementsAre(names[0], names[1], names[6], names[7], names[8]));
  fs::remove(where.path + "/NAME-best");
  ASSERT_THAT(where.SaveNext(*one.client, 3), IsOk());
  EXPECT_THAT(*where.files->List(), SizeIs(1));
}

// --- Followed ----------------------------------------------------------------

struct Answer {
  int64_t version = -1;
  std::string checkpoint;
  float first = 0, last = 0;
};
Answer Ask(const ServedExports& served) {
  const auto table = served.Find("words");
  EXPECT_THAT(table, IsOk());
  if (!table.ok()) return {};
  const std::vector<uint64_t> keys = {WordKey(0), WordKey(99)};
  std::vector<float> values(4);
  std::vector<uint8_t> found(2);
  EXPECT_THAT(
      (*table)->LookUp(keys, absl::MakeSpan(values), absl::MakeSpan(found)),
      IsOk());
  return {(*table)->version(), (*table)->checkpoint(), values[0], values[2]};
}

// All rows of step n hold n.
TableContent Step(int64_t n, int rows = 100) {
  TableContent words = Words(rows);
  words.version = n;
  for (auto& [key, row] : words.rows) row = {1.0f * n, 1.0f * n};
  return words;
}
// As Step(n - 1), but that the row of 99 holds n.
TableContent LastOf(TableContent words, int64_t n) {
  words.version = n;
  words.rows[WordKey(99)] = {1.0f * n, 1.0f * n};
  return words;
}

// "Removed checkpoints are served as long as they are the newest that opened";
// "G17: each answer from one checkpoint".
TEST_F(BrokenChains,
       ParentThatIsRemovedOrDamagedWhileItIsFollowedChangesNoAnswer) {
  const std::string path = dir_.Path("saved");
  const TableContent one = Step(1), two = LastOf(one, 2),
                     three = LastOf(two, 3), four = LastOf(three, 4);
  const std::string first = SaveTables(path, 1, {one}, 2);
  const std::string second = SaveChanges(path, 2, {one}, {two}, 2);
  const auto served = ServedExports::Open({}, {{path, {"words"}}});
  ASSERT_THAT(served, IsOk());
  EXPECT_EQ(Ask(**served).last, 2);
  const std::string third = SaveChanges(path, 3, {two}, {three}, 2);
  // The first goes before the third was looked at.
  fs::rename(path + "/" + first, dir_.Path("aside"));
  for (int i = 0; i < 3; ++i) (void)(*served)->Poll();
  const Answer now = Ask(**served);
  EXPECT_THAT(now.last, AnyOf(2, 3));
  EXPECT_EQ(now.first, 1);
  EXPECT_EQ(now.checkpoint, now.last == 2 ? second : third);
  EXPECT_EQ(now.version, now.last == 2 ? 2 : 3);
  // Who begins now finds none that is whole.
  EXPECT_FALSE(ServedExports::Open({}, {{path, {"words"}}}).ok());
  fs::rename(dir_.Path("aside"), path + "/" + first);
  for (int i = 0; i < 3; ++i) (void)(*served)->Poll();
  // A byte of the second is another while it is mapped: by a new file, as a
  // copy from elsewhere makes it.
  const std::string shard = path + "/" + second + "/shard-00000.safetensors";
  std::string bytes = FileBytes(shard);
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  PutBytes(shard + ".new", bytes);
  fs::rename(shard + ".new", shard);
  const std::string fourth = SaveChanges(path, 4, {three}, {four}, 2);
  for (int i = 0; i < 3; ++i) (void)(*served)->Poll();
  const Answer then = Ask(**served);
  EXPECT_EQ(then.first, 1);
  EXPECT_THAT(then.last, AnyOf(2, 3, 4));
  // All of the directory goes.
  fs::remove_all(path);
  for (int i = 0; i < 3; ++i) (void)(*served)->Poll();
  EXPECT_EQ(Ask(**served).last, then.last);
  // Another one comes in its place, with older numbers.
  const TableContent anew = Step(50);
  SaveTables(path, 1, {anew}, 1);
  for (int i = 0; i < 3; ++i) (void)(*served)->Poll();
  EXPECT_THAT(Ask(**served).last, AnyOf(then.last, 50));
}

// "Why the old one stays: the new one does not open, or is of another table,
// kind or dim. Told once for each file, or checkpoint."
TEST_F(BrokenChains, CheckpointOfOtherTablesIsToldOnceAndTheOldOneStays) {
  const std::string path = dir_.Path("saved");
  const TableContent one = Step(1);
  SaveTables(path, 1, {one, Vector(10)}, 2);
  const auto served = ServedExports::Open({}, {{path, {"words", "vector"}}});
  ASSERT_THAT(served, IsOk());
  int told = 0;
  const auto poll = [&] {
    for (int i = 0; i < 3; ++i) {
      for (const auto& change : (*served)->Poll()) told += !change.status.ok();
    }
  };
  TableContent wide = Step(2);
  wide.spec.set_dim(3);
  for (auto& [key, row] : wide.rows) row = {2, 2, 2};
  SaveTables(path, 2, {wide, Vector(10)}, 2);
  poll();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(Ask(**served).version, 1);
  SaveTables(path, 3, {Step(3)}, 2);  // without the vector
  poll();
  EXPECT_EQ(told, 2);
  EXPECT_EQ(Ask(**served).version, 1);
  SaveTables(path, 4, {Step(4), Vector(10)}, 2);
  poll();
  EXPECT_EQ(told, 2);
  EXPECT_EQ(Ask(**served).version, 4);
  // A table in two places is refused, also a directory that is named twice.
  EXPECT_THAT(
      ServedExports::Open({}, {{path, {"words"}}, {path, {"words"}}}).status(),
      StatusIs(absl::StatusCode::kAlreadyExists, "words"));
  EXPECT_THAT(ServedExports::Open({}, {{path, {"words", "words"}}}).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, "words"));
  EXPECT_THAT(ServedExports::Open({}, {{path, {"none"}}}).status(),
              StatusIs(absl::StatusCode::kNotFound, "words"));
  EXPECT_THAT(ServedExports::Open({}, {{dir_.Path("nowhere"), {}}}).status(),
              StatusIs(absl::StatusCode::kNotFound, "nowhere"));
}

}  // namespace
}  // namespace weft::ps
