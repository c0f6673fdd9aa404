#include "weft/net/edge/pending_connections.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace weft::net {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr absl::Duration kFair = absl::Seconds(1);  // a fifth
constexpr char kCrowd[] = "10.0.0.1";
constexpr char kOther[] = "10.0.0.2";

class PendingConnectionsTest : public ::testing::Test {
 protected:
  PendingConnections::Id Silent(const std::string& address) {
    pending_.Add(++last_, address, now_);
    return last_;
  }
  PendingConnections::Id Ready(const std::string& address) {
    const PendingConnections::Id id = Silent(address);
    pending_.BecomeReady(id);
    return id;
  }
  // As AcceptLoop does; how many began.
  int BeginAll() {
    int began = 0;
    for (;; ++began) {
      const std::optional<PendingConnections::Id> next =
          pending_.NextReady(now_);
      if (!next.has_value()) return began;
      pending_.BeginHandshake(*next, now_);
    }
  }
  size_t handshakes() const { return pending_.handshakes().size(); }

  Instant now_;
  PendingConnections::Id last_ = 0;
  PendingConnections pending_{16, kTimeout};
};

TEST_F(PendingConnectionsTest, ACrowdLeavesAQuarterOfThePlacesToOthers) {
  for (int i = 0; i < 100; ++i) Ready(kCrowd);
  EXPECT_EQ(BeginAll(), 12);
  const PendingConnections::Id other = Ready(kOther);
  EXPECT_EQ(pending_.NextReady(now_), other);
  for (int i = 0; i < 100; ++i) Ready(kOther);
  EXPECT_EQ(BeginAll(), 4);
}

TEST_F(PendingConnectionsTest, SinglePlaceIsOpenToAnyAddress) {
  PendingConnections one(1, kTimeout);
  one.Add(1, kCrowd, now_);
  one.BecomeReady(1);
  EXPECT_EQ(one.NextReady(now_), 1);
}

TEST_F(PendingConnectionsTest, OnlyADelayedAddressWaits) {
  const PendingConnections::Id flooder = Ready(kCrowd);
  const PendingConnections::Id other = Ready(kOther);
  pending_.HoldBack(kCrowd, now_ + absl::Seconds(1));
  EXPECT_EQ(pending_.NextReady(now_), other);
  EXPECT_EQ(BeginAll(), 1);
  EXPECT_EQ(pending_.NextReady(now_), std::nullopt);
  now_ = now_ + absl::Seconds(1);
  EXPECT_EQ(pending_.NextReady(now_), flooder);
}

TEST_F(PendingConnectionsTest, LongerOfTwoDelaysHolds) {
  for (const auto& [first, second] : {std::pair(4, 1), std::pair(1, 4)}) {
    PendingConnections pending(16, kTimeout);
    pending.Add(1, kCrowd, now_);
    pending.BecomeReady(1);
    pending.HoldBack(kCrowd, now_ + absl::Seconds(first));
    pending.HoldBack(kCrowd, now_ + absl::Seconds(second));
    const Instant then = now_ + absl::Seconds(3);
    EXPECT_TRUE(pending.IsHoldingBack(then));
    EXPECT_EQ(pending.NextReady(then), std::nullopt);
    EXPECT_EQ(pending.NextReady(then + absl::Seconds(1)), 1);
    EXPECT_FALSE(pending.IsHoldingBack(then + absl::Seconds(1)));
  }
}

TEST_F(PendingConnectionsTest, NoHandshakeIsCutForADelayedAddress) {
  for (int i = 0; i < 16; ++i) Ready(kOther + std::to_string(i));
  EXPECT_EQ(BeginAll(), 16);
  Ready(kCrowd);
  pending_.HoldBack(kCrowd, now_ + absl::Seconds(3));
  now_ = now_ + kFair;
  EXPECT_EQ(pending_.HandshakeToCut(now_), std::nullopt);
  now_ = now_ + absl::Seconds(2);
  EXPECT_NE(pending_.HandshakeToCut(now_), std::nullopt);
}

TEST_F(PendingConnectionsTest, AddressesTakeTurns) {
  for (int i = 0; i < 3; ++i) Ready("a");
  for (int i = 0; i < 3; ++i) Ready("b");
  Ready("c");
  std::string turns;
  for (int i = 0; i < 7; ++i) {
    const PendingConnections::Id next = *pending_.NextReady(now_);
    turns += next <= 3 ? "a" : next <= 6 ? "b" : "c";
    pending_.BeginHandshake(next, now_);
    pending_.Remove(next);  // served at once
  }
  EXPECT_EQ(turns.substr(0, 3), "abc");
  EXPECT_EQ(std::count(turns.begin(), turns.end(), 'a'), 3);
}

TEST_F(PendingConnectionsTest, OfOneAddressTheNewestIsNext) {
  for (int i = 0; i < 100; ++i) Ready(kCrowd);
  const PendingConnections::Id last = Ready(kCrowd);
  EXPECT_EQ(pending_.NextReady(now_), last);
}

TEST_F(PendingConnectionsTest, AHandshakeHasItsTimeAndThenMakesRoom) {
  const PendingConnections::Id oldest = Ready(kCrowd);
  BeginAll();
  for (int i = 0; i < 20; ++i) Ready(kCrowd);
  BeginAll();
  const PendingConnections::Id next = Ready(kCrowd);
  now_ += kFair - absl::Milliseconds(1);
  EXPECT_EQ(pending_.HandshakeToCut(now_), std::nullopt);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(pending_.HandshakeToCut(now_), oldest);
  pending_.Remove(oldest);
  EXPECT_EQ(pending_.NextReady(now_), next);
}

TEST_F(PendingConnectionsTest, NoHandshakeIsCutWhenNoneWaits) {
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();
  now_ += kFair;
  EXPECT_EQ(pending_.HandshakeToCut(now_), std::nullopt);
}

TEST_F(PendingConnectionsTest, TheMostCrowdedAddressMakesRoomForAnother) {
  for (int i = 0; i < 4; ++i) Ready(kOther);
  BeginAll();
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();
  ASSERT_EQ(handshakes(), 16u);
  const PendingConnections::Id third = Ready("10.0.0.3");
  now_ += kFair;
  const std::optional<PendingConnections::Id> cut =
      pending_.HandshakeToCut(now_);
  ASSERT_TRUE(cut.has_value());
  EXPECT_GT(*cut, 4) << "one of the few was cut";
  pending_.Remove(*cut);
  EXPECT_EQ(pending_.NextReady(now_), third);
}

TEST_F(PendingConnectionsTest, HalfHellosAreCutBeforeSilentConnections) {
  const PendingConnections::Id member = Silent(kCrowd);
  for (int i = 0; i < 100; ++i) {
    const PendingConnections::Id half = Silent(kCrowd);
    pending_.BecomePartial(half);
    EXPECT_EQ(pending_.ToEvictAt(kCrowd, now_), half);
    pending_.Remove(half);
  }
  pending_.BecomeReady(member);
  pending_.BecomePartial(member);  // no more than it was
  EXPECT_EQ(pending_.NextReady(now_), member);
}

TEST_F(PendingConnectionsTest, ConnectionWithFewerBytesIsCutFirst) {
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();
  const PendingConnections::Id ready = Ready(kCrowd);
  const PendingConnections::Id silent = Silent(kCrowd);
  Silent(kCrowd);
  EXPECT_EQ(pending_.ToEvictAt(kCrowd, now_), silent);
  pending_.Remove(silent);
  pending_.Remove(silent + 1);
  EXPECT_EQ(pending_.ToEvictAt(kCrowd, now_), ready);
  pending_.Remove(ready);
  EXPECT_EQ(pending_.ToEvictAt(kCrowd, now_), std::nullopt);
  now_ += kFair;
  EXPECT_EQ(pending_.ToEvictAt(kCrowd, now_), 1);
  EXPECT_EQ(pending_.ToEvictAt(kOther, now_), std::nullopt);
}

TEST_F(PendingConnectionsTest, ACrowdMakesRoomForOthersAndNotTheyForIt) {
  const PendingConnections::Id single = Silent(kOther);
  const PendingConnections::Id oldest = Silent(kCrowd);
  for (int i = 0; i < 5; ++i) Silent(kCrowd);
  EXPECT_EQ(pending_.ToEvictFor(kCrowd, now_), oldest);
  EXPECT_EQ(pending_.ToEvictFor("10.0.0.3", now_), oldest);
  EXPECT_EQ(pending_.ToEvict(now_), oldest);
  for (PendingConnections::Id id = oldest; id <= last_; ++id)
    pending_.Remove(id);
  EXPECT_EQ(pending_.ToEvictFor("10.0.0.3", now_), single);
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();  // they are too young to be cut
  EXPECT_EQ(pending_.ToEvictFor(kCrowd, now_), std::nullopt);
}

TEST_F(PendingConnectionsTest, WaitingConnectionsExpireInOrder) {
  const PendingConnections::Id first = Silent(kCrowd);
  now_ += absl::Seconds(1);
  const PendingConnections::Id second = Ready(kCrowd);
  EXPECT_EQ(pending_.Expired(now_), std::nullopt);
  now_ += absl::Seconds(4);
  EXPECT_EQ(pending_.Expired(now_), first);
  pending_.Remove(first);
  EXPECT_EQ(pending_.next_expiry(), now_ + absl::Seconds(1));
  now_ += absl::Seconds(1);
  EXPECT_EQ(pending_.Expired(now_), second);
  pending_.BeginHandshake(second, now_);
  EXPECT_EQ(pending_.Expired(now_), std::nullopt);
  pending_.Settle(now_ + kTimeout);
  EXPECT_EQ(handshakes(), 0u);
}

}  // namespace
}  // namespace weft::net
