// Pushes under way: how many, how they end, and what becomes of their
// gradients.

#include <atomic>
#include <climits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/tests/outside/tables/cluster.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Future<ExchangeReply> HeldExchange(rpc::CallContext& context,
                                   v1::Request request,
                                   const std::optional<Tensor>& push_keys,
                                   const std::optional<Tensor>& push_values,
                                   const std::optional<Tensor>& pull_keys) {
  const bool is_push = request.push();
  if (is_push) {
    ++held.pushes;
    const int now = ++held.under_way;
    for (int most = held.most; now > most;) {
      if (held.most.compare_exchange_weak(most, now)) break;
    }
  }
  const Future<ExchangeReply> reply = ps::Exchange(
      context, std::move(request), push_keys, push_values, pull_keys);
  auto [answer, answered] = MakePromise<ExchangeReply>();
  // A copy: a call that is given up must not give up the gate of the others.
  held.opened.OnReady([reply, is_push,
                       answer = std::make_shared<Promise<ExchangeReply>>(
                           std::move(answer))](const absl::Status&) {
    if (is_push) --held.under_way;
    reply.OnReady(
        [answer](const Result<ExchangeReply>& result) { answer->Set(result); });
  });
  return answered;
}

const rpc::Registry& HeldFunctions() {
  static const auto* const kFunctions = [] {
    auto* registry = new rpc::Registry();
    using rpc::RunsOn;
    using rpc::internal::Describe;
    registry->Add(
        Describe<&OpenTable>(RunsOn::kExecutor, "weft::ps::OpenTable"));
    registry->Add(
        Describe<&Initialize>(RunsOn::kExecutor, "weft::ps::Initialize"));
    registry->Add(
        Describe<&ps::Describe>(RunsOn::kExecutor, "weft::ps::Describe"));
    registry->Add(
        Describe<&HeldExchange>(RunsOn::kExecutor, "weft::ps::Exchange"));
    return registry;
  }();
  return *kFunctions;
}

// ---- Pushes under way.

class ManyPushes : public ::testing::Test {
 protected:
  ManyPushes() : cluster_(1, 2, "", &HeldFunctions()) {}
  Future<void> PushOne(SparseTable& table) {
    return table.Push(keys_, Tensor::Full({20, 2}, -1));
  }
  std::vector<float> Values() {
    auto table = cluster_.MakeClient(1)->Sparse(Sparse(v1::TableSpec::ASYNC));
    return (*table)->Pull(keys_).Wait(kLong)->ToVector<float>();
  }

  Cluster cluster_;
  const Tensor keys_ = Tensor::Arange(20, DType::kI64);
};

TEST_F(ManyPushes, TwoHundredKeepToSixtyFourUnderWayAndAreAllApplied) {
  const auto client = cluster_.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::atomic<int> made{0};
  std::thread trainer([&] {
    std::vector<Future<void>> pushes;
    for (int i = 0; i < 200; ++i) {
      pushes.push_back(PushOne(**table));
      ++made;
    }
    EXPECT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
  });
  EXPECT_TRUE(Becomes([] { return held.pushes == 64; }));
  EXPECT_TRUE(Becomes([&] { return made == 64; }));
  // Others go on meanwhile, and the 65th has not been sent.
  ASSERT_THAT(cluster_.MakeClient(1)->Describe(), IsOk());
  EXPECT_EQ(held.pushes, 64);
  EXPECT_EQ(made, 64);
  held.Release();
  trainer.join();
  EXPECT_LE(held.most, 64);
  EXPECT_THAT(Values(), Each(200.0f));
}

TEST_F(ManyPushes, SixtyFifthInAnInlineScopeIsRefusedAndSaysSo) {
  const auto client = cluster_.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 64; ++i) pushes.push_back(PushOne(**table));
  const Future<void> refused = [&] {
    const InlineScope scope;
    return PushOne(**table);
  }();
  EXPECT_TRUE(refused.IsReady());
  EXPECT_THAT(refused.Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  held.Release();
  EXPECT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
  EXPECT_THAT(Values(), Each(64.0f));
}

TEST_F(ManyPushes, SixtyFifthThatWaitsInVainEndsByItsTimeout) {
  // Enough for the others to arrive.
  const auto client = cluster_.MakeClient(0, absl::Seconds(5));
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 65; ++i) pushes.push_back(PushOne(**table));
  EXPECT_THAT(pushes.back().Wait(kLong),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (const auto& push : pushes) {
    EXPECT_THAT(push.Wait(kLong),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_THAT(PushOne(**table).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(held.pushes, 64);
  held.Release();
  table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT(PushOne(**table).Wait(kLong), IsOk());
  EXPECT_THAT(Values(), Each(65.0f));
}

TEST_F(ManyPushes, TableDroppedWithPushesUnderWayEndsThemAll) {
  std::vector<Future<void>> pushes;
  {
    const auto client = cluster_.MakeClient(0);
    auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
    ASSERT_THAT(table, IsOk());
    held.Hold();
    for (int i = 0; i < 64; ++i) pushes.push_back(PushOne(**table));
    EXPECT_TRUE(Becomes([] { return held.pushes == 64; }));
  }
  held.Release();
  for (const auto& push : pushes) {
    push.Wait(kLong).IgnoreError();
    EXPECT_TRUE(push.IsReady());
  }
  EXPECT_THAT(Values(), Each(64.0f));
}

TEST_F(ManyPushes, ServerThatDiesEndsThoseUnderWayAndTheOneThatWaits) {
  const auto client = cluster_.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 64; ++i) pushes.push_back(PushOne(**table));
  EXPECT_TRUE(Becomes([] { return held.pushes == 64; }));
  std::atomic<bool> ended{false};
  std::thread late([&] {
    EXPECT_THAT(PushOne(**table).Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "ps0"));
    ended = true;
  });
  // The server's agent must not wait for what this test holds.
  std::thread killer([&] { cluster_.KillServer(0); });
  for (const auto& push : pushes) {
    EXPECT_THAT(push.Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "ps0"));
  }
  late.join();
  held.Release();
  killer.join();
}

// The gradient is the caller's again once Push has returned.
TEST_F(ManyPushes, GradientMayBeWrittenToOncePushHasReturned) {
  v1::TableSpec spec = Dense(v1::TableSpec::ASYNC, 0, 5000);
  spec.set_name("d");
  const auto client = cluster_.MakeClient(0);
  auto table = client->Dense(spec);
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Zeros({5000})).Wait(kLong), IsOk());
  const Tensor gradient = Tensor::Ones({5000});
  const Tensor all = Tensor::Ones({2, 5000});
  std::vector<Future<void>> pushes;
  pushes.push_back((*table)->Push(gradient));
  pushes.push_back((*table)->Push(all.Select(0, 1)));
  gradient.Fill(100);
  all.Fill(100);
  EXPECT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
  EXPECT_THAT((*table)->Pull().Wait(kLong)->ToVector<float>(), Each(-2.0f));
}

}  // namespace
}  // namespace weft::ps
