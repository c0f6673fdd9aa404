// Streams over a bad network.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/rpc/testing/stream_test_functions.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

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

// ------------------------------------------------------ over a bad network

// Reads a stream over connections that break; the values, and how many broke.
std::pair<std::vector<int64_t>, int64_t> ReadOverABadNetwork(uint64_t seed) {
  SimulatedRanks::Options options;
  options.seed = seed;
  options.network.breaks = 0.1;
  SimulatedRanks ranks(2, options);
  auto values = ReadAll(OpenStream(ranks[0].To("w1"), CountAsync, 5000));
  EXPECT_THAT(values, IsOk()) << "seed " << seed;
  return {values.ok() ? *std::move(values) : std::vector<int64_t>(),
          ranks.network().broken()};
}

TEST(SimulatedStream, EachValueIsReadOnceAndInOrderUnderAnyFaults) {
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

// What a function has read of each upload, and its outcome.
struct Received64 {
  std::map<int64_t, std::vector<int64_t>> values;
};
int64_t Collect(CallContext& context, Reader<int64_t> in, int64_t which) {
  auto& values = context.Local<Received64>()->values[which];
  for (auto x = in.Next(); x.ok() && x->has_value(); x = in.Next()) {
    values.push_back(**x);
  }
  return static_cast<int64_t>(values.size());
}
WEFT_RPC_STREAM(Collect);

absl::Status Mirror(CallContext& context, Reader<int64_t> in,
                    Writer<int64_t> out, int64_t which) {
  auto& values = context.Local<Received64>()->values[which];
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
    values.push_back(*x);
    WEFT_RETURN_IF_ERROR(out.Write(*x));
  }
}
WEFT_RPC_STREAM(Mirror);

absl::Status WriteLate(CallContext& context, Writer<int64_t> out) {
  WEFT_RETURN_IF_ERROR(out.Write(6));
  context.Local<SimulatedAgents>()->Sleep(absl::Seconds(20));
  return out.Write(7);
}
WEFT_RPC_STREAM(WriteLate);

absl::StatusOr<int64_t> EndLate(CallContext& context, Reader<int64_t> in) {
  context.Local<SimulatedAgents>()->Sleep(absl::Seconds(40));
  WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
  return x.value_or(-1);
}
WEFT_RPC_STREAM(EndLate);

TEST(SimulatedStream, AShorterDefaultIsNotThatOfTheOpenOnes) {  // F47
  SimulatedAgents agents(1, SimulatedAgents::Options());
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&agents); });
  agents.Run(1, [&](int) -> absl::Status {
    const Target w1 = agents[0].To("w1");
    auto reader = OpenStream(w1, WriteLate);
    auto upload = OpenStream(w1, EndLate);
    EXPECT_THAT(agents[0].SetDefaultTimeout(absl::Seconds(1)), IsOk());
    EXPECT_THAT(reader.Next(), IsOkAndHolds(6));
    EXPECT_THAT(reader.Next(), IsOkAndHolds(7));
    EXPECT_THAT(reader.Next(), IsOkAndHolds(std::nullopt));
    EXPECT_THAT(upload.Write(8), IsOk());
    EXPECT_THAT(upload.Finish(), IsOkAndHolds(8));
    Reader<int64_t> later = OpenStream(w1, WriteLate);
    EXPECT_THAT(later.Next(), IsOkAndHolds(6));
    EXPECT_THAT(later.Next(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
    return absl::OkStatus();
  });
}

TEST(SimulatedStream, TheDeadlineEndsBothSides) {
  Progress progress;
  SimulatedAgents agents(1, SimulatedAgents::Options());
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&progress); });
  const auto is_late =
      StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline");
  agents.Run(1, [&](int) -> absl::Status {
    const Target brief = agents[0].To("w1", absl::Seconds(1));
    auto reader = OpenStream(brief, Count, int64_t{1} << 40, 1000);
    EXPECT_THAT(reader.Next(), IsOk());
    agents.Sleep(absl::Seconds(2));
    absl::Status end;
    while (end.ok()) end = reader.Next().status();
    EXPECT_THAT(end, is_late);
    EXPECT_EQ(progress.ended, 1);
    auto upload = OpenStream(brief, SumOf, -1);
    EXPECT_THAT(upload.Write("0"), IsOk());
    agents.Sleep(absl::Seconds(2));
    EXPECT_THAT(upload.Write("1"), is_late);
    EXPECT_THAT(upload.Finish(), is_late);
    EXPECT_EQ(progress.ended, 2);
    EXPECT_THAT(agents[1].AwaitIdle(absl::Seconds(1)), IsOk());
    return absl::OkStatus();
  });
}

struct StreamEnds {
  int64_t ok = 0;
  int64_t failed = 0;
};

// 0, 1, 2, ...: none twice, none left out.
bool CountsUp(const std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Uploads to workers that crash, and streams both ways. Returns what is wrong.
std::string RunStreams(uint64_t seed, StreamEnds* ends) {
  constexpr int64_t kValues = 40;
  SimulatedAgents::Options options;
  options.workers = 4;
  options.faults = SimulatedAgents::AllFaults(0.02);
  SimulatedAgents agents(seed, options);
  Received64 received;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&received); });
  std::string wrong;
  agents.Run(2, [&](int worker) -> absl::Status {
    for (int64_t n = 0; n < 2; ++n) {
      const int64_t which = 10 * worker + n;
      const Target to = agents[worker].To(absl::StrCat("w", 2 + n));
      auto upload = OpenStream(to, Collect, which);
      for (int64_t i = 0; i < kValues; ++i) {
        if (!upload.Write(i).ok()) break;
        if (i % 8 == 7) agents.Sleep(absl::Milliseconds(3));
      }
      const auto count = upload.Finish();
      count.ok() ? ++ends->ok : ++ends->failed;
      if (count.ok() && *count != kValues) {
        absl::StrAppend(&wrong, "upload ", which, ": ", *count, " values\n");
      }
      auto duplex = OpenStream(to, Mirror, which + 100);
      std::vector<int64_t> back;
      absl::StatusOr<std::optional<int64_t>> next = std::nullopt;
      for (int64_t i = 0; i <= kValues; ++i) {
        if (i == kValues) {
          duplex.EndWriting();
        } else if (!duplex.Write(i).ok()) {
          break;
        }
        if (i % 4 == 3) {
          next = duplex.Next();
          if (!next.ok() || !next->has_value()) break;
          back.push_back(**next);
        }
      }
      while (next.ok()) {
        next = duplex.Next();
        if (next.ok() && !next->has_value()) break;
        if (next.ok()) back.push_back(**next);
      }
      next.ok() ? ++ends->ok : ++ends->failed;
      if (!CountsUp(back) || (next.ok() && back.size() != kValues)) {
        absl::StrAppend(&wrong, "duplex ", which, ": ", back.size(),
                        " values, ", next.status().ToString(), "\n");
      }
    }
    return absl::OkStatus();
  });
  for (const auto& [which, values] : received.values) {
    if (!CountsUp(values)) absl::StrAppend(&wrong, which, " out of order\n");
  }
  return wrong;
}

TEST(SimulatedStream, WritesAreReadOnceInOrderUnderFaults) {
  StreamEnds ends;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(RunStreams(seed, &ends), "") << "seed " << seed;
  }
  EXPECT_GT(ends.ok, 300);
  EXPECT_GT(ends.failed, 30);
}

}  // namespace
}  // namespace weft::rpc
