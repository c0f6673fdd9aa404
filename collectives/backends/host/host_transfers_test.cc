#include "weft/collectives/backends/host/host_transfers.h"

#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/memory/segment.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr int64_t kReadAll = 0;
constexpr int64_t kReadNone = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostUnasked = 1 << 20;
constexpr int64_t kMany = 500'000;    // 2 MB: more than a ring has room for
constexpr int64_t kMost = 3'000'000;  // 12 MB: more than is read at once

// Ranks 0 and 1, each with a mapping of its own, both in this process.
class HostTransfersTest : public ::testing::Test {
 protected:
  void Connect(int64_t least_read_bytes) {
    memory::Segment made =
        memory::Segment::CreateInPart(layout_.bytes(), layout_.initial_bytes())
            .value();
    memory::Segment mapped =
        memory::Segment::FromFdInPart(dup(made.fd()), layout_.bytes(),
                                      layout_.initial_bytes())
            .value();
    segments_[0].emplace(std::move(made), layout_, 0, std::vector<int>{0, 1},
                         nullptr);
    segments_[1].emplace(std::move(mapped), layout_, 1, std::vector<int>{0, 1},
                         nullptr);
    for (int r = 0; r < 2; ++r) {
      transfers_[r].emplace(*segments_[r], peers_, least_read_bytes,
                            kMostUnasked);
    }
  }
  HostTransfers& sender() { return *transfers_[0]; }
  HostTransfers& receiver() { return *transfers_[1]; }

  static Transfer Of(std::vector<float>& values, bool is_send, int peer,
                     uint64_t tag) {
    Transfer transfer;
    transfer.is_send = is_send;
    transfer.peer = peer;
    transfer.tag = tag;
    transfer.dtype = DType::kF32;
    transfer.block = {reinterpret_cast<std::byte*>(values.data()),
                      static_cast<int64_t>(values.size())};
    return transfer;
  }
  static Transfer Sent(std::vector<float>& values, uint64_t tag) {
    return Of(values, /*is_send=*/true, 1, tag);
  }
  static Transfer Received(std::vector<float>& values, uint64_t tag,
                           int peer = 0) {
    return Of(values, /*is_send=*/false, peer, tag);
  }
  static std::vector<float> Numbers(int64_t count, float first) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  // Both, in turn, until each is complete.
  void MoveAll(Transfer& send, Transfer& receive) {
    bool is_sent = false, is_received = false;
    for (int i = 0; i < 1000 && !(is_sent && is_received); ++i) {
      if (!is_sent) is_sent = Moved(sender(), send);
      if (!is_received) is_received = Moved(receiver(), receive);
    }
    EXPECT_TRUE(is_sent);
    EXPECT_TRUE(is_received);
  }
  static bool Moved(HostTransfers& transfers, Transfer& transfer) {
    const absl::StatusOr<bool> moved = transfers.Advance(transfer);
    EXPECT_THAT(moved, IsOk());
    return moved.ok() && *moved;
  }

  const SegmentLayout layout_{/*ranks=*/2, /*arena_bytes=*/1 << 20};
  const PeerMemory peers_{
      {{getpid(), PeerMemory::OwnProbe()}, {getpid(), PeerMemory::OwnProbe()}}};
  std::optional<HostSegment> segments_[2];
  std::optional<HostTransfers> transfers_[2];
};

TEST_F(HostTransfersTest, MessagesOfAnySizeComeWholeOnBothWays) {
  for (const int64_t least : {kReadAll, kReadNone}) {
    Connect(least);
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{16'000},
                                int64_t{16'384}, kMany, kMost}) {
      std::vector<float> from = Numbers(count, 3), to(count);
      Transfer send = Sent(from, 7), receive = Received(to, 7);
      MoveAll(send, receive);
      EXPECT_EQ(to, from) << count;
    }
  }
}

TEST_F(HostTransfersTest, SendOfWhatIsReadEndsOnceItHasBeenRead) {
  Connect(kReadAll);
  std::vector<float> from = Numbers(10, 0), to(10);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(false));
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(false));
  EXPECT_THAT(receiver().Advance(receive), IsOkAndHolds(true));
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(true));
}

TEST_F(HostTransfersTest, RankThatReadsNobodyGetsContentsThroughItsRing) {
  Connect(kReadAll);
  segments_[1]->ControlOf(1).reads_peers.store(0);
  std::vector<float> from = Numbers(10, 0), to(10);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(true));  // it is in the ring
  EXPECT_THAT(receiver().Advance(receive), IsOkAndHolds(true));
  EXPECT_EQ(to, from);
}

// What comes before it is asked for is kept, and the next is read where it is
// wanted; the order within a tag stays.
TEST_F(HostTransfersTest, MessagesThatNobodyAsksForYetAreKept) {
  for (const int64_t least : {kReadAll, kReadNone}) {
    Connect(least);
    std::vector<float> a = Numbers(100, 0), b = Numbers(100, 1000);
    std::vector<float> c = Numbers(50, 2000), to(100), last(50);
    Transfer first = Sent(a, 1), second = Sent(b, 1), other = Sent(c, 2);
    Transfer wants_other = Received(last, 2);
    int sent = 0;
    std::vector<Transfer*> sends = {&first, &second, &other};
    bool has_other = false;
    for (int i = 0; i < 100 && !(has_other && sent == 3); ++i) {
      if (sent < 3 && Moved(sender(), *sends[sent])) ++sent;
      if (!has_other) has_other = Moved(receiver(), wants_other);
    }
    ASSERT_TRUE(has_other);
    EXPECT_EQ(last, c);
    for (const std::vector<float>* wanted : {&a, &b}) {
      Transfer receive = Received(to, 1);
      EXPECT_THAT(receiver().Advance(receive), IsOkAndHolds(true));
      EXPECT_EQ(to, *wanted);
    }
  }
}

TEST_F(HostTransfersTest, ReceiveOfAnyRankTellsWhoseMessageItTakes) {
  for (const int64_t least : {kReadAll, kReadNone}) {
    Connect(least);
    std::vector<float> from = Numbers(kMany, 0), to(kMany);
    Transfer send = Sent(from, 7), receive = Received(to, 7, /*peer=*/-1);
    MoveAll(send, receive);
    EXPECT_EQ(receive.peer, 0);
    EXPECT_EQ(to, from);
  }
}

// A Receive of another tag neither takes the rest of a message that is on its
// way to one, nor keeps it from coming.
TEST_F(HostTransfersTest, RestOfAMessageComesToTheReceiveThatHasItsBegin) {
  Connect(kReadNone);
  std::vector<float> from = Numbers(kMany, 0), to(kMany), none(1);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  Transfer another = Received(none, 8);
  bool is_sent = false, is_received = false;
  for (int i = 0; i < 1000 && !(is_sent && is_received); ++i) {
    if (!is_sent) is_sent = Moved(sender(), send);
    if (!is_received) is_received = Moved(receiver(), receive);
    EXPECT_FALSE(Moved(receiver(), another));
  }
  EXPECT_EQ(to, from);
}

TEST_F(HostTransfersTest, MessageOfAnotherShapeIsRefusedAndTheNextOneTaken) {
  for (const int64_t least : {kReadAll, kReadNone}) {
    Connect(least);
    std::vector<float> from = Numbers(100, 0), few(99), to(100);
    Transfer send = Sent(from, 7), wrong = Received(few, 7);
    EXPECT_THAT(sender().Advance(send), IsOk());
    EXPECT_THAT(receiver().Advance(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wants f32[99], rank 0 sent f32[100]"));
    EXPECT_THAT(sender().Advance(send), IsOk());
    Transfer again = Sent(from, 7), receive = Received(to, 7);
    MoveAll(again, receive);
    EXPECT_EQ(to, from);
  }
}

// What is left of it is an event, for whoever waits for one.
TEST_F(HostTransfersTest, ContentThatIsNotReadAtOnceGoesOnWithoutItsSender) {
  Connect(kReadAll);
  std::vector<float> from = Numbers(kMost, 0), to(kMost);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(false));
  bool is_received = false;
  int turns = 0;
  for (; turns < 10 && !is_received; ++turns) {
    const uint64_t seen = receiver().events();
    is_received = Moved(receiver(), receive);
    EXPECT_EQ(receiver().events() != seen, !is_received);
  }
  EXPECT_TRUE(is_received);
  EXPECT_GT(turns, 1);
  EXPECT_EQ(to, from);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(true));
}

// Its memory is given back after that, and may hold anything.
TEST_F(HostTransfersTest, SendThatIsGivenUpIsNotTakenForAMessage) {
  Connect(kReadAll);
  std::vector<float> from = Numbers(10, 0), to(10);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(false));
  sender().WithdrawSends();
  EXPECT_THAT(
      receiver().Advance(receive),
      StatusIs(absl::StatusCode::kUnavailable, "rank 0 left the group"));
}

TEST_F(HostTransfersTest, SendThatHasEndedIsNotWithdrawn) {
  Connect(kReadNone);
  std::vector<float> from = Numbers(10, 0), to(10);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(true));
  sender().WithdrawSends();
  EXPECT_THAT(receiver().Advance(receive), IsOkAndHolds(true));
  EXPECT_EQ(to, from);
}

TEST_F(HostTransfersTest, AbortAmidAReadEndsTheReceive) {
  Connect(kReadAll);
  std::vector<float> from = Numbers(10, 0), to(10);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(false));
  segments_[0]->SetAbort(absl::DeadlineExceededError("rank 0 has given up"));
  EXPECT_THAT(
      receiver().Advance(receive),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 0 has given up"));
}

TEST_F(HostTransfersTest, MemoryThatCannotBeReadIsAnError) {
  Connect(kReadAll);
  std::vector<float> from = Numbers(10, 0), to(10);
  Transfer send = Sent(from, 7), receive = Received(to, 7);
  EXPECT_THAT(sender().Advance(send), IsOkAndHolds(false));
  const ScopedFailpoint refused("collectives/read_peer",
                                "error(UNAVAILABLE,it has ended)");
  EXPECT_THAT(receiver().Advance(receive),
              StatusIs(absl::StatusCode::kUnavailable, "it has ended"));
}

TEST_F(HostTransfersTest, RingThatHoldsNoMessageIsDamaged) {
  Connect(kReadAll);
  std::vector<float> to(10);
  Transfer receive = Received(to, 7);
  ASSERT_THAT(segments_[0]->AllocateRing(1), IsOk());
  segments_[0]->RingOf(0, 1).head.written.store(64);
  EXPECT_THAT(receiver().Advance(receive),
              StatusIs(absl::StatusCode::kInternal, "makes no sense"));
}

}  // namespace
}  // namespace weft::collectives
