// Trainings over virtual shards whose parts and data misbehave, of fixed
// and of elastic ranks. What is expected is what train/data_parallel_training.h
// and docs/elastic.md say.

#include "weft/tests/outside/elastic/trainings.h"

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

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
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

// --- Steps and data. ---------------------------------------------------------

TEST(ShardedTraining, HasTheSameBitsOnAnyRanks) { ExpectSameOnAny({}); }

// "clipped gradients, or several passes for a step"
TEST(ShardedTraining, ClippedGradientsKeepTheBits) {
  Person person;
  person.step = [](DataParallelTraining& training, Net& net,
                   const input::Example& batch) -> absl::Status {
    WEFT_RETURN_IF_ERROR(training.Backward(LossOf(net, batch)));
    WEFT_RETURN_IF_ERROR(
        optimizer::ClipGradNorm(net.Parameters(), 0.01).status());
    return training.Step();
  };
  ExpectSameOnAny(person);
}

TEST(ShardedTraining, SeveralPassesForAStepKeepTheBits) {
  Person person;
  person.step = [](DataParallelTraining& training, Net& net,
                   const input::Example& batch) -> absl::Status {
    WEFT_RETURN_IF_ERROR(training.Backward(Mul(LossOf(net, batch), 0.25)));
    WEFT_RETURN_IF_ERROR(training.Backward(Mul(LossOf(net, batch), 0.5)));
    return training.Step();
  };
  ExpectSameOnAny(person);
}

TEST(ShardedTraining, SomeDataOrNoneHasTheSameBits) {
  for (const int64_t size : {1, 3, 7, 8, 9, 17}) {
    for (const bool drop_last : {false, true}) {
      Person person;
      person.size = size;
      person.drop_last = drop_last;
      SCOPED_TRACE(absl::StrCat(size, drop_last ? " dropped" : ""));
      // Each shard has ceil(size / 8) examples.
      ExpectSameOnAny(person, !drop_last || size > 8);
    }
  }
}

TEST(ShardedTraining, AnyNumberOfShardsHasTheSameBits) {
  for (const int shards : {1, 2, 64}) {
    Person person;
    person.shards = shards;
    person.batch = shards == 64 ? 1 : 8;
    SCOPED_TRACE(shards);
    if (shards == 1) {
      EXPECT_THAT(TrainFixed({person})[0].status, IsOk());
      EXPECT_THAT(StatusesOf(TrainFixed({person, person})),
                  Each(StatusIs(kInvalidArgument)));
    } else {
      ExpectSameOnAny(person);
    }
  }
}

// "kFailedPrecondition without a Backward before": and the step goes on.
TEST(ShardedTraining, StepWithoutBackwardIsRefusedAndHarmsNothing) {
  Person person;
  const Outcome wanted = TrainFixed({person})[0];
  person.step = [](DataParallelTraining& training, Net& net,
                   const input::Example& batch) -> absl::Status {
    EXPECT_THAT(training.Step(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    return training.Step(LossOf(net, batch));
  };
  for (const Outcome& outcome : TrainFixed({person, person})) {
    ExpectSame(outcome, wanted);
  }
}

// Next without a Step before: an error, not a step of fewer shards.
TEST(ShardedTraining, NextWithoutAStepDoesNotLoseAShard) {
  Person person;
  auto calls = std::make_shared<int>(0);
  person.step = [calls](DataParallelTraining& training, Net& net,
                        const input::Example& batch) -> absl::Status {
    if ((*calls)++ == 1) return absl::OkStatus();  // forgets it
    return training.Step(LossOf(net, batch));
  };
  EXPECT_THAT(TrainFixed({person})[0].status, Not(IsOk()));
}

// --- Parts. ------------------------------------------------------------------

// "kInvalidArgument     a part is missing"
TEST(ShardedTraining, PartsThatAreMissingAreErrors) {
  for (int missing = 0; missing < 4; ++missing) {
    Person person;
    person.parts = [missing](DataParallelTraining::Parts& parts) {
      if (missing == 0) parts.model = nullptr;
      if (missing == 1) parts.optimizer = nullptr;
      if (missing == 2) parts.make_loader = nullptr;
      if (missing == 3) parts.virtual_shards = 0;
    };
    EXPECT_THAT(StatusesOf(TrainFixed({person, person})),
                Each(StatusIs(kInvalidArgument)));
    EXPECT_THAT(StatusesOf(TrainElastic({person, person})),
                Each(StatusIs(kInvalidArgument)));
  }
}

// A loader that cannot be made: an error, with its reason on that rank.
TEST(ShardedTraining, LoaderThatCannotBeMadeEndsAll) {
  for (const int how : {0, 1, 2}) {
    Person person;
    person.parts = [how](DataParallelTraining::Parts& parts) {
      parts.make_loader = [how, make = parts.make_loader](int shard, int shards)
          -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
        if (shard != 5) return make(shard, shards);
        if (how == 0) return absl::NotFoundError("shard 5 is lost");
        if (how == 1) throw std::runtime_error("shard 5 throws");
        return nullptr;
      };
    };
    const Outcomes fixed = TrainFixed({person, person, person});
    EXPECT_THAT(StatusesOf(fixed), Each(Not(IsOk()))) << how;
    if (how != 2) {
      EXPECT_THAT(std::string(fixed[1].status.message()), HasSubstr("shard 5"));
    }
    // Whoever takes over the shard fails too.
    EXPECT_THAT(StatusesOf(TrainElastic({person, person, person})),
                Each(Not(IsOk())))
        << how;
  }
}

// Only one rank cannot make it: it ends, and the others go on.
TEST(ElasticTraining, LoaderThatOneRankCannotMakeEndsThatRank) {
  for (const int how : {0, 1, 2}) {
    People people(3);
    people[1].parts = [how](DataParallelTraining::Parts& parts) {
      parts.make_loader =
          [how](int,
                int) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
        if (how == 0) return absl::NotFoundError("the disk is lost");
        if (how == 1) throw std::runtime_error("the disk is lost");
        return nullptr;
      };
    };
    const Outcomes outcomes = TrainElastic(people);
    EXPECT_THAT(outcomes[1].status, Not(IsOk()));
    const Outcome wanted = TrainFixed({Person()})[0];
    ExpectSame(outcomes[0], wanted);
    ExpectSame(outcomes[2], wanted);
  }
}

// An example that nobody can read ends all, with that.
TEST(ElasticTraining, ExampleThatNobodyCanReadEndsAll) {
  Person person;
  person.broken = 20;
  const Outcomes outcomes = TrainElastic({person, person, person});
  EXPECT_THAT(StatusesOf(outcomes),
              Each(StatusIs(absl::StatusCode::kDataLoss, "torn page")));
}

// A loader of something else than the others': loaders that end at other times.
TEST(ShardedTraining, LoaderOfOtherDataIsFound) {
  for (const int how : {0, 1}) {
    People people(2);
    if (how == 0) people[1].size = 90;
    if (how == 1) people[1].batch = 1;
    EXPECT_THAT(StatusesOf(TrainFixed(people)), Each(Not(IsOk()))) << how;
  }
}

// --- Losses. -----------------------------------------------------------------

// "kOutOfRange, with ExitCode kDiverged and on every rank, if that is not
// finite"
TEST(ShardedTraining, LossThatIsNotFiniteOnOneShardEndsAll) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    People people(3);
    people[1].step = [value](DataParallelTraining& training, Net& net,
                             const input::Example& batch) {
      return training.Step(
          Mul(LossOf(net, batch), training.steps() == 2 ? value : 1));
    };
    EXPECT_THAT(StatusesOf(TrainFixed(people)),
                Each(StatusIs(absl::StatusCode::kOutOfRange)));
    EXPECT_THAT(StatusesOf(TrainElastic(people)),
                Each(StatusIs(absl::StatusCode::kOutOfRange)));
  }
}

TEST(ElasticTraining, LossesThatAreNotFiniteMayBeAllowed) {
  People people(2);
  for (Person& person : people) {
    person.options = [](train::Options& options) {
      options.allow_non_finite = true;
    };
  }
  people[1].step = [](DataParallelTraining& training, Net& net,
                      const input::Example& batch) {
    return training.Step(Mul(LossOf(net, batch), std::nan("")));
  };
  EXPECT_THAT(StatusesOf(TrainElastic(people)), Each(IsOk()));
}

// --- Functions that throw. ---------------------------------------------------

TEST(ShardedTraining, ScoreThatFailsEndsAll) {
  for (const bool throws : {false, true}) {
    for (const bool keeps_best : {false, true}) {
      testing::TempDir dir;
      Person person;
      person.options = [&](train::Options& options) {
        options.keep_best = keeps_best;
        if (keeps_best) options.checkpoint_dir = dir.Path("saved");
      };
      person.parts = [throws](DataParallelTraining::Parts& parts) {
        parts.score = [throws]() -> absl::StatusOr<double> {
          if (throws) throw std::runtime_error("no score");
          return absl::NotFoundError("no score");
        };
      };
      const Outcomes outcomes = TrainElastic({person, person});
      for (const Outcome& outcome : outcomes) {
        EXPECT_THAT(outcome.status, Not(IsOk()));
        EXPECT_THAT(std::string(outcome.status.message()),
                    HasSubstr("no score"));
      }
    }
  }
}

// One rank's own trouble with the score ends that rank.
TEST(ElasticTraining, ScoreThatThrowsOnOneRankEndsThatRank) {
  People people(3);
  for (Person& person : people) {
    person.parts = [](DataParallelTraining::Parts& parts) {
      parts.score = [] { return 0.5; };
    };
  }
  people[1].parts = [](DataParallelTraining::Parts& parts) {
    parts.score = []() -> absl::StatusOr<double> {
      throw std::runtime_error("no score");
    };
  };
  const Outcomes outcomes = TrainElastic(people);
  EXPECT_THAT(outcomes[1].status, Not(IsOk()));
  const Outcome wanted = TrainFixed({Person()})[0];
  ExpectSame(outcomes[0], wanted);
  ExpectSame(outcomes[2], wanted);
  EXPECT_EQ(outcomes[0].score, 0.5);
}

// "What a function of Options throws becomes its status."
TEST(ElasticTraining, FunctionsOfOptionsThatThrowEndTheirRank) {
  for (const bool is_stop : {false, true}) {
    People people(3);
    people[0].options = [is_stop](train::Options& options) {
      if (is_stop) {
        options.asked_to_stop = []() -> bool {
          throw std::runtime_error("bad luck");
        };
      } else {
        options.on_loss = [](int64_t step, double) {
          if (step == 3) throw std::runtime_error("bad luck");
        };
      }
    };
    const Outcomes outcomes = TrainElastic(people);
    EXPECT_THAT(std::string(outcomes[0].status.message()),
                HasSubstr("bad luck"));
    const Outcome wanted = TrainFixed({Person()})[0];
    ExpectSame(outcomes[1], wanted);
    ExpectSame(outcomes[2], wanted);
  }
}

// "an error ends the training on this rank"
TEST(ElasticTraining, JoinThatFailsOrThrowsLaterEndsThatRank) {
  for (const bool throws : {false, true}) {
    People people(3);
    people[0].dies = DiesInStep(2);
    people[1].elastic = [throws](DataParallelTraining::Elastic& elastic) {
      elastic.join = [throws, calls = std::make_shared<int>(0),
                      join = elastic.join](const auto& prepare)
          -> absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> {
        if ((*calls)++ == 0) return join(prepare);
        if (throws) throw std::runtime_error("no more");
        return absl::AbortedError("no more");
      };
    };
    const Outcomes outcomes = TrainElastic(people);
    EXPECT_THAT(std::string(outcomes[1].status.message()),
                HasSubstr("no more"));
    ExpectSame(outcomes[2], TrainFixed({Person()})[0]);
  }
}

TEST(ElasticTraining, HasNewcomersThatThrowsIsAStatus) {
  People people(2);
  people[0].elastic = [](DataParallelTraining::Elastic& elastic) {
    elastic.has_newcomers = []() -> bool {
      throw std::runtime_error("no store");
    };
  };
  const Outcomes outcomes = TrainElastic(people);
  EXPECT_THAT(std::string(outcomes[0].status.message()), HasSubstr("no store"));
  ExpectSame(outcomes[1], TrainFixed({Person()})[0]);
}

// Somebody seems to wait for ever who never comes.
TEST(ElasticTraining, NewcomersThatNeverComeDoNotHarm) {
  People people(2);
  for (Person& person : people) {
    person.elastic = [](DataParallelTraining::Elastic& elastic) {
      elastic.has_newcomers = [] { return true; };
    };
  }
  const Outcome wanted = TrainFixed({Person()})[0];
  for (const Outcome& outcome : TrainElastic(people)) {
    ExpectSame(outcome, wanted);
  }
}

}  // namespace
}  // namespace weft::outside
