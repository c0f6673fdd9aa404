#include "weft/transport/shm/ring_connection.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/testing/ring_transport.h"
#include "weft/transport/testing/transport_conformance.h"

namespace weft::rpc {
namespace {

using transport::TextMessage;
using transport::TransportConformance;

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Written = transport::Connection::Written;

// ---------------------------------------------------------- one end, by hand

// A stream that keeps what is written, and reports it on request.
class FakeStream final : public transport::Connection {
 public:
  Written Write(Slices message) override {
    if (is_busy || closed.has_value()) return Written::kRefused;
    is_busy = true;
    written.emplace_back(Flatten(message).view());
    return Written::kUnderWay;
  }
  void Close(absl::Status status) override {
    if (!closed.has_value()) closed = std::move(status);
  }
  std::string ProvenName() const override { return "w7"; }

  bool is_busy = false;
  std::vector<std::string> written;
  std::optional<absl::Status> closed;
};

class FakeWatch final : public net::MemoryWatch {
 public:
  absl::Status AddMemory(std::shared_ptr<net::MemorySource> added) override {
    source = std::move(added);
    return absl::OkStatus();
  }
  void RemoveMemory(const net::MemorySource* removed) override {
    if (source.get() == removed) source = nullptr;
  }

  std::shared_ptr<net::MemorySource> source;
};

class ForwardingObserver final : public transport::ConnectionObserver {
 public:
  void OnMessage(Slices message) override {
    texts.emplace_back(Flatten(message).view());
  }
  void OnWritten() override { ++written; }
  void OnClosed(absl::Status status) override { closed = std::move(status); }

  std::vector<std::string> texts;
  int written = 0;
  std::optional<absl::Status> closed;
};

// One end, with everything around it.
struct End {
  End(transport::SharedRings rings, bool is_caller) {
    ring = std::make_shared<transport::RingConnection>(std::move(rings), watch);
    EXPECT_THAT(ring->Start(), IsOk());
    if (is_caller) ring->Observe(observer);
    connection = ring->Attach(stream);
    if (!is_caller) ring->Observe(observer);
  }
  // It and its stream hold each other until the stream has closed.
  ~End() { ring->OnClosed(absl::CancelledError("the test has ended")); }

  // The stream has taken what was written.
  void Flush() {
    ASSERT_TRUE(std::exchange(stream->is_busy, false));
    ring->OnWritten();
  }
  Written Write(const std::string& text) {
    return connection->Write(TextMessage(text));
  }
  // What a poller would do.
  void Poll() {
    for (int i = 0; i < 1000 && watch->source && watch->source->HasWork();
         ++i) {
      watch->source->Handle();
    }
  }

  const std::shared_ptr<FakeWatch> watch = std::make_shared<FakeWatch>();
  const std::shared_ptr<FakeStream> stream = std::make_shared<FakeStream>();
  const std::shared_ptr<ForwardingObserver> observer =
      std::make_shared<ForwardingObserver>();
  std::shared_ptr<transport::RingConnection> ring;
  std::unique_ptr<transport::Connection> connection;
};

class RingConnectionTest : public ::testing::Test {
 protected:
  // Both ends use the rings from now on.
  void SwitchToRings() {
    callee_.Flush();
    caller_.ring->OnMessage({});
    caller_.Flush();
    callee_.ring->OnMessage({});
  }
  // As another process sees the ring by which the caller is written to.
  transport::RingWords& WordsToCaller() { return *words_.memory_in().words; }

  transport::RingPair pair_ = transport::RingPair::Make();
  const std::weak_ptr<memory::Segment> memory_of_caller_ = pair_.caller.memory;
  struct Spy {
    std::shared_ptr<memory::Segment> memory;
    transport::RingMemory memory_in() const {
      return transport::RingMemory::At(
          memory->data() + transport::RingMemory::BytesFor(
                               transport::SharedRings::kCapacity),
          transport::SharedRings::kCapacity);
    }
  } words_{std::make_shared<memory::Segment>(
      *transport::SharedRings::MapMemory(dup(pair_.caller.memory->fd())))};
  End caller_{std::move(pair_.caller), true};
  End callee_{std::move(pair_.callee), false};
};

// Workers that meet many others say little to most of them.
TEST_F(RingConnectionTest, ConnectionOfFewMessagesHasFewPages) {
  SwitchToRings();
  EXPECT_EQ(caller_.Write("one"), Written::kDone);
  callee_.Poll();
  EXPECT_EQ(callee_.Write("two"), Written::kDone);
  caller_.Poll();
  EXPECT_THAT(callee_.observer->texts, ElementsAre("one"));
  EXPECT_THAT(caller_.observer->texts, ElementsAre("two"));
  struct stat memory;
  ASSERT_EQ(fstat(words_.memory->fd(), &memory), 0);
  EXPECT_LE(memory.st_blocks * 512, 32 << 10);
}

TEST_F(RingConnectionTest, GoesOverInOrderAndWritesAtOnceFromThenOn) {
  EXPECT_THAT(callee_.stream->written, ElementsAre(""));
  EXPECT_EQ(caller_.Write("one"), Written::kUnderWay);
  EXPECT_EQ(caller_.Write("refused"), Written::kRefused);
  callee_.Flush();
  // The callee's word comes while a message is under way: that goes first.
  caller_.ring->OnMessage({});
  EXPECT_THAT(caller_.stream->written, ElementsAre("one"));
  caller_.Flush();
  EXPECT_THAT(caller_.stream->written, ElementsAre("one", ""));
  EXPECT_EQ(caller_.observer->written, 1);
  EXPECT_EQ(caller_.Write("two"), Written::kDone);
  EXPECT_EQ(caller_.Write("three"), Written::kDone);
  caller_.Flush();
  EXPECT_EQ(caller_.observer->written, 1);
  // Nothing is read from the ring before the stream has ended.
  callee_.Poll();
  callee_.ring->OnMessage(TextMessage("one"));
  callee_.Poll();
  EXPECT_THAT(callee_.observer->texts, ElementsAre("one"));
  callee_.ring->OnMessage({});
  callee_.Poll();
  EXPECT_THAT(callee_.observer->texts, ElementsAre("one", "two", "three"));
  EXPECT_EQ(callee_.Write("four"), Written::kDone);
  caller_.Poll();
  EXPECT_THAT(caller_.observer->texts, ElementsAre("four"));
  EXPECT_THAT(callee_.stream->written, ElementsAre(""));
  EXPECT_EQ(caller_.connection->ProvenName(), "w7");
}

TEST_F(RingConnectionTest, PeerWithoutAnAnswerKeepsTheStream) {
  EXPECT_EQ(caller_.Write("one"), Written::kUnderWay);
  const std::shared_ptr<net::MemorySource> polled = caller_.watch->source;
  EXPECT_FALSE(memory_of_caller_.expired());
  caller_.ring->OnMessage(TextMessage("a word of the stream"));
  EXPECT_EQ(caller_.watch->source, nullptr);
  EXPECT_TRUE(memory_of_caller_.expired());
  // A poller may have been using it.
  EXPECT_FALSE(polled->BeginSleep());
  polled->EndSleep();
  polled->Handle();
  caller_.Flush();
  EXPECT_EQ(caller_.Write("two"), Written::kUnderWay);
  EXPECT_THAT(caller_.stream->written, ElementsAre("one", "two"));
  EXPECT_THAT(caller_.observer->texts, ElementsAre("a word of the stream"));
  // Too late.
  caller_.ring->OnMessage({});
  ASSERT_TRUE(caller_.stream->closed.has_value());
  EXPECT_THAT(*caller_.stream->closed,
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// Since the last time that it was asked.
bool WasRung(const net::EventFd& event_fd) {
  uint64_t times;
  return read(event_fd.fd(), &times, sizeof times) == sizeof times;
}

TEST_F(RingConnectionTest, WakesTheSenderBeforeHandlingTheMessage) {
  SwitchToRings();
  ASSERT_FALSE(caller_.watch->source->BeginSleep());
  WasRung(caller_.ring->event_fd());
  const auto hear = [&](const std::string& text, bool slept) {
    ASSERT_EQ(caller_.Write(text), Written::kDone);
    if (slept) callee_.watch->source->EndSleep();
    callee_.Poll();
    EXPECT_EQ(callee_.observer->texts.back(), text);
  };
  WordsToCaller().reader_core.store(0);
  hear("perhaps on this core", /*slept=*/true);
  EXPECT_FALSE(WasRung(caller_.ring->event_fd()));
  WordsToCaller().reader_core.store(1 << 20);
  hear("found by who was awake", /*slept=*/false);
  EXPECT_FALSE(WasRung(caller_.ring->event_fd()));
  hear("on another core", /*slept=*/true);
  EXPECT_TRUE(WasRung(caller_.ring->event_fd()));
  ASSERT_EQ(callee_.Write("reply"), Written::kDone);
  EXPECT_FALSE(WasRung(caller_.ring->event_fd()));  // it is awake
}

TEST_F(RingConnectionTest, ALongMessageWaitsForRoom) {
  SwitchToRings();
  const std::string text(1 << 20, 'x');
  EXPECT_EQ(caller_.Write(text), Written::kUnderWay);
  EXPECT_EQ(caller_.Write("refused"), Written::kRefused);
  EXPECT_TRUE(Becomes([&] {
    callee_.Poll();
    EXPECT_TRUE(caller_.watch->source->BeginSleep() ||
                !callee_.observer->texts.empty());
    caller_.Poll();
    return !callee_.observer->texts.empty();
  }));
  EXPECT_EQ(caller_.observer->written, 1);
  EXPECT_EQ(callee_.observer->texts[0], text);
  EXPECT_EQ(caller_.Write("next"), Written::kDone);
  EXPECT_EQ(
      caller_.Write(std::string(transport::kMaxRingMessageBytes + 1, 'x')),
      Written::kRefused);
  EXPECT_THAT(*caller_.stream->closed,
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(RingConnectionTest, WriterThatGivesWayIsResumedByAPoller) {
  SwitchToRings();
  caller_.Poll();
  const int before = caller_.observer->written;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(caller_.Write("one"), Written::kDone);
    caller_.connection->RequestOnWritten();
    EXPECT_EQ(caller_.observer->written, before + i - 1);  // not by who writes
    caller_.Poll();
    EXPECT_EQ(caller_.observer->written, before + i);
    EXPECT_FALSE(caller_.watch->source->HasWork());
  }
  callee_.Poll();
  EXPECT_THAT(callee_.observer->texts, ElementsAre("one", "one", "one"));
  caller_.connection->Close(absl::CancelledError("enough"));
  caller_.connection->RequestOnWritten();
  EXPECT_FALSE(caller_.watch->source->HasWork());
}

TEST_F(RingConnectionTest, WrittenMessagesArriveBeforeTheClose) {
  SwitchToRings();
  EXPECT_EQ(callee_.Write("one"), Written::kDone);
  EXPECT_EQ(callee_.Write("two"), Written::kDone);
  caller_.ring->OnClosed(absl::UnavailableError("killed"));
  EXPECT_THAT(caller_.observer->texts, ElementsAre("one", "two"));
  EXPECT_THAT(*caller_.observer->closed,
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(caller_.watch->source, nullptr);
  EXPECT_EQ(caller_.Write("three"), Written::kRefused);
}

TEST_F(RingConnectionTest, ClosedEndGetsNoMoreEvents) {
  SwitchToRings();
  EXPECT_EQ(callee_.Write("one"), Written::kDone);
  caller_.connection->Close(absl::AbortedError("enough"));
  caller_.Poll();
  caller_.ring->OnClosed(absl::AbortedError("enough"));
  EXPECT_THAT(caller_.observer->texts, IsEmpty());
  EXPECT_THAT(*caller_.observer->closed, StatusIs(absl::StatusCode::kAborted));
}

TEST_F(RingConnectionTest, LastHandleDestroyedClosesTheStream) {
  const std::weak_ptr<FakeStream> stream = caller_.stream;
  EXPECT_EQ(stream.use_count(), 2);
  caller_.connection = nullptr;
  EXPECT_EQ(stream.use_count(), 1);
}

// ------------------------------------------------------------ a hostile peer

TEST_F(RingConnectionTest, AMessageBesideTheRingEndsTheConnection) {
  SwitchToRings();
  caller_.ring->OnMessage(TextMessage("on the stream"));
  EXPECT_THAT(caller_.observer->texts, IsEmpty());
  EXPECT_THAT(*caller_.stream->closed,
              StatusIs(absl::StatusCode::kInvalidArgument, "left it"));
  callee_.ring->OnMessage({});
  EXPECT_THAT(*callee_.stream->closed,
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RingConnectionTest, APositionThatLiesEndsTheConnection) {
  SwitchToRings();
  WordsToCaller().written = 1 << 30;
  caller_.Poll();
  EXPECT_THAT(*caller_.stream->closed,
              StatusIs(absl::StatusCode::kInvalidArgument, "to have written"));
  EXPECT_FALSE(caller_.watch->source->HasWork());
  // And of what the callee writes, also while it waits for room.
  const std::string text(1 << 20, 'x');
  EXPECT_EQ(callee_.Write(text), Written::kUnderWay);
  WordsToCaller().read = uint64_t{1} << 40;
  callee_.Poll();
  EXPECT_THAT(*callee_.stream->closed,
              StatusIs(absl::StatusCode::kInvalidArgument, "to have read"));
  EXPECT_EQ(callee_.Write("more"), Written::kRefused);
  EXPECT_EQ(callee_.observer->written, 0);
}

TEST_F(RingConnectionTest, SpuriousWakeupsAreHarmless) {
  SwitchToRings();
  auto queue = *net::MemoryQueue::Create();
  ASSERT_THAT(queue->Add(caller_.ring), IsOk());
  for (int i = 0; i < 1000; ++i) caller_.ring->event_fd().Ring();
  const Instant soon = SteadyClock().Now() + absl::Milliseconds(5);
  while (SteadyClock().Now() < soon) {
    EXPECT_EQ(queue->Next(soon), net::EventQueue::Outcome::kTimeout);
  }
  EXPECT_EQ(callee_.Write("one"), Written::kDone);
  EXPECT_EQ(queue->Next(SteadyClock().Now() + testing::kPatience),
            net::EventQueue::Outcome::kEvent);
  queue->Handle();
  EXPECT_THAT(caller_.observer->texts, ElementsAre("one"));
}

// Whatever the other process writes, wherever: messages, or an end.
TEST_F(RingConnectionTest, ScribblingEndsTheConnectionAtWorst) {
  SwitchToRings();
  std::atomic<bool> stop{false};
  std::thread scribbler([&, words = words_] {
    std::mt19937_64 random(5);
    const auto memory = words.memory->span();
    auto* const all = reinterpret_cast<uint64_t*>(memory.data());
    while (!stop) {
      __atomic_store_n(&all[random() % (memory.size() / 8)], random() % 5000,
                       __ATOMIC_RELAXED);
    }
  });
  for (int i = 0; i < 2000; ++i) {
    (void)caller_.Write("hello");
    (void)callee_.Write("hello");
    caller_.Poll();
    callee_.Poll();
  }
  stop = true;
  scribbler.join();
  for (End* end : {&caller_, &callee_}) {
    end->ring->OnClosed(absl::UnavailableError("over"));
    EXPECT_TRUE(end->observer->closed.has_value());
  }
}

// ------------------------------------------------- transports of one process

class RingTransportPair final : public transport::TransportPair {
 public:
  RingTransportPair() { RegisterTestPurposes(); }
  transport::Transport& a() override { return a_; }
  transport::Transport& b() override { return b_; }
  transport::Destination b_destination() const override { return {"b", "b"}; }

 private:
  transport::LocalNetwork network_;
  transport::RingDepot depot_;
  transport::RingTransport a_{network_.MakeTransport("a").value(), "a", depot_};
  transport::RingTransport b_{network_.MakeTransport("b").value(), "b", depot_};
};

INSTANTIATE_TEST_SUITE_P(Rings, TransportConformance, ::testing::Values([] {
                           return std::unique_ptr<transport::TransportPair>(
                               new RingTransportPair);
                         }));

int64_t Next(int64_t x) { return x + 1; }
WEFT_RPC_INLINE(Next);

std::string Mirror(std::string x) { return x; }
WEFT_RPC(Mirror);

class RingAgents : public ::testing::Test {
 protected:
  RingAgents() {
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory_.Put(Worker{name, WorkerKey{i, 1}, name});
      transports_.push_back(std::make_unique<transport::RingTransport>(
          network_.MakeTransport(name).value(), name, depot_));
      AgentOptions options;
      options.job = "job";
      options.name = name;
      options.key = WorkerKey{i, 1};
      options.transport = transports_.back().get();
      options.directory = &directory_;
      agents_.push_back(*Agent::Create(options));
    }
  }

  transport::LocalNetwork network_;
  transport::RingDepot depot_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(RingAgents, CallBothWaysFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const Target to = agents_[t % 2]->To(absl::StrCat("w", 1 - t % 2));
      for (int64_t i = 0; i < 500; ++i) {
        ASSERT_EQ(*Call(to, Next, i), i + 1);
        if (i % 50 > 0) continue;
        const std::string text(i * 500, static_cast<char>(i));
        ASSERT_EQ(*Call(to, Mirror, text), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RingAgents, EveryNewConnectionHasRingsOfItsOwn) {
  for (int64_t round = 0; round < 20; ++round) {
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 20; ++i) {
      calls.push_back(CallAsync(agents_[0]->To("w1"), Next, i));
    }
    network_.Break("w1");
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(*calls[i].Wait(absl::Seconds(60)), i + 1);
    }
  }
}

}  // namespace
}  // namespace weft::rpc
