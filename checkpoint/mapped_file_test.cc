#include "weft/checkpoint/mapped_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::checkpoint {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(MappedFile, KeepsTheFileThatItOpenedWhenAnotherTakesItsName) {
  const testing::TempDir dir;
  const std::string path = dir.Path("f");
  std::ofstream(path) << "first";
  const auto file = MappedFile::Open(path);
  ASSERT_THAT(file, IsOk());
  std::ofstream(dir.Path("g")) << "second";
  std::filesystem::rename(dir.Path("g"), path);
  EXPECT_EQ((*file)->bytes(), "first");
  EXPECT_THAT((*file)->CheckUnchanged(), IsOk());
  const auto now = MappedFile::IdentityOf(path);
  ASSERT_THAT(now, IsOk());
  EXPECT_NE(*now, (*file)->identity());
  EXPECT_EQ(now->bytes, 6);
}

TEST(MappedFile, FileThatIsWrittenToOrCutIsTold) {
  const testing::TempDir dir;
  const std::string path = dir.Path("f");
  std::ofstream(path) << "first";
  const auto file = MappedFile::Open(path);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(truncate(path.c_str(), 2), 0);
  EXPECT_THAT((*file)->CheckUnchanged(),
              StatusIs(absl::StatusCode::kDataLoss, path));
}

TEST(MappedFile, WhatIsNoFileIsRefusedAndAnEmptyOneIsEmpty) {
  const testing::TempDir dir;
  EXPECT_THAT(MappedFile::Open(dir.Path("none")),
              StatusIs(absl::StatusCode::kNotFound, dir.Path("none")));
  EXPECT_THAT(MappedFile::Open(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, "wanted a file"));
  std::ofstream(dir.Path("empty"));
  const auto file = MappedFile::Open(dir.Path("empty"));
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ((*file)->bytes(), "");
}

}  // namespace
}  // namespace weft::checkpoint
