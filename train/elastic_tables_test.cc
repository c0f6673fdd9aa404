// Elastic trainings that push each step to a table: the bits of model and table
// are those of a training that nobody touched, whoever dies, and whatever a
// server loses with it.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/elastic_training_world.h"

namespace weft::train {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class ElasticTablesTest : public ElasticTrainingTest {
 protected:
  struct Whole {
    Outcome outcome;
    PretendTable::Row row;
    int64_t rounds = 0;
  };

  Whole TrainWhole(Person person, int ranks) {
    PretendTable table;
    person.table = &table;
    Whole whole;
    whole.outcome = TrainAll(std::vector<Person>(ranks, person))[0];
    EXPECT_THAT(whole.outcome.status, IsOk());
    EXPECT_EQ(table.violation(), "");
    whole.row = table.row();
    whole.rounds = table.rounds();
    return whole;
  }
};

TEST_F(ElasticTablesTest, AnyNumberOfRanksLeavesTheSameModelAndTable) {
  Person person;
  person.seed = 1;
  const Whole one = TrainWhole(person, 1);
  EXPECT_EQ(one.rounds, one.outcome.steps);
  EXPECT_NE(one.row, PretendTable().row());
  for (const int ranks : {2, 3}) {
    const Whole more = TrainWhole(person, ranks);
    EXPECT_EQ(more.outcome.bits == one.outcome.bits, true) << ranks;
    EXPECT_EQ(more.row, one.row) << ranks;
  }
}

// Like ElasticTrainingTest.DeathAtEachMessageLeavesTheBits. With each rank dies
// a server that alone had what the rank had pushed.
TEST_F(ElasticTablesTest, DeathAtEachMessageLeavesTheModelAndTheTable) {
  Person person;
  person.epochs = 1;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  int deaths = 0;
  int lost = 0;
  for (const int group : {0, 1}) {
    for (const int who : {0, 1, 2}) {
      const int other = (who + 1) % 3;  // of group 1: who dies before
      bool has_died = true;
      for (int64_t message = 0; has_died; ++message) {
        SCOPED_TRACE(absl::StrCat("group ", group, ", rank ", who, ", message ",
                                  message));
        Crowd crowd;
        crowd.Doom(who, group, message);
        PretendTable table;
        std::vector<Person> people(3, person);
        if (group == 1) people[other].dies = InStep(2);
        for (Person& one : people) one.table = &table;
        const std::vector<Outcome> outcomes = TrainAll(people, crowd);
        has_died = !outcomes[who].status.ok();
        deaths += has_died;
        lost += table.lost();
        ASSERT_EQ(table.violation(), "");
        for (int i = 0; i < 3; ++i) {
          if ((i == who && has_died) || (group == 1 && i == other)) continue;
          ASSERT_THAT(outcomes[i].status, IsOk());
          ASSERT_EQ(outcomes[i].steps, whole.outcome.steps);
          ASSERT_EQ(outcomes[i].bits == whole.outcome.bits, true);
        }
        ASSERT_EQ(table.rounds(), whole.rounds);
        ASSERT_EQ(table.row(), whole.row);
      }
    }
  }
  EXPECT_GT(deaths, 100);
  EXPECT_GT(lost, 0);
}

// It alone is left, with what it was given: the parts of the last step too.
TEST_F(ElasticTablesTest,
       NewcomerWhoseOthersAllDieEndsWithTheModelAndTheTable) {
  Person person;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  PretendTable table;
  Crowd crowd;
  crowd.Add(0);
  crowd.Add(1);
  Outcome outcomes[3];
  std::thread newcomer;
  person.table = &table;
  Person first = person, second = person;
  first.awaits_next_group = second.awaits_next_group = true;
  first.dies = [&](int64_t steps, bool is_in_step) {
    if (steps == 4 && !is_in_step && !newcomer.joinable()) {
      crowd.Add(2);
      newcomer = std::thread([&] { outcomes[2] = Train(crowd, 2, person); });
      while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
    }
    return steps >= 8 && is_in_step;
  };
  second.dies = InStep(8);
  std::thread other([&] { outcomes[1] = Train(crowd, 1, second); });
  outcomes[0] = Train(crowd, 0, first);
  other.join();
  newcomer.join();
  ASSERT_THAT(outcomes[2].status, IsOk());
  EXPECT_EQ(table.violation(), "");
  EXPECT_EQ(outcomes[2].bits == whole.outcome.bits, true);
  EXPECT_EQ(table.row(), whole.row);
}

// All ranks die in the second epoch, and the job is started again: with the
// servers that it had, which are further, and with new ones.
TEST_F(ElasticTablesTest, TrainingWhoseRanksHaveAllDiedGoesOnFromACheckpoint) {
  Person person;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  for (const bool has_new_servers : {false, true}) {
    person.checkpoint_dir = dir_.Path(absl::StrCat("saved", has_new_servers));
    PretendTable table;
    person.table = &table;
    const int64_t of_epoch = whole.outcome.steps / person.epochs;
    std::vector<Person> people(3, person);
    people[0].dies = InStep(of_epoch + 1);
    people[1].dies = InStep(of_epoch + 2);
    people[2].dies = AfterStep(of_epoch + 2);
    for (const Outcome& outcome : TrainAll(people)) {
      EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kCancelled));
    }
    EXPECT_GT(table.rounds(), of_epoch);
    PretendTable new_table;
    PretendTable& next = has_new_servers ? new_table : table;
    person.table = &next;
    for (const Outcome& outcome : TrainAll({person, person})) {
      ASSERT_THAT(outcome.status, IsOk());
      EXPECT_EQ(outcome.steps, whole.outcome.steps);
      EXPECT_EQ(outcome.bits == whole.outcome.bits, true);
    }
    EXPECT_EQ(next.violation(), "");
    EXPECT_EQ(next.rounds(), whole.rounds);
    EXPECT_EQ(next.row(), whole.row);
  }
}

// All die in the middle of an epoch, after different steps.
TEST_F(ElasticTablesTest, RanksThatAllDieWithinAnEpochGoOnFromWithinIt) {
  Person person;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  person.checkpoint_dir = dir_.Path("saved");
  person.checkpoint_every = 3;  // of 4 steps an epoch
  PretendTable table;
  person.table = &table;
  std::vector<Person> people(3, person);
  people[0].dies = InStep(7);
  people[1].dies = AfterStep(7);
  people[2].dies = AfterStep(7);
  for (const Outcome& outcome : TrainAll(people)) {
    EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_GT(table.rounds(), 6);
  const auto directory =
      checkpoint::CheckpointDirectory::Open({person.checkpoint_dir});
  ASSERT_THAT(directory, IsOk());
  const auto names = (*directory)->List();
  ASSERT_THAT(names, IsOk());
  EXPECT_EQ((*directory)->ReadManifest(names->back()).value().step, 6);
  for (const Outcome& outcome : TrainAll({person, person})) {
    ASSERT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.bits == whole.outcome.bits, true);
  }
  EXPECT_EQ(table.violation(), "");
  EXPECT_EQ(table.rounds(), whole.rounds);
  EXPECT_EQ(table.row(), whole.row);
}

// It waited while the others restored.
TEST_F(ElasticTablesTest, NewcomerThatOpenedATableBeforeItWasRestored) {
  Person person;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  person.checkpoint_dir = dir_.Path("saved");
  PretendTable table;
  person.table = &table;
  Person dies = person;
  dies.dies = InStep(whole.outcome.steps / person.epochs + 1);
  EXPECT_THAT(TrainAll({dies})[0].status,
              StatusIs(absl::StatusCode::kCancelled));
  table.Open(2);
  Crowd crowd;
  crowd.Add(0);
  Outcome outcomes[2];
  std::thread newcomer;
  Person first = person;
  first.awaits_next_group = true;
  first.dies = [&](int64_t, bool is_in_step) {
    if (!is_in_step && !newcomer.joinable()) {
      crowd.Add(2);
      newcomer = std::thread([&] { outcomes[1] = Train(crowd, 2, person); });
      while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  };
  outcomes[0] = Train(crowd, 0, first);
  newcomer.join();
  for (const Outcome& outcome : outcomes) {
    ASSERT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.bits == whole.outcome.bits, true);
  }
  EXPECT_EQ(table.violation(), "");
  EXPECT_EQ(table.row(), whole.row);
}

TEST_F(ElasticTablesTest, TrainingGoesOnWhereServersCannotSave) {
  Person person;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  person.checkpoint_dir = dir_.Path("saved");
  PretendTable table;
  table.RefuseToSave(person.epochs - 1);
  person.table = &table;
  for (const Outcome& outcome : TrainAll({person, person})) {
    EXPECT_THAT(outcome.status, IsOk());  // of the last one, too
    EXPECT_EQ(outcome.bits == whole.outcome.bits, true);
  }
  const auto directory =
      checkpoint::CheckpointDirectory::Open({person.checkpoint_dir});
  ASSERT_THAT(directory, IsOk());
  const auto names = (*directory)->List();
  ASSERT_THAT(names, IsOk());
  EXPECT_EQ(names->size(), 1);
  EXPECT_EQ(table.row(), whole.row);
}

// A part that was given before its batch, or twice, would be lost, or another
// batch's.
TEST_F(ElasticTablesTest, PartsThatAreGivenAtOtherTimesAreRefused) {
  Person person;
  person.epochs = 1;
  person.seed = 1;
  const Whole whole = TrainWhole(person, 1);
  int without_batch = 0, second = 0, with_another_code = 0;
  person.gives_too_much = [&](DataParallelTraining& training) {
    const absl::Status status = training.GivePart("of no batch");
    with_another_code += !absl::IsFailedPrecondition(status);
    without_batch +=
        absl::StrContains(status.message(), "call it after the Next that gave");
    second +=
        absl::StrContains(status.message(), "wanted one part of virtual shard");
  };
  const Whole refused = TrainWhole(person, 1);
  const int64_t parts = whole.outcome.steps * kShards;
  EXPECT_EQ(with_another_code, 0);
  EXPECT_EQ(second, parts);
  EXPECT_EQ(without_batch, 2 * parts + 1);  // and after the last Step
  EXPECT_EQ(refused.outcome.bits == whole.outcome.bits, true);
  EXPECT_EQ(refused.row, whole.row);

  int without_tables = 0;
  person.gives_too_much = [&](DataParallelTraining& training) {
    without_tables += absl::StrContains(training.GivePart("").message(),
                                        "wanted a training with Tables");
  };
  ASSERT_THAT(TrainAll({person})[0].status, IsOk());
  EXPECT_GT(without_tables, 0);
}

TEST_F(ElasticTablesTest, TablesOfOtherShardsAreRefusedBeforeTheFirstStep) {
  Person person;
  PretendTable table;
  person.table = &table;
  person.table_shards = kShards / 2;
  EXPECT_THAT(TrainAll({person})[0].status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "found TableSpec::shards of 4 and "
                       "Parts::virtual_shards of 8"));
  EXPECT_EQ(table.rounds(), 0);
}

TEST_F(ElasticTablesTest, CheckpointWithoutTablesIsRefused) {
  Person person;
  person.checkpoint_dir = dir_.Path("saved");
  person.epochs = 1;
  ASSERT_THAT(TrainAll({person})[0].status, IsOk());
  PretendTable table;
  person.table = &table;
  EXPECT_THAT(TrainAll({person})[0].status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted a file shard-99999.safetensors"));
}

}  // namespace
}  // namespace weft::train
