// What tests of links share: functions, and a peer that writes what it likes.

#ifndef WEFT_RPC_TESTING_LINK_FIXTURE_H_
#define WEFT_RPC_TESTING_LINK_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/executor.h"
#include "weft/memory/allocator.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/simulated_transport.h"
#include "weft/transport/testing/memory_sharing.h"

namespace weft::rpc {

using Floats = std::vector<float>;

inline int64_t Size(const Floats& x) { return static_cast<int64_t>(x.size()); }
WEFT_RPC_INLINE(Size);

inline Floats MakeFloats(int64_t elements) { return Floats(elements, 1.5f); }
WEFT_RPC_INLINE(MakeFloats);

inline telemetry::Telemetry::Options Silently() {
  telemetry::Telemetry::Options options;
  options.log_level = telemetry::Level::kOff;
  return options;
}

inline std::unique_ptr<Agent> MakeAgent(
    transport::Transport& transport, Directory& directory, uint32_t id,
    Executor* executor = nullptr, telemetry::Telemetry* telemetry = nullptr,
    const Limits& limits = {}) {
  AgentOptions options;
  options.limits = limits;
  options.job = "job";
  options.name = absl::StrCat("w", id);
  options.key = WorkerKey{id, 1};
  options.transport = &transport;
  options.directory = &directory;
  options.executor = executor;
  options.telemetry = telemetry;
  auto agent = Agent::Create(options);
  WEFT_CHECK(agent.ok()) << agent.status().ToString();
  return *std::move(agent);
}

// One that was let in properly and then writes what a test says.
class Hostile final : public transport::ConnectionObserver {
 public:
  void OnMessage(Slices message) override {
    EXPECT_THAT(ReadBatch(message, Instant(),
                          [this](Frame frame) {
                            frames.push_back(std::move(frame));
                            return absl::OkStatus();
                          }),
                ::weft::testing::IsOk());
  }
  void OnWritten() override {}
  void OnClosed(absl::Status status) override { closed = status; }

  std::vector<Frame> frames;
  absl::Status closed;
};

// The first message of w0 to w1.
inline Hello Introduction() {
  Hello hello;
  hello.job = "job";
  hello.name = "w0";
  hello.from = {0, 1};
  hello.to = {1, 1};
  hello.generation = 1;
  return hello;
}

// An agent and the hostile end of its connection.
class HostilePeerTest : public ::testing::Test {
 protected:
  HostilePeerTest(const std::string& agent, const std::string& peer)
      : at_agent_(network_.MakeTransport(agent), depot_),
        at_peer_(network_.MakeTransport(peer), depot_) {}

  template <typename... Frames>
  void Write(const Frames&... frames) {
    BatchWriter batch;
    (batch.Add(frames), ...);
    Send(std::move(batch));
  }
  void Send(BatchWriter&& batch) {
    EXPECT_NE(connection_->Write(std::move(batch).Finish()),
              transport::Connection::Written::kRefused);
    Settle();
  }
  void Settle() {
    Promise<void> never(at_peer_.driver());
    (void)never.future().Wait(absl::Milliseconds(100));
  }

  telemetry::Telemetry telemetry_{Silently()};
  transport::MemoryDepot depot_;
  sim::Simulator simulator_{1};
  transport::SimulatedNetwork network_{simulator_,
                                       transport::SimulatedNetwork::Options()};
  FixedDirectory directory_;
  InlineExecutor executor_;
  transport::SharingTransport at_agent_;
  transport::SharingTransport at_peer_;
  const std::shared_ptr<Hostile> peer_ = std::make_shared<Hostile>();
  std::unique_ptr<transport::Connection> connection_;
  std::unique_ptr<Agent> agent_;
};

inline Chunk ChunkOf(uint64_t id, Slices data) {
  Chunk chunk;
  chunk.id = id;
  chunk.data = std::move(data);
  return chunk;
}

// Bytes of bodies that are being assembled or kept.
inline int64_t UsedBytes() {
  return memory::HostAllocator().stats().used_bytes;
}

// Has a message in flight until the test says that it was written.
class SlowConnection final : public transport::Connection {
 public:
  Written Write(Slices message) override {
    bytes = TotalSize(message);
    frames.clear();
    EXPECT_THAT(ReadBatch(message, Instant(),
                          [this](Frame frame) {
                            frames.push_back(std::move(frame));
                            return absl::OkStatus();
                          }),
                ::weft::testing::IsOk());
    return Written::kUnderWay;
  }
  void Close(absl::Status status) override { closed = std::move(status); }

  absl::Status closed;
  std::vector<Frame> frames;  // of the last message
  size_t bytes = 0;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_LINK_FIXTURE_H_
