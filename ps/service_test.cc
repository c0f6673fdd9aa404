// Servers and clients as ranks of one process: the calls, end to end.

#include "weft/ps/service.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/variable.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/schedule.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// Several slices on each of three servers; the last one is short.
TEST(PsService, DenseTableOverThreeServersStepsInRounds) {
  constexpr int64_t kElements = 70 * kMinSliceElements + 123;
  constexpr int kRounds = 5;
  TestJob job(/*servers=*/3, /*trainers=*/2);
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    auto table = client->Dense(DenseSpec(v1::TableSpec::SYNC, 2, kElements));
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT((*table)->Initialize(Tensor::Ones({kElements})).Wait(kTimeout),
                IsOk());
    for (int round = 0; round < kRounds; ++round) {
      const auto values = (*table)
                              ->PushPull(Tensor::Full({kElements}, trainer + 1))
                              .Wait(kTimeout);
      ASSERT_THAT(values, IsOk());
      const float wanted = 1.0f - 3.0f * (round + 1);
      const auto all = values->ToVector<float>();
      ASSERT_EQ(std::count(all.begin(), all.end(), wanted), kElements);
    }
  });
}

TEST(PsService, SparseRowsAreAddedUpByKeyAndAcrossTrainers) {
  TestJob job(/*servers=*/2, /*trainers=*/2);
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    auto table = client->Sparse(SparseSpec(v1::TableSpec::SYNC, 2));
    ASSERT_THAT(table, IsOk());
    // Key 5 twice in one push; key 9 of trainer 1 alone.
    const Tensor keys = trainer == 0 ? Tensor::FromVector<int64_t>({5, 7, 5})
                                     : Tensor::FromVector<int64_t>({9, 5, 5});
    const auto rows = (*table)
                          ->PushPull(keys, Tensor::Ones({3, 2}),
                                     Tensor::FromVector<int64_t>({7, 5, 9, 7}))
                          .Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(),
                ElementsAre(-1, -1, -4, -4, -1, -1, -1, -1));
  });
}

// Two servers. Trainer 1's part of round 1 reaches both, or the first server
// only, or none; then it ends, and trainer 0 gives that part as well.
TEST(PsService, ShardMovesToAnotherTrainerInTheMiddleOfARound) {
  constexpr int64_t kElements = 4 * kMinSliceElements + 5;
  const auto gradient = [&](int shard, int round) {
    std::vector<float> values(kElements);
    for (int64_t i = 0; i < kElements; ++i) {
      values[i] = 1e-3f * static_cast<float>(i) + 0.1f * shard + 0.7f * round;
    }
    return Tensor::FromVector(values);
  };
  std::vector<std::vector<float>> results;
  for (const int reached : {2, 2, 1, 0}) {  // the first: undisturbed
    const bool moves = !results.empty();
    TestJob job(/*servers=*/2, /*trainers=*/2);
    v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 2, kElements);
    spec.set_reduction(v1::TableSpec::MEAN);
    spec.set_orphans(v1::TableSpec::WAIT);
    spec.mutable_rule()->mutable_adam()->set_lr(0.1);
    const auto client0 = job.MakeClient(0), client1 = job.MakeClient(1);
    auto table0 = client0->Dense(spec), table1 = client1->Dense(spec);
    ASSERT_THAT(table0, IsOk());
    ASSERT_THAT(table1, IsOk());
    ASSERT_THAT((*table0)->Initialize(gradient(0, 0)).Wait(kTimeout), IsOk());
    Future<Tensor> next = (*table0)->PushPull(gradient(0, 0));
    ASSERT_THAT((*table1)->PushPull(gradient(1, 0)).Wait(kTimeout), IsOk());
    ASSERT_THAT(next.Wait(kTimeout), IsOk());

    if (reached == 1) job.SetServing(1, false);
    if (reached > 0) {
      EXPECT_EQ((*table1)->Push(gradient(1, 1)).Wait(kTimeout).ok(),
                reached == 2);
    }
    job.SetServing(1, true);
    next = (*table0)->PushPull(gradient(0, 1));
    if (moves) {
      job.server(0).DeclareDead(1);  // the other server is notified later
      ASSERT_THAT(
          (*table0)
              ->PushShard({/*shard=*/1, /*round=*/1, /*take_over=*/true},
                          gradient(1, 1))
              .Wait(kTimeout),
          IsOk());
      job.server(1).DeclareDead(1);
    }
    ASSERT_THAT(next.Wait(kTimeout), IsOk());

    next = (*table0)->PushPull(gradient(0, 2));
    if (moves) {
      ASSERT_THAT((*table0)->PushShard({1, 2}, gradient(1, 2)).Wait(kTimeout),
                  IsOk());
      EXPECT_THAT(
          (*table1)->PushShard({1, 3}, gradient(1, 3)).Wait(kTimeout),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   reached == 1 ? "an earlier push failed" : "declared dead"));
    } else {
      ASSERT_THAT((*table1)->Push(gradient(1, 2)).Wait(kTimeout), IsOk());
    }
    const auto values = next.Wait(kTimeout);
    ASSERT_THAT(values, IsOk());
    results.push_back(values->ToVector<float>());
  }
  EXPECT_THAT(results, Each(results[0]));
}

// Integer counters: what was acknowledged is what is there.
TEST(PsService, NoAcknowledgedAsynchronousPushIsLostOrDoubled) {
  constexpr int kTrainers = 3;
  constexpr int kPushes = 60;
  TestJob job(/*servers=*/2, kTrainers);
  OnEach(kTrainers, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
    ASSERT_THAT(table, IsOk());
    const Tensor keys =
        Tensor::FromVector<int64_t>({1, 2, 3, 4, 100 + trainer});
    for (int i = 0; i < kPushes; ++i) {
      ASSERT_THAT((*table)->Push(keys, Tensor::Full({5, 2}, -1)).Wait(kTimeout),
                  IsOk());
    }
  });
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
  ASSERT_THAT(table, IsOk());
  const auto rows =
      (*table)->Pull(Tensor::FromVector<int64_t>({1, 4, 101})).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(
      rows->ToVector<float>(),
      ElementsAre(kTrainers * kPushes, kTrainers * kPushes, kTrainers * kPushes,
                  kTrainers * kPushes, kPushes, kPushes));
}

// The weights after each round of a local Adam with the sum of two gradients.
std::vector<std::vector<float>> LocalWeights(
    int64_t elements, int64_t rounds,
    const std::function<Tensor(int shard, int64_t round)>& gradient,
    const std::function<double(int64_t round)>& scale_of) {
  const Variable local(Tensor::Ones({elements}), /*requires_grad=*/true);
  auto optimizer = optimizer::Optimizer::Create(
      {{optimizer::AdamOptions{0.1}, {{"w", local}}}});
  EXPECT_THAT(optimizer, IsOk());
  std::vector<std::vector<float>> weights;
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<float> sum = gradient(0, round).ToVector<float>();
    const std::vector<float> other = gradient(1, round).ToVector<float>();
    for (int64_t i = 0; i < elements; ++i) sum[i] += other[i];
    EXPECT_THAT((*optimizer)->SetLearningRateScale(scale_of(round)), IsOk());
    EXPECT_THAT((*optimizer)->Apply([&](const optimizer::Parameter&) {
      return Gradient(Tensor::FromVector(sum));
    }),
                IsOk());
    weights.push_back(local.value().ToVector<float>());
  }
  return weights;
}

constexpr int64_t kScheduled = 4 * kMinSliceElements + 5;  // elements

v1::TableSpec ScheduledSpec(int trainers) {
  v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, trainers, kScheduled);
  spec.set_orphans(v1::TableSpec::WAIT);
  spec.mutable_rule()->mutable_adam()->set_lr(0.1);
  return spec;
}

// A schedule that changes in round 6, and is set before each round.
double ScheduledScale(int64_t round) {
  static const optimizer::Schedule schedule = optimizer::Sequence(
      {{optimizer::LinearWarmUp(3), 3}}, optimizer::CosineDecay(5));
  return round == 6 ? 0.125 : schedule(std::min<int64_t>(round, 4));
}

Tensor ScheduledGradient(int shard, int64_t round) {
  std::vector<float> values(kScheduled);
  for (int64_t i = 0; i < kScheduled; ++i) {
    values[i] = 1e-3f * static_cast<float>(i % 97) - 0.3f * (shard + 1) +
                0.1f * static_cast<float>(round);
  }
  return Tensor::FromVector(values);
}

// One of the trainers: the rounds before 5, each with its scale and the weights
// that are wanted.
void TrainBeforeRound5(DenseTable& table, int trainer,
                       const std::vector<std::vector<float>>& wanted) {
  ASSERT_THAT(table.Initialize(Tensor::Ones({kScheduled})).Wait(kTimeout),
              IsOk());
  for (int64_t round = 0; round < 5; ++round) {
    ASSERT_THAT(
        table.SetLearningRateScale(ScheduledScale(round)).Wait(kTimeout),
        IsOk());
    const auto values =
        table.PushPull(ScheduledGradient(trainer, round)).Wait(kTimeout);
    ASSERT_THAT(values, IsOk());
    ASSERT_EQ(values->ToVector<float>(), wanted[round]) << round;
  }
}

// In round 5: scales of rounds that are to come.
void SetLaterScales(DenseTable& table) {
  EXPECT_THAT(table.SetLearningRateScale(0.5, 3).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "of round 3 came when round 5 was open"));
  EXPECT_THAT(table.SetLearningRateScale(-1).Wait(kTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, "table 't'"));
  for (const int64_t round : {6, 7}) {
    ASSERT_THAT(
        table.SetLearningRateScale(ScheduledScale(round), round).Wait(kTimeout),
        IsOk());
  }
}

// The name of the checkpoint of `client`'s tables.
absl::StatusOr<std::string> SaveStep(Client& client, const std::string& path,
                                     int64_t step) {
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        checkpoint::CheckpointDirectory::Open({path}));
  WEFT_ASSIGN_OR_RETURN(const auto attempt, directory->Begin(step));
  WEFT_ASSIGN_OR_RETURN(const auto files, client.Save(path, attempt, step));
  return directory->Commit(attempt, files, {});
}

// Two servers and trainers, a schedule that all trainers follow, and a
// checkpoint in the middle that three servers load, with a change to come.
TEST(PsService, LearningRateThatChangesGivesTheBitsOfALocalOptimizer) {
  constexpr int kTrainers = 2;
  const v1::TableSpec spec = ScheduledSpec(kTrainers);
  const std::vector<std::vector<float>> wanted =
      LocalWeights(kScheduled, 8, ScheduledGradient, ScheduledScale);
  ASSERT_EQ(wanted.size(), 8);

  const TempDir temp;
  const std::string path = temp.Path("ckpt");
  absl::StatusOr<std::string> name = absl::UnknownError("not saved");
  {
    TestJob job(/*servers=*/2, kTrainers, nullptr, temp.path());
    OnEach(kTrainers, [&](int trainer) {
      const auto client = job.MakeClient(trainer);
      auto table = client->Dense(spec);
      ASSERT_THAT(table, IsOk());
      TrainBeforeRound5(**table, trainer, wanted);
      if (trainer != 0) return;
      SetLaterScales(**table);
      name = SaveStep(*client, path, 5);
    });
  }
  ASSERT_THAT(name, IsOk());
  TestJob job(/*servers=*/3, /*trainers=*/1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Restore(path, *name), IsOk());
  auto table = client->Dense(spec);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ((*client->Describe())[0].tables(0).learning_rate_scale(),
            ScheduledScale(5));
  for (int64_t round = 5; round < 8; ++round) {
    for (const int shard : {0, 1}) {
      ASSERT_THAT((*table)
                      ->PushShard({shard, round, /*take_over=*/true},
                                  ScheduledGradient(shard, round))
                      .Wait(kTimeout),
                  IsOk());
    }
    (*table)->EndRound();
    const auto values = (*table)->Pull().Wait(kTimeout);
    ASSERT_THAT(values, IsOk());
    EXPECT_EQ(values->ToVector<float>(), wanted[round]) << round;
  }
}

TEST(PsService, AsynchronousLearningRateCountsOnceItIsAcknowledged) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);  // of both servers
  float wanted = 0;
  for (const float scale : {1.0f, 0.5f, 0.0f, 2.0f}) {
    ASSERT_THAT((*table)->SetLearningRateScale(scale).Wait(kTimeout), IsOk());
    const auto rows =
        (*table)->PushPull(keys, Tensor::Ones({20, 2}), keys).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    wanted -= scale;
    EXPECT_THAT(rows->ToVector<float>(), Each(wanted));
  }
  EXPECT_THAT((*table)->SetLearningRateScale(1, 3).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted a SYNC table for a round"));
}

v1::Request PullAs(uint64_t client) {
  v1::Request request;
  request.set_table("t");
  request.set_client(client);
  request.set_pull(true);
  return request;
}

// Whatever a worker writes into its messages.
TEST(PsService, WorkerActsAsAClientOfItsOwnOnly) {
  TestJob job(/*servers=*/1, /*trainers=*/2);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  const auto as = [&](int trainer) {
    return job.trainer(trainer).To("ps0", kTimeout);
  };
  const std::optional<Tensor> none, key = Tensor::FromVector<int64_t>({5});
  ASSERT_THAT(rpc::Call(as(0), &ps::OpenTable, spec, 42), IsOk());
  EXPECT_THAT(rpc::Call(as(0), &ps::Exchange, PullAs(42), none, none, key),
              IsOk());
  const auto is_denied = StatusIs(absl::StatusCode::kPermissionDenied,
                                  "trainer1 (2@0.1) calls as client 42, which "
                                  "is trainer0 (1@0.1)");
  EXPECT_THAT(rpc::Call(as(1), &ps::Exchange, PullAs(42), none, none, key),
              is_denied);
  EXPECT_THAT(rpc::Call(as(1), &ps::Initialize, "t", 42, Tensor::Ones({1})),
              is_denied);
  v1::LearningRate rate;
  rate.set_table("t");
  rate.set_client(42);
  EXPECT_THAT(rpc::Call(as(1), &ps::SetLearningRateScale, rate), is_denied);
  EXPECT_THAT(rpc::Call(as(1), &ps::Exchange, PullAs(7), none, none, key),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "table 't' on server 0: trainer1 (2@0.1) has not opened "
                       "it as client 7"));
}

// Clients of a worker that lives, and of workers that end.
TEST(PsService, WindowsDoNotGrowWithClientsThatCameAndWent) {
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  TestJob job(/*servers=*/1, /*trainers=*/1);
  const auto windows = [&] {
    return job.server(0).Stats().tables(0).windows();
  };
  const auto partitions = spec.partitions();
  const auto client = job.MakeClient(0);
  for (int i = 0; i < 1000; ++i) {
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT((*table)->Push(keys, Tensor::Ones({64, 2})).Wait(kTimeout),
                IsOk());
    job.server(0).Expire(SteadyClock().Now());
    ASSERT_LE(windows(), partitions * int64_t{Openings::kMostOfAWorker});
  }
  job.server(0).Forget(job.trainer(0).key());
  job.server(0).Expire(SteadyClock().Now());
  EXPECT_EQ(windows(), 0);
  EXPECT_THAT(client->Sparse(spec),
              StatusIs(absl::StatusCode::kUnavailable, "is gone"));
  // Learnt from what they pushed.
  auto shard = job.server(0).Find("t");
  ASSERT_THAT(shard, IsOk());
  EXPECT_GT((*shard)->Stats().rows(), 0);
}

// More than a partition's window of 64, whatever the order of their arrival.
TEST(PsService, ManyPushesUnderWayAreAllAppliedOnce) {
  constexpr int kPushes = 1000;
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  std::vector<Future<void>> pushes;
  for (int i = 0; i < kPushes; ++i) {
    pushes.push_back((*table)->Push(keys, Tensor::Full({20, 2}, -1)));
  }
  ASSERT_THAT(WaitAll(std::move(pushes), kTimeout), IsOk());
  EXPECT_THAT((*table)->Pull(keys).Wait(kTimeout)->ToVector<float>(),
              Each(float{kPushes}));
}

TEST(PsService, ServersDescribeTheirTables) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 0)), IsOk());
  const auto stats = client->Describe();
  ASSERT_THAT(stats, IsOk());
  ASSERT_EQ(stats->size(), 2u);
  EXPECT_EQ((*stats)[1].server(), "ps1");
  ASSERT_EQ((*stats)[1].tables_size(), 1);
  EXPECT_EQ((*stats)[1].tables(0).spec().name(), "t");
}

}  // namespace
}  // namespace weft::ps
