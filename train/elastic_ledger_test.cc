// Each sample of an epoch counts once, whichever ranks die and come: a ledger
// of the samples with which the groups took their steps.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/elastic_training_world.h"

namespace weft::train {
namespace {

constexpr int64_t kSamples = 64;  // 8 of each shard: none is dealt twice
constexpr int64_t kStepsOfEpoch = 4;
constexpr int kEpochs = 3;

class ElasticLedgerTest : public ElasticTrainingTest {
 protected:
  ElasticLedgerTest() : ElasticTrainingTest(kSamples) {}

  // Every step was taken, by whichever groups with the same samples, and those
  // of the steps of an epoch are all samples, once each.
  static void ExpectEachSampleOnce(const Ledger& ledger) {
    std::map<int64_t, std::multiset<int64_t>> of_step;
    for (const auto& [key, entry] : ledger.entries()) {
      const auto& [step, group] = key;
      if (!entry.is_taken) continue;  // those who were left have repeated it
      const auto [at, is_first] = of_step.emplace(step, entry.samples);
      EXPECT_EQ(at->second, entry.samples)
          << "step " << step << " of group " << group;
    }
    EXPECT_EQ(of_step.size(), static_cast<size_t>(kEpochs * kStepsOfEpoch));
    std::map<int64_t, std::map<int64_t, int>> counts;  // by epoch and sample
    for (const auto& [step, samples] : of_step) {
      for (const int64_t sample : samples) {
        ++counts[step / kStepsOfEpoch][sample];
      }
    }
    ASSERT_EQ(counts.size(), static_cast<size_t>(kEpochs));
    for (const auto& [epoch, of_epoch] : counts) {
      EXPECT_EQ(of_epoch.size(), static_cast<size_t>(kSamples));
      for (const auto& [sample, times] : of_epoch) {
        EXPECT_EQ(times, 1) << "sample " << sample << " of epoch " << epoch;
      }
    }
  }

  // Steps that a group began and none of its ranks took.
  static int Repeated(const Ledger& ledger) {
    int repeated = 0;
    for (const auto& [key, entry] : ledger.entries()) {
      repeated += !entry.is_taken;
    }
    return repeated;
  }
};

TEST_F(ElasticLedgerTest, EachSampleCountsOnceWhereNobodyDies) {
  Ledger ledger;
  std::vector<Person> people(3);
  for (Person& person : people) person.ledger = &ledger;
  for (const Outcome& outcome : TrainAll(people)) {
    WEFT_ASSERT_OK(outcome.status);
  }
  ExpectEachSampleOnce(ledger);
  EXPECT_EQ(Repeated(ledger), 0);
}

// Two of four die at random messages, and two others come meanwhile.
TEST_F(ElasticLedgerTest, EachSampleCountsOnceWhoeverDiesAndComes) {
  int repeated = 0;
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    Ledger ledger;
    Crowd crowd;
    crowd.Doom(1, 0, 20 + static_cast<int64_t>(random() % 150));
    crowd.Doom(2, static_cast<int>(random() % 2),
               20 + static_cast<int64_t>(random() % 100));
    std::vector<Person> people(4);
    for (Person& person : people) {
      person.ledger = &ledger;
      person.awaits_next_group = true;
    }
    const auto comes_at = static_cast<int64_t>(random() % 8);
    std::vector<Outcome> late(2);
    std::vector<std::thread> newcomers;
    people[0].dies = [&](int64_t steps, bool is_in_step) {
      if (steps < comes_at || is_in_step || !newcomers.empty()) return false;
      for (int i = 0; i < 2; ++i) {
        crowd.Add(4 + i);
        Person newcomer;
        newcomer.seed = 1;  // where the others have ended it begins anew
        newcomer.ledger = &ledger;
        newcomer.awaits_next_group = true;
        newcomers.emplace_back([this, &crowd, &late, i, newcomer] {
          late[i] = Train(crowd, 4 + i, newcomer);
        });
      }
      return false;
    };
    const std::vector<Outcome> outcomes = TrainAll(people, crowd);
    for (std::thread& newcomer : newcomers) newcomer.join();
    for (const Outcome& outcome : {outcomes[0], outcomes[3], late[0]}) {
      ExpectUndisturbed(outcome);
    }
    ExpectEachSampleOnce(ledger);
    repeated += Repeated(ledger);
    if (HasFailure()) return;
  }
  EXPECT_GT(repeated, 10);  // the ledger is of something
}

}  // namespace
}  // namespace weft::train
