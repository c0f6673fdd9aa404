#include "weft/base/io/record_frames.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

struct Taken {
  std::vector<std::string> records;
  absl::Status status;
};

Taken TakeAll(absl::string_view bytes) {
  Taken taken;
  absl::string_view record;
  for (;;) {
    const absl::StatusOr<bool> took = TakeFrame(&bytes, 1000, &record);
    taken.status = took.status();
    if (!took.ok() || !*took) return taken;
    taken.records.emplace_back(record);
  }
}

std::string Three() {
  std::string file;
  for (const char* record : {"first", "second", "third"}) {
    AppendFrame(record, &file);
  }
  return file;
}

TEST(RecordFrames, TakesWhatWasWritten) {
  const Taken taken = TakeAll(Three());
  EXPECT_TRUE(taken.status.ok());
  EXPECT_THAT(taken.records, ElementsAre("first", "second", "third"));
}

// Also where the new length of the file reached the disk, and its end did not.
TEST(RecordFrames, WriteThatWasCutAnywhereIsTheEnd) {
  const std::string file = Three();
  for (const size_t zeros : {0, 1, 17, 4096}) {
    for (size_t length = 0; length < file.size(); ++length) {
      const Taken taken =
          TakeAll(file.substr(0, length) + std::string(zeros, '\0'));
      EXPECT_TRUE(taken.status.ok()) << length << " " << taken.status;
      EXPECT_LT(taken.records.size(), 3u);
    }
  }
}

// Of the last record too, and of lengths: none is taken for a write that was
// cut.
TEST(RecordFrames, EachFlippedBitIsFound) {
  const std::string file = Three();
  for (size_t at = 0; at < file.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = file;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      EXPECT_EQ(TakeAll(flipped).status.code(), absl::StatusCode::kDataLoss)
          << at << "." << bit;
    }
  }
}

TEST(RecordFrames, LongerRecordThanIsWantedIsRefused) {
  std::string file;
  AppendFrame(std::string(1001, 'x'), &file);
  EXPECT_EQ(TakeAll(file).status.code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace weft
