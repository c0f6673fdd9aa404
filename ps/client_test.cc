#include "weft/ps/client.h"

#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/parker.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

TEST(Client, DenseVectorIsPulledInItsOrder) {
  constexpr int64_t kElements = 4 * kMinSliceElements + 5;
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Dense(DenseSpec(v1::TableSpec::ASYNC, 0, kElements));
  ASSERT_THAT(table, IsOk());
  const Tensor values = Tensor::Arange(kElements, DType::kI64).To(DType::kF32);
  ASSERT_THAT((*table)->Initialize(values).Wait(kTimeout), IsOk());
  const auto pulled = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(pulled, IsOk());
  EXPECT_EQ(pulled->ToVector<float>(), values.ToVector<float>());
}

// The order of the last keys is kept for the next call (TableClient::Cut), and
// so is where the server found their rows.
TEST(Client, KeysThatDifferInTheLastOneOnlyAreOthers) {
  constexpr int64_t kKeys = 3000;
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
  ASSERT_THAT(table, IsOk());
  const auto keys_to = [](int64_t last) {
    std::vector<int64_t> keys(kKeys);
    std::iota(keys.begin(), keys.end(), 0);
    keys.back() = last;
    return Tensor::FromVector(keys);
  };
  const auto last_row = [&](int64_t last) {
    const auto rows = (*table)->Pull(keys_to(last)).Wait(kTimeout);
    EXPECT_THAT(rows, IsOk());
    return rows->ToVector<float>().back();
  };
  const auto push = [&](int64_t last, float gradient) {
    const Tensor gradients = Tensor::Full({kKeys, 2}, gradient);
    EXPECT_THAT((*table)->Push(keys_to(last), gradients).Wait(kTimeout),
                IsOk());
  };
  push(7000, -1);
  push(8000, -4);
  EXPECT_EQ(last_row(8000), 4);
  EXPECT_EQ(last_row(7000), 1);
  EXPECT_EQ(last_row(9000), 0);
}

// Many keys travel in pieces (Pieces of client.cc). Some repeat.
TEST(Client, PushesAndPullsInPiecesAreOneEach) {
  constexpr int64_t kKeys = 50000;
  for (const int servers : {1, 3}) {
    for (const bool repeat : {false, true}) {
      TestJob job(servers, /*trainers=*/1);
      const auto client = job.MakeClient(0);
      v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
      spec.set_partitions(256);
      auto table = client->Sparse(spec);
      ASSERT_THAT(table, IsOk());
      std::vector<int64_t> keys(kKeys);
      std::vector<float> gradients(2 * kKeys), wanted(2 * kKeys);
      std::unordered_map<int64_t, float> sums;
      for (int64_t i = 0; i < kKeys; ++i) {
        keys[i] = repeat ? i * 31 % 20011 : i;
        const float gradient = static_cast<float>(i % 7);
        gradients[2 * i] = gradients[2 * i + 1] = gradient;
        sums[keys[i]] -= gradient;
      }
      for (int64_t i = 0; i < kKeys; ++i) {
        wanted[2 * i] = wanted[2 * i + 1] = 3 * sums[keys[i]];
      }
      const Tensor all = Tensor::FromVector(keys);
      const Tensor values = Tensor::FromVector(gradients, {kKeys, 2});
      // Sorted, then known; then one that begins while another is under way.
      ASSERT_THAT((*table)->Push(all, values).Wait(kTimeout), IsOk());
      const Future<void> first = (*table)->Push(all, values);
      ASSERT_THAT((*table)->Push(all, values).Wait(kTimeout), IsOk());
      ASSERT_THAT(first.Wait(kTimeout), IsOk());
      const Future<Tensor> pull = (*table)->Pull(all);
      const auto again = (*table)->Pull(all).Wait(kTimeout);
      const auto rows = pull.Wait(kTimeout);
      ASSERT_THAT(rows, IsOk());
      ASSERT_THAT(again, IsOk());
      EXPECT_EQ(rows->ToVector<float>(), wanted);
      EXPECT_EQ(again->ToVector<float>(), wanted);
      const auto stats = client->Describe();
      ASSERT_THAT(stats, IsOk());
      int64_t made = 0;
      for (const v1::ServerStats& server : *stats) {
        EXPECT_EQ(server.tables(0).version(), 3);
        made += server.tables(0).rows();
      }
      EXPECT_EQ(made, static_cast<int64_t>(sums.size()));
    }
  }
}

TEST(Client, TrainerPushesAllShardsOfASparseTable) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(SparseSpec(v1::TableSpec::SYNC, 3));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::FromVector<int64_t>({5, 7});
  for (int round = 0; round < 3; ++round) {
    for (const int shard : {2, 0, 1}) {
      ASSERT_THAT((*table)
                      ->PushShard({shard, (*table)->round()}, keys,
                                  Tensor::Ones({2, 2}))
                      .Wait(kTimeout),
                  IsOk());
    }
    (*table)->EndRound();
    const auto rows = (*table)->Pull(keys).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-3.0f * (round + 1)));
  }
  auto asynchronous = client->Sparse([] {
    v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
    spec.set_name("async");
    return spec;
  }());
  ASSERT_THAT(asynchronous, IsOk());
  EXPECT_THAT(
      (*asynchronous)
          ->PushShard({0, 0}, keys, Tensor::Ones({2, 2}))
          .Wait(kTimeout),
      StatusIs(absl::StatusCode::kFailedPrecondition, "wanted a SYNC table"));
}

// A worker whose batch has no key still has a part in the round.
TEST(Client, PushWithoutKeysClosesTheRound) {
  TestJob job(/*servers=*/2, /*trainers=*/2);
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    auto table = client->Sparse(SparseSpec(v1::TableSpec::SYNC, 2));
    ASSERT_THAT(table, IsOk());
    const Tensor keys = trainer == 0 ? Tensor::FromVector<int64_t>({5})
                                     : Tensor::Zeros({0}, DType::kI64);
    const Tensor gradients = Tensor::Ones({keys.numel(), 2});
    ASSERT_THAT((*table)->Push(keys, gradients).Wait(kTimeout), IsOk());
    const auto rows =
        (*table)->Pull(Tensor::FromVector<int64_t>({5})).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-1.0f));
  });
}

TEST(Client, InvalidSpecsAndTensorsAreRefused) {
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  v1::TableSpec bad = SparseSpec(v1::TableSpec::ASYNC, 0);
  bad.mutable_rule()->mutable_sgd()->set_lr(-1);
  EXPECT_THAT(client->Sparse(bad),
              StatusIs(absl::StatusCode::kInvalidArgument, "lr"));

  ASSERT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)), IsOk());
  v1::TableSpec other = SparseSpec(v1::TableSpec::ASYNC, 0);
  other.set_dim(3);
  EXPECT_THAT(client->Sparse(other),
              StatusIs(absl::StatusCode::kFailedPrecondition, "dim"));

  auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT((*table)
                  ->Push(Tensor::FromVector<int64_t>({1}), Tensor::Ones({1, 5}))
                  .Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "f32[1, 2]"));

  auto dense = DenseSpec(v1::TableSpec::ASYNC, 0, 10);
  dense.set_name("d");
  auto vector = client->Dense(dense);
  ASSERT_THAT(vector, IsOk());
  EXPECT_THAT((*vector)->Pull().Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, "ps0"));
}

// How servers answer OpenTable.
struct Refusals {
  std::atomic<int> count{0};
  std::atomic<Parker*> held_after_one{nullptr};  // until it is woken
  std::atomic<bool> holds_ps0{false};            // then, while it is set
} refusals;

absl::StatusOr<v1::TableStats> RefuseAndCount(rpc::CallContext& context,
                                              const v1::TableSpec& spec,
                                              uint64_t client) {
  if (context.Local<Server>() == nullptr && refusals.count > 0 &&
      refusals.held_after_one != nullptr) {
    EXPECT_TRUE(IsWoken(*refusals.held_after_one));
  }
  if (context.agent().name() == "ps0" && refusals.count > 0) {
    EXPECT_TRUE(Becomes([] { return !refusals.holds_ps0; }));
  }
  auto made = OpenTable(context, spec, client);
  if (!made.ok()) ++refusals.count;
  return made;
}

rpc::Registry Counting() {
  rpc::Registry functions;
  functions.Add(rpc::internal::Describe<&RefuseAndCount>(
      rpc::RunsOn::kExecutor, "weft::ps::OpenTable"));
  return functions;
}

TEST(Client, OpenWaitsForAServerThatHasJustJoined) {
  refusals.count = 0;
  const rpc::Registry functions = Counting();
  TestJob job(/*servers=*/2, /*trainers=*/1, &functions);
  job.SetServing(1, false);
  const auto client = job.MakeClient(0);
  std::thread late([&] {
    EXPECT_TRUE(Becomes([] { return refusals.count > 0; }));
    job.SetServing(1, true);
  });
  EXPECT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)), IsOk());
  late.join();
}

TEST(Client, OpenNamesAServerThatNeverServes) {
  for (const bool is_held : {false, true}) {
    Parker end;
    refusals.count = 0;
    // The time runs out within a later try.
    refusals.held_after_one = is_held ? &end : nullptr;
    const rpc::Registry functions = Counting();
    TestJob job(/*servers=*/2, /*trainers=*/1, &functions);
    job.SetServing(1, false);
    const auto client = job.MakeClient(0, absl::Seconds(3));
    EXPECT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)),
                StatusIs(absl::StatusCode::kUnavailable, "'ps1' serves no"));
    end.Unpark();
  }
  refusals.held_after_one = nullptr;
}

TEST(Client, OpenTimesOutOnAServerThatHangs) {
  refusals.count = 0;
  refusals.holds_ps0 = true;
  const rpc::Registry functions = Counting();
  TestJob job(/*servers=*/2, /*trainers=*/1, &functions);
  job.SetServing(1, false);
  const auto client = job.MakeClient(0, absl::Seconds(3));
  std::thread late([&] {
    EXPECT_TRUE(Becomes([] { return refusals.count > 0; }));
    job.SetServing(1, true);
  });
  EXPECT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "ps0"));
  late.join();
  refusals.holds_ps0 = false;
}

TEST(Client, FailedPushClosesItsTableUntilItIsOpenedAgain) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);  // of both servers
  const Tensor gradients = Tensor::Ones({64, 2});
  job.SetServing(1, false);
  EXPECT_THAT((*table)->Push(keys, gradients).Wait(kTimeout),
              StatusIs(absl::StatusCode::kUnavailable, "ps1"));
  job.SetServing(1, true);
  EXPECT_THAT((*table)->Push(keys, gradients).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "an earlier push failed, open the table again"));
  table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT((*table)->Push(keys, gradients).Wait(kTimeout), IsOk());
}

// An ASYNC sparse table would answer with initial values, as if nothing had
// been learnt, once anybody has opened it at the new incarnation.
TEST(Client, ServerThatDiedIsUnavailableForGoodAlsoAfterItsRestart) {
  TestJob job(/*servers=*/2, /*trainers=*/2);
  const auto client = job.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);  // of both servers
  const Tensor gradients = Tensor::Ones({64, 2});
  ASSERT_THAT((*table)->Push(keys, gradients).Wait(kTimeout), IsOk());

  job.RestartServer(1);
  const auto is_lost =
      StatusIs(absl::StatusCode::kUnavailable,
               "ps1: the server's incarnation 1@0.1 is gone, and with it all "
               "changes of its tables since the last checkpoint");
  for (const bool reopened : {false, true}) {
    if (reopened) {
      auto other = job.MakeClient(1)->Sparse(spec);
      ASSERT_THAT(other, IsOk());
      EXPECT_THAT((*other)->Pull(keys).Wait(kTimeout), IsOk());
    }
    const absl::Status pull = (*table)->Pull(keys).Wait(kTimeout).status();
    EXPECT_THAT(pull, is_lost);
    EXPECT_EQ(rpc::ReasonOf(pull), rpc::Reason::kPeerGone);
    EXPECT_FALSE(rpc::OutcomeUnknown(pull));  // it was not sent
    EXPECT_THAT((*table)->Push(keys, gradients).Wait(kTimeout), is_lost);
    // Nor are a new table, or a checkpoint that would lack what is lost.
    EXPECT_THAT(client->Sparse(spec), is_lost);
    EXPECT_THAT(client->Save("/", "tmp-000001-1-0123456789abcdef", -1),
                is_lost);
    EXPECT_THAT(client->Describe(), is_lost);
  }
  table = job.MakeClient(0)->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT((*table)->Push(keys, gradients).Wait(kTimeout), IsOk());
}

TEST(Client, PushThatWaitsAtAServerThatDiesSaysWhatWasLost) {
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Dense(DenseSpec(v1::TableSpec::SYNC, 2, 10));
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Ones({10})).Wait(kTimeout), IsOk());
  const Future<Tensor> next = (*table)->PushPull(Tensor::Ones({10}));
  ASSERT_TRUE(Becomes([&] {
    return (*job.server(0).Find("t"))->Stats().waiting_pulls() == 1;
  }));
  job.RestartServer(0);
  const absl::Status ended = next.Wait(kTimeout).status();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable,
                              "the server's incarnation 0@0.1 is gone"));
  EXPECT_TRUE(rpc::OutcomeUnknown(ended));
  for (const absl::Status& later :
       {(*table)->Initialize(Tensor::Ones({10})).Wait(kTimeout),
        (*table)->Pull().Wait(kTimeout).status(),
        (*table)->PushShard({0, 0}, Tensor::Ones({10})).Wait(kTimeout)}) {
    EXPECT_THAT(later, StatusIs(absl::StatusCode::kUnavailable,
                                "ps0: the server's incarnation 0@0.1 is gone"));
  }
}

TEST(Client, TensorsOfOtherTypesAreRefusedBeforeACall) {
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto sparse = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
  ASSERT_THAT(sparse, IsOk());
  EXPECT_THAT((*sparse)->Pull(Tensor::Ones({2})).Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "i64[n]"));
  EXPECT_THAT((*sparse)->Pull(Tensor()).Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "no tensor"));
  v1::TableSpec spec = DenseSpec(v1::TableSpec::ASYNC, 0, 10);
  spec.set_name("d");
  auto dense = client->Dense(spec);
  ASSERT_THAT(dense, IsOk());
  EXPECT_THAT((*dense)->Initialize(Tensor::Ones({9})).Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "f32[10]"));
  EXPECT_THAT((*dense)->Push(Tensor::Ones({10}, DType::kI64)).Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "f32[10]"));
  // A refused push was sent to no server: the table stays open.
  ASSERT_THAT((*dense)->Initialize(Tensor::Ones({10})).Wait(kTimeout), IsOk());
  EXPECT_THAT((*dense)->Push(Tensor::Ones({10})).Wait(kTimeout), IsOk());
}

TEST(Client, TableOfTheOtherKindIsRefused) {
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  EXPECT_THAT(client->Dense(SparseSpec(v1::TableSpec::ASYNC, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(client->Sparse(DenseSpec(v1::TableSpec::ASYNC, 0, 10)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace weft::ps
