// Calls and streams within a host whose other end is killed, stopped, slow or
// no longer interested. What is promised is quoted from docs/rpc.md and
// docs/shared_memory.md.

#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/session/outcome.h"
#include "weft/tests/outside/local/at_socket.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::Process;
using ::weft::testing::StatusIs;

// Descriptors of a worker that asks whether it can be reached.
constexpr int kOwnProbes = 6;

class LocalCalls : public AtSocket {};

// "killed peers ... leave neither memory nor descriptors".
TEST_F(LocalCalls, CallerThatIsKilledAmidLargeCallsLeavesNothing) {
  Serve();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOk());
  const int descriptors = Descriptors() + kOwnProbes;
  const std::string call = absl::StrCat("--call=", address(), ":", 100 << 20);
  int64_t after_first = 0;
  for (int i = 0; i < 5; ++i) {
    const auto caller = Start({call});
    if (i == 0) {
      EXPECT_THAT(caller->WaitForOutput("called", kLong), IsOk());
    }
    absl::SleepFor(absl::Milliseconds(60 * i));
    caller->Signal(SIGKILL);
    EXPECT_THAT(caller->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
    EXPECT_THAT(rpc::Call(client->To(kLong), Turned, "abc"),
                IsOkAndHolds("cba"));
    if (i == 0) after_first = MiB();
  }
  EXPECT_TRUE(Becomes([&] { return Descriptors() <= descriptors; }))
      << Descriptors() << " of " << descriptors;
  EXPECT_TRUE(Becomes([&] { return MiB() < after_first + 256; }))
      << MiB() << " MiB, after the first " << after_first;
  ExpectServes();
}

// "the worker ... was declared gone": a client has no coordinator, and its
// calls end as it cannot reach it. Outcome unknown, "if it was sent".
TEST_F(LocalCalls, WorkerThatIsKilledAmidCallsEndsThem) {
  Serve();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  std::vector<Future<int64_t>> held;
  for (int i = 0; i < 65; ++i) {
    held.push_back(
        rpc::CallAsync(client->To(kLong), Held, Path(absl::StrCat("held", i))));
  }
  for (int i = 0; i < 65; ++i) {
    ASSERT_TRUE(
        Becomes([&] { return IsThere(absl::StrCat("held", i, ".entered")); }));
  }
  // So that it cannot answer this one before it is killed.
  StopWorker();
  auto large =
      rpc::CallAsync(client->To(kLong), Turned, std::string(100 << 20, 'x'));
  worker_->Signal(SIGKILL);
  const absl::Time killed = absl::Now();
  for (auto& call : held) {
    const auto ended = call.Wait(kLong);
    EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(rpc::OutcomeUnknown(ended.status())) << ended.status();
  }
  EXPECT_THAT(large.Wait(kLong), StatusIs(absl::StatusCode::kUnavailable));
  // give_up_after is 10 s.
  EXPECT_LT(absl::Now() - killed, absl::Seconds(20));
  EXPECT_FALSE(rpc::Call(client->To(absl::Seconds(1)), Turned, "abc").ok());
}

// "the deadline passes, by the caller's clock"; "cancelled by the caller: the
// reason given"; context.cancel() fires.
TEST_F(LocalCalls, DeadlinesAndCancellationReachTheFunction) {
  Serve();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const absl::Time began = absl::Now();
  // Enough for the function to be entered.
  EXPECT_THAT(rpc::Call(client->To(absl::Seconds(5)), Held, Path("late")),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(absl::Now() - began, absl::Seconds(30));
  EXPECT_TRUE(Becomes([&] { return IsThere("late.cancelled"); }));
  auto unwanted = rpc::CallAsync(client->To(kLong), Held, Path("unwanted"));
  ASSERT_TRUE(Becomes([&] { return IsThere("unwanted.entered"); }));
  unwanted.Cancel(absl::CancelledError("no longer needed"));
  EXPECT_THAT(unwanted.Wait(kLong),
              StatusIs(absl::StatusCode::kCancelled, "no longer needed"));
  EXPECT_TRUE(Becomes([&] { return IsThere("unwanted.cancelled"); }));
  // With no time at all the function never runs.
  EXPECT_THAT(rpc::Call(client->To(absl::ZeroDuration()), Held, Path("never")),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // Large ones that are given up on their way.
  for (int i = 0; i < 10; ++i) {
    auto large =
        rpc::CallAsync(client->To(kLong), Turned, std::string(50 << 20, 'x'));
    absl::SleepFor(absl::Milliseconds(6 * i));
    large.Cancel();
    const auto ended = large.Wait(kLong);
    EXPECT_TRUE(ended.ok() || absl::IsCancelled(ended.status())) << i;
  }
  EXPECT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOkAndHolds("cba"));
  EXPECT_FALSE(IsThere("never.entered"));
}

// "A function's `Write` waits when its reader is about three windows behind (a
// window is 1 MiB or 1024 values); a caller's `Write` waits likewise."
TEST_F(LocalCalls, StreamsWaitForASlowReader) {
  Serve();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const int64_t before = MiB();
  constexpr int64_t kMany = 2000, kBytes = 1 << 20;
  auto flow = rpc::OpenStream(client->To(kLong), Flow, kMany, kBytes);
  ASSERT_THAT(flow.Next(), IsOk());
  // Nobody reads: what is written comes to rest.
  int64_t flowed = -1;
  EXPECT_TRUE(Becomes([&] {
    const auto now = rpc::Call(client->To(kLong), Flowed);
    EXPECT_THAT(now, IsOk());
    const bool rests = now.ok() && *now == flowed;
    if (now.ok()) flowed = *now;
    absl::SleepFor(absl::Milliseconds(300));
    return rests;
  }));
  EXPECT_LE(flowed, 10);
  EXPECT_LT(MiB(), before + 64);
  for (int i = 0; i < 100; ++i) ASSERT_THAT(flow.Next(), IsOk()) << i;
  flow.Cancel();
  EXPECT_THAT(flow.Next(), StatusIs(absl::StatusCode::kCancelled));
  // The other way round.
  auto drink = rpc::OpenStream(client->To(kLong), Drink, int64_t{20});
  int64_t sum = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(drink.Write(std::string(kBytes, 'd')), IsOk());
    sum += kBytes;
    EXPECT_LT(MiB(), before + 64);
  }
  EXPECT_THAT(drink.Finish(), IsOkAndHolds(sum));
}

// "With a deadline": a worker that stands still keeps nobody for longer, and is
// found by the connection's keepalive ("asks for a sign of life after 10 s, and
// closes after 5 s without one").
TEST_F(LocalCalls, WorkerThatStandsStillHoldsNobodyBeyondTheirDeadlines) {
  Serve();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOk());
  StopWorker();
  absl::Time began = absl::Now();
  EXPECT_THAT(rpc::Call(client->To(absl::Seconds(1)), Turned, "abc"),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // More than its socket holds.
  EXPECT_THAT(rpc::Call(client->To(absl::Seconds(1)), Turned,
                        std::string(50 << 20, 'x')),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  rpc::ClientOptions soon;
  soon.connect_timeout = absl::Seconds(1);
  EXPECT_FALSE(rpc::Client::Connect(address(), soon).ok());
  EXPECT_LT(absl::Now() - began, absl::Seconds(12));
  // 15 s from when it was stopped.
  absl::SleepFor(began + absl::Seconds(15) - absl::Now());
  worker_->Signal(SIGCONT);
  EXPECT_TRUE(Becomes(
      [&] { return rpc::Call(client->To(kLong), Turned, "abc").ok(); }));
  ExpectServes();
}

// As many as a job of 65 and of 200 would make.
TEST_F(LocalCalls, SixtyFiveAndTwoHundredClientsAreServedOrToldWhy) {
  for (const int many : {65, 200}) {
    Serve({absl::StrCat("--limits=max_connections=", 2 * many + 100,
                        ",max_connections_per_address=", 2 * many + 100)});
    ExpectServes();
    const int before = Descriptors() + kOwnProbes;
    {
      std::vector<std::unique_ptr<rpc::Client>> clients;
      for (int i = 0; i < many; ++i) {
        clients.push_back(Connect());
        ASSERT_NE(clients.back(), nullptr) << i;
      }
      std::vector<Future<std::string>> answers;
      for (const auto& client : clients) {
        answers.push_back(rpc::CallAsync(client->To(kLong), Turned,
                                         std::string(10'000, 'x')));
      }
      for (auto& answer : answers) EXPECT_THAT(answer.Wait(kLong), IsOk());
    }
    EXPECT_TRUE(Becomes([&] { return Descriptors() <= before; }));
    worker_ = nullptr;
  }
}

}  // namespace
}  // namespace weft::outside
