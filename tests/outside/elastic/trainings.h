// Trainings of a small net over virtual shards, of fixed and of elastic ranks,
// whose parts, data and ends a test chooses.

#ifndef WEFT_TESTS_OUTSIDE_ELASTIC_TRAININGS_H_
#define WEFT_TESTS_OUTSIDE_ELASTIC_TRAININGS_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/input/data_loader.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tests/outside/elastic/crowd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/background_task.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {

using train::DataParallelTraining;

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
  using nn::Module::AddBuffer;
  Variable Forward(const Variable& x) {
    return output_.Forward(dropout_.Forward(Tanh(hidden_.Forward(x))));
  }

 private:
  nn::Linear hidden_;
  nn::Dropout dropout_;
  nn::Linear output_;
};

inline Variable LossOf(Net& net, const input::Example& batch) {
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
  // The seed of its own first weights; 0: another one for each.
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
  // Of an elastic training: the next group is made while the present one
  // trains, and newcomers get a first copy of the state; the same for all.
  bool joins_ahead = false;
  // In its place, once a group is made; `first_copy` is Elastic::prepare.
  std::function<absl::Status(
      collectives::ProcessGroup& group,
      const DataParallelTraining::Elastic::Prepare& first_copy)>
      prepare;
  // Changes the tables of an elastic training, which has none without it.
  std::function<void(DataParallelTraining::Tables&)> tables;
  // Called instead of training.Step(LossOf(net, batch)).
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

inline absl::Status TrainRank(
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

inline std::vector<absl::Status> StatusesOf(const Outcomes& outcomes) {
  std::vector<absl::Status> statuses;
  for (const Outcome& outcome : outcomes) statuses.push_back(outcome.status);
  return statuses;
}

inline Outcomes TrainFixed(const People& people) {
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

// How one rank joins the groups of its crowd.
class Joining {
 public:
  using Group = std::unique_ptr<collectives::ProcessGroup>;
  using Prepare = DataParallelTraining::Elastic::Prepare;

  Joining(Crowd& crowd, int id, const Person& person)
      : crowd_(crowd), id_(id), person_(person) {}
  // Ends the wait for a next group.
  ~Joining() { crowd_.Remove(id_); }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  DataParallelTraining::Elastic Elastic() {
    DataParallelTraining::Elastic elastic;
    elastic.has_newcomers = [this] { return crowd_.HasWaiting(); };
    elastic.ask_interval = absl::ZeroDuration();
    if (!person_.joins_ahead) {
      elastic.join = [this](const Prepare&) { return crowd_.Join(id_); };
      return elastic;
    }
    elastic.join = [this](const Prepare& first_copy) {
      return next_.has_begun() ? *next_.Take() : Make(first_copy);
    };
    elastic.join_ahead = [this](Prepare first_copy) {
      next_
          .Begin("the next group",
                 [this, first_copy = std::move(first_copy)] {
                   return Make(first_copy);
                 })
          .IgnoreError();
    };
    elastic.has_joined_ahead = [this] { return next_.is_done(); };
    return elastic;
  }
  // Whether the next group is being made.
  bool is_joining() const { return next_.has_begun() && !next_.is_done(); }

 private:
  absl::StatusOr<Group> Make(const Prepare& first_copy) {
    WEFT_ASSIGN_OR_RETURN(Group group, crowd_.Join(id_));
    if (person_.prepare != nullptr) {
      WEFT_RETURN_IF_ERROR(person_.prepare(*group, first_copy));
    } else if (first_copy != nullptr) {
      first_copy(*group);
    }
    return group;
  }

  Crowd& crowd_;
  const int id_;
  const Person& person_;
  train::BackgroundTask<Group> next_;
};

inline Outcome TrainElasticRank(Crowd& crowd, int id, const Person& person) {
  Outcome outcome;
  Joining joining(crowd, id, person);
  // A short training would be over before a newcomer is in it.
  Person patient = person;
  if (person.joins_ahead) {
    patient.dies = [&](int64_t steps, bool is_in_step) {
      if (person.dies != nullptr && person.dies(steps, is_in_step)) return true;
      while (!is_in_step && joining.is_joining()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      return false;
    };
  }
  outcome.status = CatchToStatus([&] {
    return TrainRank(patient, id + 1, outcome, [&](auto parts, auto options) {
      DataParallelTraining::Elastic elastic = joining.Elastic();
      if (person.elastic != nullptr) person.elastic(elastic);
      DataParallelTraining::Tables tables;
      if (person.tables != nullptr) person.tables(tables);
      return DataParallelTraining::CreateElastic(
          std::move(elastic), telemetry::Silent(), std::move(parts),
          std::move(tables), std::move(options));
    });
  });
  return outcome;
}

inline Outcomes TrainElastic(const People& people, int max = 8) {
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
inline Outcomes TrainWithNewcomer(const Person& person,
                                  const Person& newcomer) {
  Crowd crowd(8);
  crowd.Add(0);
  crowd.Add(1);
  Outcomes outcomes(3);
  std::atomic<bool> has_ended{false};
  std::thread third;
  Person first = person;
  first.dies = [&](int64_t steps, bool is_in_step) {
    if (steps == 4 && !is_in_step && !third.joinable()) {
      crowd.Add(2);
      third = std::thread([&] {
        outcomes[2] = TrainElasticRank(crowd, 2, newcomer);
        has_ended = true;
      });
      // One that comes after the others have ended would train alone.
      EXPECT_TRUE(weft::testing::Becomes(
          [&] { return crowd.HasWaiting() || has_ended; }));
    }
    return false;
  };
  std::thread second([&] { outcomes[1] = TrainElasticRank(crowd, 1, person); });
  outcomes[0] = TrainElasticRank(crowd, 0, first);
  second.join();
  if (third.joinable()) third.join();
  return outcomes;
}

inline std::function<bool(int64_t, bool)> DiesInStep(int64_t step) {
  return [step](int64_t steps, bool is_in_step) {
    return is_in_step && steps >= step;
  };
}
inline std::function<bool(int64_t, bool)> DiesAfterStep(int64_t step) {
  return [step](int64_t steps, bool is_in_step) {
    return !is_in_step && steps >= step;
  };
}

inline void ExpectSame(const Outcome& found, const Outcome& wanted) {
  EXPECT_THAT(found.status, weft::testing::IsOk());
  EXPECT_THAT(wanted.status, weft::testing::IsOk());
  EXPECT_EQ(found.steps, wanted.steps);
  EXPECT_EQ(found.bits == wanted.bits, true);
}

// The same person on 1, 2, 3 and 8 ranks, and on three of which one dies.
inline void ExpectSameOnAny(const Person& person, bool has_steps = true) {
  const Outcome wanted = TrainFixed({person})[0];
  ASSERT_THAT(wanted.status, weft::testing::IsOk());
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

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_ELASTIC_TRAININGS_H_
