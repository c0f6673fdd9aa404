#include "weft/collectives/backends/host/host_segment.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/memory/segment.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/shm/memory_budget.h"

namespace weft::collectives {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr int64_t kArena = 2 * transport::MemoryBudget::kUnitBytes;

// Two ranks, which are 5 and 8 of their group: each maps the memory for itself.
class HostSegmentTest : public ::testing::Test {
 protected:
  void Map(std::shared_ptr<transport::MemoryBudget> budget = nullptr) {
    memory::Segment made =
        memory::Segment::CreateInPart(layout_.bytes(), layout_.initial_bytes())
            .value();
    memory::Segment mapped =
        memory::Segment::FromFdInPart(dup(made.fd()), layout_.bytes(),
                                      layout_.initial_bytes())
            .value();
    a_.emplace(std::move(made), layout_, 0, std::vector<int>{5, 8}, budget);
    b_.emplace(std::move(mapped), layout_, 1, std::vector<int>{5, 8}, budget);
  }

  const SegmentLayout layout_{/*ranks=*/2, kArena};
  std::optional<HostSegment> a_;
  std::optional<HostSegment> b_;
};

TEST_F(HostSegmentTest, RanksSeeEachOthersPartsWhereTheLayoutSays) {
  Map();
  EXPECT_EQ(a_->size(), 2);
  EXPECT_EQ(b_->rank(), 1);
  EXPECT_EQ(b_->NumberOf(0), 5);
  EXPECT_THAT(a_->Controls(),
              ElementsAre(&a_->ControlOf(0), &a_->ControlOf(1)));
  a_->ControlOf(0).arrived.store(7);
  EXPECT_EQ(b_->ControlOf(0).arrived.load(), 7);
  EXPECT_EQ(b_->ControlOf(1).arrived.load(), 0);
  // The slots of phases 2 and 4 are one, that of 3 is the other.
  a_->SlotOf(0, 2).staged[0] = std::byte{9};
  EXPECT_EQ(b_->SlotOf(0, 4).staged[0], std::byte{9});
  EXPECT_EQ(b_->SlotOf(0, 3).staged[0], std::byte{0});
  // A ring has a direction.
  a_->RingOf(0, 1).head.written.store(11);
  EXPECT_EQ(b_->RingOf(0, 1).head.written.load(), 11);
  EXPECT_EQ(b_->RingOf(1, 0).head.written.load(), 0);
  ASSERT_THAT(a_->AllocateRing(1), IsOk());
  a_->RingOf(0, 1).content[TransferRing::kBytes - 1] = std::byte{3};
  EXPECT_EQ(b_->RingOf(0, 1).content[TransferRing::kBytes - 1], std::byte{3});
}

TEST_F(HostSegmentTest, MemoryOfTheOwnArenaIsFoundByTheOthers) {
  Map();
  ASSERT_THAT(a_->AllocateArena(0, kArena), IsOk());
  std::byte* const begin = a_->own_arena();
  begin[0] = std::byte{1};
  begin[kArena - 1] = std::byte{2};
  const std::byte* const all = b_->Find(0, a_->PlaceOf(begin, kArena), kArena);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all[0], std::byte{1});
  EXPECT_EQ(all[kArena - 1], std::byte{2});
  EXPECT_EQ(b_->Find(0, a_->PlaceOf(begin + kArena - 1, 1), 1),
            all + kArena - 1);
  // No bytes, at the end.
  EXPECT_EQ(b_->Find(0, a_->PlaceOf(begin + kArena, 0), 0), all + kArena);
}

TEST_F(HostSegmentTest, MemoryThatIsNotWhollyInTheOwnArenaHasNoPlace) {
  Map();
  std::byte* const begin = a_->own_arena();
  EXPECT_EQ(a_->PlaceOf(begin - 1, 1), 0);
  EXPECT_EQ(a_->PlaceOf(begin - 1, 2), 0);
  EXPECT_EQ(a_->PlaceOf(begin, kArena + 1), 0);
  EXPECT_EQ(a_->PlaceOf(begin + kArena, 1), 0);
  EXPECT_EQ(a_->PlaceOf(begin + kArena - 1, 2), 0);
  // The arena of rank 1, as rank 0 maps it, and memory of the process.
  EXPECT_EQ(a_->PlaceOf(begin + kArena + 64, 8), 0);
  std::byte elsewhere[8];
  EXPECT_EQ(a_->PlaceOf(elsewhere, sizeof elsewhere), 0);
}

// A place is a number that another process has written: any may come.
TEST_F(HostSegmentTest, PlaceOutsideTheArenaOfItsRankIsNotFound) {
  Map();
  const uint64_t first = a_->PlaceOf(a_->own_arena(), 1);
  const uint64_t last = first + kArena - 1;
  ASSERT_NE(b_->Find(0, first, kArena), nullptr);
  ASSERT_NE(b_->Find(0, last, 1), nullptr);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr uint64_t kHighest = std::numeric_limits<uint64_t>::max();
  const struct {
    uint64_t place;
    int64_t bytes;
  } wrong[] = {
      {0, 0},
      {0, 8},
      {1, 8},
      {first - 1, 1},
      {first, -1},
      {first, kArena + 1},
      {first, kMost},
      {last, 2},
      {last, kMost},
      {last + 2, 0},
      {kHighest, 1},
      {kHighest, kMost},
      {kHighest, -1},
      {uint64_t{1} << 63, 1},
      {last, std::numeric_limits<int64_t>::min()},
  };
  for (const auto& [place, bytes] : wrong) {
    EXPECT_EQ(b_->Find(0, place, bytes), nullptr) << place << " " << bytes;
  }
  // It is in the arena of rank 0, and said to be in that of rank 1.
  EXPECT_EQ(b_->Find(1, first, 8), nullptr);
}

TEST_F(HostSegmentTest, ReasonOfTheFirstAbortIsThatOfAllRanks) {
  Map();
  EXPECT_THAT(b_->abort_status(), IsOk());
  a_->SetAbort(absl::UnavailableError("rank 5 has ended"));
  b_->SetAbort(absl::InternalError("too late"));
  for (const auto* rank : {&*a_, &*b_}) {
    EXPECT_THAT(rank->abort_status(),
                StatusIs(absl::StatusCode::kUnavailable, "rank 5 has ended"));
  }
}

TEST_F(HostSegmentTest, GroupThatIsNotToBeMadeIsKnownByItsKeyOnAllRanks) {
  Map();
  EXPECT_THAT(b_->CheckShrink(77), IsOk());
  a_->EndShrink(77, absl::AbortedError("another rank has died"));
  a_->EndShrink(78, absl::AbortedError("and another"));
  b_->EndShrink(77, absl::InternalError("too late"));
  EXPECT_THAT(b_->CheckShrink(77),
              StatusIs(absl::StatusCode::kAborted, "another rank has died"));
  EXPECT_THAT(a_->CheckShrink(78),
              StatusIs(absl::StatusCode::kAborted, "and another"));
  EXPECT_THAT(a_->CheckShrink(79), IsOk());
}

TEST_F(HostSegmentTest, OnlyAsManyEndedGroupsAreKeptAsThereIsRoomFor) {
  Map();
  const uint64_t room = a_->head().ended_shrinks.size();
  for (uint64_t key = 1; key <= room + 1; ++key) {
    a_->EndShrink(key, absl::AbortedError(absl::StrCat("group ", key)));
  }
  for (uint64_t key = 1; key <= room; ++key) {
    EXPECT_THAT(b_->CheckShrink(key), StatusIs(absl::StatusCode::kAborted,
                                               absl::StrCat("group ", key)));
  }
  EXPECT_THAT(b_->CheckShrink(room + 1), IsOk());
}

// Ranks that end different groups at one time do not share a place.
TEST_F(HostSegmentTest, GroupsThatEndAtOnceKeepTheirOwnReasons) {
  for (int round = 0; round < 50; ++round) {
    Map();
    std::vector<std::thread> ranks;
    for (const auto* rank : {&*a_, &*b_}) {
      ranks.emplace_back([rank] {
        const uint64_t own = 10 + rank->rank();
        rank->EndShrink(own, absl::AbortedError(absl::StrCat("group ", own)));
        rank->EndShrink(1, absl::AbortedError("group 1"));
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const uint64_t key : {1, 10, 11}) {
      EXPECT_THAT(a_->CheckShrink(key), StatusIs(absl::StatusCode::kAborted,
                                                 absl::StrCat("group ", key)));
    }
  }
}

TEST_F(HostSegmentTest, PagesAreCountedUntilTheMappingEnds) {
  const TempDir dir;
  const auto budget = transport::MemoryBudget::Open(dir.path(), kArena).value();
  Map(budget);
  ASSERT_THAT(a_->AllocateArena(0, kArena / 2), IsOk());
  ASSERT_THAT(b_->AllocateArena(kArena / 2, kArena / 2), IsOk());
  EXPECT_EQ(budget->used_bytes(), kArena);
  EXPECT_THAT(a_->AllocateArena(kArena / 2, kArena / 2),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(a_->AllocateRing(1),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(budget->used_bytes(), kArena);
  b_.reset();
  EXPECT_EQ(budget->used_bytes(), kArena / 2);
  EXPECT_THAT(a_->AllocateArena(kArena / 2, kArena / 2), IsOk());
  a_.reset();
  EXPECT_EQ(budget->used_bytes(), 0);
}

}  // namespace
}  // namespace weft::collectives
