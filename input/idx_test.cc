#include "weft/input/idx.h"

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/input/gzip_fixture.h"
#include "weft/input/read_file.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::input {
namespace {

using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Word(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(value >> shift));
  }
  return bytes;
}

std::string Header(int type, const std::vector<uint32_t>& dims) {
  std::string bytes = {0, 0, static_cast<char>(type),
                       static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) bytes += Word(dim);
  return bytes;
}

// The most memory that this process has had in RAM.
int64_t PeakResidentBytes() {
  rusage usage = {};
  EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  return int64_t{usage.ru_maxrss} << 10;
}

TEST(ParseIdx, ReadsEveryElementType) {
  const std::string two = {'\x80', '\x01'};
  EXPECT_EQ(ParseIdx(Header(0x08, {2}) + two, "f")->ToVector<uint8_t>(),
            std::vector<uint8_t>({128, 1}));
  EXPECT_EQ(ParseIdx(Header(0x09, {2}) + two, "f")->ToVector<int64_t>(),
            std::vector<int64_t>({-128, 1}));
  EXPECT_EQ(ParseIdx(Header(0x0b, {1}) + two, "f")->ToVector<int64_t>(),
            std::vector<int64_t>({-32767}));
  EXPECT_EQ(
      ParseIdx(Header(0x0c, {1}) + Word(0xfffffffe), "f")->ToVector<int64_t>(),
      std::vector<int64_t>({-2}));
  EXPECT_EQ(
      ParseIdx(Header(0x0d, {1}) + Word(0xbfc00000), "f")->ToVector<float>(),
      std::vector<float>({-1.5f}));
  EXPECT_EQ(ParseIdx(Header(0x0e, {1}) + Word(0x40040000) + Word(0), "f")
                ->ToVector<double>(),
            std::vector<double>({2.5}));
}

TEST(ParseIdx, KeepsTheShape) {
  const auto tensor = ParseIdx(Header(8, {2, 1, 3}) + "abcdef", "f");
  WEFT_ASSERT_OK(tensor);
  EXPECT_EQ(tensor->shape(), Shape({2, 1, 3}));
  EXPECT_EQ(ParseIdx(Header(8, {}) + "a", "f")->dim(), 0);
  EXPECT_EQ(ParseIdx(Header(8, {0, 5}), "f")->numel(), 0);
}

TEST(ParseIdx, ErrorOfATruncatedFileNamesTheMissingBytes) {
  const std::string whole = Header(0x0c, {2, 3}) + std::string(24, 'x');
  WEFT_EXPECT_OK(ParseIdx(whole, "f"));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ParseIdx(whole.substr(0, size), "train.idx"),
                StatusIs(kInvalid, "train.idx: "));
  }
  EXPECT_THAT(ParseIdx(whole.substr(0, 20), "f"),
              StatusIs(kInvalid,
                       "wanted 24 bytes of elements for shape [2, 3], found 8; "
                       "the file is cut"));
  EXPECT_THAT(ParseIdx(whole + "y", "f"), StatusIs(kInvalid, "too long"));
}

TEST(ParseIdx, RefusesDimensionsThatCannotBeBeforeItAllocates) {
  EXPECT_THAT(ParseIdx(Header(8, {0xffffffff}), "f"),
              StatusIs(kInvalid, "dimension 0 of the IDX header is -1"));
  EXPECT_THAT(ParseIdx(Header(8, {0x7fffffff, 0x7fffffff, 4}), "f"),
              StatusIs(kInvalid, "dimension 1"));
  EXPECT_THAT(ParseIdx(Header(8, {0, 0x7fffffff, 0x7fffffff}), "f"),
              StatusIs(kInvalid, "dimension 2"));
  EXPECT_THAT(ParseIdx(Header(8, {0x7fffffff}), "f"),
              StatusIs(kInvalid, "found 0"));
  EXPECT_THAT(ParseIdx(Header(8, std::vector<uint32_t>(33, 1)) + "a", "f"),
              StatusIs(kInvalid, "33 dimensions"));
}

TEST(ParseIdx, RefusesOtherFormats) {
  EXPECT_THAT(ParseIdx("hello", "f"), StatusIs(kInvalid, "wanted an IDX file"));
  EXPECT_THAT(ParseIdx(Header(0x0a, {1}) + "a", "f"),
              StatusIs(kInvalid, "found 0 0 10"));
}

TEST(GunzipIdx, UnpacksAWholeFileOfEachShape) {
  for (const std::string& file :
       {Header(8, {2, 3}) + "abcdef", Header(8, {0}),
        Header(8, {1 << 20}) + std::string(1 << 20, '\0')}) {
    EXPECT_THAT(GunzipIdx(Gzip(file), 2 << 20, "f"), IsOkAndHolds(file));
  }
}

TEST(GunzipIdx, UnpacksNoMoreThanTheHeaderSays) {
  // 256 MiB of zeros, behind a header of two elements.
  std::string bomb = Gzip(Header(8, {2}) + "ab");
  const std::string zeros = Gzip(std::string(4 << 20, '\0'));
  for (int i = 0; i < 64; ++i) bomb += zeros;
  const int64_t before = PeakResidentBytes();
  const absl::Status refused =
      GunzipIdx(bomb, ReadFileOptions().max_bytes, "bomb.gz").status();
  EXPECT_THAT(refused,
              StatusIs(kInvalid, "bomb.gz: unpacks to more than the 2 bytes"));
  EXPECT_LT(PeakResidentBytes() - before, 8 << 20);
}

TEST(GunzipIdx, RefusesAHeaderBeyondTheLimitBeforeItUnpacksTheElements) {
  std::string packed = Gzip(Header(8, {1 << 30, 4}) + std::string(9999, 'x'));
  packed.resize(packed.size() - 8);  // unpacking would find it cut
  EXPECT_THAT(GunzipIdx(packed, int64_t{4} << 30, "f"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "the IDX header says 4294967296 bytes"));
}

TEST(ReadIdx, ReadsPlainAndPackedFilesAlikeAndRefusesABomb) {
  const TempDir dir;
  const std::string file = Header(8, {2, 3}) + "abcdef";
  std::ofstream(dir.Path("plain")) << file;
  std::ofstream(dir.Path("packed")) << Gzip(file);
  std::ofstream(dir.Path("bomb")) << Gzip(file + std::string(1 << 20, '\0'));
  for (const char* name : {"plain", "packed"}) {
    const auto tensor = ReadIdx(dir.Path(name));
    WEFT_ASSERT_OK(tensor);
    EXPECT_EQ(tensor->shape(), Shape({2, 3}));
  }
  EXPECT_THAT(ReadIdx(dir.Path("bomb")),
              StatusIs(kInvalid, "bomb: unpacks to more than the 6 bytes"));
}

class IdxDatasetTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_.Path(name)) << bytes;
    return dir_.Path(name);
  }

  IdxDataset::Options Pair(const std::string& labels) {
    IdxDataset::Options options;
    options.images = Write(
        "images", Header(8, {3, 1, 2}) + std::string("\0\xff\x33\0\0\0", 6));
    options.labels = Write("labels", labels);
    return options;
  }

  TempDir dir_;
};

TEST_F(IdxDatasetTest, GivesScaledImagesWithTheirLabels) {
  auto options = Pair(Header(8, {3}) + "\x01\x02\x03");
  options.mean = 0.5f;
  options.deviation = 0.5f;
  const auto data = IdxDataset::Open(options);
  WEFT_ASSERT_OK(data);
  EXPECT_EQ(data->size(), 3);
  const auto batch = data->GetBatch({1, 0});
  WEFT_ASSERT_OK(batch);
  EXPECT_EQ((*batch)[0].shape(), Shape({2, 1, 1, 2}));
  const std::vector<float> pixels = (*batch)[0].ToVector<float>();
  EXPECT_FLOAT_EQ(pixels[0], (0.2f - 0.5f) / 0.5f);
  EXPECT_EQ(pixels[2], -1.0f);
  EXPECT_EQ(pixels[3], 1.0f);
  EXPECT_EQ((*batch)[1].ToVector<int64_t>(), std::vector<int64_t>({2, 1}));
  EXPECT_EQ((*data->Get(2))[0].shape(), Shape({1, 1, 2}));
  EXPECT_THAT(data->Get(3), StatusIs(kInvalid, "index 3 is not in [0, 3)"));
}

TEST_F(IdxDatasetTest, ChecksumIsOfImagesAndLabels) {
  const std::string labels = Header(8, {3});
  const auto checksum = [&](const std::string& classes) {
    const auto data = IdxDataset::Open(Pair(labels + classes));
    EXPECT_TRUE(data.ok()) << data.status();
    return data.ok() ? data->Checksum() : 0;
  };
  EXPECT_EQ(checksum("\x01\x02\x03"), checksum("\x01\x02\x03"));
  EXPECT_NE(checksum("\x01\x02\x03"), checksum("\x01\x03\x02"));
}

TEST_F(IdxDatasetTest, RefusesLabelsThatDoNotFit) {
  EXPECT_THAT(IdxDataset::Open(Pair(Header(8, {2}) + "\x01\x02")),
              StatusIs(kInvalid, "wanted labels u8[3]"));
  EXPECT_THAT(IdxDataset::Open(Pair(Header(8, {3}) + "\x01\x02\x0b")),
              StatusIs(kInvalid, "label 2 is 11, allowed is [0, 10)"));
}

TEST_F(IdxDatasetTest, NamesAMissingFile) {
  IdxDataset::Options options;
  options.images = dir_.Path("nowhere");
  EXPECT_THAT(IdxDataset::Open(options),
              StatusIs(absl::StatusCode::kNotFound, "nowhere"));
}

}  // namespace
}  // namespace weft::input
