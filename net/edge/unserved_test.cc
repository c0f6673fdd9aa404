#include "weft/net/edge/unserved.h"

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

class UnservedTest : public ::testing::Test {
 protected:
  Unserved::Id Silent(const std::string& address) {
    unserved_.Add(++last_, address, now_);
    return last_;
  }
  Unserved::Id Ready(const std::string& address) {
    const Unserved::Id id = Silent(address);
    unserved_.BecomeReady(id);
    return id;
  }
  // As AcceptLoop does; how many began.
  int BeginAll() {
    int began = 0;
    for (;; ++began) {
      const std::optional<Unserved::Id> next = unserved_.NextReady(now_);
      if (!next.has_value()) return began;
      unserved_.BeginHandshake(*next, now_);
    }
  }
  size_t handshakes() const { return unserved_.handshakes().size(); }

  Instant now_;
  Unserved::Id last_ = 0;
  Unserved unserved_{16, kTimeout};
};

TEST_F(UnservedTest, ACrowdLeavesAQuarterOfThePlacesToOthers) {
  for (int i = 0; i < 100; ++i) Ready(kCrowd);
  EXPECT_EQ(BeginAll(), 12);
  const Unserved::Id other = Ready(kOther);
  EXPECT_EQ(unserved_.NextReady(now_), other);
  for (int i = 0; i < 100; ++i) Ready(kOther);
  EXPECT_EQ(BeginAll(), 4);
}

TEST_F(UnservedTest, ASinglePlaceIsForAnybody) {
  Unserved one(1, kTimeout);
  one.Add(1, kCrowd, now_);
  one.BecomeReady(1);
  EXPECT_EQ(one.NextReady(now_), 1);
}

TEST_F(UnservedTest, WhoIsHeldBackWaitsAndNobodyElseDoes) {
  const Unserved::Id flooder = Ready(kCrowd);
  const Unserved::Id other = Ready(kOther);
  unserved_.HoldBack(kCrowd, now_ + absl::Seconds(1));
  EXPECT_EQ(unserved_.NextReady(now_), other);
  EXPECT_EQ(BeginAll(), 1);
  EXPECT_EQ(unserved_.NextReady(now_), std::nullopt);
  now_ = now_ + absl::Seconds(1);
  EXPECT_EQ(unserved_.NextReady(now_), flooder);
}

TEST_F(UnservedTest, TheLongerOfTwoTimesHoldsBack) {
  for (const auto& [first, second] : {std::pair(4, 1), std::pair(1, 4)}) {
    Unserved unserved(16, kTimeout);
    unserved.Add(1, kCrowd, now_);
    unserved.BecomeReady(1);
    unserved.HoldBack(kCrowd, now_ + absl::Seconds(first));
    unserved.HoldBack(kCrowd, now_ + absl::Seconds(second));
    const Instant then = now_ + absl::Seconds(3);
    EXPECT_TRUE(unserved.IsHoldingBack(then));
    EXPECT_EQ(unserved.NextReady(then), std::nullopt);
    EXPECT_EQ(unserved.NextReady(then + absl::Seconds(1)), 1);
    EXPECT_FALSE(unserved.IsHoldingBack(then + absl::Seconds(1)));
  }
}

TEST_F(UnservedTest, NoHandshakeIsCutForWhoIsHeldBack) {
  for (int i = 0; i < 16; ++i) Ready(kOther + std::to_string(i));
  EXPECT_EQ(BeginAll(), 16);
  Ready(kCrowd);
  unserved_.HoldBack(kCrowd, now_ + absl::Seconds(3));
  now_ = now_ + kFair;
  EXPECT_EQ(unserved_.HandshakeToCut(now_), std::nullopt);
  now_ = now_ + absl::Seconds(2);
  EXPECT_NE(unserved_.HandshakeToCut(now_), std::nullopt);
}

TEST_F(UnservedTest, AddressesTakeTurns) {
  for (int i = 0; i < 3; ++i) Ready("a");
  for (int i = 0; i < 3; ++i) Ready("b");
  Ready("c");
  std::string turns;
  for (int i = 0; i < 7; ++i) {
    const Unserved::Id next = *unserved_.NextReady(now_);
    turns += next <= 3 ? "a" : next <= 6 ? "b" : "c";
    unserved_.BeginHandshake(next, now_);
    unserved_.Remove(next);  // served at once
  }
  EXPECT_EQ(turns.substr(0, 3), "abc");
  EXPECT_EQ(std::count(turns.begin(), turns.end(), 'a'), 3);
}

TEST_F(UnservedTest, OfOneAddressTheNewestIsNext) {
  for (int i = 0; i < 100; ++i) Ready(kCrowd);
  const Unserved::Id last = Ready(kCrowd);
  EXPECT_EQ(unserved_.NextReady(now_), last);
}

TEST_F(UnservedTest, AHandshakeHasItsTimeAndThenMakesRoom) {
  const Unserved::Id oldest = Ready(kCrowd);
  BeginAll();
  for (int i = 0; i < 20; ++i) Ready(kCrowd);
  BeginAll();
  const Unserved::Id next = Ready(kCrowd);
  now_ += kFair - absl::Milliseconds(1);
  EXPECT_EQ(unserved_.HandshakeToCut(now_), std::nullopt);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(unserved_.HandshakeToCut(now_), oldest);
  unserved_.Remove(oldest);
  EXPECT_EQ(unserved_.NextReady(now_), next);
}

TEST_F(UnservedTest, NoHandshakeIsCutForNobody) {
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();
  now_ += kFair;
  EXPECT_EQ(unserved_.HandshakeToCut(now_), std::nullopt);
}

TEST_F(UnservedTest, TheMostCrowdedAddressMakesRoomForAnother) {
  for (int i = 0; i < 4; ++i) Ready(kOther);
  BeginAll();
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();
  ASSERT_EQ(handshakes(), 16u);
  const Unserved::Id third = Ready("10.0.0.3");
  now_ += kFair;
  const std::optional<Unserved::Id> cut = unserved_.HandshakeToCut(now_);
  ASSERT_TRUE(cut.has_value());
  EXPECT_GT(*cut, 4) << "one of the few was cut";
  unserved_.Remove(*cut);
  EXPECT_EQ(unserved_.NextReady(now_), third);
}

TEST_F(UnservedTest, HalfHellosMakeRoomBeforeWhoIsAboutToSpeak) {
  const Unserved::Id member = Silent(kCrowd);
  for (int i = 0; i < 100; ++i) {
    const Unserved::Id half = Silent(kCrowd);
    unserved_.BecomePartial(half);
    EXPECT_EQ(unserved_.ToEvictAt(kCrowd, now_), half);
    unserved_.Remove(half);
  }
  unserved_.BecomeReady(member);
  unserved_.BecomePartial(member);  // no more than it was
  EXPECT_EQ(unserved_.NextReady(now_), member);
}

TEST_F(UnservedTest, WhoHasSaidLessMakesRoomFirst) {
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();
  const Unserved::Id ready = Ready(kCrowd);
  const Unserved::Id silent = Silent(kCrowd);
  Silent(kCrowd);
  EXPECT_EQ(unserved_.ToEvictAt(kCrowd, now_), silent);
  unserved_.Remove(silent);
  unserved_.Remove(silent + 1);
  EXPECT_EQ(unserved_.ToEvictAt(kCrowd, now_), ready);
  unserved_.Remove(ready);
  EXPECT_EQ(unserved_.ToEvictAt(kCrowd, now_), std::nullopt);
  now_ += kFair;
  EXPECT_EQ(unserved_.ToEvictAt(kCrowd, now_), 1);
  EXPECT_EQ(unserved_.ToEvictAt(kOther, now_), std::nullopt);
}

TEST_F(UnservedTest, ACrowdMakesRoomForOthersAndNotTheyForIt) {
  const Unserved::Id single = Silent(kOther);
  const Unserved::Id oldest = Silent(kCrowd);
  for (int i = 0; i < 5; ++i) Silent(kCrowd);
  EXPECT_EQ(unserved_.ToEvictFor(kCrowd, now_), oldest);
  EXPECT_EQ(unserved_.ToEvictFor("10.0.0.3", now_), oldest);
  EXPECT_EQ(unserved_.ToEvict(now_), oldest);
  for (Unserved::Id id = oldest; id <= last_; ++id) unserved_.Remove(id);
  EXPECT_EQ(unserved_.ToEvictFor("10.0.0.3", now_), single);
  for (int i = 0; i < 12; ++i) Ready(kCrowd);
  BeginAll();  // they are too young to be cut
  EXPECT_EQ(unserved_.ToEvictFor(kCrowd, now_), std::nullopt);
}

TEST_F(UnservedTest, WhoWaitsExpiresInTurn) {
  const Unserved::Id first = Silent(kCrowd);
  now_ += absl::Seconds(1);
  const Unserved::Id second = Ready(kCrowd);
  EXPECT_EQ(unserved_.Expired(now_), std::nullopt);
  now_ += absl::Seconds(4);
  EXPECT_EQ(unserved_.Expired(now_), first);
  unserved_.Remove(first);
  EXPECT_EQ(unserved_.next_expiry(), now_ + absl::Seconds(1));
  now_ += absl::Seconds(1);
  EXPECT_EQ(unserved_.Expired(now_), second);
  unserved_.BeginHandshake(second, now_);
  EXPECT_EQ(unserved_.Expired(now_), std::nullopt);
  unserved_.Settle(now_ + kTimeout);
  EXPECT_EQ(handshakes(), 0u);
}

}  // namespace
}  // namespace weft::net
