// Elastic trainings that push each step to a table: the bits of model and table
// are those of a training that nobody touched, whoever dies, and whatever a
// server loses with it.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/elastic_training_world.h"
#include "weft/worker/exit_code.h"

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

// As ElasticTrainingTest.DeathAtEachMessageLeavesTheBits. Each death takes a
// server along that alone had what the rank had pushed.
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

TEST_F(ElasticTablesTest, CheckpointsAreRefused) {
  PretendTable table;
  Person person;
  person.table = &table;
  person.checkpoint_dir = dir_.Path("saved");
  const Outcome outcome = TrainAll({person})[0];
  EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kUnimplemented,
                                       "saves no checkpoints yet"));
  EXPECT_EQ(worker::ExitCodeFor(outcome.status), worker::ExitCode::kUsage);
}

}  // namespace
}  // namespace weft::train
