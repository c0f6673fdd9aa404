#include "weft/input/read_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "weft/input/gzip_fixture.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::input {
namespace {

using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr int64_t kEnough = 1 << 24;

std::string Text() {
  std::string text;
  for (int i = 0; i < 30000; ++i) text += std::to_string(i * i % 977);
  return text;
}

TEST(Gunzip, RoundTrips) {
  EXPECT_THAT(Gunzip(Gzip(Text()), kEnough, "f"), IsOkAndHolds(Text()));
  EXPECT_THAT(Gunzip(Gzip(""), kEnough, "f"), IsOkAndHolds(""));
  EXPECT_THAT(Gunzip(Gzip("one ") + Gzip("two"), kEnough, "f"),
              IsOkAndHolds("one two"));
}

TEST(Gunzip, SaysThatAStreamIsCutWhereverItIs) {
  const std::string packed = Gzip("a small text, a small text");
  for (size_t size = 0; size < packed.size(); ++size) {
    EXPECT_THAT(Gunzip(packed.substr(0, size), kEnough, "f"),
                StatusIs(absl::StatusCode::kInvalidArgument, "f: "))
        << size;
  }
}

TEST(Gunzip, FindsDamageInTheData) {
  const std::string packed = Gzip("a small text, a small text");
  for (size_t i = 10; i < packed.size(); ++i) {  // after the header
    std::string damaged = packed;
    damaged[i] ^= 1;
    EXPECT_FALSE(Gunzip(damaged, kEnough, "f").ok()) << i;
  }
}

TEST(Gunzip, StopsAtTheLimitOfAStreamThatUnpacksToTooMuch) {
  const std::string bomb = Gzip(std::string(8 << 20, '\0'));
  ASSERT_LT(bomb.size(), 10000u);
  EXPECT_THAT(Gunzip(bomb, 1 << 20, "f"),
              StatusIs(absl::StatusCode::kResourceExhausted, "1048576"));
}

TEST(Gunzip, TakesExactlyTheLimit) {
  EXPECT_THAT(Gunzip(Gzip("12345"), 5, "f"), IsOkAndHolds("12345"));
  EXPECT_THAT(Gunzip(Gzip("12345"), 4, "f"),
              StatusIs(absl::StatusCode::kResourceExhausted, "allowed 4"));
}

TEST(GunzipHead, GivesTheBeginningOfAStreamWhoseRestIsDamaged) {
  std::string packed = Gzip(Text());
  packed.resize(packed.size() / 2);
  EXPECT_THAT(GunzipHead(packed, 100, "f"),
              IsOkAndHolds(Text().substr(0, 100)));
  EXPECT_THAT(GunzipHead(Gzip("short"), 100, "f"), IsOkAndHolds("short"));
}

TEST(ReadFile, ReadsPlainAndPackedFilesAlike) {
  const TempDir dir;
  std::ofstream(dir.Path("plain")) << Text();
  std::ofstream(dir.Path("packed")) << Gzip(Text());
  EXPECT_THAT(ReadFile(dir.Path("plain")), IsOkAndHolds(Text()));
  EXPECT_THAT(ReadFile(dir.Path("packed")), IsOkAndHolds(Text()));
  ReadFileOptions packed;
  packed.gunzip = false;
  EXPECT_THAT(ReadFile(dir.Path("packed"), packed), IsOkAndHolds(Gzip(Text())));
}

// Its opening would wait for somebody who writes.
TEST(ReadFile, FifoIsRefusedAtOnce) {
  testing::TempDir dir;
  ASSERT_EQ(mkfifo(dir.Path("f").c_str(), 0600), 0);
  EXPECT_THAT(
      ReadFile(dir.Path("f")),
      StatusIs(absl::StatusCode::kInvalidArgument, "wanted a regular file"));
}

TEST(ReadFile, ErrorNamesTheFile) {
  const TempDir dir;
  EXPECT_THAT(ReadFile(dir.Path("absent")),
              StatusIs(absl::StatusCode::kNotFound, "absent"));
  EXPECT_THAT(ReadFile(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, "regular file"));
  std::ofstream(dir.Path("large")) << "0123456789";
  EXPECT_THAT(ReadFile(dir.Path("large"), {/*max_bytes=*/9}),
              StatusIs(absl::StatusCode::kResourceExhausted, "large"));
}

}  // namespace
}  // namespace weft::input
