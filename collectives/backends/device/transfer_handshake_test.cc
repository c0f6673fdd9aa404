#include "weft/collectives/backends/device/transfer_handshake.h"

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::StatusIs;
using Kind = TransferNotice::Kind;
using Stage = TransferHandshake::Stage;

constexpr auto kDifferent = absl::StatusCode::kFailedPrecondition;

// Two ranks, of which one sends to the other, in an order that the seed draws:
// what each says arrives later, in its order; headers are another channel.
class Pair {
 public:
  Pair(uint64_t seed, int offers) : random_(seed), to_offer_(offers) {}

  // False: nothing is left to do.
  bool Step() {
    std::vector<void (Pair::*)()> possible;
    if (to_offer_ > 0) possible.push_back(&Pair::Offer);
    if (!offered_.empty()) possible.push_back(&Pair::GiveUp);
    if (!headers_.empty()) possible.push_back(&Pair::Answer);
    if (!to_receiver_.empty()) possible.push_back(&Pair::TellReceiver);
    if (!to_sender_.empty()) possible.push_back(&Pair::TellSender);
    if (possible.empty()) return false;
    (this->*possible[random_() % possible.size()])();
    for (auto* const box : {&sender_.outbox(), &receiver_.outbox()}) {
      auto& channel = box == &sender_.outbox() ? to_receiver_ : to_sender_;
      channel.insert(channel.end(), box->begin(), box->end());
      box->clear();
    }
    Launch(sender_, /*is_send=*/true, sent_);
    Launch(receiver_, /*is_send=*/false, received_);
    return true;
  }

  const std::vector<uint64_t>& sent() const { return sent_; }
  const std::vector<uint64_t>& received() const { return received_; }
  const std::set<uint64_t>& withdrawn() const { return withdrawn_; }
  int refused() const { return refused_; }

 private:
  void Offer() {
    --to_offer_;
    const uint64_t id = sender_.Offer();
    offered_.insert(id);
    headers_.push_back(id);
  }
  void GiveUp() {
    const uint64_t id = *offered_.begin();
    offered_.erase(id);
    const bool is_over = std::count(sent_.begin(), sent_.end(), id) > 0;
    if (!is_over && sender_.GiveUp(true, id)) withdrawn_.insert(id);
  }
  // Not in their order: tags differ.
  void Answer() {
    const auto it = headers_.begin() + random_() % headers_.size();
    const uint64_t id = *it;
    headers_.erase(it);
    if (random_() % 4 == 0) {
      ++refused_;
      receiver_.Refuse(id);
    } else {
      receiver_.Accept(id);
    }
  }
  void TellReceiver() {
    WEFT_EXPECT_OK(receiver_.OnNotice(to_receiver_.front()));
    to_receiver_.pop_front();
  }
  void TellSender() {
    WEFT_EXPECT_OK(sender_.OnNotice(to_sender_.front()));
    to_sender_.pop_front();
  }
  void Launch(TransferHandshake& side, bool is_send,
              std::vector<uint64_t>& all) {
    for (uint64_t id = 0; id < 8; ++id) {
      if (!side.IsNext(is_send, id)) continue;
      EXPECT_EQ(side.StageOf(is_send, id), Stage::kAgreed);
      all.push_back(id);
      side.Forget(is_send, id);
      id = -1;  // from the first again
    }
  }

  std::mt19937_64 random_;
  int to_offer_;
  TransferHandshake sender_, receiver_;
  std::set<uint64_t> offered_, withdrawn_;
  std::vector<uint64_t> headers_;
  std::deque<TransferNotice> to_sender_, to_receiver_;
  std::vector<uint64_t> sent_, received_;
  int refused_ = 0;
};

TEST(TransferHandshake, BothLaunchTheSameInOneOrderAndNothingWithdrawn) {
  size_t launched = 0, withdrawn = 0, refused = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pair pair(seed, 4);
    while (pair.Step()) {
    }
    ASSERT_EQ(pair.sent(), pair.received());
    for (const uint64_t id : pair.sent()) {
      ASSERT_EQ(pair.withdrawn().count(id), 0u);
    }
    launched += pair.sent().size();
    withdrawn += pair.withdrawn().size();
    refused += pair.refused();
  }
  // Each of them has happened often.
  EXPECT_GT(launched, 1000u);
  EXPECT_GT(withdrawn, 1000u);
  EXPECT_GT(refused, 1000u);
}

TEST(TransferHandshake, WhatNoRankSaysIsNamed) {
  TransferHandshake sender;
  const uint64_t id = sender.Offer();
  EXPECT_THAT(sender.OnNotice({Kind::kAccept, id + 1}),
              StatusIs(kDifferent, "out of turn"));
  WEFT_EXPECT_OK(sender.OnNotice({Kind::kAccept, id}));
  EXPECT_THAT(sender.OnNotice({Kind::kAccept, id}),
              StatusIs(kDifferent, "out of turn"));
  TransferHandshake receiver;
  EXPECT_THAT(receiver.OnNotice({Kind::kGo, 0}),
              StatusIs(kDifferent, "out of turn"));
  receiver.Accept(0);
  WEFT_EXPECT_OK(receiver.OnNotice({Kind::kGo, 0}));
  EXPECT_THAT(receiver.OnNotice({Kind::kWithdraw, 0}),
              StatusIs(kDifferent, "out of turn"));
  WEFT_EXPECT_OK(receiver.OnNotice({Kind::kConnect, 0}));
  EXPECT_THAT(receiver.OnNotice({Kind::kConnect, 0}),
              StatusIs(kDifferent, "out of turn"));
}

TEST(TransferHandshake, MessagesAreReadAsTheyWereWritten) {
  TransferHeader header;
  header.is_offer = true;
  header.id = 77;
  header.dtype = DType::kBF16;
  header.elements = int64_t{1} << 40;
  const std::string bytes = Encode(header);
  ASSERT_EQ(bytes.size(), kTransferHeaderBytes);
  const auto read = DecodeTransferHeader(bytes);
  WEFT_ASSERT_OK(read.status());
  EXPECT_EQ(Encode(*read), bytes);
  TransferNotice notice = {Kind::kConnect, 5};
  notice.unique.bytes[127] = 'x';
  const std::string said = Encode(notice);
  ASSERT_EQ(said.size(), kTransferNoticeBytes);
  const auto heard = DecodeTransferNotice(said);
  WEFT_ASSERT_OK(heard.status());
  EXPECT_EQ(Encode(*heard), said);
}

TEST(TransferHandshake, BytesThatNobodyWritesAreNamed) {
  TransferHeader header;
  header.elements = 4;
  for (size_t i = 0; i < kTransferHeaderBytes; ++i) {
    std::string bytes = Encode(header);
    bytes[i] = static_cast<char>(bytes[i] ^ 0x80);
    const auto read = DecodeTransferHeader(bytes);
    // All but the id, and the lower bytes of the count.
    const bool may_be_read = (i >= 8 && i < 23);
    EXPECT_EQ(read.ok(), may_be_read) << i;
  }
  EXPECT_FALSE(DecodeTransferHeader("").ok());
  EXPECT_FALSE(
      DecodeTransferNotice(std::string(kTransferNoticeBytes - 1, 1)).ok());
  EXPECT_FALSE(DecodeTransferNotice(std::string(kTransferNoticeBytes, 0)).ok());
  EXPECT_FALSE(DecodeTransferNotice(std::string(kTransferNoticeBytes, 9)).ok());
}

}  // namespace
}  // namespace weft::collectives
