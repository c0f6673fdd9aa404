#include "weft/rpc/connection/link.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/link_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/testing/memory_sharing.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// ----------------------------------------------------------------- its queues

class Nobody final : public LinkOwner {
 public:
  absl::Status OnFrame(Link&, Frame&&) override { return absl::OkStatus(); }
  absl::StatusOr<bool> WantsBody(Link&, const Frame&) override { return true; }
  void OnLinkClosed(Link&, absl::Status) override {}
};

RequestPtr RequestOf(uint64_t id, size_t bytes) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->function = "F";
  request->body = {Bytes::Own(std::string(bytes, 'x'))};
  return request;
}

TEST(LinkQueues, ControlMessageWaitsForOneMessageAtMost) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  link->Append(RequestOf(1, size_t{64} << 20));
  for (uint64_t id = 2; id <= 50; ++id) {
    link->Append(RequestOf(id, Link::kInChunks - 1));
  }
  link->Drain();
  int messages = 1;
  for (; messages <= 200 && !connection->frames.empty(); ++messages) {
    // What is in flight is all that the next close waits for.
    EXPECT_LE(connection->bytes,
              Link::kChunkBytes + Link::kInChunks + Link::kBatchBytes);
    const uint64_t closed = static_cast<uint64_t>(messages);
    link->Append(Ack{{{closed, closed}}, {}});
    connection->frames.clear();
    link->OnWritten();
    ASSERT_FALSE(connection->frames.empty());
    const auto* close = std::get_if<Ack>(&connection->frames.front());
    ASSERT_NE(close, nullptr) << "message " << messages;
    EXPECT_EQ(close->ids.front().first, closed);
    if (connection->frames.size() == 1) break;  // nothing else is left
  }
  EXPECT_GT(messages, 64);  // of the large body alone
  EXPECT_LT(messages, 200);
}

// Takes each message at once, while other threads append the next.
class BusyConnection final : public transport::Connection {
 public:
  Written Write(Slices) override {
    ++written;
    if (written < kMessages) link->Append(RequestOf(written + 1, 1));
    return Written::kDone;
  }
  void RequestOnWritten() override { ++written_requests; }
  void Close(absl::Status) override {}

  static constexpr int kMessages = 3 * Link::kInOneGo - 1;
  Link* link = nullptr;
  int written = 0;
  int written_requests = 0;
};

TEST(LinkQueues, AThreadWritesSoManyMessagesOfOthersAndNoMore) {
  const auto connection = std::make_shared<BusyConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  connection->link = link.get();
  link->Attach(connection);
  link->Append(RequestOf(1, 1));
  for (int i = 1; i <= 2; ++i) {
    i == 1 ? link->Drain() : link->OnWritten();
    EXPECT_EQ(connection->written, i * Link::kInOneGo);
    EXPECT_EQ(connection->written_requests, i);
    // Nobody else writes before OnWritten has come.
    EXPECT_FALSE(link->Append(Ack{{{1, 1}}, {}}));
    link->Drain();
    EXPECT_EQ(connection->written, i * Link::kInOneGo);
  }
  link->OnWritten();
  EXPECT_EQ(connection->written, BusyConnection::kMessages);
  EXPECT_EQ(connection->written_requests, 2);
  EXPECT_TRUE(link->Append(Ack{{{2, 2}}, {}}));  // free again
}

// Has more messages at hand if the test says so.
class BurstConnection final : public transport::Connection {
 public:
  Written Write(Slices) override {
    ++written;
    return Written::kDone;
  }
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    ++asked;
    if (in_burst) after = std::move(fn);
    return in_burst;
  }
  void Close(absl::Status) override { closed = true; }

  bool in_burst = true;
  absl::AnyInvocable<void() &&> after;
  int asked = 0;
  int written = 0;
  bool closed = false;
};

// Answers each request with a reply.
class Replier final : public LinkOwner {
 public:
  absl::Status OnFrame(Link& link, Frame&& frame) override {
    auto reply = std::make_shared<Reply>();
    reply->id = std::get<RequestFrame>(frame).request->id;
    link.Append(ReplyPtr(std::move(reply)));
    link.Drain();
    return absl::OkStatus();
  }
  absl::StatusOr<bool> WantsBody(Link&, const Frame&) override { return true; }
  void OnLinkClosed(Link&, absl::Status) override {}
};

class LinkBurst : public ::testing::Test {
 protected:
  LinkBurst() { link_->Attach(connection_); }
  // What waits for the end of a burst holds the link, and so the connection.
  ~LinkBurst() override { connection_->after = nullptr; }
  void Receive() {
    BatchWriter batch;
    batch.Add(*RequestOf(++id_, 1), Instant(), /*body_follows=*/false);
    link_->OnMessage(std::move(batch).Finish());
  }

  const std::shared_ptr<BurstConnection> connection_ =
      std::make_shared<BurstConnection>();
  const std::shared_ptr<Link> link_ = std::make_shared<Link>(
      std::make_shared<Replier>(), SteadyClock(), int64_t{1} << 30);
  uint64_t id_ = 0;
};

TEST_F(LinkBurst, RepliesOfABurstLeaveTogether) {
  for (int i = 0; i < 5; ++i) Receive();
  EXPECT_EQ(connection_->written, 0);
  EXPECT_EQ(connection_->asked, 1);
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 1);
  Receive();
  EXPECT_EQ(connection_->written, 1);
  EXPECT_EQ(connection_->asked, 2);
}

TEST_F(LinkBurst, ReplyWithoutABurstLeavesAtOnce) {
  connection_->in_burst = false;
  Receive();
  EXPECT_EQ(connection_->written, 1);
}

TEST_F(LinkBurst, AfterAWaitForNothingRepliesLeaveAtOnceForAWhile) {
  Receive();
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 1);
  for (int i = 0; i < Link::kAloneAfterBurst; ++i) Receive();
  EXPECT_EQ(connection_->written, 1 + Link::kAloneAfterBurst);
  EXPECT_EQ(connection_->asked, 1);
  Receive();
  EXPECT_EQ(connection_->asked, 2);
}

TEST_F(LinkBurst, ConnectionWithoutBurstsIsAskedSeldom) {
  connection_->in_burst = false;
  const int messages = Link::kMessagesWithoutBurst + 170;
  for (int i = 0; i < messages; ++i) Receive();
  EXPECT_EQ(connection_->written, messages);
  EXPECT_GE(connection_->asked, Link::kMessagesWithoutBurst);
  EXPECT_LE(connection_->asked, Link::kMessagesWithoutBurst + 11);
  connection_->in_burst = true;
  for (int i = 0; i <= Link::kAloneAfterBurst; ++i) Receive();
  EXPECT_TRUE(connection_->after != nullptr);
}

TEST_F(LinkBurst, LinkThatEndsAfterWritingWritesTheBurstFirst) {
  Receive();
  link_->End(absl::OkStatus(), /*after_writing=*/true);
  EXPECT_FALSE(connection_->closed);
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 1);
  EXPECT_TRUE(connection_->closed);
}

TEST_F(LinkBurst, EndOfABurstAfterTheLinksEndDoesNothing) {
  Receive();
  link_->OnClosed(absl::UnavailableError("reset"));
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 0);
}

// Gives each message that leaves to another link.
class Handover final : public transport::Connection {
 public:
  explicit Handover(Link* to) : to_(to) {}
  Written Write(Slices message) override {
    to_->OnMessage(std::move(message));
    return Written::kUnderWay;
  }
  void Close(absl::Status status) override { closed = std::move(status); }

  absl::Status closed;

 private:
  Link* const to_;
};

TEST(LinkQueues, ABodyIsCutOffWhenItsCallEndsAndLeavesItsRoomToOthers) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto receiver =
      std::make_shared<Link>(std::make_shared<Nobody>(), SteadyClock(),
                             int64_t{kBytes} + 2 * Link::kBodyOverheadBytes);
  const auto back = std::make_shared<SlowConnection>();
  receiver->Attach(back);
  const auto connection = std::make_shared<Handover>(receiver.get());
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  for (uint64_t id = 1; id <= 10; ++id) {
    link->Append(RequestOf(id, kBytes));
    link->Drain();
    link->OnWritten();  // two chunks of it have left
    link->Sweep([id](uint64_t ended) { return ended == id; });
    link->OnWritten();
    // Not told that it is too much, nor sent the rest.
    EXPECT_THAT(back->closed, IsOk()) << "call " << id;
  }
}

// Each costs far more than the byte that it announces.
TEST(Bodies, TinyBodiesAreBoundedByTheirMemory) {
  constexpr int64_t kMost = 100;
  const auto link =
      std::make_shared<Link>(std::make_shared<Nobody>(), SteadyClock(),
                             kMost * (Link::kBodyOverheadBytes + 2));
  const auto connection = std::make_shared<SlowConnection>();
  link->Attach(connection);
  const auto announce = [&](uint64_t id, const std::string& function) {
    Request request;
    request.id = id;
    request.function = function;
    request.body = {Bytes::Copy("x")};
    BatchWriter batch;
    batch.Add(request, Instant(), /*body_follows=*/true);
    link->OnMessage(std::move(batch).Finish());
  };
  for (uint64_t id = 1; id <= kMost; ++id) announce(id, "F");
  EXPECT_THAT(connection->closed, IsOk());
  for (uint64_t id = 1; id <= kMost; ++id) {  // each leaves its room
    BatchWriter batch;
    batch.Add(ChunkOf(id, id % 2 == 0 ? Slices() : Slices{Bytes::Copy("x")}));
    link->OnMessage(std::move(batch).Finish());
  }
  announce(1, std::string(kMost * Link::kBodyOverheadBytes / 2, 'F'));
  EXPECT_THAT(connection->closed, IsOk());
  for (uint64_t id = 2; id <= kMost / 2 + 1; ++id) announce(id, "F");
  EXPECT_THAT(connection->closed,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "a body of 1 bytes is announced while 50 others"));
  EXPECT_THAT(connection->closed, StatusIs(absl::StatusCode::kResourceExhausted,
                                           "--limits=rpc_bytes=VALUE"));
}

// More than 32 bits count, of one block over and over: F40.
constexpr uint64_t kOverhang = 12345;
constexpr uint64_t kHuge = (uint64_t{1} << 32) + kOverhang;

RequestPtr HugeRequest() {
  constexpr uint64_t kBlock = 1 << 20;
  auto request = std::make_shared<Request>();
  request->id = 1;
  request->function = "F";
  const Bytes block = Bytes::Own(std::string(kBlock, 'x'));
  for (uint64_t left = kHuge, size = 0; left > 0; left -= size) {
    size = std::min(left, kBlock);
    request->body.push_back(block.subspan(0, size));
  }
  return request;
}

TEST(Bodies, OfMoreThanFourGigabytesLeaveWhole) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  link->Append(HugeRequest());
  link->Drain();
  uint64_t announced = 0;
  uint64_t left = 0;
  while (!connection->frames.empty()) {
    for (const Frame& frame : connection->frames) {
      if (const auto* request = std::get_if<RequestFrame>(&frame)) {
        announced = request->body_bytes;
      } else if (const auto* chunk = std::get_if<Chunk>(&frame)) {
        left += TotalSize(chunk->data);
      }
    }
    connection->frames.clear();
    link->OnWritten();
  }
  EXPECT_EQ(announced, kHuge);
  EXPECT_EQ(left, kHuge);
}

// Only so much of the memory of a body is touched as has come.
TEST(Bodies, OfMoreThanFourGigabytesAreTakenWhereTheyAreAdmitted) {
  for (const int64_t admitted : {Limits().bytes, int64_t{1} << 33}) {
    const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                             SteadyClock(), admitted);
    const auto connection = std::make_shared<SlowConnection>();
    link->Attach(connection);
    const int64_t before = UsedBytes();
    BatchWriter batch;
    batch.Add(*HugeRequest(), Instant(), /*body_follows=*/true);
    link->OnMessage(std::move(batch).Finish());
    if (admitted < int64_t{kHuge}) {
      EXPECT_THAT(connection->closed,
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           absl::StrCat("a body of ", kHuge, " bytes")));
      continue;
    }
    for (int i = 0; i < 2; ++i) {
      BatchWriter more;
      more.Add(ChunkOf(1, {Bytes::Own(std::string(kOverhang, 'x'))}));
      link->OnMessage(std::move(more).Finish());
    }
    EXPECT_THAT(connection->closed, IsOk());
    EXPECT_GE(UsedBytes() - before, int64_t{kHuge});  // it goes on
  }
}

// As a callee sends again what it is asked for again, on one connection.
TEST(LinkQueues, BodiesThatWaitForTheirTurnAreBoundedToo) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  const RequestPtr body = RequestOf(1, Link::kInChunks);
  size_t appended = 0;
  while (connection->closed.ok() && appended < 2 * Link::kMaxWaiting) {
    // More than one message takes along: the outbox is never empty for long.
    for (int i = 0; i < 4000; ++i, ++appended) link->Append(body);
    link->OnWritten();
  }
  EXPECT_THAT(connection->closed,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "messages wait for a peer to read them"));
}

TEST(LinkQueues, SweepKeepsBodiesThatAreAwaited) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  link->Append(RequestOf(1, 1));
  link->Drain();
  for (uint64_t id = 2; id <= 9; ++id) {
    EXPECT_FALSE(link->is_heavy());
    link->Append(RequestOf(id, Link::kHeavyBytes / 8 + 1));
  }
  EXPECT_TRUE(link->is_heavy());
  link->Sweep([](uint64_t id) { return id % 2 == 0; });
  EXPECT_FALSE(link->is_heavy());
  std::vector<uint64_t> left;
  for (int i = 0; i < 20; ++i) {
    link->OnWritten();
    for (const Frame& frame : connection->frames) {
      const auto* request = std::get_if<RequestFrame>(&frame);
      if (request != nullptr) left.push_back(request->request->id);
    }
    connection->frames.clear();
  }
  EXPECT_THAT(left, ::testing::ElementsAre(3, 5, 7, 9));
}

TEST(GivenUpCalls, OfLargeArgumentsDoNotOverrunTheCallee) {
  telemetry::Telemetry telemetry{Silently()};
  SimulatedRanks::Options options;
  options.limits.bytes = int64_t{1} << 20;
  options.telemetry = &telemetry;
  SimulatedRanks ranks(2, options);
  const Target w1 = ranks[0].To("w1");
  ASSERT_THAT(Call(w1, Size, Floats(10)), IsOkAndHolds(10));
  const Floats half(options.limits.bytes / 2 / sizeof(float));
  for (int i = 0; i < 6; ++i) {
    CallAsync(w1, Size, half).Cancel(absl::CancelledError("the test"));
  }
  EXPECT_THAT(Call(w1, Size, half), IsOkAndHolds(half.size()));
  EXPECT_THAT(telemetry.recorder().DumpText(),
              ::testing::Not(::testing::HasSubstr("rpc.lost")));
}

TEST(Results, OneThatIsTooMuchEndsItsOwnCallAlone) {
  telemetry::Telemetry telemetry{Silently()};
  SimulatedRanks::Options options;
  options.result_bytes = int64_t{1} << 20;
  options.telemetry = &telemetry;
  SimulatedRanks ranks(2, options);
  const Target w1 = ranks[0].To("w1");
  Future<Floats> large = CallAsync(w1, MakeFloats, int64_t{1} << 20);
  Future<int64_t> small = CallAsync(w1, Size, Floats(3));
  EXPECT_THAT(small.Wait(absl::Minutes(1)), IsOkAndHolds(3));
  const absl::Status end = large.Wait(absl::Minutes(1)).status();
  EXPECT_THAT(end,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "MakeFloats: its result cannot be read: a body of"));
  EXPECT_EQ(PhaseOf(end), Phase::kDecode);
  EXPECT_FALSE(OutcomeUnknown(end));
  // Nor does what was passed over stand in the way of the next.
  const Future<Floats> fits = CallAsync(w1, MakeFloats, int64_t{1} << 17);
  EXPECT_THAT(fits.Wait(absl::Minutes(1)), IsOk());
  EXPECT_THAT(telemetry.recorder().DumpText(),
              ::testing::Not(::testing::HasSubstr("rpc.lost")));
}

}  // namespace
}  // namespace weft::rpc
