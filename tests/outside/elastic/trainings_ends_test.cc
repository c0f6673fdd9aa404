// Trainings over virtual shards whose ranks are stopped, die and join. What is
// expected is what train/data_parallel_training.h and docs/elastic.md say.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/input/data_loader.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/clip.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tests/outside/elastic/crowd.h"
#include "weft/tests/outside/elastic/trainings.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::Not;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

// --- Stops. ------------------------------------------------------------------

TEST(ElasticTraining, OneRankThatIsAskedToStopStopsAllAndResumesToTheBits) {
  const Outcome wanted = TrainFixed({Person()})[0];
  for (const int who : {0, 2}) {
    testing::TempDir dir;
    People people(3);
    for (Person& person : people) {
      person.options = [&](train::Options& options) {
        options.checkpoint_dir = dir.Path("saved");
      };
    }
    auto steps = std::make_shared<std::atomic<int64_t>>(0);
    people[who].options = [&, steps](train::Options& options) {
      options.checkpoint_dir = dir.Path("saved");
      options.asked_to_stop = [steps] { return ++*steps >= 5; };
    };
    const Outcomes outcomes = TrainElastic(people);
    ASSERT_THAT(StatusesOf(outcomes), Each(IsOk()));
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.was_stopped);
      EXPECT_THAT(outcome.saved, IsOk());
      EXPECT_EQ(outcome.steps, outcomes[0].steps);
    }
    EXPECT_LT(outcomes[0].steps, wanted.steps);
    // Another number goes on, one of which dies.
    People later(4);
    for (Person& person : later) {
      person.options = [&](train::Options& options) {
        options.checkpoint_dir = dir.Path("saved");
        options.resume = true;
      };
    }
    later[0].dies = DiesInStep(7);
    const Outcomes resumed = TrainElastic(later);
    for (const int i : {1, 2, 3}) ExpectSame(resumed[i], wanted);
  }
}

// --- Deaths. -----------------------------------------------------------------

TEST(ElasticTraining, RankThatDiesBeforeFinishLeavesTheResult) {
  const Outcome wanted = TrainFixed({Person()})[0];
  for (const int who : {0, 1, 2}) {
    testing::TempDir dir;
    People people(3);
    for (Person& person : people) {
      person.options = [&](train::Options& options) {
        options.checkpoint_dir = dir.Path("saved");
      };
      person.parts = [](DataParallelTraining::Parts& parts) {
        parts.score = [] { return 0.25; };
      };
    }
    people[who].dies_before_finish = [] { return true; };
    const Outcomes outcomes = TrainElastic(people);
    for (const int i : {0, 1, 2}) {
      if (i == who) continue;
      ExpectSame(outcomes[i], wanted);
      EXPECT_THAT(outcomes[i].saved, IsOk());
    }
    const Outcome& first = outcomes[who == 0 ? 1 : 0];
    EXPECT_EQ(first.score, 0.25);
    EXPECT_TRUE(std::filesystem::exists(first.checkpoint)) << first.checkpoint;
  }
}

TEST(ElasticTraining, RankThatDiesInItsScoreLeavesTheResultToTheOthers) {
  const Outcome wanted = TrainFixed({Person()})[0];
  testing::TempDir dir;
  for (const int who : {0, 1}) {
    People people(3);
    for (int i = 0; i < 3; ++i) {
      people[i].parts = [i, who](DataParallelTraining::Parts& parts) {
        parts.score =
            [i, who,
             calls = std::make_shared<int>(0)]() -> absl::StatusOr<double> {
          if (i == who && ++*calls == 2) return absl::CancelledError("died");
          return 0.25;
        };
      };
      people[i].options = [&, who](train::Options& options) {
        options.checkpoint_dir = dir.Path(absl::StrCat("saved", who));
        options.keep_best = true;
      };
    }
    const Outcomes outcomes = TrainElastic(people);
    for (const int i : {0, 1, 2}) {
      if (i != who) ExpectSame(outcomes[i], wanted);
    }
  }
}

// "the checkpoint with the highest stays, under the name best": also if who
// wrote it has died.
TEST(ElasticTraining, BestStaysTheBestWhereItsWriterDies) {
  testing::TempDir dir;
  const auto train = [&](bool dies, const std::string& saved) {
    People people(3);
    for (Person& person : people) {
      person.options = [&dir, saved](train::Options& options) {
        options.checkpoint_dir = dir.Path(saved);
        options.keep_best = true;
        options.keep = 1;
        options.epochs = 5;
      };
      person.parts = [](DataParallelTraining::Parts& parts) {
        // Depends on the model alone, so it is the same on all ranks.
        const nn::Module* model = parts.model;
        parts.score = [model]() -> absl::StatusOr<double> {
          // Falls: each epoch but the first is worse.
          return -std::abs(static_cast<double>(
              model->NamedParameters()[0].variable.value().span<float>()[0]));
        };
      };
    }
    if (dies) people[0].dies = DiesAfterStep(10);
    return TrainElastic(people);
  };
  const Outcomes calm = train(false, "calm");
  const Outcomes wild = train(true, "wild");
  ASSERT_THAT(StatusesOf(calm), Each(IsOk()));
  ExpectSame(wild[1], calm[1]);
  ExpectSame(wild[2], calm[2]);
  const auto names = [&](const std::string& saved) {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(dir.Path(saved))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_EQ(names("wild"), names("calm"));
}

// "keep: so many of the last checkpoints stay": those of two epochs, not one
// twice.
TEST(ElasticTraining, LastStepIsSavedOnceWhereTheFirstDiesBeforeFinish) {
  for (const int who : {0, 1}) {
    testing::TempDir dir;
    People people(3);
    for (Person& person : people) {
      person.options = [&](train::Options& options) {
        options.checkpoint_dir = dir.Path("saved");
        options.keep = 2;
      };
    }
    people[who].dies_before_finish = [] { return true; };
    TrainElastic(people);
    std::set<std::string> steps;
    for (const auto& entry :
         std::filesystem::directory_iterator(dir.Path("saved"))) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, "ckpt-")) {
        EXPECT_TRUE(steps.insert(name.substr(12)).second) << name << who;
      }
    }
    EXPECT_EQ(steps.size(), 2u);
  }
}

// "A checkpoint that cannot be saved is logged and reported by Finish; training
// goes on without it."
TEST(ElasticTraining, DirectoryThatDisappearsIsReportedByFinish) {
  const Outcome wanted = TrainFixed({Person()})[0];
  testing::TempDir dir;
  People people(3);
  for (Person& person : people) {
    person.options = [&](train::Options& options) {
      options.checkpoint_dir = dir.Path("saved");
    };
  }
  // A file in its place, which also a new rank 0 finds.
  people[0].dies = [&](int64_t steps, bool is_in_step) {
    if (steps == 4 && is_in_step) {
      std::filesystem::remove_all(dir.Path("saved"));
      std::fclose(std::fopen(dir.Path("saved").c_str(), "w"));
    }
    return steps == 5;
  };
  const Outcomes outcomes = TrainElastic(people);
  for (const int i : {1, 2}) ExpectSame(outcomes[i], wanted);
  EXPECT_THAT(outcomes[1].saved, Not(IsOk()));
}

TEST(ElasticTraining, MoreThanShardsWaitOutsideAndTakeOver) {
  Person person;
  person.shards = 2;
  const Outcome wanted = TrainFixed({person})[0];
  People people(4, person);
  people[0].dies = DiesInStep(2);
  people[1].dies = DiesAfterStep(4);
  for (Person& p : people) {
    p.elastic = [](DataParallelTraining::Elastic& elastic) {
      elastic.max_ranks = 2;
    };
  }
  const Outcomes outcomes = TrainElastic(people, 2);
  ExpectSame(outcomes[2], wanted);
  ExpectSame(outcomes[3], wanted);
}

// --- Newcomers. --------------------------------------------------------------

// "A newcomer whose model, settings or number of shards differ ends with what
// differs, and the others go on without it."
TEST(ElasticTraining, NewcomersThatDifferAreRefused) {
  const Outcome wanted = TrainFixed({Person()})[0];
  constexpr int kOthers = 6;
  Person other[kOthers];
  other[0].shards = 16;
  other[1].data_seed = 3;
  other[2].size = 46;
  other[3].rule = optimizer::SgdOptions{0.1, 0.9};
  other[4].options = [](train::Options& options) {
    options.settings.fixed = {{"--layers", "3"}};
  };
  other[5].options = [](train::Options& options) {
    options.settings.common = {{"--lr", "0.5"}};
  };
  for (int i = 0; i < kOthers; ++i) {
    SCOPED_TRACE(i);
    const Outcomes outcomes = TrainWithNewcomer(Person(), other[i]);
    ExpectSame(outcomes[0], wanted);
    ExpectSame(outcomes[1], wanted);
    EXPECT_THAT(outcomes[2].status, StatusIs(kInvalidArgument));
  }
}

// "Parts::make_loader ... differs in nothing else": a newcomer that has other
// batches ends, but what it does wrong is no reason for the others to end.
TEST(ElasticTraining, NewcomerWithOtherBatchesDoesNotEndTheOthers) {
  const Outcome wanted = TrainFixed({Person()})[0];
  Person other;
  other.batch = 3;
  const Outcomes outcomes = TrainWithNewcomer(Person(), other);
  ExpectSame(outcomes[0], wanted);
  ExpectSame(outcomes[1], wanted);
  EXPECT_THAT(outcomes[2].status, Not(IsOk()));
}

// "With virtual_shards each pass draws from a generator that depends on the
// seed and stream of rank 0's": a newcomer's own seed does not count, also
// where it is rank 0 later.
TEST(ElasticTraining, NewcomerThatBecomesTheFirstDrawsWhatTheOthersDid) {
  const Outcome wanted = TrainFixed({Person()})[0];
  People people(3);
  people[1].noise_seed = 77;
  people[2].noise_seed = 78;
  people[0].dies = DiesInStep(3);
  people[1].dies = DiesAfterStep(6);
  ExpectSame(TrainElastic(people)[2], wanted);
}

// --- Anything. ---------------------------------------------------------------

// Has `person` end at a random place of its training, with a status or an
// exception.
void DieSomewhere(std::mt19937& random, Person& person) {
  // It ends at the n-th visit of a kind of place.
  const int place = static_cast<int>(random() % 6);
  const bool throws = random() % 2 == 0;
  const int visits = 1 + static_cast<int>(random() % (place < 3   ? 30
                                                      : place < 4 ? 1
                                                                  : 3));
  const auto left = std::make_shared<int>(visits);
  const auto dies = [=]() -> absl::Status {
    if (--*left != 0) return absl::OkStatus();
    if (throws) throw std::runtime_error("died");
    return absl::CancelledError("died");
  };
  if (place == 0 || place == 1) {
    person.dies = [=](int64_t, bool is_in_step) {
      return is_in_step == (place == 0) && !dies().ok();
    };
  } else if (place == 2) {
    person.step = [=](DataParallelTraining& training, Net& net,
                      const input::Example& batch) -> absl::Status {
      WEFT_RETURN_IF_ERROR(training.Backward(LossOf(net, batch)));
      WEFT_RETURN_IF_ERROR(dies());
      return training.Step();
    };
  } else if (place == 3) {
    person.dies_before_finish = [=] { return !dies().ok(); };
  } else if (place == 4) {
    person.parts = [=, parts_of =
                           person.parts](DataParallelTraining::Parts& parts) {
      parts_of(parts);
      parts.make_loader = [=, make = parts.make_loader](int s, int n)
          -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
        WEFT_RETURN_IF_ERROR(dies());
        return make(s, n);
      };
    };
  } else {
    person.elastic = [=](DataParallelTraining::Elastic& elastic) {
      elastic.join = [=, join = elastic.join](const auto& prepare)
          -> absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> {
        WEFT_RETURN_IF_ERROR(dies());
        return join(prepare);
      };
    };
  }
}

// Ranks end at random places, with a status or an exception, until one is left,
// and who is left has the bits of a training that nobody touched, and its last
// checkpoint.
TEST(ElasticTraining, AnyEndsOfRanksAnywhereLeaveTheBits) {
  constexpr int kRanks = 4;
  const auto saving = [](Person& person, const std::string& saved) {
    person.shards = 4;
    person.seed = 1;  // who is first at the begin gives its weights
    person.options = [saved](train::Options& options) {
      options.checkpoint_dir = saved;
      options.keep_best = true;
      options.keep = 2;
    };
    person.parts = [](DataParallelTraining::Parts& parts) {
      parts.score = [model = parts.model]() -> absl::StatusOr<double> {
        return static_cast<double>(
            model->NamedParameters()[0].variable.value().span<float>()[0]);
      };
    };
  };
  testing::TempDir dir;
  const auto names = [&](const std::string& saved) {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(dir.Path(saved))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  Person calm;
  saving(calm, dir.Path("calm"));
  const Outcome wanted = TrainFixed({calm})[0];
  ASSERT_THAT(wanted.status, IsOk());
  for (uint32_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const std::string saved = absl::StrCat("saved", seed);
    People people(kRanks);
    const size_t survivor = random() % kRanks;
    for (size_t i = 0; i < kRanks; ++i) {
      Person& person = people[i];
      saving(person, dir.Path(saved));
      if (i == survivor) continue;
      DieSomewhere(random, person);
    }
    const Outcomes outcomes = TrainElastic(people);
    for (size_t i = 0; i < kRanks; ++i) {
      if (i != survivor &&
          absl::StrContains(outcomes[i].status.message(), "died")) {
        continue;
      }
      ExpectSame(outcomes[i], wanted);
      EXPECT_THAT(outcomes[i].saved, IsOk());
    }
    EXPECT_EQ(names(saved).back().substr(12), "step-18");
  }
}

}  // namespace
}  // namespace weft::outside
