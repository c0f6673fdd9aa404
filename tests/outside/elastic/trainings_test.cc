// Trainings over virtual shards whose parts, data and ranks misbehave, of fixed
// and of elastic ranks. What is expected is what train/data_parallel_training.h
// and docs/elastic.md say.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
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
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using train::DataParallelTraining;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

class Points final : public input::Dataset {
 public:
  Points(int64_t size, int64_t broken) : size_(size), broken_(broken) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    if (index == broken_) return absl::DataLossError("a torn page");
    const float x = static_cast<float>(index % 17) / 8 - 1;
    const float y = static_cast<float>(index % 5) / 2 - 1;
    return input::Example{Tensor::FromVector<float>({x, y}),
                          Tensor::Scalar<int64_t>(x * y > 0 ? 1 : 0)};
  }

 private:
  const int64_t size_, broken_;
};

class Net final : public nn::Module {
 public:
  explicit Net(Generator& random)
      : hidden_(2, 6, random), dropout_(0.3, random), output_(6, 2, random) {
    AddModule("hidden", hidden_);
    AddModule("dropout", dropout_);
    AddModule("output", output_);
  }
  Variable Forward(const Variable& x) {
    return output_.Forward(dropout_.Forward(Tanh(hidden_.Forward(x))));
  }

 private:
  nn::Linear hidden_;
  nn::Dropout dropout_;
  nn::Linear output_;
};

Variable LossOf(Net& net, const input::Example& batch) {
  return CrossEntropy(net.Forward(Variable(batch[0])), batch[1]);
}

// One who trains.
struct Person {
  int64_t size = 45;  // of the data
  int64_t broken = -1;
  uint64_t data_seed = 0;
  int64_t batch = 2;
  bool drop_last = false;
  int shards = 8;
  uint64_t noise_seed = 5;
  // Of its own first weights; 0: another one for each.
  uint64_t seed = 0;
  optimizer::RuleOptions rule = optimizer::AdamOptions{0.01};
  // Change what is given to Create.
  std::function<void(DataParallelTraining::Parts&)> parts;
  std::function<void(train::Options&)> options;
  std::function<void(DataParallelTraining::Elastic&)> elastic;
  // What befalls this rank: before each pass, after each Step, and before
  // Finish; true: it dies there.
  std::function<bool(int64_t steps, bool is_in_step)> dies;
  std::function<bool()> dies_before_finish;
  // In place of training.Step(LossOf(net, batch)).
  std::function<absl::Status(DataParallelTraining&, Net&,
                             const input::Example& batch)>
      step;
};

struct Outcome {
  absl::Status status;
  std::string bits;  // of the model and the optimizer
  int64_t steps = 0;
  int groups = 0;
  bool was_stopped = false;
  std::optional<double> score;
  std::string checkpoint;
  absl::Status saved;
};

absl::Status TrainRank(
    const Person& person, uint64_t seed, Outcome& outcome,
    const std::function<absl::StatusOr<std::unique_ptr<DataParallelTraining>>(
        DataParallelTraining::Parts, train::Options)>& create) {
  Generator generator(person.seed != 0 ? person.seed : seed);
  Net net(generator);
  generator = Generator(person.noise_seed);
  const Points points(person.size, person.broken);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::Create({{person.rule, net.NamedParameters()}}));
  DataParallelTraining::Parts parts;
  parts.model = &net;
  parts.optimizer = optimizer.get();
  parts.generator = &generator;
  parts.virtual_shards = person.shards;
  parts.make_loader =
      [&](int shard,
          int shards) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
    input::ShardedSampler::Options order;
    order.size = points.size();
    order.shard = shard;
    order.shards = shards;
    order.seed = person.data_seed;
    WEFT_ASSIGN_OR_RETURN(const auto sampler,
                          input::ShardedSampler::Create(order));
    input::DataLoader::Options loading;
    loading.batch_size = person.batch;
    loading.drop_last = person.drop_last;
    loading.threads = 0;
    return input::DataLoader::Create(points, sampler, loading);
  };
  if (person.parts != nullptr) person.parts(parts);
  train::Options options;
  options.epochs = 3;
  options.progress = telemetry::Progress::Style::kQuiet;
  options.asked_to_stop = [] { return false; };
  options.retry_last_save_for = absl::ZeroDuration();
  if (person.options != nullptr) person.options(options);
  WEFT_ASSIGN_OR_RETURN(const auto training, create(parts, options));
  const auto dies = [&](bool is_in_step) {
    return person.dies != nullptr && person.dies(training->steps(), is_in_step);
  };
  const auto loop = [&]() -> absl::Status {
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
      if (!batch.has_value()) break;
      if (dies(true)) return absl::CancelledError("died");
      WEFT_RETURN_IF_ERROR(person.step != nullptr
                               ? person.step(*training, net, *batch)
                               : training->Step(LossOf(net, *batch)));
      if (dies(false)) return absl::CancelledError("died");
    }
    if (person.dies_before_finish != nullptr && person.dies_before_finish()) {
      return absl::CancelledError("died");
    }
    WEFT_ASSIGN_OR_RETURN(const train::Result result, training->Finish());
    outcome.was_stopped = result.was_stopped;
    outcome.score = result.score;
    outcome.checkpoint = result.checkpoint;
    outcome.saved = result.saved;
    return absl::OkStatus();
  };
  const absl::Status status = loop();
  outcome.steps = training->steps();
  outcome.groups = training->groups();
  for (const auto& state : {net.StateDict(), optimizer->StateDict()}) {
    for (const auto& [name, tensor] : state) {
      const Tensor flat = tensor.Contiguous();
      absl::StrAppend(&outcome.bits, name, " ");
      outcome.bits.append(static_cast<const char*>(flat.raw()),
                          static_cast<size_t>(flat.bytes()));
    }
  }
  return status;
}

using People = std::vector<Person>;
using Outcomes = std::vector<Outcome>;

std::vector<absl::Status> StatusesOf(const Outcomes& outcomes) {
  std::vector<absl::Status> statuses;
  for (const Outcome& outcome : outcomes) statuses.push_back(outcome.status);
  return statuses;
}

Outcomes TrainFixed(const People& people) {
  const int ranks = static_cast<int>(people.size());
  collectives::LocalWorld world(ranks);
  Outcomes outcomes(people.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank].status = CatchToStatus([&] {
        collectives::GroupOptions limits;
        limits.timeout = absl::Seconds(30);
        const auto group =
            collectives::ProcessGroup::Create(world.Connect(rank), limits);
        return TrainRank(people[rank], rank + 1, outcomes[rank],
                         [&](auto parts, auto options) {
                           return DataParallelTraining::Create(
                               *group, telemetry::Silent(), std::move(parts),
                               std::move(options));
                         });
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Outcome TrainElasticRank(Crowd& crowd, int id, const Person& person) {
  Outcome outcome;
  outcome.status = CatchToStatus([&] {
    return TrainRank(person, id + 1, outcome, [&](auto parts, auto options) {
      DataParallelTraining::Elastic elastic;
      elastic.join = [&crowd, id] { return crowd.Join(id); };
      elastic.has_newcomers = [&crowd] { return crowd.HasWaiting(); };
      elastic.ask_interval = absl::ZeroDuration();
      if (person.elastic != nullptr) person.elastic(elastic);
      return DataParallelTraining::CreateElastic(
          std::move(elastic), telemetry::Silent(), std::move(parts),
          std::move(options));
    });
  });
  crowd.Remove(id);
  return outcome;
}

Outcomes TrainElastic(const People& people, int max = 8) {
  Crowd crowd(max);
  for (size_t i = 0; i < people.size(); ++i) crowd.Add(static_cast<int>(i));
  Outcomes outcomes(people.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < people.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = TrainElasticRank(crowd, static_cast<int>(i), people[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Two who train, and one who comes after the fourth step of the first.
Outcomes TrainWithNewcomer(const Person& person, const Person& newcomer) {
  Crowd crowd(8);
  crowd.Add(0);
  crowd.Add(1);
  Outcomes outcomes(3);
  std::thread third;
  Person first = person;
  first.dies = [&](int64_t steps, bool is_in_step) {
    if (steps == 4 && !is_in_step && !third.joinable()) {
      crowd.Add(2);
      third = std::thread(
          [&] { outcomes[2] = TrainElasticRank(crowd, 2, newcomer); });
      // Until it waits, or has been refused without.
      for (int i = 0; i < 2000 && !crowd.HasWaiting(); ++i) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    return false;
  };
  std::thread second([&] { outcomes[1] = TrainElasticRank(crowd, 1, person); });
  outcomes[0] = TrainElasticRank(crowd, 0, first);
  second.join();
  if (third.joinable()) third.join();
  return outcomes;
}

std::function<bool(int64_t, bool)> DiesInStep(int64_t step) {
  return [step](int64_t steps, bool is_in_step) {
    return is_in_step && steps >= step;
  };
}
std::function<bool(int64_t, bool)> DiesAfterStep(int64_t step) {
  return [step](int64_t steps, bool is_in_step) {
    return !is_in_step && steps >= step;
  };
}

void ExpectSame(const Outcome& found, const Outcome& wanted) {
  EXPECT_THAT(found.status, IsOk());
  EXPECT_THAT(wanted.status, IsOk());
  EXPECT_EQ(found.steps, wanted.steps);
  EXPECT_EQ(found.bits == wanted.bits, true);
}

// The same person on 1, 2, 3 and 8 ranks, and on three of which one dies.
void ExpectSameOnAny(const Person& person, bool has_steps = true) {
  const Outcome wanted = TrainFixed({person})[0];
  ASSERT_THAT(wanted.status, IsOk());
  EXPECT_EQ(wanted.steps > 0, has_steps);
  for (const int ranks : {2, 3, std::min(8, person.shards)}) {
    if (ranks > person.shards) continue;
    for (const Outcome& outcome : TrainFixed(People(ranks, person))) {
      ExpectSame(outcome, wanted);
    }
  }
  if (!has_steps) return;
  People people(2, person);
  people[0].dies = DiesInStep(1);
  ExpectSame(TrainElastic(people)[1], wanted);
}

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
                      join = elastic.join]()
          -> absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> {
        if ((*calls)++ == 0) return join();
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
        // Of the model alone: the same on all ranks.
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
      // At the n-th visit of a kind of place.
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
        person.parts =
            [=, parts_of = person.parts](DataParallelTraining::Parts& parts) {
              parts_of(parts);
              parts.make_loader = [=, make = parts.make_loader](int s, int n)
                  -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
                WEFT_RETURN_IF_ERROR(dies());
                return make(s, n);
              };
            };
      } else {
        person.elastic = [=](DataParallelTraining::Elastic& elastic) {
          elastic.join = [=, join = elastic.join]()
              -> absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> {
            WEFT_RETURN_IF_ERROR(dies());
            return join();
          };
        };
      }
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
