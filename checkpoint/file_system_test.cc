// What every FileSystem promises, by the system's own and by the fake that
// other tests stand on; then what a power cut takes from the fake.

#include "weft/checkpoint/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

absl::Status Write(FileSystem& files, const std::string& path,
                   const std::string& bytes) {
  auto file = files.Create(path);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Append(bytes);
  return status.ok() ? (*file)->Sync() : status;
}

enum class Kind { kLocal, kFake };

class FileSystemTest : public ::testing::TestWithParam<Kind> {
 protected:
  FileSystemTest() {
    if (GetParam() == Kind::kFake) {
      files_ = &fake_;
      root_ = "/root";
      EXPECT_THAT(fake_.MakeDirectories(root_), IsOk());
    }
  }

  FileSystem& files() { return *files_; }
  std::string Path(const std::string& name) const {
    return absl::StrCat(root_, "/", name);
  }

  const TempDir dir_;
  FakeFileSystem fake_;
  FileSystem* files_ = &LocalFiles();
  std::string root_ = dir_.path();
};

TEST_P(FileSystemTest, FileHasWhatWasAppendedInOrder) {
  auto file = files().Create(Path("f"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(files().Size(Path("f")), IsOkAndHolds(0));
  EXPECT_THAT((*file)->Append(""), IsOk());
  EXPECT_THAT((*file)->Append(std::string("a\0b", 3)), IsOk());
  EXPECT_THAT((*file)->Append("\xff\n"), IsOk());
  EXPECT_THAT((*file)->Sync(), IsOk());
  EXPECT_THAT((*file)->Append("end"), IsOk());
  file->reset();
  EXPECT_THAT(files().Read(Path("f"), kAny),
              IsOkAndHolds(std::string("a\0b\xff\nend", 8)));
  EXPECT_THAT(files().Size(Path("f")), IsOkAndHolds(8));
}

TEST_P(FileSystemTest, ReadTakesFilesOfUpToTheBytesAllowed) {
  ASSERT_THAT(Write(files(), Path("f"), "four"), IsOk());
  EXPECT_THAT(files().Read(Path("f"), 4), IsOkAndHolds("four"));
  EXPECT_THAT(files().Read(Path("f"), 3),
              StatusIs(absl::StatusCode::kResourceExhausted, Path("f")));
  ASSERT_THAT(Write(files(), Path("empty"), ""), IsOk());
  EXPECT_THAT(files().Read(Path("empty"), 0), IsOkAndHolds(""));
}

TEST_P(FileSystemTest, MissingFilesAndDirectoriesAreNotFoundAndNamed) {
  const auto missing = [&](absl::string_view name) {
    return StatusIs(absl::StatusCode::kNotFound, name);
  };
  EXPECT_THAT(files().Read(Path("f"), kAny), missing(Path("f")));
  EXPECT_THAT(files().Size(Path("f")), missing(Path("f")));
  EXPECT_THAT(files().List(Path("d")), missing(Path("d")));
  EXPECT_THAT(files().Create(Path("d/f")), missing(Path("d/f")));
  EXPECT_THAT(files().Rename(Path("f"), Path("g")), missing(Path("f")));
  EXPECT_THAT(files().List(root_), IsOkAndHolds(IsEmpty()));
}

TEST_P(FileSystemTest, CreateLeavesAFileThatIsThereAlone) {
  ASSERT_THAT(Write(files(), Path("f"), "old"), IsOk());
  EXPECT_THAT(files().Create(Path("f")),
              StatusIs(absl::StatusCode::kAlreadyExists, Path("f")));
  EXPECT_THAT(files().Read(Path("f"), kAny), IsOkAndHolds("old"));
}

TEST_P(FileSystemTest, ListHasTheNamesOfOneDirectorySorted) {
  ASSERT_THAT(files().MakeDirectories(Path("d/inner")), IsOk());
  for (const char* name : {"d/b", "d/a", "d/inner/c", "da"}) {
    ASSERT_THAT(Write(files(), Path(name), name), IsOk());
  }
  EXPECT_THAT(files().List(Path("d")),
              IsOkAndHolds(ElementsAre("a", "b", "inner")));
  EXPECT_THAT(files().List(root_), IsOkAndHolds(ElementsAre("d", "da")));
  EXPECT_THAT(files().List(Path("da")),
              StatusIs(absl::StatusCode::kFailedPrecondition, Path("da")));
}

TEST_P(FileSystemTest, DirectoriesAreMadeWithTheirParentsAndTwice) {
  EXPECT_THAT(files().MakeDirectories(Path("a/b/c")), IsOk());
  EXPECT_THAT(files().MakeDirectories(Path("a/b/c")), IsOk());
  EXPECT_THAT(files().MakeDirectories(Path("a/b")), IsOk());
  EXPECT_THAT(Write(files(), Path("a/b/c/f"), "x"), IsOk());
  EXPECT_THAT(files().MakeDirectories(Path("a/b/c/f")),
              StatusIs(absl::StatusCode::kFailedPrecondition, Path("a/b/c/f")));
  EXPECT_THAT(files().MakeDirectories(Path("a/b/c/f/g")),
              StatusIs(absl::StatusCode::kFailedPrecondition, Path("a/b/c/f")));
}

TEST_P(FileSystemTest, RenameReplacesAFileAndMovesADirectoryWithAllInIt) {
  ASSERT_THAT(Write(files(), Path("f"), "new"), IsOk());
  ASSERT_THAT(Write(files(), Path("g"), "old"), IsOk());
  EXPECT_THAT(files().Rename(Path("f"), Path("g")), IsOk());
  EXPECT_THAT(files().Read(Path("g"), kAny), IsOkAndHolds("new"));
  EXPECT_THAT(files().Size(Path("f")), StatusIs(absl::StatusCode::kNotFound));

  ASSERT_THAT(files().MakeDirectories(Path("d/inner")), IsOk());
  ASSERT_THAT(Write(files(), Path("d/inner/x"), "x"), IsOk());
  EXPECT_THAT(files().Rename(Path("d"), Path("e")), IsOk());
  EXPECT_THAT(files().Read(Path("e/inner/x"), kAny), IsOkAndHolds("x"));
  EXPECT_THAT(files().List(Path("d")), StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(FileSystemTest, RenameReplacesNoDirectoryThatHasFiles) {
  for (const char* name : {"d", "e"}) {
    ASSERT_THAT(files().MakeDirectories(Path(name)), IsOk());
    ASSERT_THAT(Write(files(), Path(absl::StrCat(name, "/f")), name), IsOk());
  }
  EXPECT_FALSE(files().Rename(Path("d"), Path("e")).ok());
  EXPECT_THAT(files().Read(Path("d/f"), kAny), IsOkAndHolds("d"));
  EXPECT_THAT(files().Read(Path("e/f"), kAny), IsOkAndHolds("e"));
}

TEST_P(FileSystemTest, RemoveTakesFilesEmptyDirectoriesAndWhatIsNotThere) {
  ASSERT_THAT(files().MakeDirectories(Path("d")), IsOk());
  ASSERT_THAT(Write(files(), Path("d/f"), "x"), IsOk());
  EXPECT_THAT(files().Remove(Path("d")),
              StatusIs(absl::StatusCode::kFailedPrecondition, Path("d")));
  EXPECT_THAT(files().Read(Path("d/f"), kAny), IsOkAndHolds("x"));
  EXPECT_THAT(files().Remove(Path("d/f")), IsOk());
  EXPECT_THAT(files().Remove(Path("d")), IsOk());
  EXPECT_THAT(files().Remove(Path("d")), IsOk());
  EXPECT_THAT(files().List(root_), IsOkAndHolds(IsEmpty()));
}

TEST_P(FileSystemTest, DirectoriesThatAreThereCanBeSynced) {
  EXPECT_THAT(files().SyncDirectory(root_), IsOk());
}

// A checkpoint is read while an older one is removed.
TEST_P(FileSystemTest, FileBeingWrittenOutlivesItsName) {
  auto file = files().Create(Path("f"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(files().Remove(Path("f")), IsOk());
  EXPECT_THAT((*file)->Append("x"), IsOk());
  EXPECT_THAT((*file)->Sync(), IsOk());
  EXPECT_THAT(files().List(root_), IsOkAndHolds(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, FileSystemTest,
                         ::testing::Values(Kind::kLocal, Kind::kFake),
                         [](const auto& test) -> std::string {
                           return test.param == Kind::kLocal ? "Local" : "Fake";
                         });

TEST(LocalFiles, FilesAndDirectoriesAreTheirOwnersAlone) {
  const TempDir dir;
  ASSERT_THAT(LocalFiles().MakeDirectories(dir.Path("d")), IsOk());
  ASSERT_THAT(Write(LocalFiles(), dir.Path("d/f"), "x"), IsOk());
  struct stat found = {};
  ASSERT_EQ(stat(dir.Path("d").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 077, 0u);
  ASSERT_EQ(stat(dir.Path("d/f").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0177, 0u);
}

TEST(LocalFiles, WhatIsNoFileIsNotRead) {
  const TempDir dir;
  EXPECT_THAT(LocalFiles().Read(dir.path(), kAny),
              StatusIs(absl::StatusCode::kFailedPrecondition, dir.path()));
  // One that waited for a writer would wait for ever.
  ASSERT_EQ(mkfifo(dir.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(LocalFiles().Read(dir.Path("pipe"), kAny),
              StatusIs(absl::StatusCode::kFailedPrecondition, "pipe"));
  ASSERT_EQ(symlink("pipe", dir.Path("link").c_str()), 0);
  EXPECT_FALSE(LocalFiles().Create(dir.Path("link")).ok());
  EXPECT_FALSE(LocalFiles().SyncDirectory(dir.Path("link")).ok());
}

using Failure = FakeFileSystem::Failure;

// So many seeds lose and keep each of a few things.
constexpr uint64_t kSeeds = 64;

TEST(FakeFileSystem, PowerCutTakesNamesAndBytesThatWereNotSynced) {
  int without_name = 0, cut = 0, whole = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    FakeFileSystem files;
    ASSERT_THAT(files.MakeDirectories("/d"), IsOk());
    files.FailAfter(FakeFileSystem::kUnlimited, Failure::kPowerCut);
    {
      auto file = files.Create("/d/f");
      ASSERT_THAT(file, IsOk());
      ASSERT_THAT((*file)->Append("ab"), IsOk());
      ASSERT_THAT((*file)->Sync(), IsOk());
      ASSERT_THAT((*file)->Append("cdef"), IsOk());
    }
    files.Restart(seed);
    if (!files.Exists("/d/f")) {
      ++without_name;
      continue;
    }
    const std::string bytes = files.Content("/d/f");
    EXPECT_EQ(bytes, std::string("abcdef").substr(0, bytes.size()));
    EXPECT_GE(bytes.size(), 2u);  // they were synced
    ++(bytes.size() == 6 ? whole : cut);
  }
  EXPECT_GT(without_name, 0);
  EXPECT_GT(cut, 0);
  EXPECT_GT(whole, 0);
}

TEST(FakeFileSystem, PowerCutLeavesWhatWasSynced) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    FakeFileSystem files;
    ASSERT_THAT(files.MakeDirectories("/d"), IsOk());
    files.FailAfter(FakeFileSystem::kUnlimited, Failure::kPowerCut);
    ASSERT_THAT(Write(files, "/d/f", "kept"), IsOk());
    ASSERT_THAT(Write(files, "/d/g", "gone"), IsOk());
    ASSERT_THAT(files.Remove("/d/g"), IsOk());
    ASSERT_THAT(files.SyncDirectory("/d"), IsOk());
    files.Restart(seed);
    EXPECT_THAT(files.List("/d"), IsOkAndHolds(ElementsAre("f"))) << seed;
    EXPECT_THAT(files.Read("/d/f", kAny), IsOkAndHolds("kept")) << seed;
  }
}

TEST(FakeFileSystem, BrokenDiskDoesNothingAndAFullOneStillRemoves) {
  for (const Failure failure : {Failure::kFull, Failure::kBroken}) {
    FakeFileSystem files;
    ASSERT_THAT(files.MakeDirectories("/d"), IsOk());
    ASSERT_THAT(Write(files, "/d/f", "x"), IsOk());
    EXPECT_FALSE(files.has_failed());
    files.FailAfter(0, failure);
    const auto wanted = failure == Failure::kFull
                            ? absl::StatusCode::kResourceExhausted
                            : absl::StatusCode::kDataLoss;
    EXPECT_THAT(files.Create("/d/g"), StatusIs(wanted, "/d/g"));
    EXPECT_TRUE(files.has_failed());
    EXPECT_EQ(files.Remove("/d/f").ok(), failure == Failure::kFull);
    EXPECT_EQ(files.Exists("/d/f"), failure != Failure::kFull);
  }
}

}  // namespace
}  // namespace weft::checkpoint
