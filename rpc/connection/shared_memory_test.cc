// Bodies that pass through memory which caller and callee share.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/executor.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/testing/link_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/simulated_transport.h"
#include "weft/transport/testing/memory_sharing.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;

Floats Mirror(Floats x) { return x; }
WEFT_RPC_INLINE(Mirror);

// No two neighbours are equal, nor are the bodies of two seeds.
Floats Body(size_t elements, uint32_t seed) {
  Floats body(elements);
  uint32_t state = seed * 2654435761u + 1;
  for (float& x : body) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8);
  }
  return body;
}

// Two agents on threads of their own, whose connections share memory.
class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest() {
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory_.Put(Worker{name, WorkerKey{i, 1}, name});
      transports_.push_back(std::make_unique<transport::SharingTransport>(
          network_.MakeTransport(name).value(), depot_));
    }
  }
  void Start() {
    for (uint32_t i = 0; i < 2; ++i) {
      agents_.push_back(MakeAgent(*transports_[i], directory_, i));
    }
  }

  // Until w0 and w1 use the memory: what comes later does not use the
  // connection.
  void WarmUp() {
    const Floats body = Body(100000, 1);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(*Call(agents_[0]->To("w1"), Mirror, body), body);
    }
  }

  transport::MemoryDepot depot_;
  transport::LocalNetwork network_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(SharedMemoryTest, LargeBodiesPassThroughItBothWays) {
  Start();
  WarmUp();
  EXPECT_EQ(depot_.ends, 2);
  const int64_t before = depot_.written_bytes;
  // Some times as much as the memory holds.
  const Floats body = Body(6 << 20, 2);
  ASSERT_EQ(*Call(agents_[0]->To("w1"), Mirror, body), body);
  EXPECT_LT(depot_.written_bytes - before, 32 << 10);
}

// So that the receiver copies out while the sender copies in.
TEST_F(SharedMemoryTest, BodyOfSomeHundredKilobytesLeavesInSeveralChunks) {
  Start();
  WarmUp();
  const auto messages_of = [&](size_t elements) {
    const int64_t before = depot_.written_messages;
    EXPECT_EQ(*Call(agents_[0]->To("w1"), Size, Body(elements, 3)),
              static_cast<int64_t>(elements));
    return depot_.written_messages - before;
  };
  EXPECT_GE(messages_of(100000), 5);  // four chunks, and the reply
  EXPECT_LE(messages_of(30000), 3);   // 117 KiB: one chunk
}

TEST_F(SharedMemoryTest, CalleeMayUseItFirst) {
  Start();
  const Target w1 = agents_[0]->To("w1");
  for (int i = 0; i < 5; ++i)
    ASSERT_EQ(Call(w1, MakeFloats, 7900)->size(), 7900u);
  EXPECT_EQ(depot_.asked, 0);  // 31 KB: not worth it
  for (int i = 0; i < 5; ++i)
    ASSERT_EQ(Call(w1, MakeFloats, 8300)->size(), 8300u);
  EXPECT_EQ(depot_.ends, 2);
}

TEST_F(SharedMemoryTest, WithoutItBodiesLeaveWithTheMessages) {
  depot_.has_none = true;
  Start();
  const Floats body = Body(3 << 20, 3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(*Call(agents_[0]->To("w1"), Mirror, body), body);
  }
  EXPECT_EQ(depot_.asked, 2);  // once by each end
  EXPECT_EQ(depot_.ends, 0);
}

TEST_F(SharedMemoryTest, SmallCallsShareNothing) {
  Start();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(*Call(agents_[0]->To("w1"), Size, Body(100, i)), 100);
  }
  EXPECT_EQ(depot_.asked, 0);
}

TEST_F(SharedMemoryTest, CallsOfManySizesFromManyThreadsKeepTheirBytes) {
  Start();
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    std::mt19937 random(rank);
    Agent& from = *agents_[rank % 2];
    const Target to = from.To(absl::StrCat("w", 1 - rank % 2));
    for (int round = 0; round < 10; ++round) {
      std::map<uint32_t, Future<Floats>> calls;
      std::map<uint32_t, size_t> sizes;
      for (int i = 0; i < 6; ++i) {
        const uint32_t seed = random();
        sizes[seed] = random() % (i == 0 ? 700000 : 40000);
        calls.emplace(seed, CallAsync(to, Mirror, Body(sizes[seed], seed)));
      }
      for (const auto& [seed, call] : calls) {
        const auto body = call.Wait(absl::Seconds(60));
        if (!body.ok()) return body.status();
        if (*body != Body(sizes[seed], seed)) {
          return absl::DataLossError(absl::StrCat("seed ", seed));
        }
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  EXPECT_EQ(depot_.ends, 4);  // w0 calls w1, and w1 calls w0
}

TEST_F(SharedMemoryTest, ABrokenConnectionLeavesItAndTheNextHasItsOwn) {
  Start();
  WarmUp();
  const Floats body = Body(4 << 20, 4);
  for (int i = 0; i < 5; ++i) {
    Future<Floats> call = CallAsync(agents_[0]->To("w1"), Mirror, body);
    network_.Break("w1");
    ASSERT_EQ(*call.Wait(absl::Seconds(60)), body);
  }
  WarmUp();
  EXPECT_GT(depot_.ends, 2);
}

// Another process may write what it likes there, at any time.
TEST_F(SharedMemoryTest, OverwrittenSharedMemoryGarblesOnlyTheBytes) {
  Start();
  WarmUp();
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937_64 random(5);
    while (!stop) {
      for (const auto& segment : depot_.segments()) {
        for (int i = 0; i < 1000; ++i) {
          auto* const bytes =
              reinterpret_cast<volatile uint8_t*>(segment->data());
          bytes[random() % segment->size_bytes()] =
              static_cast<uint8_t>(random());
        }
      }
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto reply = Call(agents_[0]->To("w1"), Mirror, Body(300000, i));
    if (reply.ok()) continue;
    // The arguments are wrong, or the result, whichever was scribbled on.
    EXPECT_TRUE(absl::IsInvalidArgument(reply.status()) ||
                absl::IsInternal(reply.status()))
        << reply.status();
  }
  stop = true;
  scribbler.join();
  WarmUp();
}

// ------------------------------------------------------- a network that breaks

int64_t MarkOnce(CallContext& context, int64_t i, const Floats& body) {
  ++(*context.Local<std::vector<int64_t>>())[i];
  return body == Body(body.size(), static_cast<uint32_t>(i));
}
WEFT_RPC_INLINE(MarkOnce);

TEST(SimulatedSharedMemory, EachCallRunsOnceWithItsBytesUnderAnyFaults) {
  constexpr int64_t kCalls = 12;
  int ends = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    transport::MemoryDepot depot;
    sim::Simulator simulator(seed);
    transport::SimulatedNetwork::Options network_options;
    network_options.breaks = 0.05;
    transport::SimulatedNetwork network(simulator, network_options);
    FixedDirectory directory;
    InlineExecutor executor;
    std::vector<std::unique_ptr<transport::Transport>> transports;
    std::vector<std::unique_ptr<Agent>> agents;
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory.Put(Worker{name, WorkerKey{i, 1}, name});
      transports.push_back(std::make_unique<transport::SharingTransport>(
          network.MakeTransport(name), depot));
      agents.push_back(MakeAgent(*transports.back(), directory, i, &executor));
    }
    std::vector<int64_t> marks(kCalls);
    agents[1]->SetLocal(&marks);
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < kCalls; ++i) {
      calls.push_back(CallAsync(agents[0]->To("w1"), MarkOnce, i,
                                Body(i % 3 == 0 ? 50000 : 9000, i)));
    }
    for (const Future<int64_t>& call : calls) {
      const auto is_whole = call.Wait(absl::Seconds(60));
      ASSERT_THAT(is_whole.status(), IsOk()) << "seed " << seed;
      EXPECT_EQ(*is_whole, 1) << "seed " << seed;
    }
    EXPECT_THAT(marks, ::testing::Each(1)) << "seed " << seed;
    ends += depot.ends;
    agents.clear();
  }
  EXPECT_GT(ends, 10);
}

}  // namespace
}  // namespace weft::rpc
