// Trainings whose ranks die and come, as threads of one process. A training
// that nobody touched says which bits they must end with.

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::testing::Pair;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int kShards = 8;

// In the place of an elastic job: those who live meet once all of them have
// come, at most as many as there are shards.
class Crowd {
 public:
  void Add(int id) {
    MutexLock lock(mu_);
    living_.insert(id);
  }
  void Remove(int id) {
    MutexLock lock(mu_);
    living_.erase(id);
    here_.erase(id);
    CloseIfAllAreHere();
  }
  bool HasWaiting() {
    MutexLock lock(mu_);
    return !here_.empty();
  }
  // In its group number `group`, from 0, `id` dies in the place of sending its
  // message number `message`.
  void Doom(int id, int group, int64_t message) {
    MutexLock lock(mu_);
    dooms_[id] = {group, message};
  }
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Join(int id) {
    std::shared_ptr<collectives::LocalWorld> world;
    int rank = 0;
    {
      MutexLock lock(mu_);
      const auto doom = dooms_.find(id);
      const int group = groups_[id]++;
      if (doom != dooms_.end() && group > doom->second.first) {
        return absl::CancelledError("died");
      }
      here_.insert(id);
      ranks_.erase(id);
      CloseIfAllAreHere();
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (ranks_.find(id) == ranks_.end()) {
        if (!changed_.WaitUntil(mu_, deadline)) {
          return absl::DeadlineExceededError("others have not come");
        }
      }
      world = worlds_.back();
      rank = ranks_[id];
      if (doom != dooms_.end() && group == doom->second.first) {
        world->KillAfter(rank, doom->second.second);
      }
    }
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(60);
    return collectives::ProcessGroup::Create(world->Connect(rank), options);
  }

 private:
  void CloseIfAllAreHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (here_.empty() || here_ != living_) return;
    ranks_.clear();
    while (!here_.empty() && ranks_.size() < kShards) {
      ranks_.emplace(*here_.begin(), static_cast<int>(ranks_.size()));
      here_.erase(here_.begin());
    }
    worlds_.push_back(std::make_shared<collectives::LocalWorld>(
        static_cast<int>(ranks_.size())));
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  std::set<int> living_ ABSL_GUARDED_BY(mu_);
  std::set<int> here_ ABSL_GUARDED_BY(mu_);
  std::map<int, int> ranks_ ABSL_GUARDED_BY(mu_);
  std::map<int, int> groups_ ABSL_GUARDED_BY(mu_);  // how many each has had
  std::map<int, std::pair<int, int64_t>> dooms_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<collectives::LocalWorld>> worlds_
      ABSL_GUARDED_BY(mu_);
};

class Points : public input::Dataset {
 public:
  int64_t size() const override { return 61; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    const double angle = 2.4 * static_cast<double>(index);
    const double radius = std::sqrt(static_cast<double>(index % 50) / 25);
    return input::Example{Tensor::FromVector<float>(
                              {static_cast<float>(radius * std::cos(angle)),
                               static_cast<float>(radius * std::sin(angle))}),
                          Tensor::Scalar<int64_t>(radius < 1 ? 1 : 0)};
  }
};

class Net : public nn::Module {
 public:
  Net(int64_t width, Generator& random)
      : hidden_(2, width, random),
        dropout_(0.3, random),
        output_(width, 2, random) {
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

// What befalls a rank: called before each pass and after each Step, with the
// number of steps taken; true: it dies there.
using Dies = std::function<bool(int64_t steps, bool is_in_step)>;

struct Outcome {
  absl::Status status;
  std::string bits;  // of the model and the optimizer
  int64_t steps = 0;
  int groups = 0;
  bool was_stopped = false;
  std::string checkpoint;
};

class ElasticTrainingTest : public ::testing::Test {
 protected:
  struct Person {
    Dies dies = [](int64_t, bool) { return false; };
    // After how many steps it is asked to leave; 0: never.
    int64_t leaves_after = 0;
    absl::Duration leave_after = absl::ZeroDuration();
    int64_t width = 16;
    int epochs = 3;
    // Of its own first weights; 0: those of its id.
    uint64_t seed = 0;
    std::string checkpoint_dir;
    bool resume = true;
    std::function<absl::StatusOr<bool>(bool begins)> has_trained;
    // Where its model is; null: on the CPU.
    device::testing::SimulatedDevices* devices = nullptr;
    // Called with the number of groups that it has been in before it joins
    // another. Null: nothing is.
    std::function<void(int groups)> before_join;
  };

  Outcome Train(Crowd& crowd, int id, const Person& person) {
    Outcome outcome;
    outcome.status =
        CatchToStatus([&] { return TrainRank(crowd, id, person, &outcome); });
    crowd.Remove(id);
    return outcome;
  }

  absl::Status TrainRank(Crowd& crowd, int id, const Person& person,
                         Outcome* outcome) {
    Generator generator(person.seed != 0 ? person.seed
                                         : static_cast<uint64_t>(id) + 1);
    Net net(person.width, generator);
    const Device device = person.devices == nullptr
                              ? Device::Cpu()
                              : Device(person.devices->context(), 0);
    net.To(device);
    generator = Generator(5);
    optimizer::AdamOptions adam;
    adam.lr = 0.01;
    WEFT_ASSIGN_OR_RETURN(
        const auto optimizer,
        optimizer::Optimizer::Create({{adam, net.NamedParameters()}}));
    DataParallelTraining::Parts parts;
    parts.model = &net;
    parts.optimizer = optimizer.get();
    parts.generator = &generator;
    parts.virtual_shards = kShards;
    parts.make_loader =
        [&](int shard,
            int shards) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
      input::ShardedSampler::Options order;
      order.size = points_.size();
      order.shard = shard;
      order.shards = shards;
      WEFT_ASSIGN_OR_RETURN(const auto sampler,
                            input::ShardedSampler::Create(order));
      input::DataLoader::Options loading;
      loading.batch_size = 2;
      loading.threads = 0;
      return input::DataLoader::Create(points_, sampler, loading);
    };
    Options options;
    options.epochs = person.epochs;
    options.progress = telemetry::Progress::Style::kQuiet;
    options.checkpoint_dir = person.checkpoint_dir;
    options.resume = person.resume && !person.checkpoint_dir.empty();
    options.asked_to_stop = [] { return false; };
    DataParallelTraining::Elastic elastic;
    int groups = 0;
    elastic.join = [&] {
      if (person.before_join != nullptr) person.before_join(groups);
      ++groups;
      return crowd.Join(id);
    };
    elastic.has_newcomers = [&crowd] { return crowd.HasWaiting(); };
    elastic.ask_interval = absl::ZeroDuration();
    int64_t steps = 0;  // the next one that it takes
    elastic.asked_to_leave = [&] {
      return person.leaves_after != 0 && ++steps >= person.leaves_after;
    };
    elastic.leave_after = person.leave_after;
    elastic.has_trained = person.has_trained;
    WEFT_ASSIGN_OR_RETURN(const auto training,
                          DataParallelTraining::CreateElastic(
                              std::move(elastic), telemetry::Silent(),
                              std::move(parts), options));
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
      if (!batch.has_value()) break;
      if (person.dies(training->steps(), true)) {
        return absl::CancelledError("died");
      }
      const Variable loss =
          CrossEntropy(net.Forward(Variable((*batch)[0].To(device))),
                       (*batch)[1].To(device));
      WEFT_RETURN_IF_ERROR(training->Step(loss));
      if (person.dies(training->steps(), false)) {
        return absl::CancelledError("died");
      }
    }
    WEFT_ASSIGN_OR_RETURN(const Result result, training->Finish());
    outcome->checkpoint = result.checkpoint;
    outcome->steps = training->steps();
    outcome->groups = training->groups();
    outcome->was_stopped = result.was_stopped;
    const auto add = [&](const auto& state) {
      for (const auto& [name, tensor] : state) {
        absl::StrAppend(&outcome->bits, name, " ", testing::BytesOf(tensor));
      }
    };
    add(net.StateDict());
    add(optimizer->StateDict());
    return result.saved;
  }

  // All begin together.
  std::vector<Outcome> TrainAll(const std::vector<Person>& people) {
    Crowd crowd;
    return TrainAll(people, crowd);
  }
  std::vector<Outcome> TrainAll(const std::vector<Person>& people,
                                Crowd& crowd) {
    for (size_t i = 0; i < people.size(); ++i) crowd.Add(static_cast<int>(i));
    std::vector<Outcome> outcomes(people.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < people.size(); ++i) {
      threads.emplace_back([&, i] {
        outcomes[i] = Train(crowd, static_cast<int>(i), people[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  const Outcome& Undisturbed() {
    if (undisturbed_.steps == 0) undisturbed_ = TrainAll({Person()})[0];
    return undisturbed_;
  }
  void ExpectUndisturbed(const Outcome& outcome) {
    ASSERT_THAT(outcome.status, IsOk());
    ASSERT_THAT(Undisturbed().status, IsOk());
    EXPECT_EQ(outcome.steps, Undisturbed().steps);
    EXPECT_EQ(outcome.bits == Undisturbed().bits, true);
  }

  const Points points_;
  testing::TempDir dir_;
  Outcome undisturbed_;
};

Dies InStep(int64_t step) {
  return [step](int64_t steps, bool is_in_step) {
    return is_in_step && steps >= step;
  };
}
Dies AfterStep(int64_t step) {
  return [step](int64_t steps, bool is_in_step) {
    return !is_in_step && steps >= step;
  };
}

TEST_F(ElasticTrainingTest, RankThatDiesIsReplacedByTheOthers) {
  const std::vector<std::pair<Dies, int>> cases = {
      {InStep(0), 1},  // the others may still be about to begin
      {InStep(3), 2},
      {AfterStep(1), 2},
      {AfterStep(4), 2}};
  for (const auto& [dies, least_groups] : cases) {
    for (const int who : {0, 1, 2}) {
      std::vector<Person> people(3);
      people[who].dies = dies;
      const std::vector<Outcome> outcomes = TrainAll(people);
      for (int i = 0; i < 3; ++i) {
        if (i == who) {
          EXPECT_EQ(outcomes[i].status.message(), "died");
        } else {
          ExpectUndisturbed(outcomes[i]);
          EXPECT_GE(outcomes[i].groups, least_groups);
          EXPECT_LE(outcomes[i].groups, 2);
        }
      }
    }
  }
}

// A rank whose device fails leaves the others, which end with the bits of ranks
// on the CPU: where it fails in a step, and where it fails as all meet again.
TEST_F(ElasticTrainingTest, RankWhoseDeviceIsLostIsReplacedByTheOthers) {
  for (const bool in_meeting : {false, true}) {
    std::vector<std::unique_ptr<device::testing::SimulatedDevices>> devices;
    std::vector<Person> people(3);
    for (Person& person : people) {
      devices.push_back(std::make_unique<device::testing::SimulatedDevices>(
          devices.size() + 7));
      person.devices = devices.back().get();
    }
    const auto lose = [&lost = *devices[1]] {
      lost.runtime().LoseDevice(lost.context().device(0));
    };
    if (in_meeting) {
      people[2].dies = InStep(2);
      people[1].before_join = [&lose](int groups) {
        if (groups == 1) lose();
      };
    } else {
      people[1].dies = [&lose](int64_t steps, bool is_in_step) {
        if (is_in_step && steps == 3) lose();
        return false;
      };
    }
    const std::vector<Outcome> outcomes = TrainAll(people);
    EXPECT_THAT(outcomes[1].status,
                StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
    ExpectUndisturbed(outcomes[0]);
    if (!in_meeting) ExpectUndisturbed(outcomes[2]);
  }
}

// A death at every message of a training, of each of three ranks: in the first
// group, and in one that has just lost another, where the rank that dies may be
// the one that gives the others what they lack.
TEST_F(ElasticTrainingTest, DeathAtEachMessageLeavesTheBits) {
  Person person;
  person.epochs = 1;
  // Of all: rank 0 may die before it has given the others its own.
  person.seed = 1;
  const Outcome whole = TrainAll({person})[0];
  ASSERT_THAT(whole.status, IsOk());
  int deaths = 0;
  for (const int group : {0, 1}) {
    for (const int who : {0, 1, 2}) {
      const int other = (who + 1) % 3;  // of group 1: who dies before
      bool has_died = true;
      for (int64_t message = 0; has_died; ++message) {
        Crowd crowd;
        crowd.Doom(who, group, message);
        std::vector<Person> people(3, person);
        if (group == 1) people[other].dies = InStep(2);
        const std::vector<Outcome> outcomes = TrainAll(people, crowd);
        has_died = !outcomes[who].status.ok();
        deaths += has_died;
        for (int i = 0; i < 3; ++i) {
          if ((i == who && has_died) || (group == 1 && i == other)) continue;
          ASSERT_THAT(outcomes[i].status, IsOk()) << group << who << message;
          ASSERT_EQ(outcomes[i].steps, whole.steps);
          ASSERT_EQ(outcomes[i].bits == whole.bits, true)
              << "group " << group << ", rank " << who << ", message "
              << message;
        }
      }
    }
  }
  EXPECT_GT(deaths, 100);
}

// As where a host is to be given back: what it has is saved, and nobody waits.
TEST_F(ElasticTrainingTest, RankThatIsAskedToLeaveDoesAndTheOthersGoOn) {
  for (const int who : {0, 2}) {
    const std::string saved = dir_.Path(absl::StrCat("saved", who));
    std::vector<Person> people(3);
    for (Person& person : people) person.checkpoint_dir = saved;
    people[who].leaves_after = 6;
    const std::vector<Outcome> outcomes = TrainAll(people);
    for (int i = 0; i < 3; ++i) {
      if (i != who) {
        ExpectUndisturbed(outcomes[i]);
        EXPECT_FALSE(outcomes[i].was_stopped);
        EXPECT_EQ(outcomes[i].groups, 2);
        continue;
      }
      EXPECT_THAT(outcomes[i].status, IsOk());
      EXPECT_TRUE(outcomes[i].was_stopped);
      EXPECT_EQ(outcomes[i].steps, 6);
    }
  }
}

TEST_F(ElasticTrainingTest, AllThatAreAskedToLeaveStopTogetherAndAreResumed) {
  std::vector<Person> people(3);
  for (int i = 0; i < 3; ++i) {
    people[i].checkpoint_dir = dir_.Path("saved");
    // A signal reaches them at different times.
    people[i].leaves_after = 3 + i;
    people[i].leave_after = absl::Hours(1);
  }
  for (const Outcome& outcome : TrainAll(people)) {
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_TRUE(outcome.was_stopped);
    EXPECT_EQ(outcome.steps, 5);
    EXPECT_EQ(outcome.groups, 1);
  }
  for (Person& person : people) person.leaves_after = 0;
  for (const Outcome& outcome : TrainAll(people)) ExpectUndisturbed(outcome);
}

TEST_F(ElasticTrainingTest, LastRankFinishesAlone) {
  std::vector<Person> people(4);
  people[0].dies = InStep(2);
  people[1].dies = AfterStep(5);
  people[3].dies = InStep(9);
  ExpectUndisturbed(TrainAll(people)[2]);
}

TEST_F(ElasticTrainingTest, NewcomerTakesPartAfterTheNextStep) {
  Crowd crowd;
  crowd.Add(0);
  crowd.Add(1);
  Outcome outcomes[3];
  std::thread newcomer;
  Person first;
  // Once, after the fourth step.
  first.dies = [&](int64_t steps, bool is_in_step) {
    if (steps == 4 && !is_in_step && !newcomer.joinable()) {
      crowd.Add(2);
      newcomer = std::thread([&] { outcomes[2] = Train(crowd, 2, Person()); });
      while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  };
  std::thread second([&] { outcomes[1] = Train(crowd, 1, Person()); });
  outcomes[0] = Train(crowd, 0, first);
  second.join();
  newcomer.join();
  for (const Outcome& outcome : outcomes) ExpectUndisturbed(outcome);
  EXPECT_EQ(outcomes[0].groups, 2);
  EXPECT_EQ(outcomes[2].groups, 1);
}

// Ranks die at random places, and others come, until the training is through.
TEST_F(ElasticTrainingTest, AnyDeathsAndNewcomersLeaveTheBits) {
  const int64_t steps = Undisturbed().steps;
  ASSERT_THAT(Undisturbed().status, IsOk());
  ASSERT_EQ(steps, 12);  // 3 epochs of 8 a shard, 2 a batch
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    std::mt19937 random(seed);
    Crowd crowd;
    Mutex mu;
    std::vector<std::thread> threads;
    std::vector<Outcome> outcomes(32);
    int next = 0;
    std::function<void()> come;
    // Each dies at a step of its own, if at all, and may call another before;
    // the first one lives.
    const auto fate = [&](int id) {
      const int64_t end = 1 + static_cast<int64_t>(random() % (2 * steps));
      const bool in_step = random() % 2 == 0;
      const int64_t calls_at = static_cast<int64_t>(random() % steps);
      auto has_called = std::make_shared<bool>(false);
      return [=, &come](int64_t done, bool is_in_step) {
        if (done >= calls_at && !*has_called && done + 2 < steps) {
          *has_called = true;
          come();
        }
        return id != 0 && done >= end && is_in_step == in_step;
      };
    };
    come = [&] {
      MutexLock lock(mu);
      if (next == static_cast<int>(outcomes.size())) return;
      const int id = next++;
      crowd.Add(id);
      Person person;
      person.dies = fate(id);
      // One that comes when the others have ended begins anew.
      person.seed = 1;
      threads.emplace_back(
          [&, id, person] { outcomes[id] = Train(crowd, id, person); });
    };
    for (int i = 0; i < 3; ++i) come();
    for (size_t i = 0;; ++i) {
      std::thread thread;
      {
        MutexLock lock(mu);
        if (i == threads.size()) break;
        thread = std::move(threads[i]);
      }
      thread.join();
    }
    int finished = 0;
    for (int i = 0; i < next; ++i) {
      if (outcomes[i].status.message() == "died") continue;
      ExpectUndisturbed(outcomes[i]);
      ++finished;
    }
    EXPECT_GE(finished, 1) << seed;
  }
}

TEST_F(ElasticTrainingTest, CheckpointsGoOnWhereTheFirstRankDies) {
  std::vector<Person> people(3);
  for (Person& person : people) person.checkpoint_dir = dir_.Path("saved");
  people[0].dies = AfterStep(6);  // after the first epoch
  const std::vector<Outcome> outcomes = TrainAll(people);
  for (const int i : {1, 2}) ExpectUndisturbed(outcomes[i]);
  // The second one is rank 0 then, and writes the last.
  EXPECT_THAT(outcomes[1].checkpoint, ::testing::HasSubstr("saved"));
  // What it wrote is where another job ends at once.
  Person late;
  late.checkpoint_dir = dir_.Path("saved");
  const std::vector<Outcome> again = TrainAll({late});
  ExpectUndisturbed(again[0]);
}

// The only rank that has trained dies when others wait to take part: what it
// has saved is the job's own, and none of them was told to resume.
TEST_F(ElasticTrainingTest, ThoseWhoHaveNotBegunGoOnFromWhatTheJobHasSaved) {
  Crowd crowd;
  crowd.Add(0);
  std::atomic<bool> has_trained{false};
  Outcome outcomes[3];
  std::vector<std::thread> newcomers;
  Person person;
  person.checkpoint_dir = dir_.Path("saved");
  person.resume = false;
  person.has_trained = [&](bool begins) -> absl::StatusOr<bool> {
    if (begins) has_trained = true;
    return has_trained.load();
  };
  Person first = person;
  first.dies = [&](int64_t steps, bool is_in_step) {
    if (steps != 6 || is_in_step) return false;
    for (const int id : {1, 2}) {
      crowd.Add(id);
      newcomers.emplace_back(
          [&, id] { outcomes[id] = Train(crowd, id, person); });
    }
    while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
    return true;
  };
  outcomes[0] = Train(crowd, 0, first);
  for (std::thread& newcomer : newcomers) newcomer.join();
  EXPECT_EQ(outcomes[0].status.message(), "died");
  ExpectUndisturbed(outcomes[1]);
  ExpectUndisturbed(outcomes[2]);
}

// Those who begin may not push out what others have saved; one that resumes is
// enough.
TEST_F(ElasticTrainingTest, FormerRunIsResumedOrRefusedByAll) {
  std::vector<Person> people(3);
  for (Person& person : people) {
    person.checkpoint_dir = dir_.Path("saved");
    person.resume = false;
  }
  ExpectUndisturbed(TrainAll(people)[1]);
  for (const Outcome& outcome : TrainAll(people)) {
    EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                         "give --resume to go on from it"));
    EXPECT_EQ(worker::ExitCodeFor(outcome.status), worker::ExitCode::kConfig);
  }
  people[2].resume = true;
  for (const Outcome& outcome : TrainAll(people)) ExpectUndisturbed(outcome);
}

TEST_F(ElasticTrainingTest, NewcomerWithAnotherModelIsRefusedAndNamed) {
  Crowd crowd;
  crowd.Add(0);
  crowd.Add(1);
  Outcome outcomes[3];
  std::thread newcomer;
  Person first;
  first.dies = [&](int64_t steps, bool is_in_step) {
    if (steps == 4 && !is_in_step && !newcomer.joinable()) {
      crowd.Add(2);
      Person other;
      other.width = 17;
      newcomer =
          std::thread([&, other] { outcomes[2] = Train(crowd, 2, other); });
      while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  };
  std::thread second([&] { outcomes[1] = Train(crowd, 1, Person()); });
  outcomes[0] = Train(crowd, 0, first);
  second.join();
  newcomer.join();
  ExpectUndisturbed(outcomes[0]);
  ExpectUndisturbed(outcomes[1]);
  EXPECT_THAT(outcomes[2].status,
              StatusIs(absl::StatusCode::kInvalidArgument, "hidden.bias"));
}

TEST_F(ElasticTrainingTest, PartsThatAreMissingAreNamed) {
  Generator random(1);
  Net net(4, random);
  const auto optimizer = optimizer::Optimizer::Create(
      {{optimizer::AdamOptions(), net.NamedParameters()}});
  WEFT_ASSERT_OK(optimizer);
  const auto make = [](int, int) {
    return absl::StatusOr<std::unique_ptr<input::DataLoader>>(
        absl::InternalError("not called"));
  };
  DataParallelTraining::Parts parts;
  parts.model = &net;
  parts.optimizer = optimizer->get();
  parts.virtual_shards = 8;
  parts.make_loader = make;
  const auto create = [&](DataParallelTraining::Elastic elastic) {
    return DataParallelTraining::CreateElastic(
               std::move(elastic), telemetry::Silent(), parts, Options())
        .status();
  };
  EXPECT_THAT(create({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                   "wanted Elastic::join"));
  DataParallelTraining::Elastic elastic;
  elastic.join =
      []() -> absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> {
    return absl::DeadlineExceededError("nobody came");
  };
  EXPECT_THAT(create(elastic),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "nobody came"));
  elastic.join = [] {
    return absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>>(nullptr);
  };
  EXPECT_THAT(create(elastic),
              StatusIs(absl::StatusCode::kInvalidArgument, "no group"));
  parts.virtual_shards = 7;
  EXPECT_THAT(create(elastic),
              StatusIs(absl::StatusCode::kInvalidArgument, "power of two"));
}

}  // namespace
}  // namespace weft::train
