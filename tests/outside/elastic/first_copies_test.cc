// Newcomers that get a first copy of the state while the others train: several
// at once, some of another model, and ranks that die amid the copy. What is
// expected is what train/data_parallel_training.h and docs/elastic.md say.

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/collectives/process_group.h"
#include "weft/nn/module.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/elastic/crowd.h"
#include "weft/tests/outside/elastic/trainings.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {
namespace {

using Prepare = DataParallelTraining::Elastic::Prepare;
using ::testing::Not;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

Person Patient() {
  Person person;
  person.joins_ahead = true;
  return person;
}

// Ranks 0 and 1 train; once rank 0 has taken four steps the newcomers, 2 and
// on, come at once, and it goes on when they wait.
Outcomes TrainWithNewcomers(Crowd& crowd, People people,
                            const People& newcomers) {
  const size_t begun = people.size();
  for (size_t i = 0; i < begun; ++i) crowd.Add(static_cast<int>(i));
  Outcomes outcomes(begun + newcomers.size());
  std::vector<std::thread> late;
  people[0].dies = [&, dies = people[0].dies](int64_t steps, bool is_in_step) {
    if (steps == 4 && !is_in_step && late.empty()) {
      for (size_t i = 0; i < newcomers.size(); ++i) {
        const int id = static_cast<int>(begun + i);
        crowd.Add(id);
        late.emplace_back([&, i, id] {
          outcomes[id] = TrainElasticRank(crowd, id, newcomers[i]);
        });
      }
      for (int i = 0; i < 5000 && !crowd.HasWaiting(); ++i) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    return dies != nullptr && dies(steps, is_in_step);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < begun; ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = TrainElasticRank(crowd, static_cast<int>(i), people[i]);
    });
  }
  outcomes[0] = TrainElasticRank(crowd, 0, people[0]);
  for (std::thread& thread : threads) thread.join();
  for (std::thread& thread : late) thread.join();
  return outcomes;
}
Outcomes TrainWithNewcomers(const People& people, const People& newcomers) {
  Crowd crowd(8);
  return TrainWithNewcomers(crowd, people, newcomers);
}

const Outcome& Wanted() {
  static const Outcome& wanted = *new Outcome(TrainFixed({Person()})[0]);
  return wanted;
}

TEST(FirstCopies, SeveralNewcomersAtOnceTakePart) {
  for (const int newcomers : {1, 2, 4}) {
    SCOPED_TRACE(newcomers);
    for (const Outcome& outcome : TrainWithNewcomers(
             {Patient(), Patient()}, People(newcomers, Patient()))) {
      ExpectSame(outcome, Wanted());
      EXPECT_GT(outcome.groups, 0);
    }
  }
}

// "A newcomer whose model, settings or number of shards differ ends with what
// differs, and the others go on without it": among them one who comes with it.
TEST(FirstCopies, OneOfAnotherModelEndsAndWhoComesWithItTakesPart) {
  constexpr int kOthers = 5;
  Person other[kOthers] = {Patient(), Patient(), Patient(), Patient(),
                           Patient()};
  other[0].rule = optimizer::SgdOptions{0.1, 0.9};
  // A larger state, whose first parts are like those of the others.
  other[1].parts = [](DataParallelTraining::Parts& parts) {
    static_cast<Net*>(parts.model)->AddBuffer("z_more", Tensor::Ones({100}));
  };
  other[2].shards = 16;
  other[3].options = [](train::Options& options) {
    options.settings.fixed = {{"--layers", "3"}};
  };
  other[4].data_seed = 9;
  for (int i = 0; i < kOthers; ++i) {
    for (const bool is_first : {false, true}) {
      SCOPED_TRACE(absl::StrCat("other ", i, is_first ? ", first" : ""));
      People newcomers = {Patient(), Patient()};
      newcomers[is_first ? 0 : 1] = other[i];
      const Outcomes outcomes =
          TrainWithNewcomers({Patient(), Patient()}, newcomers);
      for (const int id : {0, 1, is_first ? 3 : 2}) {
        SCOPED_TRACE(id);
        ExpectSame(outcomes[id], Wanted());
      }
      EXPECT_THAT(outcomes[is_first ? 2 : 3].status,
                  StatusIs(kInvalidArgument));
    }
  }
}

// Any rank of the group with the newcomers, a source or a newcomer, dies in the
// place of any of its messages there: amid the first copy, the places, the
// hashes or the parts that have changed. The others have the bits.
TEST(FirstCopies, DeathOfAnyoneAtEachMessageOfTheNewGroup) {
  for (int who = 0; who < 4; ++who) {
    int64_t message = 0;
    for (bool has_died = true; has_died && message < 200; message += 3) {
      SCOPED_TRACE(absl::StrCat("rank ", who, " at its message ", message));
      Crowd crowd(8);
      collectives::LocalWorld* joint = nullptr;
      int rank_there = 0;
      Mutex mu;
      crowd.on_meeting = [&](int id, int group, collectives::LocalWorld& world,
                             int rank) {
        if (group != 1 || id != who) return;
        MutexLock lock(mu);
        joint = &world;
        rank_there = rank;
        world.KillAfter(rank, message);
      };
      People people = {Patient(), Patient()},
             newcomers = {Patient(), Patient()};
      const Outcomes outcomes = TrainWithNewcomers(crowd, people, newcomers);
      has_died = joint != nullptr && joint->IsKilled(rank_there);
      for (int id = 0; id < 4; ++id) {
        SCOPED_TRACE(absl::StrCat("outcome of ", id));
        if (id == who && !outcomes[id].status.ok()) continue;
        ExpectSame(outcomes[id], Wanted());
      }
    }
    EXPECT_GT(message, 6);
    EXPECT_LT(message, 200) << "rank " << who;
  }
}

// The state of a newcomer, which lacks all of it, has more parts than there are
// ranks that give, and tensors of no element, of one, and in several parts.
TEST(FirstCopies, OfStatesOfManyPartsSurviveTheDeathOfASource) {
  const auto grow = [](DataParallelTraining::Parts& parts, double value) {
    Net& net = *static_cast<Net*>(parts.model);
    net.AddBuffer("large", Tensor::Full({1500000}, value));
    net.AddBuffer("none", Tensor::Empty({0, 3}, DType::kF32));
    net.AddBuffer("one", Tensor::Full({}, value, DType::kI64));
    net.AddBuffer("flags", Tensor::Full({3}, value - 1, DType::kBool));
    net.AddBuffer("half", Tensor::Full({1001}, value, DType::kBF16));
  };
  Person person = Patient();
  person.parts = [&](auto& parts) { grow(parts, 1); };
  Person fixed;
  fixed.parts = person.parts;
  const Outcome wanted = TrainFixed({fixed})[0];
  ASSERT_THAT(wanted.status, IsOk());
  // The newcomer's own are others.
  Person newcomer = person;
  newcomer.parts = [&](auto& parts) { grow(parts, 2); };
  for (const int64_t message : {0, 2, 5, 9, 15, 30}) {
    for (const int who : {0, 1}) {
      SCOPED_TRACE(absl::StrCat("source ", who, " at message ", message));
      Crowd crowd(8);
      crowd.on_meeting = [&](int id, int group, collectives::LocalWorld& world,
                             int rank) {
        if (group == 1 && id == who) world.KillAfter(rank, message);
      };
      const Outcomes outcomes =
          TrainWithNewcomers(crowd, {person, person}, {newcomer});
      for (int id = 0; id < 3; ++id) {
        if (id == who && !outcomes[id].status.ok()) continue;
        ExpectSame(outcomes[id], wanted);
      }
    }
  }
}

// Both who train die at once as the newcomer has its first copy: nobody is left
// who has the whole state, unless it was given to the newcomer.
TEST(FirstCopies, BothSourcesDieAndTheNewcomerHasAllOrEnds) {
  int ended = 0, trained = 0;
  for (int64_t message = 0; message < 40; message += 2) {
    SCOPED_TRACE(message);
    Crowd crowd(8);
    crowd.on_meeting = [&](int id, int group, collectives::LocalWorld& world,
                           int rank) {
      if (group == 1 && id < 2) world.KillAfter(rank, message);
    };
    // The newcomer's own weights are those with which the others began, so that
    // whatever it begins with, if that is whole, ends with the same bits.
    Person person = Patient();
    person.seed = 1;
    const Outcomes outcomes =
        TrainWithNewcomers(crowd, {person, person}, {person});
    for (const int id : {0, 1}) {
      if (outcomes[id].status.ok()) ExpectSame(outcomes[id], Wanted());
    }
    // "where it had no first copy and has none it ends".
    if (outcomes[2].status.ok()) {
      ExpectSame(outcomes[2], Wanted());
      ++trained;
    } else {
      ++ended;
    }
  }
  EXPECT_GT(ended + trained, 0);
}

// A newcomer whose group cannot be made, or that throws as it is, dies before
// it was ever in one; the others have made theirs with it.
TEST(FirstCopies, NewcomerThatFailsAsItsGroupIsMadeEndsAlone) {
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    Person newcomer = Patient();
    newcomer.prepare = [kind](collectives::ProcessGroup& group,
                              const Prepare& first_copy) -> absl::Status {
      if (kind == 0) return absl::CancelledError("died");
      if (kind == 1) throw std::runtime_error("died");
      first_copy(group);
      if (kind == 2) return absl::CancelledError("died");
      throw std::runtime_error("died");
    };
    const Outcomes outcomes =
        TrainWithNewcomers({Patient(), Patient()}, {newcomer, Patient()});
    for (const int id : {0, 1, 3}) {
      SCOPED_TRACE(id);
      ExpectSame(outcomes[id], Wanted());
    }
    EXPECT_THAT(outcomes[2].status, Not(IsOk()));
  }
}

// The same of one who trains, on the thread that makes the next group.
TEST(FirstCopies, RankThatFailsAsTheNextGroupIsMadeEndsAlone) {
  for (const bool throws : {false, true}) {
    for (const int who : {0, 1}) {
      SCOPED_TRACE(absl::StrCat("rank ", who, throws ? " throws" : ""));
      People people = {Patient(), Patient()};
      people[who].prepare = [throws, calls = std::make_shared<int>(0)](
                                collectives::ProcessGroup& group,
                                const Prepare& first_copy) -> absl::Status {
        if (++*calls == 2) {
          if (throws) throw std::runtime_error("died");
          return absl::CancelledError("died");
        }
        if (first_copy != nullptr) first_copy(group);
        return absl::OkStatus();
      };
      const Outcomes outcomes = TrainWithNewcomers(people, {Patient()});
      ExpectSame(outcomes[1 - who], Wanted());
      ExpectSame(outcomes[2], Wanted());
      EXPECT_THAT(outcomes[who].status, Not(IsOk()));
    }
  }
}

// A newcomer that does not call what it was given: it breaks the group that was
// made with it, as any program can. Whoever ends says why, and nobody hangs.
TEST(FirstCopies, NewcomerThatForgetsItEndsNobodyWithoutAReason) {
  Person newcomer = Patient();
  newcomer.prepare = [](collectives::ProcessGroup&, const Prepare&) {
    return absl::OkStatus();
  };
  const Outcomes outcomes =
      TrainWithNewcomers({Patient(), Patient()}, {newcomer});
  for (const Outcome& outcome : outcomes) {
    if (outcome.status.ok()) {
      ExpectSame(outcome, Wanted());
    } else {
      EXPECT_FALSE(outcome.status.message().empty());
    }
  }
}

// Newcomers that come while another group is being made, one after the other.
TEST(FirstCopies, NewcomersThatComeWhileOthersAreTakenInTakePart) {
  Person person = Patient();
  person.seed = 1;  // who comes too late for any step trains alone
  Crowd crowd(8);
  std::vector<std::thread> late;
  std::vector<int> came = {0, 1};
  Outcomes outcomes(6);
  Mutex mu;
  const auto come = [&](int id) {
    MutexLock lock(mu);
    crowd.Add(id);
    came.push_back(id);
    late.emplace_back(
        [&, id] { outcomes[id] = TrainElasticRank(crowd, id, person); });
  };
  // As soon as a rank is in a group that is being made the next one comes.
  crowd.on_meeting = [&](int id, int group, collectives::LocalWorld&, int) {
    if (id == 0 && group >= 1 && group <= 3) come(2 + group);
  };
  Person first = person;
  first.dies = [&, has_come = std::make_shared<bool>(false)](int64_t steps,
                                                             bool is_in_step) {
    if (steps == 3 && !is_in_step && !*has_come) {
      *has_come = true;
      come(2);
      for (int i = 0; i < 5000 && !crowd.HasWaiting(); ++i) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    return false;
  };
  crowd.Add(0);
  crowd.Add(1);
  std::thread second([&] { outcomes[1] = TrainElasticRank(crowd, 1, person); });
  outcomes[0] = TrainElasticRank(crowd, 0, first);
  second.join();
  for (size_t i = 0;; ++i) {
    std::thread thread;
    {
      MutexLock lock(mu);
      if (i == late.size()) break;
      thread = std::move(late[i]);
    }
    thread.join();
  }
  // Two that wait at a time are taken into one group: then fewer groups are
  // made, and fewer come.
  EXPECT_GE(came.size(), 4u);
  for (const int id : came) {
    SCOPED_TRACE(id);
    ExpectSame(outcomes[id], Wanted());
  }
}

}  // namespace
}  // namespace weft::outside
