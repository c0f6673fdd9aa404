#include "weft/rpc/stream.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/executor.h"
#include "weft/base/parker.h"
#include "weft/rpc/agent_fixture.h"
#include "weft/rpc/simulated_transport.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// What the functions share with a test.
struct Progress {
  std::atomic<int64_t> written{0};
  std::atomic<int> ended{0};
  Parker end;
  Mutex mu;
  absl::Status why ABSL_GUARDED_BY(mu);

  absl::Status End(absl::Status status) {
    {
      MutexLock lock(mu);
      why = status;
    }
    ++ended;
    end.Unpark();
    return status;
  }
};

// 0, 1, ..., n - 1, of `bytes` each.
absl::Status Count(CallContext& context, Writer<std::string> out, int64_t n,
                   int64_t bytes) {
  auto* progress = context.Local<Progress>();
  for (int64_t i = 0; i < n; ++i) {
    std::string value = absl::StrCat(i);
    value.resize(std::max<size_t>(value.size(), bytes), '.');
    const absl::Status written = out.Write(std::move(value));
    if (!written.ok()) return progress->End(written);
    ++progress->written;
  }
  return progress->End(absl::OkStatus());
}
WEFT_RPC_STREAM(Count);

absl::Status ThreeThenFail(Writer<int64_t> out) {
  for (const int64_t i : {1, 2, 3}) WEFT_RETURN_IF_ERROR(out.Write(i));
  return absl::DataLossError("the rest is missing");
}
WEFT_RPC_STREAM(ThreeThenFail);

void Nothing(Writer<Tensor>) {}
WEFT_RPC_STREAM(Nothing);

Tensor Row(int64_t i) { return Tensor::Full({1000}, static_cast<double>(i)); }

absl::Status Rows(Writer<Tensor> out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) WEFT_RETURN_IF_ERROR(out.Write(Row(i)));
  return absl::OkStatus();
}
WEFT_RPC_STREAM(Rows);

// Holds no thread: writes on when there is room.
struct Counting {
  Writer<int64_t> out;
  int64_t n;
  int64_t next = 0;
  Promise<void> done;

  static void Run(const std::shared_ptr<Counting>& self) {
    while (self->next < self->n) {
      const Future<void> room = self->out.WriteAsync(self->next++);
      if (room.IsReady()) continue;  // also once nobody reads any more
      return room.OnReady([self](const absl::Status& status) {
        if (status.ok()) return Run(self);
        self->done.Set(status);
      });
    }
    self->done.Set(absl::OkStatus());
  }
};
Future<void> CountAsync(Writer<int64_t> out, int64_t n) {
  auto counting = std::make_shared<Counting>(
      Counting{std::move(out), n, 0, Promise<void>()});
  Future<void> done = counting->done.future();
  Counting::Run(counting);
  return done;
}
WEFT_RPC_STREAM(CountAsync);

int64_t Ping() { return 1; }
WEFT_RPC(Ping);

template <typename T>
absl::StatusOr<std::vector<T>> ReadAll(Reader<T> reader) {
  std::vector<T> all;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(std::optional<T> value, reader.Next());
    if (!value.has_value()) return all;
    all.push_back(*std::move(value));
  }
}

TEST(Stream, ValuesComeInOrderAndThenTheEnd) {
  Ranks ranks(2);
  Progress progress;
  ranks[1].SetLocal(&progress);
  const auto all = ReadAll(OpenStream(ranks[0].To("w1"), Count, 5000, 3));
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), 5000u);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(std::stoi((*all)[i]), i);
  }
}

TEST(Stream, AnEmptyOneEnds) {
  Ranks ranks(2);
  Reader<Tensor> reader = OpenStream(ranks[0].To("w1"), Nothing);
  EXPECT_EQ(*reader.Next(), std::nullopt);
  EXPECT_EQ(*reader.Next(), std::nullopt);  // and stays so
}

TEST(Stream, TensorsTravel) {
  Ranks ranks(2);
  const auto rows = ReadAll(OpenStream(ranks[0].To("w1"), Rows, 600));
  ASSERT_THAT(rows, IsOk());
  ASSERT_EQ(rows->size(), 600u);  // more than two windows
  EXPECT_EQ((*rows)[599].span<float>()[999], 599);
}

TEST(Stream, WorksWithinOneWorker) {
  Ranks ranks(1);
  const auto rows = ReadAll(OpenStream(ranks[0].To("w0"), Rows, 3));
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->size(), 3u);
}

TEST(Stream, AnErrorComesAfterTheValuesBeforeIt) {
  Ranks ranks(2);
  Reader<int64_t> reader = OpenStream(ranks[0].To("w1"), ThreeThenFail);
  for (const int64_t i : {1, 2, 3}) EXPECT_EQ(**reader.Next(), i);
  EXPECT_THAT(reader.Next(),
              StatusIs(absl::StatusCode::kDataLoss, "w1: the rest is missing"));
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss, ""));
}

TEST(Stream, ASlowReaderStopsTheWriter) {
  Ranks ranks(2);
  Progress progress;
  ranks[1].SetLocal(&progress);
  constexpr int64_t kBytes = 100000;
  Reader<std::string> reader =
      OpenStream(ranks[0].To("w1"), Count, 1000, kBytes);
  ASSERT_THAT(reader.Next(), IsOk());
  // As many calls as it likes go by; the writer is three windows ahead.
  for (int i = 0; i < 200; ++i)
    ASSERT_THAT(Call(ranks[0].To("w1"), Ping), IsOk());
  const int64_t window = StreamBuffer::kWindowBytes / kBytes + 1;
  EXPECT_LE(progress.written, 3 * window);
  reader.Cancel();
  progress.end.Park();
}

TEST(Stream, LettingTheReaderGoCancelsTheFunction) {
  Ranks ranks(2);
  Progress progress;
  ranks[1].SetLocal(&progress);
  {
    Reader<std::string> reader =
        OpenStream(ranks[0].To("w1"), Count, int64_t{1} << 40, 1000);
    ASSERT_THAT(reader.Next(), IsOk());
  }
  progress.end.Park();
  MutexLock lock(progress.mu);
  EXPECT_THAT(progress.why, StatusIs(absl::StatusCode::kCancelled, ""));
}

TEST(Stream, TheDeadlineEndsBothSides) {
  Ranks ranks(2);
  Progress progress;
  ranks[1].SetLocal(&progress);
  Reader<std::string> reader = OpenStream(
      ranks[0].To("w1", absl::Milliseconds(500)), Count, int64_t{1} << 40, 9);
  absl::Status status;
  while (status.ok()) status = reader.Next().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  progress.end.Park();
}

TEST(Stream, WhatCannotBeOpenedSaysWhy) {
  Ranks ranks(2);
  EXPECT_THAT(OpenStream(ranks[0].To("w9"), Nothing).Next(),
              StatusIs(absl::StatusCode::kNotFound, "w9"));
  EXPECT_THAT(OpenStream(ranks[0].To("w1").InOrder(), Nothing).Next(),
              StatusIs(absl::StatusCode::kInvalidArgument, "InOrder"));
  Registry empty;
  RanksOptions options;
  options.registries = {nullptr, &empty};
  Ranks other(2, options);
  EXPECT_THAT(OpenStream(other[0].To("w1"), Nothing).Next(),
              StatusIs(absl::StatusCode::kUnimplemented, "Nothing"));
}

TEST(Stream, ALostPeerEndsIt) {
  Ranks ranks(2);
  Progress progress;
  ranks[1].SetLocal(&progress);
  Reader<std::string> reader =
      OpenStream(ranks[0].To("w1"), Count, int64_t{1} << 40, 1000);
  ASSERT_THAT(reader.Next(), IsOk());
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  absl::Status status;
  while (status.ok()) status = reader.Next().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "its process has ended"));
  ranks[1].PeerGone(WorkerKey{0, 1}, "likewise");
  progress.end.Park();
}

TEST(Stream, ManyAtOnceNeedNoCreditForTheirPulls) {
  RanksOptions options;
  options.limits.calls = 8;
  Ranks ranks(2, options);
  std::vector<Reader<Tensor>> readers;
  for (int i = 0; i < 8; ++i) {  // all the credit there is
    readers.push_back(OpenStream(ranks[0].To("w1"), Rows, 600));
  }
  for (Reader<Tensor>& reader : readers) {
    const auto rows = ReadAll(std::move(reader));
    ASSERT_THAT(rows, IsOk());
    EXPECT_EQ(rows->size(), 600u);
  }
}

TEST(Stream, AnAgentThatEndsWaitsForItsFunctions) {
  Progress progress;
  {
    Ranks ranks(2);
    ranks[1].SetLocal(&progress);
    Reader<std::string> reader =
        OpenStream(ranks[0].To("w1"), Count, int64_t{1} << 40, 1000);
    ASSERT_THAT(reader.Next(), IsOk());
  }
  EXPECT_EQ(progress.ended, 1);
}

// ------------------------------------------------------ over a bad network

// Reads a stream over connections that break; the values, and how many broke.
std::pair<std::vector<int64_t>, int64_t> ReadOverABadNetwork(uint64_t seed) {
  sim::Simulator simulator(seed);
  SimulatedNetwork::Options network_options;
  network_options.breaks = 0.1;
  SimulatedNetwork network(simulator, network_options);
  FixedDirectory directory;
  InlineExecutor executor;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Agent>> agents;
  for (uint32_t i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("w", i);
    directory.Put(Worker{name, WorkerKey{i, 1}, name});
    transports.push_back(network.MakeTransport(name));
    AgentOptions options;
    options.name = name;
    options.key = WorkerKey{i, 1};
    options.transport = transports.back().get();
    options.directory = &directory;
    options.executor = &executor;
    agents.push_back(*Agent::Create(options));
  }
  auto values = ReadAll(OpenStream(agents[0]->To("w1"), CountAsync, 5000));
  EXPECT_THAT(values, IsOk()) << "seed " << seed;
  const int64_t broken = network.broken();
  agents.clear();
  return {values.ok() ? *std::move(values) : std::vector<int64_t>(), broken};
}

TEST(SimulatedStream, EachValueIsReadOnceAndInOrderWhateverBreaks) {
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < 5000; ++i) wanted.push_back(i);
  int64_t broken = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const auto [values, breaks] = ReadOverABadNetwork(seed);
    ASSERT_EQ(values, wanted) << "seed " << seed;
    broken += breaks;
  }
  EXPECT_GT(broken, 50);
}

}  // namespace
}  // namespace weft::rpc
