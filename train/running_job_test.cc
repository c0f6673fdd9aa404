#include "weft/train/running_job.h"

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_workers.h"

namespace weft::train {
namespace {

using input::ShardedSampler;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

ShardedSampler SamplerOf(int shard, int shards, int64_t size) {
  ShardedSampler::Options options;
  options.size = size;
  options.shard = shard;
  options.shards = shards;
  options.seed = 7;
  auto sampler = ShardedSampler::Create(options);
  EXPECT_THAT(sampler, IsOk());
  return *std::move(sampler);
}

// The sampler's steps in training: batch after batch, epoch after epoch.
ShardedSampler::State Walk(ShardedSampler sampler,
                           const ShardedSampler::State& start, int64_t rounds,
                           int64_t batch) {
  EXPECT_THAT(sampler.LoadState(start), IsOk());
  int64_t epoch = start.epoch;
  const auto next_epoch = [&] {
    if (sampler.remaining() == 0) sampler.SetEpoch(++epoch);
  };
  next_epoch();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t i = 0; i < batch && sampler.Next().has_value(); ++i) {
    }
    next_epoch();
  }
  return sampler.state();
}

TEST(PlaceAfter, AnyRoundIsThePlaceOfATrainerThatHasTrainedSoFar) {
  for (const int64_t size : {37, 64}) {
    for (const int shards : {1, 2, 3}) {
      for (const int64_t batch : {1, 5, 16}) {
        ShardedSampler::State start = SamplerOf(0, shards, size).state();
        start.used = shards * 4;
        for (int64_t rounds = 0; rounds < 80; ++rounds) {
          for (int shard = 0; shard < shards; ++shard) {
            const ShardedSampler sampler = SamplerOf(shard, shards, size);
            const auto place = PlaceAfter(sampler, start, rounds, batch);
            ASSERT_THAT(place, IsOk());
            EXPECT_EQ(place->ToString(),
                      Walk(sampler, start, rounds, batch).ToString())
                << size << " examples, shard " << shard << " of " << shards
                << ", batch " << batch << ", round " << rounds;
          }
        }
      }
    }
  }
}

TEST(PlaceAfter, StartOfOtherDataIsRefused) {
  EXPECT_THAT(
      PlaceAfter(SamplerOf(0, 1, 64), SamplerOf(0, 1, 65).state(), 1, 1),
      StatusIs(absl::StatusCode::kInvalidArgument, "size 65"));
}

TEST(RunningJob, TrainerThatHasBegunIsFoundByTheOthersUntilItHasGone) {
  worker::TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 2;
  const auto workers = worker::TestWorkers::Start(options);
  ASSERT_THAT(workers, IsOk());
  auto& first = (*workers)->Get("trainer0").membership();
  auto& second = (*workers)->Get("trainer1").membership();
  RunningJob at_first(first, 0, 2);
  RunningJob at_second(second, 1, 2);
  EXPECT_THAT(at_second.FindTrainer(), IsOkAndHolds(""));
  const ShardedSampler::State place = SamplerOf(0, 2, 64).state();
  ASSERT_THAT(at_first.SetStart({16, place}), IsOk());
  const rendezvous::Member trainer0 = first.self();
  EXPECT_THAT(at_second.Trains(trainer0), IsOkAndHolds(false));
  ASSERT_THAT(at_first.BeginTraining(), IsOk());
  EXPECT_THAT(at_second.Trains(trainer0), IsOkAndHolds(true));
  rendezvous::Member next = trainer0;  // as it comes back
  ++next.incarnation;
  EXPECT_THAT(at_second.Trains(next), IsOkAndHolds(false));
  EXPECT_THAT(at_first.FindTrainer(), IsOkAndHolds(""));
  EXPECT_THAT(at_second.FindTrainer(), IsOkAndHolds("trainer0"));
  const auto start = at_second.GetStart();
  ASSERT_THAT(start, IsOk());
  EXPECT_EQ(start->round, 16);
  EXPECT_EQ(start->place.ToString(), place.ToString());
  ASSERT_THAT(first.Leave(absl::Seconds(10)), IsOk());
  ASSERT_THAT(second.WaitFor(
                  [](const rendezvous::View& view) {
                    return view.Find("trainer0") == nullptr;
                  },
                  absl::Seconds(30)),
              IsOk());
  EXPECT_THAT(at_second.FindTrainer(), IsOkAndHolds(""));
}

}  // namespace
}  // namespace weft::train
