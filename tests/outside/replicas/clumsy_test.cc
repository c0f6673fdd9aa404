// Clumsy clients of tables with two replicas: what is too early, too late, too
// often or of the wrong shape. Where the pages say nothing of replicas, a table
// with two must end a call as one with one does.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;
constexpr int64_t kElements = 5000;

// What became of each clumsy call, by its name.
using Outcomes = std::vector<std::pair<std::string, absl::Status>>;

v1::TableSpec Named(v1::TableSpec spec, std::string name) {
  spec.set_name(std::move(name));
  return spec;
}

// Calls of a table "early" that is there already, and of an ASYNC one.
void AddOtherSpecs(Client& client, Client& other, Outcomes& outcomes) {
  const auto add = [&](std::string what, const absl::Status& status) {
    outcomes.emplace_back(std::move(what), status);
  };
  const v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
  const Tensor ones = Tensor::Ones({kElements});
  add("another spec",
      client.Dense(Named(DenseSpec(kSync, 1, kElements + 1), "early"))
          .status());
  add("another spec of another client",
      other.Dense(Named(DenseSpec(kAsync, 1, kElements), "early")).status());
  add("another kind",
      client.Sparse(Named(SparseSpec(kSync, 1), "early")).status());
  add("kind and method differ", client.Sparse(Named(spec, "x")).status());
  add("no name", client.Dense(Named(spec, "")).status());
  add("negative size", client.Dense(DenseSpec(kSync, 1, -4)).status());
  {
    auto table = *client.Dense(Named(DenseSpec(kAsync, 1, kElements), "async"));
    add("async, Initialize", GetStatus(table->Initialize(ones).Wait(kTimeout)));
    add("async, rate of a round",
        GetStatus(table->SetLearningRateScale(1, 3).Wait(kTimeout)));
    add("async, rate",
        GetStatus(table->SetLearningRateScale(0.5).Wait(kTimeout)));
    add("async, part",
        GetStatus(table->PushShard({0, 0}, ones).Wait(kTimeout)));
    add("async, push", GetStatus(table->PushPull(ones).Wait(kTimeout)));
  }
}

// Scales of learning rates, of rounds that are there and not.
void AddRates(Client& client, Outcomes& outcomes) {
  const auto add = [&](std::string what, const absl::Status& status) {
    outcomes.emplace_back(std::move(what), status);
  };
  const Tensor ones = Tensor::Ones({kElements});
  auto table = *client.Dense(Named(DenseSpec(kSync, 1, kElements), "rates"));
  add("rates, Initialize", GetStatus(table->Initialize(ones).Wait(kTimeout)));
  const auto rate = [&](std::string what, double scale, auto round) {
    add(std::move(what),
        GetStatus(table->SetLearningRateScale(scale, round).Wait(kTimeout)));
  };
  rate("rate, negative", -1, std::nullopt);
  rate("rate, not a number", std::nan(""), std::nullopt);
  rate("rate, infinite", std::numeric_limits<double>::infinity(), std::nullopt);
  rate("rate of a round", 0.5, std::optional<int64_t>(2));
  rate("rate of a round, the same", 0.5, std::optional<int64_t>(2));
  rate("rate of a round, another", 0.25, std::optional<int64_t>(2));
  rate("rate of a negative round", 0.25, std::optional<int64_t>(-3));
  for (int i = 0; i < 3; ++i) {
    add("rates, push", GetStatus(table->PushPull(ones).Wait(kTimeout)));
  }
  rate("rate of a closed round", 0.5, std::optional<int64_t>(1));
  rate("rate after those", 0.5, std::nullopt);
  add("rates, push", GetStatus(table->PushPull(ones).Wait(kTimeout)));
}

// Parts of rounds, of one's own shard and others.
void AddParts(Client& client, Client& other, Outcomes& outcomes) {
  const auto add = [&](std::string what, const absl::Status& status) {
    outcomes.emplace_back(std::move(what), status);
  };
  const Tensor ones = Tensor::Ones({kElements});
  auto table = *client.Dense(Named(DenseSpec(kSync, 2, kElements), "parts"));
  auto others = *other.Dense(Named(DenseSpec(kSync, 2, kElements), "parts"));
  add("parts, Initialize", GetStatus(table->Initialize(ones).Wait(kTimeout)));
  const auto part = [&](std::string what, DenseTable& by, RoundPart part) {
    add(std::move(what), GetStatus(by.PushShard(part, ones).Wait(kTimeout)));
  };
  part("part", *table, {0, 0});
  part("part, twice", *table, {0, 0});
  part("part of another's shard", *others, {0, 0});
  part("part of another's shard, next round", *others, {0, 1});
  part("other's part", *others, {1, 0});
  part("part of a closed round", *table, {0, 0});
  part("part of a negative round", *table, {0, -1});
  part("part of a shard that is not there", *table, {2, 1});
  part("part of a negative shard", *table, {-1, 1});
  part("part that takes over", *others, {0, 1, true});
  part("part of a shard that was taken", *table, {0, 2});
}

Outcomes DenseOutcomes(int replicas) {
  TestJob job(2, 2, nullptr, "", replicas);
  const auto client = job.MakeClient(0, absl::Seconds(5));
  const auto other = job.MakeClient(1, absl::Seconds(5));
  Outcomes outcomes;
  const auto add = [&](std::string what, const absl::Status& status) {
    outcomes.emplace_back(std::move(what), status);
  };
  const v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
  const Tensor ones = Tensor::Ones({kElements});

  {
    auto table = *client->Dense(Named(spec, "early"));
    add("pull before Initialize", GetStatus(table->Pull().Wait(kTimeout)));
    add("Initialize after that",
        GetStatus(table->Initialize(ones).Wait(kTimeout)));
    add("pull after that", GetStatus(table->Pull().Wait(kTimeout)));
  }
  {
    auto table = *client->Dense(Named(spec, "early_push"));
    add("push before Initialize", GetStatus(table->Push(ones).Wait(kTimeout)));
  }
  {
    auto table = *client->Dense(Named(spec, "shapes"));
    add("Initialize, too short",
        GetStatus(table->Initialize(Tensor::Ones({3})).Wait(kTimeout)));
    add("Initialize, other type",
        GetStatus(table->Initialize(Tensor::Arange(kElements, DType::kI64))
                      .Wait(kTimeout)));
    add("Initialize", GetStatus(table->Initialize(ones).Wait(kTimeout)));
    add("push, too long",
        GetStatus(table->Push(Tensor::Ones({kElements + 1})).Wait(kTimeout)));
    add("push, other type",
        GetStatus(table->Push(Tensor::Arange(kElements, DType::kI64))
                      .Wait(kTimeout)));
    add("push, no elements",
        GetStatus(table->Push(Tensor::Ones({0})).Wait(kTimeout)));
    add("push after those", GetStatus(table->Push(ones).Wait(kTimeout)));
  }
  AddRates(*client, outcomes);
  AddParts(*client, *other, outcomes);
  AddOtherSpecs(*client, *other, outcomes);
  return outcomes;
}

Outcomes SparseOutcomes(int replicas) {
  TestJob job(2, 1, nullptr, "", replicas);
  const auto client = job.MakeClient(0, absl::Seconds(5));
  Outcomes outcomes;
  const auto add = [&](std::string what, const absl::Status& status) {
    outcomes.emplace_back(std::move(what), status);
  };
  for (const auto mode : {kSync, kAsync}) {
    v1::TableSpec spec = SparseSpec(mode, 1);
    spec.set_name(mode == kSync ? "sync" : "async");
    auto table = *client->Sparse(spec);
    const Tensor keys = Tensor::Arange(4, DType::kI64);
    const auto push = [&](std::string what, const Tensor& k, const Tensor& g) {
      add(spec.name() + ", " + what,
          GetStatus(table->Push(k, g).Wait(kTimeout)));
    };
    const auto pull = [&](std::string what, const Tensor& k) {
      add(spec.name() + ", " + what, GetStatus(table->Pull(k).Wait(kTimeout)));
    };
    pull("pull first of all", keys);
    push("too few rows", keys, Tensor::Ones({3, 2}));
    push("too wide", keys, Tensor::Ones({4, 3}));
    push("flat", keys, Tensor::Ones({8}));
    push("keys as floats", Tensor::Ones({4}), Tensor::Ones({4, 2}));
    push("keys in a table", keys.Reshape({2, 2}), Tensor::Ones({4, 2}));
    push("gradients as integers", keys, Tensor::Ones({4, 2}, DType::kI64));
    pull("pull with keys as floats", Tensor::Ones({4}));
    pull("pull with keys in a table", keys.Reshape({2, 2}));
    push("no keys", Tensor::Empty({0}, DType::kI64), Tensor::Empty({0, 2}));
    pull("pull of no keys", Tensor::Empty({0}, DType::kI64));
    push("push after those", keys, Tensor::Ones({4, 2}));
  }
  return outcomes;
}

void ExpectEqualCodes(const Outcomes& two, const Outcomes& one) {
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < two.size(); ++i) {
    EXPECT_EQ(two[i].second.code(), one[i].second.code())
        << two[i].first << "\n  two replicas: " << two[i].second.ToString()
        << "\n  one replica:  " << one[i].second.ToString();
  }
}

TEST(ClumsyReplicas, DenseCallsEndAsWithOneReplica) {
  ExpectEqualCodes(DenseOutcomes(2), DenseOutcomes(1));
}

TEST(ClumsyReplicas, SparseCallsEndAsWithOneReplica) {
  ExpectEqualCodes(SparseOutcomes(2), SparseOutcomes(1));
}

TEST(ClumsyReplicas, RepeatedAndUnsortedKeysAreAddedUp) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0);
  const auto table = *client->Sparse(SparseSpec(kSync, 1));
  const auto rows =
      table
          ->PushPull(Tensor::FromVector<int64_t>({9, -5, 9, 0, 9}),
                     Tensor::Ones({5, 2}),
                     Tensor::FromVector<int64_t>({0, 9, -5, 9, 77}))
          .Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(),
              ElementsAre(-1, -1, -3, -3, -1, -1, -3, -3, 0, 0));
}

TEST(ClumsyReplicas, TwoOpeningsByOneClientBothCount) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0);
  const Tensor keys = Tensor::Arange(40, DType::kI64);
  const auto a = *client->Sparse(SparseSpec(kAsync, 1));
  const auto b = *client->Sparse(SparseSpec(kAsync, 1));
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(a->Push(keys, Tensor::Full({40, 2}, -1)).Wait(kTimeout),
                IsOk());
    ASSERT_THAT(b->Push(keys, Tensor::Full({40, 2}, -1)).Wait(kTimeout),
                IsOk());
  }
  const auto rows = a->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(20));
}

TEST(ClumsyReplicas, HundredPushesWithoutWaitingAllCount) {
  for (const auto durability :
       {v1::TableSpec::NONE, v1::TableSpec::APPLIED, v1::TableSpec::STABLE}) {
    TestJob job(3, 1, nullptr, "", 2);
    const auto client = job.MakeClient(0);
    v1::TableSpec spec = SparseSpec(kAsync, 1);
    spec.set_durability(durability);
    const auto table = *client->Sparse(spec);
    const Tensor keys = Tensor::Arange(40, DType::kI64);
    std::vector<Future<void>> pushes;
    for (int i = 0; i < 150; ++i) {
      pushes.push_back(table->Push(keys, Tensor::Full({40, 2}, -1)));
    }
    for (const auto& push : pushes) EXPECT_THAT(push.Wait(kTimeout), IsOk());
    const auto rows = table->Pull(keys).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(150)) << durability;
  }
}

TEST(ClumsyReplicas, HundredRoundsWithoutWaitingAllCount) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0);
  const auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 100; ++i) {
    pushes.push_back(table->Push(Tensor::Full({kElements}, -1)));
  }
  for (const auto& push : pushes) EXPECT_THAT(push.Wait(kTimeout), IsOk());
  const auto values = table->Pull().Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->ToVector<float>(), Each(100));
}

TEST(ClumsyReplicas, FirstInitializeCountsAlsoOfTwoAtOnce) {
  constexpr int64_t kMany = 40 * 1024;
  TestJob job(2, 2, nullptr, "", 2);
  std::vector<std::vector<float>> seen(2);
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = *client->Dense(DenseSpec(kSync, 1, kMany));
    for (int i = 0; i < 3; ++i) {
      ASSERT_THAT(table->Initialize(Tensor::Full({kMany}, 1 + trainer + 10 * i))
                      .Wait(kTimeout),
                  IsOk());
    }
    const auto values = table->Pull().Wait(kTimeout);
    ASSERT_THAT(values, IsOk());
    seen[trainer] = values->ToVector<float>();
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_THAT(seen[0], Each(AnyOf(1, 2)));
}

TEST(ClumsyReplicas, EmptyPushesCloseSynchronousRounds) {
  TestJob job(2, 2, nullptr, "", 2);
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = *client->Sparse(SparseSpec(kSync, 2));
    const Tensor none = Tensor::Empty({0}, DType::kI64);
    const Tensor keys = Tensor::Arange(30, DType::kI64);
    for (int r = 0; r < 5; ++r) {
      const auto rows =
          trainer == 0 ? table->PushPull(none, Tensor::Empty({0, 2}), keys)
                             .Wait(kTimeout)
                       : table->PushPull(keys, Tensor::Full({30, 2}, -1), keys)
                             .Wait(kTimeout);
      ASSERT_THAT(rows, IsOk());
      EXPECT_THAT(rows->ToVector<float>(), Each(r + 1));
    }
  });
}

TEST(ClumsyReplicas, TableMayGoWhilePushesAreUnderWay) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0);
  const Tensor keys = Tensor::Arange(40, DType::kI64);
  std::vector<Future<void>> pushes;
  {
    const auto table = *client->Sparse(SparseSpec(kAsync, 1));
    for (int i = 0; i < 50; ++i) {
      pushes.push_back(table->Push(keys, Tensor::Full({40, 2}, -1)));
    }
  }
  int acknowledged = 0;
  for (const auto& push : pushes) {
    const absl::Status status = GetStatus(push.Wait(kTimeout));
    EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")));
    acknowledged += status.ok();
  }
  const auto table = *client->Sparse(SparseSpec(kAsync, 1));
  const auto rows = table->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(
      rows->ToVector<float>(),
      Each(::testing::AllOf(::testing::Ge(acknowledged), ::testing::Le(50))));
}

TEST(ClumsyReplicas, TableOutlivesItsClient) {
  TestJob job(2, 1, nullptr, "", 2);
  auto client = job.MakeClient(0);
  const auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  client.reset();
  const auto values =
      table->PushPull(Tensor::Full({kElements}, -1)).Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->ToVector<float>(), Each(1));
}

TEST(ClumsyReplicas, PullThatTimesOutNamesWhoIsMissing) {
  TestJob job(2, 2, nullptr, "", 2);
  const auto client = job.MakeClient(0, absl::Seconds(6));
  const auto table = *client->Dense(DenseSpec(kSync, 2, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  const auto values = table->PushPull(Tensor::Ones({kElements})).Wait(kTimeout);
  ASSERT_THAT(values, StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  EXPECT_THAT(std::string(values.status().message()),
              AnyOf(HasSubstr("shard 1"), HasSubstr("shards 1"),
                    HasSubstr("rank 1"), HasSubstr("trainer1")));
}

absl::Status OpenWith(int replicas, int replicas_of_servers) {
  TestJob job(2, 1, nullptr, "", replicas_of_servers);
  ClientOptions options;
  options.agent = &job.trainer(0);
  options.servers = {"ps0", "ps1"};
  options.client = 5;
  options.timeout = absl::Seconds(4);
  options.replicas = replicas;
  Client client(options);
  const Instant begun = SteadyClock().Now();
  const absl::Status status =
      client.Dense(DenseSpec(kSync, 1, kElements)).status();
  EXPECT_LT(SteadyClock().Now() - begun, absl::Seconds(20));
  return status;
}

TEST(ClumsyReplicas, ClientOfTwoReplicasOnServersOfOneEndsInTime) {
  EXPECT_THAT(OpenWith(2, 1), Not(IsOk()));
}

TEST(ClumsyReplicas, ClientOfTwoReplicasOnServersOfOneIsToldWhy) {
  EXPECT_THAT(std::string(OpenWith(2, 1).message()), HasSubstr("replica"));
}

TEST(ClumsyReplicas, ClientOfOneReplicaOnServersOfTwoIsRefused) {
  EXPECT_THAT(OpenWith(1, 2), Not(IsOk()));
}

TEST(ClumsyReplicas, PartOfARoundFarAheadIsRefused) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0, absl::Seconds(5));
  const auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  EXPECT_THAT(
      table->PushShard({0, 1000}, Tensor::Ones({kElements})).Wait(kTimeout),
      StatusIs(absl::StatusCode::kFailedPrecondition, "too far ahead"));
}

TEST(ClumsyReplicas, SynchronousTableWithoutDurabilityIsRefused) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0, absl::Seconds(5));
  v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
  spec.set_durability(v1::TableSpec::NONE);
  EXPECT_THAT(client->Dense(spec),
              StatusIs(absl::StatusCode::kInvalidArgument, "NONE"));
}

TEST(ClumsyReplicas, UnknownDurabilityIsRefused) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0, absl::Seconds(5));
  v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
  spec.set_durability(static_cast<v1::TableSpec::Durability>(99));
  EXPECT_THAT(client->Dense(spec),
              StatusIs(absl::StatusCode::kInvalidArgument, "durability"));
}

TEST(ClumsyReplicas, SixtyFifthOpeningClosesTheOldestAndNoOther) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0, absl::Seconds(5));
  const Tensor keys = Tensor::Arange(40, DType::kI64);
  const Tensor steps = Tensor::Full({40, 2}, -1);
  std::vector<std::unique_ptr<SparseTable>> tables;
  for (int i = 0; i < 65; ++i) {
    auto table = client->Sparse(SparseSpec(kAsync, 1));
    ASSERT_THAT(table, IsOk()) << i;
    tables.push_back(*std::move(table));
  }
  const absl::Status oldest =
      GetStatus(tables[0]->Push(keys, steps).Wait(kTimeout));
  EXPECT_THAT(oldest, Not(IsOk()));
  EXPECT_THAT(oldest, Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")));
  for (int i = 1; i < 65; ++i) {
    EXPECT_THAT(tables[i]->Push(keys, steps).Wait(kTimeout), IsOk()) << i;
  }
  const auto rows = tables[64]->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(64));
}

// A server that came after the openings closes the same ones.
TEST(ClumsyReplicas, ServerThatComesLaterClosesTheSameOpening) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0, absl::Seconds(10));
  const Tensor keys = Tensor::Arange(40, DType::kI64);
  const Tensor steps = Tensor::Full({40, 2}, -1);
  std::vector<std::unique_ptr<SparseTable>> tables;
  const auto open = [&] {
    auto table = client->Sparse(SparseSpec(kAsync, 1));
    ASSERT_THAT(table, IsOk());
    tables.push_back(*std::move(table));
  };
  for (int i = 0; i < 64; ++i) open();
  ASSERT_THAT(tables[0]->Push(keys, steps).Wait(kTimeout), IsOk());
  job.KillServer(0);
  job.StartServer(0);
  ASSERT_TRUE(job.BecomesReplicated());
  job.KillServer(1);  // the later one has all
  open();
  EXPECT_THAT(tables[0]->Push(keys, steps).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, "open it again"));
  EXPECT_THAT(tables[1]->Push(keys, steps).Wait(kTimeout), IsOk());
  const auto rows = tables[64]->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(2));
}

}  // namespace
}  // namespace weft::ps
