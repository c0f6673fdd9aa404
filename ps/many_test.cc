#include "weft/ps/many.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/failure.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

v1::TableSpec Named(v1::TableSpec spec, const std::string& name) {
  spec.set_name(name);
  return spec;
}

std::unique_ptr<SparseTable> Open(
    Client& client, const std::string& name,
    v1::TableSpec::Mode mode = v1::TableSpec::ASYNC, int shards = 1) {
  auto table = client.Sparse(Named(SparseSpec(mode, shards), name));
  EXPECT_THAT(table, IsOk());
  return *std::move(table);
}

std::unique_ptr<DenseTable> OpenDense(Client& client, const std::string& name,
                                      v1::TableSpec::Mode mode,
                                      int64_t elements) {
  auto table = client.Dense(Named(DenseSpec(mode, 1, elements), name));
  EXPECT_THAT(table, IsOk());
  return *std::move(table);
}

Tensor Keys(std::vector<int64_t> keys) {
  return Tensor::FromVector(std::move(keys));
}

// Requests that came, of all servers.
struct Requests {
  std::atomic<int> alone{0}, many{0}, parts{0};
} requests;

Future<ExchangeReply> CountExchange(rpc::CallContext& context,
                                    v1::Request request,
                                    const std::optional<Tensor>& push_keys,
                                    const std::optional<Tensor>& push_values,
                                    const std::optional<Tensor>& pull_keys) {
  ++requests.alone;
  return Exchange(context, std::move(request), push_keys, push_values,
                  pull_keys);
}

Future<ManyReply> CountExchangeMany(
    rpc::CallContext& context, v1::RequestMany request,
    const std::vector<std::optional<Tensor>>& tensors) {
  ++requests.many;
  requests.parts += request.parts_size();
  return ExchangeMany(context, std::move(request), tensors);
}

rpc::Registry Counting() {
  using rpc::RunsOn;
  using rpc::internal::Describe;
  requests.alone = requests.many = requests.parts = 0;
  rpc::Registry functions;
  functions.Add(Describe<&OpenTable>(RunsOn::kExecutor, "weft::ps::OpenTable"));
  functions.Add(
      Describe<&Initialize>(RunsOn::kExecutor, "weft::ps::Initialize"));
  functions.Add(
      Describe<&ps::Describe>(RunsOn::kExecutor, "weft::ps::Describe"));
  functions.Add(
      Describe<&CountExchange>(RunsOn::kExecutor, "weft::ps::Exchange"));
  functions.Add(Describe<&CountExchangeMany>(RunsOn::kExecutor,
                                             "weft::ps::ExchangeMany"));
  return functions;
}

TEST(Many, TwentySixTablesTakeARequestToEachServer) {
  constexpr int kTables = 26, kServers = 3;
  const rpc::Registry functions = Counting();
  TestJob job(kServers, /*trainers=*/1, &functions);
  const auto client = job.MakeClient(0);
  std::vector<std::unique_ptr<SparseTable>> tables;
  std::vector<PullOf> pulls;
  std::vector<PushOf> pushes;
  std::vector<PushPullOf> both;
  for (int i = 0; i < kTables; ++i) {
    tables.push_back(
        Open(*client, absl::StrCat("t", i),
             i % 2 == 0 ? v1::TableSpec::SYNC : v1::TableSpec::ASYNC));
    const Tensor keys = Tensor::Arange(64, DType::kI64);  // of all servers
    const Tensor gradients = Tensor::Full({64, 2}, -1.0f * i);
    pulls.push_back({tables[i].get(), keys});
    pushes.push_back({tables[i].get(), keys, gradients});
    both.push_back({tables[i].get(), keys, gradients, keys});
  }
  ASSERT_THAT(PushMany(pushes).Wait(kTimeout), IsOk());
  EXPECT_EQ(requests.many, kServers);
  const auto rows = PullMany(pulls).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(requests.many, 2 * kServers);
  const auto next = PushPullMany(both).Wait(kTimeout);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(requests.many, 3 * kServers);
  EXPECT_EQ(requests.parts, 3 * kServers * kTables);
  EXPECT_EQ(requests.alone, 0);
  for (int i = 0; i < kTables; ++i) {
    EXPECT_THAT((*rows)[i].ToVector<float>(), Each(1.0f * i)) << i;
    EXPECT_THAT((*next)[i].ToVector<float>(), Each(2.0f * i)) << i;
    EXPECT_EQ(tables[i]->round(), i % 2 == 0 ? 2 : 0);
  }
}

// What ctr does in a step: two kinds, of which one is only pushed to.
TEST(Many, KindsModesAndOperationsMix) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const auto sparse = Open(*client, "sparse");
  const auto rounds = Open(*client, "rounds", v1::TableSpec::SYNC);
  const auto whole = OpenDense(*client, "whole", v1::TableSpec::SYNC, 5);
  const auto sliced = OpenDense(*client, "sliced", v1::TableSpec::ASYNC, 9000);
  const Tensor first = Tensor::Arange(9000, DType::kI64).To(DType::kF32);
  ASSERT_THAT(whole->Initialize(Tensor::Ones({5})).Wait(kTimeout), IsOk());
  ASSERT_THAT(sliced->Initialize(first).Wait(kTimeout), IsOk());
  for (int step = 1; step <= 3; ++step) {
    const auto results = ExchangeEach(
        {PushOf{sparse.get(), Keys({7, 9, 7}), Tensor::Ones({3, 2})},
         PushPullOf{rounds.get(), Keys({}), Tensor::Ones({0, 2}), Keys({5})},
         PushPullOf{whole.get(), {}, Tensor::Ones({5}), {}},
         PullOf{sliced.get()}});
    ASSERT_EQ(results.size(), 4u);
    for (const auto& result : results) {
      ASSERT_THAT(result.Wait(kTimeout), IsOk());
    }
    EXPECT_FALSE(results[0].Peek()->value().defined());
    EXPECT_THAT(results[1].Peek()->value().ToVector<float>(), Each(0.0f));
    EXPECT_THAT(results[2].Peek()->value().ToVector<float>(),
                Each(1.0f - step));
    EXPECT_EQ(results[3].Peek()->value().ToVector<float>(),
              first.ToVector<float>());
    const auto rows = sparse->Pull(Keys({9, 7})).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(),
                ElementsAre(-step, -step, -2 * step, -2 * step));
  }
  EXPECT_TRUE(ExchangeEach({}).empty());
  EXPECT_THAT(PullMany({}).Wait(kTimeout), IsOk());
}

TEST(Many, WhatCannotBeSentIsRefusedBeforeACall) {
  const rpc::Registry functions = Counting();
  TestJob job(/*servers=*/2, /*trainers=*/1, &functions);
  const auto client = job.MakeClient(0);
  const auto other_client = job.MakeClient(0);
  const auto a = Open(*client, "a"), b = Open(*client, "b");
  const auto other = Open(*other_client, "other");
  const auto dense = OpenDense(*client, "d", v1::TableSpec::ASYNC, 4);
  const Tensor keys = Keys({1, 2, 3});
  const auto refuses = [&](std::vector<PullOf> pulls, const std::string& why) {
    EXPECT_THAT(PullMany(std::move(pulls)).Wait(kTimeout),
                StatusIs(absl::StatusCode::kInvalidArgument, why));
  };
  refuses({{a.get(), keys}, {b.get(), keys}, {a.get(), keys}},
          "table 'a' is there twice");
  refuses({{a.get(), keys}, {other.get(), keys}}, "'other' and table 'a'");
  refuses({{a.get(), keys}, {static_cast<SparseTable*>(nullptr), keys}},
          "null pointer after 1");
  refuses({{a.get(), keys}, {b.get(), Tensor::Ones({2})}},
          "table 'b': keys: wanted i64");
  refuses({{a.get(), keys}, {b.get()}}, "table 'b': keys: wanted i64");
  refuses({{a.get(), keys}, {dense.get(), keys}}, "table 'd': keys:");
  EXPECT_THAT(PushMany({{a.get(), keys, Tensor::Ones({3, 2})},
                        {b.get(), keys, Tensor::Ones({3, 5})}})
                  .Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "table 'b'"));
  EXPECT_EQ(requests.many + requests.alone, 0);
  // Nothing of `a` was sent: its numbers have no gap, and it is open.
  EXPECT_THAT(a->Push(keys, Tensor::Ones({3, 2})).Wait(kTimeout), IsOk());
}

TEST(Many, RefusedPartLosesNoOthers) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const auto sparse = Open(*client, "sparse");
  const auto empty = OpenDense(*client, "empty", v1::TableSpec::ASYNC, 4);
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const auto results = ExchangeEach(
      {PushPullOf{empty.get(), {}, Tensor::Ones({4}), {}},
       PushPullOf{sparse.get(), keys, Tensor::Ones({64, 2}), keys}});
  const absl::Status refused = results[0].Wait(kTimeout).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "table 'empty' on server 0 has no values"));
  EXPECT_THAT(refused.message(), HasSubstr("ps0: weft::ps::ExchangeMany: "));
  ASSERT_EQ(rpc::FailuresOf(refused).size(), 1u);
  EXPECT_EQ(rpc::FailuresOf(refused)[0].worker, "ps0");
  const auto rows = results[1].Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(-1.0f));
  // The refused push has closed its table only.
  EXPECT_THAT(empty->Push(Tensor::Ones({4})).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "an earlier push failed"));
  EXPECT_THAT(sparse->Push(keys, Tensor::Ones({64, 2})).Wait(kTimeout), IsOk());
  // If one of the tables is closed, nothing is sent.
  EXPECT_THAT(PullMany({{sparse.get(), keys}, {empty.get()}}).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, "'empty'"));
  EXPECT_THAT(PushMany({{sparse.get(), keys, Tensor::Ones({64, 2})},
                        {empty.get(), {}, Tensor::Ones({4})}})
                  .Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "'empty': an earlier push failed"));
  const auto same = sparse->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(same, IsOk());
  EXPECT_THAT(same->ToVector<float>(), Each(-2.0f));
}

TEST(Many, LostMessageClosesEveryTableThatItHadAPushFor) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const auto a = Open(*client, "a"), b = Open(*client, "b");
  const auto pulled = Open(*client, "pulled");
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const Tensor ones = Tensor::Ones({64, 2});
  job.SetServing(1, false);
  for (const auto& result :
       ExchangeEach({PushOf{a.get(), keys, ones}, PushOf{b.get(), keys, ones},
                     PullOf{pulled.get(), keys}})) {
    EXPECT_THAT(result.Wait(kTimeout),
                StatusIs(absl::StatusCode::kUnavailable, "ps1"));
  }
  job.SetServing(1, true);
  for (const auto& table : {a.get(), b.get()}) {
    EXPECT_THAT(table->Push(keys, ones).Wait(kTimeout),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "an earlier push failed"));
  }
  EXPECT_THAT(pulled->Push(keys, ones).Wait(kTimeout), IsOk());
  job.RestartServer(1);
  EXPECT_THAT(PullMany({{pulled.get(), keys}, {a.get(), keys}}).Wait(kTimeout),
              StatusIs(absl::StatusCode::kUnavailable,
                       "the server's incarnation 1@0.1 is gone"));
}

// The rows of the ASYNC table come with the answer for the SYNC one, or with
// its refusal.
TEST(Many, PullThatWaitsForItsRoundHoldsAnswersUntilThenAtMost) {
  for (const bool closes : {true, false}) {
    TestJob job(/*servers=*/1, /*trainers=*/2);
    const auto client = job.MakeClient(0), other = job.MakeClient(1);
    const auto sync = Open(*client, "sync", v1::TableSpec::SYNC, 2);
    const auto peer = Open(*other, "sync", v1::TableSpec::SYNC, 2);
    const auto async = Open(*client, "async");
    const auto reader = Open(*other, "async");
    const Tensor keys = Keys({5});
    const Tensor ones = Tensor::Ones({1, 2});
    const auto results =
        ExchangeEach({PushPullOf{sync.get(), keys, ones, keys},
                      PushPullOf{async.get(), keys, ones, keys}});
    // What was pushed is applied before.
    EXPECT_TRUE(Becomes([&] {
      const auto rows = reader->Pull(keys).Wait(kTimeout);
      return rows.ok() && rows->ToVector<float>()[0] == -1.0f;
    }));
    EXPECT_FALSE(results[1].IsReady());
    if (closes) {
      ASSERT_THAT(peer->Push(keys, ones).Wait(kTimeout), IsOk());
      ASSERT_THAT(results[0].Wait(kTimeout), IsOk());
      EXPECT_THAT(results[0].Peek()->value().ToVector<float>(), Each(-2.0f));
    } else {
      EXPECT_TRUE(Becomes([&] {
        job.server(0).Expire(SteadyClock().Now() + absl::Hours(1));
        return results[0].IsReady();
      }));
      EXPECT_THAT(results[0].Wait(kTimeout),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           "table 'sync' on server 0 did not reach version 1"));
    }
    ASSERT_THAT(results[1].Wait(kTimeout), IsOk());
    EXPECT_THAT(results[1].Peek()->value().ToVector<float>(), Each(-1.0f));
  }
}

TEST(Many, PushesUnderWayWaitForRoomAndCountOnce) {
  constexpr int kPushes = 300;
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const auto a = Open(*client, "a"), b = Open(*client, "b");
  const Tensor keys = Tensor::Arange(32, DType::kI64);
  const Tensor ones = Tensor::Ones({32, 2});
  std::vector<Future<void>> pushes;
  for (int i = 0; i < kPushes; ++i) {
    pushes.push_back(PushMany({{a.get(), keys, ones}, {b.get(), keys, ones}}));
    if (i % 3 == 0) pushes.push_back(b->Push(keys, ones));
  }
  ASSERT_THAT(WaitAll(std::move(pushes), kTimeout), IsOk());
  const auto rows = PullMany({{a.get(), keys}, {b.get(), keys}}).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT((*rows)[0].ToVector<float>(), Each(-1.0f * kPushes));
  EXPECT_THAT((*rows)[1].ToVector<float>(), Each(-1.0f * (kPushes * 4 / 3)));
}

TEST(Many, WhatIsTooLargeForAMessageGoesInSeveral) {
  const rpc::Registry functions = Counting();
  TestJob job(/*servers=*/1, /*trainers=*/1, &functions);
  const auto client = job.MakeClient(0);
  constexpr int64_t kDim = 65536;  // a row is 256 KiB
  const auto open = [&](const std::string& name) {
    v1::TableSpec spec = Named(SparseSpec(v1::TableSpec::ASYNC, 0), name);
    spec.set_dim(kDim);
    return *client->Sparse(spec);
  };
  const auto a = open("a"), b = open("b"), c = open("c"), d = open("d");
  const auto rows = [](int64_t n) { return Tensor::Arange(n, DType::kI64); };
  // 25 MiB each but one of 75: two together, that one, and the last.
  const auto pulled = PullMany({{a.get(), rows(100)},
                                {b.get(), rows(100)},
                                {c.get(), rows(300)},
                                {d.get(), rows(100)}})
                          .Wait(kTimeout);
  ASSERT_THAT(pulled, IsOk());
  EXPECT_EQ((*pulled)[2].size(0), 300);
  EXPECT_EQ(requests.many, 1);
  EXPECT_EQ(requests.alone, 2);
}

// A client that does not keep to the bounds: nothing is applied.
TEST(Many, MessagesBeyondTheBoundsAreRefusedWhole) {
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  const auto dense = OpenDense(*client, "d", v1::TableSpec::ASYNC, 1 << 20);
  ASSERT_THAT(dense->Initialize(Tensor::Zeros({1 << 20})).Wait(kTimeout),
              IsOk());
  const auto call = [&](int parts, int tensors) {
    v1::RequestMany request;
    for (int i = 0; i < parts; ++i) {
      request.add_parts()->set_table("d");
      request.mutable_parts(i)->set_client(9);
      request.mutable_parts(i)->set_pull(true);
    }
    return rpc::CallAsync(job.trainer(0).To("ps0", kTimeout), &ExchangeMany,
                          request, std::vector<std::optional<Tensor>>(tensors))
        .Wait(kTimeout);
  };
  EXPECT_THAT(call(2, 5), StatusIs(absl::StatusCode::kInvalidArgument,
                                   "three tensors for each, found 2 and 5"));
  EXPECT_THAT(call(kMostParts + 1, 3 * (kMostParts + 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, "at most 1024"));
  // A client that has not opened the tables has each part refused by itself.
  const auto others = call(2, 6);
  ASSERT_THAT(others, IsOk());
  EXPECT_EQ(std::get<0>(*others).parts(1).status(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::get<0>(*others).parts(1).message(), HasSubstr("table 'd'"));
  // Each pull is of 4 MiB.
  ASSERT_THAT(
      rpc::CallAsync(job.trainer(0).To("ps0", kTimeout), &OpenTable,
                     Named(DenseSpec(v1::TableSpec::ASYNC, 1, 1 << 20), "d"),
                     uint64_t{9})
          .Wait(kTimeout),
      IsOk());
  EXPECT_THAT(call(16, 48), IsOk());
  EXPECT_THAT(call(17, 51), StatusIs(absl::StatusCode::kInvalidArgument,
                                     "ask for 71303168 bytes"));
}

TEST(Many, WorksWithTwoReplicas) {
  TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  const auto sync = Open(*client, "sync", v1::TableSpec::SYNC);
  const auto async = Open(*client, "async");
  const auto dense = OpenDense(*client, "dense", v1::TableSpec::SYNC, 5000);
  ASSERT_THAT(dense->Initialize(Tensor::Ones({5000})).Wait(kTimeout), IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const Tensor ones = Tensor::Ones({64, 2});
  ASSERT_THAT(PushMany({{sync.get(), keys, ones},
                        {async.get(), keys, ones},
                        {dense.get(), {}, Tensor::Ones({5000})}})
                  .Wait(kTimeout),
              IsOk());
  const auto rows =
      PullMany({{sync.get(), keys}, {async.get(), keys}, {dense.get()}})
          .Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT((*rows)[0].ToVector<float>(), Each(-1.0f));
  EXPECT_THAT((*rows)[1].ToVector<float>(), Each(-1.0f));
  EXPECT_THAT((*rows)[2].ToVector<float>(), Each(0.0f));
  EXPECT_THAT(PullMany({{sync.get(), keys}, {sync.get(), keys}}).Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "twice"));
}

}  // namespace
}  // namespace weft::ps
