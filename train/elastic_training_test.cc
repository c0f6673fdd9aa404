// Trainings whose ranks die and come, as threads of one process. A training
// that nobody touched says which bits they must end with.

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/elastic_training_world.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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
  // All ranks begin with the same weights: rank 0 may die before it has given
  // the others its own.
  person.seed = 1;
  person.still = 20000;  // a second part of the state
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

// The only rank that trains dies while it gives a newcomer the state, at each
// message, and nothing is saved. The newcomer goes on, or begins anew with its
// own first weights, which it keeps when it gets a first copy; without one it
// may end. It does not begin with a part of the other's.
TEST_F(ElasticTrainingTest, NewcomerDoesNotBeginWithAPartOfTheState) {
  for (const bool has_first_copies : {true, false}) {
    Person person;
    person.seed = 1;
    person.awaits_next_group = true;
    person.has_first_copies = has_first_copies;
    int ended = 0;
    bool has_died = true;
    for (int64_t message = 0; has_died; ++message) {
      SCOPED_TRACE(absl::StrCat("message ", message));
      Crowd crowd;
      crowd.Add(0);
      crowd.Doom(0, /*group=*/1, message);
      Outcome outcomes[2];
      std::thread newcomer;
      Person first = person;
      first.dies = [&](int64_t steps, bool is_in_step) {
        if (steps == 4 && !is_in_step && !newcomer.joinable()) {
          crowd.Add(1);
          newcomer =
              std::thread([&] { outcomes[1] = Train(crowd, 1, person); });
          while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
        }
        return false;
      };
      outcomes[0] = Train(crowd, 0, first);
      newcomer.join();
      has_died = !outcomes[0].status.ok();
      if (outcomes[1].status.ok()) {
        ExpectUndisturbed(outcomes[1]);
        continue;
      }
      ++ended;
      EXPECT_THAT(outcomes[1].status,
                  StatusIs(absl::StatusCode::kUnavailable,
                           "died while they gave this one their state"));
    }
    EXPECT_EQ(ended == 0, has_first_copies);
  }
}

// What no step has changed since the first copy is not sent again.
TEST_F(ElasticTrainingTest, NewcomerIsGivenWhatHasChangedWhileTheOthersStop) {
  constexpr int64_t kStill = 100000;
  const int64_t still_bytes = kStill * static_cast<int64_t>(sizeof(float));
  for (const bool has_first_copies : {true, false}) {
    Person person;
    person.seed = 1;
    person.still = kStill;
    person.has_first_copies = has_first_copies;
    person.awaits_next_group = true;
    const Outcome whole = TrainAll({person})[0];
    Crowd crowd;
    crowd.Add(0);
    crowd.Add(1);
    Outcome outcomes[3];
    std::thread newcomer;
    Person first = person;
    first.dies = [&](int64_t steps, bool is_in_step) {
      if (steps == 4 && !is_in_step && !newcomer.joinable()) {
        crowd.Add(2);
        newcomer = std::thread([&] { outcomes[2] = Train(crowd, 2, person); });
        while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
      }
      return false;
    };
    std::thread second([&] { outcomes[1] = Train(crowd, 1, person); });
    outcomes[0] = Train(crowd, 0, first);
    second.join();
    newcomer.join();
    for (const Outcome& outcome : outcomes) {
      ASSERT_THAT(outcome.status, IsOk());
      EXPECT_EQ(outcome.bits == whole.bits, true);
    }
    EXPECT_GT(outcomes[2].given_bytes, 0);
    EXPECT_EQ(outcomes[2].given_bytes < still_bytes, has_first_copies);
  }
}

// This happens where a host is to be given back: its state is saved, and nobody
// waits.
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

// The others stop for it, or make the group with it while they train.
TEST_F(ElasticTrainingTest, NewcomerTakesPart) {
  for (const bool joins_ahead : {false, true}) {
    Crowd crowd;
    crowd.Add(0);
    crowd.Add(1);
    Outcome outcomes[3];
    std::thread newcomer;
    Person one;
    one.joins_ahead = joins_ahead;
    one.awaits_next_group = true;
    Person first = one;
    // Once, after the fourth step.
    first.dies = [&](int64_t steps, bool is_in_step) {
      if (steps == 4 && !is_in_step && !newcomer.joinable()) {
        crowd.Add(2);
        newcomer = std::thread([&] { outcomes[2] = Train(crowd, 2, one); });
        while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
      }
      return false;
    };
    std::thread second([&] { outcomes[1] = Train(crowd, 1, one); });
    outcomes[0] = Train(crowd, 0, first);
    second.join();
    newcomer.join();
    for (const Outcome& outcome : outcomes) ExpectUndisturbed(outcome);
    EXPECT_EQ(outcomes[0].groups, 2);
    EXPECT_EQ(outcomes[2].groups, 1);
  }
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
      person.joins_ahead = seed % 5 != 0;
      person.awaits_next_group = seed % 2 == 0;
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

// All die in the middle of an epoch, rank 0 among them: first the one that has
// saved, then the next that has.
TEST_F(ElasticTrainingTest, RanksThatAllDieWithinAnEpochGoOnFromWithinIt) {
  std::vector<Person> people(3);
  for (Person& person : people) {
    person.checkpoint_dir = dir_.Path("saved");
    person.checkpoint_every = 3;  // of 4 steps an epoch
  }
  people[0].dies = InStep(4);
  people[1].dies = InStep(7);
  people[2].dies = InStep(7);
  for (const Outcome& outcome : TrainAll(people)) {
    EXPECT_EQ(outcome.status.message(), "died");
  }
  const auto directory =
      checkpoint::CheckpointDirectory::Open({dir_.Path("saved")});
  ASSERT_THAT(directory, IsOk());
  const auto steps = [&] {
    std::vector<int64_t> steps;
    const auto names = (*directory)->List().value();
    for (const std::string& name : names) {
      steps.push_back((*directory)->ReadManifest(name).value().step);
    }
    return steps;
  };
  EXPECT_THAT(steps(), ElementsAre(3, 4, 6));
  for (Person& person : people)
    person.dies = [](int64_t, bool) { return false; };
  for (const Outcome& outcome : TrainAll(people)) ExpectUndisturbed(outcome);
  // Not again what it had gone on from, nor the last twice.
  EXPECT_THAT(steps(), ElementsAre(8, 9, 12));
}

// The only rank that has trained dies when others wait to take part: what it
// has saved is the job's own, and none of them was told to resume.
TEST_F(ElasticTrainingTest, RanksThatBeginGoOnFromWhatTheJobHasSaved) {
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

// Two trainings to which a third rank comes: the others go on without it.
TEST_F(ElasticTrainingTest, NewcomerWithAnotherModelIsRefusedAndNamed) {
  Person other;
  other.width = 17;
  EXPECT_THAT(StatusOfNewcomer(other),
              StatusIs(absl::StatusCode::kInvalidArgument, "hidden.bias"));
}

TEST_F(ElasticTrainingTest, NewcomerThatTrainsOtherParametersIsRefused) {
  Person other;
  other.freezes = true;
  EXPECT_THAT(StatusOfNewcomer(other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "hidden.weight of the model is frozen"));
}

TEST_F(ElasticTrainingTest, NewcomerOfAnotherBuildIsRefusedAndBothAreNamed) {
  Person other;
  other.build = "weft 0.0.9, program 1234";
  const absl::Status status = StatusOfNewcomer(other);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               "the build is weft 0.0.9, program 1234"));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("the build is " + BuildText()));
}

// What it was given is not what it has.
TEST_F(ElasticTrainingTest, NewcomerWithOtherBitsThanItWasGivenEndsAndIsNamed) {
  Person other;
  other.ties = true;
  EXPECT_THAT(StatusOfNewcomer(other),
              StatusIs(absl::StatusCode::kDataLoss, "wanted buffer left"));
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
  elastic.join = [](const auto&)
      -> absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> {
    return absl::DeadlineExceededError("nobody came");
  };
  EXPECT_THAT(create(elastic),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "nobody came"));
  elastic.join = [](const auto&) {
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
