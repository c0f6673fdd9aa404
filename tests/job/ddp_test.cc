// Data-parallel training as users run it: `weft run` and the trainer program.

#include <signal.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kConfig = 3;
constexpr int kPeerLost = 10;

// Sums over a batch are of another order, and Adam divides by the gradient's
// size: a weight whose gradient is near 0 moves by a larger share of the
// learning rate, which is 1e-3 here, than the sums differ.
constexpr double kTolerance = 1e-5;

// Runs `ranks` of them to their end; the newest checkpoint in `saved`.
checkpoint::NamedTensors TrainTogether(const Job& job, int ranks, int64_t batch,
                                       const std::string& saved,
                                       std::string* output = nullptr,
                                       const Flags& more = {"--epochs=2"}) {
  Flags command = {Program("weft"),
                   "run",
                   absl::StrCat("--nproc-per-node=", ranks),
                   "--no-prefix",
                   Program("trainer"),
                   "--strategy=ddp",
                   "--data=" + job.data,
                   absl::StrCat("--batch-size=", batch),
                   "--lr=0.001",
                   "--json",
                   "--checkpoint-dir=" + saved,
                   "--dump-dir=" + job.Path("")};
  command.insert(command.end(), more.begin(), more.end());
  const auto run = StartProcess(std::move(command));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  if (output != nullptr) *output = run->output();
  checkpoint::CheckpointDirectory::Options options;
  options.path = saved;
  const auto directory = checkpoint::CheckpointDirectory::Open(options);
  EXPECT_THAT(directory, IsOk());
  const auto loaded = (*directory)->LoadLatest();
  EXPECT_THAT(loaded, IsOk()) << run->output();
  if (!loaded.ok()) return {};
  return loaded->tensors;
}

TEST(DataParallelJob, TwoRanksEndWithTheWeightsOfOneThatHasTheWholeBatch) {
  const Job job;
  const auto one = TrainTogether(job, 1, 32, job.Path("one"));
  std::string output;
  const auto two = TrainTogether(job, 2, 16, job.Path("two"), &output);
  ASSERT_THAT(Checkpoints(job.Path("two")), SizeIs(2));
  // Rank 0 says the result once; lines of both ranks are mixed.
  EXPECT_THAT(output, ContainsRegex("\"test_accuracy\":0\\.[0-9]+,"));
  ASSERT_EQ(one.size(), two.size());
  ASSERT_TRUE(one.contains("conv1.weight"));
  for (const auto& [name, wanted] : one) {
    if (name.rfind("optimizer/", 0) == 0) continue;
    ASSERT_TRUE(two.contains(name)) << name;
    const auto a = wanted.ToVector<float>();
    const auto b = two.at(name).ToVector<float>();
    ASSERT_EQ(a.size(), b.size()) << name;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], kTolerance) << name << " " << i;
    }
  }
}

// All tensors, those of the optimizer too, to the bit.
void ExpectSameBits(const checkpoint::NamedTensors& found,
                    const checkpoint::NamedTensors& wanted) {
  ASSERT_GT(wanted.size(), 6);
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    const Tensor& other = found.at(name);
    ASSERT_EQ(other.bytes(), tensor.bytes()) << name;
    EXPECT_EQ(memcmp(other.raw(), tensor.raw(), tensor.bytes()), 0) << name;
  }
}

TEST(DataParallelJob, VirtualShardsGiveTheSameBitsOnAnyNumberOfTrainers) {
  const Job job;
  const Flags flags = {"--virtual-shards=8", "--epochs=2"};
  const auto one = TrainTogether(job, 1, 4, job.Path("one"), nullptr, flags);
  for (const int ranks : {2, 3, 5}) {
    const std::string saved = job.Path(absl::StrCat(ranks));
    ExpectSameBits(TrainTogether(job, ranks, 4, saved, nullptr, flags), one);
  }
  // Begun by 3, ended by 2.
  const std::string parts = job.Path("parts");
  TrainTogether(job, 3, 4, parts, nullptr,
                {"--virtual-shards=8", "--epochs=1"});
  ExpectSameBits(
      TrainTogether(job, 2, 4, parts, nullptr,
                    {"--virtual-shards=8", "--epochs=2", "--resume"}),
      one);
}

TEST(DataParallelJob, KilledRankIsNamedAndTheOtherEndsWithPeerLost) {
  Job job;
  job.servers = 0;
  job.coordinator = "unix:" + job.Path("trainer0.sock");
  const std::string saved = job.Path("saved");
  const Processes trainers = job.StartTrainers(
      {"--strategy=ddp", kForLong, "--checkpoint-dir=" + saved});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << trainers[0]->output() << trainers[1]->output();
  trainers[1]->Signal(SIGKILL);
  EXPECT_THAT(trainers[0]->Wait(kLong), IsOkAndHolds(kPeerLost));
  EXPECT_THAT(trainers[0]->output(), HasSubstr("rank 1"));
}

TEST(DataParallelJob, StopSignalEndsAllRanksAfterTheSameStep) {
  Job job;
  job.servers = 0;
  job.coordinator = "unix:" + job.Path("trainer0.sock");
  const std::string saved = job.Path("saved");
  const Processes trainers = job.StartTrainers(
      {"--strategy=ddp", kForLong, "--checkpoint-dir=" + saved});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << trainers[0]->output() << trainers[1]->output();
  trainers[1]->Signal(SIGTERM);
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
        << trainer->output();
  }
  EXPECT_TRUE(ResultOf(*trainers[0]).is_interrupted);
}

TEST(DataParallelJob, TrainersOfUnequalSettingsAreRefusedByName) {
  Job job;
  job.servers = 0;
  job.coordinator = "unix:" + job.Path("trainer0.sock");
  const auto trainer0 = job.StartTrainer(0, {"--strategy=ddp"});
  const auto trainer1 =
      job.StartTrainer(1, {"--strategy=ddp", "--seed=7", "--lr=0.5"});
  for (const auto* trainer : {&trainer0, &trainer1}) {
    EXPECT_THAT((*trainer)->Wait(kLong), IsOkAndHolds(kConfig))
        << (*trainer)->output();
  }
  EXPECT_THAT(trainer1->output(),
              HasSubstr("--lr is 0.5 at trainer1 and 0.01 at trainer0; --seed "
                        "is 7 at trainer1 and 1 at trainer0"));
}

TEST(DataParallelJob, CheckpointsOfOtherRunsAndStrategiesAreRefused) {
  Job job;
  const std::string saved = job.Path("saved");
  const Flags flags = {"--epochs=1", "--checkpoint-dir=" + saved};
  job.Train(flags);  // with parameter servers
  job.servers = 0;
  job.trainers = 1;
  job.coordinator = "unix:" + job.Path("trainer0.sock");
  const auto refuses = [&](const Flags& more, const std::string& why) {
    Flags all = flags;
    all.insert(all.end(), more.begin(), more.end());
    const auto trainer = job.StartTrainer(0, all);
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kConfig))
        << trainer->output();
    EXPECT_THAT(trainer->output(), HasSubstr(why));
  };
  refuses({"--strategy=ddp"}, "found 1 of a former run");
  refuses({"--strategy=ddp", "--resume"}, "--strategy is ps there and ddp now");
}

TEST(DataParallelJob, DeathOfTheFirstRankLeavesNoOtherWithCodeZero) {
  Job job;
  job.servers = 0;
  job.coordinator = "unix:" + job.Path("trainer0.sock");
  const Processes trainers = job.StartTrainers({"--strategy=ddp", kForLong});
  ASSERT_THAT(trainers[0]->WaitForOutput("training ", kLong), IsOk());
  trainers[0]->Signal(SIGKILL);
  EXPECT_THAT(trainers[1]->Wait(kLong), IsOkAndHolds(kPeerLost));
  // Which of the two is told first is a race: the group, or the membership.
  EXPECT_THAT(trainers[1]->output(),
              AnyOf(HasSubstr("rank 0"), HasSubstr("process of trainer0")));
}

// Two trainers that train together, and save as they go.
class StoppedRank : public ::testing::Test {
 protected:
  StoppedRank() {
    job_.servers = 0;
    job_.coordinator = "unix:" + job_.Path("trainer0.sock");
    trainers_ = job_.StartTrainers(
        {"--strategy=ddp", kForLong, "--checkpoint-dir=" + job_.Path("saved")});
    EXPECT_TRUE(Becomes([&] {
      return !Checkpoints(job_.Path("saved")).empty();
    })) << trainers_[0]->output()
        << trainers_[1]->output();
  }

  Job job_;
  Processes trainers_;
};

// It hosts the coordinator, so nobody declares it gone.
TEST_F(StoppedRank, ZeroForGoodEndsTheOthersWithTheReason) {
  trainers_[0]->Signal(SIGSTOP);
  EXPECT_THAT(trainers_[1]->Wait(kLong), IsOkAndHolds(kPeerLost));
  EXPECT_THAT(trainers_[1]->output(),
              ContainsRegex("error: .*AllReduce.* is out of job \"job\": the "
                            "coordinator has been silent"));
}

TEST_F(StoppedRank, ZeroThatComesBackAfterTheOthersHaveEndedEndsAtOnce) {
  trainers_[0]->Signal(SIGSTOP);
  EXPECT_THAT(trainers_[1]->WaitForOutput("is out of job", kLong), IsOk());
  trainers_[0]->Signal(SIGCONT);
  for (const auto& trainer : trainers_) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kPeerLost))
        << trainer->output();
  }
  EXPECT_THAT(trainers_[0]->output(), ContainsRegex("error: .*rank 1"));
}

TEST_F(StoppedRank, OtherThatComesBackAfterItWasDeclaredGoneEndsAtOnce) {
  trainers_[1]->Signal(SIGSTOP);
  EXPECT_THAT(trainers_[0]->Wait(kLong), IsOkAndHolds(kPeerLost));
  EXPECT_THAT(trainers_[0]->output(),
              ContainsRegex("error: .*rank 1 is gone .silent for [0-9]+s"));
  trainers_[1]->Signal(SIGCONT);
  EXPECT_THAT(trainers_[1]->Wait(kLong), IsOkAndHolds(kPeerLost))
      << trainers_[1]->output();
}

}  // namespace
}  // namespace weft::testing
