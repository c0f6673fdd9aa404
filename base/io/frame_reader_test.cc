#include "weft/base/io/frame_reader.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/io/record_frames.h"

namespace weft {
namespace {

constexpr uint32_t kMost = 1000;

struct Taken {
  std::vector<std::string> records;
  absl::StatusCode end = absl::StatusCode::kOk;
  size_t offset = 0;

  bool operator==(const Taken& other) const {
    return records == other.records && end == other.end &&
           offset == other.offset;
  }
};

Taken TakeAll(absl::string_view file) {
  Taken taken;
  absl::string_view rest = file;
  absl::string_view record;
  for (;;) {
    taken.offset = file.size() - rest.size();
    const absl::StatusOr<bool> took = TakeFrame(&rest, kMost, &record);
    taken.end = took.status().code();
    if (!took.ok() || !*took) return taken;
    taken.records.emplace_back(record);
  }
}

// The largest piece that was asked for goes to `largest`.
Taken ReadAll(const std::string& file, int64_t piece, int64_t* largest) {
  FrameReader reader(
      [&](int64_t offset, int64_t most) -> absl::StatusOr<std::string> {
        *largest = std::max(*largest, most);
        return file.substr(offset, most);
      },
      0, static_cast<int64_t>(file.size()), kMost, piece);
  Taken taken;
  absl::string_view record;
  for (;;) {
    taken.offset = reader.offset();
    const absl::StatusOr<bool> took = reader.Next(&record);
    taken.end = took.status().code();
    if (!took.ok() || !*took) return taken;
    taken.records.emplace_back(record);
  }
}

std::string FileOf(const std::vector<size_t>& lengths) {
  std::string file;
  for (const size_t length : lengths) {
    AppendFrame(std::string(length, static_cast<char>('a' + length % 26)),
                &file);
  }
  return file;
}

// Cuts, zeros, flipped bits and lost bytes, in pieces of any size.
TEST(FrameReader, FindsWhatIsFoundInTheWholeFile) {
  const std::string whole = FileOf({5, 0, 37, 200, 1, 90});
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string file = whole;
    if (random() % 3 == 0) file.resize(random() % (file.size() + 1));
    if (random() % 3 == 0) file.append(random() % 100, '\0');
    if (random() % 3 == 0 && !file.empty()) {
      const size_t at = random() % file.size();
      file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
    }
    if (random() % 6 == 0 && !file.empty()) {
      std::fill(file.begin() + random() % file.size(), file.end(), '\0');
    }
    int64_t largest = 0;
    const Taken wanted = TakeAll(file);
    const Taken found = ReadAll(file, 1 + random() % 300, &largest);
    ASSERT_TRUE(wanted == found)
        << "i " << i << ": wanted " << wanted.records.size() << " records, "
        << static_cast<int>(wanted.end) << " at " << wanted.offset << ", found "
        << found.records.size() << ", " << static_cast<int>(found.end) << " at "
        << found.offset;
  }
}

TEST(FrameReader, HasNoMoreInMemoryThanAPieceOrARecord) {
  std::string file = FileOf(std::vector<size_t>(3000, 100));
  file.append(100000, '\0');
  int64_t largest = 0;
  EXPECT_EQ(ReadAll(file, 4096, &largest).records.size(), 3000u);
  EXPECT_EQ(largest, 4096);
  largest = 0;
  EXPECT_EQ(ReadAll(FileOf({900, 900}), 64, &largest).records.size(), 2u);
  EXPECT_EQ(largest, 900 + kFrameHeaderBytes + kFrameEndBytes);
}

TEST(FrameReader, ErrorsOfTheFileAreTold) {
  FrameReader fails(
      [](int64_t, int64_t) -> absl::StatusOr<std::string> {
        return absl::UnavailableError("no disk");
      },
      0, 100, kMost);
  absl::string_view record;
  EXPECT_EQ(fails.Next(&record).status().code(),
            absl::StatusCode::kUnavailable);
  FrameReader shrinks(
      [](int64_t, int64_t) -> absl::StatusOr<std::string> { return ""; }, 0,
      100, kMost);
  EXPECT_EQ(shrinks.Next(&record).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace weft
