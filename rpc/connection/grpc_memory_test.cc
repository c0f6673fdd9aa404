// Agents over gRPC that share memory, and peers that are killed or stopped.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/failpoint.h"
#include "weft/base/parker.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/testing/grpc_agents.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/grpc_transport.h"
#include "weft/transport/shm/message_ring.h"
#include "weft/transport/shm/ring_connection.h"
#include "weft/transport/testing/observers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// ------------------------------------------------------- agents over gRPC

// How often it ran in this process.
int64_t CountUp() {
  static std::atomic<int64_t> runs{0};
  return ++runs;
}
WEFT_RPC(CountUp);

// ----------------------------------------------------------- shared memory

// Mappings of memory that connections share: for each end that is here one for
// messages and, once there was a large body, one for bodies.
int CountMemories() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:weft-rings") != line.npos;
  }
  return count;
}

TEST_F(GrpcAgents, OneHundredConnectionsLeaveNeitherDescriptorsNorMemory) {
  const std::vector<float> large(50000, 2.5f);
  const auto use = [&] {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(*Call(agent_a_->To("b"), Echo, large), large);
    }
  };
  use();
  EXPECT_EQ(CountMemories(), 2);
  const int before = CountDescriptors();
  for (uint64_t epoch = 2; epoch < 102; ++epoch) {
    agent_a_ = MakeAgent(a_, "a", 0, epoch);
    use();
  }
  // b may not have heard yet of all that ended.
  Clock& clock = a_.transport().clock();
  const Instant deadline = clock.Now() + absl::Seconds(30);
  while ((CountMemories() > 2 || CountDescriptors() > before) &&
         clock.Now() < deadline) {
    use();
  }
  EXPECT_EQ(CountMemories(), 2);
  EXPECT_LE(CountDescriptors(), before);
}

// The callee's gRPC never sees the call of most of them.
TEST_F(GrpcAgents, ConnectionsThatEndAtOnceLeaveNoMemoryAtTheirPeer) {
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  const int before = CountDescriptors();
  for (int i = 0; i < 200; ++i) {
    const auto hears =
        std::make_shared<transport::HearingObserver>(a_.transport().driver());
    const auto connection =
        a_.transport().Connect(ConnectionPurpose(), b_.destination(), hears);
    if (i % 2 == 0) (void)connection->Write({Bytes::Copy("no Hello")});
  }
  EXPECT_TRUE(Becomes([&] {
    return CountMemories() <= 2 && CountDescriptors() <= before;
  })) << CountMemories()
      << " memories, " << CountDescriptors() << " descriptors, not " << before;
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 5), 10);
}

TEST(GrpcSharedMemory, GoesToSoManyConnectionsAndNoMore) {
  TempDir temp;
  FixedDirectory directory;
  Node server(temp, "s", /*memories=*/2);
  directory.Put(server.worker(9));
  AgentOptions options;
  options.job = "job";
  options.directory = &directory;
  options.name = "s";
  options.key = WorkerKey{9, 1};
  options.transport = &server.transport();
  const auto agent = *Agent::Create(options);
  const std::vector<float> large(50000, 2.5f);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Agent>> agents;
  for (uint32_t i = 0; i < 4; ++i) {
    options.name = absl::StrCat("c", i);
    options.key = WorkerKey{i, 1};
    nodes.push_back(std::make_unique<Node>(temp, options.name, 1));
    options.transport = &nodes.back()->transport();
    agents.push_back(*Agent::Create(options));
    for (int round = 0; round < 3; ++round) {
      ASSERT_EQ(*Call(agents.back()->To("s"), Echo, large), large);
    }
  }
  // The first two have some, at both ends; the others nothing.
  EXPECT_EQ(CountMemories(), 4);
  // What was refused is free for another.
  Node other(temp, "other");
  directory.Put(other.worker(8));
  options.name = "other";
  options.key = WorkerKey{8, 1};
  options.transport = &other.transport();
  const auto other_agent = *Agent::Create(options);
  ASSERT_EQ(*Call(agents.back()->To("other"), Twice, 4), 8);
  EXPECT_EQ(CountMemories(), 6);
}

// What was written into the rings of this process, in all.
uint64_t BytesInRings() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-rings") == line.npos) continue;
    auto* const begin =
        reinterpret_cast<std::byte*>(std::strtoull(line.c_str(), nullptr, 16));
    for (const uint64_t offset :
         {uint64_t{0},
          transport::RingMemory::BytesFor(transport::SharedRings::kCapacity)}) {
      bytes += transport::RingMemory::At(begin + offset,
                                         transport::SharedRings::kCapacity)
                   .words->written.load();
    }
  }
  return bytes;
}

// How many of the mapped halves for bodies hold something.
int UsedBodyMemories() {
  std::ifstream maps("/proc/self/maps");
  int used = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-rings") == line.npos) continue;
    auto* const bodies =
        reinterpret_cast<std::byte*>(std::strtoull(line.c_str(), nullptr, 16)) +
        transport::SharedRings::kRingBytes;
    for (const size_t half : {size_t{0}, transport::BodyMemory::kBytes}) {
      used += std::any_of(bodies + half, bodies + half + 4096,
                          [](std::byte b) { return b != std::byte{0}; })
                  ? 1
                  : 0;
    }
  }
  return used;
}

TEST_F(GrpcAgents, LargeBodiesWithinTheHostPassThroughTheMemoryOfTheRings) {
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(UsedBodyMemories(), 0);
  const std::vector<float> large(50000, 2.5f);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(*Call(agent_a_->To("b"), Echo, large), large);
  }
  EXPECT_EQ(UsedBodyMemories(), 4);  // both halves, which both ends map
  EXPECT_EQ(CountMemories(), 2);
}

TEST_F(GrpcAgents, SmallCallsWithinTheHostPassThroughRings) {
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(CountMemories(), 2);
  // Both map the same memory, so each byte is counted twice.
  uint64_t before = BytesInRings();
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(*Call(agent_a_->To("b"), Twice, i), 2 * i);
  }
  EXPECT_GT(BytesInRings() - before, 2 * 100 * 2 * 20u);
}

// The thread that looks at the rings is started with the first of them.
TEST_F(GrpcAgents, WhereNoThreadCanLookAtRingsCallsGoWithout) {
  {
    const ScopedFailpoint threads("base/start_thread",
                                  "error(RESOURCE_EXHAUSTED,no thread)");
    EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
    EXPECT_EQ(*Call(agent_b_->To("a"), Twice, 4), 8);
    EXPECT_GE(threads.hits(), 1);
    EXPECT_EQ(BytesInRings(), 0u);
  }
  agent_b_ = nullptr;
  agent_b_ = MakeAgent(b_, "b", 1, 2);
  directory_.Put(Worker{"b", WorkerKey{1, 2}, b_.address()});
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_GT(BytesInRings(), 0u);
}

TEST(GrpcRings, WhereTheCalleeHasNoneCallsGoAsEver) {
  TempDir temp;
  for (const auto& [here, there] : {std::pair(0, 64), std::pair(64, 0)}) {
    FixedDirectory directory;
    Node a(temp, "a", here);
    Node b(temp, "b", there);
    AgentOptions options;
    options.job = "job";
    options.directory = &directory;
    std::vector<std::unique_ptr<Agent>> agents;
    uint32_t id = 0;
    for (Node* node : {&a, &b}) {
      directory.Put(node->worker(id));
      options.name = node->worker(id).name;
      options.key = WorkerKey{id, 1};
      options.transport = &node->transport();
      agents.push_back(*Agent::Create(options));
      ++id;
    }
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(*Call(agents[0]->To("b"), Twice, i), 2 * i);
    }
    EXPECT_EQ(BytesInRings(), 0u);
  }
}

// The other process of the next tests, which runs this program.
TEST(GrpcPeerProcess, DISABLED_ServesUntilKilled) {
  const char* listen = std::getenv("WEFT_TEST_LISTEN");
  ASSERT_NE(listen, nullptr);
  Node node(listen, "b", /*memories=*/64);
  FixedDirectory directory;
  AgentOptions options;
  options.job = "job";
  options.name = "b";
  options.key = WorkerKey{1, 1};
  options.transport = &node.transport();
  options.directory = &directory;
  const auto agent = Agent::Create(options);
  ASSERT_THAT(agent.status(), IsOk());
  std::cout << "serving" << std::endl;
  Promise<void> never(node.transport().driver());
  (void)never.future().Wait(absl::Minutes(2));
}

// "b" is a process of its own.
class GrpcPeer : public GrpcAgents {
 protected:
  void SetUp() override {
    const std::string listen = absl::StrCat("unix:", temp_.path(), "/peer");
    directory_.Put({"b", {1, 1}, listen});
    agent_b_ = nullptr;
    testing::Command command;
    command.argv = {std::filesystem::read_symlink("/proc/self/exe").string(),
                    "--gtest_also_run_disabled_tests",
                    "--gtest_filter=GrpcPeerProcess.*"};
    command.env = {absl::StrCat("WEFT_TEST_LISTEN=", listen)};
    auto peer = testing::Process::Start(command);
    ASSERT_THAT(peer.status(), IsOk());
    peer_ = *std::move(peer);
    ASSERT_THAT(peer_->WaitForOutput("serving", absl::Seconds(60)), IsOk());
  }

  // Returns once it runs no more.
  void Stop() {
    peer_->Signal(SIGSTOP);
    EXPECT_TRUE(testing::Becomes([&] {
      std::ifstream stat(absl::StrCat("/proc/", peer_->pid(), "/stat"));
      std::string pid, name, state;
      stat >> pid >> name >> state;
      return state == "T";
    }));
  }

  std::vector<Future<int64_t>> Count(int calls) {
    std::vector<Future<int64_t>> counts;
    for (int i = 0; i < calls; ++i) {
      counts.push_back(CallAsync(agent_a_->To("b"), CountUp));
    }
    return counts;
  }

  std::unique_ptr<testing::Process> peer_;
};

TEST_F(GrpcPeer, KilledWithUnreadMessagesEndsItsCallsAndLeavesNothing) {
  GiveUpSoon();
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(CountMemories(), 1);
  Stop();
  const uint64_t before = BytesInRings();
  const auto calls = Count(200);
  // Once the first call has left the stream.
  EXPECT_TRUE(Becomes([&] { return BytesInRings() - before > 200 * 20u; }));
  peer_->Signal(SIGKILL);
  for (const Future<int64_t>& call : calls) {
    const absl::Status status = call.Wait(absl::Seconds(60)).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(OutcomeUnknown(status));
  }
  EXPECT_TRUE(Becomes([] { return CountMemories() == 0; }));
}

TEST_F(GrpcPeer, StoppedForSecondsRunsEachCallOnceWhenItGoesOn) {
  std::set<int64_t> counts;
  const auto gather = [&](const std::vector<Future<int64_t>>& calls) {
    for (const Future<int64_t>& call : calls) {
      const auto count = call.Wait(absl::Seconds(60));
      ASSERT_THAT(count.status(), IsOk());
      counts.insert(*count);
    }
  };
  gather(Count(50));
  const auto under_way = Count(50);
  Stop();
  const auto while_stopped = Count(100);
  EXPECT_THAT(Call(agent_a_->To("b", absl::Seconds(2)), Twice, 4).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  peer_->Signal(SIGCONT);
  gather(under_way);
  gather(while_stopped);
  gather(Count(50));
  EXPECT_EQ(counts.size(), 250u);
  EXPECT_EQ(*counts.rbegin(), 250);
}

TEST_F(GrpcPeer, KilledInMidTransferEndsItsCallsAndLeavesNothing) {
  GiveUpSoon();
  const std::vector<float> large(4 << 20, 2.5f);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(*Call(agent_a_->To("b"), Echo, large), large);
  }
  EXPECT_EQ(CountMemories(), 1);
  std::vector<Future<std::vector<float>>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(CallAsync(agent_a_->To("b"), Echo, large));
  }
  ASSERT_EQ(*calls[0].Wait(absl::Seconds(60)), large);  // the others are on it
  peer_->Signal(SIGKILL);
  for (size_t i = 1; i < calls.size(); ++i) {
    const absl::Status status = calls[i].Wait(absl::Seconds(60)).status();
    if (status.ok()) continue;  // had come before
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(OutcomeUnknown(status));
  }
  EXPECT_TRUE(Becomes([] { return CountMemories() == 0; }));
}

}  // namespace
}  // namespace weft::rpc
