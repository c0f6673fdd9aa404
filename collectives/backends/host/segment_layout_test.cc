#include "weft/collectives/backends/host/segment_layout.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Made as in a segment, which begins as zeros.
template <typename T>
std::unique_ptr<T> Zeroed() {
  auto made = std::make_unique<T>();
  memset(static_cast<void*>(made.get()), 0, sizeof(T));
  return made;
}

Operation Example() {
  Operation operation;
  operation.verb = Verb::kReduce;
  operation.dtype = DType::kF32;
  operation.reduction = {ReduceOp::kMax, 0.25};
  operation.root = 2;
  operation.inputs = {{nullptr, 1024}};
  operation.sequence = 12;
  operation.label = 9;
  operation.site = {"/src/model/train.cc", 40};
  operation.detail = "[2, 0, 1]";
  return operation;
}

// --- Where parts lie. ------------------------------------------------------

struct Part {
  int64_t begin;
  int64_t bytes;
  std::string name;
};

std::vector<Part> PartsOf(const SegmentLayout& layout, int ranks) {
  std::vector<Part> parts = {{layout.HeadAt(), sizeof(SegmentHead), "head"}};
  for (int r = 0; r < ranks; ++r) {
    parts.push_back({layout.ControlAt(r), sizeof(RankControl),
                     absl::StrCat("control ", r)});
    for (int parity : {0, 1}) {
      parts.push_back({layout.SlotAt(r, parity), sizeof(Slot),
                       absl::StrCat("slot ", r, " ", parity)});
    }
    for (int to = 0; to < ranks; ++to) {
      parts.push_back({layout.RingHeadAt(r, to), sizeof(RingHead),
                       absl::StrCat("ring head ", r, " ", to)});
      parts.push_back({layout.RingContentAt(r, to),
                       static_cast<int64_t>(TransferRing::kBytes),
                       absl::StrCat("ring ", r, " ", to)});
    }
    parts.push_back(
        {layout.ArenaAt(r), layout.arena_bytes(), absl::StrCat("arena ", r)});
  }
  return parts;
}

TEST(SegmentLayout, PartsDoNotOverlapAndAreAligned) {
  for (const int ranks : {1, 2, 3, 16, 65}) {
    for (const int64_t arena :
         {int64_t{0}, int64_t{1}, int64_t{4096}, int64_t{64} << 20}) {
      const SegmentLayout layout(ranks, arena);
      EXPECT_GE(layout.arena_bytes(), arena);
      EXPECT_LT(layout.arena_bytes(), arena + 4096);
      std::vector<Part> parts = PartsOf(layout, ranks);
      std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
        return a.begin < b.begin ||
               (a.begin == b.begin && a.bytes < b.bytes);  // empty arenas
      });
      int64_t end = 0;
      for (const Part& part : parts) {
        ASSERT_GE(part.begin, end) << part.name;
        ASSERT_EQ(part.begin % 64, 0) << part.name;
        end = part.begin + part.bytes;
      }
      EXPECT_EQ(end, layout.bytes());
    }
  }
}

// What is given its pages by itself begins with one.
TEST(SegmentLayout, RingsAndArenasBeginWithAPageAfterTheInitialBytes) {
  for (const int ranks : {1, 2, 7, 65}) {
    const SegmentLayout layout(ranks, 5000);
    EXPECT_EQ(layout.initial_bytes(), layout.RingContentAt(0, 0));
    EXPECT_GE(layout.initial_bytes(),
              layout.RingHeadAt(ranks - 1, ranks - 1) +
                  static_cast<int64_t>(sizeof(RingHead)));
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(layout.RingContentAt(r, ranks - 1) % 4096, 0);
      EXPECT_EQ(layout.ArenaAt(r) % 4096, 0);
    }
  }
}

// Others look at these with every operation.
TEST(SegmentLayout, OperationsAndTransfersHaveCacheLinesOfTheirOwn) {
  EXPECT_EQ(offsetof(RankControl, transfer_bell) % 64, 0u);
  EXPECT_EQ(sizeof(RankControl) % 64, 0u);
  EXPECT_EQ(offsetof(Slot, staged) % 64, 0u);
  EXPECT_NE(offsetof(RingHead, written) / 64, offsetof(RingHead, read) / 64);
}

// --- WrittenStatus. --------------------------------------------------------

TEST(WrittenStatus, IsWrittenOnce) {
  const auto status = Zeroed<WrittenStatus>();
  EXPECT_THAT(status->Read(), IsOk());
  EXPECT_TRUE(status->Write(absl::UnavailableError("first")));
  EXPECT_FALSE(status->Write(absl::AbortedError("second")));
  EXPECT_EQ(status->Read(), absl::UnavailableError("first"));
}

TEST(WrittenStatus, LongMessagesAreCutAndEmptyOnesStayEmpty) {
  const auto status = Zeroed<WrittenStatus>();
  EXPECT_TRUE(status->Write(absl::InternalError(std::string(5000, 'x'))));
  EXPECT_EQ(status->Read(),
            absl::InternalError(std::string(sizeof(status->text), 'x')));
  const auto empty = Zeroed<WrittenStatus>();
  EXPECT_TRUE(empty->Write(absl::CancelledError("")));
  EXPECT_EQ(empty->Read(), absl::CancelledError(""));
}

TEST(WrittenStatus, OneThatIsBeingWrittenIsNotRead) {
  const auto status = Zeroed<WrittenStatus>();
  status->state = 1;
  EXPECT_THAT(status->Read(), IsOk());
  EXPECT_FALSE(status->Write(absl::AbortedError("late")));
}

// Another rank wrote it, and may have written anything.
TEST(WrittenStatus, NumbersThatAreNoneAreReadAsAnErrorAllTheSame) {
  for (const int32_t code : {0, -1, 17, 1 << 30}) {
    const auto status = Zeroed<WrittenStatus>();
    status->code = code;
    status->bytes = 0xffffffff;
    memset(status->text, 'y', sizeof status->text);
    status->state = 2;
    EXPECT_THAT(status->Read(), StatusIs(absl::StatusCode::kInternal, "yyy"))
        << code;
    EXPECT_EQ(status->Read().message().size(), sizeof status->text);
  }
}

TEST(WrittenStatus, OfManyWritersOneWinsWhole) {
  for (int round = 0; round < 50; ++round) {
    const auto status = Zeroed<WrittenStatus>();
    std::atomic<int> wins = 0;
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&, i] {
        const std::string text(100 + i, static_cast<char>('a' + i));
        wins += status->Write(absl::AbortedError(text));
      });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(wins, 1);
    const std::string text(status->Read().message());
    ASSERT_GE(text.size(), 100u);
    EXPECT_EQ(text, std::string(100 + text[0] - 'a', text[0]));
  }
}

// --- OperationRecord. ------------------------------------------------------

TEST(OperationRecord, IsReadAsItWasWritten) {
  const auto record = Zeroed<OperationRecord>();
  record->Write(Example(), 77, {1, 2, 3, 4});
  EXPECT_EQ(record->sequence(), 12u);
  EXPECT_EQ(record->fingerprint(), 77u);
  EXPECT_FALSE(record->is_refusal());
  EXPECT_EQ(record->factor(), 0.25);
  EXPECT_EQ(record->places().input, 1u);
  EXPECT_EQ(record->places().output, 2u);
  EXPECT_EQ(record->places().input_address, 3u);
  EXPECT_EQ(record->places().output_address, 4u);
  EXPECT_EQ(record->ToString(), Describe(Example()));
}

TEST(OperationRecord, IsOfTheLastOperationAlone) {
  const auto record = Zeroed<OperationRecord>();
  record->Write(Example(), 77, {1, 2, 3, 4});
  Operation next;
  next.sequence = 13;
  next.site = {"x.cc", 1};
  record->WriteRefusal(next, "no");
  EXPECT_TRUE(record->is_refusal());
  EXPECT_EQ(record->fingerprint(), 0u);
  EXPECT_EQ(record->ToString(), "Barrier #13 at x.cc:1");
  record->Write(Example(), 78, {});
  EXPECT_FALSE(record->is_refusal());
  EXPECT_EQ(record->ToString(), Describe(Example()));
}

TEST(OperationRecord, StepIsDescribedAsTheWholeOperation) {
  const Operation whole = Example();
  Operation step;
  step.whole = &whole;
  step.sequence = 12;
  const auto record = Zeroed<OperationRecord>();
  record->Write(step, 1, {});
  EXPECT_EQ(record->ToString(), Describe(whole));
}

TEST(OperationRecord, OfManyBlocksFourCountsAreKept) {
  Operation operation;
  operation.verb = Verb::kAllGather;
  for (int64_t count : {5, 4, 0, 2, 1, 9}) {
    operation.outputs.push_back({nullptr, count});
  }
  const auto record = Zeroed<OperationRecord>();
  record->Write(operation, 1, {});
  EXPECT_EQ(record->ToString(), Describe(operation));
}

// The end of a path says the most; of a detail the beginning.
TEST(OperationRecord, LongTextsAreCut) {
  Operation operation = Example();
  const std::string file = std::string(100, 'd') + "/" + std::string(60, 'f');
  operation.site.file = file.c_str();
  operation.detail = std::string(200, 'x');
  const auto record = Zeroed<OperationRecord>();
  record->Write(operation, 1, {});
  const std::string text = record->ToString();
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat(
                  "(", std::string(Operation::kMostDetailBytes, 'x'), ")")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat(" at ", std::string(39, 'f'), ":")));
}

// The record is in memory that another rank may write anything into.
TEST(OperationRecord, AnyWordsAreDescribed) {
  std::mt19937_64 random(1);
  const auto record = Zeroed<OperationRecord>();
  const auto fill = [&](int shift) {
    std::vector<uint64_t> words(sizeof(OperationRecord) / sizeof(uint64_t));
    for (uint64_t& word : words) word = random() >> shift;
    memcpy(static_cast<void*>(record.get()), words.data(),
           sizeof(OperationRecord));
  };
  for (int i = 0; i < 200; ++i) {
    fill(i % 64);
    EXPECT_LE(record->ToString().size(), 400u);
  }
  memset(static_cast<void*>(record.get()), 0xff, sizeof(OperationRecord));
  EXPECT_THAT(record->ToString(), HasSubstr("unknown"));
  // Writes over what was there.
  record->Write(Example(), 77, {});
  EXPECT_EQ(record->ToString(), Describe(Example()));
}

}  // namespace
}  // namespace weft::collectives
