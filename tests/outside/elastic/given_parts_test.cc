// Steps that push to tables, and checkpoints within an epoch, in trainings
// whose ranks die: what is given at the wrong time, functions that fail or
// throw, odd numbers of steps. What is expected is what
// train/data_parallel_training.h, train/options.h and docs/elastic.md say.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/elastic/trainings.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::Not;
using weft::testing::BytesOf;
using weft::testing::IsOk;
using weft::testing::StatusIs;

using Tables = DataParallelTraining::Tables;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kFailedPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr int kShards = 8;

// What parameter servers have of a training: the parts of each round, of which
// each counts once. A part that is pushed again with other bytes, or into a
// round that is not open, is a fault of the training.
class Rounds {
 public:
  using Parts = std::map<std::pair<int64_t, int>, std::string>;

  absl::Status Push(int64_t round, int shard, const std::string& part) {
    MutexLock lock(mu_);
    if (round > open_) fault_ = absl::StrCat("round ", round, " is not open");
    const auto [at, is_new] = parts_.emplace(std::pair(round, shard), part);
    if (!is_new && at->second != part) {
      fault_ = absl::StrCat("other bytes of round ", round, ", shard ", shard);
    }
    while (HasAll(open_)) ++open_;
    return absl::OkStatus();
  }
  absl::Status AwaitStable(int64_t rounds, absl::Duration wait) {
    const absl::Time until = absl::Now() + wait;
    for (;;) {
      {
        MutexLock lock(mu_);
        if (open_ >= rounds) return absl::OkStatus();
      }
      if (absl::Now() >= until) {
        return absl::DeadlineExceededError("a round is open");
      }
      absl::SleepFor(absl::Microseconds(200));
    }
  }
  void Begin(int64_t rounds) {
    MutexLock lock(mu_);
    if (open_ != rounds) {
      fault_ = absl::StrCat("read at ", rounds, ", after ", open_, " rounds");
    }
  }
  void RestoreTo(int64_t rounds) {
    MutexLock lock(mu_);
    parts_.erase(parts_.lower_bound({rounds, 0}), parts_.end());
    open_ = rounds;
  }
  Parts parts() const {
    MutexLock lock(mu_);
    return parts_;
  }
  std::string fault() const {
    MutexLock lock(mu_);
    return fault_;
  }

  // The functions of one rank.
  void SetUp(Tables& tables) {
    auto pushed = std::make_shared<int64_t>(0);
    tables.begin_round = [this](int64_t rounds) {
      Begin(rounds);
      return absl::OkStatus();
    };
    tables.push = [this, pushed](int64_t round, int shard,
                                 const std::string& part) {
      *pushed = round + 1;
      return Push(round, shard, part);
    };
    tables.await_stable = [this, pushed](absl::Duration wait) {
      return AwaitStable(*pushed, std::min(wait, absl::Milliseconds(20)));
    };
    tables.checkpoints.check = [](const std::string&) {
      return absl::OkStatus();
    };
    tables.checkpoints.save = [this](const std::string& path,
                                     const std::string& attempt, int64_t rounds)
        -> absl::StatusOr<std::vector<checkpoint::FileRecord>> {
      Begin(rounds);
      WEFT_ASSIGN_OR_RETURN(const auto directory,
                            checkpoint::CheckpointDirectory::Open({path}));
      checkpoint::Safetensors saved;
      saved.tensors["rounds"] = Tensor::Scalar<int64_t>(rounds);
      WEFT_ASSIGN_OR_RETURN(auto file,
                            directory->AddShard(attempt, 0, "ps0", saved));
      return std::vector<checkpoint::FileRecord>{std::move(file)};
    };
    tables.checkpoints.restore = [this](
                                     const std::string& path,
                                     const std::string& name) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto directory,
                            checkpoint::CheckpointDirectory::Open({path}));
      WEFT_ASSIGN_OR_RETURN(const auto manifest, directory->ReadManifest(name));
      WEFT_ASSIGN_OR_RETURN(const auto saved,
                            directory->LoadShard(name, manifest.files[0]));
      RestoreTo(saved.tensors.at("rounds").item<int64_t>());
      return absl::OkStatus();
    };
    tables.checkpoints.reopen = [] { return absl::OkStatus(); };
  }

 private:
  bool HasAll(int64_t round) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (int shard = 0; shard < kShards; ++shard) {
      if (parts_.count({round, shard}) == 0) return false;
    }
    return true;
  }

  mutable Mutex mu_;
  int64_t open_ ABSL_GUARDED_BY(mu_) = 0;
  Parts parts_ ABSL_GUARDED_BY(mu_);
  std::string fault_ ABSL_GUARDED_BY(mu_);
};

int SumOf(const input::Example& batch) {
  int sum = 0;
  for (const char byte : BytesOf(batch[0])) {
    sum += static_cast<unsigned char>(byte);
  }
  return sum;
}

// A pass that gives a part that its batch decides, of any bytes and size, and
// of some batches none.
absl::Status StepWithPart(DataParallelTraining& training, Net& net,
                          const input::Example& batch) {
  const int sum = SumOf(batch);
  WEFT_RETURN_IF_ERROR(training.Backward(LossOf(net, batch)));
  if (sum % 3 != 0) {
    std::string part = BytesOf(batch[0]) + std::string("\0\n", 2);
    for (int i = 0; i < sum % 5; ++i) part += part;
    WEFT_RETURN_IF_ERROR(training.GivePart(std::move(part)));
  }
  return training.Step();
}

Person WithTables(Rounds& rounds) {
  Person person;
  person.tables = [&rounds](Tables& tables) { rounds.SetUp(tables); };
  person.step = StepWithPart;
  return person;
}

struct Reference {
  Outcome outcome;
  Rounds::Parts parts;
};
const Reference& Wanted() {
  static const Reference& wanted = *[] {
    Rounds rounds;
    auto* reference = new Reference;
    reference->outcome = TrainElastic({WithTables(rounds)})[0];
    reference->parts = rounds.parts();
    EXPECT_EQ(rounds.fault(), "");
    return reference;
  }();
  return wanted;
}

// --- Parts. ------------------------------------------------------------------

TEST(GivenParts, AreTheSameOnAnyRanksWhoeverDies) {
  ASSERT_THAT(Wanted().outcome.status, IsOk());
  EXPECT_EQ(Wanted().parts.size(),
            static_cast<size_t>(Wanted().outcome.steps * kShards));
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int64_t step = 0; step < 6; ++step) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, step ", step));
      Rounds rounds;
      People people(ranks, WithTables(rounds));
      people[step % ranks].dies =
          step % 2 == 0 ? DiesInStep(step) : DiesAfterStep(step);
      const Outcomes outcomes = TrainElastic(people);
      for (int i = 0; i < ranks; ++i) {
        if (i != step % ranks) ExpectSame(outcomes[i], Wanted().outcome);
      }
      EXPECT_EQ(rounds.fault(), "");
      EXPECT_TRUE(rounds.parts() == Wanted().parts);
    }
  }
}

// The part of a step that is repeated is given again, as is that of a pass that
// is done again.
TEST(GivenParts, GivenAtTheWrongTimeAreRefusedAndTheRightOneCounts) {
  Rounds rounds;
  People people(3, WithTables(rounds));
  for (Person& person : people) {
    person.step = [](DataParallelTraining& training, Net& net,
                     const input::Example& batch) -> absl::Status {
      WEFT_RETURN_IF_ERROR(StepWithPart(training, net, batch));
      EXPECT_THAT(training.GivePart("late"), StatusIs(kFailedPrecondition));
      EXPECT_THAT(training.GivePart(""), StatusIs(kFailedPrecondition));
      return absl::OkStatus();
    };
  }
  people[1].dies = DiesInStep(3);
  people[2].dies = DiesAfterStep(5);
  const Outcomes outcomes = TrainElastic(people);
  ExpectSame(outcomes[0], Wanted().outcome);
  EXPECT_EQ(rounds.fault(), "");
  EXPECT_TRUE(rounds.parts() == Wanted().parts);
}

TEST(GivenParts, BeforeTheBackwardAndWithoutItAreOfTheirBatch) {
  Rounds rounds;
  Person person = WithTables(rounds);
  person.step = [](DataParallelTraining& training, Net& net,
                   const input::Example& batch) -> absl::Status {
    WEFT_RETURN_IF_ERROR(training.GivePart("first"));
    EXPECT_THAT(training.GivePart("second"), StatusIs(kFailedPrecondition));
    // A Step without a Backward is refused, and leaves the part.
    EXPECT_THAT(training.Step(), StatusIs(kFailedPrecondition));
    WEFT_RETURN_IF_ERROR(training.Backward(LossOf(net, batch)));
    EXPECT_THAT(training.GivePart("third"), StatusIs(kFailedPrecondition));
    return training.Step();
  };
  EXPECT_THAT(StatusesOf(TrainElastic({person, person})), Each(IsOk()));
  EXPECT_EQ(rounds.fault(), "");
  for (const auto& [at, part] : rounds.parts()) EXPECT_EQ(part, "first");
}

// Without tables, fixed or elastic, before the first batch and after the last.
TEST(GivenParts, WithoutTablesAreRefusedAndHarmNothing) {
  const Outcome wanted = TrainFixed({Person()})[0];
  Person person;
  person.step = [](DataParallelTraining& training, Net& net,
                   const input::Example& batch) -> absl::Status {
    EXPECT_THAT(training.GivePart("part"), StatusIs(kFailedPrecondition));
    return training.Step(LossOf(net, batch));
  };
  for (const Outcome& outcome : TrainFixed({person, person})) {
    ExpectSame(outcome, wanted);
  }
  for (const Outcome& outcome : TrainElastic({person, person})) {
    ExpectSame(outcome, wanted);
  }
}

TEST(GivenParts, OfMegabytesArriveWhole) {
  constexpr size_t kBytes = size_t{3} << 20;
  Rounds rounds;
  People people(3, WithTables(rounds));
  for (Person& person : people) {
    person.options = [](train::Options& options) { options.epochs = 1; };
    person.step = [](DataParallelTraining& training, Net& net,
                     const input::Example& batch) -> absl::Status {
      WEFT_RETURN_IF_ERROR(training.Backward(LossOf(net, batch)));
      // Of some batches alone, so that ranks have parts of very different
      // sizes.
      if (const int sum = SumOf(batch); sum % 3 == 0) {
        WEFT_RETURN_IF_ERROR(
            training.GivePart(std::string(kBytes, static_cast<char>(sum))));
      }
      return training.Step();
    };
  }
  people[0].dies = DiesInStep(1);
  const Outcomes outcomes = TrainElastic(people);
  EXPECT_THAT(outcomes[1].status, IsOk());
  EXPECT_THAT(outcomes[2].status, IsOk());
  EXPECT_EQ(rounds.fault(), "");
  std::set<size_t> sizes;
  for (const auto& [at, part] : rounds.parts()) sizes.insert(part.size());
  EXPECT_EQ(sizes, (std::set<size_t>{0, kBytes}));
}

// --- Functions of the tables. ------------------------------------------------

// "The errors of the functions of `tables` end the training on this rank": the
// others go on with its shards.
TEST(TableFunctions, ThatFailOrThrowEndTheirRankAlone) {
  enum Function { kBeginRound, kPush, kAwaitStable };
  for (const Function function : {kBeginRound, kPush, kAwaitStable}) {
    for (const bool throws : {false, true}) {
      for (const int nth : {1, 4}) {
        SCOPED_TRACE(absl::StrCat("function ", function,
                                  throws ? " throws" : "", ", call ", nth));
        Rounds rounds;
        People people(3, WithTables(rounds));
        people[1].tables = [&,
                            calls = std::make_shared<int>(0)](Tables& tables) {
          rounds.SetUp(tables);
          const auto fail = [=]() -> absl::Status {
            if (++*calls < nth) return absl::OkStatus();
            if (throws) throw std::runtime_error("the table is gone");
            return absl::NotFoundError("the table is gone");
          };
          if (function == kBeginRound) {
            tables.begin_round = [=, ok = tables.begin_round](int64_t round) {
              const absl::Status status = fail();
              return status.ok() ? ok(round) : status;
            };
          } else if (function == kPush) {
            tables.push = [=, ok = tables.push](int64_t round, int shard,
                                                const std::string& part) {
              const absl::Status status = fail();
              return status.ok() ? ok(round, shard, part) : status;
            };
          } else {
            tables.await_stable =
                [=, ok = tables.await_stable](absl::Duration wait) {
                  const absl::Status status = fail();
                  return status.ok() ? ok(wait) : status;
                };
          }
        };
        const Outcomes outcomes = TrainElastic(people);
        EXPECT_THAT(std::string(outcomes[1].status.message()),
                    ::testing::HasSubstr("the table is gone"));
        for (const int i : {0, 2}) ExpectSame(outcomes[i], Wanted().outcome);
        EXPECT_EQ(rounds.fault(), "");
        EXPECT_TRUE(rounds.parts() == Wanted().parts);
      }
    }
  }
}

// "How long all that may take": of a rank whose pushes are never stable.
TEST(TableFunctions, ThatAreNeverStableEndAtTheTimeout) {
  for (const absl::Duration timeout :
       {absl::Milliseconds(300), absl::ZeroDuration(), absl::Seconds(-1)}) {
    SCOPED_TRACE(absl::FormatDuration(timeout));
    Rounds rounds;
    People people(2, WithTables(rounds));
    people[1].tables = [&](Tables& tables) {
      rounds.SetUp(tables);
      tables.timeout = timeout;
      tables.await_stable = [](absl::Duration wait) -> absl::Status {
        absl::SleepFor(std::min(wait, absl::Milliseconds(20)));
        return absl::DeadlineExceededError("it is not stable");
      };
    };
    const Outcomes outcomes = TrainElastic(people);
    EXPECT_THAT(outcomes[1].status,
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    ExpectSame(outcomes[0], Wanted().outcome);
    EXPECT_EQ(rounds.fault(), "");
  }
}

// A part of the functions is none: it is refused, and ends no process.
TEST(TableFunctions, ThatAreMissingAreRefused) {
  for (int missing = 0; missing < 7; ++missing) {
    SCOPED_TRACE(missing);
    testing::TempDir dir;
    Rounds rounds;
    Person person = WithTables(rounds);
    person.options = [&](train::Options& options) {
      options.checkpoint_dir = dir.Path("saved");
    };
    person.tables = [&](Tables& tables) {
      rounds.SetUp(tables);
      if (missing == 0) tables.begin_round = nullptr;
      if (missing == 1) tables.push = nullptr;
      if (missing == 2) tables.await_stable = nullptr;
      if (missing == 3) tables.checkpoints.check = nullptr;
      if (missing == 4) tables.checkpoints.save = nullptr;
      if (missing == 5) tables.checkpoints.restore = nullptr;
      if (missing == 6) tables.checkpoints.reopen = nullptr;
    };
    const Outcome outcome = TrainElastic({person})[0];
    EXPECT_THAT(outcome.status, StatusIs(kInvalidArgument));
    EXPECT_EQ(outcome.steps, 0);
  }
}

TEST(TableFunctions, OfCheckpointsThatFailOrThrowAreStatuses) {
  enum Function { kCheck, kSave, kRestore, kReopen };
  for (const Function function : {kCheck, kSave, kRestore, kReopen}) {
    for (const bool throws : {false, true}) {
      SCOPED_TRACE(
          absl::StrCat("function ", function, throws ? " throws" : ""));
      testing::TempDir dir;
      Rounds rounds;
      Person person = WithTables(rounds);
      person.options = [&](train::Options& options) {
        options.checkpoint_dir = dir.Path("saved");
        options.epochs = 2;
      };
      if (function == kRestore || function == kReopen) {
        person.dies = DiesInStep(8);
        TrainElastic({person});
        person.dies = nullptr;
      }
      person.options = [&](train::Options& options) {
        options.checkpoint_dir = dir.Path("saved");
        options.resume = true;
      };
      person.tables = [&](Tables& tables) {
        rounds.SetUp(tables);
        const auto fail = [throws]() -> absl::Status {
          if (throws) throw std::runtime_error("no server");
          return absl::NotFoundError("no server");
        };
        auto& checkpoints = tables.checkpoints;
        if (function == kCheck) {
          checkpoints.check = [=](const std::string&) { return fail(); };
        } else if (function == kSave) {
          checkpoints.save = [=](const std::string&, const std::string&,
                                 int64_t)
              -> absl::StatusOr<std::vector<checkpoint::FileRecord>> {
            return fail();
          };
        } else if (function == kRestore) {
          checkpoints.restore = [=](const std::string&, const std::string&) {
            return fail();
          };
        } else {
          checkpoints.reopen = [=] { return fail(); };
        }
      };
      const Outcome outcome = TrainElastic({person})[0];
      if (function == kSave) {  // "but for that of `save`, which is logged"
        ExpectSame(outcome, Wanted().outcome);
        EXPECT_THAT(outcome.saved, Not(IsOk()));
      } else {
        EXPECT_THAT(std::string(outcome.status.message()),
                    ::testing::HasSubstr("no server"));
      }
    }
  }
}

// --- Checkpoints within an epoch. --------------------------------------------

std::vector<int64_t> StepsSaved(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "ckpt-")) names.insert(name);
  }
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    int64_t step = -1;
    EXPECT_TRUE(absl::SimpleAtoi(name.substr(name.rfind('-') + 1), &step));
    steps.push_back(step);
  }
  return steps;
}

std::function<void(train::Options&)> Saving(const std::string& path,
                                            int64_t every, bool resume) {
  return [=](train::Options& options) {
    options.checkpoint_dir = path;
    options.checkpoint_every_steps = every;
    options.resume = resume;
    options.keep = 1000;
  };
}

constexpr int64_t kEveryOdd[] = {
    1, 2, 3, 4, 5, 6, 7, 17, 18, 19, std::numeric_limits<int64_t>::max()};

// "after so many steps of all epochs, and again after as many", once where that
// is the end of an epoch: here each has 3 steps or 6, and there are 3.
TEST(CheckpointsWithin, AreAfterEachSoManySteps) {
  for (const bool is_elastic : {false, true}) {
    const Outcome wanted = TrainFixed({Person()})[0];
    const int64_t per_epoch = wanted.steps / 3;
    for (const int64_t every : kEveryOdd) {
      SCOPED_TRACE(
          absl::StrCat("every ", every, is_elastic ? ", elastic" : ""));
      testing::TempDir dir;
      Person person;
      person.options = Saving(dir.Path("saved"), every, false);
      const People people(2, person);
      for (const Outcome& outcome :
           is_elastic ? TrainElastic(people) : TrainFixed(people)) {
        ExpectSame(outcome, wanted);
        EXPECT_THAT(outcome.saved, IsOk());
      }
      std::vector<int64_t> steps;
      for (int64_t step = 1; step <= wanted.steps; ++step) {
        if (step % every == 0 || step % per_epoch == 0) steps.push_back(step);
      }
      EXPECT_THAT(StepsSaved(dir.Path("saved")), ElementsAreArray(steps));
    }
  }
}

// All die in any step, and others, more or fewer, go on, saving after another
// number of steps; again and again.
TEST(CheckpointsWithin, OfAnyStepAreResumedOnAnyRanksToTheBits) {
  const Outcome wanted = TrainFixed({Person()})[0];
  int64_t every = 1;
  for (int64_t step = 1; step < wanted.steps; ++step) {
    SCOPED_TRACE(absl::StrCat("all die in step ", step, ", every ", every));
    testing::TempDir dir;
    Person person;
    person.options = Saving(dir.Path("saved"), every, true);
    person.dies = DiesInStep(step);
    const People first(1 + step % 4, person);
    step % 2 == 0 ? TrainElastic(first) : TrainFixed(first);
    person.dies = DiesAfterStep(step + 2);
    person.options = Saving(dir.Path("saved"), every + 1, true);
    const People second(1 + step % 3, person);
    step % 2 == 0 ? TrainFixed(second) : TrainElastic(second);
    person.dies = nullptr;
    person.options = Saving(dir.Path("saved"), 0, true);
    for (const Outcome& outcome : TrainElastic(People(1 + step % 5, person))) {
      ExpectSame(outcome, wanted);
    }
    every = every % 5 + 1;
  }
}

// With tables too: what was pushed after the checkpoint is taken back with it.
TEST(CheckpointsWithin, OfModelAndTablesAreResumedOnAnyRanks) {
  for (const int64_t every : {1, 2, 4, 5}) {
    for (const int64_t step : {1, 4, 5, 11}) {
      SCOPED_TRACE(absl::StrCat("every ", every, ", all die in ", step));
      testing::TempDir dir;
      Rounds rounds;
      Person person = WithTables(rounds);
      person.options = Saving(dir.Path("saved"), every, true);
      person.dies = DiesInStep(step);
      TrainElastic(People(3, person));
      if (StepsSaved(dir.Path("saved")).empty()) rounds.RestoreTo(0);
      person.dies = nullptr;
      for (const Outcome& outcome :
           TrainElastic(People(1 + step % 4, person))) {
        ExpectSame(outcome, Wanted().outcome);
      }
      EXPECT_EQ(rounds.fault(), "");
      EXPECT_TRUE(rounds.parts() == Wanted().parts);
    }
  }
}

// A checkpoint that cannot be saved within an epoch, and the next one can.
TEST(CheckpointsWithin, ThatCannotBeSavedDoNotEndTheTraining) {
  const Outcome wanted = TrainFixed({Person()})[0];
  testing::TempDir dir;
  const std::string saved = dir.Path("saved"), aside = dir.Path("aside");
  Person person;
  person.options = Saving(saved, 1, false);
  People people(2, person);
  // A file is there in its place as it would be saved after steps 2 and 3.
  people[0].dies = [&, is_aside = false](int64_t steps,
                                         bool is_in_step) mutable {
    if (!is_in_step && !is_aside && steps == 2) {
      fs::rename(saved, aside);
      std::fclose(std::fopen(saved.c_str(), "w"));
      is_aside = true;
    }
    if (!is_in_step && is_aside && steps == 4) {
      fs::remove(saved);
      fs::rename(aside, saved);
      is_aside = false;
    }
    return false;
  };
  const Outcomes outcomes = TrainFixed(people);
  for (const Outcome& outcome : outcomes) {
    ExpectSame(outcome, wanted);
    EXPECT_THAT(outcome.saved, IsOk());
  }
  std::vector<int64_t> steps = {1};
  for (int64_t step = 4; step <= wanted.steps; ++step) steps.push_back(step);
  EXPECT_THAT(StepsSaved(saved), ElementsAreArray(steps));
}

// Another number of samples a step goes on where the data is, and each sample
// counts once in its epoch.
TEST(CheckpointsWithin, AreResumedWithAnotherBatchSize) {
  for (const int64_t batch : {1, 3, 5, 100}) {
    SCOPED_TRACE(batch);
    testing::TempDir dir;
    Person person;
    person.options = Saving(dir.Path("saved"), 1, true);
    person.dies = DiesAfterStep(2);
    TrainFixed({person, person});
    ASSERT_THAT(StepsSaved(dir.Path("saved")), Not(::testing::IsEmpty()));
    // 45 samples over 8 shards are 6 of each; 2 steps of 2 were taken.
    Person other;
    other.batch = batch;
    other.options = Saving(dir.Path("saved"), 1, true);
    const Outcomes outcomes = TrainFixed(People(3, other));
    const int64_t saved = StepsSaved(dir.Path("saved")).back();
    for (const Outcome& outcome : outcomes) {
      EXPECT_THAT(outcome.status, IsOk());
      EXPECT_EQ(outcome.bits == outcomes[0].bits, true);
      EXPECT_EQ(outcome.steps, saved);
    }
    const int64_t begun = 1;  // of the first: it dies after its second step
    const int64_t left = 6 - 2 * begun;
    const auto steps_of = [&](int64_t samples) {
      return (samples + batch - 1) / batch;
    };
    // It was saved after the first step, and maybe after the second.
    const int64_t after_one = begun + steps_of(left) + 2 * steps_of(6);
    const int64_t after_two = 2 + steps_of(left - 2) + 2 * steps_of(6);
    EXPECT_THAT(saved, ::testing::AnyOf(after_one, after_two));
  }
}

TEST(CheckpointsWithin, OfANegativeNumberAreRefused) {
  for (const int64_t every :
       {int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    testing::TempDir dir;
    Person person;
    person.options = Saving(dir.Path("saved"), every, false);
    // The flag is refused; a program that sets the option gets an error or no
    // such checkpoints.
    for (const Outcome& outcome : TrainFixed({person, person})) {
      if (outcome.status.ok()) {
        EXPECT_THAT(StepsSaved(dir.Path("saved")), ::testing::SizeIs(3));
      } else {
        EXPECT_THAT(outcome.status, StatusIs(kInvalidArgument));
      }
    }
  }
}

}  // namespace
}  // namespace weft::outside
