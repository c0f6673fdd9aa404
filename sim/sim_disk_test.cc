#include "weft/sim/sim_disk.h"

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

class SimDiskTest : public ::testing::Test {
 protected:
  FaultPlan plan_{1};
  SimDisk disk_{1, plan_};
};

TEST_F(SimDiskTest, KeepsSyncedFilesAndNames) {
  ASSERT_THAT(disk_.Create("d/kept"), IsOk());
  ASSERT_THAT(disk_.Append("d/kept", "one"), IsOk());
  ASSERT_THAT(disk_.SyncFile("d/kept"), IsOk());
  ASSERT_THAT(disk_.SyncDirectory("d"), IsOk());
  ASSERT_THAT(disk_.Append("d/kept", " two"), IsOk());
  ASSERT_THAT(disk_.Create("d/unnamed"), IsOk());
  ASSERT_THAT(disk_.SyncFile("d/unnamed"), IsOk());
  EXPECT_THAT(disk_.Read("d/kept"), IsOkAndHolds("one two"));
  disk_.Crash();
  EXPECT_THAT(disk_.Read("d/kept"), IsOkAndHolds("one"));
  EXPECT_THAT(disk_.Read("d/unnamed"),
              StatusIs(absl::StatusCode::kNotFound, "d/unnamed"));
  EXPECT_EQ(plan_.hits(Fault::kUnsyncedLoss), 1);
}

TEST_F(SimDiskTest, ANameMayOutliveTheBytesThatWereNotSynced) {
  ASSERT_THAT(disk_.Create("d/f"), IsOk());
  ASSERT_THAT(disk_.Append("d/f", "bytes"), IsOk());
  ASSERT_THAT(disk_.SyncDirectory("d"), IsOk());
  disk_.Crash();
  EXPECT_THAT(disk_.Read("d/f"), IsOkAndHolds(""));
}

TEST_F(SimDiskTest, ARenameIsUndoneByACrashUntilItsFolderIsSynced) {
  ASSERT_THAT(disk_.Create("d/tmp"), IsOk());
  ASSERT_THAT(disk_.SyncDirectory("d"), IsOk());
  ASSERT_THAT(disk_.Rename("d/tmp", "d/final"), IsOk());
  EXPECT_THAT(disk_.List("d"), ElementsAre("d/final"));
  disk_.Crash();
  EXPECT_THAT(disk_.List("d"), ElementsAre("d/tmp"));
  ASSERT_THAT(disk_.Rename("d/tmp", "d/final"), IsOk());
  ASSERT_THAT(disk_.SyncDirectory("d"), IsOk());
  disk_.Crash();
  EXPECT_THAT(disk_.List("d"), ElementsAre("d/final"));
}

TEST_F(SimDiskTest, FolderMovesWholeAndReplacesNoOther) {
  for (const char* path : {"tmp/a", "tmp/b", "old/a"}) {
    ASSERT_THAT(disk_.Create(path), IsOk());
  }
  EXPECT_THAT(disk_.Rename("tmp", "old"),
              StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(disk_.Rename("tmp", "new"), IsOk());
  EXPECT_THAT(disk_.List("new"), ElementsAre("new/a", "new/b"));
  EXPECT_THAT(disk_.List("tmp"), IsEmpty());
  EXPECT_THAT(disk_.Rename("tmp", "x"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SimDiskTest, IsFullAtTheByteThatWasSet) {
  for (int64_t k = 0; k <= 8; ++k) {
    ASSERT_THAT(disk_.Create("f"), IsOk());
    disk_.SetCapacity(k);
    const absl::Status written = disk_.Append("f", "12345678");
    EXPECT_EQ(written.ok(), k == 8) << written;
    EXPECT_THAT(disk_.Read("f"),
                IsOkAndHolds(std::string("12345678").substr(0, k)));
  }
}

TEST(SimDisk, ATornWriteLeavesAnyFirstPart) {
  std::set<size_t> lengths;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    FaultPlan plan(seed, FaultPlan::Options::Of({Fault::kTornWrite}, 1));
    SimDisk disk(seed, plan);
    ASSERT_THAT(disk.Create("f"), IsOk());
    ASSERT_THAT(disk.Append("f", "ab"), IsOk());
    ASSERT_THAT(disk.SyncFile("f"), IsOk());
    ASSERT_THAT(disk.SyncDirectory(""), IsOk());
    ASSERT_THAT(disk.Append("f", "cd"), IsOk());
    disk.Crash();
    const std::string left = *disk.Read("f");
    EXPECT_TRUE(absl::StartsWith("abcd", left)) << left;
    lengths.insert(left.size());
  }
  EXPECT_THAT(lengths, ElementsAre(2, 3, 4));
}

// Replaces "current" by a new version in the way that is right, or without
// the file's sync; returns whether every crash left a whole version.
bool ReplaceSurvives(bool sync_file) {
  bool is_whole = true;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    FaultPlan plan(seed, FaultPlan::Options::Of({Fault::kTornWrite}, 0.7));
    SimDisk disk(seed, plan);
    Random random(seed);
    int64_t steps = random.Below(13);  // crashes after so many
    const auto step = [&](const auto& act) {
      if (steps-- <= 0) return;
      EXPECT_THAT(act(), IsOk());
    };
    for (const char* version : {"version 1", "version 2"}) {
      step([&] { return disk.Create("tmp"); });
      step([&] { return disk.Append("tmp", version); });
      if (sync_file) step([&] { return disk.SyncFile("tmp"); });
      step([&] { return disk.Rename("tmp", "current"); });
      step([&] { return disk.SyncDirectory(""); });
    }
    disk.Crash();
    const auto left = disk.Read("current");
    if (left.ok() && *left != "version 1" && *left != "version 2") {
      is_whole = false;
    }
  }
  return is_whole;
}

TEST(SimDisk, FindsTheMissingSyncOfAReplacedFile) {
  EXPECT_TRUE(ReplaceSurvives(/*sync_file=*/true));
  EXPECT_FALSE(ReplaceSurvives(/*sync_file=*/false));
}

}  // namespace
}  // namespace weft::sim
